"""Which placement decodes fastest, over what, when its compilation has paid, and what sampling adds, in sentences."""

from __future__ import annotations

from collections.abc import Sequence

from llama_lab.bench import AGAIN, summary
from llama_lab.bench.numbers import interval, round_ratio
from llama_lab.bench.record import Trial
from llama_lab.bench.statistics import Verdict
from llama_lab.bench.wording import listed
from llama_lab.experiments.jit_placement.table import Cost


def placements(trials: Sequence[Trial], table: list[dict]) -> str:
    """Which placement decodes fastest, over what, how close to the limit, and when its compilation has paid."""
    valid = [r for r in table if r["valid_trials"] and r["tokens_equal"] and not r["name"].endswith(AGAIN)]
    if not valid:
        return "No placement has a valid trial, so there is nothing to compare."
    best = max(valid, key=lambda r: r["tokens_per_second"]["median"])
    rate, baseline = best["tokens_per_second"], summary.baseline_of(table)
    sentence = claim(trials, table) + (
        f" With {best['name']} the model decodes {rate['median']:.1f} tokens/s {interval(rate, '.1f')},"
        f" {best['mbu']:.0%} of the limit by the fastest bandwidth probe"
    )
    slowest = next(
        (r for r in valid if r["name"] == "eager"), min(valid, key=lambda r: r["tokens_per_second"]["median"])
    )
    rivals = [r for r in valid if r is not best]
    names = [r["name"] for r in rivals]
    for name in (name for name in dict.fromkeys((slowest["name"], baseline)) if name in names):
        sentence += f", {summary.paired_ratio(trials, best['name'], name).words} of {name}"
    if slowest is not best and best["compile"] and slowest["compile"]:
        sentence += pays(summary.break_even(best, slowest), slowest["name"])
    undecided = [
        r["name"] for r in rivals if summary.paired_ratio(trials, best["name"], r["name"]).verdict != Verdict.FASTER
    ]
    if undecided:
        sentence += f"; against {', '.join(undecided)} the pairs do not decide"
    wrong = [r["name"] for r in table if summary.tokens_word(r) == "WRONG"]
    return sentence + (f"; {', '.join(wrong)} made other tokens and has no time." if wrong else ".")


def claim(trials: Sequence[Trial], table: list[dict]) -> str:
    """What one program a token gains over none, and whether more tokens a program add to that."""
    valid = {r["name"]: r["tokens_per_second"]["median"] for r in table if r["valid_trials"] and r["tokens_equal"]}
    if not {"eager", "step"} <= valid.keys():
        best = max(valid, key=valid.get, default=None)
        return f"The model decodes fastest under {best}." if best else "No placement has a valid trial."
    gain = summary.paired_ratio(trials, "step", "eager")
    if gain.verdict != Verdict.FASTER:
        return "These trials do not decide whether compiling a token as one program makes the model faster."
    said = f"Compiling each token as one program makes the model {round_ratio(gain.value)} times as fast"
    several = [name for name in valid if name == "loop" or name.startswith("chunk")]
    if not several:
        return said + "."
    more = summary.paired_ratio(trials, max(several, key=valid.get), "step")
    adds = {Verdict.FASTER: f"adds {more.value - 1:.0%}", Verdict.SLOWER: f"loses {1 - more.value:.0%}"}
    return f"{said}; compiling several at once {adds.get(more.verdict, 'adds nothing sure')}."


def added(costs: Sequence[Cost]) -> str:
    """Between what and what sampling adds to a token, where that shows."""
    shown = sorted(c.added.median for c in costs if c.added.low > 0)
    if not shown:
        return "What sampling adds to a token does not show"
    ends = [f"{ms:.0f}" for ms in (shown[0], shown[-1])]
    return f"Sampling adds {' to '.join(dict.fromkeys(ends))} ms to a token"


def sampling(costs: Sequence[Cost], settings: str) -> str:
    """What sampling adds to a token: from where to where its medians lie under the placements whose intervals lie above
    0, what that leaves of the rate that falls most, and under which placements these trials do not show it."""
    if not costs:
        return "No placement has valid answers of both kinds side by side, so what sampling costs is not known."
    shown = sorted((c for c in costs if c.added.low > 0), key=lambda c: c.added.median)
    hidden = [c.name for c in costs if c not in shown]
    said = f"Sampling ({settings}) adds"
    if shown:
        least, most = shown[0], shown[-1]
        said += f" {least.added.median:.2f} ms {interval(least.added)} to a token under {least.name}"
        if most is not least:
            said += f", where it shows least, and {most.added.median:.2f} ms {interval(most.added)} under {most.name}"
        worst = min(shown, key=lambda c: c.ratio.value)
        said += f"; {worst.name}, which loses most, keeps {worst.ratio.words} of its greedy rate (n = {worst.ratio.n})"
    else:
        said += " nothing that these trials show"
    return said + (f"; under {listed(hidden)} the noise hides it." if shown and hidden else ".")


def settings(found: Sequence[dict]) -> str:
    """What another temperature compiles."""
    parts = [
        f"{e['name']} compiles {e['programs']} program{'s' * (e['programs'] != 1)} ({e['seconds']:.2f} s)"
        if e["programs"]
        else f"{e['name']} nothing"
        for e in found
    ]
    return f"For another temperature {listed(parts)}."


def pays(tokens: float | None, against: str) -> str:
    if tokens is None:
        return f"; against {against} its compilation does not pay for itself"
    if tokens < 1:
        return f"; against {against} its compilation is paid for by the first token"
    return f"; against {against} its compilation has paid for itself after {tokens:.0f} tokens"
