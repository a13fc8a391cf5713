"""The prompts of each task, what passes make of their drafts, and the children, on a small model."""

import pytest

from llama_jax import checkpoint, generate
from llama_lab.bench import passages
from llama_lab.bench.workload import encoder
from llama_lab.experiments.past_one_token_a_pass import measure, table
from tests.experiments.conftest import TINY

ASKED = dict(
    model=TINY, seed=0, placements=["loop", "loop+lookup3"], peers=["llamacpp"], each=1, passage_tokens=20,
    new_tokens=12, blocks=1, processes=1,
)  # fmt: skip


def test_copies_have_begun_and_edits_have_another_word(packaged):
    work = measure.workload(packaged, 2, 60, 32, 0)
    assert len(work.prompts) == 2 * len(measure.TASKS)
    assert work.length >= max(len(encoder(packaged)(p)) for p in work.prompts)
    question, copy, edit = work.prompts[:3]
    assert "user" in question
    pages = passages.passages(packaged, [60] * 4, 0)
    assert copy.startswith(f"{pages[0]}\n\n")
    assert pages[0].startswith(copy.removeprefix(f"{pages[0]}\n\n"))
    assert len(copy) > len(pages[0]) + 2
    before, _, after = edit.removeprefix(f"{pages[2]}\n\n").partition(measure.OTHER)
    assert pages[2].startswith(before)
    assert 1 < len(after.split(" ")) <= measure.BEGUN
    assert after.split()[0] in pages[2][len(before) :]
    assert measure.edit("about a b about c d e f g h") == "about a b about c d e f g h\n\nwalnut a b walnut c d e f"
    assert measure.edit("a b c") == "a b c\n\n"


@pytest.mark.slow
def test_passes_are_those_of_the_stream():
    loaded = checkpoint.load(TINY)
    work = measure.workload(loaded, 1, 20, 12, 0)
    rows = measure.passes(loaded, "loop+lookup3", work)
    assert [row["prompt"] for row in rows] == [0, 1, 2]
    for row in rows:
        assert sum(row["made"]) == 11
        assert set(row["depths"]) <= {0, 3}
        assert all(made <= 1 + depth for made, depth in zip(row["made"], row["depths"], strict=True))
        assert row["costs"][0] == 1 <= row["costs"][1]


@pytest.mark.slow
def test_it_is_measured(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # a lock of its own: something may be measured here
    monkeypatch.setattr("llama_jax.plumbing.paths.tempfile.tempdir", None)
    trials, meta = measure.PastOneToken(**ASKED).record()
    assert all(t.valid for t in trials), [t.reason for t in trials]
    assert [gap["name"] for gap in meta["missing"]] == ["llamacpp"]
    entries = table.table(trials, meta | dict(parameters=ASKED))
    assert {(e["task"], e["name"]) for e in entries} == {(t, n) for t in measure.TASKS for n in ASKED["placements"]}
    assert all(e["equal"] for e in entries if e["ratio"])
    assert generate.bucket(20 + measure.BEGUN) == trials[0].cache_slots - 16
