"""Whose first token comes first, and at which lengths: the sentence of the notebook."""

from __future__ import annotations

from collections.abc import Sequence

from llama_lab.bench import standings
from llama_lab.bench.cold import Start
from llama_lab.bench.statistics import DIFFERENT, Verdict
from llama_lab.bench.wording import weights, with_n
from llama_lab.experiments.time_to_first_token import table


def first_token(trials: Sequence[Start], missing: Sequence[str] = (), seed: int = 0) -> str:
    """At which of everybody's lengths the best placement's first token is ahead of every peer's, where it is not, and
    what is undecided.

    missing: peers that were not measured. The placement is the one with the least median at that length.
    """
    shared = table.everybodys(trials)
    ratios = [r for r in table.ratios(trials, seed) if r["tokens"] in shared]
    if not ratios:
        return "No placement and no peer have valid first tokens at the same length, so there is nothing to compare."
    at: dict[int, list[dict]] = {}
    for r in ratios:
        at.setdefault(r["tokens"], []).append(r)
    ahead = [n for n, here in at.items() if all(r["ratio"].verdict == Verdict.FASTER for r in here)]
    behind = [n for n, here in at.items() if any(r["ratio"].verdict == Verdict.SLOWER for r in here)]
    unclear = [n for n in at if n not in ahead + behind]
    peers = dict.fromkeys(r["peer"] for r in ratios)
    mine = f"the best {kinds(trials)} placement's first token"
    sentence = f"{claim(trials, ratios)} "
    sentence += f"At {tokens(ahead)} {mine} comes" if ahead else f"At no length does {mine} come"
    sentence += f" before that of every peer ({len(peers)} were measured)"
    if behind:
        quicker = {
            n: ", ".join(named(trials, r) for r in at[n] if r["ratio"].verdict == Verdict.SLOWER) for n in behind
        }
        sentence += "; " + "; ".join(f"at {n} that of {names} comes before it" for n, names in quicker.items())
    if unclear:
        sentence += f"; these trials do not decide it at {tokens(unclear)}"
    for n in [n for n in (10, 400) if n in at] or sorted({min(at), max(at)}):
        nearest = min(at[n], key=lambda r: r["ratio"].value)
        sentence += (
            f"; at {n} the quickest peer, {named(trials, nearest)}, takes {with_n(nearest['ratio'])} as long as"
            f" {nearest['best']}"
        )
    return sentence + (f"; not measured: {table.shortened(missing)}." if missing else ".")


def kinds(trials: Sequence[Start]) -> str:
    """What the placements' weights are, `float32`."""
    return " or ".join(sorted({t.dtype for t in trials if t.backend == standings.JAX}))


def claim(trials: Sequence[Start], ratios: Sequence[dict]) -> str:
    """At how many lengths somebody else's first token comes before that of the best placement, of those who compute on
    weights of the same type where there are some. ratios: of `table.ratios`."""
    alike = [r for r in ratios if not fewer(trials, r["peer"])]
    ratios, others = alike or ratios, f"other {kinds(trials)} runtime" if alike else "other runtime"
    verdicts = {n: [r["ratio"].verdict for r in ratios if r["tokens"] == n] for n in {r["tokens"] for r in ratios}}
    behind = sum(Verdict.SLOWER in here for here in verdicts.values())
    ahead = sum(set(here) == {Verdict.FASTER} for here in verdicts.values())
    mine, of = f"the best {kinds(trials)} placement", f"of {len(verdicts)} prompt lengths"
    if behind:
        return f"An{others} makes the first token before {mine} at {behind} {of}."
    if ahead:
        return f"{mine[0].upper()}{mine[1:]} makes the first token before every {others} at {ahead} {of}."
    return f"Whether {mine} makes the first token before every {others}, these trials do not decide."


def fewer(trials: Sequence[Start], peer: str) -> str:
    """The type of a peer's weights where no placement has it; "" else."""
    dtype = next(t.dtype for t in trials if t.subject == peer)
    return "" if dtype in {t.dtype for t in trials if t.backend == standings.JAX} else dtype


def named(trials: Sequence[Start], r: dict) -> str:
    """A peer, with the type of its weights where that is another one."""
    kind = fewer(trials, r["peer"])
    return f"{r['peer']} ({weights(kind)})" if kind else r["peer"]


def tokens(counts: Sequence[int]) -> str:
    """`10, 50 and 100 tokens`; "" for none."""
    words = [str(n) for n in counts]
    return f"{' and '.join(filter(None, [', '.join(words[:-1]), words[-1]]))} tokens" if words else ""


def scripting(found: Sequence[dict]) -> str:
    """Whether scripting what is dynamic makes the first token sooner. found: `table.scripting`."""
    kinds: dict[str, list[dict]] = {}
    for e in found:
        kinds.setdefault(e["what"], []).append(e)
    if not kinds:
        return "What scripting gains was not measured here."
    parts = []
    for what, here in kinds.items():
        values = [e["ratio"].value for e in here]
        sooner, later = ([e["tokens"] for e in here if e["ratio"].verdict == verdict] for verdict in DIFFERENT)
        words = f"{what}: without that, PyTorch's first token takes {min(values):.2f}x to {max(values):.2f}x as long"
        decided = [f"it gains at {tokens(sooner)}"] * bool(sooner) + [f"it loses at {tokens(later)}"] * bool(later)
        parts.append(f"{words} ({', '.join(decided) or f'undecided at all {len(here)} lengths'})")
    return "; ".join(parts)[0].upper() + "; ".join(parts)[1:] + "."
