"""`llama-jax advise` on the recorded tables, on tables of one's own, and measured on the spot."""

import json

import pytest

from llama_jax.placement import parse
from llama_jax.plumbing import paths
from llama_lab import __main__ as program
from llama_lab.bench import environment, record

DATA = paths.ROOT / "data"


@pytest.fixture
def advised(capsys):
    """Run `advise --json`: (document, lines beside it, exit code)."""

    def run(*arguments):
        code = 0
        try:
            program.main(["advise", *arguments, "--json"])
        except SystemExit as end:
            code = end.code or 0
        out, err = capsys.readouterr()
        return (json.loads(out.splitlines()[-1]) if code == 0 else None), err.strip().splitlines(), code

    return run


def test_the_recorded_tables_answer(advised):
    found, lines, _ = advised("--requests", "20")
    assert found["placement"] == found["ranking"][0]["name"]
    assert lines[0].startswith(f"{found['placement']}: {found['seconds']:.2f} s")
    assert found["seconds"] == pytest.approx(found["start_seconds"] + 20 * found["request_seconds"])
    assert [r["seconds"] for r in found["ranking"]] == sorted(r["seconds"] for r in found["ranking"])
    where = found["evidence"]["where"]
    assert where.partition(" (")[0] in ("03-jit-placement", "08-fewer-bits")
    trials, _ = record.read(DATA / f"{where.partition(' (')[0]}.csv")
    run = where.partition("(")[2].rstrip(")")
    mine = [t for t in trials if (t.subject, t.run, t.phase, t.valid) == (found["placement"], run, "warm", True)]
    assert found["evidence"]["trials"] == len(mine)


def test_wishes_hold_for_whatever_is_recorded(advised):
    exact, _, _ = advised("--exact", "--requests", "100")
    assert {parse(r["name"]).kernels for r in exact["ranking"]} == {"none"}
    assert all(parse(r["name"]).weights in ("loaded", "f32") for r in exact["ranking"])
    stream, _, _ = advised("--streaming", "--requests", "100", "--exact")
    assert "loop" not in {r["name"] for r in stream["ranking"]}
    assert "loop" in {r["name"] for r in stream["refused"]}
    cold, warm = advised("--exact")[0], advised("--exact", "--warm")[0]
    assert warm["start_seconds"] == 0 < cold["start_seconds"]
    assert "eager" not in (warm["placement"], exact["placement"])


def test_a_table_of_ones_own(advised, tmp_path):
    trials, _ = record.read(DATA / "03-jit-placement.csv")
    path = record.write(
        tmp_path / "mine.csv", [t for t in trials if t.subject in ("step", "chunk8")], environment=environment.capture()
    )
    found, _, _ = advised("--data", str(path))
    assert {r["name"] for r in found["ranking"]} <= {"step", "chunk8"}
    assert found["evidence"]["where"].startswith("mine (")


@pytest.mark.slow
def test_really_measured(advised, tmp_path, monkeypatch):
    monkeypatch.setattr("llama_lab.bench.protocol.tempfile.gettempdir", lambda: str(tmp_path))
    out = tmp_path / "now.parquet"
    shape = dict(
        num_hidden_layers=2,
        hidden_size=64,
        intermediate_size=128,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
    )
    small = ",".join(["random:smollm2-135m", *(f"{name}={size}" for name, size in shape.items()), "vocab_size=97"])
    sizes = ("--prompt-tokens", "8", "--new-tokens", "6", "--requests", "1000")
    found, lines, _ = advised("--model", small, *sizes, "--measure", "--placements", "step,loop", "--out", str(out))
    assert found["placement"] in ("step", "loop")
    assert found["evidence"] | dict(where="") == dict(where="", trials=6, processes=2, cold_starts=3)
    assert found["thin"] == []
    again, _, _ = advised("--model", small, *sizes, "--data", str(out))
    assert again["ranking"] == found["ranking"]
    assert any(str(out) in line for line in lines)
