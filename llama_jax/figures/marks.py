"""Marks that several charts share: colours and markers of subjects, intervals in words, labels that do not overlap."""

from __future__ import annotations

import numpy as np

from llama_jax.bench import quality, standings
from llama_jax.figures.style import PALETTE
from llama_jax.placement import parse

SHADES = {standings.JAX: PALETTE["blue"], standings.TORCH: PALETTE["vermilion"], standings.LLAMACPP: PALETTE["green"],
          standings.OLLAMA: PALETTE["orange"], standings.IK: PALETTE["sky"],
          standings.OPENVINO: PALETTE["yellow"]}  # fmt: skip
MARKERS = {standings.JAX: "o", standings.TORCH: "s", standings.LLAMACPP: "^", standings.OLLAMA: "D",
           standings.IK: "v", standings.OPENVINO: "p"}  # fmt: skip
HATCHES = {standings.JAX: "", standings.TORCH: "..", standings.LLAMACPP: "//", standings.OLLAMA: "xx",
           standings.IK: "\\\\", standings.OPENVINO: "++"}  # fmt: skip
GREY = "#555555"
KINDS = {  # kind of subject: (colour, marker); of ours, who multiplies
    "XLA": (PALETTE["blue"], "o"), "gemv": (PALETTE["purple"], "P"), "fused": (PALETTE["black"], "X"),
    **{runtime: (SHADES[runtime], MARKERS[runtime]) for runtime in SHADES if runtime != standings.JAX},
}  # fmt: skip
WIDE = 60  # characters of a line beside a chart


def spread_labels(at: dict[str, float], apart: float = 1.16, centred: bool = False) -> dict[str, float]:
    """Heights for labels on a log axis, each at least a factor `apart` above the one below; centred: no higher than
    lower on the whole."""
    placed, floor = {}, 0.0
    for name, height in sorted(at.items(), key=lambda item: item[1]):
        floor = max(height, floor * apart)
        placed[name] = floor
    if not centred or not at:
        return placed
    shift = np.exp(np.mean([np.log(placed[name] / at[name]) for name in at]))
    return {name: height / shift for name, height in placed.items()}


def interval_words(ratio) -> str:
    """`2.31x [2.20, 2.44], n = 5`."""
    return f"{ratio.words}, n = {ratio.n}"


def label(model: str) -> str:
    """`random:llama-3.2-1b` → `llama-\\n3.2-1b`."""
    name = model.removeprefix("random:").partition(",")[0]
    middle = name.find("-", len(name) // 3)
    return name if middle < 0 else f"{name[: middle + 1]}\n{name[middle + 1 :]}"


def kind(name: str, backend: str) -> str:
    """Which of KINDS a subject is: of ours by its kernels."""
    if backend != standings.JAX:
        return backend
    kernels = parse(name).kernels
    return "XLA" if kernels == "none" else kernels


def look(name: str, backend: str) -> tuple[str, str]:
    """A subject's colour and marker."""
    return KINDS.get(kind(name, backend), (GREY, "v"))


def shade(entry: dict) -> str:
    return look(entry["name"], entry["backend"])[0]


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
    (colour, marker), rate, bands = look(entry["name"], entry["backend"]), entry["decode"], []
    if distance is not None and np.isfinite(distance["kl_low"]):
        bands.append(([rate.median] * 2, [max(distance["kl_low"], quality.EXACT), distance["kl_high"]]))
        axes.plot(*bands[-1], color=colour, linewidth=width, alpha=0.35)
    axes.plot([rate.low, rate.high], [height] * 2, color=colour, linewidth=width, alpha=0.35, solid_capstyle="butt")
    axes.plot(rate.median, height, marker, color=colour, markersize=9, markeredgecolor="white")
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
