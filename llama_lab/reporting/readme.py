"""What README.md says of results, computed: a claim in plain words, one picture, a row a subject of one interleaved
run, and how the other findings begin."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from llama_jax.plumbing import files
from llama_lab.bench import AGAIN, environment, summary
from llama_lab.bench.claim import settled
from llama_lab.bench.record import Trial
from llama_lab.bench.statistics import DIFFERENT, UNDECIDED, Ratio, Verdict
from llama_lab.bench.wording import instructions, interval, listed, opening, probed, weights, within
from llama_lab.reporting import machines, notebooks, overview
from llama_lab.reporting.document import Table
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
Behind = Sequence[tuple[dict, Path, dict]]  # (section, table, its meta) of each table that the sections rest on
LITTLE = 1.25  # times as fast: up to here a gain is called little


@dataclass(frozen=True)
class Run:
    """What was timed in turn within the same blocks: the greedy trials of one setting of one table."""

    section: dict
    table: Path
    meta: dict
    group: overview.Group

    @property
    def trials(self) -> list[Trial]:
        return self.group.rows

    @property
    def known(self) -> list[str]:
        """Those of SUBJECTS that have a valid trial here."""
        return [name for name in SUBJECTS if summary.warm(self.trials, name)]

    @property
    def baseline(self) -> str:
        return overview.baseline_of(self.trials, self.meta)


def runs(behind: Behind) -> list[Run]:
    """The runs with two of SUBJECTS or more, the one with most of them first. behind: the tables, in the order in which
    notebooks are read."""
    known = [
        Run(section, path, meta, group)
        for section, path, meta in behind
        for group in overview.groups(path, meta)
        if not group.first and type(group.rows[0]) is Trial and group.rows[0].sampling == "greedy"
    ]
    return sorted((run for run in known if len(run.known) > 1), key=lambda run: -len(run.known))


# The claim ------------------------------------------------------------------------------------------------------------


def claim(known: Sequence[Run], home: Path) -> str:
    """The comparisons of CLAIM in plain words, each from the first run that has both sides; "" where there is none. One
    that is not of the first run names its notebook."""
    sentences = []
    for above, what, below, than in CLAIM:
        run = next((run for run in known if {above, below} <= set(run.known)), None)
        if run is not None:
            words = compared(what, than, summary.paired_ratio(run.trials, above, below))
            link = f"[{run.section['number']}]({page(run.section, home)})"
            place = "" if run is known[0] else f" (notebook {link}'s run)"
            sentences.append(f"{words[0].upper()}{words[1:]}{place}.")
    return " ".join(sentences)


def compared(what: str, than: str, ratio: Ratio) -> str:
    """One ratio in plain words; a number only where the trials decide and the interval is narrow enough."""
    if ratio.verdict == Verdict.EQUAL:
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


def table(run: Run) -> Table:
    """A row a subject, those that the run lacks marked as gaps."""
    heads = ("", "what is jitted", "weights", "tokens/s [95 %]", f"times `{run.baseline}`'s [95 %]", "of the limit")
    return Table(heads, [row(run, name, what) for name, what in SUBJECTS.items()], frozenset((3, 4, 5)))


def row(run: Run, name: str, what: str) -> tuple[str, ...]:
    """A subject's line of the report's table of all subjects, with what is jitted in it."""
    if name not in run.known:
        return f"`{name}`", what, "", "not in this run", "", ""
    line, times = overview.line_of(run.table.stem, run.group, name, run.baseline, 0), "1"
    if line.ratio is not None:
        decided = line.ratio.verdict not in UNDECIDED
        times = f"{line.ratio.value:.2f}{within(line.ratio)}" + ("" if decided else f", {line.ratio.verdict}")
    rate, kept = f"{line.middle.median:.1f}{within(line.middle, '.1f')}", weights(line.weights).removesuffix(" weights")
    return f"`{name}`", what, kept, rate, times, f"{line.share:.0%}".replace("%", " %") if line.share else ""


def about(run: Run) -> str:
    """The machine line, how many trials, and what the A/A control says."""
    good, around, baseline = summary.warm(run.trials, run.baseline), run.meta["environment"], run.baseline
    clauses = [
        f"Medians of {len(good)} answers of {overview.lengths(good)} tokens (prompt + answer) by {good[0].model}"
        f" in {len({t.process for t in good})} processes, all subjects in turn within each block"
    ]
    control = summary.paired_ratio(run.trials, baseline + AGAIN, baseline)
    differs = f", {control.verdict}" if control.verdict in (*DIFFERENT, Verdict.UNSTABLE) else ""
    clauses += [f"`{baseline}` against itself {control.value:.2f} {interval(control)}{differs}"] * (control.n > 1)
    trials = "; ".join(filter(None, [*clauses, environment.busy(around)]))
    gaps = [f"`{name}`" for name in SUBJECTS if name not in run.known]
    missing = f" Not in it: {listed(gaps)}." if gaps else ""
    where = " · ".join(filter(None, (environment.machine_line(around), instructions(around), probed(run.meta))))
    return f"{trials} ([trials](data/{run.table.name})).{missing} Measured {run.meta['created'][:10]} on {where}."


def elsewhere(run: Run, others: Sequence[Machine]) -> str:
    """The claim's ratios in the same run at other times and on other machines; "" where there are none."""
    runs = []
    for m in others:
        if (measured := m.about["measured"]) != run.meta["created"]:
            pairs = [(above, below, summary.paired_ratio(m.trials, above, below)) for above, _, below, _ in CLAIM]
            ratios = [f"`{above}` over `{below}` {ratio.words}" for above, below, ratio in pairs if ratio.n]
            where = (f"{m.environment['cpu']}, {m.environment['cores']} cores", instructions(m.environment))
            runs.append(f"{measured[:10]} on {', '.join(filter(None, where))}: {', '.join(ratios)}")
    begin = "The same run at another time or on another [machine](docs/machines.html)"
    return f"{begin}, {'; '.join(runs)}." if runs else ""


# The block ------------------------------------------------------------------------------------------------------------


def page(section: dict, home: Path) -> str:
    """A link to a section's notebook as it was executed; to its place in the report where there is no such page."""
    executed = Path("docs") / "notebooks" / f"{section['name']}.md"
    return executed.as_posix() if (home / executed).is_file() else f"docs/index.html#n{section['number']}"


def scopes(behind: Behind) -> dict[str, str]:
    """Of each section, in how many processes the first setting of its first table was timed, and where:
    ` (one process on AMD EPYC)`; only where, if its rows are not timed side by side."""
    places = {section["name"]: meta["environment"]["cpu"] for section, _, meta in reversed(behind)}
    numbers: dict[str, str] = {}
    for section, path, meta in behind:
        for group in overview.groups(path, meta):
            many = len({row.process for row in group.rows})
            numbers.setdefault(section["name"], f"{many} processes " if many > 1 else "one process ")
    return {name: f" ({numbers.get(name, '')}on {place})" for name, place in places.items()}


def block(
    sections: Sequence[dict],
    measured: Sequence[Run],
    home: Path,
    scopes: Mapping[str, str] = {},
    others: Sequence[Machine] = (),
) -> str:
    """All of it as Markdown: claim, picture, table, then a line for each finding `in_readme`, and the other
    questions. scopes: what stands behind a section's line. others: machines that the same was measured on."""
    main = (contribution.HEADLINE, *notebooks.saying("headline"))  # whose findings the claim tells
    shown = [s for s in sections if s["name"] in {*notebooks.saying("in_readme")} - {*main}]
    pictures = [figure for name in main for s in sections if s["name"] == name for figure in s["figures"]][:1]
    parts = [claim(measured, home), *(f"![{figure['caption']}](figures/{figure['name']}.svg)" for figure in pictures)]
    if measured:
        parts += [table(measured[0]).markdown(), about(measured[0]), elsewhere(measured[0], others)]
    links = {s["name"]: f"[{s['question']}]({page(s, home)})" for s in sections}
    lines = [f"- {links[s['name']]} {opening(s['finding'])}{scopes.get(s['name'], '')}" for s in shown]
    asked = [links[s["name"]] for s in sections if s not in shown and s["name"] != contribution.HEADLINE]
    parts += ["\n".join(lines), f"Asked as well: {' · '.join(asked)}" if asked else ""]
    return "\n\n".join(filter(None, parts))


def refresh(out_dir: Path, sections: Sequence[dict], behind: Behind) -> None:
    """Put the block between the README's two markers, where OUT has a README that holds them."""
    path = Path(out_dir) / "README.md"
    if not path.is_file():
        return
    before, begin, rest = path.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if begin and end:
        headline = dict(name=contribution.HEADLINE, number="00")
        own = overview.tables(path.parent / "data", contribution.HEADLINE)
        behind = [*((headline, table, overview.about(table)) for table in own), *behind]
        known = machines.newest(machines.contributed(path.parent / "data" / "machines")[0])
        written = block(sections, runs(behind), path.parent, scopes(behind), known)
        files.write(path, f"{before}{BEGIN}\n{written}\n{END}{after}")
