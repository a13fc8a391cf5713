"""Notebook 17, of five tables, really measured through the runner on a small model, and drawn again from what it
recorded."""

import pytest

from llama_lab import bench
from llama_lab.bench import record
from llama_lab.bench.cold import Start
from llama_lab.reporting import notebooks
from tests.conftest import TINY
from tests.notebooks.conftest import hashes

SMALL = dict(
    model=TINY,
    scaled=["loop"],
    scale_contexts=[24, 64],
    scale_threads=[1],
    scale_tokens=6,
    scale_answers=1,
    size_engines=["loop+q8_0"],
    size_files=[f"{TINY},vocab_size=512/q4_0"],
    size_contexts=[24],
    size_lengths=[10],
    size_tokens=6,
    size_blocks=1,
    shapes=TINY,
    split=["loop"],
    split_contexts=[24, 64],
    split_blocks=2,
    row_engines=["loop", "llamacpp"],
    rows=[1, 3],
    row_contexts=[16],
    row_passes=2,
    row_blocks=1,
    first_subjects=["step", "llamacpp"],
    first_lengths=[5, 20],
    first_blocks=2,
)


@pytest.mark.slow
def test_measured_and_drawn_again(measured, tmp_path):
    finding = measured("17", SMALL)
    assert "From context 24 to 64 loop keeps " in finding
    sized, _ = record.read(tmp_path / "data" / "17-compiled-kernels-sizes.csv")
    assert {(t.valid, t.prompt_tokens, t.new_tokens) for t in sized} == {(True, 18, 6), (True, 10, 1)}
    firsts, meta = record.read(tmp_path / "data" / "17-compiled-kernels-first.csv", kind=Start)
    assert {(t.subject, t.prompt_tokens, t.valid) for t in firsts} == {
        (f"step{again}", n, True) for again in ("", bench.AGAIN) for n in (5, 20)
    }
    assert [gap["name"] for gap in meta["missing"]] == ["llamacpp"]
    before = hashes(tmp_path, "figures/*")
    (again,) = notebooks.run(("17",), out_dir=tmp_path)
    assert again.ok, again
    assert again.finding == finding
    assert hashes(tmp_path, "figures/*") == before
