"""Charts of recompilation, drawn from made-up streams."""

import pytest

from llama_lab.bench import workload
from llama_lab.experiments.shapes_and_recompilation import chart, measure, table
from tests.experiments.shapes_and_recompilation.test_table import everything
from tests.figures.drawn import assert_drawn, words


def draw(name, rows):
    policies = table.accounts(rows, measure.SHAPES)
    if name == "compilations":
        return chart.compilations({a.subject: table.by_request(rows, a.subject) for a in policies}, policies)
    if name == "stream_seconds":
        return chart.stream_seconds(policies, table.all_parts(policies), table.ratios(policies))
    return chart.surprises(table.surprises(rows))


CHARTS = ("compilations", "stream_seconds", "surprises")


@pytest.mark.slow
@pytest.mark.parametrize("name", CHARTS)
@pytest.mark.parametrize("processes", [1, 3])
def test_each_chart_is_drawn_in_style(tmp_path, name, processes):
    rows = everything(processes)
    assert_drawn(draw(name, rows), tmp_path)


def test_policies_that_differ_by_little_once_warm_are_named_together():
    accounts = {a.subject: a for a in table.accounts(everything(3), measure.SHAPES)}
    one, other, *_ = accounts
    parts = {one: {"useful work": 1.0, "padding": 0.0}, other: {"useful work": 0.9, "padding": 0.13}}
    assert chart.once_warm(parts, [*accounts.values()]).endswith(f"fastest, {one} and {other} a warm one")
    parts[other]["padding"] = 0.5
    assert chart.once_warm(parts, [*accounts.values()]).endswith(f"fastest, {one} a warm one")


def test_bars_reach_the_total_and_name_the_fastest():
    rows = everything(3)
    figure = draw("stream_seconds", rows)
    drawn = words(figure)
    for text in ("4.3 s · fastest", "· 2.68x [2.68, 2.68]", "656 ms, 50% padding", "n = 3"):
        assert text in drawn
    policies = {a.subject: a for a in table.accounts(rows, measure.SHAPES)}
    axes = figure.axes[0]
    for label, height in zip(axes.get_yticklabels(), axes.get_yticks(), strict=True):
        reached = max(
            bar.get_x() + bar.get_width()
            for bar in axes.patches
            if abs(bar.get_y() + bar.get_height() / 2 - height) < 1e-9
        )
        assert reached == pytest.approx(sorted(policies[label.get_text()].total)[1])


def test_a_policy_with_wrong_tokens_has_no_bar():
    rows = [r.model_copy(update=dict(valid=False)) if r.subject == workload.ONE else r for r in everything()]
    assert "6 requests have wrong tokens: no time" in words(draw("stream_seconds", rows))
