"""What fewer bits and kernels were found to gain and to cost: a sentence for a notebook."""

from __future__ import annotations

from collections.abc import Sequence

from llama_jax.bench import standings
from llama_jax.bench.record import Trial
from llama_jax.bench.wording import listed, standing, within
from llama_jax.experiments.precision_and_kernels import goals, table
from llama_jax.experiments.precision_and_kernels.goals import Goal
from llama_jax.experiments.precision_and_kernels.reading import ALL


def precision(
    trials: Sequence[Trial],
    entries: dict[int, Sequence[dict]],
    judged: Sequence[Goal],
    missing: Sequence[dict],
    seed: int = 0,
    races: Sequence[dict] = (),
) -> str:
    """The fastest placement beside llama.cpp, what both arithmetics cost, whose first token is sooner, and how many
    goals are reached.

    entries: context → `table.ladder`. judged: `goals.judge`. missing: subjects that did not run. races:
    `same_file.races`.
    """
    context = min(entries)
    mine = table.fastest(entries[context])
    if mine is None:
        return "No placement has a valid trial, so there is nothing to compare."
    rate, ratios = mine["decode"], []
    sentence = (
        f"At context {context} the fastest placement, {mine['name']} on {mine['dtype']} weights, decodes"
        f" {rate.median:.1f} tokens/s"
    )
    sentence += within(rate, ".1f") + (
        f", {mine['mbu'].median:.0%} of what the bandwidth allows" if mine["mbu"].n else ""
    )
    labels = {"llama.cpp's fastest mode of the same file": True, "its fastest quantisation": False}
    for label, same_file in labels.items():
        other = table.rival(entries[context], same_file)
        if other and (same_file or other["name"] not in standings.SAME_FILE):
            ratios.append(standing(table.ratio(trials, mine["name"], other["name"], context, seed), label, other))
    sentence += ": " * bool(ratios) + " and ".join(ratios)
    far = [
        (e["name"], e["distance"][ALL])
        for e in (mine, table.rival(entries[context], True))
        if e and ALL in e["distance"]
    ]
    parts = (
        [", ".join(f"{name} is {d['kl']:.2g} nats{within(d, '.2g', 'kl_')} a token from float32" for name, d in far)]
        if far
        else []
    )
    parts += [sooner(races), tally(judged)]
    if absent := [gap["name"] for gap in missing]:
        parts.append(f"{', '.join(absent)} {'was' if len(absent) == 1 else 'were'} not measured here")
    return "; ".join([sentence, *filter(None, parts)]) + "."


def sooner(races: Sequence[dict]) -> str:
    """`step+gemv's first token comes before llama.cpp's at 10 and 50 tokens, after it at 400, undecided at 100`; ""
    without any."""
    by: dict[str, list[str]] = {goals.REACHED: [], goals.MISSED: [], goals.UNDECIDED: []}
    for race, goal in zip(races, goals.firsts(races), strict=True):
        by.get(goal.verdict, []).append(str(race["tokens"]))
    words = {
        goals.REACHED: "comes before llama.cpp's at",
        goals.MISSED: "comes after llama.cpp's at",
        goals.UNDECIDED: "is undecided at",
    }
    said = [f"{words[verdict]} {listed(tokens)}" for verdict, tokens in by.items() if tokens]
    return f"{races[0]['name']}'s first token {', '.join(said)} prompt tokens" if said else ""


def tally(judged: Sequence[Goal]) -> str:
    """`of 12 goals set beforehand 9 are reached, 2 undecided, missed: …`; the table of goals says which are undecided,
    and how far."""
    by = goals.by_verdict(judged)
    measured = len(judged) - len(by[goals.ABSENT])
    if not measured:
        return "no goal was measured"
    said = (
        f"of {measured} goals set beforehand {len(by[goals.REACHED])}"
        f" {'is' if len(by[goals.REACHED]) == 1 else 'are'} reached"
    )
    said += f", {len(by[goals.UNDECIDED])} undecided" * bool(by[goals.UNDECIDED])
    if by[goals.MISSED]:
        said += ", missed: " + "; ".join(f"{g.about} ({g.aim}: {g.measured})" for g in by[goals.MISSED])
    return said
