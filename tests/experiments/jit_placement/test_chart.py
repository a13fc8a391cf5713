"""Charts of the placements say what the trials say, and are drawn in style."""

import pytest

from llama_lab.bench import summary
from llama_lab.experiments.jit_placement import chart
from tests.figures.drawn import assert_drawn, trials


@pytest.mark.slow
@pytest.mark.parametrize("name", ["throughput", "latency", "compilation", "break_even", "pipelines"])
def test_each_chart_is_drawn_in_style(tmp_path, name):
    data = trials()
    table = summary.table(data, "step")
    draw = {
        "throughput": lambda: chart.throughput(data, table),
        "latency": lambda: chart.latency(data, table),
        "compilation": lambda: chart.compilation(data, ["eager", "step", "loop"]),
        "break_even": lambda: chart.break_even(table),
        "pipelines": lambda: chart.pipelines(data, {"step": "one", "loop": "two"}),
    }[name]
    assert "<svg" in assert_drawn(draw(), tmp_path)


def test_a_subject_without_a_valid_trial_says_so_in_the_figure():
    data = [
        t.model_copy(update=dict(valid=False, reason="wrong: token 0")) if t.subject == "loop" else t for t in trials()
    ]
    figure = chart.throughput(data, summary.table(data, "step"))
    assert any("no valid trial" in text.get_text() for text in figure.axes[0].texts)
