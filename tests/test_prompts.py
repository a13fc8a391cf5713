"""The prompt pool, and Ollama's side of it: its own client, to which a transport answers as Ollama documents it."""

import json

import httpx
import ollama
import pytest

from llama_jax import prompts
from llama_jax.plumbing.errors import UserError
from llama_lab.peers import ollama_questions


def says(text):
    return 200, {"model": "m", "message": {"role": "assistant", "content": text}, "done": True}


def test_the_committed_pool():
    pool = prompts.load()
    assert len(pool) == len(set(pool)) == 20
    assert all(q.endswith("?") for q in pool)
    assert prompts.load(3) == pool[:3]


@pytest.mark.parametrize("count", [0, 21])
def test_a_wrong_count_is_named(count):
    with pytest.raises(UserError, match=f"{count} prompts asked for"):
        prompts.load(count)


@pytest.mark.parametrize("text", ["", "[]", '{"prompts": []}', '{"prompts": [1]}'])
def test_a_damaged_pool_is_named(tmp_path, text):
    (tmp_path / "p.json").write_text(text)
    with pytest.raises(UserError, match="A prompt pool is"):
        prompts.load(path=tmp_path / "p.json")


def test_a_server_can_follow_the_pools_schema_and_a_pool_stays_bounded(tmp_path):
    schema = prompts.PromptPool.model_json_schema()
    assert schema["properties"]["prompts"].keys() & {"minItems", "maxItems"} == {"minItems"}
    (tmp_path / "p.json").write_text(json.dumps(dict(prompts=["a" * 100_001])))
    with pytest.raises(UserError, match="A prompt pool is"):
        prompts.load(path=tmp_path / "p.json")


def client(status, body, asked=None):
    """Ollama's client; every request is appended to `asked` and gets this reply."""

    def handle(request):
        (asked if asked is not None else []).append(json.loads(request.content))
        return httpx.Response(status, json=body)

    return ollama.Client(transport=httpx.MockTransport(handle))


def test_ollama_writes_a_pool(tmp_path):
    asked = []
    reply = says(json.dumps({"prompts": ["Why?", "How?", "When?"]}))
    written = ollama_questions.from_ollama("m", 2, tmp_path / "p.json", client(*reply, asked))
    assert written == prompts.load(path=tmp_path / "p.json") == ["Why?", "How?"]
    assert asked[0]["format"]["properties"]["prompts"]["type"] == "array"


@pytest.mark.parametrize(
    ("client", "words"),
    [
        (client(*says("I would rather not.")), "answer is not JSON.*A prompt pool is"),
        (client(*says('{"prompts": [3]}')), "prompts.0 is 3.*another model"),
        (client(*says('{"prompts": ["one?"]}')), "1 prompts instead of 2"),
        (client(404, {"error": "model 'm' not found"}), "ollama pull m"),
        (ollama.Client(host="http://127.0.0.1:9"), "ollama serve"),
    ],
)
def test_a_bad_answer_leaves_the_pool_alone(tmp_path, client, words):
    (tmp_path / "p.json").write_text('{"prompts": ["kept?"]}')
    with pytest.raises(UserError, match=words):
        ollama_questions.from_ollama("m", 2, tmp_path / "p.json", client)
    assert prompts.load(path=tmp_path / "p.json") == ["kept?"]
