"""The tokens that a subject must have made."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import jax
import numpy as np

from llama_jax import generate, sampling
from llama_jax.checkpoint import Checkpoint
from llama_jax.sampling import Sampler
from llama_lab.bench import gate
from llama_lab.bench.arithmetic import Arithmetic
from llama_lab.bench.workload import Workload, encoder

if TYPE_CHECKING:
    from llama_lab.bench.record import Trial


class Reference:
    """The tokens every subject must produce: those of the `step` placement of the subject's own arithmetic (its dtypes
    and quantised forms of weights and KV cache, its kernels), under the workload's sampler and seed.

    Its own logits say whether a difference stands at a near-tie. Who samples with another generator of random numbers
    must make tokens that are as likely as the reference's (`gate.likely`).
    """

    def __init__(self, checkpoint: Checkpoint, workload: Workload):
        self.checkpoint, self.workload, self.encode = checkpoint, workload, encoder(checkpoint)
        self.engines: dict[tuple[str, str], generate.Engine] = {}
        self.known: dict[tuple[int, str, str, Sampler, int], np.ndarray] = {}
        self.verdicts: dict[tuple, gate.Verdict] = {}

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
        """Take greedy tokens [n] that another process made as those of a prompt."""
        self.known[prompt, dtype, "none", generate.GREEDY, 0] = np.array(tokens)

    def logits(self, prompt: int, tokens: np.ndarray, dtype: str = "float32", quantisation: str = "none") -> jax.Array:
        """Logits [n V] before each of these tokens [n], given the prompt and the tokens before it."""
        text = np.clip(tokens[:-1], 0, self.checkpoint.config.vocab_size - 1).tolist()
        ids = self.encode(self.workload.prompts[prompt]) + text
        return generate.logits(self.engine(dtype, quantisation), ids)[-len(tokens) :]

    def judge(self, record: Trial, tokens: np.ndarray, sampler: Sampler | None = None) -> Trial:
        """The record, void when any row's tokens are not the reference's; a compilation's reason stays first. sampler:
        the subject's own, where it has one.

        One that computes in fewer bits than any reference here makes a text of its own: where it parts is said, and its
        quality is measured as a distribution (`quality`).
        """
        if not record.token_times_ns:  # it failed, and says why
            return record
        sampler = sampler or self.workload.sampler
        if gate.approximate(record.quantisation):
            known = self.tokens(record.prompt)
            verdicts = [gate.Verdict(True, gate.parting(row, known)) for row in tokens.T]
        else:
            verdicts = [self.verdict(record, i, row, sampler) for i, row in enumerate(tokens.T)]
        reasons = dict.fromkeys(filter(None, (record.reason, *(v.reason for v in verdicts))))
        valid = record.valid and all(v.passed for v in verdicts)
        return record.model_copy(update=dict(valid=valid, reason="; ".join(reasons)))

    def verdict(self, record: Trial, row: int, tokens: np.ndarray, sampler: Sampler) -> gate.Verdict:
        """What the gate says of one row of tokens [n]. The same answer as before is not looked at again."""
        kind = record.dtype, record.quantisation
        key = (record.prompt, row, tokens.tobytes(), kind, sampler, record.backend)
        if key not in self.verdicts:
            work, near = self.workload, gate.near_tie(record.quantisation)
            prompt, seed = self.encode(work.prompts[record.prompt]), work.seed + row
            logits = partial(self.logits, record.prompt, tokens, *kind)
            drawn = partial(gate.behind_drawn, sampler=sampler, seed=seed, prompt=prompt, near=near)
            if sampling.is_greedy(sampler):
                known = gate.compare(tokens, self.tokens(record.prompt, *kind), logits, near)
            elif record.backend != "jax" and sampler.temperature:
                known = gate.likely(tokens, work.new_tokens, logits, sampler, prompt)
            else:
                known = gate.compare(tokens, self.tokens(record.prompt, *kind, sampler, seed), logits, near, drawn)
            self.verdicts[key] = known
        return self.verdicts[key]
