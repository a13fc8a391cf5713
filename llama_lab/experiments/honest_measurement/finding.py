"""What remains of published ways of timing: the sentence of the notebook."""

from __future__ import annotations

from collections.abc import Sequence

from llama_lab.bench.claim import Claim, Comparison, stated
from llama_lab.bench.published import standing


def claim(speed_ups: Sequence[dict]) -> Claim:
    """The effect of compilations inside the timed part on a speed-up. speed_ups: of `measure.speed_ups`."""
    cold, warm = (Comparison(e["ratio"], "a cache", f"none ({e['label']})", "speed") for e in speed_ups[1:])
    return (
        stated(
            "Timed with compilations inside, a {warm}-fold speed-up reads as {cold}-fold: such a ratio measures the"
            " compiler.",
            when=cold.ratio.low > warm.ratio.high,
            cold=cold,
            warm=warm,
        )
        or cold.generic
    )


def claims(speed_ups: Sequence[dict], first: dict, rounds: Sequence[dict]) -> str:
    """What remains of three published ways of timing under the protocol."""
    apart = {way: sum(r[way].excludes_one for r in rounds) for way in ("sequential", "interleaved")}
    published = [f"{e['published']:.2f}x ({e['label']})" for e in speed_ups if e["published"]]
    where = standing("kv-cache", "speed-up, short warm-up", "speed-up, long warm-up")
    return claim(speed_ups).text(
        f"of another model on another machine {' and '.join(published)} were published ({where})",
        Comparison(speed_ups[0]["ratio"], "a cache", f"none ({speed_ups[0]['label']})", "speed").words,
        f"the mean first-token time of {len(first['cold'])} requests, the first of them cold, is"
        f" {first['cold_mean'] / first['naive_p99']:.1f} times the 99th percentile of {len(first['warm'])} warm ones",
        f"one program timed against itself is called different in {apart['sequential']} of {len(rounds)} rounds one"
        f" after the other, in {apart['interleaved']} of {len(rounds)} interleaved",
    )
