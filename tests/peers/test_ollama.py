"""Ollama's side of the wire, replayed on loopback over real HTTP: what is asked, what is kept of the answer, and every
fault."""

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest

from llama_jax import checkpoint
from llama_lab import peers
from llama_lab.bench.process import allowed_cores
from llama_lab.bench.workload import Workload
from llama_lab.peers import ollama
from tests.checkpoint.test_gguf import write
from tests.peers import ollama_replay as wire
from tests.peers.conftest import trial

MODEL = checkpoint.DEFAULT
WORK = Workload(("<|im_start|>user\nWhy is the sky blue?<|im_end|>\n", "Grass is"), new_tokens=8, length=32)
CLOSED = "http://127.0.0.1:9"  # nothing listens there


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    """The packaged tokenizer beside a small file: the replay runs no model, so that any bytes are weights."""
    path = tmp_path_factory.mktemp("weights") / "small.gguf"
    path.write_bytes(b"GGUF" + bytes(range(256)))
    source = checkpoint.find(MODEL)
    return checkpoint.Checkpoint(
        MODEL, source.config, None, source.tokenizer(), "0123456789abcdef", str(path), "float32"
    )


@pytest.fixture
def server(loaded, monkeypatch):
    """A replay server at OLLAMA_HOST, and patience of a test."""
    monkeypatch.setattr(ollama, "LOOK_S", 0.5)
    monkeypatch.setattr(ollama, "SILENCE_S", 0.5)
    known = dict(model=MODEL, weights_hash="h", dtype="q4_1", quantisation="gguf-q4_1", config=loaded.config)
    known |= dict(weight_bytes=0.7, cache_bytes=2)
    monkeypatch.setattr(ollama.llamacpp, "identity", lambda loaded, path: known)
    with wire.Server(wire.Replay(loaded.tokenizer)) as running:
        monkeypatch.setenv("OLLAMA_HOST", running.url)
        yield running


@pytest.fixture
def subject(loaded, server):
    return ollama.subject(loaded, "ollama")


def test_replayed_answer_is_a_trial_with_the_clients_times_and_the_servers_counts(loaded, server, subject):
    record, tokens = trial(subject, WORK)
    expected = loaded.tokenizer.encode("".join(server.replay.answer * 2))
    assert tokens[:, 0].tolist() == expected
    assert record.valid
    assert record.reason == ""
    assert len(record.token_times_ns) == 8
    assert record.token_times_ns == sorted(record.token_times_ns)
    assert (record.server_tokens, record.server_decode_ns) == (8, wire.DECODE_NS)
    assert (record.server_prompt_ns, record.server_load_ns) == (wire.PROMPT_NS, wire.LOADS_NS)
    assert record.server_prompt_tokens == record.prompt_tokens
    assert (record.backend, record.quantisation) == ("ollama", "gguf-q4_1")


def test_replayed_request_states_everything_that_matters(server, subject):
    trial(subject, WORK)
    unload, request = server.replay.requests("/api/generate")
    assert unload["keep_alive"] == 0  # so that the first request of a process is a first one
    assert not unload.get("prompt")
    options = request["options"]
    assert (request["raw"], request["stream"]) == (True, True)
    assert options["num_predict"] == WORK.new_tokens
    assert options["num_thread"] == len(allowed_cores())
    assert (options["temperature"], options["repeat_penalty"]) == (0, 1.0)
    assert options["num_ctx"] >= WORK.length + WORK.new_tokens
    assert options["num_gpu"] == 0  # the tests run where JAX has no GPU
    assert options["seed"] == WORK.seed


def test_replayed_prompts_never_start_alike(loaded, server, subject):
    ids = tuple(loaded.tokenizer.encode("The quick brown fox jumps over the lazy dog"))
    work = Workload((WORK.prompts[0], ids), 2, 32)
    records = [trial(subject, work, prompt)[0] for prompt in (0, 0, 0, 1, 1)]
    sent = [body["prompt"] for body in server.replay.requests("/api/generate")[1:]]
    first = [loaded.tokenizer.encode(text)[0] for text in sent]
    assert len(set(first)) == len(sent)
    assert all(text.endswith(WORK.prompts[0]) for text in sent[:3])
    assert all(text.endswith(" quick brown fox jumps over the lazy dog") for text in sent[3:])
    longer = len(loaded.tokenizer.encode(WORK.prompts[0], allow_special_tokens=True)) + 1
    assert [r.prompt_tokens for r in records] == [longer] * 3 + [len(ids)] * 2
    assert all(r.server_prompt_tokens == r.prompt_tokens for r in records)


def test_replayed_random_ids_are_sent_as_text_and_another_count_of_them_is_kept(loaded, server, subject):
    ids = tuple(np.random.default_rng(0).integers(20, 49_000, 30).tolist())
    record, _ = trial(subject, Workload((ids,), 4, 32))
    assert record.valid
    assert record.prompt_tokens == 30
    sent = server.replay.requests("/api/generate")[-1]["prompt"]
    assert record.server_prompt_tokens == len(loaded.tokenizer.encode(sent)) != 30


def test_replayed_model_is_made_of_the_very_file_once(loaded, server):
    for _ in range(2):
        ollama.subject(loaded, "ollama")
    (made,) = server.replay.requests("/api/create")
    digest = f"sha256:{hashlib.sha256(Path(loaded.source).read_bytes()).hexdigest()}"
    assert made["model"] == "llama-jax-0123456789ab"
    assert made["files"] == {"small.gguf": digest}
    assert not made.get("quantize")
    assert server.replay.blobs == {digest: 260}


@pytest.mark.parametrize(
    ("fault", "words", "remedy"),
    [
        ("create dropped", r"stopped while it made a model of small\.gguf", "ollama serve"),
        ("create refused", "neither 'from' or 'files'", "0.5.5"),
        ("create half done", "'parsing GGUF'", "0.5.5"),
    ],
)
def test_replayed_creation_that_fails_is_a_gap_and_made_good_by_the_next(loaded, server, fault, words, remedy):
    server.replay.fault = fault
    with pytest.raises(peers.UnavailableError, match=words) as caught:
        ollama.subject(loaded, "ollama")
    assert remedy in caught.value.remedy
    assert server.replay.blobs
    assert not server.replay.models
    server.replay.fault = ""
    assert trial(ollama.subject(loaded, "ollama"), WORK)[0].valid


@pytest.mark.parametrize(
    ("behaviour", "model", "words", "remedy"),
    [
        (dict(version="0.5.4"), MODEL, "too old (0.5.4)", "Update Ollama"),
        (dict(version="0.3.12"), MODEL, "too old (0.3.12)", "Update Ollama"),
        (dict(version="unknown"), MODEL, "too old (unknown)", "Update Ollama"),
        (dict(version=""), MODEL, "too old (it does not say its version)", "Update Ollama"),
        (dict(fault="deaf"), MODEL, "did not answer within 0.5 s", "ollama serve"),
        (dict(fault="not ollama"), MODEL, "is not Ollama", "ollama serve"),
        (None, MODEL, f"No Ollama server answers at {CLOSED}", "ollama serve"),
        (dict(), "random:gpt2", "random:gpt2 is none", ".gguf"),
    ],
)
def test_a_server_or_a_file_that_will_not_do_is_a_gap(server, monkeypatch, behaviour, model, words, remedy):
    if behaviour is None:
        monkeypatch.setenv("OLLAMA_HOST", CLOSED)
    for name, value in (behaviour or {}).items():
        setattr(server.replay, name, value)
    (gap,) = peers.missing(["ollama"], model)
    assert words in gap["reason"]
    assert remedy in gap["remedy"]
    assert not server.replay.asked or behaviour  # nothing was asked that is not needed


@pytest.mark.parametrize("version", ["0.5.5", "0.12.3-rc1", "1.0", "0.0.0"])
def test_replayed_new_server_is_none(server, version):
    server.replay.version = version
    assert peers.missing(["ollama"], MODEL) == []


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("dropped", "the connection broke after 2 chunks"),
        ("no end", "the answer broke off after 8 chunks"),
        ("malformed", "chunk 3 is malformed"),
        ("not an object", "chunk 3 is malformed"),
        ("wrong types", "chunk 3 is malformed"),
        ("error chunk", "the server says after 2 chunks: an error was encountered"),
        ("http 500", "llama runner process has terminated"),
        ("model gone", "model 'llama-jax-0123456789ab' not found"),
        ("hang", "sent nothing for 0.5 s; start it again with `ollama serve`"),
    ],
)
def test_replayed_fault_within_a_request_is_a_void_trial_with_its_reason(server, subject, fault, words):
    assert trial(subject, WORK)[0].valid
    server.replay.fault = fault
    record, tokens = trial(subject, WORK)
    assert not record.valid
    assert words in record.reason
    assert len(tokens) == len(record.token_times_ns) == 0
    assert record.server_tokens is None  # what was said of the request before is not this one's
    server.replay.fault = ""
    record, _ = trial(subject, WORK)
    assert record.valid == (fault != "hang")  # one that hung is not waited for again
    assert fault != "hang" or "sent nothing" in record.reason


def test_replayed_server_that_dies_between_requests_is_a_void_trial(server, subject):
    assert trial(subject, WORK)[0].valid
    server.stop()
    record, _ = trial(subject, WORK)
    assert not record.valid
    assert "ollama serve" in record.reason


@pytest.mark.parametrize("extra", [1, -1])
def test_replayed_tokens_that_the_server_counts_otherwise_are_void(server, subject, extra):
    server.replay.extra = extra
    record, _ = trial(subject, WORK)
    assert not record.valid
    assert f"the server counts {8 + extra} tokens, its chunks make 8" in record.reason


def test_replayed_chunk_of_several_tokens_is_one_block(loaded, server, subject):
    """A server holds the bytes of a character back until it is whole."""
    server.replay.answer = [" The", "🜨"]
    several = len(loaded.tokenizer.encode("🜨"))
    assert several > 1
    server.replay.extra = several - 1
    record, tokens = trial(subject, Workload(WORK.prompts, 1 + several, 32))
    assert not record.valid  # the replay sends as many chunks as tokens were asked for: too many, and the count says so
    server.replay.cut, server.replay.extra = 2, several - 1
    record, tokens = trial(subject, Workload(WORK.prompts, 1 + several, 32))
    assert record.valid
    assert tokens[:, 0].tolist() == loaded.tokenizer.encode(" The🜨")
    assert len(set(record.token_times_ns)) == 2


@pytest.mark.parametrize(("ends", "valid"), [(5, True), (2, True), (1, False), (0, False)])
def test_replayed_text_that_ends_early_is_a_shorter_answer_of_two_tokens_or_more(server, subject, ends, valid):
    server.replay.ends = ends
    record, tokens = trial(subject, WORK)
    assert record.valid == valid
    assert len(tokens) == (ends if valid else 0)
    assert valid or "there is no rate in it" in record.reason


def test_several_rows_are_refused(subject):
    record, _ = trial(subject, Workload(WORK.prompts, 4, 32, batch=2))
    assert "makes one row, 2 were asked for" in record.reason


def test_replayed_best_token_at_positions_of_a_text(loaded, server):
    ids = loaded.tokenizer.encode("Why is the sky blue? It is because of the air.")
    server.replay.answer = [" sky"]
    assert ollama.top1(loaded, ids, [0, 3, 7]).tolist() == loaded.tokenizer.encode(" sky") * 3
    texts = [body["prompt"] for body in server.replay.requests("/api/generate")]
    assert texts == [loaded.tokenizer.decode(ids[: p + 1]) for p in (0, 3, 7)]
    assert all(body["options"]["num_predict"] == 1 for body in server.replay.requests("/api/generate"))
    server.replay.answer = [" sky is"]  # not one token
    assert ollama.top1(loaded, ids, [3]).tolist() == [-1]
    split = loaded.tokenizer.encode("W") + loaded.tokenizer.encode("hy")  # another spelling of a token's text
    assert ollama.top1(loaded, split, [1]).tolist() == [-1]
    server.replay.fault = "http 500"
    with pytest.raises(peers.UnavailableError, match="position 3"):
        ollama.top1(loaded, ids, [3])


@pytest.mark.slow
def test_replayed_server_that_dies_during_a_run_leaves_the_run_whole(document, server, own_lock, tmp_path, monkeypatch):
    """The real command line, its measuring process and all, on a small model; the server is gone after its first
    answers."""
    monkeypatch.setenv("LLAMA_JAX_CACHE", str(tmp_path / "cache"))
    write(tmp_path / "m.gguf")
    replay = server.replay
    replay.tokenizer = checkpoint.find(str(tmp_path / "m.gguf")).tokenizer()
    replay.answer = ["ab"]
    replay.lives = 6
    sizes = "--prompt-tokens 8 --new-tokens 4 --blocks 3 --no-cold --json".split()  # noqa: SIM905
    asked = "--placements", "step", "--peers", "ollama", *sizes
    result, _ = document("bench", "--model", tmp_path / "m.gguf", "--out", tmp_path / "t.jsonl", *asked)
    assert result["subjects"]
    rows = [json.loads(line) for line in (tmp_path / "t.jsonl").read_text().splitlines()[1:]]
    void = [row for row in rows if row["subject"] == "ollama" and not row["valid"]]
    assert void
    assert all("failed: ServerError" in row["reason"] for row in void)
    assert all(row["valid"] for row in rows if row["subject"].startswith("step"))
