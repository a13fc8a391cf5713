"""What README.md says of results, computed: a claim in plain words, a table of other runtimes, one picture."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path

from llama_lab.bench import AGAIN, environment, record, summary
from llama_lab.bench.claim import settled
from llama_lab.bench.record import Trial
from llama_lab.bench.statistics import DIFFERENT, Ratio, Verdict
from llama_lab.bench.wording import interval, listed, probed, within
from llama_lab.experiments.what_serving_needs import attacks
from llama_lab.reporting import document, machines, notebooks, overview, rivals
from llama_lab.reporting.machines import Machine
from llama_lab.reporting.overview import Recorded, Setting
from llama_lab.sharing import contribution

BEGIN, END = "<!-- findings: written by `llama-jax report` -->", "<!-- end of findings -->"
SUBJECTS = ("eager", "layer", "step", "loop", "step+fused", "loop+fused", "llamacpp")
BEST, LLAMA_CPP = machines.BEST, machines.LLAMA_CPP
KERNEL = "a compiled kernel that multiplies the file's own 4-bit blocks"
CLAIM = (  # (above, what it is, below, what that is), a sentence each
    ("step", "one `jax.jit` around the decode step", "eager", "running it op by op"),
    ("loop", "compiling the whole answer", "step", "compiling one token"),
    ("loop+fused", KERNEL, "loop", "the same loop on float32 weights"),
)
ATTACKED = "10-what-serving-needs-of-jit-attacks"  # servers asked the same alone and in company
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


def claim(measured: Sequence[Setting], home: Path) -> str:
    """The comparisons of CLAIM in plain words, each from the first run that has both sides, and the kernel's share of
    the limit; "" where there is none. One that is not of the first run names its notebook."""
    sentences = []
    for above, what, below, than in CLAIM:
        run = next((run for run in measured if {above, below} <= set(known(run))), None)
        if run is not None:
            ratio = summary.paired_ratio(run.rows, above, below)
            words = compared(what, than, ratio) + ratio.aside
            section = run.table.section
            link = f" (the run of {linked(section, home)})"
            share = overview.share(summary.warm(run.rows, above)) if above == BEST else None
            limit = f", at {share:.0%} of what the memory's bandwidth allows" if share else ""
            sentences.append(f"{words[0].upper()}{words[1:]}{limit}{link * (run is not measured[0])}.")
    return " ".join([f"**{sentence}**" for sentence in sentences[:1]] + sentences[1:])


def compared(what: str, than: str, ratio: Ratio) -> str:
    """One ratio in plain words; a number only where the trials decide and the interval is narrow enough."""
    if ratio.verdict == Verdict.EQUAL:
        return f"{what} is as fast as {than}, within 2 %"
    if ratio.verdict == Verdict.UNDECIDED:
        return f"whether {what} is faster than {than} these trials do not decide"
    if not settled(ratio):
        return f"{what} is {ratio.verdict} than {than}"
    form = ".2f" if ratio.value < 10 else ".1f"
    times = f"{ratio.value:{form}} times{within(ratio, form)}"
    if 1 < ratio.value <= LITTLE:
        return f"{what} adds little to {than}: {ratio.value:.2f} times{within(ratio)}"
    return f"{what} is {times} as fast as {than}"


# Beside other runtimes ------------------------------------------------------------------------------------------------


def beside(
    run: Setting, measured: Sequence[Setting], behind: Sequence[Recorded], known: Sequence[Machine], home: Path
) -> list[tuple[str, str]]:
    """(beside what, how many times as fast, or what it loses) of the kernel; what was not measured is left out."""
    found, types = (rivals.cases(behind, names=names) for names in (rivals.FILES, (rivals.TYPES,)))
    rows = [("llama.cpp on this file", in_the_run(run)), strongest(behind, home)]
    if found:
        low, high = (rivals.least(found, choose).words for choose in (min, max))
        where = linked(found[0].table.section, home)
        each = f"the fastest of those that ran on each of {rivals.files(found)} files of {rivals.span(found)} ({where})"
        rows.append((each, f"{low} to {high}"))
    if types:
        rows.append((f"the least on {rivals.files(types)} files of one type of block each", rivals.least(types).words))
    rows.append(
        (
            "llama.cpp on this file, other runs and machines (whether they have AMX is not recorded)",
            elsewhere(run, measured, known),
        )
    )
    lost = [rivals.prompts(behind), rivals.starts(behind), rivals.memory(behind, BEST, LLAMA_CPP)]
    return [(what, said) for what, said in (*rows, ("**where it loses**", "; ".join(filter(None, lost)))) if said]


def in_the_run(run: Setting) -> str:
    """The kernel over llama.cpp; the same with every token returned to Python."""
    ratio = summary.paired_ratio(run.rows, BEST, LLAMA_CPP)
    step = summary.paired_ratio(run.rows, "step+fused", LLAMA_CPP)
    both = f"; `step+fused`, which returns every token to Python: {rivals.times(step)}" if step.n else ""
    return f"{rivals.times(ratio)}{both}" if ratio.n else ""


def strongest(behind: Sequence[Recorded], home: Path) -> tuple[str, str]:
    """The fastest of all runtimes that ran on the headline's file."""
    run = rivals.greedy(rivals.named(behind, rivals.CONTEST))
    first = run and run.fastest(ours=False)
    if not first or BEST not in run.subjects:
        return "", ""
    which = f"{first.backend} on it, the fastest of {len(rivals.others(run))} ({linked(run.table.section, home)})"
    return which, rivals.times(summary.paired_ratio(run.rows, BEST, first.subject))


def elsewhere(run: Setting, measured: Sequence[Setting], known: Sequence[Machine]) -> str:
    """The kernel beside llama.cpp on the same model in other runs, and on other machines: the least and the most that
    trials decide; "" of none. The share of the limit that llama.cpp reaches bounds the lead over it."""
    again = [(r.rows, r.table.meta["environment"], r.table.meta["created"]) for r in measured if r.model == run.model]
    again += [(m.trials, m.environment, m.about["measured"]) for m in known]
    found = []
    for rows, env, created in again:
        ratio = summary.paired_ratio(rows, BEST, LLAMA_CPP)
        if created != run.table.meta["created"] and ratio.n and settled(ratio):
            share = overview.share(summary.warm(rows, LLAMA_CPP))
            limit = f"; llama.cpp at {share:.0%} of the limit" if share else ""
            found.append((ratio.value, f"{rivals.times(ratio)} ({environment.processor(env)}, {created[:10]}{limit})"))
    ends = dict.fromkeys(choose(found)[1] for choose in (min, max)) if found else ()
    return " to ".join(ends) + (f" in {len(found)} runs" if len(ends) > 1 else "")


# In company ---------------------------------------------------------------------------------------------------------


def company(behind: Sequence[Recorded], home: Path) -> str:
    """How many requests get another answer when they are asked again, from our placements and from other servers; ""
    where nobody recorded that."""
    table = next((table for table in behind if table.path.stem == ATTACKED), None)
    if table is None:
        return ""
    rows, meta = record.read(table.path, kind=attacks.Attacked)
    differ = listed([f"{e['differ']:,} of {e['of']:,} from {e['name']}" for e in attacks.sides(rows)])
    asked = f"`{meta['parameters']['model']}`, {meta['parameters']['slots']} slots, greedy and sampled with a seed"
    machine = environment.machine_line(meta["environment"]).partition(" · jax")[0]
    return (
        f"Requests that get another answer when asked again, alone, in another order and among others: {differ}"
        f" ({asked}, other settings as they come, {machine}; [notebook 10]({page(table.section, home)}))."
    )


# The run --------------------------------------------------------------------------------------------------------------


def about(run: Setting) -> str:
    """The machine line, how many trials, and what the A/A control says."""
    meta, baseline, good = run.table.meta, run.baseline, summary.warm(run.rows, run.baseline)
    env = meta["environment"]
    clauses = [
        f"Medians of {len(good)} answers of {overview.lengths(good)} tokens (prompt + answer) by {run.model}"
        f" in {len({t.process for t in good})} processes, all rows interleaved"
    ]
    control = summary.paired_ratio(run.rows, baseline + AGAIN, baseline)
    differs = f", {control.judged}" if control.verdict in DIFFERENT or control.scattered else ""
    clauses += [f"A/A control {control.value:.2f} {interval(control)}{differs}"] * (control.n > 1)
    trials = "; ".join(filter(None, [*clauses, environment.busy(env)]))
    gaps = listed([f"`{name}`" for name in SUBJECTS if name not in known(run)])
    missing = f" Not in it: {gaps}." if gaps else ""
    where = " · ".join(filter(None, (environment.machine_line(env), probed(meta))))
    return f"{trials} ([trials](data/{run.table.path.name})).{missing} Measured {meta['created'][:10]} on {where}."


# The block ------------------------------------------------------------------------------------------------------------


def subject(run: Setting) -> str:
    """What the table is about: the kernel, the file, the machine."""
    theirs, env = summary.warm(run.rows, LLAMA_CPP)[0], run.table.meta["environment"]
    file = f"{run.model}, {overview.kept(theirs, run.rows)}, {rivals.megabytes(theirs.weights_bytes)}"
    return f"`{BEST}`, {file}, {environment.processor(env)}, {env['cores']} cores, beside"


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
    """All of it as Markdown: the claim, other runtimes, one picture, what company changes, the run that the claim is
    of. behind: the tables that rivals and company are looked up in. others: machines that the same was measured on."""
    main = (contribution.HEADLINE, *notebooks.saying("headline"))  # whose figure is shown
    pictures = [figure for name in main for s in sections if s["name"] == name for figure in s["figures"]][:1]
    run = next((run for run in measured if {BEST, LLAMA_CPP} <= set(run.subjects)), None)
    lines = beside(run, measured, behind, others, home) if run else []
    parts = [claim(measured, home), document.Table((subject(run), "times as fast"), lines).markdown() if lines else ""]
    parts += [f'<img src="figures/{f["name"]}.svg" width="640" alt="{escape(f["caption"])}">' for f in pictures]
    parts += ["\n".join(filter(None, (company(behind, home), about(measured[0]) if measured else "")))]
    return "\n\n".join(filter(None, parts))


def refresh(out_dir: Path, sections: Sequence[dict], behind: Sequence[Recorded]) -> None:
    """Put the block between the README's two markers, where OUT has a README that holds them."""
    home = Path(out_dir)

    def written() -> str:
        headline = dict(name=contribution.HEADLINE, number="00")
        own = [Recorded(table, headline) for table in overview.tables(home / "data", contribution.HEADLINE)]
        known = machines.newest(machines.contributed(home / "data" / "machines")[0])
        return block(sections, runs([*own, *behind]), home, behind, known)

    document.put(home / "README.md", BEGIN, END, written)
