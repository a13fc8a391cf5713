"""Charts of the peers say what the trials say, are drawn in style, and name what is missing."""

import re

import pytest

from llama_lab import figures
from llama_lab.bench import footprints, quality, standings
from llama_lab.bench.wording import named_well
from llama_lab.experiments.ollama import chart, table
from llama_lab.figures import memory
from tests.bench.test_quality import rows
from tests.bench.test_standings import MISSING, RATES, contest
from tests.figures.drawn import META, assert_drawn, words

NOTES = [dict(subject=name, libraries_rss_bytes=3 * 10**8) for name in RATES]
CHARTS = ("ladder", "quality", "conversation", "memory")


def draw(name, trials, names, missing=(), distances=None):
    entries, distances = standings.ladder(trials, names), quality.table(rows()) if distances is None else distances
    if name == "ladder":
        return chart.peer_ladder(entries, missing, 400.0)
    if name == "quality":
        return chart.speed_and_quality(entries, distances)
    if name == "conversation":
        talks, backends = table.talks(trials, names, names[0]), {e["name"]: e["backend"] for e in entries}
        return chart.conversation(talks, backends, [40, 110, 180], 16, names[0])
    return memory.footprint(footprints.table(trials, NOTES, names), 98 * 10**6)


@pytest.mark.slow
@pytest.mark.parametrize("name", CHARTS)
def test_each_chart_is_drawn_in_style(tmp_path, name):
    assert_drawn(draw(name, contest(blocks=5), list(RATES)), tmp_path)


@pytest.mark.parametrize("name", CHARTS)
@pytest.mark.parametrize("names", [["loop"], list(RATES)], ids=["our placements alone", "nothing counts"])
def test_each_chart_draws_where_there_is_little(tmp_path, name, names):
    """Random weights: no peer reads a file, one block, nothing known of the distributions; or every answer wrong."""
    made, distances = contest(names, blocks=1, chats=1), [] if len(names) == 1 else None
    if distances is None:
        made = [t.model_copy(update=dict(valid=False, reason="wrong: token 0 is 1")) for t in made]
    drawn = draw(name, made, names, MISSING, distances)
    assert figures.save(drawn, "x", "nb", META, {}, "alt", tmp_path)["png"].is_file()
    assert "nan" not in words(drawn)


def test_an_endless_interval_leaves_the_page_as_wide_as_it_was():
    """What two answers that differ make of Student's t."""

    def width(spread):
        made = [
            t.model_copy(update=dict(token_times_ns=[n * spread**t.block for n in t.token_times_ns]))
            for t in contest(blocks=2, chats=2)
        ]
        return draw("conversation", made, list(RATES)).get_tightbbox().width

    assert width(3) < 1.3 * width(1)


def test_a_missing_peer_is_a_labelled_gap():
    names = [name for name in RATES if name != "ollama"]
    figure = draw("ladder", contest(names), names, MISSING)
    assert "No Ollama server answers at x. Start it with `ollama serve`." in words(figure)
    labels = [label.get_text().split("\n") for label in figure.axes[0].get_yticklabels()]
    assert {name for name, _ in labels} == {named_well(name) for name in names}
    assert ["loop", "JAX, float32 weights"] in labels
    texts = [(text.get_position()[1], text.get_text().split()[0]) for text in figure.axes[0].texts]
    numbers = [(height, float(word)) for height, word in texts if word.isdigit()]
    assert len(numbers) > 3
    assert [rate for _, rate in sorted(numbers)] == sorted(rate for _, rate in numbers)  # the fastest on top
    assert words(chart.conversation({}, {}, [40, 110], 16, "")).startswith("Nobody was asked")


def test_charts_say_what_the_trials_say():
    made = contest()
    wrong = dict(valid=False, reason="wrong: token 1")
    void = [t.model_copy(update=wrong) if t.subject == "torch" else t for t in made]
    for name, trials, texts in (
        ("ladder", void, ["%)", "median (of limit)", "bandwidth limit", "compute limit"]),
        ("ladder", void, ["no valid trial: wrong: token 1"]),
        (
            "quality",
            made,
            ["llama.cpp: 149 tok/s, KL 0.020", "loop: 60 tok/s", "Ollama (120 tokens/s; no logits, top-1 86.7%)"],
        ),
        ("memory", made, ["No row for ollama", "One answer needs"]),
    ):
        drawn = words(draw(name, trials, list(RATES)))
        assert all(text in drawn for text in texts), drawn
    assert "MB under ollama" not in drawn  # its client alone is no whole process


def test_of_many_the_quickest_have_a_line_and_all_a_bar():
    lines, bars = draw("conversation", contest(), list(RATES)).axes
    assert len(RATES) > len(lines.lines) == chart.LINES
    assert {"PyTorch", "transformers"}.isdisjoint(text.get_text() for text in lines.texts)
    assert {label.get_text() for label in bars.get_yticklabels()} == set(map(named_well, RATES))
    lengths = [bar.get_width() for bar in bars.patches]
    assert lengths == sorted(lengths)


def test_the_title_says_that_servers_kept_the_history_and_its_ratio_stands_at_the_bar():
    talks = table.talks(contest(), ["loop", "llamacpp"], "loop")
    backends = dict(loop="jax", llamacpp="llama.cpp")
    again, kept = (chart.conversation(talks, backends, [40, 110, 180], 16, "loop", kept) for kept in (False, True))
    said = re.search(
        r"A conversation of 3 turns takes (0\.\d\d) times as long under llama.cpp as under loop", words(again)
    )
    assert f" s, {said[1]}x" in words(again)
    assert words(kept).startswith("With the history kept, a conversation of 3 turns takes")
    assert kept.axes[0].get_title(loc="left") == "Each turn reads only what is new"


def test_what_hands_out_no_logits_is_named_below_and_not_drawn():
    axes = draw("quality", contest(), list(RATES)).axes[0]
    assert not any("ollama" in text.get_text() for text in axes.texts)
    assert "not drawn" not in words(draw("quality", contest(("loop", "llamacpp")), ["loop", "llamacpp"]))
