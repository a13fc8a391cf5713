"""Results in words: numbers and their intervals, lists, sentences."""

from __future__ import annotations

import itertools
import math
import re
import statistics
from collections.abc import Callable, Iterable, Sequence

from llama_lab.bench import environment

NAMES = re.compile(r"eager|ops|layer|split|step|loop|jax|torch|transformers|llamacpp|openvino|ollama")  # of subjects
ROOM = 180  # characters of what a finding or a caption begins with
SENTENCE = re.compile(r"(?<=[.!?]) (?=[A-Z“])")  # a number may follow a point, a name in small letters a comma
PART = re.compile(r"(?<=;) (?![^\[\](]*[\])])")
CLAUSE = re.compile(r"(?<=[;:,.]) (?![^\[\](]*[\])])")
MARKS = re.compile(r"\((?:R|TM)\)| Processor(?= |$)")  # of a maker, in a processor's name
APART = 1.2  # fastest probe over the median one: from here on they are said to differ


def ends(estimate, name: str = "") -> tuple[float, float]:
    """(low, high) of a summary or a ratio, or of an entry with such keys, which may begin with a name."""
    return tuple(
        estimate[name + end] if isinstance(estimate, dict) else getattr(estimate, end) for end in ("low", "high")
    )


def interval(estimate, form: str | Callable[[float], str] = ".2f", name: str = "") -> str:
    """`[low, high]` of what `ends` takes. form: of a number, or what says it."""
    low, high = (form(end) if callable(form) else f"{end:{form}}" for end in ends(estimate, name))
    return f"[{low}, {high}]"


def within(estimate, form: str | Callable[[float], str] = ".2f") -> str:
    """The same after a space; "" if there is no interval."""
    return f" {interval(estimate, form)}" if math.isfinite(ends(estimate)[0]) else ""


def span(values: Iterable[float], form: str | Callable[[float], str] = ".2f") -> str:
    """`3.55 to 7.28`: the least and the most, once where both read the same; "" of none. form: as of `interval`."""
    known = list(values)
    said = (form(end) if callable(form) else f"{end:{form}}" for end in ((min(known), max(known)) if known else ()))
    return " to ".join(dict.fromkeys(said))


def counted(counts: Iterable[int]) -> str:
    """`n = 20`, `n = 18 to 20`: how many values each row of a figure has; `n = 0` without rows."""
    return f"n = {span(counts, ',') or 0}"


def round_ratio(value: float) -> str:
    """A ratio in a title as a text with its interval gives it, so that one claim has one number: `2.54`, `12.4`."""
    return f"{value:.2f}" if value < 10 else f"{value:.1f}"


def weights(dtype: str) -> str:
    """`bfloat16 weights`; of a GGUF file's, which may be of several kinds, `the file's own blocks`."""
    return "the file's own blocks" if dtype == "gguf" else f"{dtype} weights"


def times(ratio: dict) -> str:
    """`5.21x [4.83, 5.62]` of a ratio's entry."""
    return f"{ratio['value']:.2f}x {interval(ratio)}"


def processor(about: dict) -> str:
    """`Intel Xeon (AVX-512 VNNI)`: the processor of an environment."""
    return MARKS.sub("", environment.processor(about))


def cpu(about: dict) -> str:
    """`Intel Xeon`: the name of an environment's processor alone."""
    return MARKS.sub("", about["cpu"])


def machine_line(about: dict) -> str:
    """The machine and the software of an environment."""
    return MARKS.sub("", environment.machine_line(about))


def bandwidths(meta: dict) -> tuple[float, float, float] | None:
    """The smallest, the median and the largest probe of a table's runs, GB/s; None without probes."""
    runs = [of_run for of_run in meta.get("bandwidth_gbps", {}).values() if isinstance(of_run, dict)]
    if not runs:
        return None
    usual = statistics.median_high(of_run["median"] for of_run in runs)
    return min(of_run["min"] for of_run in runs), usual, max(of_run["max"] for of_run in runs)


def pooled(meta: dict, part: str = "") -> dict:
    """The meta of a table with the probes of its runs, of those whose names contain `part`, as of one run: for one
    limit from the fastest of them all."""
    known = {name: of_run for name, of_run in meta.get("bandwidth_gbps", {}).items() if isinstance(of_run, dict)}
    runs = {name: of_run for name, of_run in known.items() if part in name}
    if not (probes := bandwidths(dict(bandwidth_gbps=runs))):
        return meta
    n = sum(of_run["n"] for of_run in runs.values())
    return meta | dict(bandwidth_gbps={"pooled": dict(zip(("min", "median", "max"), probes, strict=True), n=n)})


def busy(meta: dict) -> str:
    """`environment.busy` of a table, and in how many of its processes if not in all; "" if none of them was, of those
    that `of_processes` has left."""
    env = meta["environment"]
    if not (said := environment.busy(env)):
        return ""
    watches = [note["watch"] for note in meta.get("processes", ()) if note.get("watch")]
    own = [environment.busy(env | dict(watch=watch | dict(load_before=0))) for watch in watches]  # its load is our own
    alike = sum(re.split(r"\d", one)[0] == re.split(r"\d", said)[0] for one in own)
    if own and not alike and " load " not in said:
        return ""
    return said + f"{' at most,' * (alike > 1)} in {alike} of {len(own)} processes" * (0 < alike < len(own))


def of_processes(meta: dict, numbers: Iterable[int]) -> dict:
    """The meta of a figure that draws a table's rows of some processes only."""
    kept = {*numbers}
    return meta | dict(processes=[note for note in meta["processes"] if note["process"] in kept])


def probed(meta: dict) -> str:
    """`bandwidth 33 GB/s (probes 30 to 34, n = 20)`; where they differ widely `limits from the fastest of 20
    bandwidth probes, 63 GB/s (median 34 GB/s)`; of several runs, each of which has its own limit, `limits from the
    fastest bandwidth probe of each run, 54 to 63 GB/s`; "" of a table without probes."""
    if (probes := bandwidths(meta)) is None:
        return ""
    fastest = [f"{run['max']:.0f}" for run in meta["bandwidth_gbps"].values() if isinstance(run, dict)]
    if len({*fastest}) > 1:
        return f"limits from the fastest bandwidth probe of each run, {span(map(float, fastest), '.0f')} GB/s"
    least, usual, most = probes
    n = sum(run["n"] for run in meta["bandwidth_gbps"].values() if isinstance(run, dict))
    if most <= APART * usual:
        return f"bandwidth {most:.0f} GB/s (probes {least:.0f} to {most:.0f}, n = {n})"
    return f"limits from the fastest of {n} bandwidth probes, {most:.0f} GB/s (median {usual:.0f} GB/s)"


MAKERS = {"torch-compile": "torch.compile", "llamacpp": "llama.cpp", "ik-llamacpp": "ik_llama.cpp", "ollama": "Ollama",
          "openvino": "OpenVINO", "torch": "PyTorch"}  # fmt: skip


def named_well(name: str) -> str:
    """A runtime, or a subject under one, as its makers write it: `Ollama`, `llama.cpp+q4_0`."""
    prefix = next((prefix for prefix in MAKERS if re.match(rf"{prefix}(?![.\w])", name)), "")
    return MAKERS.get(prefix, "") + name.removeprefix(prefix)


def listed(names: Sequence[str]) -> str:
    """`a, b and c`; "" of none."""
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))


def short_model(model: str) -> str:
    """A model's name for a label; one with other sizes than its preset's by that preset."""
    preset, _, changes = model.partition(",")
    return f"{preset} (changed)" if changes else model


def opening(text: str) -> str:
    """The first sentence, or as much of it as there is room for."""
    return clipped(SENTENCE.split(text, maxsplit=1)[0], ROOM)


def clipped(text: str, room: int) -> str:
    """As many clauses as there is room for, at least one, none cut within itself or its brackets."""
    clauses = CLAUSE.split(text)
    kept = max(1, sum(length <= room for length in itertools.accumulate(len(clause) + 1 for clause in clauses)))
    return text if kept == len(clauses) else " ".join(clauses[:kept]).rstrip(";:,.") + " …"


def points(finding: str) -> tuple[str, list[str]]:
    """How a finding begins, and its details one by one: its other sentences, parted at semicolons outside brackets,
    each with a capital unless it begins with a subject's name."""
    first, *others = SENTENCE.split(finding.strip())
    parts = [part.rstrip(".;") for other in others for part in PART.split(other)]
    words = [re.match(r"[a-z]+(?=[ ,:])", part) for part in parts]
    return first, [
        part[0].upper() + part[1:] if word and not NAMES.fullmatch(word[0]) else part
        for part, word in zip(parts, words, strict=True)
    ]
