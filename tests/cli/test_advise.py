"""`llama-jax advise` on the recorded tables, on tables of one's own, and measured on the spot."""

import pytest

from llama_jax.placement import parse
from llama_jax.plumbing import paths
from llama_jax.plumbing.errors import UserError
from llama_lab.bench import environment, record
from tests.cli.test_mistakes import SMALL

DATA = paths.ROOT / "data"


@pytest.fixture
def advised(document):
    """Run `advise --json`: (document, lines beside it)."""

    def run(*arguments):
        advice, err = document("advise", *arguments, "--json")
        return advice, err.strip().splitlines()

    return run


def test_the_recorded_tables_answer(advised):
    best, lines = advised("--requests", 20)
    assert best["placement"] == best["ranking"][0]["name"]
    assert lines[0].startswith(f"{best['placement']}: {best['seconds']:.2f} s")
    assert best["seconds"] == pytest.approx(best["start_seconds"] + 20 * best["request_seconds"])
    assert [r["seconds"] for r in best["ranking"]] == sorted(r["seconds"] for r in best["ranking"])
    table, _, run = best["evidence"]["where"].rstrip(")").partition(" (")
    trials, _ = record.read(DATA / f"{table}.csv")
    mine = [t for t in trials if (t.subject, t.run, t.phase, t.valid) == (best["placement"], run, "warm", True)]
    assert best["evidence"]["trials"] == len(mine)


def test_wishes_hold_for_whatever_is_recorded(advised):
    exact, stream = (advised("--exact", "--requests", 100, *more)[0] for more in ((), ("--streaming",)))
    assert {parse(r["name"]).kernels for r in exact["ranking"]} == {"none"}
    assert all(parse(r["name"]).weights in ("loaded", "f32") for r in exact["ranking"])
    assert "loop" not in {r["name"] for r in stream["ranking"]}
    assert "loop" in {r["name"] for r in stream["refused"]}
    cold, warm = advised("--exact")[0], advised("--exact", "--warm")[0]
    assert warm["start_seconds"] == 0 < cold["start_seconds"]


def test_a_table_of_ones_own(advised, tmp_path):
    trials, _ = record.read(DATA / "02-jit-placement.csv")
    two = [t for t in trials if t.subject in ("step", "chunk8")]
    best, _ = advised("--data", record.write(tmp_path / "mine.csv", two, environment=environment.capture()))
    assert {r["name"] for r in best["ranking"]} <= {"step", "chunk8"}
    assert best["evidence"]["where"].startswith("mine (")


def test_measuring_is_silent_where_nobody_sees_a_bar(call, monkeypatch):
    def measure(settings, progress):
        progress("step", 1, 2)
        raise UserError("That is enough.")

    monkeypatch.setattr("llama_lab.bench.run.run", measure)
    assert call("advise", "--measure") == (2, "", "error: That is enough.\n")


@pytest.mark.slow
def test_really_measured(advised, own_lock, tmp_path):
    out = tmp_path / "now.parquet"
    asked = ("--model", f"{SMALL}97", "--prompt-tokens", 8, "--new-tokens", 6, "--requests", 1000)
    best, lines = advised(*asked, "--measure", "--placements", "step,loop", "--out", out)
    assert best["placement"] in ("step", "loop")
    assert best["evidence"] | dict(where="") == dict(where="", trials=6, processes=2, cold_starts=3)
    assert best["thin"] == []
    assert advised(*asked, "--data", out)[0]["ranking"] == best["ranking"]
    assert any(str(out) in line for line in lines)
