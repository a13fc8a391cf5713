"""Charts of the host strategies say what the trials say, and are drawn in style."""

import pytest

from llama_lab.experiments.host_loop import chart, measure
from tests.experiments.host_loop.test_measure import measured_models
from tests.figures.drawn import assert_drawn, words


@pytest.fixture(scope="module")
def panels():
    made = measured_models()
    return [(m, measure.of_model(made, m), measure.table(made, m)) for m in ("random:small", "m")]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["strategies", "dispatch", "load"])
def test_each_chart_is_drawn_in_style(tmp_path, name, panels):
    points = measure.by_size(measured_models())
    draw = {
        "strategies": lambda: chart.host_strategies(panels),
        "dispatch": lambda: chart.dispatch_and_device(points, measure.crossover(points)),
        "load": lambda: chart.host_load(panels, 2),
    }[name]
    assert_drawn(draw(), tmp_path)


def test_rates_say_ratio_verdict_and_limit(panels):
    drawn = words(chart.host_strategies(panels))
    for text in (
        "baseline, n = 6",
        "equal within 2 %, n = 6",
        "faster, n = 6",
        "bandwidth limit 1,000",
    ):
        assert text in drawn
    void = [
        t.model_copy(update=dict(valid=False, reason="wrong: token 0")) if t.subject == "loop" else t
        for t in panels[1][1]
    ]
    assert "no valid trial: wrong: token 0" in words(chart.host_strategies([("m", void, measure.table(void, "m"))]))


def test_the_crossing_is_marked_only_where_there_is_one():
    points = measure.by_size(measured_models())
    assert "waiting overtakes dispatch" in words(chart.dispatch_and_device(points, measure.crossover(points)))
    assert "waiting overtakes dispatch" not in words(chart.dispatch_and_device(points[1:], None))
