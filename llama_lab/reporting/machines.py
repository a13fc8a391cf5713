"""The page of machines, for a browser and as Markdown: contributed results, the ladder on each as ratios to `step` and
as shares of its limit.

If it is written for results measured here (`results/<machine>`), this machine is a row too, and each of its subjects is
shown beside the published one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from llama_jax.placement import LADDER
from llama_jax.plumbing import files, paths
from llama_lab import machine
from llama_lab.bench import AGAIN, environment, record, summary, wording
from llama_lab.bench.record import Trial
from llama_lab.bench.statistics import Verdict
from llama_lab.reporting import document, overview
from llama_lab.reporting.document import Number, Table, render
from llama_lab.reporting.overview import Recorded
from llama_lab.sharing import contribution, verification
from llama_lab.sharing.verification import Problem

LLAMA_CPP, BEST = "llamacpp", "loop+fused"
PAGE = "machines"  # the page's name, without its suffix
OTHER_RUNS = "Other runs"  # the title of its last comparison
NONE = "No machine's file lies in `data/machines` yet. `make figures`, then `llama-jax contribute`, makes yours."
ABOUT = """The same ladder on every machine with a contributed file. Tokens a second say more about a machine than about
`jax.jit`, so the tables have ratios to `step` in the same blocks, and shares of what the machine's own memory bandwidth
allows."""
ONE = Number("1", "1")  # the baseline over itself


@dataclass(frozen=True)
class Machine:
    """A machine's headline. about: {machine, version, measured, environment, features, baseline, …}, as the meta of a
    contributed file says it. own: it was measured here and not contributed."""

    about: dict
    trials: list[Trial]
    own: bool = False

    @property
    def environment(self) -> dict:
        return self.about["environment"]

    @property
    def label(self) -> str:
        return self.about["machine"] + " (here)" * self.own

    def over(self, name: str, baseline: str = "") -> Number | None:
        """Speed of a subject over that of another in the same blocks, by default its baseline, and whether that is
        undecided; None if they did not run side by side."""
        below = baseline or self.about["baseline"]
        if name == below:
            return ONE if name in summary.subjects(self.trials) else None
        ratio = summary.paired_ratio(self.trials, name, below)
        cell = overview.ratio_cell(ratio)
        undecided = cell and ratio.verdict == Verdict.UNDECIDED and not name.endswith(AGAIN)
        return replace(cell, interval=f"{cell.interval} {ratio.verdict}") if undecided else cell


def contributed(folder: Path) -> tuple[list[Machine], list[Problem]]:
    """(machines, the files left out and why) of a folder, by name and version."""
    checked = [verification.check(path) for path in sorted(Path(folder).glob("*.jsonl"))]
    kept = [Machine(file.about, file.trials) for file in checked if not file.problems]
    return kept, [problem for file in checked for problem in file.problems]


def here(out_dir: Path) -> list[Machine]:
    """This machine, where OUT is a folder of results and holds a headline."""
    path = Path(out_dir) / "data" / f"{contribution.HEADLINE}.csv"
    if not path.is_file() or is_published(path):
        return []
    trials, meta = record.read(path)
    env = meta["environment"]
    about = dict(machine=machine.name_of(env), version=contribution.version(env["packages"]), measured=meta["created"],
                 environment=env, features=contribution.processor(),
                 baseline=meta.get("baseline", verification.BASELINE))  # fmt: skip
    return [Machine(about, trials, own=True)]


def is_published(path: Path) -> bool:
    """Whether a table is the one in the repository, or a copy of it."""
    other = paths.ROOT / "data" / path.name
    return record.meta_path(other).is_file() and record.read_meta(path)["sha256"] == record.read_meta(other)["sha256"]


def newest(machines: Sequence[Machine]) -> list[Machine]:
    """One machine per name, the one measured last; this machine's own stays beside its contribution."""
    kept = {m.label: m for m in sorted(machines, key=lambda m: m.about["measured"])}
    return sorted(kept.values(), key=lambda m: (not m.own, m.label))


# Tables ---------------------------------------------------------------------------------------------------------------


def ratios(machines: Sequence[Machine], names: Sequence[str]) -> Table:
    """What each machine is, and the ratio of every subject to the baseline. names: the subjects."""
    pairs = ((BEST, LLAMA_CPP), (BEST, "loop"), ("step", "eager"))
    heads = ("Machine", "What it is", *(f"{above} over {below}" for above, below in pairs), "A/A", *names)
    rows = []
    for m in machines:
        env, busy = m.environment, environment.busy(m.environment)
        name = wording.MARKS.sub("", env["cpu"])
        what = f"{name}{amx(m.about['features'])}, {env['cores']} cores, {env['ram_bytes'] / 2**30:.0f} GiB"
        what += f" ({busy})" if busy else ""
        about = (env["kernels"], str(env["packages"].get("jax")), m.about["version"], m.about["measured"][:10])
        control = m.over(m.about["baseline"] + AGAIN)
        rows.append((m.label, what, *(m.over(*pair) for pair in pairs), control, *map(m.over, names), *about))
    return Table((*heads, "Kernels for", "jax", "llama-jax", "Measured"), rows, frozenset(range(2, len(heads))))


def amx(features: Sequence[str]) -> str:
    """Whether a processor has AMX. Features are those that decide our kernels, so without it nothing is known, and
    nothing said."""
    return ", AMX" if any(feature.startswith("amx") for feature in features) else ""


def shares(machines: Sequence[Machine], names: Sequence[str]) -> Table:
    """Every subject's share of what the bandwidth of its machine allows."""
    rows = []
    for m in machines:
        probed = max((t.bandwidth_gbps for t in m.trials if t.bandwidth_gbps), default=None)
        of_limit = [overview.share_cell(overview.share(summary.warm(m.trials, name))) for name in names]
        rows.append((m.label, m.environment["kernels"], probed and Number(str(probed), f"{probed:.1f}"), *of_limit))
    return Table(("Machine", "Kernels for", "GB/s", *names), rows, frozenset(range(2, len(names) + 3)))


def by_features(machines: Sequence[Machine], names: Sequence[str]) -> Table:
    """One line per set of processor features, with the range of the ratios of the kernels compiled for it."""
    compiled = [name for name in names if name == LLAMA_CPP or "gemv" in name or "fused" in name]
    groups = summary.grouped(machines, lambda m: (m.environment["kernels"], tuple(m.about["features"])))
    rows = []
    for (isa, features), members in sorted(groups.items()):
        columns = [[float(cell.value) for m in members if (cell := m.over(name))] for name in compiled]
        spans = [wording.span(column, document.short) for column in columns]
        rows.append((isa, ", ".join(features), ", ".join(m.about["machine"] for m in members), *spans))
    return Table(("Kernels for", "Features", "Machines", *(f"{name} over step" for name in compiled)), rows)


def beside(out_dir: Path) -> Table:
    """This machine's subjects beside the published ones of the same setting; none for the published data itself."""
    heads = ("Subject", "Table", "Setting", "Prompt + answer", "× baseline, here", "published",
             "Share of the limit, here", "published")  # fmt: skip
    rows = []
    for path in overview.tables(Path(out_dir) / "data", ""):
        other = paths.ROOT / "data" / path.name
        if record.meta_path(other).is_file() and not is_published(path):
            ours, theirs = (Recorded(p).lines for p in (path, other))
            both = ours.merge(theirs, on=["words", "model", "subject"], suffixes=("", "_published"))
            for row in both.itertuples():
                length = f"{row.lengths} (published: {row.lengths_published})"
                ratios = map(overview.ratio_cell, (row.ratio, row.ratio_published))
                shares = map(overview.share_cell, (row.share, row.share_published))
                same = row.lengths == row.lengths_published
                rows.append((row.subject, row.table, row.words, row.lengths if same else length, *ratios, *shares))
    return Table(heads, rows, frozenset(range(4, 8)))


# The page -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Section:
    """A table under its title. text: a paragraph of Markdown before it."""

    title: str
    text: str
    table: Table

    @property
    def id(self) -> str:
        return document.anchor(self.title)

    def markdown(self) -> str:
        return f"## {self.title}\n\n{' '.join(self.text.split())}\n\n{self.table.markdown()}"


def sections(machines: Sequence[Machine], ours: Table, again: Table | None) -> list[Section]:
    """Those that have rows. ours: of `beside`. again: the same comparison in other runs."""
    found = {t.subject for m in machines for t in m.trials if not t.subject.endswith(AGAIN)}
    ladder = [*LADDER]
    names = sorted(found, key=lambda name: (ladder.index(name) if name in ladder else len(ladder), name))
    features = by_features(machines, names)
    several = "Ranges are over the machines with that set of features."
    counted = "One set of features so far, so nothing can be told apart yet." if len(features.rows) == 1 else several
    if 1 < len(features.rows) == len(machines):
        counted = "Each set of features has one machine so far, so features and machine cannot be told apart."
    every = [
        Section(
            "Over `step`",
            """Speed over that of `step` in the same blocks, with its 95% interval; above 1 is faster. A column that
            names two subjects has the first over the second. *Undecided* ratios may be on either side of 1. *A/A* is
            `step` measured as if it were another subject: its distance from 1 is that run's noise. Where a processor
            has AMX, Intel's matrix unit, llama.cpp uses it and the kernels of `+fused` do not. A row that does not name
            AMX does not say whether the processor has it.""",
            ratios(machines, names),
        ),
        Section(
            "As shares of the machine's limit",
            """Bytes that a token must read, times tokens a second, over the bandwidth that was probed between the
            blocks: 100% is the most that a machine's memory allows. A share above it means that the probe read more
            slowly than the weights were read, as from a cache; such shares are too high. The nearer llama.cpp is to its
            limit, the smaller any lead over it can be.""",
            shares(machines, names),
        ),
        Section(
            "What differs by the processor's features",
            f"Kernels are compiled for what a processor has. {counted}",
            features,
        ),
        Section(
            "This machine beside the published one",
            """Every subject that was timed here and in the published tables in the same setting: over its own baseline,
            and as a share of its own machine's limit.""",
            ours,
        ),
        Section(
            OTHER_RUNS,
            """Every other recorded run of the headline's file in which `loop+fused` and llama.cpp each gave one greedy
            answer in the same block. Texts, their lengths, days or processors may differ; the cause of the spread is
            not established. Whether a processor has AMX, which llama.cpp uses and our kernels do not, is not
            recorded.""",
            again or Table((), ()),
        ),
    ]
    return [section for section in every if section.table.rows]


def write(out_dir: Path, folder: Path = contribution.FOLDER, again: Table | None = None) -> Path:
    """Write OUT/docs/machines.html and .md from the files in `folder`, and from OUT where that is a folder of results;
    the path of the former. again: the same comparison in other runs."""
    known, refused = contributed(folder)
    shown = newest([*known, *here(out_dir)])
    about, told = ABOUT if shown else NONE, sections(shown, beside(out_dir), again)
    left = [f"- `{problem.file}`: {problem.reason}" for problem in refused]
    parts = ["# Machines compared", " ".join(about.split()), *(section.markdown() for section in told)]
    text = "\n\n".join([*parts, *["## Left out", "\n".join(left)] * bool(left)]) + "\n"
    pages = Path(out_dir) / "docs"
    files.write(pages / f"{PAGE}.md", text)
    page = render("machines.html", about=about, sections=told, refused=refused)
    return files.write(pages / f"{PAGE}.html", page)
