"""How many drafts a pass has: the number, possibly none, that makes the most tokens per time.

A pass with k drafts makes 1 + P1 + … + Pk tokens on average, where Pi is the probability that the first i are right in
every row. It takes as long as `costs` plain steps. The depth with the largest quotient wins.

Probabilities are learned from the answer itself, for each kind of match, and separately for a draft after a right one,
because right drafts come in runs. A plain step teaches too, if the drafts are known by then: was the first of them the
token that the step made? So drafts that become right are noticed even while none is tried. If drafts cost something and
are not known then, what was learned fades until they are tried again. Older outcomes count less and less.
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
    """Outcome of the drafts so far. N: kinds of match, and last the kind of drafts after a right one."""

    trials: jax.Array  # float32 [B N], decayed
    right: jax.Array  # float32 [B N], those of them that were right
    running: jax.Array  # bool [B], whether the newest token was foretold
    passes: jax.Array  # int32 [depths], how many there were of each depth


def nothing(rows: int, priors: Sequence[float], depths: Sequence[int]) -> Learned:
    """Before the first pass."""
    none = (jnp.zeros((rows, len(priors)), jnp.float32) for _ in range(2))  # given away each on its own
    return Learned(*none, jnp.zeros(rows, bool), jnp.zeros(len(depths), jnp.int32))


def free(depths: Sequence[int]) -> np.ndarray:
    """Costs for callers without any: rows cost nothing, so a pass takes all drafts as soon as there are any."""
    return np.ones(len(depths), np.float32)


def rates(learned: Learned, priors: Sequence[float]) -> Float[Array, "B N"]:
    """How likely a draft of each kind is right."""
    weight = np.array([WEIGHT] * (len(priors) - 1) + [WEIGHT_OF_RUN], np.float32)
    return (learned.right + weight * np.array(priors, np.float32)) / (learned.trials + weight)


def kinds(learned: Learned, kind: Int[Array, " B"]) -> Bool[Array, "B N"]:
    """The kind of each row's first draft; none if nothing was found."""
    last = learned.trials.shape[1] - 1
    of = jnp.where((kind >= 0) & learned.running, last, kind)
    return of[:, None] == jnp.arange(last + 1)


def chosen(
    learned: Learned, kind: Int[Array, " B"], ends, room, depths: Sequence[int], priors: Sequence[float]
) -> Int[Array, ""]:
    """Index of the depth for a pass. kind: of the match, below 0 for none. ends: `drafts.Ends`. room: slots after the
    newest token's."""
    known, at = rates(learned, priors), jnp.arange(max(depths))
    first = jnp.sum(known * kinds(learned, kind), axis=1)
    right = first[:, None] * known[:, -1:] ** at  # [B K]: that so many are
    right = jnp.prod(jnp.where(ends.done[:, None], 1.0, right), axis=0)
    tokens = jnp.cumsum(jnp.where(at + 1 < ends.most, right, 0.0))
    each = 1.0 + jnp.concatenate([jnp.zeros(1, jnp.float32), tokens])[np.array(depths)]
    return jnp.argmax(jnp.where(np.array(depths) <= room, each / ends.costs, -1.0))


def learn(learned: Learned, kind: Int[Array, " B"], right: Int[Array, " B"], tried, index) -> Learned:
    """The state after a pass of the depth of this index. right: how many of the first `tried` drafts of each row were
    right; 0 if unknown."""
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
