"""How the playground looks: its widgets, and how they are arranged. What they do is `playground`'s."""

from __future__ import annotations

import html
from collections.abc import Sequence

import ipywidgets as widgets

WIDE, NARROW = "325px", "168px"  # two and four side by side in a window of some 1,250 pixels
HEAD = ("model", "placement", "sampling", "tokens", "first token", "tokens/s", "compiled")


def fields(wish, models: Sequence[str], placements: Sequence[str]) -> dict[str, widgets.Widget]:
    """An input for each field of a wish, by its name. Model and placement take any text; the lists are suggestions."""
    kinds = dict(
        prompt=(widgets.Textarea, dict(description="prompt", rows=2)),
        model=(widgets.Combobox, dict(description="model", options=tuple(models))),
        placement=(widgets.Combobox, dict(description="placement", options=tuple(placements))),
        new_tokens=(widgets.IntText, dict(description="new tokens")),
        temperature=(widgets.FloatText, dict(description="temperature", step=0.1)),
        top_k=(widgets.IntText, dict(description="top-k")),
        top_p=(widgets.FloatText, dict(description="top-p", step=0.05)),
        seed=(widgets.IntText, dict(description="seed")),
    )
    tips = dict(
        placement="one of the ladder, with +modifiers such as step+scan",
        top_k="0 keeps all tokens",
        top_p="1 keeps all tokens",
        temperature="0 is greedy",
        seed="of the draws; without effect at temperature 0",
    )
    wide = ("model", "placement")
    return {
        name: kind(
            value=getattr(wish, name),
            tooltip=tips.get(name, name),
            style={"description_width": "92px"},
            layout=widgets.Layout(width="auto" if name == "prompt" else WIDE if name in wide else NARROW),
            **options,
        )
        for name, (kind, options) in kinds.items()
    }


def parts() -> tuple[widgets.Widget, ...]:
    """(generate, stop, the text, its status, the line for mistakes, the table of answers)."""
    go = widgets.Button(description="Generate", button_style="primary", icon="play")
    halt = widgets.Button(description="Stop", icon="stop", disabled=True)
    text = widgets.HTML(layout=widgets.Layout(min_height="5em"))
    for widget, name in ((text, "text"), (status := widgets.HTML(), "status"), (message := widgets.HTML(), "message")):
        widget.add_class(f"playground-{name}")
    return go, halt, text, status, message, widgets.HTML()


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


def hint(placements: Sequence[str], switches: Sequence[str]) -> widgets.Widget:
    """What may be written as a placement: a list to choose from shows only what fits the text that is there."""
    words = f"Placements: {', '.join(placements)}. Any of them takes {' '.join('+' + name for name in switches)}."
    return widgets.HTML(html.escape(words)).add_class("playground-hint")


def arrange(inputs: dict[str, widgets.Widget], hint, go, halt, text, status, message, table) -> widgets.Widget:
    """All of it, in one box. hint: what may be typed."""

    def row(*names: str) -> widgets.Widget:
        return widgets.HBox([inputs[name] for name in names], layout=widgets.Layout(flex_flow="row wrap"))

    return widgets.VBox(
        [
            widgets.HTML(SHEET),
            row("model", "placement"),
            hint,
            row("temperature", "top_k", "top_p", "seed"),
            inputs["prompt"],
            widgets.HBox([inputs["new_tokens"], go, halt]),
            message,
            text,
            status,
            table,
        ]
    )


def table(rows: Sequence[tuple]) -> str:
    """Numbers of the last answers as HTML, the newest first."""
    if not rows:
        return ""
    lines = [line(wish, end) for wish, end in rows]
    body = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in cells) + "</tr>" for cells in lines)
    return f'<table class="playground-table"><tr>{"".join(f"<th>{name}</th>" for name in HEAD)}</tr>{body}</table>'


def line(wish, end) -> list[str]:
    """The cells of one answer, from its wish and its last moment."""
    view = end.view
    rate = "" if view.tokens_per_second is None else f"{view.tokens_per_second:.1f}"
    made = f"{len(view.token_ids)}, {end.end}"
    return [wish.model, wish.placement, sampling(wish), made, f"{view.ttft * 1e3:.0f} ms", rate, str(end.compilations)]


def sampling(wish) -> str:
    if not wish.temperature:
        return "greedy"
    kept = [f"top-k {wish.top_k}"] * bool(wish.top_k) + [f"top-p {wish.top_p:g}"] * (wish.top_p < 1)
    return ", ".join([f"temperature {wish.temperature:g}", *kept, f"seed {wish.seed}"])
