"""Marks that several charts share: colours and markers of subjects, intervals in words, labels that do not overlap."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from llama_jax.placement import parse
from llama_lab.bench import quality, standings
from llama_lab.figures.style import colour

MARKERS = {standings.JAX: "o", standings.TORCH: "s", standings.LLAMACPP: "^", standings.OLLAMA: "D",
           standings.IK: "v", standings.OPENVINO: "p", "gemv": "P", "fused": "X"}  # fmt: skip
HATCHES = {standings.JAX: "", standings.TORCH: "..", standings.LLAMACPP: "//", standings.OLLAMA: "xx",
           standings.IK: "\\\\", standings.OPENVINO: "++"}  # fmt: skip
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
    """Who multiplies: XLA, compiled kernels, or another runtime."""
    if backend != standings.JAX:
        return backend
    kernels = parse(name).kernels
    return "XLA" if kernels == "none" else kernels


def look(name: str, backend: str) -> tuple[str, str]:
    """A subject's colour and marker."""
    return colour(name), MARKERS.get(kind(name, backend), "o" if backend == standings.JAX else "v")


def shade(entry: dict) -> str:
    return colour(entry["name"])


def gap_words(gap: dict) -> str:
    """Why a peer is missing and what would help, in one line; a long reason is cut, the remedy never."""
    reason = gap["reason"] if len(gap["reason"]) <= WIDE else gap["reason"][: WIDE - 2] + " …"
    return " ".join(filter(None, [reason, gap["remedy"]]))


def marked(
    axes, entry: dict, height: float, distance: dict | None, width: float
) -> list[tuple[list[float], list[float]]]:
    """A subject's mark at its decode rate and a height, and the 95 % intervals of both, which are returned as lines
    (xs, ys).

    distance: whose interval goes upwards; None where there is none to draw. width: of the bands, in points.
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
    if distance["kl"] is None:
        return f"no logits, top-1 {distance['top1']:.1%}" if distance["top1"] is not None else "no logits"
    return (
        f"KL {distance['kl']:.2g}, top-1 {distance['top1']:.1%}"
        if distance["kl"] > quality.EXACT
        else f"top-1 {distance['top1']:.1%}"
    )


def gaps_words(missing: Sequence[dict]) -> str:
    """Who is missing, and what would help, one after the other."""
    return "; ".join(f"no {gap['name']}: {gap_words(gap)}" for gap in missing)


def fastest_and_near(shown: Sequence[tuple[dict, dict | None]]) -> str:
    """The fastest subject's distance from float32, and llama.cpp's of the same file: a headline. shown: (entry of
    `standings.ladder`, distance of `quality.table`)."""
    known = [(e, d) for e, d in shown if d and d["kl"] is not None]
    if not known:
        return "No subject has both a rate and a distance"
    best = max(known, key=lambda pair: pair[0]["decode"].median)
    theirs = [pair for pair in known if pair[0]["name"] in standings.SAME_FILE and pair is not best][:1]
    said = [f"{e['name']} ({e['decode'].median:.0f} tokens/s) is {d['kl']:.2g}" for e, d in (best, *theirs)]
    return f"The fastest, {said[0]} nats a token from float32" + "".join(f"; {other}" for other in said[1:])
