"""The chart of the kernels' first tokens: against prompt length, and over llama.cpp's."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure

from llama_lab.bench import standings
from llama_lab.bench.record import Trial
from llama_lab.experiments.time_to_first_token import finding, same_file, table
from llama_lab.experiments.time_to_first_token.chart import by_length, pairs, ratios_by_length
from llama_lab.figures import notes
from llama_lab.figures.labels import readable
from llama_lab.figures.marks import kind, look
from llama_lab.figures.style import headline, new, styled

LINES = {"XLA": "--", "gemv": "-", "fused": ":"}


@styled
def first_tokens(trials: Sequence[Trial], limits: dict[int, float], reading: dict[str, float], seed: int = 0) -> Figure:
    """TTFT against prompt length (left); each placement's over that of llama.cpp's fastest mode of the same file
    (right).

    trials: of `same_file.measure`. limits: length → ms of float32, `table.limits`. reading: label → ms to read other
    formats once.
    """
    backends = {t.subject: t.backend for t in trials if t.valid}
    names = [name for name in table.placements(trials) + table.rivals(trials) if name in backends]
    if not names:
        return notes.nothing("No first token counts.")
    figure, (left, right) = new(11, 5.6, columns=2, gridspec_kw={"width_ratios": [1.2, 1]})
    looks = {name: (*look(name, backends[name]), style(name, backends[name])) for name in names}
    by_length(left, trials, looks, names, limits, reading, seed)
    asked = table.lengths(trials)
    ours = [(name, n) for name in names for n in asked if name not in standings.SAME_FILE]
    found = [(name, n, ratio) for name, n in ours if (ratio := same_file.over(trials, name, n, seed))]
    ratios_by_length(right, found, asked, looks, names)
    if not found:
        right.text(0.5, 0.5, "llama.cpp was not measured here", transform=right.transAxes, ha="center", va="bottom")
    others = ", ".join(dict.fromkeys(other for n in asked if (other := same_file.rival(trials, n))))
    values = [1.0, *(ratio.value for _, _, ratio in found)]
    right.set_ylim(min(values) / 2, 2 * max(values))  # an interval may go on beyond
    readable(right.yaxis)
    right.set_ylabel(f"time over that of {others or 'llama.cpp'}\n(log scale; below 1 the placement is sooner)")
    right.set_title(f"over llama.cpp on the same file, n ≥ {pairs(found)} pairs", fontsize=10)
    said = finding.first_before(same_file.races(trials, seed))
    headline(figure, said or "First tokens of the kernels, no peer on the same file measured")
    return figure


def style(name: str, backend: str) -> str:
    """A subject's line: of ours by its kernels."""
    return LINES.get(kind(name, backend), "-.")
