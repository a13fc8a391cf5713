"""The contest: mistakes named first, and the same tokens for everyone, servers that keep the history included. It is
measured in tests/notebooks."""

from dataclasses import replace

import numpy as np
import pytest

from llama_jax import checkpoint, generate
from llama_jax.plumbing.errors import UserError
from llama_lab.bench import footprints
from llama_lab.bench.experiment import Runner
from llama_lab.bench.journal import Journal
from llama_lab.bench.workload import encoder
from llama_lab.experiments.ollama import table, turns
from llama_lab.experiments.ollama.measure import Contest
from llama_lab.experiments.ollama.model_files import Files
from llama_lab.peers import ollama_native
from tests.bench import labs
from tests.experiments.conftest import TINY

CONTEST = Contest(
    TINY, ("loop", "step+bf16"), ("torch", "llamacpp", "ollama"), ("loop", "step+bf16", "torch", "llamacpp"), prompts=2,
    new_tokens=5, blocks=2, processes=1, turns=2, turn_tokens=4, chats=2, served=(), starts=1, seed=0,
)  # fmt: skip


def test_each_turn_holds_all_before_it(packaged):
    work = turns.conversation(packaged, len(turns.TALK), 16)
    ids = [encoder(packaged)(text) for text in work.prompts]
    opening = encoder(packaged)("<|im_start|>assistant\n")
    for before, after, (_, answer), (question, _) in zip(ids, ids[1:], turns.TALK, turns.TALK[1:], strict=False):
        assert before[-len(opening) :] == opening
        assert after[: len(before)] == before
        assert answer in packaged.tokenizer.decode(after)
        assert question in packaged.tokenizer.decode(after[len(before) :])
    assert work.length >= len(ids[-1])
    assert len({generate.bucket(len(one)) for one in ids}) > 2  # each turn in a shape of its own
    first = turns.turn(work, 0, encoder(packaged))
    assert (first.prompts, first.length) == (work.prompts[:1], generate.bucket(len(ids[0])))


def test_turns_of_random_ids_where_there_is_no_tokenizer():
    work = turns.conversation(checkpoint.load(TINY), 3, 4, seed=5)
    assert [len(prompt) for prompt in work.prompts] == [40, 110, 180]
    assert all(b[: len(a)] == a for a, b in zip(work.prompts, work.prompts[1:], strict=False))


def test_no_two_conversations_begin_alike(packaged):
    one, other = (
        encoder(packaged)(turns.conversation(packaged, 1, 4, 0, f"Conversation {n}. ").prompts[0]) for n in (1, 2)
    )
    alike = np.argmin([a == b for a, b in zip(one, other, strict=True)])
    assert 0 < alike < 10 < len(one)


def test_a_server_that_does_not_start_is_named(packaged):
    words = "`llama-jax serve` under step did not start: .*context"
    with pytest.raises(UserError, match=words), turns.ours(packaged.source, "step", 10**9):
        pytest.fail("it started")


@pytest.mark.slow
def test_each_turn_makes_the_tokens_of_the_placement_alone(packaged):
    names = ["step+donate"] + ["ollama"] * (ollama_native.BUILT.binary() is not None)
    asked = dict(names=names, chats=2, turns=2, new_tokens=4, seed=3)
    trials, notes = labs.run(turns.conversations, packaged.name, turns.KEPT, **asked)
    assert {t["subject"] for t in trials} == set(names)
    assert len(trials) == 2 * 2 * len(names)  # chats, turns
    for t in trials:
        assert t["valid"], t["reason"]
        assert t["new_tokens"] == 4
        assert t["server_prompt_tokens"] is not None
    assert notes[-1]["watch"]


def test_nobody_is_asked_where_nothing_is_served():
    assert table.both_ways([], ["step+fused"]).empty
    assert table.both_ways([], []).empty


@pytest.mark.slow
def test_a_file_reader_needs_no_weights(packaged, tmp_path, monkeypatch):
    """llama.cpp alone in its process holds less than the float32 weights would take."""
    pytest.importorskip("llama_cpp")
    monkeypatch.setattr("llama_jax.plumbing.paths.tempfile.gettempdir", lambda: str(tmp_path))
    runner, work = Runner(replace(CONTEST, model=packaged.name), Journal()), turns.conversation(packaged, 1, 2)
    runner.run(footprints.points(["llamacpp"], 1, work))
    (found,) = footprints.table(runner.rows, runner.journal.notes, ["llamacpp"])
    assert found["peak"][0] - found["libraries"] < packaged.config.num_parameters * 4
    assert found["dtype"] == "q4_1"


FILES = dict(
    file_models=(checkpoint.DEFAULT,), file_placements=("step+fused",), file_peers=(), file_prompts=1, file_tokens=4,
    file_processes=2, seed=0,
)  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (dict(file_placements=("lop",)), "No such placement"),
        (dict(file_peers=("lamacpp",)), "lamacpp"),
        (dict(file_processes=0), "processes is 0"),
        (dict(file_tokens=1), "file_tokens must be 2 or more"),
    ],
)
def test_mistakes_about_files_are_named(changes, words):
    with pytest.raises(UserError, match=words):
        Files(**FILES | changes).check()


def test_a_model_that_is_not_here_is_said_to_be_missing(tmp_path, monkeypatch):
    monkeypatch.setenv("LLAMA_JAX_CACHE", str(tmp_path))
    rows, meta = Files(**FILES | dict(file_models=("qwen2.5-coder-1.5b",))).record()
    assert rows == []
    (gap,) = meta["missing"]
    assert "fetch qwen2.5-coder-1.5b" in gap["remedy"]


@pytest.mark.slow
def test_each_models_own_file_is_measured():
    rows, meta = Files(**FILES).record()
    warm = [t for t in rows if t.phase == "warm"]
    assert {(t.run, t.model, t.valid) for t in warm} == {(checkpoint.DEFAULT, checkpoint.DEFAULT, True)}
    assert len({t.process for t in warm}) == 2
    (entry,) = (e for e in table.on_files(rows) if e["name"] == "step+fused")
    assert (entry["model"], entry["decode"].n, meta["missing"]) == (checkpoint.DEFAULT, 2, [])
