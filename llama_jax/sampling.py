"""From logits to the next token.

Settings apply in the order that transformers uses: repetition penalty, temperature, top-k, top-p, min-p. Filtered
logits become -inf. Tokens that tie with the last one kept are kept, so that the result does not depend on token order.

What a grammar forbids (`Constrained`) is -inf before any of them: greedy takes the best token that is allowed, and
others draw from the distribution over the allowed ones.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp

from llama_jax.axes import Array, Bool, Float, Int
from llama_jax.plumbing.values import LARGEST, number, whole

if TYPE_CHECKING:
    from llama_jax.grammars import Table

TINY = 2.0**-126  # float32's least normal number: a temperature above 0 counts as this at least
LARGE = 1e30  # logits in float32 can still be multiplied and divided by this
FEW = 256  # of the best tokens: a smaller top-k draws among these, found in a sixth of the time of `keep_best` over all
SCORED = 20  # most likely tokens whose log probabilities are kept: the most that OpenAI's and Ollama's APIs offer
RANGES = {  # setting: the least and the greatest that it may be
    "temperature": (0, LARGE),
    "top_k": (0, LARGEST),
    "top_p": (1 / LARGE, 1),
    "min_p": (0, 1),
    "repetition_penalty": (1 / LARGE, LARGE),
}


@dataclass(frozen=True)
class Sampler:
    """Sampling settings. The default is greedy; any temperature above 0 draws.

    temperature: 0 is greedy. top_k: keep the k best (0: all). top_p: keep the smallest set whose probability reaches p
    (Holtzman et al. 2019, https://arxiv.org/abs/1904.09751). min_p: drop tokens below min_p times the best token's
    probability (https://arxiv.org/abs/2407.01082). repetition_penalty: divide (multiply, when negative) the logits of
    tokens already seen (https://arxiv.org/abs/1909.05858). Raises UserError for what is not within `RANGES`.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0

    def __post_init__(self):
        for name, (least, most) in RANGES.items():
            check = whole if name == "top_k" else number
            object.__setattr__(self, name, check(getattr(self, name), name, least, most))
        if 0 < self.temperature < TINY:
            object.__setattr__(self, "temperature", TINY)

    def __str__(self) -> str:
        """`greedy`, or the settings that are not the default."""
        settings = [f"{f.name.replace('_', '-')} {getattr(self, f.name):g}" for f in fields(self)
                    if getattr(self, f.name) != f.default]  # fmt: skip
        return ", ".join(settings) or "greedy"

    def traced(self) -> TracedSampler:
        """The same settings as arrays: changing them compiles nothing, and every filter is always computed."""
        kinds = {f.name: jnp.int32 if f.name == "top_k" else jnp.float32 for f in fields(Sampler)}
        return TracedSampler(**{name: jnp.asarray(getattr(self, name), kind) for name, kind in kinds.items()})


jax.tree_util.register_static(Sampler)  # static under jit: a new value is a new program, unused filters cost nothing


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class TracedSampler:
    """`Sampler` with its settings as array scalars. scored: bool, whether `Scores` are wanted; None for a program that
    cannot return them."""

    temperature: jax.Array
    top_k: jax.Array
    top_p: jax.Array
    min_p: jax.Array
    repetition_penalty: jax.Array
    scored: jax.Array | None = None


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Mask:
    """The tokens that may come next, where the host knows them, for one call. allowed: bool [B V]."""

    allowed: jax.Array


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Constrained:
    """A sampler of the tokens that a grammar allows.

    allowed: a `grammars.Table`, which a compiled loop follows by itself, a state a row (`Draw.state`); or a `Mask` of
    the next token. Both are arguments of a program: another grammar whose arrays have the same shapes compiles nothing.
    """

    settings: Sampler | TracedSampler
    allowed: Table | Mask

    def traced(self) -> Constrained:
        return replace(self, settings=self.settings.traced())

    def mask(self, draw: Draw) -> Bool[Array, "B V"]:
        """The tokens that may come next."""
        if isinstance(self.allowed, Mask):
            return self.allowed.allowed
        return self.allowed.next[draw.state][:, self.allowed.classes] >= 0

    def after(self, draw: Draw, ids: Int[Array, " B"]) -> Int[Array, " B"] | None:
        """The state of each row after these tokens."""
        if isinstance(self.allowed, Mask):
            return None
        return self.allowed.next[draw.state, self.allowed.classes[ids]].astype(jnp.int32)


def free(sampler: Sampler | TracedSampler | Constrained) -> Sampler | TracedSampler:
    """The settings alone, without a grammar."""
    return sampler.settings if isinstance(sampler, Constrained) else sampler


def start(sampler: Sampler | TracedSampler | Constrained, rows: int) -> Int[Array, " B"] | None:
    """The state of each row before its first token; None where no table is followed."""
    follows = isinstance(sampler, Constrained) and not isinstance(sampler.allowed, Mask)
    return jnp.zeros(rows, jnp.int32) if follows else None


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Scores:
    """Log probabilities: the log-softmax of the logits as the model gave them, before penalty, temperature and filters.
    Zeros where they were not wanted."""

    chosen: jax.Array  # float32 [B], of the token that was drawn
    best: jax.Array  # float32 [B K], of the SCORED most likely ones, falling
    ids: jax.Array  # int32 [B K], which those are


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Draw:
    """What sampling remembers between tokens of a batch."""

    keys: jax.Array  # PRNG keys [B], one a request
    index: jax.Array  # int32 scalar: tokens drawn so far; folded into each row's key
    seen: jax.Array | None  # bool [B V]: tokens of prompt and answer; None while no repetition penalty can need it
    scores: Scores | None = None  # of the token drawn last; None where the sampler does not say whether they are wanted
    state: jax.Array | None = None  # int32 [B], of `Constrained.allowed`; None where no table is followed


def next_token(logits: Float[Array, "B V"], draw: Draw, sampler: Sampler | TracedSampler | Constrained):
    """Choose one token a row: (ids int32 [B], draw). A row's choice depends on its own key, index and logits only."""
    with jax.named_scope("sample"):
        settings, logits, state = free(sampler), logits.astype(jnp.float32), None
        traced, allowed = isinstance(settings, TracedSampler), logits
        if isinstance(sampler, Constrained):
            allowed = jnp.where(sampler.mask(draw), logits, -jnp.inf)
        ids = (_traced if traced else _static)(allowed, draw, settings)
        if isinstance(sampler, Constrained):
            state = sampler.after(draw, ids)
        wanted = settings.scored if traced else None
        scores = None if wanted is None else jax.lax.cond(wanted, scored, unscored, logits, ids)
        return ids, replace(draw, index=draw.index + 1, scores=scores, state=state)


def scored(logits: Float[Array, "B V"], ids: Int[Array, " B"], most: int = SCORED) -> Scores:
    """Log probabilities of the tokens drawn and of the `most` most likely ones. Among equal ones the lowest id comes
    first."""
    values = jax.nn.log_softmax(logits, axis=-1)
    best, which = jax.lax.top_k(values, min(most, logits.shape[-1]))
    return Scores(jnp.take_along_axis(values, ids[:, None], axis=-1)[:, 0], best, which)


def unscored(logits: Float[Array, "B V"], ids: Int[Array, " B"]) -> Scores:
    """Zeros in the place of `scored`."""
    shape = len(logits), min(SCORED, logits.shape[-1])
    return Scores(jnp.zeros(shape[0], jnp.float32), jnp.zeros(shape, jnp.float32), jnp.zeros(shape, jnp.int32))


def is_greedy(sampler: Sampler | TracedSampler | Constrained) -> bool:
    """Whether the sampler always takes the largest of the unchanged logits. Known before any token is made."""
    return isinstance(sampler, Sampler) and sampler.temperature == 0 and sampler.repetition_penalty == 1.0


def mark(
    seen: Bool[Array, "B V"] | None, ids: Int[Array, "B T"], slot, pad: Int[Array, " B"]
) -> Bool[Array, "B V"] | None:
    """`seen` with these tokens added; those in the first `pad` slots of a row are padding and are left out."""
    if seen is None:
        return None
    real = slot + jnp.arange(ids.shape[1])[None, :] >= pad[:, None]
    return seen.at[jnp.arange(ids.shape[0])[:, None], ids].max(real)


def _static(logits, draw: Draw, s: Sampler) -> Int[Array, " B"]:
    if s.repetition_penalty != 1.0:
        logits = penalise(logits, draw.seen, s.repetition_penalty)
    if s.temperature == 0:
        return greedy(logits)
    return drawn(soften(logits, s.temperature), draw, s)


def _traced(logits, draw: Draw, s: TracedSampler) -> Int[Array, " B"]:
    logits = penalise(logits, draw.seen, s.repetition_penalty)
    return jax.lax.cond(s.temperature == 0, _traced_greedy, _traced_draw, logits, draw, s)


# The branches of `lax.cond` are functions of the module: a closure made at each call would compile at each call.
def _traced_greedy(logits, draw: Draw, s: TracedSampler) -> Int[Array, " B"]:
    return greedy(logits)


def _traced_draw(logits, draw: Draw, s: TracedSampler) -> Int[Array, " B"]:
    return drawn(soften(logits, jnp.where(s.temperature == 0, 1.0, s.temperature)), draw, s)


def drawn(logits: Float[Array, "B V"], draw: Draw, s: Sampler | TracedSampler) -> Int[Array, " B"]:
    """Draw from the softened logits that the filters keep. Nothing is sorted: where the FEW best hold all that top-k
    keeps, the draw is among them, with the noise that each has in a draw among all; so the token is the same."""
    if logits.shape[-1] <= FEW or (isinstance(s, Sampler) and not 0 < s.top_k < FEW):
        return _among_all(logits, None, None, draw, s)
    # behind the barrier, since XLA sorts the vocabulary where it sees that only some of what top_k gives is used
    best, ids = jax.lax.optimization_barrier(jax.lax.top_k(logits, FEW))
    least = jnp.take(best, jnp.clip(s.top_k, 1, FEW) - 1, axis=-1)
    held = (s.top_k > 0) & (s.top_k < FEW) & jnp.all(best[:, -1] < least)
    return jax.lax.cond(held, _among_few, _among_all, logits, best, ids, draw, s)


def _among_all(logits, best, ids, draw: Draw, s: Sampler | TracedSampler) -> Int[Array, " B"]:
    return categorical(narrow(logits, s), draw)


def _among_few(logits, best, ids, draw: Draw, s: Sampler | TracedSampler) -> Int[Array, " B"]:
    noise = jax.vmap(lambda key: jax.random.gumbel(key, logits.shape[1:]))(keys_now(draw))
    choice = jnp.argmax(narrow(best, s) + jnp.take_along_axis(noise, ids, axis=-1), axis=-1, keepdims=True)
    return jnp.take_along_axis(ids, choice, axis=-1)[:, 0].astype(jnp.int32)


def narrow(logits: Float[Array, "B V"], s: Sampler | TracedSampler) -> Float[Array, "B V"]:
    """-inf for what the filters leave out of softened logits."""
    for wanted, keep, setting in (
        (s.top_k > 0, keep_top_k, s.top_k),
        (s.top_p < 1, keep_top_p, s.top_p),
        (s.min_p > 0, keep_min_p, s.min_p),
    ):
        if isinstance(wanted, jax.Array):
            logits = jax.lax.cond(wanted, keep, _unfiltered, logits, setting)
        elif wanted:
            logits = keep(logits, setting)
    return logits


def _unfiltered(logits, setting):
    return logits


def greedy(logits: Float[Array, "... V"]) -> Int[Array, " ..."]:
    """The best token; the lowest id among equals."""
    return jnp.argmax(logits, axis=-1).astype(jnp.int32)


def soften(logits: Float[Array, "B V"], temperature) -> Float[Array, "B V"]:
    """Logits over temperature, shifted so that the best is 0: no temperature above 0 is too small to divide by."""
    return (logits - jnp.max(logits, axis=-1, keepdims=True)) / temperature


def penalise(logits: Float[Array, "B V"], seen: Bool[Array, "B V"], penalty) -> Float[Array, "B V"]:
    """Make tokens already seen less likely, whatever the sign of their logit."""
    return jnp.where(seen, jnp.where(logits > 0, logits / penalty, logits * penalty), logits)


def keep_top_k(logits: Float[Array, "B V"], k) -> Float[Array, "B V"]:
    """-inf outside the k best. k may exceed V."""
    return keep_best(logits, jnp.ones_like(logits), k)


def keep_top_p(logits: Float[Array, "B V"], p) -> Float[Array, "B V"]:
    """-inf outside the smallest set of best tokens whose probability reaches p; the best token always stays."""
    return keep_best(logits, jax.nn.softmax(logits, axis=-1), p)


def keep_best(logits: Float[Array, "B V"], weights: Float[Array, "B V"], enough) -> Float[Array, "B V"]:
    """-inf outside the smallest set of best tokens whose weights add up to `enough`, a number above 0.

    A token stays if the better ones weigh less than `enough`. The least such logit is found by bisection over float32's
    bit patterns, at most 32 sums; sorting a vocabulary takes ten times as long on a CPU.
    """
    most = _ordered(jnp.max(logits, axis=-1, keepdims=True))
    least = jnp.broadcast_to(_ordered(jnp.float32(-jnp.inf)), most.shape)
    span = jax.lax.while_loop(_open, _halved, (least, most, logits, weights, jnp.asarray(enough, jnp.float32)))
    return jnp.where(logits < _float(span[1]), -jnp.inf, logits)


# What better ones than `low` weigh is enough (or `low` is -inf); what better ones than `high` weigh is not.
def _open(span) -> Bool[Array, ""]:
    low, high, *_ = span
    return jnp.any(low + 1 < high)


def _halved(span):
    low, high, logits, weights, enough = span
    middle = (low >> 1) + (high >> 1) + (low & high & 1)
    reached = jnp.sum(jnp.where(logits > _float(middle), weights, 0), axis=-1, keepdims=True) >= enough
    return jnp.where(reached, middle, low), jnp.where(reached, high, middle), logits, weights, enough


def _ordered(values: Float[Array, ...]) -> Int[Array, ...]:
    """The bits of float32 as integers of the same order."""
    bits = jax.lax.bitcast_convert_type(values, jnp.int32)
    return jnp.where(bits < 0, bits ^ 0x7FFFFFFF, bits)


def _float(ordered: Int[Array, ...]) -> Float[Array, ...]:
    """What `_ordered` gives these integers for."""
    return jax.lax.bitcast_convert_type(jnp.where(ordered < 0, ordered ^ 0x7FFFFFFF, ordered), jnp.float32)


def keep_min_p(logits: Float[Array, "B V"], p) -> Float[Array, "B V"]:
    """-inf where the probability is below p times the best one."""
    return jnp.where(logits < jnp.max(logits, axis=-1, keepdims=True) + jnp.log(p), -jnp.inf, logits)


def categorical(logits: Float[Array, "B V"], draw: Draw) -> Int[Array, " B"]:
    """Draw from softmax(logits), each row with its own key (Gumbel-max)."""
    return jax.vmap(jax.random.categorical)(keys_now(draw), logits).astype(jnp.int32)


def keys_now(draw: Draw) -> Array:
    """Each row's key for the token that is drawn next."""
    return jax.vmap(lambda key: jax.random.fold_in(key, draw.index))(draw.keys)
