"""The table of all subjects: one line a subject and setting, from tables of every kind of row."""

import json
import math

import pytest

from llama_jax.plumbing import paths
from llama_jax.plumbing.errors import UserError
from llama_lab.bench import AGAIN, SAMPLED, record, summary
from llama_lab.reporting import overview
from tests.bench.test_record import trial

DATA = paths.ROOT / "data"
PACE = {"step": 10, "step" + AGAIN: 10, "loop": 8, "chunk8": 20}  # ms a token


def trials(first=5, tokens=4, **changes):
    """Six blocks in each of two processes; `first` ms to the first token, over a subject's pace for the others."""
    return [
        trial(name, block, [first * pace + k * pace * (1 + 0.001 * block) for k in range(tokens)],
              **{**dict(run="main", model="tiny", process=process), **changes})
        for process in range(2) for block in range(6) for name, pace in PACE.items()
    ]  # fmt: skip


def lines_of(folder, rows, name="77-made", **about):
    return [*overview.Recorded(record.write(folder / f"{name}.csv", rows, **about)).lines.itertuples()]


def test_a_line_is_the_entry_of_the_subject(tmp_path):
    rows = trials()
    lines = {line.subject: line for line in lines_of(tmp_path, rows)}
    assert list(lines) == ["chunk8", "loop", "step", "step" + AGAIN]
    for e in summary.table(rows, "step"):
        line, rate, ratio = lines[e["name"]], e["tokens_per_second"], e["ratio_to_baseline"]
        assert [getattr(line.middle, key) for key in ("median", "low", "high", "n")] == [
            rate[key] for key in ("median", "low", "high", "n")
        ]
        assert (line.first, line.weights, line.lengths) == (False, "float32", "4 + 4")
        assert line.share == e["mbu"]
        if e["name"] != "step":
            assert [getattr(line.ratio, key) for key in ("value", "low", "high")] == [
                ratio[key] for key in ("value", "low", "high")
            ]
    verdicts = {name: line.verdict for name, line in lines.items()}
    assert verdicts["step"] == "baseline"
    assert verdicts["step" + AGAIN].startswith("A/A control: ")
    assert (verdicts["loop"], verdicts["chunk8"]) == ("faster than step", "slower than step")


@pytest.mark.parametrize("name", ["77-made", "11-time-to-first-token"])
def test_first_tokens_are_compared_by_their_times(tmp_path, name):
    """Of answers of one token, and of a table that was made for its first ones."""
    rows = trials(tokens=1 if name == "77-made" else 2)
    lines = {line.subject: line for line in lines_of(tmp_path, rows, name)}
    assert all(line.first and line.words == "first token" and line.share is None for line in lines.values())
    assert lines["loop"].middle.median == pytest.approx(40)  # ms
    assert lines["loop"].ratio.value == pytest.approx(10 / 8)
    assert (lines["loop"].verdict, lines["chunk8"].verdict) == ("faster than step", "slower than step")


def test_first_tokens_of_two_runs_are_two_lines(tmp_path):
    """Requests one after another are not pooled with the interleaved ones."""
    late = [row.model_copy(update=dict(run="tail")) for row in trials(first=7, tokens=2) if row.subject == "step"]
    rows = [*trials(tokens=2), *late]
    lines = [line for line in lines_of(tmp_path, rows, "11-time-to-first-token") if line.subject == "step"]
    assert [(line.words, line.middle.median, line.middle.n) for line in lines] == [
        ("first token", pytest.approx(50), 12), ("first token · tail", pytest.approx(70), 12)
    ]  # fmt: skip


def test_drawn_answers_are_compared_with_the_baselines_drawn_answers(tmp_path):
    """Under `loop` a greedy token takes less time, a drawn one as long."""
    drawn = [
        t.model_copy(update=dict(subject=t.subject + SAMPLED, sampling="temperature 0.6", token_times_ns=[1, 10, 20]))
        for t in trials()
        if t.subject in ("step", "loop")
    ]
    lines = {line.subject: line for line in lines_of(tmp_path, [*trials(), *drawn], baseline="step")}
    assert lines["loop"].ratio.value == pytest.approx(10 / 8)
    assert lines["loop" + SAMPLED].ratio.value == pytest.approx(1)
    assert [lines[name].words for name in ("loop", "loop" + SAMPLED)] == ["", "temperature 0.6"]


def test_settings_stand_in_the_order_of_their_numbers_without_what_the_line_says_anyway(tmp_path):
    rows = [trial("loop", run=f"m batch {n} loop", batch=n) for n in (16, 2, 128, 1)]
    assert [line.words for line in lines_of(tmp_path, rows)] == ["batch 1", "batch 2", "batch 16", "batch 128"]
    sizes = [trial(model=f"m,layers={n}", weights_bytes=n * 10**8) for n in (1, 2)]
    assert [line.words for line in lines_of(tmp_path, sizes)] == ["r · 100 MB of weights", "r · 200 MB of weights"]


def test_one_trial_has_no_interval_and_void_ones_are_counted(tmp_path):
    (line,) = lines_of(tmp_path, [trial("loop"), trial("loop", 1, valid=False, reason="compiled")])
    assert (line.middle.n, line.void, line.ratio, line.verdict) == (1, 1, None, "")
    assert math.isnan(line.middle.low)


def test_each_context_of_a_table_of_files_has_lines_over_the_fastest_other_runtime(tmp_path):
    read = dict(dtype="q5_0", quantisation="gguf-q5_0")
    engines = {  # ms a token, and what it is
        "loop+fused": (2, dict(quantisation="gguf+fused")),
        "llamacpp": (6, read | dict(backend="llama.cpp")),
        "ik-llamacpp": (4, read | dict(backend="ik_llama.cpp")),
    }
    made = [
        trial(name, block, [k * ms * slower for k in range(4)], run="m/x", model="m/x", prompt_tokens=prompt, **about)
        for prompt, slower in ((60, 1), (1020, 2)) for block in range(6) for name, (ms, about) in engines.items()
    ]  # fmt: skip
    lines = lines_of(tmp_path, made, parameters=dict(size_contexts=[64, 1024]))
    assert [line.words for line in lines[::3]] == ["context 64", "context 1024"]
    told = {(line.subject, line.verdict, line.weights) for line in lines}
    assert told == {
        ("ik-llamacpp", "baseline", "q5_0"), ("llamacpp", "slower than ik-llamacpp", "q5_0"),
        ("loop+fused", "faster than ik-llamacpp", "q5_0"),
    }  # fmt: skip
    assert [line.ratio.value for line in lines if line.subject == "loop+fused"] == pytest.approx([2, 2])


def test_a_published_file_is_called_by_its_own_type_and_a_quantised_copy_by_its_blocks():
    (weights, *_) = overview.WEIGHTS.values()
    reader = trial("llamacpp", backend="llama.cpp", dtype="q5_0", quantisation="gguf-q5_0", weights_hash=weights.sha256)
    copy = reader.model_copy(update=dict(subject="llamacpp+q8_0", dtype="q8_0", quantisation="gguf-q8_0"))
    ours = reader.model_copy(
        update=dict(subject="loop+fused", backend="jax", dtype="float32", quantisation="gguf+fused")
    )
    expanded = ours.model_copy(update=dict(subject="loop", quantisation="none"))
    rows = [reader, copy, ours, expanded]
    assert [overview.kept(row, rows) for row in rows] == ["Q4_K_M", "q8_0", "Q4_K_M", "float32"]
    other = [row.model_copy(update=dict(weights_hash="w")) for row in rows]
    assert [overview.kept(row, other) for row in other] == ["q5_0", "q8_0", "q5_0", "float32"]


def test_each_table_of_subjects_has_lines_and_no_number_is_missing():
    lines = [line for path in overview.tables(DATA, "") for line in overview.Recorded(path).lines.itertuples()]
    numbers = {line.table.split("-")[0] for line in lines}
    assert {"02", "04", "05", "06", "09", "11", "12", "14", "15", "17"} <= numbers
    assert not numbers & set(overview.left_out())
    for line in lines:
        assert line.middle.median > 0
        assert line.subject not in line.words.split()
        assert line.model not in line.words
        assert line.ratio is None or line.ratio.value > 0
    names = [(line.table, line.words, line.model, line.lengths, line.subject) for line in lines]
    assert len(set(names)) == len(names)


def test_kinds_of_row_are_those_of_the_notebooks():
    """What is not recorded here has its kind in the list all the same."""
    for name in ("Trial", "Start", "GpuTrial", "HostTrial", "Extraction"):
        assert issubclass(overview.kind_of(name), record.Row)
    assert overview.kind_of("Window") is None


def test_a_damaged_meta_file_is_named(tmp_path):
    path = record.write(tmp_path / "77-made.csv", trials())
    assert overview.tables(tmp_path, "77-made") == [path]
    for text, words in (("{", "77-made.meta.json is not JSON"), (json.dumps({"schema_version": 2}), "not as it was")):
        record.meta_path(path).write_text(text)
        with pytest.raises(UserError, match=words):
            _ = overview.Recorded(path).meta
    record.meta_path(path).unlink()
    assert overview.tables(tmp_path, "77-made") == []
