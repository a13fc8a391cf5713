"""What README.md says of results, computed: a claim in plain words, one picture, a row a subject of one interleaved
run, and how the other findings begin."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from llama_jax.plumbing import files
from llama_lab.bench import AGAIN, environment, standings, statistics, summary
from llama_lab.bench.numbers import interval, within
from llama_lab.bench.record import Trial
from llama_lab.bench.statistics import Ratio
from llama_lab.bench.wording import UNDECIDED, instructions, listed, opening, probed, settled, weights
from llama_lab.reporting import machines, notebooks, overview
from llama_lab.reporting.machines import Machine
from llama_lab.sharing import contribution

BEGIN, END = "<!-- findings: written by `llama-jax report` -->", "<!-- end of findings -->"
SUBJECTS = {
    "eager": "nothing: each primitive is a program",
    "layer": "each layer",
    "step": "one token",
    "loop": "the whole answer",
    "step+fused": "one token, which is one compiled kernel",
    "loop+fused": "the whole answer, a token of it one compiled kernel",
    "llamacpp": "no JAX: llama.cpp on the same file",
}
KERNEL = "a compiled kernel that reads the file's own 4-bit blocks"
CLAIM = (  # (above, what it is, below, what that is); the first two make a sentence, the others one each
    ("step", "jitting one token", "eager", "jitting nothing"),
    ("loop", "jitting the whole answer", "step", "jitting one token"),
    ("loop+fused", KERNEL, "loop", "the same loop on float32 weights"),
    ("loop+fused", "it", "llamacpp", "llama.cpp on the same file"),
    ("step+fused", "handing each token to Python, as llama.cpp does here, it", "llamacpp", "llama.cpp"),
)
LITTLE = 1.25  # times as fast: up to here a gain is called little


@dataclass(frozen=True)
class Run:
    """What was timed in turn within the same blocks: the greedy trials of one setting of one table."""

    section: dict
    table: Path
    meta: dict
    trials: list[Trial]

    @property
    def known(self) -> list[str]:
        """Those of SUBJECTS that have a valid trial here."""
        return [name for name in SUBJECTS if summary.warm(self.trials, name)]

    @property
    def baseline(self) -> str:
        return overview.baseline_of(self.trials, self.meta)


def runs(behind: Sequence[tuple[dict, Path, dict]]) -> list[Run]:
    """The runs with two of SUBJECTS or more, the one with most of them first.

    behind: (section, table, its meta) of each table, in the order in which notebooks are read.
    """
    found = []
    for section, path, meta in behind:
        for (*_, first), rows in overview.groups(path, meta).items():
            if not first and type(rows[0]) is Trial and rows[0].sampling == "greedy":
                found.append(Run(section, path, meta, rows))
    return sorted((run for run in found if len(run.known) > 1), key=lambda run: -len(run.known))


# The claim ------------------------------------------------------------------------------------------------------------


def claim(found: Sequence[Run], link=lambda section: section["number"]) -> str:
    """The comparisons of CLAIM in plain words, each from the first run that has both sides; "" where there is none.

    link: how a section is named where a comparison is not from the first run.
    """
    said = []
    for above, what, below, than in CLAIM:
        run = next((run for run in found if {above, below} <= set(run.known)), None)
        if run is not None:
            words = compared(what, than, summary.paired_ratio(run.trials, above, below))
            said.append((words, "" if run is found[0] else f" (notebook {link(run.section)}'s run)"))
    return " ".join(f"{words[0].upper()}{words[1:]}{place}." for words, place in said)


def compared(what: str, than: str, ratio: Ratio) -> str:
    """One ratio in plain words; a number only where the trials decide and the interval is narrow enough."""
    if ratio.verdict == "equal within 2 %":
        return f"{what} is as fast as {than}, within 2 %"
    if ratio.verdict in UNDECIDED:
        return f"whether {what} is faster than {than} these trials do not decide"
    if not settled(ratio):
        return f"{what} is {ratio.verdict} than {than}"
    form = ".2f" if ratio.value < 10 else ".1f"
    times = f"{ratio.value:{form}} times{within(ratio, form)}"
    if 1 < ratio.value <= LITTLE:
        return f"{what} adds little to {than}: {ratio.value:.2f} times{within(ratio)}"
    return f"{what} is {times} as fast as {than}"


# The rows -------------------------------------------------------------------------------------------------------------


def table(run: Run) -> str:
    """The rows as Markdown, those that the run lacks marked as gaps."""
    heads = ("", "what is jitted", "weights", "tokens/s [95 %]", f"times `{run.baseline}`'s [95 %]", "of the limit")
    rule = ("---", "---", "---", "---:", "---:", "---:")
    rows = [heads, rule, *(row(run, name, what) for name, what in SUBJECTS.items())]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in rows)


def row(run: Run, name: str, what: str) -> tuple[str, ...]:
    good = summary.warm(run.trials, name)
    if not good:
        return f"`{name}`", what, "", "not in this run", "", ""
    rate = statistics.summarise([t.tg for t in good], 0, [t.process for t in good])
    shown = f"{rate.median:.1f}{within(rate, '.1f')}"
    kept = weights(standings.weights(good[0])).removesuffix(" weights")
    shares = [t.mbu for t in good if t.bandwidth_gbps and t.bytes_per_token]
    share = f"{statistics.summarise(shares).median:.0%}".replace("%", " %") if shares else ""
    if name == run.baseline:
        return f"`{name}`", what, kept, shown, "1", share
    ratio = summary.paired_ratio(run.trials, name, run.baseline)
    decided = ratio.verdict in ("faster", "slower", "equal within 2 %")
    times = f"{ratio.value:.2f}{within(ratio)}" + ("" if decided else f", {ratio.verdict}")
    return f"`{name}`", what, kept, shown, times, share


def about(run: Run) -> str:
    """The machine line, how many trials, and what the A/A control says."""
    good = summary.warm(run.trials, run.baseline)
    said = f"Medians of {len(good)} answers of {overview.lengths(good)} tokens (prompt + answer) by {good[0].model}"
    said += f" in {len({t.process for t in good})} processes, everybody in turn within each block"
    control = summary.paired_ratio(run.trials, run.baseline + AGAIN, run.baseline)
    said += f"; `{run.baseline}` against itself {control.value:.2f} {interval(control)}" if control.n > 1 else ""
    said += f", {control.verdict}" if control.verdict in ("faster", "slower", "unstable") else ""
    around = run.meta["environment"]
    said += f"; {busy}" if (busy := environment.busy(around)) else ""
    gaps = [f"`{name}`" for name in SUBJECTS if name not in run.known]
    missing = f" Not in it: {listed(gaps)}." if gaps else ""
    where = " · ".join(filter(None, (environment.machine_line(around), instructions(around), probed(run.meta))))
    return f"{said} ([trials](data/{run.table.name})).{missing} Measured {run.meta['created'][:10]} on {where}."


def elsewhere(run: Run, others: Sequence[Machine]) -> str:
    """The claim's ratios in the same run at other times and on other machines; "" where there are none."""
    said = []
    for m in others:
        if m.measured == run.meta["created"]:
            continue
        pairs = [(above, below, summary.paired_ratio(m.trials, above, below)) for above, _, below, _ in CLAIM]
        ratios = [f"`{above}` over `{below}` {ratio.words}" for above, below, ratio in pairs if ratio.n]
        named = (f"{m.environment['cpu']}, {m.environment['cores']} cores", instructions(m.environment))
        said.append(f"{m.measured[:10]} on {', '.join(filter(None, named))}: {', '.join(ratios)}")
    return (
        f"The same run at another time or on another [machine](docs/machines.html), {'; '.join(said)}." if said else ""
    )


# The block ------------------------------------------------------------------------------------------------------------


def page(section: dict, home: Path) -> str:
    """A link to a section's notebook as it was executed; to its place in the report where there is no such page."""
    executed = Path("docs") / "notebooks" / f"{section['name']}.md"
    return executed.as_posix() if (home / executed).is_file() else f"docs/index.html#n{section['number']}"


def scopes(behind: Sequence[tuple[dict, Path, dict]]) -> dict[str, str]:
    """Of each section, in how many processes the first setting of its first table was timed, and where:
    ` (one process on AMD EPYC)`; only where, if its rows are not timed side by side."""
    places = {section["name"]: meta["environment"]["cpu"] for section, _, meta in reversed(behind)}
    numbers: dict[str, str] = {}
    for section, path, meta in behind:
        for rows in overview.groups(path, meta).values():
            many = len({row.process for row in rows})
            numbers.setdefault(section["name"], f"{many} processes " if many > 1 else "one process ")
    return {name: f" ({numbers.get(name, '')}on {place})" for name, place in places.items()}


def block(
    found: Sequence[dict],
    measured: Sequence[Run],
    home: Path,
    scopes: Mapping[str, str] = {},
    others: Sequence[Machine] = (),
) -> str:
    """All of it as Markdown: claim, picture, table, then a line for each finding `in_readme`, and the other
    questions. scopes: what stands behind a section's line. others: machines that the same was measured on."""
    main, shown = notebooks.saying("headline"), notebooks.saying("in_readme")
    parts = [claim(measured, lambda s: f"[{s['number']}]({page(s, home)})")] if measured else []
    claimed = [contribution.HEADLINE, *main]
    pictures = [f for name in claimed for s in found if s["name"] == name for f in s["figures"]][:1]
    parts += [f"![{f['caption']}](figures/{f['name']}.svg)" for f in pictures]
    parts += [table(measured[0]), about(measured[0])] if measured else []
    parts += [there] if measured and (there := elsewhere(measured[0], others)) else []
    told = {*shown} - {*claimed}
    lines = [
        f"- [{s['question']}]({page(s, home)}) {opening(s['finding'])}{scopes.get(s['name'], '')}"
        for s in found
        if s["name"] in told
    ]
    asked = [f"[{s['question']}]({page(s, home)})" for s in found if s["name"] not in {contribution.HEADLINE, *told}]
    parts += ["\n".join(lines)] * bool(lines) + [f"Asked as well: {' · '.join(asked)}"] * bool(asked)
    return "\n\n".join(parts)


def refresh(out_dir: Path, found: Sequence[dict], behind: Sequence[tuple[dict, Path, dict]]) -> None:
    """Put the block between the README's two markers, where OUT has a README that holds them."""
    path = Path(out_dir) / "README.md"
    if not path.is_file():
        return
    before, begin, rest = path.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    own = overview.tables(path.parent / "data", contribution.HEADLINE)
    behind = [
        *((dict(name=contribution.HEADLINE, number="00"), table, overview.about(table)) for table in own),
        *behind,
    ]
    if begin and end:
        home, known = path.parent, machines.contributed(path.parent / "data" / "machines")[0]
        written = block(found, runs(behind), home, scopes(behind), machines.newest(known))
        files.write(path, f"{before}{BEGIN}\n{written}\n{END}{after}")
