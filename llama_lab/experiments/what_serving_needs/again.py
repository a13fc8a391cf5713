"""Answers as `generate` makes them alone, which those of a server must be."""

from __future__ import annotations

import numpy as np

from llama_jax import checkpoint, generate, pipeline
from llama_lab.bench import available, gate
from llama_lab.experiments.what_serving_needs.client import Answer
from llama_lab.experiments.what_serving_needs.load import PROMPTS, Ask
from llama_lab.experiments.what_serving_needs.servers import CONTEXT


class Again:
    """A model under a placement that answers one request after the other, greedily."""

    def __init__(self, model: str, placement: str):
        self.loaded = checkpoint.load(model, available.loaded_as(placement, model))
        self.words = self.loaded.tokenizer or pipeline.Numbers()
        self.engine = generate.build(self.loaded, placement)
        self.near = gate.near_tie(placement)

    def judge(self, ask: Ask, answer: Answer) -> gate.Verdict:
        """Whether a server's answer is the one made alone: the same text, or tokens that part at a near-tie, as
        `bench`'s gate compares them."""
        ids = self.words.encode(ask.text, special=True, allow_special_tokens=True)
        one = dict(stop=self.words.stop, length=generate.bucket(PROMPTS[1]), slots=CONTEXT)  # one shape: one program
        (alone,) = generate.answer(self.engine, [ids], ask.new_tokens, **one)
        if answer.text == self.words.decode(alone.token_ids):
            return gate.Verdict(True)
        made = np.array(self.words.encode(answer.text, special=False, allow_special_tokens=True), np.int32)
        known = np.array([i for i in alone.token_ids if i not in self.words.stop], np.int32)

        def logits() -> np.ndarray:
            return np.asarray(generate.logits(self.engine, [*ids, *made[:-1].tolist()]))[-len(made) :]

        return gate.compare(made, known, logits, self.near)
