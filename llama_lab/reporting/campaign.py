"""Everything measured in order: the headline, then the notebooks as they are read, each only where this machine has not
measured it with this code and these parameters yet.

How long each takes is known from `minutes.csv`: OUT's own, written after each step, before the published one. A
notebook that is done leaves its parameters and its tables' digests in OUT/out/measured; a table that was interrupted
goes on from its journal.
"""

from __future__ import annotations

import csv
import io
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from llama_jax.plumbing import files, paths
from llama_jax.plumbing.errors import UserError, near
from llama_lab.bench import environment, provenance, record
from llama_lab.reporting import headline, notebooks
from llama_lab.reporting.ipynb import PROFILES, about
from llama_lab.reporting.notebooks import Result
from llama_lab.reporting.remaining import Remaining, minutes

MINUTES = Path("data") / "minutes.csv"
USUAL = {"quick": 4.0, "full": 20.0}  # minutes of a notebook that nobody has timed yet
AMOUNTS = {"quick": headline.measure.QUICK, "full": headline.measure.FULL}


@dataclass(frozen=True)
class Step:
    """One notebook, or the headline. minutes: that it takes whole. done: when it was measured, "" where it is due."""

    name: str
    minutes: float
    done: str = ""


def steps(only: Sequence[str], profile: str, out_dir: Path) -> list[Step]:
    """What there is to measure, in order. Raises UserError for what does not exist, and for what is recorded by a
    target of its own."""
    if profile not in PROFILES:
        raise UserError(f"profile is {profile!r}; it must be {' or '.join(PROFILES)}.")
    known = [headline.NAME, *(path.stem for path in notebooks.sources() if not about(path).needs)]
    took = timed(paths.ROOT) | timed(out_dir)
    return [
        Step(name, took.get((name, profile), USUAL[profile]), done(name, profile, out_dir))
        for name in chosen(only, [name for name in known if tables_of(name)])
    ]


def chosen(only: Sequence[str], known: Sequence[str]) -> list[str]:
    """Those that are named, by number or name; all for none."""
    found = {name: [k for k in known if k == name or k.split("-")[0] == name.zfill(2)] for name in only}
    for name, hits in found.items():
        if not hits:
            raise UserError(
                f"Nothing of the name {name!r} is measured here: `make gpu` records 12 and `make releases` 15."
                if name.split("-")[0] in ("12", "15")
                else f"Nothing of the name {name!r} is measured.{near(name, known)}"
            )
    wanted = {hit for hits in found.values() for hit in hits}
    return [name for name in known if name in wanted or not only]


def timed(home: Path) -> dict[tuple[str, str], float]:
    """(name, profile) → minutes that it took there."""
    path = Path(home) / MINUTES
    if not path.is_file():
        return {}
    with path.open(newline="") as file:
        return {(row["name"], row["profile"]): float(row["minutes"]) for row in csv.DictReader(file)}


def keep_time(home: Path, name: str, profile: str, spent: float) -> None:
    """Write down how many minutes a step took."""
    known = timed(home) | {(name, profile): round(spent, 1)}
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerows([("name", "profile", "minutes"), *((*key, known[key]) for key in sorted(known))])
    files.write(Path(home) / MINUTES, text.getvalue())


# What is done --------------------------------------------------------------------------------------------------------


def asked(name: str, profile: str, out_dir: Path) -> dict:
    """The parameters of a step."""
    if name == headline.NAME:
        return headline.measure.parameters(AMOUNTS[profile])
    (path,) = notebooks.find([name])
    found = notebooks.defaults(path) | notebooks.parameters(path, profile, {}, "measure", out_dir)
    return {key: value for key, value in found.items() if key not in ("source", "out_dir")}


def tables_of(name: str, out_dir: Path = paths.ROOT) -> list[Path]:
    """The tables that a step leaves."""
    if name == headline.NAME:
        return [Path(out_dir) / "data" / f"{name}.csv"]
    (path,) = notebooks.find([name])
    return [Path(out_dir) / a for a in about(path).artifacts if a.startswith("data/") and a.endswith(".csv")]


def mark(name: str, out_dir: Path) -> Path:
    return Path(out_dir) / "out" / "measured" / f"{name}.json"


def proof(name: str, profile: str, out_dir: Path) -> dict | None:
    """What is true of a step that is done: its parameters, machine and tables; None where a table is not there or is
    of other code."""
    found = {}
    for path in tables_of(name, out_dir):
        if not record.meta_path(path).is_file():
            if path.is_file():  # a small one without rows of its own
                continue
            return None
        meta = record.read_meta(path)
        if provenance.changed(meta) != []:
            return None
        found[path.stem] = meta["sha256"]
    about_it = dict(parameters=asked(name, profile, out_dir), cpu=environment.cpu_model(), tables=found)
    return json.loads(json.dumps(about_it))


def done(name: str, profile: str, out_dir: Path) -> str:
    """When a step was measured, by its mark; "" where it is due."""
    path = mark(name, out_dir)
    if not path.is_file():
        return ""
    then = json.loads(path.read_text())
    return then["created"] if then["proof"] == proof(name, profile, out_dir) else ""


# Doing it ------------------------------------------------------------------------------------------------------------


def lines(found: Sequence[Step]) -> list[str]:
    """The plan in words: how long all of it takes, then a line a step."""
    due = [step for step in found if not step.done]
    total = minutes(60 * sum(step.minutes for step in due))
    said = [f"about {total} for {len(due)} of {len(found)} parts; each keeps what it has when it is interrupted"]
    for step in found:
        words = f"measured {step.done}" if step.done else f"about {minutes(60 * step.minutes)}"
        said.append(f"  {step.name}: {words}")
    return said if due else [f"all {len(found)} parts are measured, with this code, on this machine", *said[1:]]


def run(found: Sequence[Step], profile: str, out_dir: Path, tell: Callable[[str], None]) -> list[Result]:
    """Measure what is due, one after the other; a failure does not stop the rest."""
    due = [step for step in found if not step.done]
    if not due:
        return []
    results = []
    with Remaining({step.name: 60 * step.minutes for step in due}, tell).told() as rest:
        for step in due:
            rest.begin(step.name)
            began = time.monotonic()
            result = measure(step.name, profile, out_dir, rest)
            results.append(result)
            if result.ok:
                took = max(time.monotonic() - began, spent(tables_of(step.name, out_dir)))
                keep_time(out_dir, step.name, profile, took / 60)
                now = dict(created=time.strftime("%Y-%m-%d %H:%M"), proof=proof(step.name, profile, out_dir))
                files.write(mark(step.name, out_dir), json.dumps(now, indent=1, sort_keys=True) + "\n")
    return results


def spent(tables: Sequence[Path]) -> float:
    """Seconds that the measuring processes of some tables took, those of interrupted runs included."""
    metas = [record.read_meta(path) for path in tables if record.meta_path(path).is_file()]
    notes = [note for meta in metas for note in meta.get("processes", ()) if note.get("watch")]
    return sum(note["watch"].get("wall_s", 0.0) for note in notes)


def measure(name: str, profile: str, out_dir: Path, rest: Remaining) -> Result:
    """One step."""
    if name != headline.NAME:
        return notebooks.run([name], source="measure", profile=profile, out_dir=out_dir, progress=heard(rest))[0]
    began = time.monotonic()
    found = headline.obtain(AMOUNTS[profile], out_dir, rest.progress)
    headline.draw(*found, out_dir)
    seconds = round(time.monotonic() - began, 1)
    return Result(name, True, seconds, [*map(str, tables_of(name, out_dir))], headline.finding.headline(found[0]), "")


def heard(rest: Remaining) -> Callable[[str], None]:
    """A runner's lines, such as `05-kv-cache: block 3: step (12/40) (31 s)`, as what is being done."""

    def hear(line: str) -> None:
        rest.what = line.partition(": ")[2]

    return hear


def as_json(found: Sequence[Step]) -> list[dict]:
    return [asdict(step) for step in found]
