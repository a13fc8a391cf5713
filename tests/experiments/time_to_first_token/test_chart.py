"""Charts of the time to first token, drawn from made-up trials."""

import pytest

from llama_jax import config
from llama_jax.bench import published as bench_published
from llama_jax.experiments.time_to_first_token import chart, table
from tests.experiments.time_to_first_token.test_table import AT, LENGTHS, everything, request
from tests.figures.drawn import assert_same_twice, words


def draw(name, trials):
    if name == "ttft_by_length":
        limits = table.limits(trials, "step exact", table.floor(config.tiny(), LENGTHS), 1.0)
        return chart.ttft_by_length(trials, limits, {"llamacpp": 0.5})
    if name == "ttft_cold":
        return chart.ttft_cold(table.cold(trials, AT))
    if name == "ttft_distribution":
        return chart.ttft_distribution(trials, AT)
    if name == "ttft_tails":
        return chart.ttft_tails(table.tails(trials), trials)
    published = {case: numbers[:2] for case, numbers in table.originals().items()}
    return chart.ttft_mixed(table.mixing(trials, AT), published, bench_published.COLD_LOOP)


@pytest.mark.parametrize("name", ["ttft_by_length", "ttft_cold", "ttft_distribution", "ttft_tails", "ttft_mixed"])
@pytest.mark.parametrize("blocks", [1, 6])
def test_each_chart_draws_the_same_bytes_twice(tmp_path, name, blocks):
    trials = everything(blocks)
    assert_same_twice(lambda: draw(name, trials), tmp_path)


def test_lines_are_labelled_and_the_best_of_each_kind_stands_out():
    figure = draw("ttft_by_length", everything())
    left, right = figure.axes
    bold = {text.get_text() for text in left.texts if text.get_fontweight() == "bold"}
    assert bold == {"step exact", "torch", "llamacpp"}
    assert {"torch-script", "step fixed"} < {text.get_text() for text in left.texts}
    assert {text.get_text() for text in right.texts} == {"torch", "torch-script", "llamacpp"}
    colours = {line.get_color() for line in left.lines}
    assert len(colours & {shade for shade, *_ in (("#0072B2",), ("#D55E00",), ("#009E73",))}) == 3
    assert "n ≥ 6" in left.get_title(loc="left")
    assert "n ≥ 6 pairs" in right.get_title(loc="left")
    assert "its weights read once: llamacpp" in words(figure)


def test_a_p99_is_drawn_only_where_there_is_one():
    few, many = words(draw("ttft_distribution", everything())), words(draw("ttft_distribution", everything(tail=1000)))
    assert "P99 " not in few.replace("diamond: P99", "").replace("no P99 below", "")
    assert "no P99 below n = 1,000" in few
    assert "n = 1006, P99" in many


def test_tails_are_drawn_of_those_who_have_them_and_say_how_many_requests_they_stand_on():
    assert "so there is no P95" in words(draw("ttft_tails", everything()))
    figure = draw("ttft_tails", everything(tail=1000))
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["torch (n = 1,006 a length)"]
    assert {"P50", "P95", "P99", "mean"} <= {line.get_label() for line in figure.axes[0].lines}


def test_a_tail_of_some_hundred_requests_has_a_p95_and_no_p99():
    figure = draw("ttft_tails", everything(tail=300))
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["torch (n = 306 a length; P99 from n = 1,000 on)"]
    drawn = {line.get_label() for line in figure.axes[0].lines}
    assert {"P50", "P95", "mean"} <= drawn
    assert "P99" not in drawn


def test_cold_bars_reach_the_median_and_say_how_much_longer_it_is():
    figure = draw("ttft_cold", everything())
    axes = figure.axes[0]
    labels = {label.get_text(): height for label, height in zip(axes.get_yticklabels(), axes.get_yticks(), strict=True)}
    for e in table.cold(everything(), AT):
        height = labels[e["subject"]]
        reached = max(
            b.get_x() + b.get_width() for b in axes.patches if abs(b.get_y() + b.get_height() / 2 - height) < 1e-9
        )
        assert reached == pytest.approx(e["median"] / 1e3)
    assert "1.50 s, 21x of a warm one (70.2 ms)" in words(figure)
    assert "n = 1 each" in words(figure)


def test_mixed_means_stand_beside_the_published_ones():
    figure = draw("ttft_mixed", everything())
    assert "mean 1.28x of P99" in words(figure)
    assert "mean 5.1x of the largest" in words(figure)
    assert "mean of 1 cold and 4 warm requests" in figure.axes[1].get_title(loc="left")
    assert "no subject has a cold and 4 warm requests" in words(draw("ttft_mixed", everything(blocks=1)))


def test_one_length_alone_can_be_drawn():
    alone = [t for t in everything() if t.prompt_tokens == AT]
    assert words(chart.ttft_by_length(alone, {AT: 1.0}, {}))
    unfinished = [t for t in everything() if t.phase == "warm"] + [
        request("step exact", AT, 0, phase="cold", valid=False)
    ]
    assert "There is no valid cold start." in words(chart.ttft_cold(table.cold(unfinished, AT)))
