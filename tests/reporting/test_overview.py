"""The table of all subjects says what the notebooks' own tables say, and is made for tables of every kind."""

import json
import math
import shutil

import pytest

from llama_jax.plumbing import paths
from llama_jax.plumbing.errors import UserError
from llama_lab.bench import AGAIN, SAMPLED, record, summary
from llama_lab.bench.cold import Start
from llama_lab.experiments.activation_extraction import table as extraction
from llama_lab.experiments.activation_extraction.plan import Extraction
from llama_lab.experiments.fewer_bits import table as ladders
from llama_lab.experiments.host_loop.clock import HostTrial
from llama_lab.experiments.time_to_first_token import table
from llama_lab.reporting import overview

DATA = paths.ROOT / "data"


def read(name):
    return overview.lines(DATA / f"{name}.csv", overview.about(DATA / f"{name}.csv"))


def test_the_ladder_is_notebook_threes():
    trials, meta = record.read(DATA / "03-jit-placement.csv")
    found = {line.subject: line for line in read("03-jit-placement")}
    expected = summary.table(trials, meta["baseline"], meta["subjects"])
    assert {name for name in found if not name.endswith(SAMPLED)} == {e["name"] for e in expected}
    for e in expected:
        line, rate, ratio = found[e["name"]], e["tokens_per_second"], e["ratio_to_baseline"]
        assert (line.middle.median, line.middle.low, line.middle.high, line.middle.n) == tuple(
            rate[k] for k in ("median", "low", "high", "n")
        )
        if e["name"] == meta["baseline"]:
            assert (line.ratio, line.verdict) == (None, "baseline")
        else:
            assert (line.ratio.value, line.ratio.low, line.ratio.high) == tuple(
                ratio[k] for k in ("value", "low", "high")
            )
            assert line.ratio.verdict == ratio["verdict"]
            assert line.ratio.verdict in line.verdict
        assert (line.first, line.weights, line.baseline) == (False, "float32", meta["baseline"])


def test_drawn_answers_are_compared_with_the_baselines_drawn_answers(tmp_path):
    """Under `chunk8` a greedy token takes half the time, a drawn one the same."""
    step = next(t for t in record.read(DATA / "03-jit-placement.csv")[0] if t.subject == "step" and t.valid)
    rows = [
        step.model_copy(update=dict(
            run="main", phase="warm", process=0, block=block, subject=name + SAMPLED * drawn, new_tokens=3,
            sampling="temperature 0.6" if drawn else "greedy", token_times_ns=[10**6, 10**6 + took, 10**6 + 2 * took],
        ))
        for block in range(6) for drawn in (False, True)
        for name, took in (("step", 10**6 + block), ("chunk8", 10**6 // (1 if drawn else 2) + block))
    ]  # fmt: skip
    path = record.write(tmp_path / "made.csv", rows, baseline="step")
    found = {line.subject: line for line in overview.lines(path, overview.about(path))}
    assert {name: line.ratio and round(line.ratio.value, 2) for name, line in found.items()} == {
        "step": None, "chunk8": 2.0, "step" + SAMPLED: None, "chunk8" + SAMPLED: 1.0,
    }  # fmt: skip
    assert [found[name].words for name in ("chunk8", "chunk8" + SAMPLED)] == ["", "temperature 0.6"]


def test_first_tokens_are_notebook_nines():
    starts, meta = record.read(DATA / "09-time-to-first-token.csv", kind=Start)
    found = {(line.subject, line.lengths.partition(" ")[0]): line for line in read("09-time-to-first-token")}
    for e in table.table(starts):
        if not e["n"]:  # void throughout
            continue
        line = found[e["subject"], str(e["tokens"])]
        assert (line.middle, line.first) == (e["ms"], True)
        if e["subject"] != meta["baseline"]:
            assert line.ratio == table.sooner(starts, e["subject"], meta["baseline"], e["tokens"])


def test_rates_at_a_context_are_notebook_eights():
    trials, meta = record.read(DATA / "08-fewer-bits.csv")
    lines = read("08-fewer-bits")
    for context in meta["parameters"]["contexts"]:
        here = {line.subject: line for line in lines if line.words == f"context {context}"}
        for e in ladders.ladder(trials, meta["subjects"], context, [], meta["processes"]):
            line = here[e["name"]]
            assert (line.middle, line.void, line.weights) == (e["decode"], e["void"], e["dtype"])
            if e["name"] != meta["baseline"]:
                assert line.ratio == ladders.ratio(trials, e["name"], meta["baseline"], context)


def test_passes_are_notebook_elevens():
    rows, meta = record.read(DATA / "11-activation-extraction.csv", kind=Extraction)
    first = meta["parameters"]["model"]  # the table is of this one; a second has lines of its own
    found = {line.subject: line for line in read("11-activation-extraction") if line.model == first}
    for e in extraction.table(rows):
        assert found[e["subject"]].middle == e["rate"]
        assert found[e["subject"]].ratio in (None, e["ratio"])


def test_each_table_of_subjects_has_lines_and_no_number_is_missing():
    lines = [line for path in overview.tables(DATA, "") for line in overview.lines(path, overview.about(path))]
    kinds = {line.table.split("-")[0] for line in lines}
    assert {"01", "03", "05", "06", "07", "08", "09", "10", "11", "14"} <= kinds
    assert not kinds & set(overview.left_out())
    for line in lines:
        assert line.middle.median > 0
        assert line.middle.n >= 1
        assert line.subject not in line.words.split()
        assert line.model not in line.words
        assert (line.verdict == "") == (not line.baseline)
        assert line.ratio is None or line.ratio.value > 0
    names = [(line.table, line.words, line.model, line.lengths, line.subject) for line in lines]
    assert len(set(names)) == len(names)


def test_a_recorded_gpu_run_would_have_lines(tmp_path):
    """What is not recorded here has its kind in the list all the same."""
    trials, meta = record.read(DATA / "07-host-loop.csv", kind=HostTrial)
    path = tmp_path / "07-host-loop.csv"
    few = [
        t for t in trials if t.model == meta["parameters"]["model"] and t.subject in ("step", "step" + AGAIN, "loop")
    ]
    record.write(path, few, HostTrial, environment=meta["environment"])
    assert [line.subject for line in overview.lines(path, overview.about(path))] == ["loop", "step", "step" + AGAIN]
    assert issubclass(overview.kind_of("GpuTrial"), record.Trial)
    assert overview.kind_of("Window") is None


def test_one_trial_has_no_interval_and_void_ones_are_counted(tmp_path):
    trials, _ = record.read(DATA / "03-jit-placement.csv")
    warm = [t for t in trials if t.phase == "warm" and t.subject == "loop"]
    path = tmp_path / "13-mine.csv"
    record.write(path, [warm[0], warm[1].model_copy(update=dict(valid=False, reason="compiled"))])
    (line,) = overview.lines(path, overview.about(path))
    assert (line.middle.n, line.void, line.baseline, line.ratio, line.verdict) == (1, 1, "", None, "")
    assert math.isnan(line.middle.low)


def test_settings_stand_in_the_order_of_their_numbers(tmp_path):
    row = next(t for t in record.read(DATA / "14-growth.csv")[0] if t.phase == "warm" and t.valid)
    rows = [row.model_copy(update=dict(run=f"batch {n}", batch=n)) for n in (16, 2, 128, 1)]
    path = record.write(tmp_path / "made.csv", rows)
    found = [line.words.split(" · ")[0] for line in overview.lines(path, overview.about(path))]
    assert found == ["batch 1", "batch 2", "batch 16", "batch 128"]


def test_a_damaged_meta_file_is_named(tmp_path):
    shutil.copy(DATA / "01-text-generation.csv", tmp_path)
    (tmp_path / "01-text-generation.meta.json").write_text("{")
    (path,) = overview.tables(tmp_path, "01-text-generation")
    with pytest.raises(UserError, match="01-text-generation.meta.json is not JSON"):
        overview.about(path)
    (tmp_path / "01-text-generation.meta.json").write_text(json.dumps({"schema_version": 2}))
    with pytest.raises(UserError, match="not as it was written"):
        overview.lines(path, overview.about(path))
