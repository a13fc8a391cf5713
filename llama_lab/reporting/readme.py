"""What README.md says of results, computed: a claim in plain words, the strongest rivals, one picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from llama_lab.bench import AGAIN, environment, record, summary
from llama_lab.bench.claim import settled
from llama_lab.bench.record import Trial
from llama_lab.bench.statistics import DIFFERENT, Ratio, Verdict
from llama_lab.bench.wording import interval, listed, probed, within
from llama_lab.experiments.compiled_kernels import sizes
from llama_lab.reporting import document, machines, notebooks, overview
from llama_lab.reporting.machines import Machine
from llama_lab.reporting.overview import Recorded, Setting
from llama_lab.sharing import contribution

BEGIN, END = "<!-- findings: written by `llama-jax report` -->", "<!-- end of findings -->"
SUBJECTS = ("eager", "layer", "step", "loop", "step+fused", "loop+fused", "llamacpp")
KERNEL = "a compiled kernel that multiplies the file's own 4-bit blocks"
CLAIM = (  # (above, what it is, below, what that is), a sentence each
    ("step", "one `jax.jit` around the decode step", "eager", "running it op by op"),
    ("loop", "compiling the whole answer", "step", "compiling one token"),
    ("loop+fused", KERNEL, "loop", "the same loop on float32 weights"),
    ("loop+fused", "it", "llamacpp", "llama.cpp on the same file"),
    ("step+fused", "returning every token to Python, the kernel", "llamacpp", "llama.cpp"),
)
RIVALS = ("17-compiled-kernels-sizes", "17-compiled-kernels-people")  # tables of whole files beside every runtime
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
    """The comparisons of CLAIM in plain words, each from the first run that has both sides; "" where there is none. One
    that is not of the first run names its notebook."""
    sentences = []
    for above, what, below, than in CLAIM:
        run = next((run for run in measured if {above, below} <= set(known(run))), None)
        if run is not None:
            ratio = summary.paired_ratio(run.rows, above, below)
            words = compared(what, than, ratio) + ratio.aside
            section = run.table.section
            link = f" (notebook [{section['number']}]({page(section, home)})'s run)"
            sentences.append(f"{words[0].upper()}{words[1:]}{link * (run is not measured[0])}.")
    return " ".join(sentences)


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


# Beside the strongest rival -----------------------------------------------------------------------------------------


def beside(behind: Sequence[Recorded], kind: str = sizes.DECODE) -> list[tuple[dict, Recorded]]:
    """Our fastest placement's entry of `sizes.table` on each file of `RIVALS` and at each length, and its table."""
    found = []
    for recorded in (table for table in behind if table.path.stem in RIVALS):
        entries = sizes.fastest(sizes.table(record.read(recorded.path)[0]))
        found += [(entry, recorded) for entry in entries if entry["what"] == kind]
    return found


def rivals(behind: Sequence[Recorded], home: Path) -> str:
    """How our fastest placement decodes beside the fastest other runtime on each file of `RIVALS`: the least and the
    most; "" where none was recorded."""
    if not (found := beside(behind)):
        return ""
    ends = [choose(found, key=lambda pair: pair[0]["ratio"].value) for choose in (min, max)]
    least, most = (
        f"{e['ratio'].value:.2f} times{within(e['ratio'])} ({e['best']}, `{e['file']}` after {e['tokens']:,} tokens,"
        f" {environment.processor(table.meta['environment'])})"
        for e, table in ends
    )
    files = len({entry["file"] for entry, _ in found})
    link = page(found[0][1].section, home)
    return (
        f"Over the {files} files of [notebook 17]({link}) it decodes {least} to {most} as fast as the fastest other"
        " runtime."
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


def elsewhere(run: Setting, others: Sequence[Machine]) -> str:
    """The kernel beside llama.cpp in the same run at other times and on other machines; "" where there are none."""
    above, below = "loop+fused", "llamacpp"
    repeated = [
        f"{ratio.value:.2f} times{within(ratio)} on {m.environment['cpu']}"
        for m in others
        if m.about["measured"] != run.table.meta["created"]
        and (ratio := summary.paired_ratio(m.trials, above, below)).n
    ]
    return f"The same run on [other machines](docs/machines.html): {listed(repeated)}." if repeated else ""


# The block ------------------------------------------------------------------------------------------------------------


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
    """All of it as Markdown: the claim, the rivals, one picture, and the run that the claim is of. behind: the tables
    that rivals are looked up in. others: machines that the same was measured on."""
    main = (contribution.HEADLINE, *notebooks.saying("headline"))  # whose figure is shown
    pictures = [figure for name in main for s in sections if s["name"] == name for figure in s["figures"]][:1]
    told = [claim(measured, home), rivals(behind, home), elsewhere(measured[0], others) if measured else ""]
    parts = [" ".join(filter(None, told))]
    parts += [f"![{figure['caption']}](figures/{figure['name']}.svg)" for figure in pictures]
    parts += [about(measured[0])] if measured else []
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
