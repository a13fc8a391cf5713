"""Charts of the GPU recording: decode rate against the memory's limit, time to first token, and what a start costs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from llama_lab.bench.wording import span
from llama_lab.figures import labels, notes, rows
from llama_lab.figures.labels import End
from llama_lab.figures.style import LIMIT_COLOUR, OTHERS, colour, headline, model_label, new, styled

MARKS = tuple(zip(OTHERS, ("o", "s", "^"), strict=False))  # one a model
LINES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)))


@styled
def gpu_decode(rates: dict[str, Sequence[dict]], names: Sequence[str]) -> Figure:
    """Tokens/s of every subject, one panel per model, beside what the measured memory bandwidth allows.

    rates: model → `data.rates`, fastest first. names: subjects, first on top.
    """
    size = 1.8 + 4.6 * len(rates), 1.6 + 0.42 * len(names)
    figure, panels = new(*size, columns=len(rates), squeeze=False, sharey=True)
    for axes, (model, lines) in zip(panels[0], rates.items(), strict=True):
        heights = rows.heights(axes, names)
        for r in lines:
            height, rate, tint = heights[r["subject"]], r["rate"], colour(r["subject"])
            rows.points(axes, r["values"], height, tint)
            rows.interval(axes, rate, height, tint, mark=13, edge=1.8, linewidth=6, zorder=(2, 4))
            words = f"{rate.median:.{0 if rate.median >= 10 else 1}f}, {r['mbu']:.0%}"
            rows.beside(axes, height, words + (f", {r['void']} void" if r["void"] else ""), 8.5)
        for name in set(names) - {r["subject"] for r in lines}:
            rows.beside(axes, heights[name], "not measured", 8.5, x=0.01, color="#777777")
        if lines:
            draw_limit(axes, float(np.median([r["limit"] for r in lines])), lines[0]["rate"].median)
        axes.set_xlim(left=0)
        n = counted({len(r["values"]) for r in lines})
        meaning = f"point: one answer; tick: median of n = {n};\nband: 95% interval; right: median, share of the limit"
        axes.set_xlabel(f"tokens/s ({meaning})")
        axes.set_title(short_label(model), pad=18, fontsize=12)
    best = [f"{lines[0]['subject']} decodes {short_label(model)} fastest" for model, lines in rates.items() if lines]
    headline(figure, "; ".join(best[-2:]) or "No decode rate was measured")
    return figure


def short_label(model: str) -> str:
    return model_label(model).removesuffix(", random weights")


def draw_limit(axes, limit: float, fastest: float) -> None:
    """The memory-bandwidth limit as a line, or in words where it is so far off that a line would squeeze everything
    else."""
    if limit < 20 * fastest:
        return notes.bandwidth_limit(axes, limit)
    words = f"memory-bandwidth limit {limit:.0f}, off the scale "
    corner = dict(color=LIMIT_COLOUR, ha="right", va="bottom", fontsize=9)
    axes.text(1, 1.0, words, transform=axes.transAxes, **corner)


def counted(counts: set[int]) -> str:
    """`3`, `3 to 10`, `0`."""
    return span(counts or {0}, "d")


@styled
def gpu_first_token(times: dict[str, dict[str, dict[int, list[float]]]]) -> Figure:
    """Milliseconds to the first token against the prompt's length, one panel per model, a line per subject. times:
    `data.first_tokens`."""
    figure, panels = new(1.6 + 5 * len(times), 4.6, columns=len(times), squeeze=False)
    for axes, (model, subjects) in zip(panels[0], times.items(), strict=True):
        ends, counts = [], {len(values) for lengths in subjects.values() for values in lengths.values()}
        longest = max((n for lengths in subjects.values() for n in lengths), default=1)
        for (name, lengths), style in zip(subjects.items(), LINES * 3, strict=False):
            x, shade = sorted(lengths), colour(name)
            middle = [float(np.median(lengths[n])) for n in x]
            for n in x:
                axes.scatter([n] * len(lengths[n]), lengths[n], s=9, color=shade, alpha=0.3, linewidths=0)
            axes.plot(x, middle, linestyle=style, color=shade, linewidth=2)
            ends.append(End(f"{name} {middle[-1]:.3g}", longest, middle[-1], shade))
        axes.set_yscale("log")
        low, high = axes.get_ylim()
        labels.at_ends(axes, ends, (high / low) ** 0.055, x=longest * 1.03)
        if not subjects:
            notes.empty(axes, "not measured", color="#777777")
        axes.set_xlim(0, longest * 1.02)
        axes.set_xlabel(f"prompt tokens (point: one request; line: median of n = {counted(counts)})")
        axes.set_title(short_label(model), fontsize=12)
        axes.minorticks_off()
        notes.plain(axes.yaxis)
    panels[0][0].set_ylabel("ms to the first token, log scale")
    headline(figure, soonest(times))
    return figure


def soonest(times: dict[str, dict[str, dict[int, list[float]]]]) -> str:
    """Whose first token of the last model comes first after the longest prompt."""
    subjects = next((lengths for lengths in reversed(times.values()) if lengths), {})
    if not subjects:
        return "No first token was measured"
    longest = max(n for lengths in subjects.values() for n in lengths)
    took = {name: float(np.median(lengths[longest])) for name, lengths in subjects.items() if longest in lengths}
    best = min(took, key=took.get)
    return f"After {longest:,} prompt tokens the first token comes soonest under {best}, in {took[best]:.3g} ms"


@styled
def gpu_starts(by_model: dict[str, Sequence[dict]], names: Sequence[str]) -> Figure:
    """What the first answer costs beyond a warm one, and device memory beside the weights; one mark per model.

    by_model: model → `data.starts`. names: subjects, first on top.
    """
    figure, (left, right) = new(12, 1.9 + 0.4 * len(names), columns=2, sharey=True)
    shift = np.linspace(0.18, -0.18, len(by_model)) if len(by_model) > 1 else [0.0]
    for axes in (left, right):
        heights = rows.heights(axes, names)
    for (model, starts), (shade, mark), up in zip(by_model.items(), MARKS, shift, strict=False):
        for axes, key, scale in ((left, "seconds", 1), (right, "extra", 1e-6)):
            seen = [(s[key] * scale, heights[s["subject"]] + up) for s in starts if s[key] is not None]
            places = [[at[i] for at in seen] for i in (0, 1)]
            label = short_label(model) if axes is left else None
            axes.scatter(*places, color=shade, marker=mark, s=42, zorder=3, label=label)
            right_of = dict(textcoords="offset points", va="center", fontsize=8, color=shade)
            for at in seen:
                axes.annotate(f"{at[0]:.3g}", at, (7, 0), **right_of)
    left.set_xscale("symlog", linthresh=0.1)
    right.set_xscale("symlog", linthresh=1)
    for axes in (left, right):
        axes.set_xlim(left=0, right=2.2 * max(axes.get_xlim()[1], 0.1))
        axes.minorticks_off()
        notes.plain(axes.xaxis)
    left.set_xlabel(
        "s more than a warm answer, log scale above 0.1\n(compiling, autotuning, capturing; n = 1, one process)"
    )
    right.set_xlabel(
        "MB beside the shared weights, log scale above 1\n(JAX: largest program, XLA's count; PyTorch: its"
        " allocator's peak)"
    )
    figure.legend(loc="outside lower center", ncols=max(1, len(by_model)), fontsize=9.5)
    seconds = {s["subject"]: s["seconds"] for starts in by_model.values() for s in starts}
    worst = max(seconds, key=seconds.get, default=None)
    headline(figure, f"A first answer costs {worst} most: {seconds[worst]:.3g} s" if worst else "No start was measured")
    return figure
