"""Journals of `bench` from several machines, or several runs of one, as one table.

Each run keeps its own rows: its name becomes `main · MACHINE`, so that nothing is paired, and no bandwidth shared,
across machines. What must match for one table is checked first.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llama_jax.plumbing import boundary
from llama_jax.plumbing.boundary import Declared
from llama_jax.plumbing.errors import UserError
from llama_lab import machine
from llama_lab.bench import gate, record
from llama_lab.bench.record import Trial
from llama_lab.sharing.verification import Environment, mixed_runs

SAME = ("model", "prompt_tokens", "new_tokens", "batch", "seed", "sampler", "baseline", "dtype")  # of what was asked


class Plan(Declared):
    """The plan in a journal of `bench`."""

    parameters: dict[str, Any]
    packages: dict[str, str | None]
    source: str  # digest of the package's own code


class About(Declared):
    plan: Plan
    environment: Environment


@dataclass(frozen=True)
class Run:
    """A journal: its path, its trials, and its meta."""

    path: Path
    trials: list[Trial]
    about: dict

    @property
    def machine(self) -> str:
        return machine.name_of(self.about["environment"])


def read(path: Path) -> Run:
    """A whole journal of one run. Raises UserError for a torn one, for an edited row, another schema, and for rows of
    several runs."""
    path = Path(path)
    try:
        torn = not boundary.content(path, record.LONGEST).endswith(b"\n")
    except FileNotFoundError:
        raise UserError(f"There is no file {path}; `llama-jax bench --journal {path}` makes one.") from None
    if torn:
        raise UserError(
            f"{path} is incomplete: its last row is cut off. Run the command that wrote it again to resume."
        )
    trials, about, _ = record.read_jsonl(path, whole=True)
    if "plan" not in about:
        raise UserError(f"{path} is not a journal of `llama-jax bench --journal`.")
    boundary.read(About, about, f"{path}, line 1")
    if not trials:
        raise UserError(f"{path} holds no trial.")
    for reason in mixed_runs(trials, about):
        raise UserError(f"{path} cannot be merged: {reason}.")
    return Run(path, trials, about)


def facts(run: Run) -> dict[str, object]:
    """What must match in all runs, by name: the workload, weights, versions, code, and the tokens of each subject with
    the reference's tokens."""
    plan = run.about["plan"]
    known = {name: plan["parameters"].get(name) for name in SAME}
    known |= {"weights": run.trials[0].weights_hash, "the package's own code": plan["source"]}
    known |= {f"version of {name}": version for name, version in plan["packages"].items()}
    for t in run.trials:
        if t.valid and not gate.approximate(t.quantisation) and "near-tie" not in t.reason:
            known.setdefault(f"tokens of {t.subject}, prompt {t.prompt}", t.tokens_sha256[:12])
    return known


def merge(files: Sequence[Path], out: Path) -> list[Run]:
    """Write the rows of all journals to OUT (.csv, .parquet, .jsonl), with the machine of each run. Raises UserError
    for what `read` refuses, for a single file, and if `facts` differ."""
    if len(files) < 2:
        raise UserError("merge takes two journals or more.")
    runs = [read(path) for path in files]
    for before, run in itertools.combinations(runs, 2):
        if [t.token_times_ns for t in run.trials] == [t.token_times_ns for t in before.trials]:
            raise UserError(f"{before.path} and {run.path} hold the same run.")
        mine, theirs = facts(before), facts(run)
        if differing := [name for name in mine if name in theirs and mine[name] != theirs[name]]:
            name = differing[0]
            both = f"{name} is {mine[name]} in {before.path} and {theirs[name]} in {run.path}"
            raise UserError(f"{before.path} and {run.path} cannot be merged: {both}.")
    names, rows, machines = Counter(), [], {}
    for run in runs:
        names[run.machine] += 1
        again = f" ({names[run.machine]})" if names[run.machine] > 1 else ""
        name = f"{run.trials[0].run} · {run.machine}{again}"
        rows += [t.model_copy(update=dict(run=name)) for t in run.trials]
        machines[name] = run.about["environment"]
    first = runs[0].about["plan"]["parameters"]
    shared = {k: first[k] for k in SAME if k in first}
    common = {k: v for k, v in runs[0].about["environment"].items() if all(m.get(k) == v for m in machines.values())}
    record.write(out, rows, parameters=shared, baseline=shared.get("baseline"), environment=common, machines=machines)
    return runs
