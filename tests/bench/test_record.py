import contextlib
import hashlib
import json
import os
from unittest.mock import Mock

import numpy as np
import pandas as pd
import pytest

from llama_jax.plumbing.errors import UserError
from llama_lab.bench import record
from llama_lab.bench.record import Trial
from llama_lab.bench.seal import ROW, sealed, sealed_row


def trial(subject="step", block=0, times=(10, 20, 40), **changes):
    base = dict(
        run="r", block=block, order=0, process=1, seed=0, phase="warm", valid=True, subject=subject, backend="jax",
        placement=subject, model="m", weights_hash="w", dtype="float32", batch=1, prompt=0, prompt_tokens=4,
        new_tokens=len(times), cache_slots=16, token_times_ns=[round(t * 10**6) for t in times], tokenize_ns=2 * 10**6,
        trace_ns=0, lower_ns=0, backend_ns=0, lowered=0, compiled=0, cache_hits=0, bytes_per_token=1e6,
        bandwidth_gbps=1.0, tokens_sha256="t",
    )  # fmt: skip
    return Trial(**{**base, **changes})


def test_what_is_derived():
    t = trial()
    assert t.ttft == pytest.approx(0.010)
    assert t.itl == pytest.approx([0.010, 0.020])
    assert t.tg == pytest.approx(2 / 0.030)  # (n - 1) / (last - first)
    assert t.pp == pytest.approx(4 / 0.008)  # tokenisation is not prefill
    assert t.mbu == pytest.approx(t.tg * 1e6 / 1e9)
    assert trial(batch=3).tg == pytest.approx(3 * t.tg)
    assert np.isnan(trial(times=(5,)).tg)


def test_a_table_comes_back_as_it_was(tmp_path):
    void = dict(valid=False, reason="wrong: token 1 is 2, the reference has 3")
    trials = [trial(), trial("loop", **void, load_ns=5, flops_per_token=0.1 + 0.2)]
    path = record.write(tmp_path / "t.csv", trials, parameters={"seed": 1})
    back, meta = record.read(path)
    assert back == trials
    assert meta["parameters"] == {"seed": 1}
    assert list(pd.read_csv(path).columns) == list(Trial.model_fields)


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_a_table_keeps_each_probe_and_is_read_with_the_most_of_its_run(tmp_path, suffix):
    """So is one that was written before the meta said how far the probes spread."""
    trials = [trial(block=i, bandwidth_gbps=float(i + 1)) for i in range(3)] + [trial(run="other", bandwidth_gbps=2.0)]
    path = record.write(tmp_path / f"t{suffix}", trials)
    back, meta = record.read(path)
    assert [t.bandwidth_gbps for t in back] == [3.0, 3.0, 3.0, 2.0]
    assert [t.mbu for t in back[:3]] == pytest.approx([trials[2].mbu] * 3)
    assert meta["bandwidth_gbps"]["r"] == dict(max=3.0, median=2.0, min=1.0, n=3)
    assert record.read(path, as_probed=True)[0] == trials
    if suffix == ".csv":
        about = {k: v for k, v in json.loads(record.meta_path(path).read_text()).items() if k != "bandwidth_gbps"}
        record.meta_path(path).write_text(json.dumps(sealed(about)))
        assert record.read(path)[0] == back


HOSTILE = [None, True, "x", -1, 2**70, [], {}, [[]], "9" * 5000]


@pytest.mark.parametrize("suffix", [".csv", ".jsonl"])
def test_a_meta_that_is_not_as_it_was_written_is_refused(tmp_path, suffix):
    """Whoever reads the meta of a table need not ask what is in it."""
    path = record.write(tmp_path / f"t{suffix}", [trial()], environment=dict(cpu="C", packages={"jax": "1"}))
    assert record.read(path)[1]["environment"]["cpu"] == "C"
    holder = record.meta_path(path) if suffix == ".csv" else path
    raw = holder.read_bytes()
    for before, after in ((b'"C"', b'"D"'), (b'"cpu"', b'"cqu"')):
        holder.write_bytes(raw.replace(before, after, 1))
        with pytest.raises(UserError, match="not as it was written"):
            record.read(path)


@pytest.mark.parametrize("value", HOSTILE, ids=lambda value: repr(value)[:20])
@pytest.mark.parametrize("field", ["schema_version", "created", "kind", "sha256"])
def test_a_meta_of_other_types_is_one_line_though_its_digest_is_right(tmp_path, field, value):
    path = record.write(tmp_path / "t.csv", [trial()])
    stamped(path, **{field: value})
    with pytest.raises(UserError) as caught:
        record.read(path)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("value", HOSTILE, ids=lambda value: repr(value)[:20])
@pytest.mark.parametrize("field", ["batch", "prompt_tokens", "token_times_ns", "valid", "bytes_per_token", "nothing"])
def test_a_row_of_other_types_is_named(tmp_path, field, value):
    """Unless the field may have that value."""
    rows = [trial(), trial()]
    path = record.write(tmp_path / "t.jsonl", rows)
    first, second, last = path.read_text().splitlines()
    row = {name: was for name, was in json.loads(last).items() if name != ROW}
    path.write_text("\n".join([first, second, sealed_row({**row, field: value})]) + "\n")
    allowed = dict(valid=[True], bytes_per_token=[None, 2**70], token_times_ns=[[]])
    if value in allowed.get(field, []):
        record.read(path)
        return
    with pytest.raises(UserError, match="line 3 cannot be read"):
        record.read(path)
    assert len(record.read(path, skip_corrupt=True)[0]) == 1


def test_a_flipped_bit_of_a_parquet_table_is_found(tmp_path):
    path = record.write(tmp_path / "t.parquet", [trial(block=b) for b in range(20)])
    raw, rows, silent = path.read_bytes(), record.read(path)[0], 0
    for at in np.random.default_rng(0).integers(0, 8 * len(raw), 300):
        damaged = bytearray(raw)
        damaged[at // 8] ^= 1 << (at % 8)
        path.write_bytes(damaged)
        with contextlib.suppress(UserError):
            silent += record.read(path)[0] != rows
    assert silent == 0


def test_what_is_no_file_waits_for_nobody(tmp_path):
    for name in ("t.csv", "t.jsonl", "t.parquet", "t.meta.json"):
        os.mkfifo(tmp_path / name)
    for name in ("t.csv", "t.jsonl", "t.parquet"):
        with pytest.raises(UserError, match="not a regular file"):
            record.read(tmp_path / name)


def stamped(path, text=None, **changes):
    """A table with another text or another meta, its digests right."""
    about = json.loads(record.meta_path(path).read_text())
    if text is not None:
        path.write_text(text)
        changes["sha256"] = hashlib.sha256(text.encode()).hexdigest()
    record.meta_path(path).write_text(json.dumps(sealed({**about, **changes})))


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda path: path.unlink(), "measure first"),
        (lambda path: path.write_text(path.read_text().replace("step", "loop")), "SHA-256 differs"),
        (lambda path: stamped(path, schema_version=99), "schema 99"),
        (lambda path: record.meta_path(path).write_text("{"), "is not JSON"),
        (
            lambda path: stamped(path, path.read_text().replace("warm,True", "warm,perhaps")),
            "row 1: valid is",
        ),
        (lambda path: path.unlink() or path.mkdir(), "not a regular file"),
    ],
    ids=["missing", "changed", "schema", "meta", "row", "folder"],
)
def test_damaged_tables_are_one_line(tmp_path, damage, words):
    path = record.write(tmp_path / "t.csv", [trial()])
    damage(path)
    with pytest.raises(UserError, match=words) as caught:
        record.read(path)
    assert "\n" not in str(caught.value)


def test_an_unwritable_folder_is_one_line_and_loses_nothing(tmp_path, monkeypatch):
    path = record.write(tmp_path / "t.csv", [trial()])
    before = path.read_bytes()
    monkeypatch.setattr(os, "fsync", Mock(side_effect=OSError(28, "No space left on device")))
    with pytest.raises(UserError, match="No space left"):
        record.write(path, [trial("loop")])
    assert path.read_bytes() == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["t.csv", "t.meta.json"]  # no half-written file is left
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="Cannot write"):
        record.write(tmp_path / "file" / "t.csv", [trial()])


class Answer(record.Row):
    """A kind of row of one's own."""

    words: str = ""
    counts: list[int]
    seconds: float | None = None


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
def test_rows_of_another_kind_come_back_as_they_were(tmp_path, suffix):
    where = dict(run="r", block=0, process=1, seed=0, phase="warm", valid=True)
    rows = [
        Answer(**where, order=0, words="", counts=[1, 2], seconds=0.5),
        Answer(**where, order=1, words="a b", counts=[]),
    ]
    path = record.write(tmp_path / f"answers.{suffix}", rows, Answer)
    assert record.read(path, kind=Answer)[0] == rows
    with pytest.raises(UserError, match="rows of the kind Answer, not Trial"):
        record.read(path)
