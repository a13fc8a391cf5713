"""Exports: a Markdown table that parses into the same numbers, a block without holes, tables that come back as they
were."""

import json
import os
import re

import numpy as np
import pandas as pd
import pytest

from llama_jax.plumbing.errors import UserError
from llama_lab.bench import record, summary
from llama_lab.bench.record import Trial
from llama_lab.reporting import export
from tests.bench.test_record import trial

NOISE = np.random.default_rng(0).normal(0, 0.1, (4, 12))
FAILED = dict(valid=False, reason='failed: "out of memory", naïve, 2 | 3', times=(), new_tokens=0)
ABOUT = dict(parameters={"seed": 3, "names": ["a", "b"]}, baseline="step")


def trials():
    """Three subjects in twelve blocks, the baseline's twin, cold starts, one subject that never was right, one
    failure."""
    rates = {"step": 30, "step (again)": 30, "loop|it": 20, "liar": 10}
    wrong = dict(valid=False, reason="wrong: token 0")
    warm = [
        trial(name, b, (10, 20, rate + NOISE[i, b]), phase="warm", **(wrong if name == "liar" else {}))
        for i, (name, rate) in enumerate(rates.items())
        for b in range(12)
    ]
    start = dict(phase="cold", compiled=7, backend_ns=10**9, peak_rss_bytes=5 * 10**8, load_ns=9)
    return [*(trial(name, **start) for name in ("step", "loop|it")), *warm, trial("loop|it", 99, **FAILED)]


@pytest.fixture(scope="module")
def result():
    protocol = dict(model="m", prompt_tokens=48, new_tokens=3, batch=1, blocks=12, processes=2, seed=5, dtype="float32",
                    random_weights=True, limit_tokens_per_second=123.45, resumed_trials=4)  # fmt: skip
    environment = dict(
        cpu="Z80", cores=2, ram_bytes=24 * 2**30, os="Linux", python="3.11.7", governor="unknown", weights_hash="abc",
        packages={"jax": "0.10.2", "numba": None}, settings={"XLA_FLAGS": "--a=b\n- c"},
        git={"commit": "f00", "dirty": True}, blas=[{"library": "openblas", "version": "0.3", "threads": 2}],
        gpus=[{"name": "H200", "driver": "570", "memory": "1 GiB"}], limits={"cpus": 1.5, "memory_bytes": 2**30},
        bandwidth_gbps=20.04, gflops=99.6, watch={"others_cpu": 0.42, "steal": 0.0, "load_before": 1.0},
    )  # fmt: skip
    gap = {"name": "ollama", "reason": "no server answers.", "remedy": "Start it with `ollama serve`."}
    subjects = summary.table(trials(), "step", ["step", "loop|it", "liar"])
    return dict(baseline="step", protocol=protocol, environment=environment, subjects=subjects, missing=[gap])


def parsed(result):
    """The rows of the Markdown table as dicts of cells, by the heads."""
    rows = [
        [c.strip().replace("\\|", "|") for c in re.split(r"(?<!\\)\|", line)[1:-1]]
        for line in export.table(result).markdown().splitlines()
    ]
    return [dict(zip(rows[0], row, strict=True)) for row in rows[2:]]


def test_the_markdown_table_holds_the_same_numbers(result):
    rows = parsed(result)
    assert [row["subject"] for row in rows] == ["step", "step (again)", "loop|it", "liar"]
    for row, entry in zip(rows[:3], result["subjects"], strict=False):
        rate, ratio = entry["tokens_per_second"], entry["ratio_to_baseline"]
        expected = [f"{rate['median']:.1f}", f"{rate['low']:.1f}", f"{rate['high']:.1f}"]
        assert re.findall(r"[\d.]+", row["tokens/s [95%]"]) == expected
        assert re.findall(r"[\d.]+", row["x step [95%]"])[0] == f"{ratio['value']:.2f}"
        assert float(row["IQR"]) == pytest.approx(rate["iqr"], abs=0.051)
        assert int(row["n"]) == rate["n"] == 12
        assert row["verdict"].removeprefix("A/A control: ") == ratio["judged"]
        assert float(row["TTFT ms"]) == pytest.approx(entry["ttft_ms"], abs=0.051)
        assert float(row["ITL p50 ms"]) == pytest.approx(entry["itl_ms"]["p50"], abs=0.0051)
        assert float(row["MBU %"]) == pytest.approx(100 * entry["mbu"], abs=0.51)
        assert row["valid/void"] == f"{entry['valid_trials']}/{entry['voided_trials']}"
    assert rows[0]["compile s / programs"] == "1.00 / 7"
    assert rows[0]["peak RSS GB"] == "0.50"
    assert (rows[0]["tokens"], rows[3]["tokens"]) == ("equal", "WRONG")
    assert rows[1]["verdict"].startswith("A/A control")


def test_what_is_missing_is_an_empty_cell_and_unknown_in_the_block(result):
    liar = parsed(result)[3]
    empty = ("tokens/s [95%]", "IQR", "x step [95%]", "TTFT ms", "MBU %", "compile s / programs")
    assert [liar[head] for head in empty] == [""] * 6
    named = {"subjects": [{"name": "x"}]}
    (bare,) = parsed(named)
    assert {cell for head, cell in bare.items() if head != "subject"} == {""}
    for document in (result, named, {}):
        text = export.table(document).markdown() + export.reporting(document)
        assert not re.search(r"\b(nan|NaN|None|inf|<NA>|Undefined)\b", text)
    lines = {*export.reporting(named).splitlines()}
    assert {"- model: unknown", "- commit: unknown", "- x: no valid time, n unknown, no verdict"} <= lines
    assert not [line for line in lines if line.startswith("- processes")]  # an optional one
    assert export.reporting({}).endswith("**Flags**\n\n- none\n")
    assert [export.compiled(known) for known in ({"n": 7}, {"seconds": 1.0}, {})] == ["", "1.00", ""]
    assert export.interval({"value": 1.234, "low": float("nan"), "high": 2.0}, "value", 2) == "1.23"


def test_the_block_names_everything_beside_the_numbers(result):
    text = export.reporting(result)
    titles = re.findall(r"^\*\*(\w+)\*\*\n\n- ", text, re.M)
    assert titles == ["Configuration", "Hardware", "Versions", "Protocol", "Results", "Limits", "Flags"]
    lines = {*text.splitlines()}
    assert not [line for line in lines if line and not line.startswith(("- ", "**"))]
    facts = dict(line[2:].split(": ", 1) for line in lines if line.startswith("- ") and ": " in line)
    expected = {
        "model": "m", "weights (SHA-256)": "abc", "dtype": "float32", "tokens": "48 of prompt + 3 new", "blocks": "12",
        "processes": "2", "seed": "5", "baseline": "step", "CPU": "Z80", "memory": "24 GiB", "GPU": "H200 (driver 570)",
        "container's CPUs": "1.5", "container's memory": "1.0 GiB", "packages": "jax 0.10.2",
        "BLAS and OpenMP": "openblas 0.3 (2 threads)", "settings": "`XLA_FLAGS=--a=b - c`",
        "commit": "f00 with local changes", "memory bandwidth, probed": "20.0 GB/s",
        "float32 matrix product, probed": "100 GFLOP/s", "decode limit of this bandwidth": "123.5 tokens/s",
    }  # fmt: skip
    assert {key: facts.get(key) for key in expected} == expected
    outcome = r"[\d.]+ \[[\d.]+, [\d.]+\] tokens/s, n 12, "
    assert re.search(rf"- loop\|it: {outcome}[\d.]+ \[[\d.]+, [\d.]+\] x step, \w+", text)
    assert re.search(rf"- step: {outcome}baseline\n", text)


def test_the_flags_say_what_spoils_a_number(result):
    flags = export.flags(result)
    for line in (
        "busy machine: others used 42 % of the CPU",
        "liar: 12 trials void: wrong: token 0",
        "missing: ollama: no server answers. Start it with `ollama serve`.",
        "4 trials come from an interrupted run",
    ):
        assert line in flags
    for words in ("other tokens than", "differs from its commit", "random weights", "loop|it: 1 trial void: failed"):
        assert any(words in line for line in flags)
    gaps = ["mlx", {"name": "vllm"}, {"name": "mlc", "reason": "no wheel."}, {"remedy": "Install it."}]
    lines = [line for line in export.flags({"missing": gaps}) if line]
    assert lines == [f"missing: {words}" for words in ("mlx", "vllm", "mlc: no wheel.", "unknown: Install it.")]
    drifted = dict(name="a", unstable=True, leaked_buffers=3, drift=dict(change=-0.081, significant=True))
    steady = dict(name="b", drift=dict(change=-0.5, significant=False))
    lines = [line for line in export.flags({"subjects": [drifted, steady]}) if line]
    assert [line[:14] for line in lines] == ["a: rates scatt", "a: drifted by ", "a: leaves 3 ar"]
    assert "-8%" in lines[1]


@pytest.mark.parametrize("name", ["t.xlsx", "table", "t.json"])
def test_an_unknown_suffix_names_the_known(tmp_path, result, name):
    for attempt in (export.check, lambda path: export.write(path, trials(), ABOUT, result)):
        with pytest.raises(UserError, match=r"\.csv, \.parquet, \.jsonl or \.md"):
            attempt(tmp_path / name)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".jsonl", ".md"])
def test_it_is_written_and_comes_back_equal_and_a_full_disk_leaves_it(tmp_path, result, monkeypatch, suffix):
    path = export.write(str(tmp_path / "deep" / f"t{suffix}"), trials(), ABOUT, result)
    if suffix == ".md":
        assert path.read_text() == export.table(result).markdown() + "\n\n" + export.reporting(result)
    else:
        back, about = record.read(path)
        assert (back, about | ABOUT) == (trials(), about)
    before = {p.name: p.read_bytes() for p in path.parent.iterdir()}

    def full(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UserError, match="No space left on device"):
        export.write(path, trials()[:3], ABOUT, {**result, "baseline": "loop"})
    assert {p.name: p.read_bytes() for p in path.parent.iterdir()} == before


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".jsonl"])
def test_an_empty_table_comes_back_empty(tmp_path, result, suffix):
    assert record.read(export.write(tmp_path / f"t{suffix}", [], ABOUT, result))[0] == []


def test_other_programs_read_the_tables(tmp_path, result):
    frames = [
        pd.read_parquet(export.write(tmp_path / "t.parquet", trials(), ABOUT, result)),
        pd.read_csv(export.write(tmp_path / "t.csv", trials(), ABOUT, result), keep_default_na=False),
    ]
    for frame in frames:
        assert list(frame.columns) == list(Trial.model_fields)
        assert frame["subject"].tolist() == [t.subject for t in trials()]
    assert frames[0]["token_times_ns"][2].tolist() == trials()[2].token_times_ns


def test_damaged_lines_are_named_and_skipped_only_on_demand(tmp_path, result):
    """Lines 3, 5 and 7 are cut, no record, and of a wrong type; the last one is torn."""
    path = export.write(tmp_path / "t.jsonl", trials(), ABOUT, result)
    lines = path.read_text().splitlines()
    lines[2], lines[4], lines[6] = lines[2][:99], json.dumps({"block": 1}), json.dumps([1, 2])
    path.write_text("\n".join(lines))
    with pytest.raises(UserError, match=f"lines 3, 5, 7, {len(lines)} cannot be read"):
        record.read(path)
    back, about = record.read(path, skip_corrupt=True)
    assert (back, about["baseline"]) == ([t for i, t in enumerate(trials()[:-1]) if i not in (1, 3, 5)], "step")


def test_a_truncated_parquet_is_one_line(tmp_path, result):
    path = export.write(tmp_path / "t.parquet", trials(), ABOUT, result)
    whole = path.read_bytes()
    for kept in (0.0, 0.01, 0.5, 0.99):
        path.write_bytes(whole[: int(kept * len(whole))])
        with pytest.raises(UserError, match="may be cut short"):
            record.read(path)
