"""What README.md says of results, computed: a claim in plain words, one picture, what the kernel costs; how the claim
was measured in docs/statistics.md, and the table of other runtimes in docs/peers.md."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from html import escape
from pathlib import Path

from llama_lab.bench import AGAIN, environment, provenance, summary, wording
from llama_lab.bench.record import Trial
from llama_lab.bench.standings import TORCH
from llama_lab.bench.statistics import DIFFERENT, Ratio
from llama_lab.bench.wording import bandwidths, interval, listed, named_well
from llama_lab.peers import llama_bench
from llama_lab.reporting import document, gains, keys, machines, notebooks, overview, repeats, rivals
from llama_lab.reporting.machines import Machine
from llama_lab.reporting.overview import Recorded, Setting
from llama_lab.reporting.repeats import Repeat
from llama_lab.sharing import contribution

ANSWER, COSTS, BESIDE, ABOUT = map(keys.marks, ("answer", "costs", "other runtimes", "headline"))
Linking = Callable[[dict], str]  # of a section, where a link to it leads
WIDTH = 800  # of the picture, in pixels: its smallest letters have 8 points or more
BEST, LLAMA_CPP = machines.BEST, machines.LLAMA_CPP
SERVED = "10-what-serving-needs-of-jit"  # servers under load
LLAMA_CPP_PACKAGE = "llama-cpp-python"
READ = (
    "Rates are medians, ratios geometric means of paired trials. Brackets are 95% confidence intervals within one run;"
    " [other runs and machines](docs/machines.md) can fall outside"
    " them. *Undecided* means that the trials do not show which is faster."
)
HOW = "([how](docs/statistics.md#how-the-headline-was-measured))"
CALLED = "[called as llama-bench calls it, plus an arg-max](peers.md)"


# Beside other runtimes ------------------------------------------------------------------------------------------------


def answer(measured: Sequence[Setting], behind: Sequence[Recorded], again: Sequence[Repeat]) -> str:
    """What jit gains, what was measured, how far that is from other runtimes; "" of nothing. again: of `repeats`."""
    if not (gained := [*gains.sentences(measured).values()]):
        return ""
    run = gains.leading(measured)
    asked = f"{overview.lengths(run.rows)} tokens (prompt + greedy answer)"
    where = wording.processor(run.table.meta["environment"])
    about = f"Measured with {run.model}, {asked}, on {where}, unless another file or run is named {HOW}. {READ}"
    told = [f"- {text}" for text in (*gained[1:], *distances(measured[0], behind, again))]
    return "\n".join([f"**{gained[0]}** {about}", *told])


def distances(run: Setting, behind: Sequence[Recorded], again: Sequence[Repeat]) -> list[str]:
    """How far the kernel, and the loop without it, are from llama.cpp; and how far the kernel is from the fastest
    runtime on every file; none where the run lacks one of them."""
    if not all(summary.paired_ratio(run.rows, name, LLAMA_CPP).n for name in ("loop", BEST)):
        return []
    said = [beside_llama_cpp(run, again, repeats.MACHINES)]
    if found := rivals.cases(behind):
        low, high = (rivals.value(rivals.least(found, choose).ratio) for choose in (min, max))
        weigh = f"{rivals.span(found)} of weights{rivals.drawn(found)}"
        files = f"{rivals.files(found)} files ({weigh}; {rivals.machines(found)})"
        fast = f"{low} to {high} times as fast as [{rivals.contestants(found)}](docs/peers.md#results)"
        said.append(f"On {files}, `{BEST}` is {fast}: {rivals.won(found)}.")
    if runs := contests(behind):
        each = [f"on {conditions(of, run)}, `{BEST}` is {beaten(of)}{torch(of)}." for of in runs]
        said.append(" ".join(f"In {'another' if at else 'a separate run'} {text}" for at, text in enumerate(each)))
    return said


def beside_llama_cpp(run: Setting, again: Sequence[Repeat], link: str) -> str:
    """How far the kernel, and the loop where it ran, are from llama.cpp. again, link: as of `repeats.ranging`."""
    loop, best = (summary.paired_ratio(run.rows, name, LLAMA_CPP) for name in ("loop", BEST))
    file = rivals.read_by(run, summary.warm(run.rows, LLAMA_CPP)[0])
    said = f"On one {file}, `{BEST}` is {repeats.ranging(again, rivals.times(best), link)}."
    wide = f" Without the kernel, `loop` on {gains.kept(run, 'loop')} runs at {rivals.times(loop)} llama.cpp's rate."
    return said + wide * bool(loop.n)


def beaten(contest: Setting) -> str:
    """`1.97 times as fast as ik_llama.cpp and 3.92 times as fast as Ollama (ratio of medians 3.40)`: the fastest other
    runtime, and Ollama."""
    rivals_ = rivals.strongest(contest)
    asides = [rivals.parted(contest, BEST, other.subject) for other in rivals_]
    return listed([
        f"{over(contest, other, rivals.times)} as fast as {named(other)}" + f" ({aside})" * bool(aside)
        for other, aside in zip(rivals_, asides, strict=True)
    ])  # fmt: skip


def conditions(contest: Setting, run: Setting) -> str:
    """`q4_1 (97 MB; busy machine)`: what a contest was measured on; its processor where that is not the run's."""
    here, there = (wording.processor(of.table.meta["environment"]) for of in (run, contest))
    busy, other = (
        "busy machine" * bool(environment.busy(contest.table.meta["environment"])),
        rivals.strongest(contest)[0],
    )
    aside = (rivals.megabytes(other.weights_bytes), there * (there != here), busy, older(contest.table))
    model = f"{contest.model}, " * (contest.model != run.model)
    return f"{model}{overview.kept(other, contest.rows)} ({'; '.join(filter(None, aside))})"


def torch(contest: Setting) -> str:
    """How far `loop` is from the fastest way to run PyTorch in the same blocks; "" where one of them did not run."""
    rates = {t.subject: summary.warm(contest.rows, t.subject) for t in contest.rows if t.backend == TORCH and t.valid}
    rates = {name: summary.median([t.tg for t in trials]) for name, trials in rates.items() if trials}
    if not rates or "loop" not in contest.subjects:
        return ""
    ratio = summary.paired_ratio(contest.rows, "loop", fastest := max(rates, key=rates.get))
    words = f"`loop` on {gains.kept(contest, 'loop')} is {rivals.times(ratio)} as fast as {named_well(fastest)}"
    return f", and {words}" * bool(ratio.n)


def beside(behind: Sequence[Recorded], link: Linking) -> list[tuple[str, ...]]:
    """A line for each comparison of the kernel: (with what, on which file, processor, how many times as fast, measured
    where), all files first."""
    rows = []
    if found := rivals.cases(behind):
        low, high = (rivals.least(found, choose) for choose in (min, max))
        low_to_high = f"{rivals.value(low.ratio)} to {rivals.value(high.ratio)}"
        files = f"{rivals.files(found)} files, {rivals.span(found)}{rivals.drawn(found)}"
        cases = f"{low_to_high}, {rivals.won(found)}"
        rows.append((rivals.contestants(found), files, rivals.processors(found), cases, linked(low.table, link)))
    for contest in contests(behind):
        every = [named_well(name) for name in rivals.others(contest)]
        first, *more = rivals.strongest(contest)
        name = named(first) + f", the fastest of {listed(every)}" * (len(every) > 1)
        ratios, *also = [
            "; ".join(filter(None, (over(contest, other), rivals.parted(contest, BEST, other.subject))))
            for other in (first, *more)
        ]
        ratios += "".join(f" ({named(other)}: {words})" for other, words in zip(more, also, strict=True))
        rows.append((name, *subject(contest, first), ratios, place(contest.table, link)))
    return rows


def contests(behind: Sequence[Recorded]) -> list[Setting]:
    """Those of `rivals.contests` in which the kernel ran."""
    return [contest for contest in rivals.contests(behind) if BEST in contest.subjects]


def named(trial: Trial) -> str:
    return named_well(trial.backend)


def over(run: Setting, other: Trial, say: Callable[[Ratio], str] = rivals.value) -> str:
    """The kernel's rate over that of another runtime's trials: `2.82 [2.73, 2.90]`."""
    return say(summary.paired_ratio(run.rows, BEST, other.subject))


def serving(behind: Sequence[Recorded], link: Linking, here: str = "") -> str:
    """What servers do under load, on which processor if that is not `here`, and a link; "" if it was not measured."""
    table = rivals.named(behind, SERVED)
    if not table or not table.section.get("shown"):
        return ""
    found, there = table.section["shown"][-1].removesuffix("."), wording.processor(table.meta["environment"])
    return f"{found} ({'; '.join([*[there] * (there != here), *once(table), linked(table, link)])})"


def once(table: Recorded) -> list[str]:
    """[`one run of 20 s each`]: how long the servers were asked."""
    seconds = table.meta.get("parameters", {}).get("seconds")
    return [f"one run of {seconds:g} s each"] if seconds else []


# The run --------------------------------------------------------------------------------------------------------------


def about(run: Setting) -> str:
    """How the claim's run was measured, with which machine and llama.cpp, as a paragraph of docs/statistics.md."""
    meta, baseline, good = run.table.meta, run.baseline, summary.warm(run.rows, run.baseline)
    env = meta["environment"]
    sentences = [
        f"Each rate is the median of {len(good)} answers in {len({t.process for t in good})} processes and each ratio"
        " the geometric mean of pairs within interleaved blocks"
    ]
    control = summary.paired_ratio(run.rows, baseline + AGAIN, baseline)
    differs = f", {control.judged}" if control.verdict in DIFFERENT or control.scattered else ""
    sentences += [f"`{baseline}` against itself, the A/A control: {control.value:.2f} {interval(control)}{differs}"] * (
        control.n > 1
    )
    if probes := bandwidths(meta):
        sentences.append(f"The limit is the fastest bandwidth probe, {probes[2]:.0f} GB/s (median {probes[1]:.0f})")
    built = env["packages"].get(LLAMA_CPP_PACKAGE) if LLAMA_CPP in run.subjects else None
    sentences += [f"llama.cpp ({LLAMA_CPP_PACKAGE} {built}) is {CALLED}, {itself()}"] * bool(built)
    if missing := [f"`{name}`" for name in gains.SUBJECTS if name not in gains.known(run)]:
        sentences.append(f"Not in it: {listed(missing)}")
    day = f"Measured {meta['created'][:10]} on {wording.machine_line(env)}"
    sentences += [*[environment.busy(env).capitalize()] * bool(environment.busy(env)), day]
    return f"{'. '.join(sentences)} ([trials](../data/{run.table.path.name}))."


def itself() -> str:
    """As many threads; and how fast the peer is beside llama.cpp's own benchmark, where that was measured."""
    path, same = llama_bench.TABLE, "with as many threads as ours"
    return f"{same}, and runs at {llama_bench.beside(path)} times llama-bench's rate" if path.is_file() else same


# The README -----------------------------------------------------------------------------------------------------------


def subject(run: Setting, theirs: Trial) -> tuple[str, str]:
    """(the file that another runtime read, the processor). theirs: a row of it."""
    file = f"{run.model}, {overview.kept(theirs, run.rows)}, {rivals.megabytes(theirs.weights_bytes)}"
    return file, wording.processor(run.table.meta["environment"])


def place(table: Recorded, link: Linking) -> str:
    """A link to a table's notebook, and whether the table is of older code."""
    return linked(table, link) + f" ({older(table)})" * bool(older(table))


def older(table: Recorded) -> str:
    return provenance.complaint(table.meta)


def linked(table: Recorded, link: Linking) -> str:
    return f"[notebook {table.section['number']}]({link(table.section)})"


def page(section: dict, home: Path) -> str:
    """A link to a section's notebook as it was executed; to its place in the report where there is no such page."""
    executed = Path("docs") / "notebooks" / f"{section['name']}.md"
    return executed.as_posix() if (home / executed).is_file() else f"docs/index.html#n{section['number']}"


def claimed(
    sections: Sequence[dict],
    measured: Sequence[Setting],
    link: Linking,
    behind: Sequence[Recorded] = (),
    others: Sequence[Machine] = (),
    again: Sequence[Repeat] = (),
) -> str:
    """The claim, one picture and where to put jit, as Markdown. behind: the tables that rivals are looked up in.
    others: machines that the same was measured on. again: of `repeats`."""
    main = (contribution.HEADLINE, *notebooks.saying("headline"))  # whose figure is shown
    pictures = [figure for name in main for s in sections if s["name"] == name for figure in s["figures"]][:1]
    here = wording.processor(measured[0].table.meta["environment"]) if measured else ""
    parts = [answer(measured, behind, again)]
    parts += [f'<img src="figures/{f["name"]}.svg" width="{WIDTH}" alt="{escape(f["caption"])}">' for f in pictures]
    parts += [gains.places(measured, others, loaded=serving(behind, link, here)).markdown()] if pictures else []
    return "\n\n".join(filter(None, parts))


def contested(behind: Sequence[Recorded], link: Linking) -> str:
    """The table of other runtimes, as Markdown of docs/peers.md; "" of none. behind: as of `claimed`."""
    lines = beside(behind, link)
    heads = ("other runtime", "file", "processor", f"rate of `{BEST}` over its rate", "measured in")
    return document.Table(heads, lines).markdown().replace("](docs/", "](") if lines else ""


def costs(behind: Sequence[Recorded], link: Linking) -> str:
    """What the kernel costs, as Markdown; "" where nothing was measured. behind: as of `claimed`."""
    table = rivals.costs(behind, partial(place, link=link))
    return table.markdown() * bool(table.rows)


def with_llama_cpp(measured: Sequence[Setting]) -> Setting | None:
    """The first run of both the kernel and llama.cpp in the same blocks."""
    return next((run for run in measured if summary.paired_ratio(run.rows, BEST, LLAMA_CPP).n), None)


def with_headline(out_dir: Path, behind: Sequence[Recorded]) -> list[Setting]:
    """The runs, OUT's own headline before those behind it."""
    own = overview.tables(Path(out_dir) / "data", contribution.HEADLINE)
    headline = dict(name=contribution.HEADLINE, number="00")
    return [*gains.runs([Recorded(path, headline) for path in own]), *gains.runs(behind)]


def refresh(
    out_dir: Path,
    sections: Sequence[dict],
    behind: Sequence[Recorded],
    others: Sequence[Machine] = (),
    again: Sequence[Repeat] = (),
) -> None:
    """Put the texts between the markers of OUT's README and docs/, where it has them. others: contributed machines.
    again: of `repeats`."""
    home = Path(out_dir)
    measured, link = with_headline(home, behind), partial(page, home=home)
    document.put(home / "README.md", *ANSWER, partial(claimed, sections, measured, link, behind, others, again))
    document.put(home / "README.md", *COSTS, partial(costs, behind, link))
    document.put(home / "docs" / "statistics.md", *ABOUT, lambda: about(measured[0]) if measured else "")
    document.put(home / "docs" / "peers.md", *BESIDE, partial(contested, behind, link))
