"""The style of all figures: colours, labels, and what stands in each file beside the chart."""

import itertools
import json

from llama_jax import figures
from llama_jax.bench import summary
from llama_jax.figures import marks, style
from llama_jax.placement import LADDER
from tests.figures.drawn import META, assert_same_twice, trials


def plain():
    figure, axes = style.new()
    axes.plot([1, 2], [3, 4])
    return figure


def test_every_rung_has_a_colour_of_its_own():
    assert len({figures.colour(name) for name in LADDER}) == len(LADDER)
    assert figures.colour("step (again)") == figures.colour("step")
    assert figures.colour("mine") == figures.colour("mine")
    assert figures.colour("mine") not in figures.COLOURS.values()


def test_a_figure_is_the_same_bytes_twice(tmp_path):
    assert "<svg" in assert_same_twice(plain, tmp_path)


def test_the_machine_and_the_note_are_in_the_figure(tmp_path):
    figure = plain()
    figures.save(figure, "x", "nb", META, {"n": 1}, "alt", tmp_path, "random weights")
    assert any("C, 2 cores" in t.get_text() and "random weights" in t.get_text() for t in figure.texts)
    entry = json.loads((tmp_path / "figures" / "manifest.json").read_text())["figures"]["x"]
    assert (entry["notebook"], entry["parameters"], entry["data_sha256"], entry["alt"]) == ("nb", {"n": 1}, "d", "alt")


def test_a_busy_machine_is_flagged_in_the_figure(tmp_path):
    busy = {**META, "environment": {**META["environment"], "watch": dict(others_cpu=0.4, steal=0.0, load_before=0.1)}}
    for meta, flagged in ((META, False), (busy, True)):
        figure = plain()
        figures.save(figure, "x", "nb", meta, {}, "alt", tmp_path)
        assert any("busy machine: others used 40 %" in t.get_text() for t in figure.texts) is flagged


def test_a_control_that_differs_is_a_phrase_for_the_figure():
    data = trials()
    assert summary.disturbed(summary.table(data, "step")) == ""
    slow = [
        t.model_copy(update=dict(token_times_ns=[10**7, 2 * 10**7, 9 * 10**7])) if t.subject == "step (again)" else t
        for t in data
    ]
    assert summary.disturbed(summary.table(slow, "step")).startswith("A/A control slower: 0.2")


def test_labels_do_not_overlap():
    placed = marks.spread_labels({"a": 10.0, "b": 10.1, "c": 10.2, "d": 50.0})
    heights = sorted(placed.values())
    assert all(b / a >= 1.15 for a, b in itertools.pairwise(heights))
    assert placed["d"] == 50.0
