"""Everything measured in order: the headline, then the notebooks in reading order, each only if this machine has not
yet measured it with this code and these parameters.

Durations come from `minutes.csv`: OUT's own, written after each step, or the published one. A finished notebook leaves
its parameters and its tables' digests in OUT/out/measured; an interrupted table resumes from its journal.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from llama_jax.plumbing import files, paths
from llama_jax.plumbing.errors import UserError
from llama_lab.bench import environment, provenance, record
from llama_lab.reporting import headline, notebooks
from llama_lab.reporting.ipynb import PROFILES, about
from llama_lab.reporting.notebooks import Result
from llama_lab.reporting.remaining import Remaining, minutes

MINUTES = Path("data") / "minutes.csv"
USUAL = {"quick": 4.0, "full": 20.0}  # minutes of a notebook that nobody has timed yet
AMOUNTS = {"quick": headline.measure.QUICK, "full": headline.measure.FULL}
ELSEWHERE = ("18", "19")  # notebooks that are recorded by targets of their own


@dataclass(frozen=True)
class Step:
    """One notebook, or the headline. minutes: duration of all of it. done: when it was measured, "" if it is due."""

    name: str
    minutes: float
    done: str = ""


def steps(only: Sequence[str], profile: str, out_dir: Path) -> list[Step]:
    """The steps to measure, in order; only those named by number or name. Raises UserError for unknown names, and for
    tables that another target records."""
    if profile not in PROFILES:
        raise UserError(f"profile is {profile!r}; it must be {' or '.join(PROFILES)}.")
    known = [headline.NAME, *(path.stem for path in notebooks.sources() if not about(path).needs)]
    known = [name for name in known if tables_of(name)]
    wanted = {name: notebooks.matching(name, known) for name in only}
    for name, hits in wanted.items():
        if not hits:
            hint = " here: `make releases` records 18 and `make gpu` 19."
            hint = hint if name.split("-")[0] in ELSEWHERE else f".{notebooks.hint(name, known)}"
            raise UserError(f"Nothing named {name!r} can be measured{hint}")
    took = timed(paths.ROOT) | timed(out_dir)
    return [
        Step(name, took.get((name, profile), USUAL[profile]), done(name, profile, out_dir))
        for name in known
        if not only or any(name in hits for hits in wanted.values())
    ]


def timed(home: Path) -> dict[tuple[str, str], float]:
    """(name, profile) → minutes that it took there."""
    path = Path(home) / MINUTES
    return pd.read_csv(path, index_col=["name", "profile"])["minutes"].to_dict() if path.is_file() else {}


def keep_time(home: Path, name: str, profile: str, spent: float) -> None:
    """Write down how many minutes a step took."""
    known = pd.Series(timed(home) | {(name, profile): round(spent, 1)}).sort_index()
    known = known.rename_axis(["name", "profile"]).rename("minutes")
    files.write(Path(home) / MINUTES, known.to_csv(lineterminator="\n"))


# What is done ---------------------------------------------------------------------------------------------------------


def tables_of(name: str, out_dir: Path = paths.ROOT) -> list[Path]:
    """The tables that a step leaves."""
    artifacts = [f"data/{name}.csv"] if name == headline.NAME else about(*notebooks.find([name])).artifacts
    return [Path(out_dir) / a for a in artifacts if a.startswith("data/") and a.endswith(".csv")]


def has_meta(table: Path) -> bool:
    return record.meta_path(table).is_file()


def mark(name: str, out_dir: Path) -> Path:
    return Path(out_dir) / "out" / "measured" / f"{name}.json"


def proof(name: str, profile: str, out_dir: Path) -> dict | None:
    """The state of a finished step: its parameters, machine and tables; None if a table is missing or of other code."""
    tables = {}
    for path in tables_of(name, out_dir):
        if has_meta(path):
            meta = record.read_meta(path)
            if provenance.changed(meta) != []:
                return None
            tables[path.stem] = meta["sha256"]
        elif not path.is_file():  # else a small one without rows of its own
            return None
    if name == headline.NAME:
        values = AMOUNTS[profile].parameters
    else:
        (path,) = notebooks.find([name])
        values = notebooks.defaults(path) | notebooks.parameters(path, profile, {}, "measure", out_dir)
    parameters = {key: value for key, value in values.items() if key not in ("source", "out_dir")}
    return json.loads(json.dumps(dict(parameters=parameters, cpu=environment.cpu_model(), tables=tables)))


def done(name: str, profile: str, out_dir: Path) -> str:
    """When a step was measured, by its mark; "" if it is due."""
    path = mark(name, out_dir)
    then = json.loads(path.read_text()) if path.is_file() else None
    return then["created"] if then and then["proof"] == proof(name, profile, out_dir) else ""


# Doing it -------------------------------------------------------------------------------------------------------------


def lines(steps: Sequence[Step]) -> list[str]:
    """The plan in words: how long all of it takes, then a line per step."""
    due = [step for step in steps if not step.done]
    total, parts = minutes(60 * sum(step.minutes for step in due)), f"{len(due)} of {len(steps)} parts"
    first = f"about {total} for {parts}; an interruption loses no finished work"
    whole = f"all {len(steps)} parts are measured, with this code, on this machine"
    states = [f"measured {step.done}" if step.done else f"about {minutes(60 * step.minutes)}" for step in steps]
    return [first if due else whole, *(f"  {step.name}: {state}" for step, state in zip(steps, states, strict=True))]


def run(steps: Sequence[Step], profile: str, out_dir: Path, tell: Callable[[str], None]) -> list[Result]:
    """Measure the due steps, one after the other; a failure does not stop the rest."""
    due, results = [step for step in steps if not step.done], []
    if not due:
        return []
    with Remaining({step.name: 60 * step.minutes for step in due}, tell).spoken() as rest:
        for step in due:
            rest.begin(step.name)
            began = time.monotonic()
            results.append(measure(step.name, profile, out_dir, rest))
            if results[-1].ok:
                metas = map(record.read_meta, filter(has_meta, tables_of(step.name, out_dir)))
                notes = [note for meta in metas for note in meta.get("processes", ()) if note.get("watch")]
                spent = sum(note["watch"].get("wall_s", 0.0) for note in notes)  # in interrupted runs too
                keep_time(out_dir, step.name, profile, max(time.monotonic() - began, spent) / 60)
                now = dict(created=time.strftime("%Y-%m-%d %H:%M"), proof=proof(step.name, profile, out_dir))
                files.write(mark(step.name, out_dir), json.dumps(now, indent=1, sort_keys=True) + "\n")
    return results


def measure(name: str, profile: str, out_dir: Path, rest: Remaining) -> Result:
    """One step."""

    def hear(line: str) -> None:  # `04-kv-cache: block 3: step (12/40) (31 s)`
        rest.what = line.partition(": ")[2]

    if name != headline.NAME:
        return notebooks.run([name], source="measure", profile=profile, out_dir=out_dir, progress=hear)[0]
    began = time.monotonic()
    trials, meta = headline.obtain(AMOUNTS[profile], out_dir, rest.progress)
    headline.draw(trials, meta, out_dir)
    seconds = round(time.monotonic() - began, 1)
    return Result(name, True, seconds, [*map(str, tables_of(name, out_dir))], headline.chart.finding(trials), "")
