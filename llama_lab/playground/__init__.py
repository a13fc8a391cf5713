"""The playground of `notebooks/00-start-here.ipynb`: ask a model under a placement, and see tokens, rates and
compilations as they come.

For people: text is drawn while it is made, and one answer is no measurement. Without a person before it (papermill,
nbconvert, a script) it draws nothing.
"""

from __future__ import annotations

import contextlib
import html
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from llama_jax import chat, checkpoint, generate, render
from llama_jax.checkpoint import Checkpoint
from llama_jax.decoding.request import SEEDS
from llama_jax.generate import Engine
from llama_jax.pipeline import Numbers
from llama_jax.placement import LADDER, MODIFIERS, parse
from llama_jax.plumbing.errors import UserError
from llama_jax.plumbing.threads import Channel, Worker
from llama_jax.plumbing.values import shown, whole
from llama_jax.sampling import Sampler
from llama_lab.bench.guard import Guard

EVERY_S = 0.05  # between two drawings of a text that grows: drawing each token would cost more than making some
KEPT = 8  # answers whose numbers stay listed


@dataclass(frozen=True)
class Wish:
    """What is asked for. Raises UserError, before anything is loaded, for what cannot be."""

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
    """An answer as far as it has come. compilations: programs compiled since the request. end: "", "stop", "length" or
    "stopped"."""

    view: render.View
    compilations: int
    end: str = ""

    @property
    def status(self) -> str:
        count = f"{self.compilations} program{'s' * (self.compilations != 1)} compiled"
        return " · ".join(filter(None, [self.view.status, count, self.end]))


def answer(engine: Engine, tokenizer, wish: Wish, stopped: Callable[[], bool] = lambda: False) -> Iterator[Moment]:
    """The growing answer, a moment for each block of tokens that reaches the host, the last one once more with its end.

    tokenizer: None for a model that has none. stopped: asked after each block, whether to leave it there. Raises
    UserError for a prompt that does not fit.
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


def person_is_there() -> bool:
    """Whether the cell that runs was sent by a front end that a person sits before: one that could be asked for input.

    JupyterLab says so with each request; papermill and nbconvert say that they could not, and a script has no kernel.
    """
    if not render.in_jupyter():
        return False
    from IPython import get_ipython

    return bool(get_ipython().kernel.get_parent("shell").get("content", {}).get("allow_stdin"))


def show(model: str = checkpoint.DEFAULT) -> None:
    """Draw a playground under the cell; nothing where nobody could use it."""
    if person_is_there():
        from IPython.display import display

        display(Playground(Wish(model=model)).box)


class Playground:
    """The widgets, and the thread in which the answer asked for is made: the kernel stays free to hear the stop button.

    box: what to display. One answer at a time; a second request meanwhile is refused in words.
    """

    def __init__(self, wish: Wish | None = None):
        from llama_lab.playground import view

        self.fields = view.fields(wish or Wish(), tuple(checkpoint.models()), tuple(LADDER))
        self.go, self.halt, self.text, self.status, self.message, self.table = view.parts()
        hint = view.hint(tuple(LADDER), tuple(MODIFIERS))
        self.box = view.arrange(self.fields, hint, self.go, self.halt, self.text, self.status, self.message, self.table)
        self.go.on_click(lambda _: self.ask())
        self.halt.on_click(lambda _: self.stop())
        self.loaded: Checkpoint | None = None
        self.engines: dict[str, Engine] = {}  # the loaded model's, by placement: what is compiled stays so
        self.rows: list[tuple[Wish, Moment]] = []
        self.busy, self.worker = False, None

    def ask(self) -> None:
        """Begin the answer that the fields ask for, or say in one line why not."""
        if self.busy:
            return self.say("An answer is being made; press Stop first, or wait for its end.")
        try:
            wish = Wish(**{name: field.value for name, field in self.fields.items()})
        except UserError as error:
            return self.say(str(error))
        self.say("")
        self.text.value, self.status.value = (
            "",
            html.escape("loading …" if self.is_new(wish.model) else "reading the prompt …"),
        )
        self.set_busy(True)
        # ended with Python, like others
        self.worker = Worker(lambda channel: self.run(wish, channel), Channel(None), "playground")
        try:
            self.worker.start()
        except RuntimeError as error:  # no more threads
            self.end(str(error))

    def stop(self) -> None:
        """Leave the answer after the call that is under way."""
        if self.busy:
            self.worker.channel.close()
            self.say("Stopping after the call that is under way.")

    def run(self, wish: Wish, channel: Channel) -> None:
        """Make the answer, in the worker: a failure is a line, whatever it is."""
        last, drawn, message = None, 0.0, ""
        try:
            engine = self.engine(wish)
            for last in answer(engine, self.loaded.tokenizer, wish, lambda: channel.closed):
                if last.end or time.monotonic() - drawn >= EVERY_S:
                    self.draw(last)
                    drawn = time.monotonic()
            self.rows = [(wish, last), *self.rows][:KEPT]
        except UserError as error:
            message = str(error)
        except Exception as error:  # nobody reads this thread's traceback
            message = f"It failed: {type(error).__name__}: {' '.join(str(error).split())[:300]}"
        self.end(message)

    def end(self, message: str) -> None:
        from llama_lab.playground import view

        self.table.value = view.table(self.rows)
        if message:
            self.status.value = ""
        self.set_busy(False)
        self.say(message)

    def is_new(self, model: str) -> bool:
        return self.loaded is None or self.loaded.name != model

    def engine(self, wish: Wish) -> Engine:
        """The model under the placement; loaded, and bound, where it is not the last one. One model is held at a
        time."""
        if self.is_new(wish.model):
            self.loaded, self.engines = None, {}
            self.loaded = checkpoint.load(wish.model)
            self.status.value = "reading the prompt …"
        if wish.placement not in self.engines:
            self.engines[wish.placement] = generate.build(self.loaded, wish.placement)
        return self.engines[wish.placement]

    def draw(self, moment: Moment) -> None:
        self.text.value, self.status.value = html.escape(moment.view.text), html.escape(moment.status)

    def say(self, line: str) -> None:
        self.message.value = html.escape(line)

    def set_busy(self, busy: bool) -> None:
        self.busy, self.go.disabled, self.halt.disabled = busy, busy, not busy
