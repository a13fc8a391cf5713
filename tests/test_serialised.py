"""Executables in a file: the same tokens, nothing compiled, and one clear line for a file that does not fit."""

import hashlib
import json

import jax
import pytest

import llama_jax as ll
from llama_jax import serialised
from llama_jax.plumbing.errors import UserError
from llama_jax.sampling import Sampler
from llama_lab.bench import Guard
from tests.conftest import among_the_fast, build, python
from tests.fuzz import hostile

pytestmark = pytest.mark.usefixtures("compiling")

PROMPTS, N = [[5, 9, 33], [8]], 10  # one from the prefill, a chunk of eight, one more
# its top-k is a sort, which XLA on CPU cannot serialise once it has run
TOP_K = Sampler(0.8, top_k=5, repetition_penalty=1.2)


@pytest.fixture(scope="module")
def checkpoint(tiny):
    return ll.Checkpoint("tiny", *tiny, None, "", "random:", "float32")


@pytest.fixture(scope="module")
def saved(checkpoint, tmp_path_factory):
    engine = ll.build(checkpoint, "step+aot")
    ll.answer(engine, PROMPTS, N)
    return serialised.save(engine, tmp_path_factory.mktemp("saved") / "deep" / "step.bin")


@pytest.fixture(scope="module")
def greedy(checkpoint):
    return ll.answer(ll.build(checkpoint, "step"), PROMPTS, N)


def rewritten(path, tmp_path, change):
    """The file with another header, its digest made right again."""
    _, line, rest = path.read_bytes().split(b"\n", 2)
    header = json.loads(line)
    change(header)
    body = json.dumps(header).encode() + b"\n" + rest
    (tmp_path / "other.bin").write_bytes(sealed(body))
    return tmp_path / "other.bin"


def sealed(body):
    return serialised.MAGIC + b" " + hashlib.sha256(body).hexdigest().encode() + b"\n" + body


SAVED = ["chunk8+donate", "loop+scan", "loop+lookup", "step+lookup", "loop+kvint8", "step+q4_1"]


@pytest.mark.parametrize(
    ("name", "sampler"),
    among_the_fast(
        [("step", TOP_K), ("loop+lookup", Sampler()), ("loop+kvint8", Sampler())],
        [("step", TOP_K), *((name, Sampler()) for name in SAVED)],
    ),
)
def test_loaded_programs_make_the_same_tokens_and_compile_nothing(checkpoint, greedy, tmp_path, name, sampler):
    engine, prompts = ll.build(checkpoint, name + "+aot"), PROMPTS if sampler == Sampler() else PROMPTS[:1]
    expected = ll.answer(engine, prompts, N, sampler=sampler)
    # fewer bits may mean other tokens
    assert sampler == TOP_K or name in ("loop+kvint8", "step+q4_1") or expected == greedy
    path = serialised.save(engine, tmp_path / "x.bin")
    with Guard() as guard:
        loaded = serialised.load(checkpoint, name, path, trust=True)
        assert ll.answer(loaded, prompts, N, sampler=sampler) == expected
    assert not {"prefill", "step", "decode"} & {e.name for e in guard.events}, guard.events


def test_another_shape_compiles_and_the_file_is_read_again_as_it_was(checkpoint, saved):
    loaded = serialised.load(checkpoint, "step+aot", saved, trust=True)
    assert loaded.placement.compile == "aot"
    with Guard() as guard:
        ll.answer(loaded, PROMPTS, N)
    assert not guard.fired
    assert not guard.count("trace")
    with Guard() as guard:
        ll.answer(loaded, PROMPTS[:1], N)
    assert guard.names == ["prefill", "step"]


@pytest.mark.slow
def test_what_was_loaded_or_came_from_the_persistent_cache_can_be_saved_again(checkpoint, saved, tmp_path):
    """XLA on CPU writes such a program without complaint, and it fails when it is run; `save` must not hand that on."""
    loaded = serialised.load(checkpoint, "step", saved, trust=True)
    expected = ll.answer(loaded, PROMPTS, N)
    again = serialised.load(checkpoint, "step", serialised.save(loaded, tmp_path / "again.bin"), trust=True)
    assert ll.answer(again, PROMPTS, N) == expected
    for what in ("fill", "save"):
        python(CHILD, tmp_path / "c.bin", what, LLAMA_JAX_CACHE=str(tmp_path))
    assert ll.answer(serialised.load(checkpoint, "step", tmp_path / "c.bin", trust=True), PROMPTS, N) == expected


CHILD = """
import sys, llama_jax as ll
from llama_jax import config, serialised
from tests.conftest import build
cfg = config.tiny()
model = ll.Checkpoint("tiny", cfg, build(cfg), None, "", "random:", "float32")
engine = ll.build(model, "step+persistent" if sys.argv[2] == "fill" else "step+aot")
ll.transforms.use_persistent_cache()
prompts = [[5, 9, 33], [8]]
expected = ll.answer(engine, prompts, 10)
if sys.argv[2] == "save":
    path = serialised.save(engine, sys.argv[1])
    assert ll.answer(serialised.load(model, "step", path, trust=True), prompts, 10) == expected
"""


def test_the_persistent_cache_is_as_it_was_after_saving(saved):
    assert jax.config.jax_enable_compilation_cache


@pytest.fixture
def never_unpickled(monkeypatch):
    fail = lambda *a, **k: pytest.fail("unpickled")  # noqa: E731
    monkeypatch.setattr(serialised.serialize_executable, "deserialize_and_load", fail)


@pytest.mark.usefixtures("never_unpickled")
@pytest.mark.parametrize("where", [0, 40, 120, -1])
def test_a_damaged_file_is_refused_before_anything_is_unpickled(checkpoint, saved, tmp_path, where):
    raw = bytearray(saved.read_bytes())
    raw[where] ^= 1
    (tmp_path / "x.bin").write_bytes(raw)
    with pytest.raises(UserError, match="damaged|not a file of executables"):
        serialised.load(checkpoint, "step", tmp_path / "x.bin", trust=True)


@pytest.mark.usefixtures("never_unpickled")
@pytest.mark.parametrize("what", ["jax", "device", "XLA_FLAGS", "version of this package", "dtype of weights"])
def test_a_file_made_elsewhere_is_refused_before_anything_is_unpickled(checkpoint, saved, tmp_path, what):
    other = rewritten(saved, tmp_path, lambda header: header["about"].update({what: "0.0"}))
    with pytest.raises(UserError, match=f"another {what} .*0.0, here "):
        serialised.load(checkpoint, "step", other, trust=True)


def test_a_file_of_another_placement_or_model_is_refused(checkpoint, saved):
    with pytest.raises(UserError, match="another placement .*layers unrolled, here scan"):
        serialised.load(checkpoint, "step+scan", saved, trust=True)
    config = ll.config.tiny(num_hidden_layers=3)
    deeper = ll.Checkpoint("deeper", config, build(config), None, "", "random:", "float32")
    with pytest.raises(UserError, match="another model .*num_hidden_layers 2, here 3"):
        serialised.load(deeper, "step", saved, trust=True)


@pytest.mark.parametrize(
    ("name", "words"),
    [("step", "with \\+aot"), ("layer+aot", "jits step or decode"), ("step+aot", "compiled nothing yet")],
)
def test_what_cannot_be_saved_is_one_line(checkpoint, tmp_path, name, words):
    with pytest.raises(UserError, match=words):
        serialised.save(ll.build(checkpoint, name), tmp_path / "x.bin")
    assert not list(tmp_path.iterdir())


def test_nothing_is_read_without_trust(checkpoint, saved, monkeypatch):
    monkeypatch.setattr(serialised, "read", lambda *a: pytest.fail("read"))
    for trust in ({}, dict(trust=False), dict(trust="no"), dict(trust=1)):
        with pytest.raises(UserError, match="loading it runs them; pass trust=True"):
            serialised.load(checkpoint, "step", saved, **trust)


def move_bytes(header):
    header["entries"][0]["bytes"] -= 5
    header["entries"][1]["bytes"] += 5


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda header: header.clear(), "has no about"),
        (lambda header: header.pop("entries"), "has no entries"),
        (lambda header: header.update(entries={}), "entries is {}"),
        (lambda header: header.update(about=[]), r"about is \[\]"),
        *(
            (lambda header, name=name, value=value: header["entries"][0].update({name: value}), f"entries.0.{name}")
            for name, values in dict(
                bytes=(None, -1, 1.5, "5", True, 2**63 - 1, 2**200),
                slots=(0, -1, "5", [], 2**62),
                name=(None, "logits", 5, []),
                sampler=(5, [], {"top_k": None}, {"top_k": "5"}),
            ).items()
            for value in values
        ),
        (lambda header: header["entries"][0].update(bytes=2**31), "lists programs of"),
        (lambda header: header["entries"].pop(), "lists programs of"),
        (lambda header: header["entries"][0].update(sampler={"heat": 1}), "does not take the program"),
        (lambda header: header["entries"][0].update(sampler={"temperature": -1}), "does not take the program"),
        (move_bytes, "does not take the program 'prefill'"),
    ],
)
def test_a_header_that_is_none_is_one_line(checkpoint, saved, tmp_path, change, words):
    """Its digest is right: whoever wrote it meant it."""
    with pytest.raises(UserError, match=words):
        serialised.load(checkpoint, "step", rewritten(saved, tmp_path, change), trust=True)


@pytest.mark.parametrize(
    "body", [b"", b"\n", b"[" * 200_000, b'{"a":' * 200_000, b"\xff\n", b"{}\n", b"null\n", b"NaN\n"]
)
def test_a_sealed_file_of_another_kind_is_one_line(checkpoint, tmp_path, body):
    (tmp_path / "x.bin").write_bytes(sealed(body))
    with pytest.raises(UserError, match=r"x\.bin"):
        serialised.load(checkpoint, "step", tmp_path / "x.bin", trust=True)


@pytest.mark.parametrize(
    "what", ["folder", "fifo", "loop", "missing", "empty", "cut", "end", "appended", "long", "null"]
)
def test_what_is_no_file_of_executables_is_one_line(checkpoint, saved, tmp_path, monkeypatch, what):
    whole = saved.read_bytes()
    damaged = dict(empty=b"", cut=whole[: len(whole) // 2], end=whole[:-7], appended=whole + b"rubbish", long=whole)
    path = "a\0b" if what == "null" else tmp_path / "x.bin"
    if what != "null":
        hostile.put(path, damaged.get(what, what))
    monkeypatch.setattr(serialised, "LARGEST", 100 if what == "long" else 1 << 30)
    with pytest.raises(UserError):
        serialised.load(checkpoint, "step", path, trust=True)


def test_weights_are_not_in_the_file(checkpoint, greedy, saved):
    """Other weights of the same shapes run in the same programs, and make their own tokens."""
    other = ll.Checkpoint("other", checkpoint.config, build(checkpoint.config, 1), None, "", "random:", "float32")
    mine = ll.answer(serialised.load(other, "step", saved, trust=True), PROMPTS, N)
    assert mine == ll.answer(ll.build(other, "step"), PROMPTS, N)
    assert mine != greedy == ll.answer(serialised.load(checkpoint, "step", saved, trust=True), PROMPTS, N)
