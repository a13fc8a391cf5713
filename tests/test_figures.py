import itertools
import json

import numpy as np
import pytest

from llama_jax import figures
from llama_jax.bench import summary
from llama_jax.experiments.honest_measurement import chart as honest_measurement_chart
from llama_jax.experiments.honest_measurement import measure, simulation
from llama_jax.experiments.jit_placement import chart as jit_placement_chart
from llama_jax.experiments.text_generation import chart as text_generation_chart
from llama_jax.figures import marks
from llama_jax.placement import LADDER
from tests.bench.test_record import trial
from tests.experiments.honest_measurement.test_measure import cache_claim, first_token_claim, order_claim

META = {
    "environment": {"cpu": "C", "cores": 2, "ram_bytes": 2**34, "packages": {"jax": "1"}, "python": "3"},
    "created": "2026-01-01T00:00:00Z",
    "sha256": "d",
}  # fmt: skip


def trials():
    rng = np.random.default_rng(0)
    made = [
        trial(n, b, (10, 20, 30 + rng.random())) for n in ("eager", "step", "step (again)", "loop") for b in range(6)
    ]
    return made + [
        trial(n, phase="cold", compiled=3, trace_ns=10**8, lower_ns=10**8, backend_ns=10**9)
        for n in ("eager", "step", "loop")
    ]


def test_every_rung_has_a_colour_of_its_own():
    assert len({figures.colour(name) for name in LADDER}) == len(LADDER)
    assert figures.colour("step (again)") == figures.colour("step")
    assert figures.colour("mine") == figures.colour("mine")
    assert figures.colour("mine") not in figures.COLOURS.values()


SIMULATED = [
    dict(scenario=s, protocol=p, runs=9, coverage=0.9, aa_false_positive_rate=0.1, power=0.5)
    for s in ("base", "other")
    for p in ("ours", "naive")
]
THRESHOLDS = dict(
    coverage=simulation.COVERAGE, aa_false_positive_rate=simulation.FALSE_POSITIVES, power=simulation.POWER
)
CHARTS = (
    "throughput",
    "latency",
    "compilation",
    "break_even",
    "pipelines",
    "arrivals",
    "speed_ups",
    "first_tokens",
    "two_ways",
    "validation",
)


@pytest.mark.parametrize("chart", CHARTS)
def test_each_chart_draws_the_same_bytes_twice(tmp_path, chart):
    data = trials()
    table = summary.table(data, "step")
    draw = {
        "throughput": lambda: jit_placement_chart.throughput(data, table),
        "latency": lambda: jit_placement_chart.latency(data, table),
        "compilation": lambda: jit_placement_chart.compilation(data, ["eager", "step", "loop"]),
        "break_even": lambda: jit_placement_chart.break_even(table),
        "pipelines": lambda: jit_placement_chart.pipelines(data, {"step": "one", "loop": "two"}),
        "arrivals": lambda: text_generation_chart.arrivals(data, {"step": "one", "loop": "two"}),
        "speed_ups": lambda: honest_measurement_chart.speed_ups(measure.speed_ups(cache_claim()), 60.0),
        "first_tokens": lambda: honest_measurement_chart.first_tokens(measure.first_tokens(first_token_claim()), 50.0),
        "two_ways": lambda: honest_measurement_chart.two_ways(measure.two_ways(order_claim()), 10, "A 1, B 2"),
        "validation": lambda: honest_measurement_chart.validation(SIMULATED, THRESHOLDS),
    }[chart]
    files = [figures.save(draw(), "x", "nb", META, {}, "alt", tmp_path / str(i)) for i in range(2)]
    for kind in ("svg", "png"):
        assert files[0][kind].read_bytes() == files[1][kind].read_bytes()
    text = files[0]["svg"].read_text()
    assert "<svg" in text


def test_a_subject_without_a_valid_trial_says_so_in_the_figure(tmp_path):
    data = [
        t.model_copy(update=dict(valid=False, reason="wrong: token 0")) if t.subject == "loop" else t for t in trials()
    ]
    figure = jit_placement_chart.throughput(data, summary.table(data, "step"))
    assert any("no valid trial" in text.get_text() for text in figure.axes[0].texts)


def test_the_machine_and_the_note_are_in_the_figure(tmp_path):
    figure = jit_placement_chart.throughput(trials(), summary.table(trials(), "step"))
    figures.save(figure, "x", "nb", META, {"n": 1}, "alt", tmp_path, "random weights")
    assert any("C, 2 cores" in t.get_text() and "random weights" in t.get_text() for t in figure.texts)
    entry = json.loads((tmp_path / "figures" / "manifest.json").read_text())["figures"]["x"]
    assert (entry["notebook"], entry["parameters"], entry["data_sha256"], entry["alt"]) == ("nb", {"n": 1}, "d", "alt")


def words(figure):
    return " ".join(text.get_text() for axes in figure.axes for text in [*axes.texts, axes.xaxis.label, axes.title])


def test_the_claims_say_what_was_published_and_what_counts():
    drawn = words(honest_measurement_chart.speed_ups(measure.speed_ups(cache_claim()), 60.0))
    for text in ("published 16.32x", "here 30.00x", "never published", "guard on", "memory-bandwidth limit 60"):
        assert text in drawn
    drawn = words(honest_measurement_chart.first_tokens(measure.first_tokens(first_token_claim()), 50.0))
    for text in (
        "76.04",
        "59.25",
        "mean 260 ms",
        "no p99: p99 needs 1,000 values, there are 100",
        "arithmetic limit 50 ms",
    ):
        assert text in drawn
    drawn = words(honest_measurement_chart.two_ways(measure.two_ways(order_claim()), 10, "A 1, B 2"))
    assert "1 of 1 rounds (x) call one program two" in drawn
    assert "0 of 1 rounds (x) call one program two" in drawn


def test_a_busy_machine_is_flagged_in_the_figure(tmp_path):
    busy = {**META, "environment": {**META["environment"], "watch": dict(others_cpu=0.4, steal=0.0, load_before=0.1)}}
    for meta, flagged in ((META, False), (busy, True)):
        figure = jit_placement_chart.throughput(trials(), summary.table(trials(), "step"))
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
