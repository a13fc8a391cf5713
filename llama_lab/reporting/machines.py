"""The page of machines: what people contributed, the ladder on each as ratios to `step` and as shares of its limit.

Where it is written for what was measured here (`results/<machine>`), this machine is a row too, and every subject of it
stands beside the published one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from llama_jax.plumbing import files, paths
from llama_lab.bench import AGAIN, environment, record, summary
from llama_lab.bench.record import Trial
from llama_lab.bench.statistics import Ratio
from llama_lab.reporting import overview, pages, versions
from llama_lab.sharing import contribution, verification
from llama_lab.sharing.verification import Problem

LLAMA_CPP, BEST = "llamacpp", "loop+fused"
ONE = dict(value="1", words="1", interval="")  # the baseline over itself


@dataclass(frozen=True)
class Machine:
    """A machine's headline. own: it was measured here and not contributed."""

    name: str
    version: str
    measured: str
    environment: dict
    features: tuple[str, ...]
    baseline: str
    trials: list[Trial]
    own: bool = False

    @property
    def subjects(self) -> list[str]:
        return [name for name in summary.subjects(self.trials) if not name.endswith(AGAIN)]


def contributed(folder: Path) -> tuple[list[Machine], list[Problem]]:
    """(machines, what was left out and why) of the files in a folder, by name and version."""
    found = [verification.check(path) for path in sorted(Path(folder).glob("*.jsonl"))]
    kept = [
        Machine(
            name=one.machine,
            version=one.about["version"],
            measured=one.about["measured"],
            environment=one.about["environment"],
            features=tuple(one.about["features"]),
            baseline=one.about["baseline"],
            trials=one.trials,
        )
        for one in found
        if not one.problems
    ]
    return kept, [problem for one in found for problem in one.problems]


def here(out_dir: Path) -> list[Machine]:
    """This machine, where OUT is a folder of results and holds a headline."""
    path = Path(out_dir) / "data" / f"{contribution.HEADLINE}.csv"
    if not path.is_file() or is_published(path):
        return []
    trials, meta = record.read(path)
    env = meta["environment"]
    return [
        Machine(
            name=contribution.named(env),
            version=contribution.version(env["packages"]),
            measured=meta["created"],
            environment=env,
            features=contribution.processor(),
            baseline=meta.get("baseline", verification.BASELINE),
            trials=trials,
            own=True,
        )
    ]


def is_published(path: Path) -> bool:
    """Whether a table is the one in the repository, or a copy of it."""
    other = paths.ROOT / "data" / path.name
    return record.meta_path(other).is_file() and record.read_meta(path)["sha256"] == record.read_meta(other)["sha256"]


def newest(machines: Sequence[Machine]) -> list[Machine]:
    """One of each name, the one measured last; this machine's own stays beside what it contributed."""
    kept = {(m.name, m.own): m for m in sorted(machines, key=lambda m: m.measured)}
    return sorted(kept.values(), key=lambda m: (not m.own, m.name))


def columns(machines: Sequence[Machine]) -> list[str]:
    """Every subject that any of them has, in the order in which the first names them."""
    return list(dict.fromkeys(name for m in machines for name in m.subjects))


def row(m: Machine, names: Sequence[str]) -> dict:
    """A machine as the page has it: who it is, and by subject its ratio to the baseline and its share of the limit."""
    env, ratios, shares = m.environment, {}, {}
    for name in names:
        if own := summary.warm(m.trials, name):
            ratios[name] = ONE if name == m.baseline else cell(summary.paired_ratio(m.trials, name, m.baseline))
            shares[name] = percent(overview.share(own))
    both = {LLAMA_CPP, BEST} <= set(ratios)
    return dict(
        name=m.name,
        own=m.own,
        version=m.version,
        measured=m.measured[:10],
        machine=f"{env['cpu']}, {env['cores']} cores, {env['ram_bytes'] / 2**30:.0f} GiB",
        isa=env["kernels"],
        jax=env["packages"].get("jax"),
        control=cell(summary.paired_ratio(m.trials, m.baseline + AGAIN, m.baseline)),
        busy=environment.busy(env),
        bandwidth=max((t.bandwidth_gbps for t in m.trials if t.bandwidth_gbps), default=None),
        ratios=ratios,
        shares=shares,
        over=cell(summary.paired_ratio(m.trials, BEST, LLAMA_CPP)) if both else None,
    )


def percent(share: float | None) -> dict | None:
    return share and dict(value=f"{share:.6g}", words=f"{share:.0%}", interval="")


def cell(found: Ratio) -> dict | None:
    return overview.value(found.value, found) if found.n else None


def by_features(rows: Sequence[dict], machines: Sequence[Machine], names: Sequence[str]) -> list[dict]:
    """What the processors' features change: a line each set of them, with the range of the ratios of what is compiled
    for it."""
    compiled = [name for name in names if name == LLAMA_CPP or "gemv" in name or "fused" in name]
    groups: dict[tuple, list[dict]] = {}
    for one, m in zip(rows, machines, strict=True):
        groups.setdefault((m.environment["kernels"], m.features), []).append(one)
    found = []
    for (isa, features), members in sorted(groups.items()):
        ratios = {n: [float(one["ratios"][n]["value"]) for one in members if one["ratios"].get(n)] for n in compiled}
        words = {
            n: overview.short(min(each)) + (f" to {overview.short(max(each))}" if len(each) > 1 else "") if each else ""
            for n, each in ratios.items()
        }
        found.append(
            dict(isa=isa, features=", ".join(features), machines=[one["name"] for one in members], words=words)
        )
    return found


def beside(out_dir: Path) -> list[dict]:
    """This machine's subjects and the published ones of the same setting: {table, setting, subject, lengths, ratio,
    share, of ours and theirs}; none of what is published itself."""
    found = []
    for path in overview.tables(Path(out_dir) / "data", ""):
        other = paths.ROOT / "data" / path.name
        if not record.meta_path(other).is_file() or is_published(path):
            continue
        ours, theirs = (
            {(line.words, line.model, line.subject): line for line in overview.lines(p, overview.about(p))}
            for p in (path, other)
        )
        found += [pair(ours[key], theirs[key]) for key in ours if key in theirs]
    return found


def pair(ours: overview.Line, theirs: overview.Line) -> dict:
    """The two lines of a subject, as ratios to their baselines and shares of their machines' limits."""

    return dict(
        table=ours.table,
        setting=ours.words,
        subject=ours.subject,
        lengths=ours.lengths if ours.lengths == theirs.lengths else f"{ours.lengths} (published: {theirs.lengths})",
        ratio=ours.ratio and cell(ours.ratio),
        published_ratio=theirs.ratio and cell(theirs.ratio),
        share=percent(ours.share),
        published_share=percent(theirs.share),
    )


def write(out_dir: Path, folder: Path = contribution.FOLDER) -> Path:
    """Write OUT/docs/machines.html from the files in `folder`, and from OUT where that is a folder of results."""
    known, refused = contributed(folder)
    shown = newest([*known, *here(out_dir)])
    names = columns(shown)
    rows = [row(m, names) for m in shown]
    page = pages.render(
        "machines.html",
        names=names,
        rows=rows,
        features=by_features(rows, shown, names),
        refused=refused,
        beside=beside(out_dir),
        versions=versions.drawn([*known, *here(out_dir)]),
    )
    return files.write(Path(out_dir) / "docs" / "machines.html", page)
