"""Charts of the time to first token, drawn from made-up trials."""

import pytest

from llama_jax import config
from llama_lab import figures
from llama_lab.bench.wording import named_well
from llama_lab.experiments.time_to_first_token import chart, first_requests, request_chart, side_by_side, table
from llama_lab.experiments.time_to_first_token.measure import floor
from tests.experiments.time_to_first_token.test_table import AT, LENGTHS, changed, everything, request
from tests.figures.drawn import assert_drawn, assert_in_style, words


def by_length(trials, **how):
    limits = table.limits(trials, "step exact", floor(config.tiny(), LENGTHS), 1.0)
    return chart.ttft_by_length(trials, limits, **how)


def cold(trials):
    return request_chart.ttft_cold(first_requests.cold(trials, AT))


def tails(trials):
    return request_chart.ttft_tails(side_by_side.tails(trials))


CHARTS = (by_length, cold, tails)


@pytest.mark.slow
@pytest.mark.parametrize("draw", CHARTS)
@pytest.mark.parametrize("blocks", [1, 6])
def test_each_chart_is_drawn_in_style(tmp_path, draw, blocks):
    assert_drawn(draw(everything(blocks, tail=200)), tmp_path)


@pytest.mark.parametrize("draw", CHARTS)
def test_each_chart_is_drawn_of_one_length_without_cold_requests(draw):
    alone = [t for t in everything() if t.prompt_tokens == AT and t.phase == "warm"]
    void = request("step exact", AT, 0, phase="cold", valid=False)
    assert_in_style(draw([*alone, void]))


def test_the_best_of_each_kind_is_named_in_its_colour_at_the_end_of_its_line():
    (axes,) = by_length([*everything(), *(request("torch", 100, b, "tail") for b in range(3))]).axes
    best = table.highlighted(everything())
    named = [text for text in axes.texts if hasattr(text, "xy")]
    ends = {text.get_text().partition(" (")[0].partition(":")[0]: text.xy[0] for text in named}
    assert ends == dict.fromkeys([*map(named_well, best), chart.LIMIT], 100)
    assert {line.get_color() for line in axes.lines} == {*map(figures.colour, best), chart.LIMIT_COLOUR}
    assert len(best) > 1


def test_who_is_first_at_every_length_is_said_so():
    assert "step exact has the earliest first token at every length, 120 ms at 100 tokens" in words(
        by_length(everything())
    )
    beaten = changed(everything(), "llamacpp", 10, token_times_ns=[10**7, 2 * 10**7])
    assert "step exact has the earliest first token at 100 prompt tokens, 120 ms" in words(by_length(beaten))


def test_a_subject_at_the_end_of_its_line_is_named_as_its_makers_write_it():
    made = [t.model_copy(update=dict(subject="torch-compile")) if t.subject == "torch" else t for t in everything()]
    assert f"{named_well('torch-compile')} (float32)" in words(by_length(made))


def test_two_tails_of_a_colour_differ_in_shade_and_mark():
    asked = [t for t in everything(tail=200) if t.run == "tail"]
    twins = [t.model_copy(update=dict(subject=name)) for name in ("torch", "torch-script") for t in asked]
    (axes,) = tails(twins).axes
    assert len({(line.get_color(), line.get_marker()) for line in axes.lines}) == 2
    assert len({line.get_color() for line in axes.lines}) == len({line.get_marker() for line in axes.lines}) == 2


def test_of_few_processes_the_range_of_their_medians_is_drawn_and_of_many_or_one_the_interval():
    def entry(*processes):
        rows = [request("torch", AT, 0, ms=10 * p + i, process=p) for p in processes for i in range(3)]
        return dict(rows=rows, low=1.0, p50=20.0, high=99.0)

    assert chart.span(entry(1, 2, 3)) == (pytest.approx(11), 20, pytest.approx(31))
    assert chart.span(entry(1)) == chart.span(entry(*range(6))) == (1, 20, 99)
    one = [t.model_copy(update=dict(process=1)) for t in everything()]
    few, alone = (by_length(trials).axes[0].get_title(loc="left") for trials in (everything(), one))
    assert "range over processes" in few
    assert "range over" not in alone


def test_two_lines_of_a_colour_have_two_marks():
    twin = [t.model_copy(update=dict(subject="torch-int8", dtype="int8")) for t in everything() if t.subject == "torch"]
    (axes,) = by_length([*everything(), *twin]).axes
    marks = [line.get_marker() for line in axes.lines if line.get_color() == figures.colour("torch")]
    assert len(set(marks)) == len(marks) == 2


def test_labels_that_would_touch_are_left_out():
    assert chart.thinned([400, 350, 300, 100, 50, 10], 1.4) == [400, 100, 50, 10]
    assert chart.thinned([10, 50, 100, 150, 200, 250, 300, 400], 1.3) == [10, 50, 100, 150, 200, 300, 400]
    assert chart.thinned([], 2) == []


def test_cold_rows_reach_the_median_and_say_how_much_longer_it_is():
    figure = cold(everything())
    axes = figure.axes[0]
    labels = {label.get_text(): height for label, height in zip(axes.get_yticklabels(), axes.get_yticks(), strict=True)}
    for e in first_requests.cold(everything(), AT):
        bars = [line for line in axes.lines if line.get_linewidth() == 3 and len(line.get_ydata())]
        (ends,) = [list(line.get_xdata()) for line in bars if line.get_ydata()[0] == labels[named_well(e["subject"])]]
        assert ends == pytest.approx([e["warm_ms"] / 1e3, e["median"] / 1e3])
    assert "1.50 s, 21 × warm" in words(figure)
    kernels = dict(subject="step+fused exact", median=8, warm_ms=1, n=2)
    said = request_chart.worst_start([kernels, kernels | dict(subject="torch", median=90)])
    assert said.endswith("under PyTorch, 8.0 under step+fused exact (kernels on disk) (n = 2)")
    three = [kernels, kernels | dict(subject="torch", median=90), kernels | dict(subject="llamacpp", median=2)]
    assert ", 2.0 under the others (n = 2)" in request_chart.worst_start(three)


@pytest.mark.parametrize("tail", [0, 300, 1000])
def test_a_percentile_is_drawn_only_where_the_sample_holds_it(tail):
    figure = tails(everything(tail=tail))
    assert ("so there is no P95" in words(figure)) == (not tail)
    if tail:
        assert "No tail of step was measured." in words(
            request_chart.ttft_tails(side_by_side.tails(everything(tail=tail)), "step")
        )
        (line,) = figure.axes[0].lines
        (e,) = [e for e in side_by_side.tails(everything(tail=tail)) if e["p95"]]
        assert line.get_xydata().tolist() == [[e["tokens"], e["p95"] / e["p50"]]]


def test_the_title_of_tails_says_the_share_at_the_shortest_prompt_and_at_the_longest():
    held = [dict(tokens=n, p50=100.0, p95=late) for n, late in ((200, 110.0), (50, 150.0), (10, 130.0), (10, 140.0))]
    said = "The P95 of first tokens is 1.30 to 1.40 times their median at 10 prompt tokens"
    assert request_chart.slowest(held) == f"{said}, 1.10 at 200"
    assert request_chart.slowest(held[2:]) == said


def test_a_peer_that_is_not_drawn_though_it_comes_before_those_that_are_is_named():
    trials = side_by_side.interleaved(everything())
    took = {name: table.middle(trials, name, LENGTHS[0]) for name in table.rivals(trials)}
    first, *_, last = sorted(took, key=took.get)
    said = chart.ahead_of_drawn(trials, [last], LENGTHS[0])
    assert said.startswith(f"{named_well(first)} ({took[first]:,.1f} ms)")
    assert said.count(" ms)") == sum(ms < took[last] for ms in took.values())
    assert chart.ahead_of_drawn(trials, [first], LENGTHS[0]) == ""


def test_a_limit_of_arithmetic_alone_is_called_that():
    for arithmetic in (True, False):
        assert ("float32 arithmetic limit: " in words(by_length(everything(), arithmetic=arithmetic))) is arithmetic
