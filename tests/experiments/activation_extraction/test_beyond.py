"""Beyond one device and one disk: passes under a trace, over a mesh of two virtual devices, and uploads to an object
store; what does not count, and what the rows say."""

import os
import time
import urllib.request
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from llama_jax.plumbing.errors import UserError
from llama_lab.activations.folder import LocalFolder, open_folder
from llama_lab.activations.program import Extractor
from llama_lab.bench import AGAIN, recorded
from llama_lab.bench.journal import Journal
from llama_lab.bench.lab import Lab
from llama_lab.experiments.activation_extraction import beyond, beyond_table, object_store, rungs
from llama_lab.experiments.activation_extraction.beyond import (
    IDLE,
    MESH,
    PIPELINED,
    SINGLE,
    SPREAD,
    TRACED,
    UPLOADS,
    WAITING,
    Beyond,
    Pass,
    writers_of,
)
from llama_lab.experiments.activation_extraction.passes import Passes, Reference
from llama_lab.experiments.activation_extraction.pipeline import examples_of, product
from llama_lab.experiments.activation_extraction.rungs import Rung
from tests.experiments.activation_extraction.test_measure import LENGTH, TINY, WHO, small

pytestmark = pytest.mark.usefixtures("compiling")

PLAN = Beyond(
    model=TINY, seed=0, batch=2, length=LENGTH, unit=3, eager=2, dtype="bfloat16", beyond_examples=4, beyond_blocks=2,
    upload_unit=2, upload_writers=(1, 3), upload_delays=(0,),
)  # fmt: skip
GAP = [dict(name="object store", reason="moto is not installed", remedy="make s3")]


@pytest.fixture
def kept():
    """(a measuring process that is this one, its rows)."""
    rows = []

    def say(kind, value):
        if kind == "trial":
            rows.append(Pass(**value))

    return lambda run: (Lab(say, dict(run=run, block=1, process=1), TINY), rows)


def test_passes_are_interleaved_and_the_first_subject_is_its_own_control(kept):
    lab, rows = kept(IDLE)
    plan = replace(PLAN, beyond_blocks=3)
    plan.interleaved(lab, dict.fromkeys("abc", partial(row, wall=10**9)))
    assert [made.subject for made in rows if made.phase == "cold"] == [*"abc"]
    warm = [[made.subject for made in rows if made.phase == "warm" and made.block == block] for block in range(3)]
    assert [sorted(block) for block in warm] == [["a", "a" + AGAIN, "b", "c"]] * 3
    assert len({*map(tuple, warm)}) > 1
    assert len(warm[-1]) == plan.rows(3)


@pytest.fixture
def passes(tmp_path):
    setting = small()
    asked = examples_of(setting.loaded, 4, LENGTH)
    return Passes(setting, asked, 1, tmp_path, Reference(setting.loaded, asked[:1]))


@pytest.fixture
def spec(passes):
    return rungs.spec_of(rungs.PRODUCT, passes.setting.loaded.config.num_hidden_layers, passes.setting.dtype)


def test_the_pipeline_is_traced_and_its_idle_share_is_a_share(passes, spec):
    extractor = Extractor(passes.setting.loaded, spec, passes.setting.shape)
    plain, traced = (
        beyond.watched(passes, passes.setting, extractor, with_trace, PIPELINED, **WHO) for with_trace in (False, True)
    )
    assert (plain.valid, traced.valid) == (True, True), traced.reason
    assert plain.idle is None
    assert 0 <= traced.idle <= 1
    assert (plain.bytes, plain.rows) == (traced.bytes, traced.rows)  # the trace lies beside the store
    assert not list(passes.scratch.iterdir())


def test_another_store_than_that_of_one_device_does_not_count(passes, spec):
    """In the rows of which the reference knows nothing."""
    extractor = Extractor(passes.setting.loaded, spec, passes.setting.shape)
    rung, first = Rung("r", extractor.sites, product(passes.setting, extractor, None), extractor.plan), {}
    single = beyond.beside(passes, rung, first, SINGLE, **WHO)
    assert (single.valid, single.apart) == (True, 0.0)
    assert beyond.beside(passes, rung, first, SPREAD, **WHO).apart == 0.0
    first["resid_post:1"][-1] *= np.asarray(1.1, first["resid_post:1"].dtype)
    other = beyond.beside(passes, rung, first, SPREAD, **WHO)
    assert (other.valid, other.wrong) == (False, True)
    assert "of a token's length away from one device" in other.reason


def test_an_object_that_comes_back_otherwise_is_named(tmp_path):
    folder, objects = LocalFolder(tmp_path), {f"units/{i}": bytes([i]) * 1000 for i in range(9)}
    for writers in (0, 1, 4):
        beyond.upload(folder, objects, writers)
        assert beyond.differing(folder, objects) == ""
        for name in objects:
            folder.remove(name)
    beyond.upload(folder, objects, 4)
    (tmp_path / "units/7").write_bytes(b"\x07" * 999)
    assert beyond.differing(folder, objects) == "wrong: units/7 came back with other bytes"
    folder.remove("units/3")
    assert "units/3" in beyond.differing(folder, objects)


def test_an_upload_that_fails_fails(tmp_path):
    (tmp_path / "units").write_text("in the way")
    with pytest.raises(UserError, match="no file in its way"):
        beyond.upload(LocalFolder(tmp_path), {"units/0": b""}, 2)


@pytest.mark.skipif(bool(object_store.missing()), reason="`make s3` adds an object store")
def test_uploads_to_an_object_store(kept):
    lab, rows = kept(f"{UPLOADS} 0 ms")
    PLAN.uploaded(lab, delay=0)
    assert all(row.valid for row in rows), [row.reason for row in rows]
    assert {(row.subject.removesuffix(AGAIN), row.workers) for row in rows} == {(writers_of(n), n) for n in (1, 3)}
    assert len({(row.objects, row.bytes, row.tokens) for row in rows}) == 1
    assert rows[0].objects >= 2 * PLAN.beyond_examples // PLAN.upload_unit
    assert "Uploads by 3 writers, over 1 writer: " in beyond_table.upload_words(rows)


@pytest.mark.skipif(bool(object_store.missing()), reason="`make s3` adds an object store")
def test_a_store_answers_later_where_it_is_told_to_and_is_gone_with_its_block(monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "somebody")
    with object_store.running(delay=0.2) as url:
        address, folder = os.environ["AWS_ENDPOINT_URL"], open_folder(f"{url}/run")
        began = time.monotonic()
        folder.write("a", b"content")
        assert time.monotonic() - began >= 0.2
        assert folder.read("a") == b"content"
    assert "AWS_ENDPOINT_URL" not in os.environ
    assert os.environ["AWS_ACCESS_KEY_ID"] == "somebody"
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(address)


@pytest.mark.slow
def test_the_experiment_in_processes_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # a lock of its own: something may be measured here
    monkeypatch.setattr("llama_jax.plumbing.paths.tempfile.tempdir", None)
    journal = Journal(kind=Pass)
    plan = replace(PLAN, beyond_blocks=1)
    rows, about = plan.record(journal)
    assert all(row.valid for row in rows), [row.reason for row in rows]
    gaps = object_store.missing()
    assert about == dict(missing=gaps)
    assert list(dict.fromkeys(row.run for row in rows)) == [MESH, *[f"{UPLOADS} 0 ms"] * (not gaps), IDLE]
    meshed = {row.subject: row for row in rows if row.run == MESH and row.phase == "warm"}
    assert meshed.keys() == {SINGLE, SINGLE + AGAIN, SPREAD}
    assert meshed[SPREAD].apart <= 1e-3
    assert "one device" in beyond_table.mesh_words(rows)
    assert plan.record(journal)[0] == rows  # an interrupted run goes on: nothing is measured again


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (dict(batch=3), "a multiple of 2 rows"),
        (dict(length=10**6), "length is 1000000"),
        (dict(beyond_blocks=0), "beyond_blocks is 0"),
        (dict(upload_writers=[2, 0]), r"upload_writers\[1\] is 0"),
        (dict(upload_delays=[0, -1]), "holds -1"),
    ],
)
def test_a_plan_that_cannot_be_is_one_line(change, words):
    with pytest.raises(UserError, match=words):
        replace(PLAN, **change).record()


def row(subject, run, block, wall, **more):
    about = dict(order=0, process=1, seed=0, phase="warm", valid=True, backend="jax", model="m", weights_hash="w")
    sizes = dict(kept="bfloat16", sites=2, depth=2, batch=2, length=16, unit=2, examples=4, tokens=1000, batches=1)
    sizes |= dict(slots=32, rows=20, bytes=10**6, dtype="float32", wall_ns=wall)
    none = dict.fromkeys(("trace_ns", "lower_ns", "backend_ns", "lowered", "compiled"), 0)
    return Pass(**about | sizes | none | dict(subject=subject, run=run, block=block) | more)


def measured(idle=0.031, cost=2.0):
    """A mesh that takes `cost` times as long, four writers that take half as long where requests are slow."""
    rows, draw = [], np.random.default_rng(0)
    parts = [
        (MESH, {SINGLE: (1.0, dict(apart=0.0)), SPREAD: (cost, dict(apart=2e-4))}),
        (f"{UPLOADS} 50 ms", {writers_of(n): (1 / n, dict(workers=n, delay_ms=50, objects=8)) for n in (1, 2)}),
        (IDLE, {PIPELINED: (1, {}), PIPELINED + TRACED: (1.1, dict(idle=idle)), WAITING + TRACED: (1, dict(idle=0.5))}),
    ]
    for run, subjects in parts:
        base = next(iter(subjects))
        twice = subjects | {base + AGAIN: subjects[base]}
        rows += [row(name, run, 0, 10**9, phase="cold", **more) for name, (_, more) in subjects.items()]
        rows += [
            row(name, run, block, round(times * 10**9 * (1 + 0.002 * draw.random())), **more)
            for block in range(8)
            for name, (times, more) in twice.items()
        ]
    return rows


def test_what_was_measured_is_said():
    rows = measured()
    assert "idle for 3.1% [3.1, 3.1] of the traced time, below the planned 5%; where" in beyond_table.idle_words(rows)
    said = beyond_table.idle_words(measured(idle=0.08))
    assert "not below" in said
    assert said.endswith("each stage waits, for 50.0% [50.0, 50.0].")
    assert "activations within 0.0002 of a token's length at 0.50x" in beyond_table.mesh_words(rows)
    assert "slower" in beyond_table.mesh_words(rows)
    assert "by 2 writers, over 1 writer: 2.00x" in beyond_table.upload_words(rows)
    table = beyond_table.show(beyond_table.uploads(rows), beyond_table.UPLOAD_COLUMNS)
    assert table.loc[(50, 1), "MB/s"] == pytest.approx(1, rel=0.01)
    assert table.loc[(50, 2), "MB/s"] == pytest.approx(2, rel=0.01)
    assert list(table["verdict"]) == ["baseline", "faster"]
    assert list(table)[3:] == ["ratio", "low", "high", "verdict", "n"]
    assert "Two halves of a batch cost 2.00 times the whole batch." in beyond_table.mesh_words(rows)
    assert "Dividing the batch is no cost here; why was not" in beyond_table.mesh_words(measured(cost=0.5))


def test_the_baselines_rate_is_over_both_its_runs():
    rows = [
        row.model_copy(update=dict(wall_ns=4 * row.wall_ns)) if row.subject.endswith(AGAIN) else row
        for row in measured()
    ]
    one, two = beyond_table.uploads(rows)
    assert one["rate"].median == pytest.approx(500, rel=0.01)  # 1,000 and 250 tokens/s
    assert two["rate"].median / one["rate"].median == pytest.approx(two["ratio"].value, rel=0.01)


def test_what_was_not_measured_is_one_line(tmp_path, monkeypatch):
    rows, meta = PLAN.obtain("recorded", "77-beyond", tmp_path)
    assert (rows, meta) == ([], {})
    for columns in (beyond_table.IDLE_COLUMNS, beyond_table.MESH_COLUMNS, beyond_table.UPLOAD_COLUMNS):
        assert beyond_table.show([], columns).to_numpy().tolist() == [["not measured yet"]]
    (line,) = beyond_table.show([], beyond_table.UPLOAD_COLUMNS, GAP).to_numpy().tolist()[0]
    assert line == "not measured: moto is not installed (make s3)"
    words = beyond_table.idle_words([]) + beyond_table.mesh_words([]) + beyond_table.upload_words([])
    assert words.count("not measured yet") == 3
    assert "moto is not installed" in beyond_table.upload_words([], GAP)
    chosen = replace(PLAN)
    object.__setattr__(chosen, "given", dict(beyond_blocks=5, seed=1))
    with pytest.raises(UserError, match="beyond_blocks is 5, and 77-beyond does not say what it was recorded with"):
        chosen.obtain("recorded", "77-beyond", tmp_path)
    monkeypatch.setattr(Beyond, "optional", False)
    with pytest.raises(UserError, match="No recorded data"):
        PLAN.obtain("recorded", "77-beyond", tmp_path)
    assert not recorded.table_path("77-beyond", tmp_path).exists()


def test_without_the_packages_uploads_are_a_gap(monkeypatch):
    monkeypatch.setattr(object_store, "find_spec", lambda name: None if name == "moto" else True)
    assert object_store.missing() == GAP
    assert [point.run for point in PLAN.points(None)] == [MESH, IDLE]
    assert PLAN.about(None) == dict(missing=GAP)
    with pytest.raises(UserError, match="moto is not installed; `make s3`"), object_store.running():
        pass
