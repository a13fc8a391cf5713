"""What remains of published ways of timing: the sentence of the notebook."""

from __future__ import annotations

import math
from collections.abc import Sequence

from llama_lab.bench.claim import Claim, Comparison, stated
from llama_lab.bench.published import standing
from llama_lab.experiments.honest_measurement.simulation import POWER


def claim(speed_ups: Sequence[dict]) -> Claim:
    """The effect of compilations inside the timed part on a speed-up. speed_ups: of `measure.speed_ups`."""
    half, cold, warm = (Comparison(e["ratio"], "a cache", f"none ({e['label']})", "speed") for e in speed_ups)
    return (
        stated(
            "Timed with compilations inside, a {warm}-fold speed-up reads as {half}- or {cold}-fold: such a ratio"
            " measures the compiler.",
            when=cold.ratio.low > warm.ratio.high,
            half=half,
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
        f"the published figures ({where}), for another model on another machine, are {' and '.join(published)}",
        f"the mean first-token time of {len(first['cold'])} requests, the first of them cold, is"
        f" {first['cold_mean'] / first['naive_p99']:.1f} times the 99th percentile of {len(first['warm'])} warm ones",
        f"one program timed against itself is called different in {apart['sequential']} of {len(rounds)} rounds in"
        f" sequence, {apart['interleaved']} of {len(rounds)} interleaved{undecided(rounds)}",
    )


def undecided(rounds: Sequence[dict]) -> str:
    """`: too few to tell the two ways apart`, where a sign test of the rounds that only one way calls different does
    not find 5% or less; "" elsewhere. rounds: of `measure.two_ways`."""
    called = [(r["sequential"].excludes_one, r["interleaved"].excludes_one) for r in rounds]
    only = sorted((called.count((True, False)), called.count((False, True))))
    chance = 2 * sum(math.comb(sum(only), k) for k in range(only[0] + 1)) / 2 ** sum(only)
    return ": too few to tell the two ways apart" * (chance > 0.05)


def simulated(table: Sequence[dict], required: float) -> list[str]:
    """How often intervals cover the truth: of one process, of several, and of naive timing; and how power falls with
    fewer processes, and with noise. table: of `simulation.table`. required: coverage to reach."""
    ours, naive = ({r["scenario"]: r for r in table if r["protocol"] == name} for name in ("ours", "naive"))
    several = [r for r in ours.values() if r["processes"] > 1]
    lines = []
    if one := ours.get("one process"):
        lines.append(f"one process, this protocol: {one['coverage']:.1%} of intervals cover the truth")
    if several:
        least, most = (end(several, key=lambda r: r["coverage"]) for end in (min, max))
        error = 1.96 * math.sqrt(required * (1 - required) / least["runs"])
        span = f"{least['coverage']:.1%} ({least['scenario']}) to {most['coverage']:.1%}"
        lines.append(f"two processes or more, this protocol: {span}; required {required:.0%}, error about {error:.0%}")
        fewer = [r for name, r in ours.items() if name in ("base", f"{r['processes']} processes")]
        power = ", ".join(f"{r['power']:.1%} with {r['processes']}" for r in fewer)
        noise = f"; with 10% noise {noisy['power']:.1%}" if (noisy := ours.get("noise 10 %")) else ""
        lines.append(f"power by processes, this protocol: {power}; required {POWER:.0%}{noise}")
    for scenario, words in (("base", "naive"), ("no drift", "naive, without drift")):
        if r := naive.get(scenario):
            wrong = f"{r['aa_false_positive_rate']:.1%} of equal subjects called different"
            lines.append(f"{words}: {r['coverage']:.1%} of intervals cover the truth, {wrong}")
    return lines


def overhead(cost: dict) -> str:
    """What the harness costs a whole answer. cost: of the meta file."""
    ratio = f"{cost['value']:.4f} [{cost['low']:.4f}, {cost['high']:.4f}]"
    if cost["low"] <= 1 <= cost["high"]:
        found = "not told apart from no cost"
    else:
        found = "slower with it" if cost["value"] < 1 else "no slower with it"
    pairs = f"n = {cost['n']} pairs under {cost['placement']}"
    return f"Tokens/s of whole answers, with the harness over without: {ratio}, {pairs}: {found}."
