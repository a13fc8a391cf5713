"""Marks shared by several charts: colours and markers of subjects, intervals in words, labels that do not overlap."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from llama_jax.placement import parse
from llama_lab.bench import quality, standings
from llama_lab.bench.wording import counted, named_well
from llama_lab.figures import labels
from llama_lab.figures.style import GREY, colour

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


def speed_against_distance(axes, shown: Sequence[tuple[dict, dict]]) -> None:
    """Decode rates against distances from float32, every subject labelled; what rounding explains stands at 0. shown:
    (entry of `standings.ladder`, distance of `quality.table`)."""
    rates = [e["decode"].median for e, _ in shown] or [1.0]
    far = [d["kl"] for _, d in shown if d["kl"] > quality.EXACT] or [1e-2]
    # no decades without a subject
    axes.set_yscale("symlog", linthresh=10 ** np.floor(np.log10(min(far))), linscale=0.6)
    bottom = -0.4 * axes.yaxis.get_transform().linthresh
    axes.set(xscale="log", ylim=(bottom, 3 * max(far)), xlim=(0.7 * min(rates), 3.3 * max(rates)))
    names, bands = [], [((0.7 * min(rates), 3 * max(rates)), (quality.EXACT,) * 2)]
    for e, d in shown:
        rounded = d["kl"] <= quality.EXACT
        height = quality.EXACT if rounded else d["kl"]
        bands += marked(axes, e, height, None if rounded else d, 3.5)
        words = f"{e['name']}: {e['decode'].median:.0f} tok/s" + f", KL {d['kl']:#.2g}" * (not rounded)
        names.append((words, e["decode"].median, height, shade(e)))
    labels.labelled(axes, names, bands)
    axes.axhline(quality.EXACT, color=GREY, linewidth=0.8, linestyle=":")
    words = f"float32's own distribution, to rounding (below {quality.EXACT:g} nats)"
    note = dict(xycoords=axes.get_yaxis_transform(), textcoords="offset points", ha="right", va="top")
    axes.annotate(words, (0.995, quality.EXACT), (0, -2), fontsize=8.5, color=GREY, **note)
    labels.readable(axes.xaxis)
    n = counted(e["decode"].n for e, _ in shown)
    axes.set_xlabel(f"decode rate, tokens/s (log scale; mark: median, {n} answers; bands: 95% intervals)")
    axes.set_title("better: lower right", loc="right", fontsize=10.5, color=GREY)


def distance_label(texts: str) -> str:
    """Of the axis of distances. texts: what was read."""
    return f"mean KL divergence from float32, nats per token\n({texts};\nlog scale, linear in the lowest decade)"


def fastest_and_near(shown: Sequence[tuple[dict, dict | None]]) -> str:
    """`loop+fused decodes 368 tokens/s, llama.cpp on the same weights 131; their KL from float32 is not shown to differ
    (0.0035 and 0.0036)`: the fastest subject, and the fastest peer that reads the same weights, or without one the
    fastest peer; a headline. shown: (entry of `standings.ladder`, distance of `quality.table`)."""
    known = [(e, d) for e, d in shown if d and d["kl"] is not None]
    if not known:
        return "No subject has both a rate and a distance"
    known.sort(key=lambda pair: -pair[0]["decode"].median)
    first, *others = known
    peers = [pair for pair in others if pair[0]["backend"] != standings.JAX]
    alike = [pair for pair in peers if same_weights(first[0], pair[0])]
    both = [first, *(alike or peers)[:1]]
    far = [f"{d['kl']:#.2g}" if d["kl"] > quality.EXACT else "0 to rounding" for _, d in both]
    said = f"{named_well(first[0]['name'])} decodes {first[0]['decode'].median:.0f} tokens/s"
    if len(both) == 1:
        return f"{said}; its KL from float32 is {far[0]}"
    other = both[1][0]
    said += f", {named_well(other['name'])}{' on the same weights' * bool(alike)} {other['decode'].median:.0f}"
    if max(d["kl_low"] for _, d in both) <= min(d["kl_high"] for _, d in both):
        return f"{said}; their KL from float32 is not shown to differ ({' and '.join(far)})"
    return f"{said}; their KL from float32 is {' and '.join(far)}"


def same_weights(entry: dict, peer: dict) -> bool:
    """Whether a peer reads the weights that a subject does. Ours say `gguf` of the file's own blocks; a peer says their
    type, and its name adds it where it made the blocks anew (`llamacpp+q4_0`)."""
    if entry["dtype"] != "gguf":
        return entry["dtype"] == peer["dtype"]
    return peer["backend"] in FILE_READERS and not peer["name"].endswith(f"+{peer['dtype']}")
