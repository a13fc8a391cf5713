"""Sizes of growth: what a point means, mistakes, limits beside what was measured, and the processes."""

import numpy as np
import pytest

from llama_jax import checkpoint
from llama_lab.bench.journal import Journal
from llama_lab.bench.record import Run
from llama_lab.bench.wording import pooled, probed
from llama_lab.experiments.growth import chart, measure, table
from tests.bench.test_record import trial
from tests.figures.drawn import words

SMALL = (
    "random:smollm2-135m,num_hidden_layers={},hidden_size=48,intermediate_size=96,num_attention_heads=3,num_key_value_heads=1,"
    "head_dim=16,vocab_size=97"
)


def growth(**changes):
    sizes = dict(layers=[2], width=[], context=[], batch=[], models=[])
    counts = dict(seed=0, answers=1, processes=1, new_tokens=17)
    return measure.Growth(**dict(model="random:smollm2-135m") | sizes | counts | changes)


def size(axis, value, base=measure.BASE):
    return measure.size(Run(axis, value), base)


def test_a_point_changes_one_size_alone():
    base = checkpoint.load_config("random:smollm2-135m")
    seven = size("layers", 7)
    assert (checkpoint.load_config(seven.model).num_hidden_layers, seven.slots, seven.batch) == (7, 64, 1)
    width = checkpoint.load_config(size("width", 384).model)
    assert (width.hidden_size, width.intermediate_size, width.num_attention_heads, width.num_key_value_heads) == (
        384,
        1024,
        6,
        2,
    )
    assert width.head_dim == base.head_dim
    assert checkpoint.load_config(size("width", base.hidden_size).model) == base
    assert checkpoint.load_config(size("width", 128, "gpt2").model).num_attention_heads == 2
    assert size("context", 8192) == measure.Size("random:smollm2-135m", slots=8192)
    assert size("batch", 32) == measure.Size("random:smollm2-135m", batch=32)
    assert size("model", "random:llama-3.2-3b loop+bf16") == measure.Size("random:llama-3.2-3b", placement="loop+bf16")


def made():
    """Rows at 3 batches: 1 GB a step at 10 GB/s is 100 ms; operations take 50 ms a row; measured 20% above the
    larger."""
    common = dict(bytes_per_token=1e9, bandwidth_gbps=10.0, flops_per_token=5e9, weights_bytes=1)
    points = [
        trial("chunk8", 0, [10, 10 + ms, 10 + 2 * ms], run=f"batch {rows}", order=order, batch=rows, **common)
        for rows, ms in ((1, 120), (4, 240), (16, 960))
        for order in range(3)
    ]
    return [*points, trial("chunk8", 0, [1, 2, 3], run="layers 2", **common)]


def test_an_axis_in_the_order_of_its_sizes():
    one, four, sixteen = table.axis_of(made()[::-1], "batch", gflops=100.0)
    assert [p["value"] for p in (one, four, sixteen)] == ["1", "4", "16"]
    assert (one["median"], one["n"], one["processes"]) == (pytest.approx(120), 3, 1)
    assert one["bytes_ms"] == pytest.approx(100)
    assert [p["flops_ms"] for p in (one, four, sixteen)] == pytest.approx([50, 200, 800])
    assert table.crossing([one, four, sixteen]) == pytest.approx(2, rel=1e-6)
    assert np.isnan(table.crossing([four, sixteen]))
    said = table.finding(dict(batch=table.axis_of(made(), "batch", gflops=100.0, usual=5.0)))  # 200 ms
    assert said.startswith("A step takes 1.2 to 1.2 times its memory or arithmetic limit (median probe: ")
    assert "limit (median probe: 0.6 to 1.2), the most at " in said
    assert "16 times the rows take 8.0 times the limit (arithmetic by then), 8.0 times the time." in said
    assert said.endswith("reading takes as long as arithmetic at 2 rows (fastest bandwidth) or 4 (median).")
    void = [t.model_copy(update=dict(valid=False)) if t.run == "batch 4" else t for t in made()]
    assert [(p["value"], p["flops_ms"]) for p in table.axis_of(void, "batch")] == [("1", None), ("16", None)]


@pytest.mark.slow
def test_points_are_measured_in_processes_of_their_own(tmp_path, monkeypatch):
    monkeypatch.setattr("llama_jax.plumbing.paths.tempfile.gettempdir", lambda: str(tmp_path))
    journal = Journal()
    models = [SMALL.format(1), SMALL.format(3) + " loop+bf16"]
    trials, _ = growth(layers=[], models=models, answers=2).record(journal)
    assert all(t.valid for t in trials), [t.reason for t in trials]
    assert len({t.process for t in trials}) == 2
    assert all(note["gflops"] > 0 for note in journal.notes)
    small, large = table.axis_of(trials, "model", 1.0)
    one, three = (checkpoint.load_config(SMALL.format(n)) for n in (1, 3))
    assert (trials[0].dtype, trials[-1].dtype) in (("float32", "bfloat16"), ("bfloat16", "float32"))
    kept = 64 * one.kv_bytes_per_position(4), 64 * three.kv_bytes_per_position(2)
    assert [round(p["bytes"]) for p in (small, large)] == [
        4 * one.weights_read_per_token + kept[0],
        2 * three.weights_read_per_token + kept[1],
    ]
    assert (small["n"], small["value"]) == (2, SMALL.format(1))


def test_a_model_under_a_placement_of_its_own_stands_last_and_is_joined_with_no_other():
    common = dict(bytes_per_token=1e9, bandwidth_gbps=10.0, flops_per_token=5e9)
    named = {"a": 1, "b": 3, "c loop+q4_1+fused": 2}  # by the bytes of their weights
    rows = [
        trial("chunk8", 0, [10, 20, 30], run=f"model {name}", weights_bytes=n, **common) for name, n in named.items()
    ]
    points = table.axis_of(rows[::-1], "model")
    assert [p["value"] for p in points] == [*named]
    drawn = [list(line.get_xdata()) for line in chart.growth(dict(model=points)).axes[0].lines]
    assert drawn == [[0, 1], [0, 1], [2], [2]]
    assert "Under `chunk8`, n = 1, one process per point" in table.finding(dict(model=points))
    points[-1]["median"] = 1e6  # of another placement, so it is no part of what is said of chunk8
    assert table.claim(dict(model=points)).sentence == table.claim(dict(model=points[:-1])).sentence


def test_the_probes_of_all_points_count_as_those_of_one_run():
    runs = {f"batch {i}": dict(min=20.0 + i, median=30.0 + i, max=60.0 + 10 * i, n=4) for i in range(3)}
    meta = dict(bandwidth_gbps=runs, created="2026")
    said = "limits from the fastest of 12 bandwidth probes, 80 GB/s (median 31 GB/s)"
    assert probed(pooled(meta)) == said
    assert pooled(meta)["created"] == "2026"
    assert pooled({}) == {}


def point(axis, value, median, size, placement="chunk8"):
    limits = dict(bytes_ms=size / 1e8, usual_bytes_ms=size / 1e8, flops_ms=None)
    about = dict(ms=[median], n=1, processes=1, placement=placement)
    return dict(axis=axis, value=value, median=median, bytes=size) | limits | about


def grown():
    return {
        "layers": [point("layers", "3", 3.0, 1e8), point("layers", "30", 12.5, 4e8)],
        "width": [point("width", "192", 6.0, 1e8), point("width", "960", 12.0, 4e8), point("width", "961", 12.0, 4e8)],
        "batch": [point("batch", "1", 10.0, 4e8), point("batch", "2", 99.0, 4.2e8, "another")],
    }


def test_what_grows_more_than_the_bytes_stands_beside_the_spread_between_processes():
    points = grown()
    assert table.twins(points) == [12.5, 12.0, 12.0, 10.0]
    assert table.against_spread(points).split("\n") == [
        "One configuration, measured in 4 processes, takes 10.0 to 12.5 ms: 1.25-fold between processes.",
        "Time over limit changes 1.04-fold along layers, against 1.25-fold between processes: no effect is shown (we"
        " call it one from 1.38-fold on, 1.1 times that spread).",
        "Along width time rises 2.0-fold, the limit 4.0-fold, beyond that spread.",
        "Along rows time rises 9.9-fold, the limit 1.1-fold, beyond that spread.",
        "The point furthest above its limit is 2 rows, at 23.6 times.",
        "2 rows take 9.9 times the time of 1 row for 5% more bytes; these data do not say why.",
    ]
    points["batch"][1]["median"] = 13.0  # as slow as another process may be
    assert not table.further_rows(points)
    assert table.against_spread({}).startswith("No configuration was measured twice")


def test_rows_whose_arithmetic_is_the_limit_are_not_held_against_their_bytes():
    points = grown()
    points["batch"][1] |= dict(flops_ms=40.0, median=100.0)  # ten times the limit, as long
    assert table.claim(points).sentence.endswith(" less than its limit along width; undecided along layers and rows.")
    assert "2 times the rows take 10.0 times the limit (arithmetic by then), 10.0 times the time" in table.finding(
        points
    )


def test_the_claim_says_how_time_grows_beside_the_limit_and_limits_where_no_spread_is_known():
    points = grown()
    said = "A step's time grows less than its limit along width, {} along rows; undecided along layers."
    assert table.claim(points).sentence == said.format("far more")
    points["batch"][1]["median"] = 1.5 * 10.5
    assert table.claim(points).sentence == said.format("more")
    within = dict(layers=points["layers"], same=[point("width", "576", 12.0, 4e8)])
    undecided = "Whether a step's time grows more or less than its limit is undecided along layers."
    assert table.claim(within).sentence == undecided
    del points["layers"]
    assert table.claim(points).sentence == "A step's time grows less than its limit along width, more along rows."
    alone = {"layers": [point("layers", "3", 3.0, 1e8), point("layers", "30", 12.5, 4e8)]}
    assert table.claim(alone).sentence.startswith("A step under chunk8 takes 3.0 to 3.1 times its memory or arith")


def test_the_panels_of_sizes_have_one_scale_and_say_what_they_grow_by():
    figure = chart.growth(grown())
    figure.draw_without_rendering()
    panels = {axes.get_title("left"): axes for axes in figure.axes}
    scales = [axes.get_window_extent().width / np.log10(np.divide(*axes.get_xlim()[::-1])) for axes in panels.values()]
    assert max(scales) / min(scales) < 1.05
    assert {line.get_label() for line in panels["layers"].lines} == {"measured", "memory or arithmetic limit"}
    assert panels["layers"].get_xlabel() == "time grows 4.2x, limit 4.0x: undecided"
    assert panels["width"].get_xlabel() == "time grows 2.0x, limit 4.0x: less"
    assert " less than 1.38-fold apart (1.1 times the 1.25-fold spread of one configuration between" in words(figure)


def test_a_size_too_near_to_the_next_stands_a_line_lower():
    assert chart.staggered([192, 576, 768, 960], ["a", "b", "c", "d"]) == ["a", "b", "\nc", "d"]
    assert chart.staggered([100, 101, 102, 103], ["a", "b", "c", "d"]) == ["", "", "\nc", "d"]
