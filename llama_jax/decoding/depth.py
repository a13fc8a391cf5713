"""How many drafts a pass has: so many that it makes the most tokens for its time, none included.

A pass with k drafts makes 1 + P1 + … + Pk tokens on average, Pi being the probability that the first i are right in
every row, and takes as long as `costs` plain steps. The depth with the largest quotient is taken.

Probabilities are learned from the answer itself, for each kind of what a proposer finds, and apart from them for a
draft after one that was right: such come in runs. A plain step teaches as well where the drafts are known by then: was
the first of them the token that it made? So drafts that begin to be right are noticed while none is tried. Where drafts
cost something, and are not known then, what was learned fades until they are tried again. What was long ago counts less
and less.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np

from llama_jax.axes import Array, Bool, Float, Int

WEIGHT, WEIGHT_OF_RUN = 2.0, 1.0  # trials that a prior counts for; a run shows soon how long it is
DECAY, DECAY_OF_RUN = 0.85, 0.95  # what a trial leaves of those before it
FORGETTING = 0.97  # what a plain step does that cannot say whether drafts had been right: they are tried again some day


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Learned:
    """What became of the drafts so far. N: kinds of what is found, and behind them that of drafts after a right one."""

    trials: jax.Array  # float32 [B N], decayed
    right: jax.Array  # float32 [B N], those of them that were right
    running: jax.Array  # bool [B], whether the newest token was foretold
    passes: jax.Array  # int32 [depths], how many there were of each depth


def nothing(rows: int, priors: Sequence[float], depths: Sequence[int]) -> Learned:
    """Before the first pass."""
    none = (jnp.zeros((rows, len(priors)), jnp.float32) for _ in range(2))  # given away each on its own
    return Learned(*none, jnp.zeros(rows, bool), jnp.zeros(len(depths), jnp.int32))


def free(depths: Sequence[int]) -> np.ndarray:
    """Costs for callers who know none: rows cost nothing, so that a pass has all drafts as soon as there are any."""
    return np.ones(len(depths), np.float32)


def rates(learned: Learned, priors: Sequence[float]) -> Float[Array, "B N"]:
    """How likely a draft of each kind is right."""
    weight = np.array([WEIGHT] * (len(priors) - 1) + [WEIGHT_OF_RUN], np.float32)
    return (learned.right + weight * np.array(priors, np.float32)) / (learned.trials + weight)


def kinds(learned: Learned, kind: Int[Array, " B"]) -> Bool[Array, "B N"]:
    """Which of the kinds each row's first draft is of; none where nothing was found."""
    last = learned.trials.shape[1] - 1
    of = jnp.where((kind >= 0) & learned.running, last, kind)
    return of[:, None] == jnp.arange(last + 1)


def chosen(
    learned: Learned, kind: Int[Array, " B"], ends, room, depths: Sequence[int], priors: Sequence[float]
) -> Int[Array, ""]:
    """Which of the depths a pass has. kind: of what was found, below 0 if that is nothing. ends: `drafts.Ends`.
    room: slots behind the newest token's."""
    known, at = rates(learned, priors), jnp.arange(max(depths))
    first = jnp.sum(known * kinds(learned, kind), axis=1)
    right = first[:, None] * known[:, -1:] ** at  # [B K]: that so many are
    right = jnp.prod(jnp.where(ends.done[:, None], 1.0, right), axis=0)
    tokens = jnp.cumsum(jnp.where(at + 1 < ends.most, right, 0.0))
    each = 1.0 + jnp.concatenate([jnp.zeros(1, jnp.float32), tokens])[np.array(depths)]
    return jnp.argmax(jnp.where(np.array(depths) <= room, each / ends.costs, -1.0))


def learn(learned: Learned, kind: Int[Array, " B"], right: Int[Array, " B"], tried, index) -> Learned:
    """After a pass of the depth of this index. right: how many drafts of each row were, of the first `tried` ones; 0
    where nobody knows."""
    of, last = kinds(learned, kind) & (tried > 0), jnp.arange(learned.trials.shape[1]) == learned.trials.shape[1] - 1
    after = jnp.where((kind >= 0)[:, None] & last, jnp.maximum(right - 1, 0)[:, None], 0)
    wrong = last & (right > 0)[:, None] & (right < tried)[:, None]
    trials = of + after + wrong
    kept = jnp.where(tried > 0, jnp.where(last, DECAY_OF_RUN, DECAY) ** trials, FORGETTING)
    return replace(
        learned,
        trials=learned.trials * kept + trials,
        right=learned.right * kept + of * (right > 0)[:, None] + after,
        running=(kind >= 0) & (tried > 0) & (right == tried),
        passes=learned.passes + (jnp.arange(len(learned.passes)) == index),
    )
