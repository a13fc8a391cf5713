"""What README.md says of results, computed: a claim in plain words, a table of other runtimes, one picture."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from html import escape
from pathlib import Path

from llama_jax.plumbing import xla_flags
from llama_lab.bench import AGAIN, environment, provenance, summary, wording
from llama_lab.bench.record import Trial
from llama_lab.bench.statistics import DIFFERENT, Ratio
from llama_lab.bench.wording import interval, listed, named_well, round_ratio
from llama_lab.figures import model_label
from llama_lab.peers import llama_bench
from llama_lab.reporting import document, gains, keys, machines, notebooks, overview, rivals
from llama_lab.reporting.machines import Machine
from llama_lab.reporting.overview import Recorded, Setting
from llama_lab.reporting.repeats import ID, MACHINES, Repeat, ends, unexplained
from llama_lab.sharing import contribution

ANSWER, BESIDE = keys.marks("answer"), keys.marks("other runtimes")
WIDTH = 800  # of the picture, in pixels: its smallest letters have 8 points or more
BEST, LLAMA_CPP = machines.BEST, machines.LLAMA_CPP
SERVED = "10-what-serving-needs-of-jit"  # servers under load
LLAMA_CPP_PACKAGE = "llama-cpp-python"
CALLED = "[called as llama-bench calls it, plus an arg-max](docs/peers.md)"


# Beside other runtimes ------------------------------------------------------------------------------------------------


def answer(measured: Sequence[Setting], behind: Sequence[Recorded], again: Sequence[Repeat]) -> str:
    """What jit gains and how far that is from other runtimes, as a list; "" of nothing. again: of `repeats`."""
    gained = gains.sentences(measured)
    if not gained:
        return ""
    run, first, whole = gains.leading(measured), next(iter(gained)), gained.pop("loop", "")
    where = wording.processor(run.table.meta["environment"])
    asked = f"{overview.lengths(run.rows)} tokens (prompt + answer)"
    about = f"Measured on {asked} of {run.model} on {where}.{gains.elsewhere(measured)}"
    gained[first] = " ".join(filter(None, [f"**{gained.get(first, whole)}**", whole * (first != "loop"), about]))
    return "\n".join(f"- {text}" for text in (*gained.values(), *distances(measured[0], behind, again)))


def distances(run: Setting, behind: Sequence[Recorded], again: Sequence[Repeat]) -> list[str]:
    """How far the kernel, and the loop without it, are from llama.cpp; and how far the kernel is from the fastest
    runtime on every file, and on that one; none where the run lacks one of them."""
    ratios = {name: summary.paired_ratio(run.rows, name, LLAMA_CPP) for name in ("loop", BEST)}
    if not all(ratio.n for ratio in ratios.values()):
        return []
    loop, best = map(rivals.times, ratios.values())
    file = rivals.read_by(run, summary.warm(run.rows, LLAMA_CPP)[0])
    wide = gains.kept(run, "loop")
    said = [
        f"**Against llama.cpp, on the same {file}, `{BEST}` is {ranging(again, best)}.**{unexplained(again)}"
        f" `loop`, on {wide}, runs at {loop} llama.cpp's rate.{itself()}"
    ]
    if found := rivals.cases(behind):
        low, high = (round_ratio(rivals.least(found, choose).ratio.value) for choose in (min, max))
        often = rivals.often([case.ratio for case in found], " cases")
        said.append(
            f"We timed {len(found)} cases: {rivals.files(found)} files ({rivals.span(found)} of weights) at several"
            f" lengths{rivals.limits(found)}. `{BEST}` is {low} to {high} times as fast as the fastest other runtime,"
            f" {often}."
        )
    for contest in (contest for contest in contests(behind) if contest.model == run.model):
        old = f" ({older(contest.table)})" * bool(older(contest.table))
        where = f"in {'this' if contest is run else 'another'} run{old}"
        found = rivals.strongest(contest)
        theirs = listed([f"{over(contest, other, rivals.times)} as fast as {named(other)}" for other in found])
        said[-1] += f" On the {file}, {where}, it is {theirs}."
    return said


def ranging(again: Sequence[Repeat], here: str) -> str:
    """`2.82 times as fast in this run and 1.50 to 4.82 times in 7 others, faster in all 7`: the kernel beside llama.cpp
    in other runs of its model. here: in this one."""
    if not again:
        return f"{here} as fast"
    least_to_most = ends(round_ratio(repeat.ratio.value) for repeat in (again[0], again[-1]))
    where = f"[{f'{len(again)} others' if len(again) > 1 else 'another'}]({MACHINES}#{ID})"
    often = f", {rivals.often([repeat.ratio for repeat in again])}" * (len(again) > 1)
    return f"{here} as fast in this run and {least_to_most} times in {where}{often}"


def beside(behind: Sequence[Recorded], home: Path) -> list[tuple[str, ...]]:
    """A line for each comparison of the kernel: (with what, on which file, processor, how many times as fast, measured
    where), all files first."""
    rows = []
    if found := rivals.cases(behind):
        low, high = (rivals.least(found, choose) for choose in (min, max))
        low_to_high = f"{rivals.value(low.ratio)} to {rivals.value(high.ratio)}"
        random = len({case.first.weights_hash for case in found if case.first.model.startswith("random:")})
        files = f"{rivals.files(found)} files, {rivals.span(found)}" + f" ({random} with random weights)" * bool(random)
        on = summary.grouped(found, lambda case: case.processor)
        processors = listed([f"{rivals.files(on[name])} files on {name}" for name in sorted(on)])
        alone = sum(case.ratio.clusters <= 1 for case in found)
        luck = f"; {alone} were timed in one process, so their intervals omit what differs between processes"
        cases = f"{low_to_high}, {rivals.often([case.ratio for case in found], ' cases')}{luck * bool(alone)}"
        rows.append((rivals.contestants(found), files, processors, cases, linked(low.table.section, home)))
    for contest in contests(behind):
        every = [named_well(name) for name in rivals.others(contest)]
        first, *more = rivals.strongest(contest)
        name = named(first) + f", the fastest of {listed(every)}" * (len(every) > 1)
        also = [f"{named(other)}: {over(contest, other)}" for other in more]
        ratios = over(contest, first) + f" ({listed(also)})" * bool(also)
        rows.append((name, *subject(contest, first), ratios, place(contest.table, home)))
    return rows


def losing(run: Setting, behind: Sequence[Recorded], home: Path) -> str:
    """What the kernel costs and what other runtimes do better, as a list; "" where nothing of that was measured. The
    run's model and processor are said once."""
    model, processor = model_label(run.model), wording.processor(run.table.meta["environment"])
    found = [(table, say(table)) for stem, say in rivals.LOSSES.items() if (table := rivals.named(behind, stem))]
    lost: dict[str, list[str]] = {}  # by what it is of
    for table, loss in ((table, loss) for table, loss in found if loss):
        there = wording.processor(table.meta["environment"])
        conditions = [loss.about * (loss.about != model), there * (there != processor), place(table, home)]
        lost.setdefault(", ".join(filter(None, conditions)), []).append(f"{loss.text}.")
    head = f"**What it costs, and where it loses** (on {model} and {processor} unless stated otherwise):"
    return "\n".join([head, *(f"- {' '.join(texts)} *{about}*" for about, texts in lost.items())]) if lost else ""


def contests(behind: Sequence[Recorded]) -> list[Setting]:
    """Those of `rivals.contests` in which the kernel ran."""
    return [contest for contest in rivals.contests(behind) if BEST in contest.subjects]


def named(trial: Trial) -> str:
    return named_well(trial.backend)


def over(run: Setting, other: Trial, say: Callable[[Ratio], str] = rivals.value) -> str:
    """The kernel's rate over that of another runtime's trials: `2.82 [2.73, 2.90]`."""
    return say(summary.paired_ratio(run.rows, BEST, other.subject))


def served(behind: Sequence[Recorded]) -> Recorded | None:
    """The table whose section says what servers do under load; None if that was not measured."""
    table = rivals.named(behind, SERVED)
    return table if table and table.section.get("shown") else None


def serving(behind: Sequence[Recorded], home: Path, here: str = "") -> str:
    """What servers do under load, on which processor if that is not `here`, and a link; "" if it was not measured."""
    if (table := served(behind)) is None:
        return ""
    found, there = table.section["shown"][-1].removesuffix("."), wording.processor(table.meta["environment"])
    return f"{found} ({'; '.join([*[there] * (there != here), *once(table), linked(table.section, home)])})"


def once(table: Recorded) -> list[str]:
    """[`one run of 20 s each`]: how long the servers were asked."""
    seconds = table.meta.get("parameters", {}).get("seconds")
    return [f"one run of {seconds:g} s each"] if seconds else []


# The run --------------------------------------------------------------------------------------------------------------


def about(run: Setting) -> str:
    """The machine line, how many trials, and what the A/A control says."""
    meta, baseline, good = run.table.meta, run.baseline, summary.warm(run.rows, run.baseline)
    env = meta["environment"]
    sentences = [
        f"**The headline** (list, picture and table at the top): each rate is the median of {len(good)} greedy answers"
        f" of {overview.lengths(good)} tokens (prompt + answer) by {run.model} in {len({t.process for t in good})}"
        " processes; each ratio is the geometric mean of pairs"
    ]
    control = summary.paired_ratio(run.rows, baseline + AGAIN, baseline)
    differs = f", {control.judged}" if control.verdict in DIFFERENT or control.scattered else ""
    sentences += [f"The A/A control, `{baseline}` against itself: {control.value:.2f} {interval(control)}{differs}"] * (
        control.n > 1
    )
    busy = environment.busy(env)
    trials = ". ".join([*sentences, *[busy.capitalize()] * bool(busy)])
    gaps = listed([f"`{name}`" for name in gains.SUBJECTS if name not in gains.known(run)])
    missing = f" Not in it: {gaps}." if gaps else ""
    flagged = xla_flags.SETTING in env.get("settings", {}).get("XLA_FLAGS", "")
    flag = "with [the XLA flag](docs/protocol.md) that avoids wrong values under this release" * flagged
    built = env["packages"].get(LLAMA_CPP_PACKAGE) if LLAMA_CPP in run.subjects else None
    called = f"llama.cpp's `llama_decode` ({LLAMA_CPP_PACKAGE} {built}, {CALLED}) with as many threads as ours"
    rival = called if built else ""
    where = " · ".join(filter(None, (wording.machine_line(env), rival, flag)))
    return f"{trials} ([trials](data/{run.table.path.name})).{missing} Measured {meta['created'][:10]} on {where}."


def itself() -> str:
    """A sentence: how fast the peer is beside llama.cpp's own benchmark; "" where that was not measured."""
    path = llama_bench.TABLE
    own = f"at {llama_bench.beside(path)} times [the rate of its own llama-bench](docs/peers.md)"
    return f" In this protocol llama.cpp runs {own}." if path.is_file() else ""


# The README -----------------------------------------------------------------------------------------------------------


def subject(run: Setting, theirs: Trial) -> tuple[str, str]:
    """(the file that another runtime read, the processor). theirs: a row of it."""
    file = f"{run.model}, {overview.kept(theirs, run.rows)}, {rivals.megabytes(theirs.weights_bytes)}"
    return file, wording.processor(run.table.meta["environment"])


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


def claimed(
    sections: Sequence[dict],
    measured: Sequence[Setting],
    home: Path,
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
    parts += [gains.places(measured, others, loaded=serving(behind, home, here)).markdown()] if pictures else []
    return "\n\n".join(filter(None, parts))


def contested(measured: Sequence[Setting], home: Path, behind: Sequence[Recorded] = ()) -> str:
    """Other runtimes, what the kernel costs, and the run that the claim is of, as Markdown. behind: as of
    `claimed`."""
    if not measured:
        return ""
    lines = beside(behind, home)
    heads = ("other runtime", "file", "processor", f"rate of `{BEST}` over its rate", "measured in")
    table = document.Table(heads, lines).markdown() if lines else ""
    return "\n\n".join(filter(None, (table, losing(measured[0], behind, home), about(measured[0]))))


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
    """Put both texts between the README's markers, where OUT has a README that holds them. others: contributed
    machines. again: of `repeats`."""
    home = Path(out_dir)
    measured = with_headline(home, behind)
    document.put(home / "README.md", *ANSWER, partial(claimed, sections, measured, home, behind, others, again))
    document.put(home / "README.md", *BESIDE, partial(contested, measured, home, behind))
