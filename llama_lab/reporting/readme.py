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
    """(compared with what, how many times as fast) of the kernel; what was not measured is left out."""
    found, types = (rivals.cases(behind, names=names) for names in (rivals.FILES, (rivals.TYPES,)))
    file = subject(run, summary.warm(run.rows, LLAMA_CPP)[0])
    rows = [(f"llama.cpp on {file}", in_the_run(run)), strongest(behind, home, file)]
    if found:
        low, high = (rivals.least(found, choose).words for choose in (min, max))
        files = f"{rivals.files(found)} files of {rivals.span(found)} ({linked(found[0].table.section, home)})"
        rows.append((f"{rivals.contestants(found)}, on each of {files}", f"{low} to {high}"))
    if types:
        files = f"{rivals.files(types)} files of one type of block each"
        rows.append((f"{rivals.contestants(types)}, the least on {files}", rivals.least(types).words))
    same = f"llama.cpp on {run.model}, other runs and machines (whether they have AMX is not recorded)"
    rows.append((same, elsewhere(run, measured, known)))
    return [(what, said) for what, said in rows if said]


def losing(behind: Sequence[Recorded]) -> str:
    """What other runtimes do better; "" where nothing of that was measured."""
    lost = [rivals.prompts(behind), rivals.starts(behind), rivals.memory(behind, BEST, LLAMA_CPP)]
    said = "; ".join(filter(None, lost))
    return f"**Where it loses:** {said}." if said else ""


def in_the_run(run: Setting) -> str:
    """The kernel over llama.cpp; the same with every token returned to Python."""
    ratio = summary.paired_ratio(run.rows, BEST, LLAMA_CPP)
    step = summary.paired_ratio(run.rows, "step+fused", LLAMA_CPP)
    both = f"; `step+fused`, which returns every token to Python: {rivals.times(step)}" if step.n else ""
    return f"{rivals.times(ratio)}{both}" if ratio.n else ""


def strongest(behind: Sequence[Recorded], home: Path, file: str) -> tuple[str, str]:
    """The fastest of most runtimes on one file. file: of the row above, see `subject`."""
    run = rivals.greedy(rivals.named(behind, rivals.CONTEST))
    first = run and run.fastest(ours=False)
    if not first or BEST not in run.subjects:
        return "", ""
    many = len(rivals.others(run))
    own = subject(run, first)
    where = "the same file and kind of machine" if own == file else own
    which = f"{first.backend} on {where}, the fastest of {many} other runtimes ({linked(run.table.section, home)})"
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
    """How many requests get another answer when they are repeated, from our placements and from other servers; ""
    where nobody recorded that."""
    table = next((table for table in behind if table.path.stem == ATTACKED), None)
    if table is None:
        return ""
    rows, meta = record.read(table.path, kind=attacks.Attacked)
    differ = listed([f"{e['differ']:,} of {e['of']:,} from {e['name']}" for e in attacks.sides(rows)])
    asked = f"`{meta['parameters']['model']}`, {meta['parameters']['slots']} slots, greedy and sampled with a seed"
    machine = environment.machine_line(meta["environment"]).partition(" · jax")[0]
    return (
        f"Requests whose answer changed when repeated alone, in another order or alongside others: {differ}"
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


def subject(run: Setting, theirs: Trial) -> str:
    """The file that another runtime read, and the machine. theirs: a row of it."""
    env = run.table.meta["environment"]
    file = f"{run.model}, {overview.kept(theirs, run.rows)}, {rivals.megabytes(theirs.weights_bytes)}"
    return f"{file}, {environment.processor(env)}, {env['cores']} cores"


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
    """All of it as Markdown: the claim, other runtimes, where they lead, one picture, what company changes, the run
    that the claim is of. behind: the tables that rivals and company are looked up in. others: machines that the same
    was measured on."""
    main = (contribution.HEADLINE, *notebooks.saying("headline"))  # whose figure is shown
    pictures = [figure for name in main for s in sections if s["name"] == name for figure in s["figures"]][:1]
    run = next((run for run in measured if {BEST, LLAMA_CPP} <= set(run.subjects)), None)
    lines = beside(run, measured, behind, others, home) if run else []
    heads = (f"`{BEST}` compared with", "times as fast")
    parts = [claim(measured, home), document.Table(heads, lines).markdown() if lines else "", losing(behind)]
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
