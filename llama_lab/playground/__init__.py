"""The playground of `notebooks/00-start-here.ipynb`: ask a model under a placement, and see tokens, rates and
compilations live.

Text is drawn while it is made, and one answer is not a measurement. In non-interactive runs (papermill, nbconvert, a
script) it draws nothing.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from llama_jax import chat, checkpoint, generate, render
from llama_jax.decoding.request import SEEDS
from llama_jax.generate import Engine
from llama_jax.placement import parse
from llama_jax.plumbing.errors import UserError
from llama_jax.plumbing.values import shown, whole
from llama_jax.sampling import Sampler
from llama_jax.tokenizer import Numbers
from llama_lab.bench import notebook
from llama_lab.bench.guard import Guard


@dataclass(frozen=True)
class Wish:
    """A request. Raises UserError, before anything is loaded, for an impossible one."""

    prompt: str = "Why is the sky blue?"
    model: str = checkpoint.DEFAULT
    placement: str = "step"
    new_tokens: int = 48
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0

    def __post_init__(self):
        for name in ("prompt", "model"):
            if not isinstance(getattr(self, name), str):
                raise UserError(f"{name} is {shown(getattr(self, name))}; it must be text.")
        if not self.prompt.strip():
            raise UserError("The prompt is empty; write a question.")
        if not self.model.strip():
            raise UserError("No model is named; choose one of the list, or write a path or hub id.")
        whole(self.new_tokens, "new tokens", 1)
        whole(self.seed, "seed", 0, SEEDS - 1)
        parse(self.placement)
        _ = self.sampler

    @property
    def sampler(self) -> Sampler:
        return Sampler(self.temperature, self.top_k, self.top_p)


@dataclass(frozen=True)
class Moment:
    """An answer so far. compilations: programs compiled since the request. end: "", "stop", "length" or "stopped"."""

    view: render.View
    compilations: int
    end: str = ""

    @property
    def status(self) -> str:
        count = f"{self.compilations} program{'s' * (self.compilations != 1)} compiled"
        return " · ".join(filter(None, [self.view.status, count, self.end]))


def answer(engine: Engine, tokenizer, wish: Wish, stopped: Callable[[], bool] = lambda: False) -> Iterator[Moment]:
    """The growing answer, a moment for each block of tokens that reaches the host, the last one again with its end.

    tokenizer: None for a model without one. stopped: called after each block, whether to stop. Raises UserError for a
    prompt that does not fit.
    """
    tokenizer, start = tokenizer or Numbers(), time.perf_counter()
    ids = chat.encode(tokenizer, chat.ask(wish.prompt)) if tokenizer.chat_template else tokenizer.encode(wish.prompt)
    blocks = generate.stream(engine, [ids], wish.new_tokens, wish.sampler, wish.seed, tokenizer.stop)
    with Guard() as guard, contextlib.closing(blocks):
        for view in render.watch(blocks, tokenizer, start):
            moment = Moment(view, guard.compilations)
            yield moment
            if stopped():
                yield replace(moment, end="stopped")
                return
        yield replace(moment, end="stop" if view.token_ids[-1] in tokenizer.stop else "length")


def show(model: str = checkpoint.DEFAULT) -> None:
    """Draw a playground under the cell; nothing in a non-interactive run."""
    if notebook.person_is_there():
        from IPython.display import display

        from llama_lab.playground.view import Playground

        display(Playground(Wish(model=model)).box)
