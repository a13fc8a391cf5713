"""What is left of published ways of timing: the sentence of the notebook."""

from __future__ import annotations

from collections.abc import Sequence

from llama_jax.bench.wording import with_n


def claims(speed_ups: Sequence[dict], first: dict, rounds: Sequence[dict]) -> str:
    """What is left of three published ways of timing once the protocol is applied."""
    short, cold, warm = speed_ups

    def words(found: dict) -> str:
        return with_n(found["ratio"])

    apart = {way: sum(r[way].excludes_one for r in rounds) for way in ("sequential", "interleaved")}
    cold_over = first["cold_mean"] / first["naive_p99"]
    return (
        f"A KV cache makes a short answer {words(warm)} as fast when both sides are warm; timed as published,"
        " with compilations inside,"
        f" the same code gives {words(cold)} where {cold['published']:.2f}x was published and {words(short)} where"
        f" {short['published']:.2f}x was; the mean first-token time of {len(first['cold'])} cold requests is"
        f" {cold_over:.1f} times the"
        f" “P99” of {len(first['warm'])} warm ones; and one program timed against itself is called different in"
        f" {apart['sequential']} of {len(rounds)} rounds one after the other, in"
        f" {apart['interleaved']} of {len(rounds)} interleaved."
    )
