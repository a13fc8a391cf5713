"""Rates, ratios, equal tokens and what passes took, by task, of made-up trials whose answer is known; and charts that
say so, in style."""

import re

import pytest

from llama_lab import figures
from llama_lab.bench import AGAIN, statistics
from llama_lab.bench.frames import show
from llama_lab.bench.statistics import Ratio
from llama_lab.bench.wording import named_well
from llama_lab.experiments.past_one_token_a_pass import chart, table
from llama_lab.experiments.past_one_token_a_pass.measure import TASKS
from tests.bench.test_record import trial
from tests.figures.drawn import META, assert_drawn, words

NAMES = ["loop", "loop+lookup", "loop+fused", "loop+fused+lookup4", "llamacpp"]
RATES = {"open": (40, 39, 250, 240, 100), "copy": (40, 120, 250, 750, 100), "edit": (40, 80, 250, 500, 100)}
MADE = {"open": [1, 1, 1, 2], "copy": [5, 5, 4, 5], "edit": [5, 1, 3, 3]}
PASSES = [
    dict(subject=name, prompt=i, made=MADE[task], depths=[4 * (n > 1) for n in MADE[task]])
    for name in ("loop+lookup", "loop+fused+lookup4")
    for i, task in enumerate(TASKS)
]
ABOUT = dict(parameters=dict(placements=NAMES[:-1], peers=NAMES[-1:]), tasks=list(TASKS), passes=PASSES)
GAP = dict(name="llamacpp+lookup", reason="It is not built.", remedy="Run `make peers`.")


def race(blocks=6, names=NAMES, tokens=()):
    """tokens: subject → the digest of its tokens, where they are others than everybody's."""
    made = []
    for block in range(blocks * len(TASKS)):
        for name in (*names, "loop" + AGAIN):
            rate = RATES[TASKS[block % len(TASKS)]][NAMES.index(name.removesuffix(AGAIN))]
            gap = 1e3 / rate * (1 + 0.002 * ((block * 7 + len(name)) % 5))
            about = dict(run="main", prompt=block % len(TASKS), tokens_sha256=dict(tokens).get(name, "same"))
            backend = "llama.cpp" if name == "llamacpp" else "jax"
            made.append(trial(name, block, [50 + gap * i for i in range(21)], backend=backend, **about))
    return made


def entries_of(trials):
    return {(e["task"], e["name"]): e for e in table.table(trials, ABOUT)}


def test_each_task_has_its_own_rates_and_ratios():
    entries = entries_of(race())
    assert len(entries) == 3 * len(NAMES)
    assert {e["prompts"] for e in entries.values()} == {1}
    assert entries["copy", "loop+lookup"]["decode"].median == pytest.approx(120, rel=0.02)
    assert entries["copy", "loop+fused+lookup4"]["ratio"].value == pytest.approx(3, rel=0.02)
    assert entries["open", "loop+lookup"]["ratio"].value == pytest.approx(39 / 40, rel=0.02)
    assert entries["copy", "loop"]["ratio"] is entries["copy", "llamacpp"]["equal"] is None
    assert all(e["equal"] for e in entries.values() if e["ratio"])
    others = entries_of(race(tokens={"loop+lookup": "other"}))
    assert others["copy", "loop+lookup"]["equal"] is False
    assert others["copy", "loop+fused+lookup4"]["equal"] is True


def test_where_drafts_gain_less_under_the_last_placement_is_said():
    entries = table.table(race(), ABOUT)
    start = "Drafts gain less under loop+fused+lookup4 than under loop+lookup"
    assert table.smaller(entries) == f"{start} on open questions, by the intervals."
    alike = [e for e in entries if e["task"] != "open"]
    assert table.smaller(alike) == f"{start} on none of the tasks, by the intervals."
    assert table.smaller([e for e in entries if "fused" not in e["name"]]) == ""


def test_the_last_placement_without_drafts_stands_beside_the_other_runtimes():
    (line,) = table.leads(race(), ABOUT)
    assert re.match(r"loop\+fused over llama.cpp, all three tasks: 2\.(49|50|51)x \[", line)
    assert table.leads(race(names=NAMES[:-1]), ABOUT) == []


def test_what_passes_took_of_their_drafts():
    older = dict(count=4, drafted=[True, False])
    assert table.drafts(older) == table.drafts(dict(depths=[4, 0])) == [4, 0]
    entries = entries_of(race())
    passes = entries["copy", "loop+lookup"]["passes"]
    assert (passes["tokens_a_pass"], passes["accepted"], passes["drafted"]) == (19 / 4, 15 / 16, 1)
    made = [entries["copy", "loop+lookup"], entries["open", "loop+lookup"]]
    loop = [entries["copy", "loop"], entries["open", "loop"]]
    assert table.a_pass([*loop, *made]).startswith("tokens a pass of loop+lookup: 4.75 on a copy and ")
    assert table.a_pass([entries["open", "llamacpp"]]) == ""
    passes = entries["open", "loop+lookup"]["passes"]
    assert (passes["accepted"], passes["drafted"]) == (1 / 4, 1 / 4)
    assert entries["open", "llamacpp"]["passes"] is None
    costly = [row | dict(costs=[1.0, 1.2, cost]) for row, cost in zip(PASSES[2:4], (1.5, 1.9), strict=True)]
    said = "1.50 plain steps under loop+lookup (8 rows) and 1.90 plain steps under loop+fused+lookup4 (5 rows)"
    assert table.rows_by_subject(costly) == f"A pass with all of its drafts costs {said}."
    assert table.rows_by_subject(PASSES) == ""
    frame = show(entries.values(), table.COLUMNS)
    assert frame.loc[("copy", "loop+lookup"), "tokens per pass"] == 4.75
    assert frame.loc[("copy", "loop+lookup"), "same tokens"] == "yes"


@pytest.mark.parametrize(
    ("name", "without"),
    [("loop+fused+lookup6", "loop+fused"), ("llamacpp+lookup", "llamacpp"), ("step+scan", "step+scan")],
)
def test_a_subject_without_its_drafts(name, without):
    assert table.plain(name) == without


@pytest.mark.parametrize(
    ("ends", "said"),
    [
        ((0.9, 1.1), "2.00 and 3.00 times as fast at the two copies and show no effect on open questions"),
        ((0.8, 0.9), "2.00 and 3.00 times as fast at the two copies; it is slower on open questions"),
    ],
)
def test_the_title_of_rates_says_what_drafts_do_on_each_task(ends, said):
    def entry(task, value, low, high):
        about = dict(decode=statistics.summarise([value]), backend="jax", prompts=2)
        return dict(task=task, name="loop+lookup", ratio=Ratio(value, low, high, 6), **about)

    copies = [entry("copy", 2.0, 1.9, 2.1), entry("edit", 3.0, 2.9, 3.1)]
    assert (
        str(table.title([entry("open", sum(ends) / 2, *ends), *copies], "m"))
        == f"Prompt-lookup drafts make loop {said}"
    )
    one = [entry("open", sum(ends) / 2, *ends), copies[0], entry("edit", 1.0, 0.9, 1.1)]
    assert table.title(one, "m") == table.claim(one, "m")


DRAWN = {
    "rates": lambda trials: chart.rates(table.table(trials, ABOUT), "a model", [GAP]),
    "passes": lambda trials: chart.tokens_a_pass(table.table(trials, ABOUT), "loop+fused+lookup4"),
}


@pytest.mark.parametrize("name", DRAWN)
def test_each_chart_draws_in_style_and_where_there_is_little(tmp_path, name):
    for trials in ([], race(1, ["loop"])):
        assert figures.save(DRAWN[name](trials), "x", "nb", META, {}, "alt", tmp_path)["png"].is_file()
    figure = DRAWN[name](race())
    assert_drawn(figure, tmp_path)
    if name == "rates":
        assert words(figure).count("did not run") == 3
        assert named_well(GAP["name"]) in [tick.get_text() for tick in figure.axes[0].get_yticklabels()]
        assert "3.0" in words(figure)
        assert words(figure).count("of the same subject without drafts") == 1  # below, for all panels
    else:
        labels = [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
        assert labels[1].endswith("4.75 per pass, 94% of drafts accepted")
        said = "With prompt lookup the mean pass makes 1.25 tokens on open questions, 4.75 on a copy and 3.00 on a copy"
        assert " ".join(figure.get_suptitle().split()) == f"{said} with a word replaced"
