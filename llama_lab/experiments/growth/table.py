"""Tables of growing sizes: time against what the machine allows, and how closely it follows that limit."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

import numpy as np

from llama_lab.bench import frames, summary
from llama_lab.bench.claim import Claim
from llama_lab.bench.experiment import whole
from llama_lab.bench.record import Run, Trial
from llama_lab.bench.wording import listed, span

GROWN = {"layers": "layers", "width": "width", "context": "cache slots", "batch": "rows"}  # axis → what is more
PROBES = ("bytes_ms", "usual_bytes_ms")  # of a point: by the fastest probe of bandwidth, by the median one
ABOUT = 1.1  # an excess below this many times the spread between processes is not told apart from it
FAR = 2.0  # times: from such an excess on the time grows far more than the limit
NOUNS = GROWN | {"batch": "rows of a batch", "model": "whole models"}  # axis → its name in figure and table


def axis_of(trials: Sequence[Trial], axis: str, gflops: float | None = None, usual: float | None = None) -> list[dict]:
    """One entry per point, in the order of its size, models under a placement of their own last: {axis, value,
    placement, ms: list, median, bytes_ms, flops_ms, parameters, n, processes}.

    bytes_ms: what the bandwidth allows, the most that any probe of any point read; usual_bytes_ms: the same of the
    median probe, `usual`. flops_ms: what the machine's arithmetic allows.
    """
    trials = whole(trials)
    bandwidth = max((t.bandwidth_gbps for t in trials if t.bandwidth_gbps), default=float("nan"))
    good = [t for t in trials if t.valid and Run.read(t.run).kind == axis]
    points = []
    for value, mine in summary.grouped(good, lambda t: Run.read(t.run).what).items():
        first, ms = mine[0], [t.tpot * 1e3 for t in mine]  # of a step, which makes one token for each row
        flops = first.flops_per_token * first.batch
        points.append(dict(
            axis=axis, value=value, placement=first.subject, ms=ms, median=float(np.median(ms)),
            bytes=first.bytes_per_token, bytes_ms=first.bytes_per_token / bandwidth / 1e6,
            usual_bytes_ms=first.bytes_per_token / (usual or bandwidth) / 1e6,
            flops_ms=flops / gflops / 1e6 if gflops else None,
            n=len(mine), processes=len({t.process for t in mine}), weights_bytes=first.weights_bytes,
        ))  # fmt: skip
    size = (lambda p: (" " in p["value"], p["weights_bytes"])) if axis == "model" else (lambda p: int(p["value"]))
    return sorted(points, key=size)


COLUMNS = frames.Columns(
    {
        "axis": lambda point: NOUNS[point["axis"]],
        "value": "value",
        "ms": "median",
        "bytes_ms": "bytes_ms",
        "flops_ms": "flops_ms",
        "MB": frames.scaled("bytes", 1e6),
        "n": "n",
    },
    index=("axis", "value"),
    digits=2,
)


def crossing(points: Sequence[dict], probe: str = PROBES[0]) -> float:
    """Where along an axis the arithmetic limit overtakes the bandwidth's, by interpolation; NaN if it does not."""
    over = [(int(p["value"]), p["flops_ms"] / p[probe]) for p in points if p["flops_ms"]]
    for (a, low), (b, high) in itertools.pairwise(over):
        if low < 1 <= high:
            return float(np.exp(np.interp(0.0, [np.log(low), np.log(high)], [np.log(a), np.log(b)])))
    return float("nan")


def growths(points: Mapping[str, Sequence[dict]]) -> dict[str, dict]:
    """Axis → how many times its first size the last one is, how many times its limit and its time are, and what
    that limit is: the bytes at both ends, or another."""
    ends = {axis: (points[axis][0], points[axis][-1]) for axis in GROWN if len(points.get(axis, ())) > 1}
    return {
        axis: dict(
            size=int(last["value"]) / int(first["value"]),
            limit=limit(last) / limit(first),
            longer=last["median"] / first["median"],
            of="bytes" if reads(first) and reads(last) else "limit" + " (arithmetic by then)" * reads(first),
        )
        for axis, (first, last) in ends.items()
    }


def twins(points: Mapping[str, Sequence[dict]]) -> list[float]:
    """Medians of the one configuration that most panels share."""
    same: dict[tuple, list[float]] = {}
    for p in alike(points):
        rows = p["value"] if p["axis"] == "batch" else "1"
        same.setdefault((round(p["bytes"]), rows, p["placement"]), []).append(p["median"])
    return max(same.values(), key=len, default=[])


def spread(points: Mapping[str, Sequence[dict]]) -> float:
    """How many times the fastest process's time the slowest one's is, of the one configuration that was measured most
    often; NaN if none was measured twice."""
    same = twins(points)
    return max(same) / min(same) if len(same) > 1 else float("nan")


def paces(points: Mapping[str, Sequence[dict]]) -> tuple[dict[str, float], dict[str, float], dict[str, float]]:
    """What grows → how many times its first size's time over its limit its last size has: where that is not told apart
    from the spread between processes, where it is less, and where it is more; nothing where no spread is known."""
    excess = {GROWN[axis]: n["longer"] / n["limit"] for axis, n in growths(points).items()}
    least = ABOUT * spread(points)
    return (
        {name: times for name, times in excess.items() if max(times, 1 / times) < least},
        {name: times for name, times in excess.items() if times <= 1 / least},
        {name: times for name, times in excess.items() if times >= least},
    )


def verdicts(points: Mapping[str, Sequence[dict]]) -> dict[str, str]:
    """Axis → how its time grows beside its limit: `undecided`, `less` or `more`; nothing where no spread is known."""
    named = dict(zip(("undecided", "less", "more"), paces(points), strict=True))
    return {axis: how for how, of in named.items() for axis, name in GROWN.items() if name in of}


def against_spread(points: Mapping[str, Sequence[dict]]) -> str:
    """How much more the time grows than the limit along each axis, beside how far one configuration's times lie apart
    from process to process; which point is furthest above its limit, and what the first further rows cost."""
    same, (within, less, more) = twins(points), paces(points)
    if not any((within, less, more)):
        return "No configuration was measured twice, so the spread between processes is not known."
    fold = spread(points)
    said = [
        f"One configuration, measured in {len(same)} processes, takes {span(same, '.1f')} ms: {fold:.2f}-fold between"
        " processes."
    ]
    if within:
        said.append(
            f"Time over limit changes {each(within)}, against {fold:.2f}-fold between processes: no effect is shown"
            f" (we call it one from {ABOUT * fold:.2f}-fold on, {ABOUT:g} times that spread)."
        )
    for axis, n in growths(points).items():
        if GROWN[axis] in less | more:
            said.append(
                f"Along {GROWN[axis]} time rises {n['longer']:.1f}-fold, the limit {n['limit']:.1f}-fold, beyond"
                " that spread."
            )
    most = max(alike(points), key=over)
    said.append(f"The point furthest above its limit is {furthest(points)}, at {over(most):.1f} times.")
    return "\n".join([*said, *filter(None, [further_rows(points)])])


def further_rows(points: Mapping[str, Sequence[dict]]) -> str:
    """What the second size of the batch takes over the first, in time and bytes; "" where that is not more than the
    spread between processes."""
    few, many = (*points.get("batch", ()), None, None)[:2]
    if many is None or not many["median"] / few["median"] >= ABOUT * spread(points):
        return ""
    rows = f"{few['value']} row{'s' * (few['value'] != '1')}"
    return (
        f"{many['value']} rows take {many['median'] / few['median']:.1f} times the time of {rows} for"
        f" {many['bytes'] / few['bytes'] - 1:.0%} more bytes; these data do not say why."
    )


def each(times: Mapping[str, float]) -> str:
    """`1.26-fold along layers and 1.14-fold along cache slots`."""
    return listed([f"{value:.2f}-fold along {name}" for name, value in times.items()])


def reads(point: dict) -> bool:
    """Whether the bytes are its limit, not the arithmetic."""
    return limit(point) == point[PROBES[0]]


def limit(point: dict, probe: str = PROBES[0]) -> float:
    """Milliseconds of a step that the machine needs at least, for the bytes or for the arithmetic."""
    return max(point[probe], point["flops_ms"] or 0.0)


def over(point: dict, probe: str = PROBES[0]) -> float:
    """A step's time over its limit."""
    return point["median"] / limit(point, probe)


def alike(points: Mapping[str, Sequence[dict]]) -> list[dict]:
    """All points but those under a placement of their own."""
    return [p for mine in points.values() for p in mine if " " not in p["value"]]


def usual(points: Mapping[str, Sequence[dict]]) -> list[str]:
    """The placements of those."""
    return [*dict.fromkeys(p["placement"] for p in alike(points))]


def claim(points: Mapping[str, Sequence[dict]]) -> Claim:
    """How the time grows beside the limit along each axis; where that is not known, how far steps are above their
    limits."""
    if not alike(points):
        return Claim("No size was measured.")
    within, less, more = paces(points)
    far = "far more" if more and min(more.values()) >= FAR else "more"
    groups = [(how, listed([*of])) for how, of in (("less", less), (far, more)) if of]
    open_ = listed([*within])
    if not groups and not within:
        return Claim(f"A step under {listed(usual(points))} takes {limits(points)}.")
    if not groups:
        return Claim(f"Whether a step's time grows more or less than its limit is undecided along {open_}.")
    (how, first), *others = groups
    words = ", ".join(
        [f"A step's time grows {how} than its limit along {first}", *(f"{h} along {of}" for h, of in others)]
    )
    return Claim(words + f"; undecided along {open_}" * bool(open_) + ".")


def gap(points: Mapping[str, Sequence[dict]]) -> str:
    """How far steps are above their limits, and along which axes that becomes more and less: a headline; the claim
    where no axis is decided."""
    _, less, more = paces(points)
    said = [f"rises along {listed([*more])}"] * bool(more) + [f"falls along {listed([*less])}"] * bool(less)
    if not said:
        return str(claim(points))
    times = span((over(p) for p in alike(points)), ".1f")
    most = f"{times} times its memory or arithmetic limit, the most at {furthest(points)}"
    return f"A step takes {most}; from first to last size this ratio {' and '.join(said)}"


def limits(points: Mapping[str, Sequence[dict]]) -> str:
    """How far steps under the usual placement are above their limits, by the fastest probe and by the median one."""
    times = [[over(p, probe) for p in alike(points)] for probe in PROBES]
    most, median = (f"{min(of):.1f} to {max(of):.1f}" for of in times)
    return f"{most} times its memory or arithmetic limit" + f" (median probe: {median})" * (median != most)


def furthest(points: Mapping[str, Sequence[dict]]) -> str:
    """`16 rows`: the size that is furthest above its limit."""
    most = max(alike(points), key=over)
    noun, value = NOUNS[most["axis"]].partition(" of ")[0], most["value"]
    return f"{value} {noun}" if value.isdigit() and most["axis"] != "width" else f"{noun} {value}"


def finding(points: Mapping[str, Sequence[dict]]) -> str:
    """How far above its limit a step is; the claim; how limit and time grow along each axis; what a batch gains, and
    the rows at which the time to compute overtakes the time to read."""
    every, batch = alike(points), points.get("batch", ())
    if not every:
        return claim(points).sentence
    rates = [int(p["value"]) / p["median"] for p in batch]
    under = f"Under {listed([f'`{name}`' for name in usual(points)])}, n = {span((p['n'] for p in every), 'd')}"
    most = max(p["processes"] for p in every)
    processes = "one process" if most == 1 else f"{span((p['processes'] for p in every), 'd')} processes"
    grown = [
        f"{n['size']:g} times the {GROWN[axis]} take {n['limit']:.1f} times the {n['of']}, {n['longer']:.1f} times the"
        " time"
        for axis, n in growths(points).items()
    ]
    said = ["; ".join([": ".join([f"{under}, {processes} per point", *grown[:1]]), *grown[1:]])]
    of_batch = []
    if len(rates) > 1:
        few, many = batch[0]["value"], batch[-1]["value"]
        of_batch.append(f"A batch of {many} makes {rates[-1] / rates[0]:.1f} times the tokens/s of a batch of {few}")
    if crossed := crossings(batch):
        of_batch.append(f"reading takes as long as arithmetic at {crossed}")
    said.append("; ".join(of_batch))
    far = f"A step takes {limits(points)}, the most at {furthest(points)}."
    return " ".join(
        [far, *[claim(points).sentence] * any(paces(points)), *(f"{s[0].upper()}{s[1:]}." for s in said if s)]
    )


def crossings(batch: Sequence[dict]) -> str:
    """`14 rows (fastest bandwidth) or 21 (median)`: where the limits of a batch cross; "" where they do not."""
    fastest, median = (f"{rows:.0f}" if math.isfinite(rows := crossing(batch, probe)) else "" for probe in PROBES)
    if fastest and median and fastest != median:
        return f"{fastest} rows (fastest bandwidth) or {median} (median)"
    return f"{fastest or median} rows" if fastest or median else ""
