"""The page of machines: what people contributed, the ladder on each as ratios to `step` and as shares of its limit.

Where it is written for what was measured here (`results/<machine>`), this machine is a row too, and every subject of it
stands beside the published one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from llama_jax.plumbing import files, paths
from llama_lab import machine
from llama_lab.bench import AGAIN, environment, record, summary
from llama_lab.bench.record import Trial
from llama_lab.reporting import document, overview
from llama_lab.reporting.document import Number, Table, render
from llama_lab.sharing import contribution, verification
from llama_lab.sharing.verification import Problem

LLAMA_CPP, BEST = "llamacpp", "loop+fused"
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
    def subjects(self) -> list[str]:
        return [name for name in summary.subjects(self.trials) if not name.endswith(AGAIN)]

    @property
    def label(self) -> str:
        return self.about["machine"] + " (here)" * self.own

    def over(self, name: str, baseline: str) -> Number | None:
        """Speed of a subject over that of another in the same blocks; None where they did not run side by side."""
        return overview.ratio_cell(summary.paired_ratio(self.trials, name, baseline))

    def over_baseline(self, name: str) -> Number | None:
        baseline = self.about["baseline"]
        return ONE if name == baseline and name in self.subjects else self.over(name, baseline)


def contributed(folder: Path) -> tuple[list[Machine], list[Problem]]:
    """(machines, what was left out and why) of the files in a folder, by name and version."""
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
    about = dict(
        machine=machine.name_of(env),
        version=contribution.version(env["packages"]),
        measured=meta["created"],
        environment=env,
        features=contribution.processor(),
        baseline=meta.get("baseline", verification.BASELINE),
    )
    return [Machine(about, trials, own=True)]


def is_published(path: Path) -> bool:
    """Whether a table is the one in the repository, or a copy of it."""
    other = paths.ROOT / "data" / path.name
    return record.meta_path(other).is_file() and record.read_meta(path)["sha256"] == record.read_meta(other)["sha256"]


def newest(machines: Sequence[Machine]) -> list[Machine]:
    """One of each name, the one measured last; this machine's own stays beside what it contributed."""
    kept = {(m.label, m.own): m for m in sorted(machines, key=lambda m: m.about["measured"])}
    return sorted(kept.values(), key=lambda m: (not m.own, m.label))


# Tables ---------------------------------------------------------------------------------------------------------------


def ratios(machines: Sequence[Machine], names: Sequence[str]) -> Table:
    """What each machine is, and the ratio of every subject to the baseline. names: the subjects."""
    heads = ("Machine", "What it is", "Kernels for", "jax", "llama-jax", "Measured", "A/A", *names)
    rows = []
    for m in machines:
        env, busy = m.environment, environment.busy(m.environment)
        what = f"{env['cpu']}, {env['cores']} cores, {env['ram_bytes'] / 2**30:.0f} GiB{f' ({busy})' if busy else ''}"
        version, measured, baseline = (m.about[key] for key in ("version", "measured", "baseline"))
        about = (m.label, what, env["kernels"], str(env["packages"].get("jax")), version, measured[:10])
        control, best = m.over(baseline + AGAIN, baseline), m.over(BEST, LLAMA_CPP)
        rows.append((*about, control, *map(m.over_baseline, names), best))
    return Table((*heads, f"{BEST} over {LLAMA_CPP}"), rows, frozenset(range(6, len(heads) + 1)))


def shares(machines: Sequence[Machine], names: Sequence[str]) -> Table:
    """Every subject's share of what the bandwidth of its machine allows."""
    rows = []
    for m in machines:
        probed = max((t.bandwidth_gbps for t in m.trials if t.bandwidth_gbps), default=None)
        of_limit = [overview.share_cell(overview.share(summary.warm(m.trials, name))) for name in names]
        rows.append((m.label, m.environment["kernels"], probed and Number(str(probed), f"{probed:.1f}"), *of_limit))
    return Table(("Machine", "Kernels for", "GB/s", *names), rows, frozenset(range(2, len(names) + 3)))


def by_features(machines: Sequence[Machine], names: Sequence[str]) -> Table:
    """A line each set of processor features, with the range of the ratios of what is compiled for it."""
    compiled = [name for name in names if name == LLAMA_CPP or "gemv" in name or "fused" in name]
    groups: dict[tuple, list[Machine]] = {}
    for m in machines:
        groups.setdefault((m.environment["kernels"], tuple(m.about["features"])), []).append(m)
    rows = []
    for (isa, features), members in sorted(groups.items()):
        columns = [[float(cell.value) for m in members if (cell := m.over_baseline(name))] for name in compiled]
        rows.append((isa, ", ".join(features), ", ".join(m.about["machine"] for m in members), *map(span, columns)))
    return Table(("Kernels for", "Features", "Machines", *(f"{name} over step" for name in compiled)), rows)


def span(values: Sequence[float]) -> str:
    """`2.93 to 5.00`; the number where there is one, "" where there is none."""
    ends = (min(values), max(values)) if len(values) > 1 else values
    return " to ".join(map(document.short, ends))


def beside(out_dir: Path) -> Table:
    """This machine's subjects beside the published ones of the same setting; none of what is published itself."""
    heads = ("Subject", "Table", "Setting", "Prompt + answer", "× baseline, here", "published",
             "Share of the limit, here", "published")  # fmt: skip
    rows = []
    for path in overview.tables(Path(out_dir) / "data", ""):
        other = paths.ROOT / "data" / path.name
        if record.meta_path(other).is_file() and not is_published(path):
            ours, theirs = (
                {(line.words, line.model, line.subject): line for line in overview.lines(p, overview.about(p))}
                for p in (path, other)
            )
            rows += [row_beside(ours[key], theirs[key]) for key in ours if key in theirs]
    return Table(heads, rows, frozenset(range(4, 8)))


def row_beside(ours: overview.Line, theirs: overview.Line) -> tuple:
    same = ours.lengths == theirs.lengths
    lengths = ours.lengths if same else f"{ours.lengths} (published: {theirs.lengths})"
    ratios = map(overview.ratio_cell, (ours.ratio, theirs.ratio))
    shares = map(overview.share_cell, (ours.share, theirs.share))
    return ours.subject, ours.table, ours.words, lengths, *ratios, *shares


def write(out_dir: Path, folder: Path = contribution.FOLDER) -> Path:
    """Write OUT/docs/machines.html from the files in `folder`, and from OUT where that is a folder of results."""
    known, refused = contributed(folder)
    shown = newest([*known, *here(out_dir)])
    names = list(dict.fromkeys(name for m in shown for name in m.subjects))  # in the order of the first that has it
    tables = dict(ratios=ratios(shown, names), shares=shares(shown, names), features=by_features(shown, names))
    page = render("machines.html", **tables, beside=beside(out_dir), refused=refused)
    return files.write(Path(out_dir) / "docs" / "machines.html", page)
