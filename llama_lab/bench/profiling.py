"""Where a request spends its time, and what XLA made of its programs: a trace for ui.perfetto.dev and a summary of the
HLO."""

from __future__ import annotations

import json
import re
import tempfile
from collections import deque
from dataclasses import dataclass
from pathlib import Path

import jax

from llama_jax.plumbing import files
from llama_jax.plumbing.errors import UserError
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

    Writes OUT/NAME/trace.json.gz (Perfetto), hlo.json and hlo.md (`summary`). programs: one dict a program that ran,
    largest first, see `describe`. compiled: why the request was not warm after all, else "". Best with a subject that
    has not run in this process: otherwise, and for the operations that JAX itself compiles and all subjects share, the
    programs of others cannot be told from its own where their names are the same; they are listed too, with "own":
    "unknown".
    Raises UserError when `out` cannot be written, or another trace is being taken.
    """
    folder = Path(out) / re.sub(r"[^\w.+-]+", "-", subject.name)
    try:
        folder.mkdir(parents=True, exist_ok=True)  # a mistake is told before the work
    except OSError as error:
        raise UserError(f"Cannot write {folder}: {error.strerror}.") from error
    before = memory.executables()
    protocol.warm_up(subject, workload)
    ids = subject.encode(workload.prompts[0])
    with tempfile.TemporaryDirectory() as place:
        with Guard() as guard, tracing.traced(place), jax.profiler.TraceAnnotation(f"request to {subject.name}"):
            deque(subject.run(ids, workload), maxlen=0)
        trace = tracing.taken(place)
    programs = [describe(executable, own) for executable, own in those_run(trace, before)]
    programs.sort(key=lambda p: (-p["instructions"], p["name"]))
    found = dict(programs=programs, compiled=guard.reason)
    about = dict(subject=subject.name, backend=subject.backend, placement=subject.placement, **found)
    files.write(folder / "trace.json.gz", trace)
    files.write(folder / "hlo.json", json.dumps(about, indent=1) + "\n")
    files.write(folder / "hlo.md", readable(about))
    print(f"{subject.name}: {folder / 'trace.json.gz'} (open it at ui.perfetto.dev), {folder / 'hlo.md'}", flush=True)
    return dict(trace=str(folder / "trace.json.gz"), summary=str(folder / "hlo.md"), **found)


def those_run(trace: bytes, before: list) -> list[tuple]:
    """(executable, whether it is the subject's own) of each that the trace saw run.

    A trace names programs, and several alive may share a name: those of that name that were not there `before` are the
    subject's. Where there is none, all of that name, own "unknown".
    """
    ran = {
        event["args"]["hlo_module"].removeprefix("jit_")
        for event in tracing.events(trace)
        if "hlo_module" in event.get("args", {})
    }
    alive = [(executable, memory.name_of(executable)) for executable in memory.executables()]
    old = set(map(id, before))
    fresh = {name for executable, name in alive if id(executable) not in old}
    return [
        (e, True if name in fresh else "unknown")
        for e, name in alive
        if name in ran and (name not in fresh or id(e) not in old)
    ]


@dataclass(frozen=True)
class Instruction:
    """One line of HLO text: its name, its output's shape as XLA writes it, its operation, and whether a fusion
    swallowed it."""

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
    found, inner, computation = [], set(), ""
    for line in text.splitlines():
        if header := re.match(r"(?:ENTRY )?%?([\w.-]+) .*\{$", line):
            computation = header[1]
        elif (parts := re.match(r"\s+(?:ROOT )?%?([\w.-]+) = (.+)", line)) and (
            named := re.search(r"\s([a-z][\w-]*)\(", parts[2])
        ):
            found.append((computation, parts[1], re.sub(r"/\*.*?\*/", "", parts[2][: named.start()]), named[1]))
            if named[1] not in CONTROL:
                inner |= set(re.findall(r"(?:calls|to_apply)=%?([\w.-]+)", parts[2]))
    return [Instruction(name, shape, operation, where in inner) for where, name, shape, operation in found]


def shape_bytes(shape: str) -> int:
    """Bytes of a shape such as `f32[2,3]{1,0}` or a tuple of them; types without a size count as nothing."""
    total = 0
    for kind, sizes in re.findall(r"\b([a-z]+\d*\w*)\[([\d,<=]*)\]", shape):
        bits = 8 if kind == "pred" else int((re.search(r"\d+", kind) or [0])[0])
        count = 1
        for size in re.findall(r"\d+", sizes):
            count *= int(size)
        total += -(-count * bits // 8)
    return total


def readable(about: dict) -> str:
    """hlo.md: a table of the LARGEST programs, and one of the largest temporaries of each. All are in hlo.json."""
    shown = about["programs"][:LARGEST]
    heads = ("instructions", *COUNTED, *(f"{kind}_bytes" for kind in SIZES))
    lines = [f"# Programs of {about['subject']} ({about['backend']}, placement {about['placement']})", ""]
    lines += [f"The traced request was not warm: {about['compiled']}.", ""] if about["compiled"] else []
    lines += [
        f"| program | {' | '.join(head.replace('_', ' ') for head in heads)} |",
        "| --- |" + " ---: |" * len(heads),
    ]
    lines += [f"| {p['name']} | {' | '.join(str(p[head]) for head in heads)} |" for p in shown]
    if more := len(about["programs"]) - len(shown):
        lines += ["", f"And {more} smaller ones, see hlo.json."]
    if any(p["own"] == "unknown" for p in shown):
        lines += ["", "Some may belong to another subject of the same process: it had programs of the same names."]
    for p in shown:
        lines += [
            "",
            f"## Largest temporaries of {p['name']}",
            "",
            "| instruction | shape | bytes |",
            "| --- | --- | ---: |",
        ]
        lines += [f"| {t['name']} | `{t['shape']}` | {t['bytes']} |" for t in p["temporaries"]]
    return "\n".join(lines) + "\n"
