"""llama.cpp's own benchmark beside the peer: what it prints is read, pairs take turns, failures are one line."""

import csv
import json
import sys

import pytest

from llama_jax.plumbing.errors import UserError
from llama_lab.peers import llama_bench


@pytest.fixture
def built(tmp_path, monkeypatch):
    """A program in its place that prints samples as llama-bench does, or fails without a model."""
    path = tmp_path / "llama-bench"
    answer = json.dumps([dict(samples_ts=[100.0, 90.0, 300.0])])
    path.write_text(f"#!/bin/sh\ntest -f \"$2\" || {{ echo no model >&2; exit 1; }}\nprintf '%s' '{answer}'\n")
    path.chmod(0o755)
    monkeypatch.setattr(llama_bench, "BUILT", type("Built", (), dict(version="1", required=lambda self: path))())
    (tmp_path / "model.gguf").touch()
    return tmp_path


def test_its_rate_is_the_median_of_what_it_prints_and_its_failure_is_one_line(built):
    assert llama_bench.own(built / "model.gguf") == 100.0
    with pytest.raises(UserError, match=r"llama-bench failed: no model$"):
        llama_bench.own(built / "none.gguf")
    with pytest.raises(UserError, match="failed: .*boom"):
        llama_bench.said([sys.executable, "-c", "raise SystemExit('boom')"])


def test_pairs_are_measured_by_turns_and_kept(built, monkeypatch, capsys):
    monkeypatch.setattr(llama_bench, "PAIRS", 4)
    monkeypatch.setattr(llama_bench, "peer", lambda model: 95.0)
    monkeypatch.setattr(llama_bench.checkpoint, "gguf_file", lambda model: built / "model.gguf")
    path = built / "data" / "llama-bench.csv"
    path.parent.mkdir()
    assert llama_bench.measure("m", path).value == pytest.approx(0.95)
    assert "pair 4 of 4: llamacpp 95 tokens/s, llama-bench 100 tokens/s" in capsys.readouterr().out
    rows = [*csv.DictReader(path.open())]
    assert [row["first"] for row in rows] == ["llama-bench", "llamacpp"] * 2
    assert "decodes at 0.95 [0.95, 0.95] times the rate that llama-bench itself reports (4 pairs" in (
        llama_bench.sentence(path)
    )
