"""The cost of rows: exact on made-up times, mistakes refused, and really measured on a small model."""

import pytest

from llama_jax.plumbing.errors import UserError
from llama_lab.bench import protocol
from llama_lab.experiments.compiled_kernels import rows, rows_chart
from llama_lab.experiments.compiled_kernels.rows import BATCH, SEQUENCE, Pass

TINY = (
    "random:smollm2-135m,num_hidden_layers=2,hidden_size=64,intermediate_size=128,num_attention_heads=4,num_key_value_heads=2,"
    "head_dim=16,vocab_size=97"
)


def passes(engine="loop+fused", costs={1: 1.0, 4: 1.2, 8: 2.0}, kind=SEQUENCE, context=64, blocks=3):  # noqa: B006
    """Times of 3 ms a row's pass, times the cost, with the process's own luck."""
    return [
        Pass(run=f"rows {engine}", block=block, order=i, process=block, seed=0, phase="warm", valid=True, engine=engine,
             kind=kind, rows=n, context=context, pass_ns=[int(3e6 * cost * (1 + 0.1 * block) + k) for k in range(5)])
        for block in range(blocks)
        for i, (n, cost) in enumerate(costs.items())
    ]  # fmt: skip


def test_costs_are_ratios_of_one_process():
    found = {(e["kind"], e["rows"]): e for e in rows.table(passes() + passes(costs={8: 2.5}, kind=BATCH))}
    assert found[SEQUENCE, 4]["ratio"].value == pytest.approx(1.2, rel=1e-4)
    assert found[SEQUENCE, 8]["ratio"].value == pytest.approx(2.0, rel=1e-4)
    assert found[BATCH, 8]["ratio"].value == pytest.approx(2.5, rel=1e-4)
    assert found[SEQUENCE, 1]["ms"].median == pytest.approx(3.3, rel=1e-3)
    assert (found[SEQUENCE, 4]["ratio"].n, found[SEQUENCE, 4]["ms"].n) == (3, 15)


def test_a_shape_without_its_single_row_has_no_ratio():
    (entry,) = rows.table(passes(costs={4: 1.2}))
    assert entry["ratio"].n == 0


def asked(**changes):
    counts = dict(row_passes=2, row_blocks=1)
    shapes = dict(row_engines=["loop+fused"], rows=[1, 4], row_contexts=[16])
    return rows.PassesOfRows(**dict(model=TINY, seed=0) | shapes | counts | changes)


@pytest.mark.parametrize(
    ("words", "changes"),
    [
        ("rows are \\[2, 4\\]; they must be positive and hold 1", dict(rows=[2, 4])),
        ("rows are \\[0, 1\\]", dict(rows=[0, 1])),
        ("passes is 0", dict(row_passes=0)),
        ("No such placement", dict(row_engines=["loop+fusd"])),
        ("keeps no cache of a fixed size", dict(row_engines=["step+growing"])),
        ("more than the model's 8192", dict(row_contexts=[9000])),
    ],
    ids=str,
)
def test_mistakes_are_refused_before_anything_is_measured(words, changes):
    with pytest.raises(UserError, match=words):
        asked(**changes).record()


def test_the_chart_labels_every_line_and_says_n():
    found = rows.table(passes() + passes("llamacpp", {1: 1, 4: 1.6, 8: 2.6}) + passes(costs={8: 2.5}, kind=BATCH))
    figure = rows_chart.costs(found)
    words = [text.get_text() for axes in figure.axes for text in axes.texts]
    assert {"loop+fused, context 64", "llamacpp, context 64"} <= set(words)
    assert all("n ≥ 3 processes" in axes.get_xlabel() for axes in figure.axes)
    assert rows_chart.costs([]).axes


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["loop+q4_1+fused", "loop"])
def test_a_child_times_every_shape(engine, tmp_path, monkeypatch):
    monkeypatch.setattr(protocol.tempfile, "gettempdir", lambda: str(tmp_path))
    found, _ = asked(row_engines=[engine], rows=[1, 3], row_contexts=[16, 40]).record()
    assert {(p.kind, p.rows, p.context) for p in found} == {
        (SEQUENCE, 1, 16), (SEQUENCE, 1, 40), (SEQUENCE, 3, 16), (SEQUENCE, 3, 40), (BATCH, 3, 16), (BATCH, 3, 40)
    }  # fmt: skip
    assert all(len(p.pass_ns) == 2 and min(p.pass_ns) > 0 for p in found)


@pytest.mark.slow
@pytest.mark.peers
def test_llamacpp_passes_rows_too(tmp_path, monkeypatch):
    monkeypatch.setattr(protocol.tempfile, "gettempdir", lambda: str(tmp_path))
    shapes = dict(row_engines=["llamacpp"], rows=[1, 2], row_contexts=[8], row_passes=1)
    found, _ = asked(model="smollm2-135m-instruct", **shapes).record()
    assert {(p.kind, p.rows) for p in found} == {(SEQUENCE, 1), (SEQUENCE, 2), (BATCH, 2)}
