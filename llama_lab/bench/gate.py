"""The gate: a time counts only if the tokens are the reference's.

Sampled tokens must be the reference's too if both draw with the same keys: a draw is the best of logits plus known
noise (Gumbel-max, https://arxiv.org/abs/1411.0030). Tokens from another random generator are judged by their likelihood
(`likely`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np

from llama_jax import generate, sampling
from llama_jax.checkpoint import Checkpoint
from llama_jax.sampling import Sampler
from llama_lab.bench import WRONG
from llama_lab.bench.arithmetic import Arithmetic
from llama_lab.bench.workload import Workload, encoder

if TYPE_CHECKING:
    from llama_lab.bench.record import Trial

PARTS = "parts from float32"  # how the reason of an approximate subject's trial begins
NEAR_TIE = 1e-3  # logits this close to the reference's best: float32 rounding may decide either way
# Where activations are rounded to 8 bits a float32 rounding takes one of them to its neighbour, and each layer makes
# more of it: at 1,024 positions of two texts the distance of the two best logits moved by 0.09 (median) between
# step+gemv and layer+gemv, and by 0.71 at most on one processor, 0.89 on another.
FLIP = 1.0
EDGE = 1e-4  # of probability: this close to top-p's edge rounding decides which side a token is on
SIGMAS = 5  # standard deviations by which the likelihood of a sampled text may differ from what is expected


@dataclass(frozen=True)
class Verdict:
    passed: bool
    reason: str = ""


def wrong(reason: str) -> Verdict:
    return Verdict(False, WRONG + reason)


def tokens_hash(tokens: np.ndarray) -> str:
    """SHA-256 of token ids [n B] as little-endian int32, row by row."""
    return hashlib.sha256(np.ascontiguousarray(tokens.T, "<i4").tobytes()).hexdigest()


def behind(logits: np.ndarray, tokens: np.ndarray) -> np.ndarray:
    """How far each token [n] is behind the best of the reference's logits [n V]; infinite for an invalid token."""
    logits, known = np.asarray(logits, np.float64), (tokens >= 0) & (tokens < logits.shape[1])
    chosen = logits[np.arange(len(tokens)), np.where(known, tokens, 0)]
    return np.where(known, logits.max(-1) - chosen, np.inf)


def softened(logits: np.ndarray, tokens: np.ndarray, sampler: Sampler, prompt: Sequence[int]) -> jax.Array:
    """Logits [n V] before each of these tokens [n] as the sampler has them before it filters and draws."""
    values = jnp.asarray(logits, jnp.float32)
    if sampler.repetition_penalty != 1:
        seen = np.zeros(values.shape, bool)
        seen[:, list(prompt)] = True
        for i, token in enumerate(tokens[:-1]):
            seen[i + 1 :, token % values.shape[1]] = True
        values = sampling.penalise(values, seen, sampler.repetition_penalty)
    return sampling.soften(values, sampler.temperature or 1.0)


def least(values: jax.Array, sampler: Sampler, more: float = 0.0) -> jax.Array:
    """The least softened logit [n 1] that the filters keep, top-p being `more` than it is."""
    moved = min(1.0, max(sampler.top_p + more, EDGE)) if sampler.top_p < 1 else 1.0
    kept = sampling.narrow(values, replace(sampler, top_p=moved))
    return jnp.min(jnp.where(jnp.isneginf(kept), jnp.inf, kept), -1, keepdims=True)


def behind_drawn(
    logits: np.ndarray, tokens: np.ndarray, sampler: Sampler, seed: int, prompt: Sequence[int], near: float = NEAR_TIE
) -> np.ndarray:
    """As `behind`, of tokens [n] drawn with this seed: behind the best of logits with the draw's noise, among those
    that the filters keep; infinite for one that they leave out. Within `near` of a filter's edge both are right."""
    values, known = softened(logits, tokens, sampler, prompt), (tokens >= 0) & (tokens < logits.shape[1])
    sure = allowed = jnp.ones(values.shape, bool)
    scale = sampler.temperature or 1.0
    drawn = values
    if sampler.temperature:
        keys = jax.vmap(lambda i: jax.random.fold_in(jax.random.key(seed), i))(jnp.arange(len(tokens)))
        drawn = values + jax.vmap(lambda key: jax.random.gumbel(key, values.shape[1:]))(keys)
        sure = values >= least(values, sampler, -EDGE) + near / scale
        allowed = values >= least(values, sampler, EDGE) - near / scale
    at = np.arange(len(tokens)), np.where(known, tokens, 0)
    drawn = np.asarray(drawn, np.float64)
    best = np.where(np.asarray(sure), drawn, -np.inf).max(-1)
    return np.where(known & np.asarray(allowed)[at], np.maximum(best - drawn[at], 0) * scale, np.inf)


def likely(
    tokens: np.ndarray, count: int, logits: Callable[[], np.ndarray], sampler: Sampler, prompt: Sequence[int]
) -> Verdict:
    """Whether tokens [n] that another generator drew are such as this sampler draws: as many as asked for, none that
    its filters leave out, and the text about as likely as its texts are on average.

    A text's surprise is the sum of -log p over its tokens. Its mean is the sum of the entropies, its variance the sum
    of their variances. Greedy tokens or another temperature show as too little or too much surprise. One rare token can
    shift a short text far, so it is wrong only if that much or little is improbable (`chance`).
    """
    if len(tokens) != count:
        return wrong(f"{len(tokens)} tokens, {count} were asked for")
    raw = np.asarray(logits())
    if len(strange := np.flatnonzero((tokens < 0) | (tokens >= raw.shape[1]))):
        return wrong(f"token {strange[0]} is {tokens[strange[0]]}, outside the vocabulary")
    values, at = softened(raw, tokens, sampler, prompt), (np.arange(len(tokens)), tokens)
    allowed = np.asarray(values >= least(values, sampler, EDGE) - NEAR_TIE / sampler.temperature)[at]
    if not allowed.all():
        k = int(np.argmin(allowed))
        return wrong(f"token {k} is {tokens[k]}, which this sampler leaves out there")
    kept = np.asarray(sampling.narrow(values, sampler), np.float64)
    norm = np.log(np.exp(kept).sum(-1))
    p, surprise = np.exp(kept - norm[:, None]), norm - np.asarray(values, np.float64)[at]
    mine = np.where(p > 0, norm[:, None] - kept, 0)
    entropy = (p * mine).sum(-1)
    spread = np.sqrt(((p * mine**2).sum(-1) - entropy**2).clip(0).sum())
    off = abs((surprise - entropy).sum())
    if off > SIGMAS * spread + EDGE * len(tokens) and chance(p, mine, surprise.sum()) < np.exp(-(SIGMAS**2) / 2):
        usual = f"this sampler's is {entropy.sum():.1f} with a deviation of {spread:.1f}"
        return wrong(f"its text's surprise is {surprise.sum():.1f} where {usual}")
    return Verdict(True)


def chance(p: np.ndarray, mine: np.ndarray, surprise: float) -> float:
    """At most how probable so much surprise, or more, is; or so little, where it is less than expected.

    p, mine [n V]: probabilities of each token and what it surprises by. Chernoff's bound: for any x > 0, P(S >= s) is
    no more than exp(-x s) E[exp(x S)], and texts of independent tokens multiply. exp(-SIGMAS^2 / 2) is what it says of
    a normal distribution at SIGMAS.
    """
    sign = 1 if surprise > (p * mine).sum() else -1
    tilts = np.linspace(0.05, 1, 20) if sign > 0 else np.geomspace(0.05, 32, 20)
    bounds = [np.log((p * np.exp(sign * tilt * mine)).sum(-1)).sum() - sign * tilt * surprise for tilt in tilts]
    return float(np.exp(min(0.0, *bounds)))


def approximate(quantisation: str) -> bool:
    """Whether a subject of this quantisation may make other tokens than the reference; see
    `Arithmetic.is_approximate`."""
    return Arithmetic.read(quantisation).is_approximate


def near_tie(quantisation: str) -> float:
    """How close to the reference's best logit a token must be to count as right under this quantisation."""
    return FLIP if Arithmetic.read(quantisation).kernels else NEAR_TIE


def parting(tokens: np.ndarray, reference: np.ndarray) -> str:
    """Where an approximate subject's row of tokens [n] diverges from the reference's, in words; "" if it never does."""
    shared = min(len(tokens), len(reference))
    differs = np.flatnonzero(tokens[:shared] != reference[:shared])
    if len(differs):
        return f"{PARTS} at token {int(differs[0])}"
    return "" if len(tokens) == len(reference) else f"{PARTS} at token {shared}"


def compare(
    tokens: np.ndarray,
    reference: np.ndarray,
    logits: Callable[[], np.ndarray],
    near: float = NEAR_TIE,
    distance: Callable[[np.ndarray, np.ndarray], np.ndarray] = behind,
) -> Verdict:
    """Compare one row of tokens [n] with the reference's.

    logits(): the reference's [n V] before each of these tokens, called only if they differ. The first difference must
    be a near-tie (`near`): both tokens that close to the best. After it the texts differ, and every token must be close
    to the reference's best on its own text. distance(logits, tokens): how far each token is from the best, `behind` for
    greedy ones, `behind_drawn` for sampled ones.
    """
    if len(tokens) != len(reference):
        return wrong(f"{len(tokens)} tokens, the reference has {len(reference)}")
    differs = np.flatnonzero(tokens != reference)
    if not len(differs):
        return Verdict(True)
    k, known = int(differs[0]), np.asarray(logits())
    distances = distance(known, tokens)
    other = distance(known, np.where(np.arange(len(tokens)) == k, reference, tokens))[k]
    if not max(distances[k], other) <= near:
        return wrong(f"token {k} is {tokens[k]}, the reference has {reference[k]}")
    far = k + np.flatnonzero(~(distances[k:] <= max(near, FLIP)))
    if len(far):
        late = f"token {far[0]} is {tokens[far[0]]}, far from the reference's best"
        return wrong(f"after a near-tie at token {k}, {late}")
    return Verdict(True, f"near-tie at token {k}")


class Reference:
    """The tokens every subject must produce: those of the `step` placement of the subject's own arithmetic (its dtypes
    and quantised forms of weights and KV cache, its kernels), under the workload's sampler and seed.

    Its own logits decide whether a difference is a near-tie. A subject with another random number generator must make
    tokens that are as likely as the reference's (`likely`).
    """

    def __init__(self, checkpoint: Checkpoint, workload: Workload):
        self.checkpoint, self.workload, self.encode = checkpoint, workload, encoder(checkpoint)
        self.engines: dict[tuple[str, str], generate.Engine] = {}
        self.known: dict[tuple[int, str, str, Sampler, int], np.ndarray] = {}
        self.verdicts: dict[tuple, Verdict] = {}

    def engine(self, dtype: str, quantisation: str = "none") -> generate.Engine:
        if (dtype, quantisation) not in self.engines:
            placement = Arithmetic.read(quantisation).step(dtype)
            self.engines[dtype, quantisation] = generate.build(self.checkpoint, placement)
        return self.engines[dtype, quantisation]

    def tokens(
        self,
        prompt: int,
        dtype: str = "float32",
        quantisation: str = "none",
        sampler: Sampler = generate.GREEDY,
        seed: int = 0,
    ) -> np.ndarray:
        """The tokens [n] of a prompt; seed: of the draws."""
        key = (prompt, dtype, quantisation, sampler, seed)
        if key not in self.known:
            ids, w = self.encode(self.workload.prompts[prompt]), self.workload
            blocks = generate.stream(
                self.engine(dtype, quantisation), [ids], w.new_tokens, sampler, seed, length=w.length, slots=w.slots
            )
            self.known[key] = np.concatenate(list(blocks))[:, 0]
        return self.known[key]

    def expect(self, prompt: int, tokens: Sequence[int], dtype: str = "float32") -> None:
        """Use greedy tokens [n] from another process as those of a prompt."""
        self.known[prompt, dtype, "none", generate.GREEDY, 0] = np.array(tokens)

    def logits(self, prompt: int, tokens: np.ndarray, dtype: str = "float32", quantisation: str = "none") -> jax.Array:
        """Logits [n V] before each of these tokens [n], given the prompt and the tokens before it."""
        text = np.clip(tokens[:-1], 0, self.checkpoint.config.vocab_size - 1).tolist()
        ids = self.encode(self.workload.prompts[prompt]) + text
        return generate.logits(self.engine(dtype, quantisation), ids)[-len(tokens) :]

    def judge(self, record: Trial, tokens: np.ndarray, sampler: Sampler | None = None) -> Trial:
        """The record, void when any row's tokens are not the reference's; a compilation's reason stays first. sampler:
        the subject's own, where it has one.

        A subject with fewer bits than any reference here makes different text: the record says where it diverges, and
        its quality is measured as a distribution (`quality`).
        """
        if not record.token_times_ns:  # it failed, and says why
            return record
        sampler = sampler or self.workload.sampler
        if approximate(record.quantisation):
            known = self.tokens(record.prompt)
            verdicts = [Verdict(True, parting(row, known)) for row in tokens.T]
        else:
            verdicts = [self.verdict(record, i, row, sampler) for i, row in enumerate(tokens.T)]
        reasons = dict.fromkeys(filter(None, (record.reason, *(v.reason for v in verdicts))))
        valid = record.valid and all(v.passed for v in verdicts)
        return record.model_copy(update=dict(valid=valid, reason="; ".join(reasons)))

    def verdict(self, record: Trial, row: int, tokens: np.ndarray, sampler: Sampler) -> Verdict:
        """The gate's verdict on one row of tokens [n]. An answer that was already judged is not judged again."""
        kind = record.dtype, record.quantisation
        key = (record.prompt, row, tokens.tobytes(), kind, sampler, record.backend)
        if key not in self.verdicts:
            work, near = self.workload, near_tie(record.quantisation)
            prompt, seed = self.encode(work.prompts[record.prompt]), work.seed + row
            logits = partial(self.logits, record.prompt, tokens, *kind)
            drawn = partial(behind_drawn, sampler=sampler, seed=seed, prompt=prompt, near=near)
            if sampling.is_greedy(sampler):
                known = compare(tokens, self.tokens(record.prompt, *kind), logits, near)
            elif record.backend != "jax" and sampler.temperature:
                known = likely(tokens, work.new_tokens, logits, sampler, prompt)
            else:
                known = compare(tokens, self.tokens(record.prompt, *kind, sampler, seed), logits, near, drawn)
            self.verdicts[key] = known
        return self.verdicts[key]
