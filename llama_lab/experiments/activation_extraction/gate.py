"""The gate of extraction: what a pass left on the disk, read back and held against the model run op by op."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import jax.numpy as jnp
import numpy as np

from llama_jax.checkpoint import Checkpoint
from llama_jax.plumbing.errors import UserError
from llama_lab.activations import program
from llama_lab.activations.reading import ActivationStore
from llama_lab.activations.spec import Site
from llama_lab.bench import WRONG
from llama_lab.experiments.activation_extraction.pipeline import Example

LIMIT = 1e-3  # a share of a token's vector, beyond the rounding of the dtype it is kept in
NOTHING_WRITTEN = dict(rows=0, bytes=0, error=None, reason="")


class Reference:
    """resid_post of every layer of a few examples, by the model run op by op in its own dtype, one example at a time,
    not rounded."""

    def __init__(self, loaded: Checkpoint, examples: Sequence[Example]):
        self.loaded, self.ids = loaded, [program.encode(loaded)(example) for example in examples]
        self.known: dict[int, dict[str, np.ndarray]] = {}

    def of(self, example: int) -> dict[str, np.ndarray]:
        """{site: float32 [T D]}."""
        if example not in self.known:
            ids, config = jnp.asarray([self.ids[example]], jnp.int32), self.loaded.config
            sites = [Site("resid_pre", 0), *(Site("resid_post", layer) for layer in range(config.num_hidden_layers))]
            positions = jnp.arange(ids.shape[1], dtype=jnp.int32)[None]
            found = program.tapped(self.loaded.params, ids, positions, jnp.ones_like(ids), config=config, sites=sites)
            self.known[example] = {site: np.asarray(value[0], np.float32) for site, value in found.items()}
        return self.known[example]

    def judge(self, out: Path, sites: Sequence[Site], ids: Sequence[Sequence[int]]) -> dict:
        """What a pass left in `out`: {rows, bytes, error, reason}; the reason begins with "wrong: " where it is not
        what it should be.

        All rows must belong to the right tokens; the values are compared in the examples that the reference knows.
        """
        known = min(len(self.ids), len(ids))
        try:
            store = ActivationStore.open(out)
            found = {name: store[name][:] for name in ("token", "example", "position")}
            rows = store.rows_of(range(known))
            values = {str(site): store[str(site)][rows] for site in sites}
        except UserError as error:
            return NOTHING_WRITTEN | dict(reason=f"{WRONG}no store that can be read: {error}")
        size = sum(path.stat().st_size for path in out.rglob("*") if path.is_file())
        seen = dict(rows=len(found["token"]), bytes=size, error=None)
        wanted = dict(
            token=np.concatenate(ids),
            example=np.repeat(np.arange(len(ids)), [len(i) for i in ids]),
            position=np.concatenate([np.arange(len(i)) for i in ids]),
        )
        if off := [name for name, rows in wanted.items() if not np.array_equal(found[name], rows)]:
            return seen | dict(reason=f"{WRONG}the {off[0]}s beside the rows are not the source's")
        worst, error = None, 0.0
        for site, value in values.items():
            expected = np.concatenate([self.of(example)[site] for example in range(known)])
            apart = float(beyond_rounding(value, expected).max())
            if not apart <= error:
                worst, error = site, apart
        return seen | dict(
            error=error, reason="" if error <= LIMIT else f"{WRONG}{worst} is {error:.2g} of a token's length away"
        )


def beyond_rounding(found: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """Relative error [n] of each token's vector [n D], what its dtype must round off forgiven: half a unit in the last
    place."""
    unit = float(jnp.finfo(found.dtype).eps) / 2
    wide = expected.astype(np.float64)
    apart = np.maximum(np.abs(found.astype(np.float64) - wide) - unit * np.abs(wide), 0)
    return np.linalg.norm(apart, axis=1) / np.maximum(np.linalg.norm(wide, axis=1), np.finfo(np.float64).tiny)
