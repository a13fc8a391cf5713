"""Charts of the time to first token, drawn from made-up trials."""

import pytest

from llama_jax import config
from llama_lab import figures
from llama_lab.bench import published as bench_published
from llama_lab.experiments.time_to_first_token import chart, first_requests, table
from tests.experiments.time_to_first_token.test_table import AT, LENGTHS, everything, request
from tests.figures.drawn import assert_drawn, words


def draw(name, trials):
    if name == "ttft_by_length":
        limits = table.limits(trials, "step exact", table.floor(config.tiny(), LENGTHS), 1.0)
        return chart.ttft_by_length(trials, limits, {"llamacpp": 0.5})
    if name == "ttft_cold":
        return chart.ttft_cold(first_requests.cold(trials, AT))
    published = {case: numbers[:2] for case, numbers in first_requests.originals().items()}
    return chart.ttft_mixed(first_requests.mixing(trials, AT), published, bench_published.COLD_LOOP)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ttft_by_length", "ttft_cold", "ttft_mixed"])
@pytest.mark.parametrize("blocks", [1, 6])
def test_each_chart_is_drawn_in_style(tmp_path, name, blocks):
    trials = everything(blocks)
    assert_drawn(draw(name, trials), tmp_path)


def test_the_best_of_each_kind_is_named_in_its_colour_and_the_others_are_grey():
    figure = draw("ttft_by_length", everything())
    left, right = figure.axes
    best = {"step exact", "torch", "llamacpp"}
    assert best < {text.get_text() for text in left.texts}
    assert not {"torch-script", "step fixed"} & {text.get_text() for text in left.texts}
    assert {text.get_text() for text in right.texts} == {"torch", "llamacpp"}
    assert {line.get_color() for line in left.lines} == {
        *(figures.colour(name) for name in best),
        chart.OTHER,
        chart.LIMIT_COLOUR,
    }
    assert "n ≥ 6; grey: 2 others, in the table" in left.get_title(loc="left")
    assert "n ≥ 6 pairs" in right.get_title(loc="left")
    assert "its weights read once: llamacpp" in words(figure)


def test_a_name_stands_at_the_end_of_its_own_line():
    trials = [*everything(), *(request("torch", 400, b, "tail") for b in range(3))]
    limits = dict.fromkeys(table.lengths(trials), 1.0)
    left, _ = chart.ttft_by_length(trials, limits, {}).axes
    assert {text.get_text(): text.xy[0] for text in left.texts if hasattr(text, "xy")} == {
        **dict.fromkeys(("step exact", "llamacpp"), 100),
        "torch": 400,
    }


def test_ticks_of_lengths_are_written_where_they_can_be_read():
    assert chart.thinned([10, 50, 100, 300, 350, 400]) == [400, 100, 50, 10]


def test_cold_rows_reach_the_median_and_say_how_much_longer_it_is():
    figure = draw("ttft_cold", everything())
    axes = figure.axes[0]
    labels = {label.get_text(): height for label, height in zip(axes.get_yticklabels(), axes.get_yticks(), strict=True)}
    for e in first_requests.cold(everything(), AT):
        bars = [line for line in axes.lines if line.get_linewidth() == 6 and len(line.get_ydata())]
        here = [line.get_xdata() for line in bars if line.get_ydata()[0] == labels[e["subject"]]]
        assert max(max(xs) for xs in here) == pytest.approx(e["median"] / 1e3)
    assert "1.50 s, 21x of warm" in words(figure)
    assert "n = 1 each" in words(figure)
    assert axes.get_xscale() == "log"


def test_mixed_means_stand_beside_the_published_ones():
    figure = draw("ttft_mixed", everything())
    assert "mean 1.28x of P99" in words(figure)
    assert "mean 5.1x of the largest" in words(figure)
    assert "here 5 requests, the first of them cold" in words(figure)
    assert "no subject has a cold and 4 warm requests" in words(draw("ttft_mixed", everything(blocks=1)))


def test_one_length_alone_can_be_drawn():
    alone = [t for t in everything() if t.prompt_tokens == AT]
    assert words(chart.ttft_by_length(alone, {AT: 1.0}, {}))
    unfinished = [t for t in everything() if t.phase == "warm"] + [
        request("step exact", AT, 0, phase="cold", valid=False)
    ]
    assert "There is no valid cold start." in words(chart.ttft_cold(first_requests.cold(unfinished, AT)))
