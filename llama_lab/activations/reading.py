"""Reading a store: lazy columns, rows of an example or of a token, batches in stored or shuffled order, means without
reading a shard."""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pyarrow as pa

from llama_jax.plumbing.errors import UserError, near
from llama_lab.activations import shards, verification
from llama_lab.activations.folder import Folder, open_folder
from llama_lab.activations.moments import Moments, joined
from llama_lab.activations.records import Commit, Whole, as_json, commits, plain, read_commit, shard_name
from llama_lab.activations.store import INDEX, LONGEST_INDEX, no_store, read_index, read_run, read_whole, spec_of

OPEN_SHARDS = 1024  # whose headers are remembered


class Column:
    """Rows `[rows ...]` of a store: one site, or one of the labels; only the sliced part is read. It is sliced like an
    array: a number, `a:b`, indices or a mask; what follows a comma slices the rows.

    A slice that lies in one shard is a read-only view of the file, nothing is copied. bfloat16 values are
    `ml_dtypes.bfloat16`: JAX takes them as they are, and
    `torch.from_numpy(x.copy().view(numpy.int16)).view(torch.bfloat16)` makes them PyTorch's.
    """

    def __init__(
        self,
        name: str,
        dtype: np.dtype,
        row: Sequence[int],
        ends: np.ndarray,
        read: Callable[[int, int, int], np.ndarray],
    ):
        """ends: int64 [units], the number of rows up to the end of each. read: rows start..stop of a unit."""
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
        """Raises UserError for a row that the store does not have."""
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
            asked = f"Rows of {self.name} are {rows.dtype} {list(rows.shape)}"
            raise UserError(f"{asked}; give whole numbers, or a mask of {len(self)}.")
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
        values = np.empty((len(rows), *self.shape[1:]), self.dtype)
        units = np.searchsorted(self._ends, rows, "right")
        order = np.argsort(units, kind="stable")
        for at in np.split(order, np.flatnonzero(np.diff(units[order])) + 1) if len(rows) else ():
            unit = int(units[at[0]])
            local = rows[at] - (self._ends[unit - 1] if unit else 0)
            low = int(local.min())
            values[at] = self._read(unit, low, int(local.max()) + 1)[local - low]
        return values


class ActivationStore:
    """The activations in a folder or behind a URL; `open` it.

        store = ActivationStore.open("activations")
        store["resid_post:3"][:100]                              # [100 D], a view of the file
        store["mlp_out:7"][store.rows_where(token=262)]          # of every token with this id
        for batch in store.batches("resid_post:3", 4096, shuffle=True): batch["resid_post:3"], batch["token"]

    run: the fingerprint. sites: names such as `resid_post:3`. units, examples, rows, tokens, bytes: what there is.
    complete: whether the run has finished; the rows of an unfinished one are those of the units committed so far, in
    order of units.
    """

    def __init__(self, folder: Folder, run: dict, whole: Whole | None, units: Sequence[Commit]):
        self.folder, self.run, self.spec = folder, run, spec_of(run)
        self.complete, self._whole, self._units = whole is not None and whole.units == len(units), whole, list(units)
        self.units, self.sites = len(units), tuple(run["spec"]["sites"])
        self.examples, self.rows, self.tokens, self.bytes = (
            sum(getattr(c, n) for c in units) for n in ("examples", "rows", "tokens", "bytes")
        )
        self._ends = np.cumsum([c.rows for c in units], dtype=np.int64)
        self._firsts = np.array([c.first for c in units], np.int64)
        self._tensors = functools.lru_cache(OPEN_SHARDS)(self._read_header)

    @classmethod
    def open(cls, out: str | os.PathLike) -> ActivationStore:
        """A store that `extract` wrote, finished or not. Raises UserError for none, and for damaged records."""
        folder = open_folder(out)
        if (run := read_run(folder)) is None:
            raise no_store(folder)
        whole = read_whole(folder)
        units = indexed(folder, whole) if whole else None
        return cls(folder, run, whole, list(commits(folder).values()) if units is None else units)

    def __len__(self) -> int:
        return self.rows

    def __repr__(self) -> str:
        state = "" if self.complete else ", not finished"
        return f"ActivationStore({self.folder.where!r}: {self.rows:,} rows, {', '.join(self.sites)}{state})"

    def __getitem__(self, name: str) -> Column:
        """A site's column [rows ...], or `token`, `example`, `segment`, `position` [rows]. Raises UserError for
        others."""
        if name not in (known := (*self.sites, *shards.LABELS)):
            raise UserError(f"No {name!r} in {self.folder.where}.{near(str(name), known)}")
        spec = self.run["spec"]
        row = spec["sites"].get(name, ())
        dtype = shards.LABELS[name] if name in shards.LABELS else shards.kept_as(spec["dtype"])
        return Column(name, dtype, row, self._ends, functools.partial(self._read, name))

    def site(self, name: str, layer: int | None = None) -> Column:
        """`site("resid_post", 3)` is `store["resid_post:3"]`."""
        return self[name if layer is None else f"{name}:{layer}"]

    def rows_of(self, example: int | Sequence[int]) -> np.ndarray:
        """Rows int64 of an example, or of several in turn. Raises UserError for one that is not there."""
        return np.concatenate([np.empty(0, np.int64), *map(self._rows_of, np.atleast_1d(example).tolist())])

    def _rows_of(self, example: int) -> np.ndarray:
        unit = int(np.searchsorted(self._firsts, example, "right")) - 1
        if unit < 0 or example >= self._units[unit].first + self._units[unit].examples:
            why = "" if self.complete else ", or its unit is not committed yet"
            raise UserError(f"There is no example {example} in {self.folder.where}: it holds {self.examples:,}{why}.")
        commit = self._units[unit]
        start, stop = np.searchsorted(self._read("example", unit, 0, commit.rows), [example, example + 1])
        return self._ends[unit] - commit.rows + np.arange(start, stop)

    def rows_where(self, **wanted: int | Sequence[int]) -> np.ndarray:
        """Rows int64 whose token, example, segment and position are, or are among, what is asked for:
        `rows_where(token=262)`."""
        for name in wanted:
            if name not in shards.LABELS:
                raise UserError(f"Rows have no {name!r}.{near(name, shards.LABELS)}")
        rows = [np.empty(0, np.int64)]
        for unit, commit in enumerate(self._units):
            mask = np.ones(commit.rows, bool)
            for name, values in wanted.items():
                mask &= np.isin(self._read(name, unit, 0, commit.rows), np.atleast_1d(values))
            rows.append(self._ends[unit] - commit.rows + np.flatnonzero(mask))
        return np.concatenate(rows)

    def example(self, number: int) -> dict[str, np.ndarray]:
        """Everything stored of one example: each site, and token, example, segment and position: [rows ...]."""
        rows = self.rows_of(number)
        return {name: self[name][rows] for name in (*self.sites, *shards.LABELS)}

    def batches(
        self,
        sites: str | Sequence[str] | None = None,
        size: int = 4096,
        shuffle: bool = False,
        seed: int = 0,
        mix: int = 8,
    ) -> Iterator[dict[str, np.ndarray]]:
        """Every row once, `size` at a time (the last batch may be shorter): {site: [size ...], token, example, segment,
        position: [size]}.

        sites: one, several, or all when None. shuffle: units in an order drawn from `seed`, and rows mixed across `mix`
        units at a time, which are read one after the other and held in memory: a disk reads in long runs, and memory is
        bounded by `mix` units and two batches. Rows further apart than `mix` units in the drawn order never meet in a
        batch but at the seams; more units mix better. The same seed gives the same order. Raises UserError at once for
        an unknown site, a size or a mix below 1.
        """
        if size < 1 or mix < 1:
            raise UserError(f"size is {size} and mix is {mix}; both must be at least 1.")
        names = self.sites if sites is None else (sites,) if isinstance(sites, str) else tuple(sites)
        columns = {name: self[name] for name in (*names, *shards.LABELS)}
        if shuffle:
            return self._shuffled(columns, size, np.random.default_rng(seed), mix)
        starts = range(0, self.rows, size)
        return ({name: column[start : start + size] for name, column in columns.items()} for start in starts)

    def _shuffled(
        self, columns: dict[str, Column], size: int, rng: np.random.Generator, mix: int
    ) -> Iterator[dict[str, np.ndarray]]:
        left = {name: column[:0] for name, column in columns.items()}
        order = rng.permutation(self.units)
        for at in range(0, self.units, mix):
            group = [(int(unit), self._units[unit].rows) for unit in order[at : at + mix]]
            pool = {n: np.concatenate([left[n], *(self._read(n, u, 0, rows) for u, rows in group)]) for n in columns}
            drawn = rng.permutation(len(pool["token"]))
            full = len(drawn) if at + mix >= self.units else len(drawn) - len(drawn) % size
            for start in range(0, full, size):
                yield {name: values[drawn[start : min(start + size, full)]] for name, values in pool.items()}
            left = {name: values[drawn[full:]] for name, values in pool.items()}

    def mean(self, site: str) -> np.ndarray:
        """Mean of a site over all rows, float64 [...] (one number for `pattern` and `logits`); no shard is read."""
        return self.moments(site).mean

    def std(self, site: str) -> np.ndarray:
        """Standard deviation of a site over all rows, as `mean`."""
        return self.moments(site).std

    def moments(self, site: str) -> Moments:
        """Count, mean and M2 of a site over all rows. Raises UserError for an unknown site, or no rows."""
        if site not in self.sites:
            raise UserError(f"No site {site!r} in {self.folder.where}.{near(str(site), self.sites)}")
        if site not in self._moments:
            raise UserError(f"{self.folder.where} has no rows yet, so {site} has no mean.")
        return self._moments[site]

    @functools.cached_property
    def _moments(self) -> dict[str, Moments]:
        if self.complete:
            return self._whole.moments
        return functools.reduce(joined, (read_commit(self.folder, c.unit).moments for c in self._units), {})

    def verify(self) -> list[verification.Problem]:
        """Everything that is wrong with the files, see `verification.verify`. Reads all of them."""
        return verification.check(self.folder).problems

    def _read(self, name: str, unit: int, start: int, stop: int) -> np.ndarray:
        return shards.read(self.folder, shard_name(self._units[unit].unit), self._tensors(unit)[name], start, stop)

    def _read_header(self, unit: int) -> dict[str, shards.Tensor]:
        commit = self._units[unit]
        name = shard_name(commit.unit)
        tensors = shards.read_header(self.folder, name)
        for difference in shards.unlike(tensors, commit.rows, self.run["spec"]):
            raise UserError(f"{self.folder.where}/{name} is not this run's: {difference}. See `llama-jax verify`.")
        return tensors


def indexed(folder: Folder, whole: Whole) -> list[Commit] | None:
    """The commits as index.parquet has them; None unless complete.json was written for just these."""
    content = folder.read(INDEX, LONGEST_INDEX)
    if content is None or hashlib.sha256(content).hexdigest() != whole.index_sha256:
        return None
    try:
        units = [Commit(**row) for row in read_index(content).select([*Commit.model_fields]).to_pylist()]
    except (pa.ArrowException, OSError, ValueError, KeyError):
        return None
    same = hashlib.sha256(as_json([plain(c) for c in units])).hexdigest() == whole.commits_sha256
    return units if same else None
