"""Words, limits and ticks of axes."""

from __future__ import annotations

from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

from llama_lab.figures.style import LIMIT_COLOUR, headline, new


def limit(axes, at: float, words: str, ha="right") -> None:
    """A dashed red vertical line through the axes, its label above them."""
    axes.axvline(at, color=LIMIT_COLOUR, linestyle="--", linewidth=1.3)
    look = dict(color=LIMIT_COLOUR, ha=ha, va="bottom", fontsize=9.0)
    axes.text(at, 1.0, words, transform=axes.get_xaxis_transform(), **look)


def bandwidth_limit(axes, tokens_per_second: float) -> None:
    limit(axes, tokens_per_second, f"memory-bandwidth limit {tokens_per_second:.0f} ")


def empty(axes, words: str, **style) -> None:
    """Words in the middle of axes that have nothing else. style: of `axes.text`."""
    axes.text(0.5, 0.5, words, ha="center", transform=axes.transAxes, **style)


def bare(axes, words: str) -> None:
    """Words in the middle of axes that are not drawn."""
    empty(axes, words, va="center")
    axes.set_axis_off()


def nothing(words: str, title: str = "There is nothing to draw") -> Figure:
    """A figure with the reason why there is nothing to draw."""
    figure, axes = new(9, 1.5)
    bare(axes, words)
    headline(figure, title)
    return figure


def plain(*axes_of_numbers) -> None:
    """Ticks of log axes as plain numbers (0.2, 5, 100), not powers."""
    for axis in axes_of_numbers:
        axis.set_major_formatter("{x:g}")


def one_two_five(axis, minor=True) -> None:
    """Ticks of a log axis at 1, 2 and 5 of each decade, as plain numbers. minor: whether smaller ticks stand between,
    without numbers."""
    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    if minor:
        axis.set_minor_formatter("")
    else:
        axis.set_minor_locator(LogLocator(subs=()))
    plain(axis)


def log_scale(axes) -> None:
    """A log y axis with ticks at 1, 2 and 5 of each decade, so that a short range has some too."""
    axes.set_yscale("log")
    one_two_five(axes.yaxis)
