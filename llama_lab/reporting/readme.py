"""What README.md says of results, computed: a claim in plain words, one picture, the kernel beside other runtimes; and
how the claim was measured, in docs/statistics.md."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from html import escape
from pathlib import Path

from llama_lab.bench import AGAIN, environment, provenance, record, standings, summary, wording
from llama_lab.bench.record import Trial
from llama_lab.bench.statistics import DIFFERENT, Verdict
from llama_lab.bench.wording import bandwidths, interval, listed, named_well, round_ratio
from llama_lab.experiments.host_loop import measure as host_loop
from llama_lab.experiments.host_loop.finding import parameters, share
from llama_lab.experiments.what_serving_needs import finding as under_load
from llama_lab.experiments.what_serving_needs import table as served
from llama_lab.experiments.what_serving_needs.measure import Request
from llama_lab.peers import llama_bench
from llama_lab.reporting import document, gains, keys, machines, notebooks, overview, repeats, rivals, scorecard
from llama_lab.reporting.machines import Machine
from llama_lab.reporting.overview import Recorded, Setting
from llama_lab.reporting.repeats import Repeat
from llama_lab.reporting.rivals import Case
from llama_lab.sharing import contribution

ANSWER, BESIDE, ABOUT = map(keys.marks, ("answer", "other runtimes", "headline"))
Linking = Callable[[dict], str]  # of a section, where a link to it leads
WIDTH = 800  # of the picture, in pixels: its smallest letters have 8 points or more
BEST, LLAMA_CPP = machines.BEST, machines.LLAMA_CPP
SIZES = "12-host-loop"  # models of several sizes
SERVED = "10-what-serving-needs-of-jit"  # servers under load
LLAMA_CPP_PACKAGE = "llama-cpp-python"
HOW = "[how](docs/statistics.md#how-the-headline-was-measured)"
READ = (
    "Rates are medians and ratios are geometric means of paired trials. Brackets are 95% confidence intervals within"
    " one run; [other runs and machines](docs/machines.md) can fall outside them."
)
BELOW = "[Rivals, prompts and costs](#beside-other-runtimes)"
CALLED = "[called as llama-bench calls it, plus an arg-max](peers.md)"


# Beside other runtimes ------------------------------------------------------------------------------------------------


def answer(measured: Sequence[Setting], behind: Sequence[Recorded], link: Linking, again: Sequence[Repeat] = ()) -> str:
    """What jit gains, what the kernel gains, how far that is from other runtimes and what was measured, each on a line
    of its own; "" of nothing."""
    if not (said := gains.sentences(measured)):
        return ""
    run = gains.leading(measured)
    if "loop" in said and (small := smallest(run, behind, link)):
        said["loop"] += f" {small}"
    first, *more = said.values()
    asked = f"{overview.lengths(run.rows)} tokens (prompt + greedy answer)"
    where = wording.processor(run.table.meta["environment"])
    unless = f"unless another model, file or notebook is named ({HOW})"
    about = f"Measured with {run.model}, {asked}, on {where}, {unless}."
    jitted = " ".join([f"**{first}**", about, *more[:1]])
    return "<br>".join(filter(None, (jitted, *more[1:], *ahead(measured[0], behind, again), READ)))


def ahead(run: Setting, behind: Sequence[Recorded], again: Sequence[Repeat]) -> list[str]:
    """On the run's file, the kernel and the loop without it beside llama.cpp, and the kernel beside the strongest
    others; the kernel beside the fastest on every file. A line each, none of what did not run."""
    kernel, loop = (summary.paired_ratio(run.rows, name, LLAMA_CPP) for name in (BEST, "loop"))
    said, more = [], []
    if kernel.n and loop.n:
        file = overview.kept(summary.warm(run.rows, LLAMA_CPP)[0], run.rows)
        ends = wording.span((repeat.ratio.value for repeat in again), round_ratio)
        spread = f" ({ends} in [{len(again)} other runs]({repeats.MACHINES}#{repeats.ID}))" * (len(again) > 1)
        than, without = gains.compared(f"`{BEST}`", "llama.cpp", kernel), f"`loop`, on {gains.kept(run, 'loop')}"
        said.append(
            f"On {run.model}'s {file} file, {than}{spread}; {without}, is {gains.briefly(loop)} as fast as llama.cpp."
        )
    for of in (of for of in rivals.contests(behind) if of.model == run.model):
        mine, known = rivals.ours(of), listed(rivals.beside(of, rivals.strongest(of), "{} as fast as {}"))
        where = f"notebook {of.table.section['number']} ({overview.lengths(summary.warm(of.rows, mine))} tokens)"
        said.append(f"In {where}, `{mine}` is {known}.")
    if found := [case for case in rivals.cases(behind) if not case.limited]:
        on = f"On {rivals.file_count(found)} ({rivals.span(found)}{rivals.drawn(found)}; {rivals.processors(found)})"
        rate = f"{rivals.ends(found, rivals.bare)} times the rate of {rivals.contestants(found)}"
        more = [f"{on}, {rivals.placements(found)} writes answers at {rate}."]
        more += [*(text for _, text in elsewhere(behind, run)), f"{BELOW}."]
    return [" ".join(line) for line in (said, more)]


def elsewhere(behind: Sequence[Recorded], run: Setting) -> list[tuple[Setting, str]]:
    """The kernel beside the strongest other runtimes on each larger file: (the run, a sentence)."""
    said = []
    for of in (of for of in rivals.contests(behind) if of.model != run.model):
        first, *_ = others = rivals.strongest(of)
        file = f"{of.model} ({overview.kept(first, of.rows)}, {rivals.megabytes(first.weights_bytes)})"
        at = f"`{rivals.ours(of)}` writes answers at {listed(rivals.beside(of, others))}"
        said.append((of, f"On {file}, on {wording.processor(of.table.meta['environment'])}, {at}."))
    return said


def smallest(run: Setting, behind: Sequence[Recorded], link: Linking) -> str:
    """`On a model of 0.1M random weights, where launching takes more of the time, it is 3.62 times as fast as `step`.`:
    the loop in the smallest model that was measured, with a link; "" where that is the run's own, or none."""
    table = rivals.named(behind, SIZES)
    points = host_loop.by_size(record.read(table.path, kind=host_loop.HostTrial)[0]) if table else []
    if not points or "loop" not in points[0]["ratios"] or points[0]["model"] == run.rows[0].model:
        return ""
    weights = f"{parameters(points[0])}{' random' * points[0]['model'].startswith('random:')} weights"
    here, there = (wording.processor(of.meta["environment"]) for of in (run.table, table))
    known = [share(p) for p in points if p["model"] == run.rows[0].model]
    why = ", where launching programs takes a larger part of the time" * (bool(known) and share(points[0]) > known[0])
    where = f"On [a model of {weights}]({link(table.section)}){f' ({there})' * (here != there)}{why}"
    return f"{where}, {gains.compared('`loop`', '`step`', points[0]['ratios']['loop'])}."


def distances(run: Setting, behind: Sequence[Recorded], again: Sequence[Repeat], link: str) -> str:
    """How far the kernel, and the loop without it, are from other runtimes on the run's file; "" where the run lacks
    one of them. again, link: as of `repeats.ranging`."""
    if not all(summary.paired_ratio(run.rows, name, LLAMA_CPP).n for name in ("loop", BEST)):
        return ""
    said, more = [beside_llama_cpp(run, again, link)], ""
    if rival := fastest_rival(run, behind):
        contest, fastest = rival
        said.append(beside_fastest(contest, fastest, run, again))
        slower = of_loop(contest, fastest.subject)
        more = f" in the first figure's run, and in notebook {contest.table.section['number']} at {slower}" * bool(
            slower
        )
    return " ".join([*said, without_kernel(run, LLAMA_CPP, more)])


def on_files(found: Sequence[Case]) -> str:
    """The kernel's least and largest ratio on every file and how often it is faster; where it is slower with fewer
    instructions."""
    (limit, own), *fewer = sorted(summary.grouped(found, lambda case: case.limited).items())
    weigh = f"{rivals.span(found)} of weights{rivals.drawn(found)}; {rivals.processors(own)}"
    on = f"On {rivals.file_count(found)} ({weigh})" + f", with only our kernels limited to {limit}" * bool(limit)
    rates = [
        f"{scorecard.TASKS[what][1]} at {rivals.ends(cases, rivals.bare)} times"
        for what, cases in summary.grouped(own, lambda case: case.entry["what"]).items()
    ]
    often = rivals.often([case.ratio for case in own], " cases")
    said = [f"{on}, {rivals.placements(own)} {listed(rates)} the rate of {rivals.contestants(own)} ({often})."]
    for limit, some in fewer:
        if slower := [case for case in some if case.ratio.verdict == Verdict.SLOWER]:
            limited = f"With our kernels, but not the others', limited to {limit}"
            limited += f" ({rivals.files(some)} of the files; not a test of a processor with {limit} alone)"
            said.append(f"{limited} it is slower in {rivals.where(slower)}.")
    return " ".join(said)


def beside_llama_cpp(run: Setting, again: Sequence[Repeat], link: str) -> str:
    """How far the kernel is from llama.cpp. again, link: as of `repeats.ranging`."""
    file = rivals.read_by(run, summary.warm(run.rows, LLAMA_CPP)[0])
    best = rivals.times(summary.paired_ratio(run.rows, BEST, LLAMA_CPP))
    return f"On {run.model}'s {file}, `{BEST}` is {repeats.ranging(again, best, link)}."


def fastest_rival(run: Setting, behind: Sequence[Recorded]) -> tuple[Setting, Trial] | None:
    """(a run of the same model beside most runtimes, a trial of the fastest other one there); None where that is
    llama.cpp, or no such run is recorded."""
    same = [of for of in rivals.contests(behind) if of.model == run.model and BEST in of.subjects]
    found = [(of, of.fastest(ours=False)) for of in same[:1]]
    return next((pair for pair in found if pair[1].subject != LLAMA_CPP), None)


def beside_fastest(contest: Setting, fastest: Trial, run: Setting, again: Sequence[Repeat]) -> str:
    """How far the kernel is from the fastest other runtime of a contest, in as many runs as have that one. run: the
    headline's. again: of `repeats`."""
    name, (level, _) = named_well(fastest.backend), rivals.leaders(contest)
    lead = "the fastest other runtime" if len(level) == 1 else "than which no other runtime is shown to be faster"
    mine = [repeat for repeat in again if repeat.where == repeats.called(contest)]
    ratios = [(repeat.processor, summary.paired_ratio(repeat.trials, BEST, fastest.subject)) for repeat in again]
    known = [(processor, ratio) for processor, ratio in ratios if ratio.n]
    if not mine or len(known) < 2:
        where = f"In {'one of these' if mine else 'a separate run'}{differing(contest, run)}"
        (ratio,) = rivals.beside(contest, [fastest], "{} as fast as {}")
        return f"{where} it is {ratio}, {lead} there."
    times = wording.span((ratio.value for _, ratio in known), round_ratio)
    on = listed([*dict.fromkeys(processor for processor, _ in known)])
    return f"In {len(known)} of these runs, on {on}, it is {times} times as fast as {name}, {lead}."


def without_kernel(run: Setting, rival: str, more: str = "") -> str:
    """How far the loop is from another runtime; "" where one of them did not run. rival: its subject. more: what
    follows."""
    beside = of_loop(run, rival)
    return beside and f"Without the kernel, `loop` on {gains.kept(run, 'loop')} runs at {beside}{more}."


def of_loop(run: Setting, rival: str) -> str:
    """`0.23 [0.20, 0.27] times ik_llama.cpp's rate, and at 2.33 [2.28, 2.37] times that of torch.compile, the fastest
    of 3 ways to run PyTorch`: the loop's rate; "" where it or the rival did not run."""
    if not (ratio := summary.paired_ratio(run.rows, "loop", rival)).n:
        return ""
    backend = summary.warm(run.rows, rival)[0].backend
    return ", and at ".join([f"{rivals.times(ratio)} {named_well(backend)}'s rate", *beside_torch(run)])


def beside_torch(run: Setting) -> list[str]:
    """The loop's rate beside the fastest way to run PyTorch; none where one of them did not run."""
    rates = {t.subject: summary.warm(run.rows, t.subject) for t in run.rows if t.backend == standings.TORCH and t.valid}
    rates = {name: summary.median([t.tg for t in trials]) for name, trials in rates.items() if trials}
    fastest = max(rates, key=rates.get, default="")
    if not (ratio := summary.paired_ratio(run.rows, "loop", fastest)).n:
        return []
    ways = f", the fastest of {len(rates)} ways to run PyTorch" * (len(rates) > 1)
    return [f"{rivals.times(ratio)} that of {named_well(fastest)}{ways}"]


def differing(contest: Setting, run: Setting) -> str:
    """` (AMD EPYC (AVX2); busy machine)`: what a contest has that the run has not; "" of nothing."""
    env, here = contest.table.meta["environment"], run.table.meta["environment"]
    kinds = [overview.kept(other, of.rows) for of in (contest, run) if (other := of.fastest(ours=False))]
    processor = wording.processor(env)
    words = [kinds[0] * (len({*kinds}) > 1), processor * (processor != wording.processor(here))]
    words += [environment.busy(env), older(contest.table)]
    return f" ({'; '.join(filter(None, words))})" * any(words)


def serving(behind: Sequence[Recorded], link: Linking, here: str = "") -> str:
    """What servers do under load, on which processor if that is not `here`, and a link; "" if it was not measured."""
    if not (table := rivals.named(behind, SERVED)):
        return ""
    loads = served.loads(record.read(table.path, kind=Request)[0], table.meta["processes"])
    said, there = under_load.briefly(served.rising(loads, table.meta)), wording.processor(table.meta["environment"])
    return f"{said}. One run each{f', on {there}' * (there != here)} ({linked(table, link)})"


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
    parts = [answer(measured, behind, link, again)]
    parts += [f'<img src="figures/{f["name"]}.svg" width="{WIDTH}" alt="{escape(f["caption"])}">' for f in pictures]
    parts += [gains.places(measured, others, loaded=serving(behind, link, here)).markdown()] if pictures else []
    return "\n\n".join(filter(None, parts))


def beside(measured: Sequence[Setting], behind: Sequence[Recorded], link: Linking, again: Sequence[Repeat]) -> str:
    """The kernel beside other runtimes, as Markdown; "" where nothing was measured. behind: as of `claimed`. again: of
    `repeats`."""
    table = scorecard.table(behind, partial(place, link=link))
    first = distances(measured[0], behind, again, repeats.MACHINES) if measured else ""
    return "\n\n".join(filter(None, (first, table.markdown() * bool(table.rows))))


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
    document.put(home / "README.md", *BESIDE, partial(beside, measured, behind, link, again))
    document.put(home / "docs" / "statistics.md", *ABOUT, lambda: about(measured[0]) if measured else "")
