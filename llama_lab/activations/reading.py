"""Reading a store: lazy columns, rows of an example or of a token, batches in stored or shuffled order, means without
reading a shard."""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from llama_jax.plumbing.errors import UserError, near
from llama_lab.activations import shards, verification
from llama_lab.activations.columns import Column
from llama_lab.activations.folder import Folder
from llama_lab.activations.folders import open_folder
from llama_lab.activations.moments import Moments, joined
from llama_lab.activations.records import Commit, Whole, as_json, commits, plain, read_commit, shard_name
from llama_lab.activations.store import INDEX, LONGEST_INDEX, RUN, read_index, read_run, read_whole, spec_of

OPEN_SHARDS = 1024  # whose headers are remembered


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
        """A store that `extract` wrote, finished or not. Raises UserError where there is none, or a record of it is
        damaged."""
        folder = open_folder(out)
        if (run := read_run(folder)) is None:
            raise UserError(
                f"There are no activations in {folder.where}: it has no {RUN}. `llama-jax extract --out` makes such a"
                " folder."
            )
        whole = read_whole(folder)
        units = indexed(folder, whole) if whole else None
        return cls(folder, run, whole, list(commits(folder).values()) if units is None else units)

    def __len__(self) -> int:
        return self.rows

    def __repr__(self) -> str:
        state = "" if self.complete else ", not finished"
        return f"ActivationStore({self.folder.where!r}: {self.rows:,} rows, {', '.join(self.sites)}{state})"

    def __getitem__(self, name: str) -> Column:
        """A site's column [rows ...], or `token`, `example`, `segment`, `position` [rows]. Raises UserError for one
        that is not there."""
        if name not in (known := (*self.sites, *shards.LABELS)):
            raise UserError(f"No {name!r} in {self.folder.where}.{near(str(name), known)}")
        label = name in shards.LABELS
        dtype = shards.LABELS[name] if label else shards.kept_as(self.run["spec"]["dtype"])
        return Column(
            name,
            dtype,
            () if label else self.run["spec"]["sites"][name],
            self._ends,
            functools.partial(self._read, name),
        )

    def site(self, name: str, layer: int | None = None) -> Column:
        """`site("resid_post", 3)` is `store["resid_post:3"]`."""
        return self[name if layer is None else f"{name}:{layer}"]

    def rows_of(self, example: int | Sequence[int]) -> np.ndarray:
        """Rows int64 of an example, or of several one after the other. Raises UserError for one that is not in the
        store."""
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
        """Rows int64 whose token, example, segment and position are what is asked for, or among it:
        `rows_where(token=262, position=0)`."""
        for name in wanted:
            if name not in shards.LABELS:
                raise UserError(f"Rows have no {name!r}.{near(name, shards.LABELS)}")
        found = [np.empty(0, np.int64)]
        for unit, commit in enumerate(self._units):
            mask = np.ones(commit.rows, bool)
            for name, values in wanted.items():
                mask &= np.isin(self._read(name, unit, 0, commit.rows), np.atleast_1d(values))
            found.append(self._ends[unit] - commit.rows + np.flatnonzero(mask))
        return np.concatenate(found)

    def example(self, number: int) -> dict[str, np.ndarray]:
        """All that is kept of one example: each site [rows ...], and its token, example, segment and position
        [rows]."""
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
        return (
            {name: column[start : start + size] for name, column in columns.items()}
            for start in range(0, self.rows, size)
        )

    def _shuffled(
        self, columns: dict[str, Column], size: int, rng: np.random.Generator, mix: int
    ) -> Iterator[dict[str, np.ndarray]]:
        left = {name: column[:0] for name, column in columns.items()}
        order = rng.permutation(self.units)
        for at in range(0, self.units, mix):
            group = [(int(unit), self._units[unit].rows) for unit in order[at : at + mix]]
            pool = {
                name: np.concatenate([left[name], *(self._read(name, u, 0, rows) for u, rows in group)])
                for name in columns
            }
            drawn = rng.permutation(len(pool["token"]))
            full = len(drawn) if at + mix >= self.units else len(drawn) - len(drawn) % size
            for start in range(0, full, size):
                yield {name: values[drawn[start : min(start + size, full)]] for name, values in pool.items()}
            left = {name: values[drawn[full:]] for name, values in pool.items()}

    def mean(self, site: str) -> np.ndarray:
        """Mean of a site over all rows, float64 [...] (one number for `pattern` and `logits`), from the commits: no
        shard is read."""
        return self.moments(site).mean

    def std(self, site: str) -> np.ndarray:
        """Standard deviation of a site over all rows, as `mean`."""
        return self.moments(site).std

    def moments(self, site: str) -> Moments:
        """Count, mean and M2 of a site over all rows. Raises UserError for an unknown site, or when there are no
        rows."""
        if site not in self.sites:
            raise UserError(f"No site {site!r} in {self.folder.where}.{near(str(site), self.sites)}")
        if site not in self._moments:
            raise UserError(f"{self.folder.where} has no rows yet, so {site} has no mean.")
        return self._moments[site]

    @functools.cached_property
    def _moments(self) -> dict[str, Moments]:
        if self.complete:
            return self._whole.moments
        merged: dict[str, Moments] = {}
        for commit in self._units:
            merged = joined(merged, read_commit(self.folder, commit.unit).moments)
        return merged

    def verify(self) -> list[verification.Problem]:
        """Everything that is wrong with the files, see `verification.verify`. Reads all of them."""
        return verification.check(self.folder).problems

    def _read(self, name: str, unit: int, start: int, stop: int) -> np.ndarray:
        """Rows start..stop of a column in the unit at this place of the list."""
        return shards.read(self.folder, shard_name(self._units[unit].unit), self._tensors(unit)[name], start, stop)

    def _read_header(self, unit: int) -> dict[str, shards.Tensor]:
        commit = self._units[unit]
        tensors = shards.read_header(self.folder, shard_name(commit.unit))
        for difference in shards.unlike(tensors, commit.rows, self.run["spec"]):
            raise UserError(
                f"{self.folder.where}/{shard_name(commit.unit)} is not this run's: {difference}. See `llama-jax"
                " verify`."
            )
        return tensors


def indexed(folder: Folder, whole: Whole) -> list[Commit] | None:
    """The commits as index.parquet has them; None unless it is the one that complete.json was written for, with the
    commits that this was written for."""
    content = folder.read(INDEX, LONGEST_INDEX)
    if content is None or hashlib.sha256(content).hexdigest() != whole.index_sha256:
        return None
    try:
        found = [Commit(**row) for row in read_index(content).select([*Commit.model_fields]).to_pylist()]
    except (pa.ArrowException, OSError, ValueError, KeyError):
        return None
    same = hashlib.sha256(as_json([plain(c) for c in found])).hexdigest() == whole.commits_sha256
    return found if same else None
