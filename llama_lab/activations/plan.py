"""Which units a run has and which are missing: what any engine needs to hand them out, without a model.

    OUT/plan.json    where each unit begins in the source, so that a process reads only its own units

The first process makes it from the source, and so do those that start before it exists; all make the same. There is no
plan for a source that can only be read in order; its number of units is known at its end.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable
from typing import Annotated, Any

from pydantic import Field, model_validator

from llama_jax.plumbing import boundary
from llama_jax.plumbing.boundary import Declared, shown
from llama_jax.plumbing.errors import UserError
from llama_lab.activations import store
from llama_lab.activations.folder import Folder, open_folder
from llama_lab.activations.records import Count, Digest, commits, committed, record, sealed
from llama_lab.activations.sources import Part, Source, open_source
from llama_lab.activations.spec import whole
from llama_lab.activations.store import PLAN

UNIT = 256  # examples
AGAIN = "Remove it, and the next run makes it anew."
LOOK = 1_000  # units planned until it is looked whether someone else has the plan by now

Shard = tuple[int, int]  # (index from 0, count): units with number % count == index


class Plan(Declared):
    """plan.json: the source, a stamp that reveals changes, and the start and digest of each unit of `unit` examples."""

    source: dict[str, Any]
    stamp: dict[str, Any]
    unit: Annotated[int, Field(ge=1)]
    examples: Count
    starts: list[list[Count]]
    sha256: list[Digest]

    @model_validator(mode="after")
    def fits(self) -> Plan:
        if not len(self.starts) == len(self.sha256) == -(-self.examples // self.unit):
            raise ValueError(f"{self.examples:,} examples by {self.unit:,} are another number of units")
        return self

    def __len__(self) -> int:
        return len(self.starts)

    def part(self, number: int) -> Part:
        """A unit. Raises UserError for an unknown number."""
        if not 0 <= number < len(self):
            raise UserError(f"There is no unit {number}: this source has {len(self):,}, numbered from 0.")
        first = number * self.unit
        size = min(self.unit, self.examples - first)
        return Part(number, first, size, tuple(self.starts[number]), self.sha256[number])


def begin(folder: Folder, source: Source, unit: int, fingerprint: Callable[[dict], dict], resume: bool) -> Plan | None:
    """Claim a folder for a run and return its plan; None if the source can be read in order only.

    Any number of processes may do so at once. fingerprint: of the run, from what identifies the source. Raises
    UserError as `store.claim` does, and where the source cannot be read.
    """
    known = read_plan(folder) if source.contents else None
    if known and (known.unit, known.stamp) != (unit, source.stamp):
        known = None  # the source is another: `claim` says so
    store.claim(folder, fingerprint(known.source if known else source.about), resume)
    if known or source.contents is None:
        return known
    if plan := made(source, unit, lambda: folder.size(PLAN) is not None):
        values = plan.model_dump()
        if len(json.dumps(values["starts"])) + 68 * len(plan) > boundary.LIMIT - 4096:
            raise UserError(f"{len(plan):,} units are more than a plan holds; make units larger (--unit).")
        folder.write(PLAN, sealed(values))
        return plan
    return begin(folder, source, unit, fingerprint, resume=True)  # someone else has it by now


def made(source: Source, unit: int, stop: Callable[[], bool]) -> Plan | None:
    """The plan of a source. None if `stop`, which is called now and then, says so."""
    parts: list[Part] = []
    for part in source.parts(unit):
        parts.append(part)
        if len(parts) % LOOK == 0 and stop():
            return None
    return Plan(
        source=source.about,
        stamp=source.stamp,
        unit=unit,
        examples=parts[-1].first + parts[-1].examples,
        starts=[list(part.start) for part in parts],
        sha256=[part.sha256 for part in parts],
    )


def read_plan(folder: Folder) -> Plan | None:
    """None if there is none. Raises UserError when it is damaged."""
    content = folder.read(PLAN)
    return None if content is None else parsed(content, f"{folder.where}/{PLAN}")


@functools.lru_cache(maxsize=4)
def parsed(content: bytes, name: str) -> Plan:
    return boundary.read(Plan, record(content, name, AGAIN, must_be_sealed=True), name, AGAIN)


def share_of(numbers: range, shard: Shard | None) -> range:
    """The numbers in a shard. Raises UserError for an impossible shard."""
    if shard is None:
        return numbers
    asked = whole(shard) if isinstance(shard, tuple | list) else ()
    if len(asked) != 2 or not 0 <= asked[0] < asked[1]:
        raise UserError(f"shard is {shown(shard)}; it must be (index, count): index from 0 on, below count.")
    return numbers[asked[0] :: asked[1]]


def units(source, unit: int = UNIT) -> list[Part]:
    """The units of a source: number, first example and count, independent of the caller and of what is extracted.

    source: see `sources.open_source`. unit: examples of each. Raises UserError for a source that can be read in order
    only.
    """
    return list((source if isinstance(source, Source) else open_source(source)).parts(unit))


def pending(out: str | os.PathLike, shard: Shard | None = None) -> list[int]:
    """The numbers of the units that a folder lacks, ascending; of a shard's only, if one is given.

    Raises UserError if the folder holds no run yet, or how many units there are is not known yet.
    """
    folder = open_folder(out)
    done = commits(folder)
    return [number for number in share_of(range(count_of(folder)), shard) if number not in done]


def count_of(folder: Folder) -> int:
    if folder.read(store.RUN) is None:
        raise UserError(f"{folder.where} holds no run yet: `llama-jax extract` or `extract` begins one.")
    if plan := read_plan(folder):
        return len(plan)
    if whole := store.read_whole(folder):
        return whole.units
    raise UserError(
        f"How many units {folder.where} will have is not known yet: its source is read in order, and has not been read"
        " to its end yet."
    )


def finish(out: str | os.PathLike) -> bool:
    """Complete a store once all of its units are committed; whether it is complete now. Raises UserError as
    `pending`."""
    folder = open_folder(out)
    folder.tidy()
    return completed(folder, count_of(folder))


def completed(folder: Folder, count: int) -> bool:
    if len(committed(folder.sizes("units/"))) < count or len(commits(folder)) < count:
        return False
    store.finish(folder, count)
    return True
