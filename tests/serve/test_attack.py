"""What counts answers that differ: against a server that gives the same ones, one that gives others in company, and
ours."""

import hashlib
import json
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import uvicorn

from llama_lab import attack
from llama_lab.serve.app import application

LOCK = threading.Lock()


class Handler(BaseHTTPRequestHandler):
    """A server's answer is a function of the request, and of what `server.company` says."""

    def log_message(self, *_):
        pass

    def say(self, status, content):
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def do_GET(self):
        self.say(200, json.dumps(dict(data=self.server.models)).encode())

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with LOCK:
            self.server.seen.append(body)
        text, status = self.server.company(body, self.server.seen)
        said = dict(choices=[dict(text=text, finish_reason="length")], usage=dict(completion_tokens=3))
        self.say(status, json.dumps(said).encode() if status == 200 else b"too much")


@pytest.fixture
def server():
    made = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    made.models, made.seen, made.company = [dict(id="m")], [], lambda body, seen: (text_of(body), 200)
    threading.Thread(target=made.serve_forever, daemon=True).start()
    made.url = f"http://127.0.0.1:{made.server_port}"
    yield made
    made.shutdown()
    made.server_close()


def text_of(body):
    return hashlib.sha256(json.dumps([body["prompt"], body.get("seed")]).encode()).hexdigest()


def found(url, count=6):
    server = attack.Server(url)
    entries = attack.attack(server, attack.requests_of(server.model(), count, 4, 0))
    return {e["situation"]: e for e in entries}


@pytest.fixture(autouse=True)
def _soon(monkeypatch):
    quick = {name: each._replace(wait_s=each.wait_s / 50) for name, each in attack.SITUATIONS.items()}
    monkeypatch.setattr(attack, "SITUATIONS", quick)


def test_a_server_that_gives_the_same_answers_passes(server):
    entries = found(server.url + "/v1/")
    assert [*entries] == [*attack.SITUATIONS]
    assert not attack.differs([*entries.values()])
    assert {(e["of_greedy"], e["of_sampled"], e["failed"]) for e in entries.values()} == {(3, 3, 0)}
    left = [body for body in server.seen if body.get("stream")]
    assert len(left) == 6
    asked = [body for body in server.seen if not body.get("stream")]
    assert len(asked) == 6 * (1 + len(entries))
    assert {body["temperature"] for body in asked} == {0, 1}
    orders = [[body["prompt"] for body in asked[i : i + 6]] for i in (0, 6, 12)]
    assert orders[0] == orders[1] != orders[2]


def test_answers_that_are_others_are_counted(server):
    """Here what is sampled, from the fourth time on that it is asked for."""

    def company(body, seen):
        times = sum(each["prompt"] == body["prompt"] for each in seen)
        return text_of(body) + "!" * (times > 3 and "seed" in body), 200

    server.company = company
    entries = found(server.url)
    assert [(e["greedy"], e["sampled"]) for e in entries.values()] == [(0, 0), (0, 0), (0, 3), (0, 3), (0, 3)]
    assert attack.differs([*entries.values()])
    assert "3 of 3 sampled" in attack.lines([*entries.values()])[2]


def test_a_request_that_fails_in_company_is_counted_apart_and_a_busy_server_is_asked_again(server):
    counts = {}

    def company(body, seen):
        with LOCK:
            counts[body["prompt"]] = counts.get(body["prompt"], 0) + 1
        if counts[body["prompt"]] == 1:
            return "", 503
        return text_of(body), 500 if counts[body["prompt"]] > 4 and body["prompt"].startswith("Story 1.") else 200

    server.company = company
    entries = found(server.url)
    assert [e["failed"] for e in entries.values()] == [0, 0, 1, 1, 1]
    assert not attack.differs([*entries.values()])
    assert "1 requests failed" in attack.lines([*entries.values()])[-1]


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("ftp://somewhere", "is not the URL of a server"),
        ("http://", "is not the URL of a server"),
        ("127.0.0.1:9", "does not answer /models"),
    ],
)
def test_mistakes_are_one_line(url, words):
    with pytest.raises(attack.AttackError, match=words):
        found(url)


def test_what_is_no_completion_is_said(server):
    server.models = []
    with pytest.raises(attack.AttackError, match="lists no model"):
        found(server.url)
    server.models, server.company = [dict(id="m")], lambda body, seen: ("", 404)
    with pytest.raises(attack.AttackError, match="with 404: too much"):
        found(server.url)


def test_it_runs_alone_as_a_file(server, tmp_path):
    """Copied somewhere else, by a Python that has nothing of ours."""
    copy = tmp_path / "attack.py"
    copy.write_text(Path(attack.__file__).read_text())
    asked = [sys.executable, "-I", "-S", str(copy), server.url, "--requests", "4"]
    done = subprocess.run(asked, capture_output=True, text=True, timeout=60)
    assert (done.returncode, len(done.stdout.splitlines())) == (0, len(attack.SITUATIONS)), done.stderr


@pytest.mark.slow
def test_our_answers_do_not_differ_whoever_shares_the_batch(service):
    made = uvicorn.Server(uvicorn.Config(application(service), port=0, log_level="error"))
    thread = threading.Thread(target=made.run, daemon=True)
    thread.start()
    while not made.started:
        thread.join(0.05)
    port = made.servers[0].sockets[0].getsockname()[1]
    try:
        entries = found(f"http://127.0.0.1:{port}", count=8)
    finally:
        made.should_exit = True
        thread.join()
    assert not attack.differs([*entries.values()])
    assert {e["failed"] for e in entries.values()} == {0}
