"""Every timed answer of a run, for a chart that shows a trial on hover and hides subjects. It is drawn by Chart.js
(https://www.chartjs.org, MIT), which stands in the page, so it needs no network."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

from markupsafe import Markup

from llama_lab.bench import summary
from llama_lab.figures.style import colour
from llama_lab.reporting.overview import Setting

LIBRARY = Path(__file__).with_name("chart.umd.min.js")
SHAPES = ("circle", "triangle", "rect", "rectRot", "star", "crossRot")  # of subjects that share a colour, by turns


def chart(runs: dict[str, Setting]) -> dict:
    """What the page holds of these runs: {titles, answers: JSON, library: code}; {} without any."""
    if not runs:
        return {}
    told = json.dumps([subjects(run) for run in runs.values()], separators=(",", ":")).replace("<", "\\u003c")
    return dict(titles=list(runs), answers=Markup(told), library=Markup(LIBRARY.read_text(encoding="utf-8")))


def subjects(run: Setting) -> list[dict]:
    """One entry per subject, the fastest first: {name, colour, shape, answers: [[place in the order of measurement,
    tokens a second, words about the trial]]}, void trials left out."""
    trials = sorted(run.rows, key=lambda t: (t.process, t.block, t.order))
    places = {id(trial): place for place, trial in enumerate(trials, 1)}
    valid = summary.grouped([t for t in trials if t.valid], "subject")
    entries, seen = [], Counter()
    for name in sorted(valid, key=lambda name: (-summary.median([t.tg for t in valid[name]]), name)):
        tint = colour(name)
        answers = [
            [places[id(t)], float(f"{t.tg:.4g}"), f"process {t.process}, block {t.block}, prompt {t.prompt}"]
            for t in valid[name]
        ]
        entries.append(dict(name=name, colour=tint, shape=SHAPES[seen[tint] % len(SHAPES)], answers=answers))
        seen[tint] += 1
    return entries
