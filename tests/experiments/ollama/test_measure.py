"""The contest: mistakes named first, and the same tokens for everyone. It is measured in tests/notebooks."""

from dataclasses import replace

import pytest

from llama_jax import checkpoint, generate
from llama_jax.plumbing.errors import UserError
from llama_lab.bench import footprints, protocol
from llama_lab.bench.experiment import Runner
from llama_lab.bench.journal import Journal
from llama_lab.bench.workload import encoder
from llama_lab.experiments.ollama import turns
from llama_lab.experiments.ollama.measure import Contest

TINY = (
    "random:smollm2-135m,num_hidden_layers=2,hidden_size=64,intermediate_size=128,num_attention_heads=4,num_key_value_heads=2,"
    "head_dim=16,vocab_size=97"
)
CONTEST = Contest(
    TINY,
    ("loop", "step+bf16"),
    ("torch", "llamacpp", "ollama"),
    ("loop", "step+bf16", "torch", "llamacpp"),
    prompts=2,
    new_tokens=5,
    blocks=2,
    processes=1,
    turns=2,
    turn_tokens=4,
    chats=2,
    served=(),
    starts=1,
    seed=0,
)


@pytest.mark.parametrize(
    ("words", "changes"),
    [
        ("No such peer: 'lamacpp'. Did you mean .*llamacpp", dict(peers=("lamacpp",))),
        ("No such placement: 'lop'", dict(placements=("lop",))),
        ("No placement is named", dict(placements=())),
        ("rival 'step' is not among", dict(rivals=("step",))),
        ("named twice", dict(peers=("torch", "torch"))),
        ("turns is 0", dict(turns=0)),
        ("9 turns asked for; the conversation has 5", dict(turns=9)),
        ("chats is 0", dict(chats=0)),
        ("must be 2 or more", dict(new_tokens=1)),
        ("blocks is 0", dict(blocks=0)),
    ],
)
def test_mistakes_are_named_before_anything_is_loaded(monkeypatch, words, changes):
    monkeypatch.setattr(checkpoint, "load", lambda *_: pytest.fail("loaded"))
    with pytest.raises(UserError, match=words):
        replace(CONTEST, **changes).record()


def test_too_long_a_conversation_is_named():
    with pytest.raises(UserError, match="exceed the model's context of 96"):
        replace(CONTEST, model=TINY + ",max_position_embeddings=96").record()


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


@pytest.mark.slow
def test_a_file_reader_needs_no_weights(packaged, tmp_path, monkeypatch):
    """llama.cpp alone in its process holds less than the float32 weights would take."""
    pytest.importorskip("llama_cpp")
    monkeypatch.setattr(protocol.tempfile, "gettempdir", lambda: str(tmp_path))
    runner, work = Runner(replace(CONTEST, model=packaged.name), Journal()), turns.conversation(packaged, 1, 2)
    runner.run(footprints.points(["llamacpp"], 1, work))
    (found,) = footprints.table(runner.rows, runner.journal.notes, ["llamacpp"])
    assert found["peak"][0] - found["libraries"] < packaged.config.num_parameters * 4
    assert found["dtype"] == "q4_1"
