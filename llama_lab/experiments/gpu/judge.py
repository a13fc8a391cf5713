"""Are a subject's tokens right if every text is full of near-ties? bfloat16 rounds logits so coarsely, and random
weights separate them so little, that two correct implementations soon write different texts.

So each text is judged on its own: for each of its tokens, given the text's prefix, a judge's logits show how far the
token is below the best. Rounding moves logits by a few hundredths of their standard deviation; a token from wrong
arithmetic is several deviations below.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from llama_jax import generate
from llama_jax.checkpoint import Checkpoint
from llama_lab.bench import gate

TIE = 0.25  # standard deviations of the logits: at most so far below the best is a token that rounding may have chosen


class Judge:
    """PyTorch's module, op by op, on the same weights; JAX's own model op by op if there is no module."""

    def __init__(self, loaded: Checkpoint, module=None):
        self.loaded, self.module, self.known = loaded, module, {}

    def verdict(self, ids: Sequence[int], tokens: np.ndarray) -> tuple[gate.Verdict, float]:
        """Whether each token of a text [n] is the best at its place or within TIE of it, as the gate compares texts;
        and the furthest that one is below the best, in standard deviations of the logits."""
        key = (tuple(ids), gate.tokens_hash(tokens[:, None]))
        if key not in self.known:
            logits = self.logits([*ids, *tokens[:-1].tolist()], len(tokens))
            deviations = logits.std(axis=1)

            def distance(logits: np.ndarray, tokens: np.ndarray) -> np.ndarray:
                """In a unit of which the gate allows as many after a near-tie as at one, which is then TIE."""
                return gate.behind(logits, tokens) / deviations * (gate.FLIP / TIE)

            verdict = gate.compare(tokens, logits.argmax(axis=1), lambda: logits, gate.FLIP, distance)
            self.known[key] = verdict, float(np.max(gate.behind(logits, tokens) / deviations))
        return self.known[key]

    def logits(self, text: Sequence[int], last: int) -> np.ndarray:
        """Float32 [last V] after each of the last tokens of a text."""
        if self.module is None:
            return np.asarray(generate.logits(generate.build(self.loaded, "eager"), text))[-last:]
        import torch

        with torch.inference_mode():
            rows = torch.tensor([list(text)], device=self.module.device)
            return self.module(rows, use_cache=False, logits_to_keep=last).logits[0].float().cpu().numpy()
