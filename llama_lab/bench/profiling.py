"""Where a request spends its time, and what XLA made of its programs: a trace for ui.perfetto.dev and a summary of the
HLO."""

from __future__ import annotations

import json
import math
import re
import tempfile
from collections import deque
from pathlib import Path
from typing import NamedTuple

import jax

from llama_jax.plumbing import files
from llama_lab.bench import memory, protocol, tracing
from llama_lab.bench.guard import Guard
from llama_lab.bench.workload import Subject, Workload

LARGEST = 10
# these run another computation's instructions; a fusion melts them into one
CONTROL = ("while", "call", "conditional", "async-start")
NO_BUFFER = (*CONTROL, "parameter", "constant", "tuple", "get-tuple-element", "bitcast", "async-update", "async-done")
SIZES = ("argument", "output", "temp", "alias")
COUNTED = {"fusions": "fusion", "custom_calls": "custom-call", "while_loops": "while"}


# a request that shows every program and keeps the trace readable
SMALL = Workload((tuple(range(1, 33)),), new_tokens=16, length=32)


def profile(subject: Subject, out: Path, workload: Workload = SMALL) -> dict:
    """Trace one warm request of a subject: {trace, summary, programs, compiled}, the first two being paths, which it
    prints too.

    Writes OUT/NAME/trace.json.gz (Perfetto), hlo.json and hlo.md (`summary`). programs: one dict per program that ran,
    largest first, see `describe`. compiled: why the request was not warm after all, else "". Best with a subject that
    has not run in this process: otherwise, and for the operations that JAX itself compiles and all subjects share, the
    programs of others cannot be told from its own where their names are the same; they are listed too, with "own":
    "unknown".
    Raises UserError when `out` cannot be written, or another trace is being taken.
    """
    folder = Path(out) / re.sub(r"[^\w.+-]+", "-", subject.name)
    with files.explained(folder):  # a mistake shows before the work
        folder.mkdir(parents=True, exist_ok=True)
    before = memory.executables()
    protocol.warm_up(subject, workload)
    ids = subject.encode(workload.prompts[0])
    with tempfile.TemporaryDirectory() as place:
        with Guard() as guard, tracing.traced(place), jax.profiler.TraceAnnotation(f"request to {subject.name}"):
            deque(subject.run(ids, workload), maxlen=0)
        trace = tracing.taken(place)
    programs = [describe(executable, own) for executable, own in those_run(trace, before)]
    programs.sort(key=lambda p: (-p["instructions"], p["name"]))
    about = dict(subject=subject.name, backend=subject.backend, placement=subject.placement)
    about |= dict(programs=programs, compiled=guard.reason)
    paths = dict(trace=folder / "trace.json.gz", summary=folder / "hlo.md")
    files.write(paths["trace"], trace)
    files.write(folder / "hlo.json", json.dumps(about, indent=1) + "\n")
    files.write(paths["summary"], readable(about))
    print(f"{subject.name}: {paths['trace']} (open it at ui.perfetto.dev), {paths['summary']}", flush=True)
    return {kind: str(path) for kind, path in paths.items()} | dict(programs=programs, compiled=guard.reason)


def those_run(trace: bytes, before: list) -> list[tuple]:
    """(executable, whether it is the subject's own) of each that the trace saw run.

    A trace names programs, and several alive may share a name: those of that name that were not there `before` are the
    subject's. Where there is none, all of that name, own "unknown".
    """
    modules = [event.get("args", {}).get("hlo_module", "") for event in tracing.events(trace)]
    ran = {module.removeprefix("jit_") for module in modules}
    old = set(map(id, before))
    alive = [(executable, memory.name_of(executable)) for executable in memory.executables()]
    fresh = {name for executable, name in alive if id(executable) not in old}
    return [
        (executable, True if name in fresh else "unknown")
        for executable, name in alive
        if name in ran and (name not in fresh or id(executable) not in old)
    ]


class Instruction(NamedTuple):
    """One line of HLO text. shape: its output's, as XLA writes it. fused: whether a fusion swallowed it."""

    name: str
    shape: str
    operation: str
    fused: bool


def describe(executable, own: bool | str = True) -> dict:
    """A program as plain values: counts of instructions, bytes of its buffers, and its LARGEST temporaries.

    instructions are those outside fusions. temporaries: outputs of instructions (parameters, constants and what only
    renames a buffer left out) by size, before XLA lets them share memory: together they may be far more than
    temp_bytes.
    """
    kept = [i for i in instructions(executable.hlo_modules()[0].to_string()) if not i.fused]
    sizes = memory.analyse(executable)
    outputs = [
        dict(name=i.name, shape=i.shape, bytes=shape_bytes(i.shape)) for i in kept if i.operation not in NO_BUFFER
    ]
    return dict(
        name=memory.name_of(executable), own=own, instructions=len(kept),
        **{label: sum(i.operation == operation for i in kept) for label, operation in COUNTED.items()},
        **{f"{kind}_bytes": getattr(sizes, f"{kind}_bytes", "unknown") for kind in SIZES},
        temporaries=sorted(outputs, key=lambda t: -t["bytes"])[:LARGEST],
    )  # fmt: skip


def instructions(text: str) -> list[Instruction]:
    """Every instruction of a module's text, in order. Syntax: https://openxla.org/xla/operation_semantics and XLA's
    hlo_parser.cc."""
    lines, inner, computation = [], set(), ""
    for line in text.splitlines():
        if header := re.match(r"(?:ENTRY )?%?([\w.-]+) .*\{$", line):
            computation = header[1]
        elif (parts := re.match(r"\s+(?:ROOT )?%?([\w.-]+) = (.+)", line)) and (
            named := re.search(r"\s([a-z][\w-]*)\(", parts[2])
        ):
            lines.append((computation, parts[1], re.sub(r"/\*.*?\*/", "", parts[2][: named.start()]), named[1]))
            if named[1] not in CONTROL:
                inner |= set(re.findall(r"(?:calls|to_apply)=%?([\w.-]+)", parts[2]))
    return [Instruction(name, shape, operation, where in inner) for where, name, shape, operation in lines]


def shape_bytes(shape: str) -> int:
    """Bytes of a shape such as `f32[2,3]{1,0}` or a tuple of them; types without a size count as nothing."""
    total = 0
    for kind, sizes in re.findall(r"\b([a-z]+\d*\w*)\[([\d,<=]*)\]", shape):
        bits = 8 if kind == "pred" else int((re.search(r"\d+", kind) or [0])[0])
        total += -(-math.prod(map(int, re.findall(r"\d+", sizes))) * bits // 8)
    return total


def readable(about: dict) -> str:
    """hlo.md: a table of the LARGEST programs, and one of the largest temporaries of each. All are in hlo.json."""
    shown = about["programs"][:LARGEST]
    heads = ("instructions", *COUNTED, *(f"{kind}_bytes" for kind in SIZES))
    lines = [f"# Programs of {about['subject']} ({about['backend']}, placement {about['placement']})", ""]
    lines += [f"The traced request was not warm: {about['compiled']}.", ""] if about["compiled"] else []
    lines += line("program", *(head.replace("_", " ") for head in heads)), "| --- |" + " ---: |" * len(heads)
    lines += [line(p["name"], *(p[head] for head in heads)) for p in shown]
    if more := len(about["programs"]) - len(shown):
        lines += ["", f"And {more} smaller ones, see hlo.json."]
    if any(p["own"] == "unknown" for p in shown):
        lines += ["", "Some may belong to another subject of the same process: it had programs of the same names."]
    for p in shown:
        lines += ["", f"## Largest temporaries of {p['name']}", ""]
        lines += line("instruction", "shape", "bytes"), "| --- | --- | ---: |"
        lines += [line(t["name"], f"`{t['shape']}`", t["bytes"]) for t in p["temporaries"]]
    return "\n".join(lines) + "\n"


def line(*cells: object) -> str:
    return f"| {' | '.join(map(str, cells))} |"
