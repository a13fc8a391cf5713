"""The prompt pool, and Ollama's side of it: a small server on loopback that speaks Ollama's documented wire format."""

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from llama_jax import prompts
from llama_jax.plumbing.errors import UserError
from llama_lab.peers import ollama_questions


@pytest.fixture
def server():
    """A stand-in for Ollama: answers /api/chat with what the test sets."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            asked.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            status, body = reply[0]
            data = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *arguments):
            pass

    asked, reply = [], [(200, {})]
    http = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=http.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{http.server_port}", asked, reply
    http.shutdown()
    http.server_close()


def client(url):
    import ollama

    return ollama.Client(host=url)


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


def test_ollama_writes_a_pool(server, tmp_path):
    url, asked, reply = server
    reply[0] = says(json.dumps({"prompts": ["Why?", "How?", "When?"]}))
    assert ollama_questions.from_ollama("m", 2, tmp_path / "p.json", client(url)) == ["Why?", "How?"]
    assert prompts.load(path=tmp_path / "p.json") == ["Why?", "How?"]
    assert asked[0]["format"]["properties"]["prompts"]["type"] == "array"


@pytest.mark.parametrize(
    ("reply_with", "words"),
    [
        (says("I would rather not."), "answer is not JSON.*A prompt pool is"),
        (says('{"prompts": [3]}'), "prompts.0 is 3.*another model"),
        (says('{"prompts": ["one?"]}'), "1 prompts instead of 2"),
        ((404, {"error": "model 'm' not found"}), "ollama pull m"),
    ],
)
def test_a_bad_answer_leaves_the_pool_alone(server, tmp_path, reply_with, words):
    url, _, reply = server
    reply[0] = reply_with
    (tmp_path / "p.json").write_text('{"prompts": ["kept?"]}')
    with pytest.raises(UserError, match=words):
        ollama_questions.from_ollama("m", 2, tmp_path / "p.json", client(url))
    assert prompts.load(path=tmp_path / "p.json") == ["kept?"]


def test_no_server_answers(tmp_path):
    with pytest.raises(UserError, match="ollama serve"):
        ollama_questions.from_ollama("m", 2, tmp_path / "p.json", client("http://127.0.0.1:9"))
