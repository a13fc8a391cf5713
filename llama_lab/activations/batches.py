"""Examples of any length in, batches of one fixed shape [B, T] out, with a record of where each value belongs.

A unit is a fixed range of examples, planned from these only, independent of the process that runs it and of what ran
before. An example longer than T is cut into pieces of T tokens, each with its own context. Packed, several pieces share
a row:

    ids        5 6 7 8 9 4 4 .        pad is id 0
    segments   1 1 1 2 2 3 3 0        0 marks padding; a token sees its own segment only
    positions  0 1 2 0 1 0 1 0        each segment begins at position 0
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from llama_lab.activations.shards import LABELS
from llama_lab.activations.spec import ActivationSpec

SHORTEST = 8  # a packed row holds T / SHORTEST segments at most where not all positions are kept: room for their values


@dataclass(frozen=True)
class Batch:
    """One call of the model, and where its kept tokens are."""

    ids: np.ndarray  # int32 [B T]
    positions: np.ndarray  # int32 [B T], in the context
    segments: np.ndarray  # int32 [B T], 0 if there is no token
    at: np.ndarray  # int32 [n]: b * T + t of each kept token
    to: np.ndarray  # int64 [n]: its row in the unit


@dataclass(frozen=True)
class Made:
    """A call of the model whose values are already computed, for its kept tokens only."""

    to: np.ndarray  # as a batch's
    values: dict[str, np.ndarray]  # site → [n ...]
    moments: dict[str, tuple[np.ndarray, np.ndarray]]  # site → (mean, M2) over these


@dataclass(frozen=True)
class Unit:
    """A fixed range of examples with everything that is known before the model runs."""

    number: int
    first: int  # the first example
    count: int  # examples
    tokens: int  # that the model reads, padding left out
    # token int32, example int64, segment int32 (piece of the example), position int32 (in its piece): [n]
    rows: dict[str, np.ndarray]
    batches: tuple[Batch | Made, ...]

    @property
    def size(self) -> int:
        return len(self.rows["token"])


@dataclass(frozen=True)
class Piece:
    """At most T tokens of one example, up to the last that is kept."""

    example: int
    segment: int  # which piece of the example
    ids: np.ndarray
    kept: np.ndarray  # indices in `ids`
    row: int  # the row within the unit of the first kept token


def labels(parts: Iterable[tuple[np.ndarray, int, int, np.ndarray]]) -> dict[str, np.ndarray]:
    """`Unit.rows` of parts that follow each other: (tokens [n], example, segment, positions [n]) each."""
    columns = {name: [np.empty(0, dtype)] for name, dtype in LABELS.items()}
    for tokens, example, segment, positions in parts:
        several = tokens, np.full(len(tokens), example), np.full(len(tokens), segment), positions
        for column, values in zip(columns.values(), several, strict=True):
            column.append(values)
    return {name: np.concatenate(columns[name]).astype(dtype) for name, dtype in LABELS.items()}


def plan(
    number: int, first: int, examples: Sequence[Sequence[int]], spec: ActivationSpec, shape: tuple[int, int], pack: bool
) -> Unit:
    """The batches of the examples `first`, `first` + 1, …, given as token ids, and the rows that they will fill."""
    pieces, size = [], 0
    for example, ids in enumerate(examples, first):
        ids = np.asarray(ids, np.int32)
        kept = spec.kept(len(ids))
        for segment, start in enumerate(range(0, len(ids), shape[1])):
            inside = kept[(kept >= start) & (kept < start + shape[1])] - start
            if len(inside):  # else nothing of it is wanted: it need not run
                pieces.append(Piece(example, segment, ids[start : start + inside[-1] + 1], inside, size))
                size += len(inside)
    most = most_segments(spec, shape[1]) if pack else 1
    filled = best_fit([len(p.ids) for p in pieces], shape[1], most)
    starts = range(0, len(filled), shape[0])
    batches = tuple(lay([[pieces[i] for i in row] for row in filled[b : b + shape[0]]], shape) for b in starts)
    rows = labels((piece.ids[piece.kept], piece.example, piece.segment, piece.kept) for piece in pieces)
    return Unit(number, first, len(examples), sum(len(p.ids) for p in pieces), rows, batches)


def most_segments(spec: ActivationSpec, length: int) -> int:
    """How many segments a packed row may hold."""
    return length if spec.positions == "all" else max(1, length // SHORTEST)


def capacity(spec: ActivationSpec, shape: tuple[int, int], pack: bool) -> int:
    """How many kept tokens a batch can have at most."""
    if spec.positions == "all":
        return shape[0] * shape[1]
    wanted = 1 if spec.positions == "last" else len(spec.positions)
    return shape[0] * min(shape[1], wanted * (most_segments(spec, shape[1]) if pack else 1))


def best_fit(lengths: Sequence[int], room: int, most: int) -> list[list[int]]:
    """Rows of piece indices with at most `room` tokens and `most` pieces each: longest first, each into the fullest row
    that takes it.

    Best-fit decreasing (Johnson 1973, https://hdl.handle.net/1721.1/57819): where `most` does not bind, at most 11/9 of
    the fewest rows possible, and one.
    """
    rows: list[list[int]] = []
    open_rows: list[tuple[int, int]] = []  # (free tokens, row), ascending
    for i in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        where = bisect.bisect_left(open_rows, (lengths[i], -1))
        if where < len(open_rows):
            free, row = open_rows.pop(where)
        else:
            free, row = room, len(rows)
            rows.append([])
        rows[row].append(i)
        if len(rows[row]) < most and free > lengths[i]:
            bisect.insort(open_rows, (free - lengths[i], row))
    return rows


def lay(rows: Sequence[Sequence[Piece]], shape: tuple[int, int]) -> Batch:
    """One batch of rows of pieces; the rest is padding."""
    ids, positions, segments = (np.zeros(shape, np.int32) for _ in range(3))
    at, to = [np.empty(0, np.int32)], [np.empty(0, np.int64)]
    for b, row in enumerate(rows):
        t = 0
        for segment, piece in enumerate(row, 1):
            span = slice(t, t + len(piece.ids))
            ids[b, span], positions[b, span], segments[b, span] = piece.ids, np.arange(len(piece.ids)), segment
            at.append((b * shape[1] + t + piece.kept).astype(np.int32))
            to.append(piece.row + np.arange(len(piece.kept)))
            t = span.stop
    return Batch(ids, positions, segments, np.concatenate(at), np.concatenate(to))
