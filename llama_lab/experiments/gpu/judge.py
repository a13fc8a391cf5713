"""Are a subject's tokens right where every text is full of near-ties? bfloat16 rounds logits so coarsely, and random
weights leave so little between them, that two right implementations soon write two texts.

So each text is judged by itself: at every one of its tokens, on the text's own prefix, a judge's logits say how far the
token is below the best. Rounding moves logits by a few hundredths of their standard deviation; a token chosen by wrong
arithmetic is several deviations down.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from llama_jax import generate
from llama_jax.checkpoint import Checkpoint
from llama_lab.bench import WRONG, gate

TIE = 0.25  # standard deviations of the logits: at most so far below the best is a token that rounding may have chosen


class Judge:
    """PyTorch's module, op by op, on the same weights; JAX's own model op by op where there is no module."""

    def __init__(self, loaded: Checkpoint, module=None):
        self.loaded, self.module, self.known = loaded, module, {}

    def gap(self, ids: Sequence[int], tokens: np.ndarray) -> float:
        """The furthest that a token of the text [n] is below the best at its place, in standard deviations of the
        logits."""
        key = (tuple(ids), gate.tokens_hash(tokens[:, None]))
        if key not in self.known:
            text = [*ids, *tokens[:-1].tolist()]
            logits = self.by_torch(text, len(tokens)) if self.module is not None else self.by_jax(text, len(tokens))
            self.known[key] = float(np.max(gate.behind(logits, tokens) / logits.std(axis=1)))
        return self.known[key]

    def by_torch(self, text: Sequence[int], last: int) -> np.ndarray:
        """Float32 logits [last V] after each of the last tokens of a text."""
        import torch

        with torch.inference_mode():
            rows = torch.tensor([list(text)], device=self.module.device)
            return self.module(rows, use_cache=False, logits_to_keep=last).logits[0].float().cpu().numpy()

    def by_jax(self, text: Sequence[int], last: int) -> np.ndarray:
        return np.asarray(generate.logits(generate.build(self.loaded, "eager"), text))[-last:]


def verdict(tokens: np.ndarray, expected: np.ndarray, gap: float, baseline: str) -> dict:
    """The fields of a record that say whether tokens [n] are right: {valid, reason, agreed, gap}.

    agreed: tokens until it parts from the baseline's text.
    """
    same = tokens == expected
    agreed = len(tokens) if same.all() else int(np.argmin(same))
    if gap > TIE:
        return dict(
            valid=False,
            agreed=agreed,
            gap=gap,
            reason=f"{WRONG}a token is {gap:.1f} standard deviations below the best",
        )
    parts = f"near-tie of bfloat16 at token {agreed}: another text than {baseline}'s, right by its own prefix"
    return dict(valid=True, agreed=agreed, gap=gap, reason="" if agreed == len(tokens) else parts)
