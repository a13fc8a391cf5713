"""One prompt, text in and text out, in one call. For many see `pipeline.serve`; token by token, `render.show`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from llama_jax import chat as conversations
from llama_jax import checkpoint, generate
from llama_jax.checkpoint import Checkpoint
from llama_jax.generate import GREEDY, Engine
from llama_jax.placement import Placement, parse
from llama_jax.plumbing import compilations
from llama_jax.plumbing.errors import UserError
from llama_jax.plumbing.values import shown
from llama_jax.render import Pace
from llama_jax.sampling import Sampler
from llama_jax.tokenizer import Numbers

if TYPE_CHECKING:
    from llama_jax.grammars import Grammar


@dataclass(frozen=True)
class Stats:
    """Timing of an answer, in seconds since the request, which begins with a loaded model.

    tokens_per_second: of the steps after the first token in which nothing was compiled; None if there was no such
    step, as in a first call of a placement that makes all tokens at once. compiling: seconds of these in which programs
    were compiled; ttft holds its part. compilations: programs that XLA compiled during the call, loading included.
    chat: whether the prompt went through the model's chat template. One answer is not a measurement.
    """

    tokens: int
    seconds: float
    ttft: float
    tokens_per_second: float | None
    compiling: float
    compilations: int
    chat: bool


@dataclass(frozen=True)
class Held:
    """The last model that was used, in the forms that its placements compute on, and its engines with their compiled
    programs. asked: as the caller named it."""

    asked: str | Checkpoint
    checkpoints: dict[tuple[str, bool], Checkpoint] = field(default_factory=dict)
    engines: dict[Placement, Engine] = field(default_factory=dict)

    def checkpoint(self, placement: Placement) -> Checkpoint:
        """The model in the form that this placement computes on, loaded if necessary."""
        if isinstance(self.asked, Checkpoint):
            return self.asked
        form = placement.weights, placement.kernels != "none"
        if form not in self.checkpoints:
            self.checkpoints[form] = generate.load(self.asked, placement)
        return self.checkpoints[form]


_held: Held | None = None


def held(model: str | Checkpoint) -> Held:
    """The kept state of a model, empty if another one was used last: only one is kept. Raises UserError."""
    global _held
    if _held is None or not (_held.asked is model or (isinstance(model, str) and _held.asked == model)):
        if not isinstance(model, str | Checkpoint):
            raise UserError(f"model is {shown(model)}; it must be a name or a loaded checkpoint.")
        _held = Held(model)
    return _held


def generate_text(
    prompt: str,
    new_tokens: int = 128,
    *,
    model: str | Checkpoint = checkpoint.DEFAULT,
    placement: str | Placement = "step",
    sampler: Sampler = GREEDY,
    seed: int = 0,
    chat: bool | None = None,
) -> tuple[str, Stats]:
    """(the answer to a prompt, what it took). The answer has `new_tokens` tokens, or ends with the model's own end.

    model: a name as `load` takes it, or what `load` gave; it is kept for the next call, as is what is compiled under
    each placement. A second call with a prompt of like length compiles nothing. seed: of the draws. chat: whether the
    prompt is a question, put through the model's chat template, or a text to continue; by default a question where
    the model has such a template. A model without a tokenizer reads and writes token ids as numbers.

    Raises UserError for an empty prompt, chat without a template, and as `load`, `build` and `stream` do.
    """
    if not isinstance(prompt, str) or not prompt.strip():
        raise UserError(f"The prompt is {shown(prompt)}; it must be text, and not empty.")
    placed, kinds = parse(placement), []
    with compilations.heard(lambda kind, *_: kinds.append(kind)):
        known = held(model)
        loaded = known.checkpoint(placed)
        tokenizer = loaded.tokenizer or Numbers()
        if placed not in known.engines:
            known.engines[placed] = generate.build(loaded, placed)
        pace = Pace()
        asks = tokenizer.chat_template is not None if chat is None else chat
        if asks:
            conversations.template_of(tokenizer, "give a plain prompt (chat=False)")
        ids = conversations.encode(tokenizer, conversations.ask(prompt)) if asks else tokenizer.encode(prompt)
        made = []
        for block in generate.stream(known.engines[placed], [ids], new_tokens, sampler, seed, tokenizer.stop):
            pace.arrive(len(block))
            made += block[:, 0].tolist()
    view = pace.view(tokenizer.decode(made), tuple(made))
    rate, compiled = view.tokens_per_second, compilations.compiled(kinds)
    return view.text, Stats(view.tokens, view.seconds, view.ttft, rate, sum(view.compiling), compiled, asks)


def grammar(schema: dict | str, checkpoint: Checkpoint) -> Grammar:
    """What an answer must be, for `generate.answer`: JSON of this schema, or any object ("json"). Its answers end with
    the tokenizer's stop tokens. Raises UserError as `grammars.compile`."""
    from llama_jax import grammars  # here: few answers follow one

    tokenizer = checkpoint.tokenizer
    return grammars.compile(schema, tokenizer, checkpoint.config.vocab_size, tokenizer.stop if tokenizer else ())
