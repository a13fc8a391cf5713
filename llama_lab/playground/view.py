"""The playground's widgets, and the thread that makes the answer, so that the kernel stays free for the stop button."""

from __future__ import annotations

import html
import time
from collections.abc import Sequence

import ipywidgets as widgets
import pandas as pd

from llama_jax import checkpoint, generate
from llama_jax.checkpoint import Checkpoint
from llama_jax.generate import Engine
from llama_jax.placement import LADDER, MODIFIERS
from llama_jax.plumbing import progress
from llama_jax.plumbing.errors import UserError
from llama_jax.plumbing.threads import Channel, Worker
from llama_lab.playground import Moment, Wish, answer

EVERY_S = 0.05  # between two drawings of a text that grows: drawing each token would cost more than making some
KEPT = 8  # answers whose numbers stay listed
WIDE, NARROW = "325px", "168px"  # two and four side by side in a window of some 1,250 pixels
HEAD = ("model", "placement", "sampling", "tokens", "first token", "tokens/s", "compiled")
KINDS = {  # of a wish's fields: kind of widget, its width, what stands beside it, and more of its own
    "prompt": (widgets.Textarea, "auto", "prompt", dict(rows=2)),
    "model": (widgets.Combobox, WIDE, "model", {}),
    "placement": (widgets.Combobox, WIDE, "one of the ladder, with +modifiers such as step+scan", {}),
    "new_tokens": (widgets.IntText, NARROW, "new_tokens", dict(description="new tokens")),
    "temperature": (widgets.FloatText, NARROW, "0 is greedy", dict(step=0.1)),
    "top_k": (widgets.IntText, NARROW, "0 keeps all tokens", dict(description="top-k")),
    "top_p": (widgets.FloatText, NARROW, "1 keeps all tokens", dict(description="top-p", step=0.05)),
    "seed": (widgets.IntText, NARROW, "random seed; no effect at temperature 0", {}),
}
SHEET = """<style>
.playground-text .widget-html-content { white-space: pre-wrap; line-height: 1.45; font-size: 1.05em; }
.playground-hint .widget-html-content { opacity: .6; font-size: .85em; line-height: 1.4;
  white-space: normal; padding-left: 100px; }
.playground-status .widget-html-content { opacity: .7; font-variant-numeric: tabular-nums; }
.playground-message .widget-html-content { color: #c2410c; font-weight: 600; }
.playground-table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
.playground-table th, .playground-table td { padding: .1em 1.2em .1em 0; text-align: left;
  line-height: 1.5; white-space: nowrap; }
</style>"""


def inputs(wish: Wish) -> dict[str, widgets.Widget]:
    """An input for each field of a wish, by its name. Model and placement take any text; the lists are suggestions."""
    suggested = dict(model=tuple(checkpoint.models()), placement=tuple(LADDER))
    made = {}
    for name, (kind, width, tip, more) in KINDS.items():
        more = {"description": name} | more | ({"options": suggested[name]} if name in suggested else {})
        layout = dict(style={"description_width": "92px"}, layout=widgets.Layout(width=width))
        made[name] = kind(value=getattr(wish, name), tooltip=tip, **layout, **more)
    return made


class Playground:
    """box: what to display. One answer at a time; a second request is refused in words."""

    def __init__(self, wish: Wish | None = None):
        self.fields = inputs(wish or Wish())
        self.go = widgets.Button(description="Generate", button_style="primary", icon="play")
        self.halt = widgets.Button(description="Stop", icon="stop", disabled=True)
        self.text = widgets.HTML(layout=widgets.Layout(min_height="5em")).add_class("playground-text")
        self.status, self.message, hint = (
            widgets.HTML().add_class(f"playground-{name}") for name in ("status", "message", "hint")
        )
        self.table = widgets.HTML()
        switches = " ".join(f"+{name}" for name in (*MODIFIERS, "draft:NAME"))
        # a list to choose from shows only what fits the text that is there
        hint.value = html.escape(f"Placements: {', '.join(LADDER)}. Any of them takes {switches}.")
        rows = [
            widgets.HBox([self.fields[name] for name in names], layout=widgets.Layout(flex_flow="row wrap"))
            for names in (("model", "placement"), ("temperature", "top_k", "top_p", "seed"))
        ]
        ask = widgets.HBox([self.fields["new_tokens"], self.go, self.halt])
        answers = (self.message, self.text, self.status, self.table)
        self.box = widgets.VBox([widgets.HTML(SHEET), rows[0], hint, rows[1], self.fields["prompt"], ask, *answers])
        self.go.on_click(lambda _: self.ask())
        self.halt.on_click(lambda _: self.stop())
        self.loaded: Checkpoint | None = None
        self.engines: dict[str, Engine] = {}  # the loaded model's, by placement: what is compiled stays so
        self.rows: list[tuple[Wish, Moment]] = []
        self.busy, self.worker = False, None

    def ask(self) -> None:
        """Start the requested answer, or say in one line why not."""
        if self.busy:
            return self.say("An answer is being made; press Stop first, or wait until it ends.")
        try:
            wish = Wish(**{name: field.value for name, field in self.fields.items()})
        except UserError as error:
            return self.say(str(error))
        self.say("")
        self.text.value, self.status.value = "", "loading …" if self.is_new(wish.model) else "reading the prompt …"
        self.set_busy(True)
        # ended with Python, like others
        self.worker = Worker(lambda channel: self.run(wish, channel), Channel(None), "playground")
        try:
            self.worker.start()
        except RuntimeError as error:  # no more threads
            self.end(str(error))

    def stop(self) -> None:
        """Stop the answer after the current call."""
        if self.busy:
            self.worker.channel.close()
            self.say("Stopping after the current call.")

    def run(self, wish: Wish, channel: Channel) -> None:
        """Make the answer, in the worker: a failure is a line, whatever it is."""
        last, drawn, message = None, 0.0, ""
        try:
            engine = self.engine(wish)
            for last in answer(engine, self.loaded.tokenizer, wish, lambda: channel.closed):
                if last.end or time.monotonic() - drawn >= EVERY_S:
                    self.text.value, self.status.value = html.escape(last.view.text), html.escape(last.status)
                    drawn = time.monotonic()
            self.rows = [(wish, last), *self.rows][:KEPT]
        except UserError as error:
            message = str(error)
        except Exception as error:  # nobody reads this thread's traceback
            message = f"It failed: {type(error).__name__}: {' '.join(str(error).split())[:300]}"
        self.end(message)

    def end(self, message: str) -> None:
        self.table.value = listed(self.rows)
        if message:
            self.status.value = ""
        self.set_busy(False)
        self.say(message)

    def is_new(self, model: str) -> bool:
        return self.loaded is None or self.loaded.name != model

    def engine(self, wish: Wish) -> Engine:
        """The model under the placement; loaded and bound if it is not the last one. One model is held at a time."""
        if self.is_new(wish.model):
            self.loaded, self.engines = None, {}
            with progress.heard(progress.lines(self.tell, EVERY_S)):
                self.loaded = checkpoint.load(wish.model)
            self.status.value = "reading the prompt …"
        if wish.placement not in self.engines:
            self.engines[wish.placement] = generate.build(self.loaded, wish.placement)
        return self.engines[wish.placement]

    def tell(self, line: str) -> None:
        self.status.value = html.escape(line)

    def say(self, line: str) -> None:
        self.message.value = html.escape(line)

    def set_busy(self, busy: bool) -> None:
        self.busy, self.go.disabled, self.halt.disabled = busy, busy, not busy


def listed(rows: Sequence[tuple[Wish, Moment]]) -> str:
    """Numbers of the last answers as HTML, the newest first."""
    lines = []
    for wish, end in rows:
        view, kept = end.view, [f"top-k {wish.top_k}"] * bool(wish.top_k) + [f"top-p {wish.top_p:g}"] * (wish.top_p < 1)
        drawn = ", ".join([f"temperature {wish.temperature:g}", *kept, f"seed {wish.seed}"])
        rate = "" if view.tokens_per_second is None else f"{view.tokens_per_second:.1f}"
        sizes = (f"{len(view.token_ids)}, {end.end}", f"{view.ttft * 1e3:.0f} ms", rate, str(end.compilations))
        lines.append((wish.model, wish.placement, drawn if wish.temperature else "greedy", *sizes))
    with pd.option_context("display.max_colwidth", None):
        html_ = pd.DataFrame(lines, columns=HEAD).to_html(index=False, classes="playground-table", border=0)
    return html_ if lines else ""
