"""Is a contributed file what a measurement leaves? Everything is checked that can be checked without the machine."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, PositiveInt

from llama_jax import checkpoint, placement
from llama_jax.plumbing import boundary, files, runtime
from llama_jax.plumbing.boundary import Declared
from llama_jax.plumbing.errors import UserError
from llama_lab import machine, peers
from llama_lab.bench import AGAIN, gate, record, roofline, summary
from llama_lab.bench.record import Trial
from llama_lab.bench.statistics import NARROW
from llama_lab.sharing import scrub
from llama_lab.sharing.contribution import Contribution, digest_of

BASELINE = "step"  # of every machine's headline
Name = Annotated[str, Field(pattern=r"^[\w.+-]{1,120}$")]


@dataclass(frozen=True)
class Problem:
    file: str
    reason: str


@dataclass(frozen=True)
class Checked:
    """A file and its problems. machine: "" if it could not be read; about, trials: its content, with the run's
    bandwidth."""

    machine: str
    trials: list[Trial]
    about: dict
    problems: list[Problem]


class Environment(Declared):
    """What the report needs to know of a machine."""

    cpu: str = Field(max_length=200)
    cores: PositiveInt
    kernels: str
    ram_bytes: PositiveInt
    os: str
    python: str
    packages: dict[str, str | None]
    runtime: dict[str, str] = Field(min_length=1)


class Meta(Declared):
    """The meta of a contributed file, in addition to every table's."""

    machine: Name
    version: Name
    measured: str
    environment: Environment
    features: list[str]
    parameters: dict[str, Any]
    baseline: str
    doctor: dict[str, Any] = Field(min_length=1)
    rows: PositiveInt
    rows_sha256: str


def check(path: Path) -> Checked:
    """See `CHECKS`. Raises UserError if there is no file; anything wrong inside is a problem."""
    path = Path(path)
    if not path.is_file():
        raise UserError(f"There is no file {path}; `llama-jax contribute` writes one.")
    try:
        trials, about, _ = record.read_jsonl(path, whole=True)
        boundary.read(Meta, about, f"{path}, line 1")
    except UserError as error:
        return Checked("", [], {}, [Problem(path.name, str(error).replace(f"{path}", path.name))])
    lines, reasons = tuple(path.read_text(encoding="utf-8").splitlines()[1:]), []
    if (len(lines), digest_of(lines)) != (about["rows"], about["rows_sha256"]):  # missing, doubled, in another order
        reasons.append(f"its {len(lines)} rows are not the {about['rows']} that were written")
    expected = f"{about['machine']}-{about['version']}.jsonl"
    if (about["machine"], path.name) != (machine.name_of(about["environment"]), expected):
        reasons.append(f"its name or its machine ({about['machine']}) is not what its environment gives ({expected})")
    reasons += [reason for complaints in CHECKS for reason in complaints(trials, about)]
    return Checked(about["machine"], roofline.of_runs(trials), about, [Problem(path.name, r) for r in reasons])


def staged(made: Contribution) -> Checked:
    """`check` of a file that is not yet written."""
    with tempfile.TemporaryDirectory() as folder:
        return check(files.write(Path(folder) / made.path.name, made.text))


def mixed_runs(trials: Sequence[Trial], about: dict) -> Iterator[str]:
    """Rows of more than one run, or of the same trial twice."""
    for name in ("run", "model", "weights_hash", "batch", "seed"):
        if len(values := sorted({str(getattr(t, name)) for t in trials})) > 1:
            yield f"it mixes runs: {name.replace('_', ' ')} is {values[0]} and {values[1]}"
    places = [(t.run, t.phase, t.process, t.block, t.subject, t.sampling) for t in trials]
    if len(places) > len(set(places)):
        twice = next(place for i, place in enumerate(places) if place in places[:i])
        yield f"it mixes runs: {twice[4]} occurs twice in block {twice[3]} of process {twice[2]}"


def foreign_subjects(trials: Sequence[Trial], about: dict) -> Iterator[str]:
    """Another model, another baseline, or subjects that others cannot measure."""
    if strange := sorted({t.model for t in trials} - {checkpoint.DEFAULT}):
        yield f"it is of {strange[0]}, every machine measures {checkpoint.DEFAULT}"
    if about["baseline"] != BASELINE:
        yield f"its baseline is {about['baseline']}, not {BASELINE}"
    for name in sorted({t.subject.removesuffix(AGAIN) for t in trials}):
        if name in peers.PEERS:
            continue
        try:
            placement.parse(name)
        except UserError as error:
            yield f"its subject {name} is invalid: {error}"


def ungated(trials: Sequence[Trial], about: dict) -> Iterator[str]:
    """Valid times with other tokens than the reference's, or impossible times."""
    answers: dict[tuple, set[str]] = {}
    for t in trials:
        if not t.valid:
            continue
        where = f"{t.subject}, block {t.block}"
        if t.wrong or t.died or t.reason.startswith("failed"):
            yield f"{where}: it counts though {t.reason}"
        times = [0, *t.token_times_ns]
        if len(t.token_times_ns) != t.new_tokens or sorted(times) != times or not times[-1]:
            yield f"{where}: its {len(t.token_times_ns)} times are not those of {t.new_tokens} tokens"
        if not gate.approximate(t.quantisation) and "near-tie" not in t.reason:
            key = (t.prompt, t.dtype, t.quantisation, t.sampling, t.new_tokens)
            answers.setdefault(key, set()).add(t.tokens_sha256)
            if len(answers[key]) == 2:
                yield f"{where}: its tokens are not those of the others, and it counts"
                answers[key].discard(t.tokens_sha256)


def unguarded(trials: Sequence[Trial], about: dict) -> Iterator[str]:
    """Valid warm times in which something was compiled."""
    for t in trials:
        if t.valid and t.phase == "warm" and (t.compiled or t.lowered or t.cause):
            yield f"{t.subject}, block {t.block}: it counts though {t.compiled or t.lowered} programs were made in it"


def unquiet(trials: Sequence[Trial], about: dict) -> Iterator[str]:
    """A baseline without its second run, or whose two runs differ: the machine was not quiet. Mere scatter is not a
    problem, because intervals show it."""
    both = (about["baseline"], about["baseline"] + AGAIN)
    control = summary.paired_ratio([t for t in trials if t.tg > 0], both[1], both[0])
    if control.n < 2:
        yield f"{control.n} of its blocks have the baseline twice ({both[1]}): there is no A/A control"
    elif control.excludes_one and control.effect > math.log1p(NARROW):
        yield f"the machine was not quiet, measure again: A/A control {control.words}"


def wrong_runtime(trials: Sequence[Trial], about: dict) -> Iterator[str]:
    if complaint := runtime.complaint(about["environment"]["runtime"]):
        yield f"{complaint}: {runtime.REMEDY}"


def identifying(trials: Sequence[Trial], about: dict) -> Iterator[str]:
    texts = [about, *((t.reason, t.cause, t.subject, t.run, t.backend, t.placement) for t in trials)]
    if shown := next(filter(None, map(scrub.shows, texts)), ""):
        yield f"it shows a place or an address: {shown[:60]}"


CHECKS: tuple[Callable[[Sequence[Trial], dict], Iterator[str]], ...] = (
    mixed_runs, foreign_subjects, ungated, unguarded, unquiet, wrong_runtime, identifying
)  # fmt: skip
