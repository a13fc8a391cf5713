"""What compiling costs and what is left of it: the sentence of the notebook."""

from __future__ import annotations

from collections.abc import Sequence

from llama_lab.bench.claim import Claim, Comparison, stated
from llama_lab.bench.cold import Start
from llama_lab.bench.statistics import Ratio
from llama_lab.bench.wording import within
from llama_lab.experiments.compile_time import table
from llama_lab.experiments.compile_time.table import Slope


def compile_parts(trials: Sequence[Start], placement: str, seed: int) -> list[Comparison]:
    """What starts that read compiled programs spend on them, over what others do."""
    ways = (("serialised", "cold"), ("cached", "cold"), ("serialised", "cached"))
    return [
        Comparison(table.start_ratio(trials, placement, way, other, lambda t: t.compile_part, seed),
                   f"a {way} start", f"a {other} one", "compile part")
        for way, other in ways
    ]  # fmt: skip


def claim(trials: Sequence[Start], placement: str = "step", seed: int = 0) -> Claim:
    """What programs kept on disk leave of a start's compiling."""
    least, most = sorted(compile_parts(trials, placement, seed)[:2], key=lambda c: c.ratio.value)
    said = "Keeping compiled programs on disk leaves {least:share} to {most:share} of what compiling takes at a start."
    return stated(said, least=least, most=most) or most.generic


def milliseconds(found: Slope) -> str:
    return f"{round(1e3 * found.slope) + 0:.0f} ms{within(found, lambda seconds: f'{1e3 * seconds:.0f}')}"


def share(found: Ratio) -> str:
    return f"{found.value:.0%}{within(found, '.0%')}"
