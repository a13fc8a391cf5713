"""A column of a store: one site, or one of the labels, over all rows; read where it is sliced, and only there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from llama_jax.plumbing.errors import UserError

Read = Callable[[int, int, int], np.ndarray]  # (unit, start, stop) → rows of the unit


class Column:
    """Rows `[rows ...]` of a store, as an array is sliced: a number, `a:b`, indices or a mask; what follows a comma
    slices the rows.

    A slice that lies in one shard is a read-only view of the file, nothing is copied. bfloat16 values are
    `ml_dtypes.bfloat16`: JAX takes them as they are, and
    `torch.from_numpy(x.copy().view(numpy.int16)).view(torch.bfloat16)` makes them PyTorch's.
    """

    def __init__(self, name: str, dtype: np.dtype, row: Sequence[int], ends: np.ndarray, read: Read):
        """ends: int64 [units], the number of rows up to the end of each. read: gives some rows of one unit."""
        self.name, self.dtype, self._ends, self._read = name, dtype, ends, read
        self.shape = (int(ends[-1]) if len(ends) else 0, *row)

    def __len__(self) -> int:
        return self.shape[0]

    def __repr__(self) -> str:
        return f"Column({self.name}, {self.dtype} {list(self.shape)})"

    def __iter__(self) -> Iterator[np.ndarray]:
        for unit, rows in enumerate(np.diff(self._ends, prepend=0)):
            yield from self._read(unit, 0, int(rows))

    def __array__(self, dtype=None, copy=None) -> np.ndarray:
        return np.array(self[:], dtype=dtype, copy=copy)

    def __getitem__(self, key) -> np.ndarray:
        """Raises UserError for a row that the store has not."""
        if isinstance(key, tuple):
            rows = self[key[0]]
            return rows[key[1:] if isinstance(key[0], int | np.integer) else (slice(None), *key[1:])]
        if isinstance(key, slice):
            start, stop, step = key.indices(len(self))
            return self._span(start, max(start, stop)) if step == 1 else self._gather(np.arange(start, stop, step))
        if isinstance(key, int | np.integer):
            row = int(self._checked(np.array([key]))[0])
            return self._span(row, row + 1)[0]
        rows = self._checked(np.asarray(key))
        if len(rows) and (np.diff(rows) == 1).all():
            return self._span(int(rows[0]), int(rows[-1]) + 1)
        return self._gather(rows)

    def _checked(self, rows: np.ndarray) -> np.ndarray:
        """Indices int64 from 0, of indices that may count from the end, or of a mask."""
        if rows.dtype == bool and rows.shape == (len(self),):
            return np.flatnonzero(rows)
        if rows.ndim != 1 or not (np.issubdtype(rows.dtype, np.integer) or not rows.size):
            raise UserError(
                f"Rows of {self.name} are asked for as {rows.dtype} {list(rows.shape)}; give whole numbers, or a mask"
                f" of {len(self)}."
            )
        rows = rows.astype(np.int64)
        if (outside := rows[(rows < -len(self)) | (rows >= len(self))]).size:
            raise UserError(f"Row {outside[0]} of {self.name} is asked for; the store has {len(self):,} rows.")
        return np.where(rows < 0, rows + len(self), rows)

    def _span(self, start: int, stop: int) -> np.ndarray:
        """Rows start..stop: a view where one shard has them all."""
        parts, unit = [], int(np.searchsorted(self._ends, start, "right"))
        while start < stop:
            begin, end = int(self._ends[unit - 1]) if unit else 0, min(int(self._ends[unit]), stop)
            if end > start:
                parts.append(self._read(unit, start - begin, end - begin))
            start, unit = end, unit + 1
        if not parts:
            return np.empty((0, *self.shape[1:]), self.dtype)
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _gather(self, rows: np.ndarray) -> np.ndarray:
        """Any rows in any order, each unit visited once."""
        found = np.empty((len(rows), *self.shape[1:]), self.dtype)
        units = np.searchsorted(self._ends, rows, "right")
        order = np.argsort(units, kind="stable")
        for at in np.split(order, np.flatnonzero(np.diff(units[order])) + 1):
            if len(at):
                unit = int(units[at[0]])
                local = rows[at] - (self._ends[unit - 1] if unit else 0)
                low = int(local.min())
                found[at] = self._read(unit, low, int(local.max()) + 1)[local - low]
        return found
