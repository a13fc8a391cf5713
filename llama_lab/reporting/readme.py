"""What README.md says of results, computed: a claim in plain words, a table of other runtimes, one picture."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from html import escape
from pathlib import Path

from llama_jax.plumbing import xla_flags
from llama_lab.bench import AGAIN, environment, provenance, record, summary
from llama_lab.bench.claim import settled
from llama_lab.bench.record import Trial
from llama_lab.bench.statistics import DIFFERENT, Ratio, Verdict
from llama_lab.bench.wording import APART, bandwidths, interval, listed, named_well, probed
from llama_lab.experiments.what_serving_needs import attacks
from llama_lab.reporting import document, machines, notebooks, overview, rivals
from llama_lab.reporting.machines import Machine
from llama_lab.reporting.overview import Recorded, Setting
from llama_lab.reporting.repeats import ID, MACHINES, Repeat, repeats, same_model, spread
from llama_lab.sharing import contribution

BEGIN, END = "<!-- findings: written by `llama-jax report` -->", "<!-- end of findings -->"
SUBJECTS = ("eager", "layer", "step", "loop", "step+fused", "loop+fused", "llamacpp")
BEST, LLAMA_CPP = machines.BEST, machines.LLAMA_CPP
KERNEL = "`loop+fused`, the loop with a compiled kernel that multiplies the file's own 4-bit blocks,"
CLAIM = (  # (above, what it is, below, what that is), a sentence each
    ("step", "decoding with one `jax.jit` around the step", "eager", "without it"),
    ("loop", "compiling the whole answer (`loop`)", "step", "compiling one token (`step`)"),
    ("loop+fused", KERNEL, "loop", "the same loop on float32 weights"),
)
PLACE_HEADS = ("you want to", "put jit around", "placement")
PLACES = (
    ("learn JAX, or stream each token as it is made", "one token", "`step`"),
    ("make whole answers, or a batch of them", "the whole answer, a `lax.while_loop`", "`loop`"),
    ("stream in bursts", "a few tokens at a time", "`chunk8`"),
    ("serve several requests at once", "one token of every request", "`llama-jax serve --placement step+fused`"),
    (
        "do the first three on a CPU with a quantised file",
        "the same, with a compiled kernel inside",
        "`step+fused`, `loop+fused`, `chunk8+fused`",
    ),
)
ATTACKED = "10-what-serving-needs-of-jit-attacks"  # servers asked the same alone and in company
UNEXPLAINED = "why is not established"
LLAMA_CPP_PACKAGE = "llama-cpp-python"
LITTLE = 1.25  # times as fast: up to here a gain is called little


def known(run: Setting) -> list[str]:
    """Those of SUBJECTS that have a valid trial in a run."""
    return [name for name in SUBJECTS if summary.warm(run.rows, name)]


def runs(behind: Sequence[Recorded]) -> list[Setting]:
    """What was timed in turn within the same blocks: the greedy trials of one setting of one table, with two of
    SUBJECTS or more; the run with most of them first. behind: the tables, in the order in which notebooks are read."""
    settings = [setting for table in behind for setting in table.settings]
    greedy = [s for s in settings if not s.first and type(s.rows[0]) is Trial and s.rows[0].sampling == "greedy"]
    return sorted((run for run in greedy if len(known(run)) > 1), key=lambda run: -len(known(run)))


# The claim ------------------------------------------------------------------------------------------------------------


def claim(measured: Sequence[Setting], home: Path, others: Sequence[Machine] = ()) -> str:
    """The comparisons of CLAIM in plain words, each from the first run that has both sides, with its range over other
    machines, and the kernel's share of the limit; "" where there is none. One that is not of the first run names its
    notebook."""
    sentences, said = [], ""
    for above, what, below, than in CLAIM:
        run = next((run for run in measured if {above, below} <= set(known(run))), None)
        if run is not None:
            ratio = summary.paired_ratio(run.rows, above, below)
            rates = [statistics.median(t.tg for t in summary.warm(run.rows, name)) for name in (below, above)]
            lengths = f"greedy answers of {run.rows[0].new_tokens} tokens, " * (not sentences)
            shown = f"{lengths}{' → '.join(map(document.short, rates))} tokens/s"
            if ends := spread(above, below, same_model(others, run)):
                shown += f"; {'there' if ends.where == said else ends.where} {ends.ratios}"
                said = ends.where
            words = f"{compared(what, than, ratio)}{ratio.aside} ({shown})"
            section = run.table.section
            link = f" (the run of {linked(section, home)})"
            share = overview.share(summary.warm(run.rows, above)) if above == BEST else None
            limit = f", at {limited(share, bandwidths(run.table.meta, run.rows[0].run))}" if share else ""
            sentences.append(f"{words[0].upper()}{words[1:]}{limit}{link * (run is not measured[0])}.")
    return " ".join([f"**{sentence}**" for sentence in sentences[:1]] + sentences[1:])


def limited(share: float, probes: tuple[float, float, float] | None) -> str:
    """The share of what the memory's bandwidth allows, by the fastest probe and, where they differ, the median one.
    probes: of `bandwidths`."""
    allowed = f"{share:.0%} of what the fastest probe of the memory's bandwidth allows"
    if probes is None or probes[2] <= APART * probes[1]:
        return allowed
    return f"{allowed} (an estimate: of what the median probe allows it is {share * probes[2] / probes[1]:.0%})"


def compared(what: str, than: str, ratio: Ratio) -> str:
    """One ratio in plain words; a number only where the trials decide and the interval is narrow enough."""
    if ratio.verdict == Verdict.EQUAL:
        return f"{what} is as fast as {than}, within 2 %"
    if ratio.verdict == Verdict.UNDECIDED:
        return f"whether {what} is faster than {than} these trials do not decide"
    if not settled(ratio):
        return f"{what} is {ratio.verdict} than {than}"
    if 1 < ratio.value <= LITTLE:
        return f"{what} adds little to {than}: {rivals.times(ratio)}"
    return f"{what} is {rivals.times(ratio)} as fast as {than}"


# Beside other runtimes ------------------------------------------------------------------------------------------------


def distances(run: Setting, behind: Sequence[Recorded], home: Path) -> str:
    """How far placements without the kernel are from llama.cpp, and the kernel from it and from the fastest runtime on
    each file; "" where one of the run's is missing."""
    ratios = {name: summary.paired_ratio(run.rows, name, LLAMA_CPP) for name in ("step", "loop", BEST)}
    if not all(ratio.n for ratio in ratios.values()):
        return ""
    step, loop, best = map(rivals.times, ratios.values())
    said = (
        f"On float32 weights, `step` and `loop` run at {step} and {loop} the rate of llama.cpp on the same model as a"
        f" {rivals.read_by(run, summary.warm(run.rows, LLAMA_CPP)[0])}. `{BEST}`, which reads that file, runs at {best}"
        " its rate."
    )
    for contest in contests(behind):
        first, *more = rivals.strongest(contest)
        many, own = len(rivals.others(contest)), contest.model == run.model
        rank = f", the fastest of {many} other runtimes" * (many > 1)
        here, there = (environment.processor(one.table.meta["environment"]) for one in (run, contest))
        which = ["" if own else f"{contest.model} ({rivals.read_by(contest, first)})", there * (there != here)]
        where = " and ".join(filter(None, which))
        said += (
            f" {f'On {where}, it' if where else 'It'} runs at {over(contest, first)} the rate of {named(first)}{rank}"
        )
        said += "".join(f", and at {over(contest, other)} that of {named(other)}" for other in more if own)
        said += f" ({', '.join(filter(None, (linked(contest.table.section, home), older(contest.table))))})."
    return said


def beside(run: Setting, behind: Sequence[Recorded], again: Sequence[Repeat], home: Path) -> list[tuple[str, ...]]:
    """A line for each comparison of the kernel: (with what, on which file, processor, how many times as fast, measured
    where); what was not measured is left out. On other models than the run's only the fastest runtime has a line.
    again: of `repeats`."""
    theirs = summary.warm(run.rows, LLAMA_CPP)[0]
    rows = [(named(theirs), *subject(run, theirs), over(run, theirs, ""), "the run below")]
    rows += elsewhere(again)
    for contest in contests(behind):
        many = len(rivals.others(contest))
        first, *more = rivals.strongest(contest)
        more = more * (contest.model == run.model)
        names = [named(first) + f", the fastest of {many} other runtimes" * (many > 1), *map(named, more)]
        ratios = "; ".join(over(contest, other, "") for other in (first, *more))
        rows.append(("; ".join(names), *subject(contest, first), ratios, place(contest.table, home)))
    if found := rivals.cases(behind):
        low, high = (rivals.least(found, choose) for choose in (min, max))
        files = f"{rivals.files(found)} files of {rivals.span(found)} at several lengths{rivals.limits(found)};"
        files += f" least beside {low.beside}, most beside {high.beside}"
        both = f"{rivals.value(low.ratio)} to {rivals.value(high.ratio)}: of {len(found)} cases"
        both += f" {often([case.ratio for case in found])}"
        processors = listed(sorted({case.processor for case in found}))
        rows.append((rivals.contestants(found), files, processors, both, linked(low.table.section, home)))
    return [row for row in rows if row[3]]


def losing(behind: Sequence[Recorded], home: Path) -> str:
    """What the kernel costs and what other runtimes do better, as a list; "" where nothing of that was measured."""
    found = [(table, say(table)) for stem, say in rivals.LOSSES.items() if (table := rivals.named(behind, stem))]
    lost = [
        f"- {loss.text} · {loss.about} · {environment.processor(table.meta['environment'])} · {place(table, home)}"
        for table, loss in found
        if loss
    ]
    return "\n".join(["**What it costs, and where it loses:**", *lost]) if lost else ""


def contests(behind: Sequence[Recorded]) -> list[Setting]:
    """Those of `rivals.contests` in which the kernel ran."""
    return [contest for contest in rivals.contests(behind) if BEST in contest.subjects]


def named(trial: Trial) -> str:
    return named_well(trial.backend)


def over(run: Setting, other: Trial, unit: str = " times") -> str:
    """The kernel's rate over that of another runtime's trials: `2.82 times [2.73, 2.90]`."""
    return rivals.value(summary.paired_ratio(run.rows, BEST, other.subject), unit)


def often(ratios: Sequence[Ratio]) -> str:
    """`faster in 25 (undecided in 1: 1.44 [0.76, 2.71])`; `faster in all`."""
    rest = rivals.otherwise(ratios)
    return f"faster in {sum(ratio.verdict == Verdict.FASTER for ratio in ratios)}{rest}" if rest else "faster in all"


def elsewhere(found: Sequence[Repeat]) -> list[tuple[str, ...]]:
    """A line of `beside` for the kernel beside llama.cpp in other runs; none without one."""
    if not found:
        return []
    both = " to ".join(dict.fromkeys(rivals.value(repeat.ratio) for repeat in (found[0], found[-1])))
    what = f"the same model in another run: {often([found[0].ratio])}"
    if len(found) > 1:
        ends = [*dict.fromkeys(repeat.processor for repeat in (found[0], found[-1]))]
        what = f"the same model in {len(found)} other runs: {often([repeat.ratio for repeat in found])},"
        what += f" {'both ends' if len(ends) == 1 else 'the ends'} of the range on {listed(ends)}; {UNEXPLAINED}"
    processors = listed(sorted({repeat.processor for repeat in found}))
    return [("llama.cpp", what, processors, both, f"[machines]({MACHINES}#{ID})")]


# In company ---------------------------------------------------------------------------------------------------------


def company(behind: Sequence[Recorded], home: Path) -> str:
    """How many requests get another answer when they are repeated, from our placements and from other servers; ""
    where nobody recorded that."""
    table = next((table for table in behind if table.path.stem == ATTACKED), None)
    if table is None:
        return ""
    entries = attacks.sides(record.read(table.path, kind=attacks.Attacked)[0])
    ours = [entry for entry in entries if entry["name"] in attacks.OURS.values()]
    others = [entry for entry in entries if entry not in ours]

    def changed(some: Sequence[dict], who: str) -> str:
        return f"{sum(e['differ'] for e in some):,} of {sum(e['of'] for e in some):,} from {who}"

    counts = [changed(ours, "ours")] * bool(ours) + [changed([e], named_well(e["name"])) for e in others]
    return (
        f"Answers that changed when the same requests were sent alongside others: {listed(counts)}"
        f" ({environment.processor(table.meta['environment'])}, [notebook {table.section['number']}]"
        f"({page(table.section, home)}))."
    )


# The run --------------------------------------------------------------------------------------------------------------


def about(run: Setting) -> str:
    """The machine line, how many trials, and what the A/A control says."""
    meta, baseline, good = run.table.meta, run.baseline, summary.warm(run.rows, run.baseline)
    env = meta["environment"]
    clauses = [
        f"Rates are medians, ratios geometric means of pairs, of {len(good)} greedy answers of"
        f" {overview.lengths(good)} tokens (prompt + answer) by {run.model}"
        f" in {len({t.process for t in good})} processes"
    ]
    control = summary.paired_ratio(run.rows, baseline + AGAIN, baseline)
    differs = f", {control.judged}" if control.verdict in DIFFERENT or control.scattered else ""
    clauses += [f"A/A control (the baseline against itself) {control.value:.2f} {interval(control)}{differs}"] * (
        control.n > 1
    )
    trials = "; ".join(filter(None, [*clauses, environment.busy(env)]))
    gaps = listed([f"`{name}`" for name in SUBJECTS if name not in known(run)])
    missing = f" Not in it: {gaps}." if gaps else ""
    flagged = xla_flags.SETTING in env.get("settings", {}).get("XLA_FLAGS", "")
    flag = "with [the XLA flag](docs/protocol.md) that avoids wrong values under this release" * flagged
    built = env["packages"].get(LLAMA_CPP_PACKAGE) if LLAMA_CPP in run.subjects else None
    rival = f"llama.cpp of {LLAMA_CPP_PACKAGE} {built}, with as many threads" if built else ""
    where = " · ".join(filter(None, (environment.machine_line(env), rival, flag, probed(meta))))
    return f"{trials} ([trials](data/{run.table.path.name})).{missing} Measured {meta['created'][:10]} on {where}."


# The block ------------------------------------------------------------------------------------------------------------


def subject(run: Setting, theirs: Trial) -> tuple[str, str]:
    """(the file that another runtime read, the processor). theirs: a row of it."""
    file = f"{run.model}, {overview.kept(theirs, run.rows)}, {rivals.megabytes(theirs.weights_bytes)}"
    return file, environment.processor(run.table.meta["environment"])


def place(table: Recorded, home: Path) -> str:
    """A link to a table's notebook, and whether the table is of older code."""
    return linked(table.section, home) + f" ({older(table)})" * bool(older(table))


def older(table: Recorded) -> str:
    return provenance.complaint(table.meta)


def linked(section: dict, home: Path) -> str:
    return f"[notebook {section['number']}]({page(section, home)})"


def page(section: dict, home: Path) -> str:
    """A link to a section's notebook as it was executed; to its place in the report where there is no such page."""
    executed = Path("docs") / "notebooks" / f"{section['name']}.md"
    return executed.as_posix() if (home / executed).is_file() else f"docs/index.html#n{section['number']}"


def block(
    sections: Sequence[dict],
    measured: Sequence[Setting],
    home: Path,
    behind: Sequence[Recorded] = (),
    others: Sequence[Machine] = (),
) -> str:
    """All of it as Markdown: the claim, one picture, where to put jit, other runtimes, where they lead, what company
    changes, the run that the claim is of. behind: the tables that rivals and company are looked up in. others: machines
    that the same was measured on."""
    main = (contribution.HEADLINE, *notebooks.saying("headline"))  # whose figure is shown
    pictures = [figure for name in main for s in sections if s["name"] == name for figure in s["figures"]][:1]
    run = with_llama_cpp(measured)
    lines = beside(run, behind, repeats(run, measured, others), home) if run else []
    heads = ("other runtime", "file", "processor", f"`{BEST}` is … times as fast", "measured in")
    parts = ["<br>".join(filter(None, (claim(measured, home, others), distances(run, behind, home) if run else "")))]
    parts += [f'<img src="figures/{f["name"]}.svg" width="640" alt="{escape(f["caption"])}">' for f in pictures]
    parts += [document.Table(PLACE_HEADS, PLACES).markdown()] if pictures else []
    parts += [document.Table(heads, lines).markdown() if lines else "", losing(behind, home)]
    parts += ["<br>".join(filter(None, (about(measured[0]) if measured else "", company(behind, home))))]
    return "\n\n".join(filter(None, parts))


def with_llama_cpp(measured: Sequence[Setting]) -> Setting | None:
    """The first run of both the kernel and llama.cpp."""
    return next((run for run in measured if {BEST, LLAMA_CPP} <= set(run.subjects)), None)


def with_headline(out_dir: Path, behind: Sequence[Recorded]) -> list[Setting]:
    """The runs, OUT's own headline before those behind it."""
    own = overview.tables(Path(out_dir) / "data", contribution.HEADLINE)
    headline = dict(name=contribution.HEADLINE, number="00")
    return runs([*(Recorded(path, headline) for path in own), *behind])


def refresh(
    out_dir: Path, sections: Sequence[dict], behind: Sequence[Recorded], others: Sequence[Machine] = ()
) -> None:
    """Put the block between the README's two markers, where OUT has a README that holds them. others: contributed
    machines."""
    home = Path(out_dir)

    def written() -> str:
        return block(sections, with_headline(home, behind), home, behind, others)

    document.put(home / "README.md", BEGIN, END, written)
