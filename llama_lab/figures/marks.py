"""Marks shared by several charts: colours and markers of subjects, intervals in words, labels that do not overlap."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from llama_jax.placement import parse
from llama_lab.bench import quality, standings
from llama_lab.bench.wording import named_well
from llama_lab.figures.style import colour

MARKERS = {standings.JAX: "o", standings.TORCH: "s", standings.LLAMACPP: "^", standings.OLLAMA: "D",
           standings.IK: "v", standings.OPENVINO: "p", "gemv": "P", "fused": "X"}  # fmt: skip
FILE_READERS = (standings.LLAMACPP, standings.IK, standings.OLLAMA)  # OpenVINO rounds the weights once more
WIDE = 60  # characters of a line beside a chart


def interval_words(ratio) -> str:
    """`2.31x [2.20, 2.44], n = 5`."""
    return f"{ratio.words}, n = {ratio.n}"


def label(model: str) -> str:
    """`random:llama-3.2-1b` → `llama-\\n3.2-1b`."""
    name = model.removeprefix("random:").partition(",")[0]
    middle = name.find("-", len(name) // 3)
    return name if middle < 0 else f"{name[: middle + 1]}\n{name[middle + 1 :]}"


def kind(name: str, backend: str) -> str:
    """What multiplies: XLA, compiled kernels, or another runtime."""
    if backend != standings.JAX:
        return backend
    kernels = parse(name).kernels
    return "XLA" if kernels == "none" else kernels


def look(name: str, backend: str) -> tuple[str, str]:
    """A subject's colour and marker."""
    return colour(name), MARKERS.get(kind(name, backend), "o" if backend == standings.JAX else "v")


def shade(entry: dict) -> str:
    return colour(entry["name"])


def marked(
    axes, entry: dict, height: float, distance: dict | None, width: float
) -> list[tuple[list[float], list[float]]]:
    """A subject's mark at its decode rate and a height, and the 95% intervals of both, which are returned as lines
    (xs, ys).

    distance: whose interval goes upwards; None if there is none to draw. width: of the bands, in points.
    """
    (tint, marker), rate, bands = look(entry["name"], entry["backend"]), entry["decode"], []
    if distance is not None and np.isfinite(distance["kl_low"]):
        bands.append(([rate.median] * 2, [max(distance["kl_low"], quality.EXACT), distance["kl_high"]]))
        axes.plot(*bands[-1], color=tint, linewidth=width, alpha=0.35)
    axes.plot([rate.low, rate.high], [height] * 2, color=tint, linewidth=width, alpha=0.35, solid_capstyle="butt")
    axes.plot(rate.median, height, marker, color=tint, markersize=9, markeredgecolor="white")
    return bands + ([([rate.low, rate.high], [height] * 2)] if np.isfinite(rate.low) else [])


def distance_words(distance: dict | None) -> str:
    """`KL 0.0038, top-1 96.5%`, or what is missing."""
    if distance is None:
        return "not compared"
    top1 = [] if distance["top1"] is None else [f"top-1 {distance['top1']:.1%}"]
    if distance["kl"] is None:
        return ", ".join(["no logits", *top1])
    return ", ".join([f"KL {distance['kl']:.2g}"] * (distance["kl"] > quality.EXACT) + top1)


def gaps_words(missing: Sequence[dict]) -> str:
    """Missing subjects with reason and remedy, one after the other; a long reason is cut, the remedy never."""
    reasons = [r if len(r) <= WIDE else r[: WIDE - 2] + " …" for r in (gap["reason"] for gap in missing)]
    said = [" ".join(filter(None, [r, gap["remedy"]])) for r, gap in zip(reasons, missing, strict=True)]
    return "; ".join(f"no {gap['name']}: {words}" for words, gap in zip(said, missing, strict=True))


def fastest_and_near(shown: Sequence[tuple[dict, dict | None]]) -> str:
    """`on the same weights loop+fused decodes 368 tokens/s at a KL divergence of 0.0035 from float32, llama.cpp 131 at
    0.0036 (the intervals overlap)`: the fastest subject, and the fastest peer that reads the same weights, or without
    one the fastest peer; a headline. shown: (entry of `standings.ladder`, distance of `quality.table`)."""
    known = [(e, d) for e, d in shown if d and d["kl"] is not None]
    if not known:
        return "No subject has both a rate and a distance"
    known.sort(key=lambda pair: -pair[0]["decode"].median)
    first, *others = known
    peers = [pair for pair in others if pair[0]["backend"] != standings.JAX]
    alike = [pair for pair in peers if same_weights(first[0], pair[0])]
    both = [first, *(alike or peers)[:1]]
    far = [f"{d['kl']:.2g}" if d["kl"] > quality.EXACT else "0 to rounding" for _, d in both]
    words = "{} decodes {:.0f} tokens/s at a KL divergence of {} from float32", "{} {:.0f} at {}"
    told = zip(words, both, far, strict=False)
    said = [form.format(named_well(e["name"]), e["decode"].median, kl) for form, (e, _), kl in told]
    low, high = max(d["kl_low"] for _, d in both), min(d["kl_high"] for _, d in both)
    overlap = " (the intervals overlap)" * (len(both) > 1 and low <= high)
    return "On the same weights " * bool(alike) + ", ".join(said) + overlap


def same_weights(entry: dict, peer: dict) -> bool:
    """Whether a peer reads the weights that a subject does. Ours say `gguf` of the file's own blocks; a peer says their
    type, and its name adds it where it made the blocks anew (`llamacpp+q4_0`)."""
    if entry["dtype"] != "gguf":
        return entry["dtype"] == peer["dtype"]
    return peer["backend"] in FILE_READERS and not peer["name"].endswith(f"+{peer['dtype']}")
