"""Which placement decodes fastest, over what, when its compilation has paid, and what sampling adds, in sentences."""

from __future__ import annotations

from collections.abc import Sequence

from llama_jax.bench import AGAIN, summary
from llama_jax.bench.record import Trial
from llama_jax.bench.wording import interval, listed
from llama_jax.experiments.jit_placement.table import Cost


def placements(trials: Sequence[Trial], table: list[dict]) -> str:
    """Which placement decodes fastest, over what, how close to the limit, and when its compilation has paid."""
    valid = [r for r in table if r["valid_trials"] and r["tokens_equal"] and not r["name"].endswith(AGAIN)]
    if not valid:
        return "No placement has a valid trial, so there is nothing to compare."
    best = max(valid, key=lambda r: r["tokens_per_second"]["median"])
    rate, baseline = best["tokens_per_second"], summary.baseline_of(table)
    sentence = (
        f"With {best['name']} the model decodes {rate['median']:.1f} tokens/s {interval(rate, '.1f')},"
        f" {best['mbu']:.0%} of the memory-bandwidth limit"
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
    undecided = [r["name"] for r in rivals if summary.paired_ratio(trials, best["name"], r["name"]).verdict != "faster"]
    if undecided:
        sentence += f"; against {', '.join(undecided)} the pairs do not decide"
    wrong = [r["name"] for r in table if summary.tokens_word(r) == "WRONG"]
    return sentence + (f"; {', '.join(wrong)} made other tokens and has no time." if wrong else ".")


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
            said += f" and {most.added.median:.2f} ms {interval(most.added)} under {most.name}"
        worst = min(shown, key=lambda c: c.ratio.value)
        said += f", which leaves {worst.name} {worst.ratio.words} of its greedy rate (n = {worst.ratio.n})"
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
