"""Engines on files of several sizes: mistakes, files made once, what rows say, and the children, on a small model."""

import numpy as np
import pytest

from llama_jax import checkpoint
from llama_jax.placement import parse
from llama_jax.plumbing.errors import UserError
from llama_lab.bench import protocol
from llama_lab.bench.journal import Journal
from llama_lab.bench.workload import Workload
from llama_lab.experiments.compiled_kernels import size_table, sizes
from tests.bench.test_record import trial

TINY = (
    "random:smollm2-135m,num_hidden_layers=1,hidden_size=64,intermediate_size=128,num_attention_heads=4,"
    "num_key_value_heads=2,head_dim=16,vocab_size=512"
)
PLAN = dict(
    size_engines=["loop+q8_0"],
    size_files=[f"{TINY}/q4_0"],
    size_contexts=[24],
    size_lengths=[10],
    size_tokens=6,
    size_blocks=1,
    seed=0,
)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("LLAMA_JAX_CACHE", str(tmp_path / "cache"))


def rows(rates, file="small/q4_0", megabytes=100, blocks=6, prompts=None):
    """Answers of several engines on a file in every block: of 11 tokens at context 64, and prompts of 50 tokens.

    rates: engine → tokens/s. prompts: engine → tokens/s.
    """
    made = []
    for block in range(blocks):
        shaky = 1 + 0.004 * (block % 3)
        for order, (name, rate) in enumerate(rates.items()):
            about = dict(
                run=file,
                order=order,
                backend=dict(llamacpp="llama.cpp", openvino="openvino").get(name, "jax"),
                bytes_per_token=megabytes * 1e6,
                bandwidth_gbps=40.0,
                tokenize_ns=0,
            )
            step = 1e3 / rate * shaky * (1.001 if order else 1)
            made.append(trial(name, block, [50 + step * k for k in range(11)], **about, prompt_tokens=53))
            if prompts:
                made.append(trial(name, block, [50e3 / prompts[name] * shaky], **about, prompt_tokens=50))
    return [t.model_copy(update=dict(new_tokens=len(t.token_times_ns))) for t in made]


def test_each_is_held_against_the_best_peer_on_its_file_and_shape():
    made = rows(dict(loop=300, llamacpp=100, openvino=150), prompts=dict(loop=900, llamacpp=1000, openvino=500))
    made += rows(dict(loop=30, llamacpp=20, openvino=10), "large/q4_0", megabytes=1000)
    found = {(e["file"], e["what"], e["tokens"], e["name"]): e for e in size_table.table(made)}
    ours = found["small/q4_0", "decode", 64, "loop"]
    assert (ours["best"], ours["ratio"].verdict) == ("openvino", "faster")
    assert ours["ratio"].value == pytest.approx(2, rel=0.01)
    assert ours["mbu"] == pytest.approx(300 * 1e8 / 40e9, rel=0.02)
    prompt = found["small/q4_0", "prefill", 50, "loop"]
    assert (prompt["best"], prompt["ratio"].verdict) == ("llamacpp", "slower")
    assert prompt["rate"].median == pytest.approx(900, rel=0.02)
    assert np.isnan(prompt["mbu"])
    assert found["large/q4_0", "decode", 64, "loop"]["best"] == "llamacpp"
    assert found["small/q4_0", "decode", 64, "openvino"]["ratio"].value == pytest.approx(1)
    assert [e["bytes"] for e in size_table.table(made) if e["what"] == "decode"] == sorted([1e8] * 3 + [1e9] * 3)
    assert {e["best"] for e in size_table.table(made)} == {"openvino", "llamacpp"}


def test_void_answers_do_not_count_and_without_a_peer_there_is_no_ratio():
    made = [
        t.model_copy(update=dict(valid=False, reason="failed")) if t.subject == "openvino" and t.block < 2 else t
        for t in rows(dict(loop=300, openvino=150))
    ]
    entries = {e["name"]: e for e in size_table.table(made)}
    assert (entries["openvino"]["void"], entries["openvino"]["rate"].n) == (2, 4)
    assert entries["loop"]["ratio"].n == 4
    alone = size_table.table(rows(dict(loop=300)))
    assert alone[0]["ratio"] is None
    assert size_table.ours(alone) == []
    assert size_table.table([]) == []


@pytest.mark.parametrize(
    ("words", "changes"),
    [
        ("write MODEL/TYPE", dict(size_files=[TINY])),
        ("the type one of q4_0, q4_1, q8_0", dict(size_files=[f"{TINY}/q5_0"])),
        ("No such preset", dict(size_files=["random:smol/q4_0"])),
        ("No such placement", dict(size_engines=["lop"])),
        ("more than the model's", dict(size_contexts=[9000])),
        ("more than the model's", dict(size_lengths=[9000])),
        ("leaves no room", dict(size_contexts=[6])),
        ("blocks is 0", dict(size_blocks=0)),
    ],
)
def test_mistakes_are_named_before_anything_is_measured(words, changes):
    with pytest.raises(UserError, match=words):
        sizes.Sizes(**PLAN | changes).record()


def test_a_file_is_made_once_and_a_gguf_files_own_type_is_itself():
    said = []
    first = sizes.file_of(TINY, "q4_0", lambda *told: said.append(told[0]))
    made = first.stat().st_mtime_ns
    assert sizes.file_of(TINY, "q4_0", lambda *told: said.append(told[0])).stat().st_mtime_ns == made
    (line,) = said
    assert line.startswith("writing ")
    assert "MB of random weights" in line
    assert sizes.file_of(checkpoint.DEFAULT, "q4_1") == checkpoint.gguf.packaged()
    with pytest.raises(UserError, match="not in q4_1"):
        sizes.file_of(str(first), "q4_1")
    with pytest.raises(UserError, match="neither random:PRESET nor a GGUF file"):
        sizes.file_of("nobody/nothing", "q4_0")


def test_an_answer_of_fewer_tokens_is_void():
    work = Workload(((1, 2),), new_tokens=11, length=2)
    whole = rows(dict(loop=100))[0]
    assert sizes.counted(whole, work) == whole
    short = sizes.counted(whole, Workload(((1, 2),), new_tokens=12, length=2))
    assert (short.valid, short.reason) == (False, "failed: 11 of 12 tokens came")


def test_our_tokens_are_the_references_and_others_are_not_held_to_them():
    loaded, work = checkpoint.load(TINY, "q4_0"), Workload(((5, 6, 7),), new_tokens=6, length=3)
    judge = sizes.judges_of(loaded, [work])[work]
    who = protocol.subject(loaded, parse("loop"))
    made, tokens = protocol.trial(who, work, 0, run="file", block=0, order=0, process=1, seed=0, phase="cold")
    made = made.model_copy(update=dict(valid=True, reason=""))  # it compiled
    assert sizes.judged(made, tokens, work, judge) == made
    other = (tokens + 1) % 512
    spoilt = sizes.judged(made, other, work, judge)
    assert not spoilt.valid
    assert spoilt.reason.startswith("wrong: token 0 is ")
    peer = made.model_copy(update=dict(quantisation="gguf-q4_0"))
    assert sizes.judged(peer, other, work, judge) == peer


def test_every_subject_has_every_task_in_each_block_and_blocks_differ():
    blocks = [list(sizes.shuffled("abc", "xy", 0, block)) for block in range(6)]
    assert all(sorted(block) == sorted((s, t) for s in "abc" for t in "xy") for block in blocks)
    assert len({tuple(block) for block in blocks}) > 1
    assert all(len({t for _, t in block[:3]}) == 1 for block in blocks)  # side by side at one task


@pytest.mark.slow
def test_really_measured(tmp_path, monkeypatch):
    monkeypatch.setattr(protocol.tempfile, "gettempdir", lambda: str(tmp_path))
    journal = Journal()
    experiment = sizes.Sizes(**PLAN | dict(size_engines=["loop+q8_0", "step+gguf"], size_blocks=2))
    made, meta = experiment.record(journal)
    assert all(t.valid for t in made), [t.reason for t in made]
    assert {(t.run, t.model) for t in made} == {(f"{TINY}/q4_0", f"{TINY}/q4_0")}
    assert {(t.subject, t.block, t.prompt_tokens, t.new_tokens) for t in made} == {
        (name, block, *shape) for name in experiment.size_engines for block in (0, 1) for shape in ((18, 6), (10, 1))
    }
    assert all(t.bandwidth_gbps for t in made)
    assert meta["missing"] == []
    assert str(tmp_path) not in str([t.model_dump() for t in made])
    assert experiment.record(journal)[0] == made
