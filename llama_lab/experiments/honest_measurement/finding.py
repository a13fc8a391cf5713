"""What is left of published ways of timing: the sentence of the notebook."""

from __future__ import annotations

from collections.abc import Sequence

from llama_lab.bench.numbers import round_ratio
from llama_lab.bench.wording import with_n


def claims(speed_ups: Sequence[dict], first: dict, rounds: Sequence[dict]) -> str:
    """What is left of three published ways of timing once the protocol is applied."""
    short, cold, warm = speed_ups

    def words(found: dict) -> str:
        return with_n(found["ratio"])

    apart = {way: sum(r[way].excludes_one for r in rounds) for way in ("sequential", "interleaved")}
    cold_over = first["cold_mean"] / first["naive_p99"]
    return claim(speed_ups) + (
        f" A KV cache makes a short answer {words(warm)} as fast when both sides are warm; timed the way that"
        f" {cold['published']:.2f}x and {short['published']:.2f}x were published (another model on another machine),"
        f" with compilations inside, the same two programs give {words(cold)} and {words(short)}; the mean first-token"
        f" time of {len(first['cold'])} requests, the first of them cold, is {cold_over:.1f} times the 99th percentile"
        f" of {len(first['warm'])} warm ones; and one program timed against itself is called different in"
        f" {apart['sequential']} of {len(rounds)} rounds one after the other, in"
        f" {apart['interleaved']} of {len(rounds)} interleaved."
    )


def claim(speed_ups: Sequence[dict]) -> str:
    """What compilations inside the timed part make of a speed-up."""
    cold, warm = (found["ratio"] for found in speed_ups[1:])
    if not (cold.low > warm.high or cold.high < warm.low):
        return "These trials do not decide whether compiling inside the timed part changes what a cache seems to gain."
    said = (
        f"Timed with compilations inside, a {round_ratio(warm.value)}-fold speed-up reads as {round_ratio(cold.value)}"
    )
    return f"{said}-fold: such a ratio measures the compiler."
