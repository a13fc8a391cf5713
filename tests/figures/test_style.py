"""The style of all figures: colours, labels, and what stands in each file beside the chart."""

import json
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import matplotlib.pyplot as plt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llama_jax.placement import LADDER
from llama_lab import figures
from llama_lab.bench import summary, wording
from llama_lab.figures import style
from tests.figures.drawn import META, assert_in_style, trials


def plain():
    figure, axes = style.new()
    axes.plot([1, 2], [3, 4])
    figures.headline(figure, "Three is less than four")
    return figure


def test_every_rung_has_a_colour_of_its_own_and_a_variant_that_of_what_it_is_one_of():
    assert len({figures.colour(name) for name in LADDER}) == len(LADDER)
    assert figures.colour("mine") == figures.colour("mine")
    assert figures.colour("mine") not in figures.COLOURS.values()
    variants = {
        "step (again)": "step", "step+scan": "step", "step exact": "step", "loop+q4_1+fused": "fused",
        "step+gemv": "gemv", "torch-compile+nocache": "torch", "llamacpp+generate": "llamacpp",
        "ik-llamacpp": "ik-llamacpp", "flax-nnx+jit": "flax", "step+donate": "step+donate",
    }  # fmt: skip
    assert {name: figures.colour(name) for name in variants} == {n: style.COLOURS[of] for n, of in variants.items()}


def test_no_part_of_time_has_a_subjects_colour():
    assert not set(style.OTHERS) & set(style.COLOURS.values())
    assert len(style.COLOURS) - 1 == len(set(style.COLOURS.values()))  # torch and transformers are one


def test_charts_take_the_colours_of_subjects_from_the_table():
    """A chart that names a colour of the palette itself would give a subject a second one."""
    charts = [p for p in Path(figures.__file__).parents[1].glob("experiments/*/*.py") if "chart" in p.stem]
    assert len(charts) > 15
    named = re.compile(r"PALETTE\[|#[0-9A-Fa-f]{6}")
    allowed = {"#999999", "#BBBBBB", "#B0B0B0", "#CCCCCC", "#222222", "#333333", "#777777", "#888888", "#7F7F7F"}
    for path in charts:
        found = set(named.findall(path.read_text())) - allowed
        assert found <= ({"PALETTE["} if path.parent.name == "your_own_placement" else set()), path  # a marked row


def test_a_headline_is_broken_where_the_figure_ends():
    figure, _ = style.new(6, 3)
    figures.headline(figure, "Each of these words is short and yet they are too many for one line of six inches")
    lines = figure._suptitle.get_text().split("\n")
    assert len(lines) == 2
    assert len(lines[1]) > 0.7 * len(lines[0])  # not a last word alone
    assert_in_style(figure)


@settings(max_examples=30, deadline=None)  # a loaded machine is slow
@given(st.lists(st.text("ab$", min_size=1, max_size=60), min_size=1, max_size=40), st.sampled_from([2, 6, 11]))
def test_broken_words_are_those_of_the_text_in_order(words, inches):
    figure, _ = style.new(inches, 2)
    assert style.wrapped(figure, " ".join(words), 8).split() == words
    plt.close(figure)


def test_a_second_colour_and_a_title_that_says_nothing_are_seen():
    figure, axes = style.new(6, 3)
    figures.headline(figure, "Throughput")
    with pytest.raises(AssertionError):
        assert_in_style(figure)
    figures.headline(figure, "loop is the fastest of all")
    axes.text(0.5, 0.5, "loop", color=figures.colour("step"))
    with pytest.raises(AssertionError, match="loop"):
        assert_in_style(figure)


def test_a_figure_is_the_same_bytes_twice(tmp_path):
    files = [figures.save(plain(), "x", "nb", META, {}, "alt", tmp_path / str(i)) for i in range(2)]
    for kind in ("svg", "png"):
        assert files[0][kind].read_bytes() == files[1][kind].read_bytes()
    assert files[0]["svg"].read_text().count("@media (prefers-color-scheme:dark)") == 1


def test_the_machine_the_note_and_a_busy_machine_are_in_the_figure(tmp_path):
    busy = {**META, "environment": {**META["environment"], "watch": dict(others_cpu=0.4, steal=0.0, load_before=0.1)}}
    watch = busy["environment"]["watch"]
    notes = [dict(watch=watch), dict(watch=dict(watch, others_cpu=0.0)), {}]
    assert wording.busy(dict(busy, processes=notes)).endswith("of the CPU in 1 of 2 processes")
    assert wording.busy(dict(busy, processes=notes[:1])) == wording.busy(busy)
    numbered = dict(busy, processes=[dict(note, process=at) for at, note in enumerate(notes)])
    assert wording.busy(wording.of_processes(numbered, [1])) == ""
    assert wording.busy(wording.of_processes(numbered, [0])) == wording.busy(busy)
    for meta in (META, busy):
        figure = plain()
        figures.save(figure, "x", "nb", meta, {"n": 1}, "alt", tmp_path, "random weights")
        (line,) = [t.get_text() for t in figure.texts if "C, 2 cores" in t.get_text()]
        assert "random weights" in line
        assert ("busy machine: others used 40 %" in line) is (meta is busy)
    entry = json.loads((tmp_path / "figures" / "manifest.json").read_text())["figures"]["x"]
    assert (entry["notebook"], entry["parameters"], entry["data_sha256"], entry["alt"]) == ("nb", {"n": 1}, "d", "alt")


def test_what_is_drawn_side_by_side_is_all_listed(tmp_path):
    names = [f"{i:02}" for i in range(20)]
    with ThreadPoolExecutor(4) as pool:
        assert [*pool.map(lambda name: figures.conclude(name, "?", "!", None, tmp_path), names)] == ["!"] * 20
    assert [*figures.read_manifest(tmp_path)["notebooks"]] == names


def test_a_control_that_differs_is_a_phrase_for_the_figure():
    data = trials()
    assert summary.disturbed(summary.table(data, "step")) == ""
    times = dict(token_times_ns=[10**7, 2 * 10**7, 9 * 10**7])
    slow = [t.model_copy(update=times) if t.subject == "step (again)" else t for t in data]
    assert summary.disturbed(summary.table(slow, "step")).startswith("A/A control (step) 0.2")


@pytest.mark.parametrize(
    ("limits", "told"),
    [
        (["arithmetic limit 16 ms"], False),
        (["memory or arithmetic limit"], True),
        (["fp32 compute limit", "bandwidth limit"], True),
        (["tokens"], False),
    ],
)
def test_a_figure_says_from_which_probe_only_a_limit_of_bandwidth_is(tmp_path, limits, told):
    figure, meta = plain(), META | dict(bandwidth_gbps={"main": dict(min=30.0, median=32.0, max=33.0, n=5)})
    for at, limit in enumerate(limits):
        figure.axes[0].text(0, at, limit)
    figures.save(figure, "x", "nb", meta, {}, "alt", tmp_path)
    (line,) = [t.get_text() for t in figure.texts if "C, 2 cores" in t.get_text()]
    assert ("bandwidth 33 GB/s" in line) is told
