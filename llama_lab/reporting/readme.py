"""What README.md says of results, computed: a claim in plain words, one picture, a row a subject of one interleaved
run, and how the other findings begin."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from llama_lab.bench import AGAIN, environment, summary
from llama_lab.bench.claim import settled
from llama_lab.bench.record import Trial
from llama_lab.bench.statistics import DIFFERENT, UNDECIDED, Ratio, Verdict
from llama_lab.bench.wording import instructions, interval, listed, opening, probed, weights, within
from llama_lab.reporting import document, machines, notebooks, overview
from llama_lab.reporting.document import Table
from llama_lab.reporting.machines import Machine
from llama_lab.reporting.overview import Recorded, Setting
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
            words = compared(what, than, summary.paired_ratio(run.rows, above, below))
            section = run.table.section
            link = f" (notebook [{section['number']}]({page(section, home)})'s run)"
            sentences.append(f"{words[0].upper()}{words[1:]}{link * (run is not measured[0])}.")
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


def table(run: Setting) -> Table:
    """A row a subject, with its line of the report's table of all subjects; those that the run lacks are marked as
    gaps."""
    heads = ("", "what is jitted", "weights", "tokens/s [95 %]", f"times `{run.baseline}`'s [95 %]", "of the limit")
    rows, here = [], known(run)
    for name, what in SUBJECTS.items():
        cells = ("", "not in this run", "", "")
        if name in here:
            line = run.line(name)
            rate, ratio, share = (line[key] for key in ("middle", "ratio", "share"))
            times = "1" if ratio is None else f"{ratio.value:.2f}{within(ratio)}"
            times += f", {ratio.verdict}" if ratio is not None and ratio.verdict in UNDECIDED else ""
            limit = f"{share:.0%}".replace("%", " %") if share else ""
            kept = weights(line["weights"]).removesuffix(" weights")
            cells = (kept, f"{rate.median:.1f}{within(rate, '.1f')}", times, limit)
        rows.append((f"`{name}`", what, *cells))
    return Table(heads, rows, frozenset((3, 4, 5)))


def about(run: Setting) -> str:
    """The machine line, how many trials, and what the A/A control says."""
    meta, baseline, good = run.table.meta, run.baseline, summary.warm(run.rows, run.baseline)
    env = meta["environment"]
    clauses = [
        f"Medians of {len(good)} answers of {overview.lengths(good)} tokens (prompt + answer) by {run.model}"
        f" in {len({t.process for t in good})} processes, all subjects in turn within each block"
    ]
    control = summary.paired_ratio(run.rows, baseline + AGAIN, baseline)
    differs = f", {control.verdict}" if control.verdict in (*DIFFERENT, Verdict.UNSTABLE) else ""
    clauses += [f"`{baseline}` against itself {control.value:.2f} {interval(control)}{differs}"] * (control.n > 1)
    trials = "; ".join(filter(None, [*clauses, environment.busy(env)]))
    gaps = listed([f"`{name}`" for name in SUBJECTS if name not in known(run)])
    missing = f" Not in it: {gaps}." if gaps else ""
    where = " · ".join(filter(None, (environment.machine_line(env), instructions(env), probed(meta))))
    return f"{trials} ([trials](data/{run.table.path.name})).{missing} Measured {meta['created'][:10]} on {where}."


def elsewhere(run: Setting, others: Sequence[Machine]) -> str:
    """The claim's ratios in the same run at other times and on other machines; "" where there are none."""
    repeated = []
    for m in others:
        if (measured := m.about["measured"]) != run.table.meta["created"]:
            pairs = [(above, below, summary.paired_ratio(m.trials, above, below)) for above, _, below, _ in CLAIM]
            ratios = [f"`{above}` over `{below}` {ratio.words}" for above, below, ratio in pairs if ratio.n]
            where = (f"{m.environment['cpu']}, {m.environment['cores']} cores", instructions(m.environment))
            repeated.append(f"{measured[:10]} on {', '.join(filter(None, where))}: {', '.join(ratios)}")
    begin = "The same run at another time or on another [machine](docs/machines.html)"
    return f"{begin}, {'; '.join(repeated)}." if repeated else ""


# The block ------------------------------------------------------------------------------------------------------------


def page(section: dict, home: Path) -> str:
    """A link to a section's notebook as it was executed; to its place in the report where there is no such page."""
    executed = Path("docs") / "notebooks" / f"{section['name']}.md"
    return executed.as_posix() if (home / executed).is_file() else f"docs/index.html#n{section['number']}"


def scopes(behind: Sequence[Recorded]) -> dict[str, str]:
    """Of each section, in how many processes the first setting of its first table was timed, and where:
    ` (one process on AMD EPYC)`; only where, if its rows are not timed side by side."""
    places, numbers = {}, {}
    for table in behind:
        name = table.section["name"]
        places.setdefault(name, table.meta["environment"]["cpu"])
        for setting in table.settings[:1]:
            many = len({row.process for row in setting.rows})
            numbers.setdefault(name, f"{many} processes " if many > 1 else "one process ")
    return {name: f" ({numbers.get(name, '')}on {place})" for name, place in places.items()}


def block(
    sections: Sequence[dict],
    measured: Sequence[Setting],
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


def refresh(out_dir: Path, sections: Sequence[dict], behind: Sequence[Recorded]) -> None:
    """Put the block between the README's two markers, where OUT has a README that holds them."""
    home = Path(out_dir)

    def written() -> str:
        headline = dict(name=contribution.HEADLINE, number="00")
        own = [Recorded(table, headline) for table in overview.tables(home / "data", contribution.HEADLINE)]
        known = machines.newest(machines.contributed(home / "data" / "machines")[0])
        return block(sections, runs([*own, *behind]), home, scopes([*own, *behind]), known)

    document.put(home / "README.md", BEGIN, END, written)
