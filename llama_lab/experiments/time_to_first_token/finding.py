"""Which subject's first token comes first, and at which lengths: the sentences of the notebook."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from llama_lab.bench import summary
from llama_lab.bench.claim import Claim, Comparison, stated
from llama_lab.bench.cold import Start
from llama_lab.bench.statistics import Verdict
from llama_lab.bench.wording import listed, named_well
from llama_lab.experiments.time_to_first_token import side_by_side, table


def claim(trials: Sequence[Start], ratios: Sequence[dict], raced: Sequence[dict] = ()) -> Claim:
    """At how many lengths the placements' first tokens come before those of all peers: on any weights, where kernels
    run and that is at all of `raced`; else on the same kinds of weights, and then which peers on other weights come
    first. ratios: of `table.ratios`. raced: of `first_of_all`."""
    kinds = table.weights(trials)
    if any(with_kernels(t.subject) for t in trials) and {r["ratio"].verdict for r in raced} == {Verdict.FASTER}:
        first = {kinds[r["best"]] for r in raced}
        alike = (r for r in ratios if kinds[r["peer"]] == kinds[r["best"]])
        others = sorted(summary.grouped(alike, lambda r: kinds[r["best"]]).items())
        alone = [f"; in {kind} {programs(found)} at {standing(found)}" for kind, found in others if kind not in first]
        at = f"all {len(raced)} prompt lengths" if len(raced) > 1 else "the one prompt length"
        return Claim(f"{programs(raced)} is first at {at}{''.join(alone)}.")
    ours = {kinds[name] for name in table.placements(trials)}
    alike = [r for r in ratios if kinds[r["peer"]] in ours]
    judged = alike or ratios
    if not judged:
        return Claim("No placement and no peer have valid first tokens at the same length.")
    at = list(dict.fromkeys(r["tokens"] for r in judged))
    sooner = {r["tokens"]: r["peer"] for r in sorted(ratios, key=lambda r: -r["ratio"].value)
              if r not in judged and r["ratio"].verdict == Verdict.SLOWER}  # fmt: skip
    without = "without our kernels, " * (not any(with_kernels(t.subject) for t in trials))
    more = f"; {without}quantised {{peers}} {{are}} earlier at {{m}} lengths" if sooner else ""
    return (
        stated(
            "In {kind} our first token is earliest at {n} of {n} lengths" + more + ".",
            when={r["ratio"].verdict for r in judged} == {Verdict.FASTER},
            kind=" and in ".join(sorted({kinds[r["best"]] for r in judged})),
            n=len(at),
            peers=listed(sorted({named_well(name) for name in sooner.values()})),
            are="is" if len(set(sooner.values())) == 1 else "are",
            m=len(sooner),
        )
        or compared(min(judged, key=lambda r: r["ratio"].value)).generic
    )


def programs(entries: Sequence[dict]) -> str:
    """The placements that are ours in some races, without their policies of shapes."""
    return listed(list(dict.fromkeys(f"`{r['best'].partition(' ')[0]}`" for r in entries)))


def standing(entries: Sequence[dict]) -> str:
    """`2, with 1 undecided`: at how many lengths ours is sooner than each peer of these, and how it stands at the
    others. entries: of `table.ratios`."""
    worst = (Verdict.SLOWER, Verdict.UNDECIDED, Verdict.EQUAL, Verdict.FASTER)
    at = summary.grouped(entries, lambda r: r["tokens"], lambda r: r["ratio"].verdict)
    counts = Counter(min(found, key=worst.index) for found in at.values())
    named = {Verdict.SLOWER: "later", Verdict.UNDECIDED: "undecided", Verdict.EQUAL: "equal"}
    rest = [f"{counts[verdict]} {name}" for verdict, name in named.items() if counts[verdict]]
    first = counts[Verdict.FASTER]
    return f"{first or 'none'}, with {listed(rest)}" if rest else f"all {first}"


def ahead(entries: Sequence[dict]) -> str:
    """`2 of 3`: lengths at which ours is sooner than each peer of these. entries: of `table.ratios`, `first_of_all`."""
    at = summary.grouped(entries, lambda r: r["tokens"], lambda r: r["ratio"].verdict == Verdict.FASTER)
    return f"{sum(map(all, at.values()))} of {len(at)}"


def at_shared(trials: Sequence[Start], seed: int = 0) -> list[dict]:
    """`table.ratios` where all subjects were asked side by side."""
    return table.ratios(side_by_side.interleaved(trials), seed)


def soonest(trials: Sequence[Start], ratios: Sequence[dict], kind: str) -> str:
    """`in float32 step exact is first at 10 tokens, at 400 undecided: OpenVINO takes 0.97x [0.92, 1.04] as long`: of
    one kind of weights, by the verdicts. ratios: of `at_shared`."""
    said = {Verdict.SLOWER: "later", Verdict.UNDECIDED: "undecided"}
    kinds, lengths, others = table.weights(trials), [], []
    alike = (r for r in ratios if kinds[r["peer"]] == kinds[r["best"]] == kind)
    for n, found in summary.grouped(alike, lambda r: r["tokens"]).items():
        behind = [r for r in found if r["ratio"].verdict != Verdict.FASTER]
        nearest = min(behind or found, key=lambda r: r["ratio"].value)
        if not behind:
            lengths.append(nearest)
        else:
            how = said.get(nearest["ratio"].verdict, nearest["ratio"].verdict)
            others.append(f"at {n} {how}: {named_well(nearest['peer'])} takes {nearest['ratio'].words} as long")
    if not lengths:
        return f"in {kind} ours is {', '.join(others)}" if others else ""
    names = listed(list(dict.fromkeys(r["best"] for r in lengths)))
    first = f"in {kind} {names} is first at {listed([str(r['tokens']) for r in lengths])} tokens"
    return ", ".join([first, *others])


def first_of_all(trials: Sequence[Start], seed: int = 0) -> list[dict]:
    """At each length that all subjects share the best placement beside the soonest peer, whatever their weights, as in
    `table.ratios`."""
    found, trials = [], side_by_side.interleaved(trials)
    for n in table.lengths(trials):
        ours, peer = (table.best(trials, names(trials), [n]) for names in (table.placements, table.rivals))
        if ours and peer:
            found.append(dict(tokens=n, best=ours, peer=peer, ratio=table.sooner(trials, ours, peer, n, seed)))
    return found


def with_kernels(subject: str) -> bool:
    """Whether it is a placement with compiled kernels."""
    return "+fused" in subject or "+gemv" in subject


def compared(r: dict) -> Comparison:
    """A placement beside a peer at one length. r: of `table.ratios`."""
    return Comparison(r["ratio"], r["best"], r["peer"], f"first tokens a second after a prompt of {r['tokens']}")


def beside(trials: Sequence[Start], r: dict) -> str:
    """`after 10 tokens llama.cpp+q4_0 takes 0.31x [0.24, 0.41] as long as step exact (paired, n = 4; medians 10.7, 33.3
    ms)`. r: of `table.ratios`."""
    asked = side_by_side.interleaved(trials)
    medians = ", ".join(f"{table.middle(asked, r[name], r['tokens']):.3g}" for name in ("peer", "best"))
    kinds = side_by_side.kept(trials)
    kind = kinds[r["peer"]]
    other = f" ({kind})" * (kind != kinds[r["best"]] and kind not in r["peer"])
    took = f"{named_well(r['peer'])}{other} takes {r['ratio'].words} as long as {r['best']}"
    return f"after {r['tokens']} tokens {took} (paired, n = {r['ratio'].n}; medians {medians} ms)"


def first_token(trials: Sequence[Start], seed: int = 0) -> str:
    """The claim, and the soonest peer beside the best placement at each length that all subjects share."""
    ratios = at_shared(trials, seed)
    raced, kinds = first_of_all(trials, seed), table.weights(trials)
    others = sorted({kinds[r["best"]] for r in ratios} - {kinds[r["best"]] for r in raced})
    more = filter(None, (soonest(trials, ratios, kind) for kind in others))
    return claim(trials, ratios, raced).text(*(beside(trials, r) for r in raced), *more)


def first_before(races: Sequence[dict]) -> str:
    """`At all 5 prompt lengths step+fused's first token is earlier than llama.cpp's and ik_llama.cpp's`; "" without a
    race. races: of `same_file.races`."""
    known = [race for race in races if race["ratio"] is not None and race["ratio"].n]
    if not known:
        return ""
    others = listed(list(dict.fromkeys(f"{named_well(name)}'s" for race in known for name in race["others"])))
    won, _, asked = ahead(known).partition(" of ")
    at = {"1": "1 of 1", "2": "both"}.get(asked, f"all {asked}") if won == asked else f"{won} of {asked}"
    return f"At {at} prompt lengths {known[0]['name']}'s first token is earlier than {others}"
