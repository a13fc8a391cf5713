"""A real server in a process of its own, asked by real clients."""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import pytest

from llama_jax import chat, generate, prompts
from llama_lab.peers import ollama_native, ollama_questions
from tests.serve import small

pytestmark = pytest.mark.slow
NAME = "smollm2-135m-instruct"
QUESTION = [{"role": "user", "content": "Why is the sky blue?"}]


def start(*options):
    """(the process, its address) of a server on a port that the system chose."""
    command = [sys.executable, "-m", "llama_lab", "--quiet", "serve", "--port", "0", *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    line = process.stdout.readline()
    found = re.search(r"answers at (http://127\.0\.0\.1:\d+): .*; (\d+) programs compiled in", line)
    assert found, line + process.stderr.read()
    return process, found[1]


@pytest.fixture(scope="module")
def server():
    process, url = start("--slots", "2", "--context", "512", "--placement", "step+donate")
    yield url
    process.terminate()
    assert process.wait(60) in (-signal.SIGTERM, 128 + signal.SIGTERM)


@pytest.fixture(scope="module")
def said(packaged):
    """What `generate` says to QUESTION."""
    ids = chat.encode(packaged.tokenizer, QUESTION)
    (answer,) = generate.answer(generate.build(packaged, "step"), [ids], 24, stop=packaged.tokenizer.stop)
    return packaged.tokenizer.decode(answer.token_ids)


def test_ollamas_client_gets_generates_answer(server, said):
    import ollama

    client, options = ollama.Client(server), dict(temperature=0, num_predict=24)
    assert client.list().models[0].model == f"{NAME}:latest"
    assert client.show(NAME).capabilities == ["completion"]
    assert client.ps().models[0].context_length == 512
    whole = client.chat(NAME, QUESTION, options=options)
    parts = list(client.chat(NAME, QUESTION, options=options, stream=True))
    assert whole.message.content == "".join(part.message.content for part in parts) == said
    assert (whole.done_reason, whole.eval_count) == ("length", 24)
    assert parts[-1].eval_duration > 0
    assert client.generate(NAME, "Hello", options=options | dict(num_predict=3)).eval_count == 3
    with pytest.raises(ollama.ResponseError, match="not found") as caught:
        client.chat("other", QUESTION)
    assert caught.value.status_code == 404


@pytest.mark.ollama
def test_ollamas_own_command_line_is_answered(server, tmp_path):
    def ollama(*words):
        settings = os.environ | dict(OLLAMA_HOST=server, HOME=str(tmp_path))
        return subprocess.run(
            [ollama_native.BUILT.binary(), *words],
            env=settings,
            capture_output=True,
            text=True,
            timeout=300,
            stdin=subprocess.DEVNULL,
        )

    assert f"{NAME}:latest" in ollama("list").stdout
    shown = ollama("show", NAME).stdout
    assert "completion" in shown
    assert re.search(r"architecture +llama", shown)
    said = ollama("run", NAME, "Say one word.")
    assert (said.returncode, bool(said.stdout.strip())) == (0, True), said.stderr
    assert NAME in ollama("ps").stdout
    assert ollama("stop", NAME).returncode == 0
    refused = ollama("run", "another", "Hi")
    assert refused.returncode == 1
    assert "holds one model" in refused.stderr


def test_openais_client_gets_the_same(server, said):
    import openai

    client = openai.OpenAI(base_url=f"{server}/v1", api_key="none", max_retries=0)
    assert [model.id for model in client.models.list()] == [f"{NAME}:latest"]
    asked = dict(model=NAME, messages=QUESTION, temperature=0, max_tokens=24)
    assert client.chat.completions.create(**asked).choices[0].message.content == said
    parts = list(client.chat.completions.create(**asked, stream=True, stream_options=dict(include_usage=True)))
    assert "".join(part.choices[0].delta.content or "" for part in parts if part.choices) == said
    assert parts[-1].usage.completion_tokens == 24
    assert client.completions.create(model=NAME, prompt="Once", max_tokens=2).usage.completion_tokens == 2
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="other", messages=QUESTION)
    ending = asked | dict(max_tokens=200, stop=["."])  # the helper refuses an answer that is cut
    with client.chat.completions.stream(**ending) as stream:
        message = stream.get_final_completion().choices[0].message
    ended = client.chat.completions.create(**ending).choices[0].message.content
    assert (message.role, message.content) == ("assistant", ended)
    again = dict(asked, messages=[*QUESTION, message, dict(role="user", content="Again?")], max_tokens=2)
    assert client.chat.completions.create(**again).choices[0].message.content
    with pytest.raises(openai.BadRequestError, match="does not support embeddings"):
        client.embeddings.create(model=NAME, input="Hi")
    told = client.chat.completions.create(**asked, logprobs=True, top_logprobs=2).choices[0].logprobs.content
    assert "".join(one.token for one in told) == said
    assert all(one.top_logprobs[0].logprob == one.logprob <= 0 for one in told)
    with pytest.raises(openai.BadRequestError, match="top_logprobs"):
        client.chat.completions.create(**asked, logprobs=True, top_logprobs=21)


def test_langchains_client_gets_the_same_whole_and_in_pieces(server, said):
    from langchain_ollama import ChatOllama

    model = ChatOllama(model=NAME, base_url=server, temperature=0, num_predict=24)
    whole = model.invoke([("human", QUESTION[0]["content"])])
    assert whole.content == said
    assert whole.response_metadata["done_reason"] == "length"
    assert whole.usage_metadata["output_tokens"] == 24
    parts = list(model.stream([("human", QUESTION[0]["content"])]))
    assert "".join(part.content for part in parts) == said
    assert len(parts) > 2


def test_the_original_notebooks_prompts_are_written_by_this_server(server, tmp_path, monkeypatch):
    import ollama

    monkeypatch.setenv("OLLAMA_HOST", server)
    questions = ollama_questions.from_ollama(NAME, 2, tmp_path / "prompts.json")  # as notebook 02 has them written
    assert prompts.load(2, tmp_path / "prompts.json") == questions
    asked = dict(format=prompts.PromptPool.model_json_schema(), options=dict(temperature=0, num_predict=20))
    said = ollama.Client().chat(NAME, QUESTION, **asked).message.content  # as it was there; of any length
    assert re.match(r'\{\s*"prompts":\s*\[\s*"\w', said)


def test_curl_reads_lines_as_they_come_and_leaves_when_it_likes(server):
    body = json.dumps(dict(model=NAME, prompt="Count.", raw=True, options=dict(num_predict=400, temperature=0)))
    curl = subprocess.Popen(["curl", "-sN", f"{server}/api/generate", "-d", body], stdout=subprocess.PIPE, text=True)
    assert json.loads(curl.stdout.readline())["done"] is False
    curl.kill()
    curl.wait()
    deadline = time.monotonic() + 30
    while "llama_jax_requests_running 0.0" not in metrics(server):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert re.search(r'requests_total\{reason="cancelled"\} [1-9]', metrics(server))


def metrics(server):
    with urllib.request.urlopen(f"{server}/metrics") as answer:
        return answer.read().decode()


def test_requests_side_by_side_get_what_they_get_alone_and_nothing_compiles(server, said):
    import ollama

    client = ollama.Client(server)

    def ask(i):
        content = QUESTION if i % 2 else [{"role": "user", "content": "Tell me more. " * i}]
        options = dict(temperature=0 if i % 2 else 0.9, num_predict=24, seed=i)
        return client.chat(NAME, content, options=options).message.content

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(ask, range(8)))
    assert {*found[1::2]} == {said}
    assert "llama_jax_compilations_in_service 0.0" in metrics(server)


def test_unless_told_otherwise_the_fused_kernel_serves_what_it_generates(packaged):
    import ollama

    ids = packaged.tokenizer.encode("Once upon a time")
    (alone,) = generate.answer(generate.build(packaged, "step+fused"), [ids], 16, stop=packaged.tokenizer.stop)
    process, url = start("--slots", "1", "--context", "128")
    try:
        options = dict(temperature=0, num_predict=16)
        said = ollama.Client(url).generate(NAME, "Once upon a time", raw=True, options=options)
        assert said.response == packaged.tokenizer.decode(alone.token_ids)
        assert "llama_jax_compilations_in_service 0.0" in metrics(url)
    finally:
        process.terminate()
        process.wait(60)


def test_what_runs_is_finished_when_the_server_is_told_to_end():
    process, url = start("--slots", "1", "--context", "256", "--placement", "step+donate")
    body = json.dumps(dict(model=NAME, prompt="Count.", raw=True, options=dict(num_predict=60, temperature=0)))
    curl = subprocess.Popen(["curl", "-sN", f"{url}/api/generate", "-d", body], stdout=subprocess.PIPE, text=True)
    first = curl.stdout.readline()
    process.send_signal(signal.SIGTERM)
    rest = curl.stdout.read().splitlines()
    assert json.loads(first)["done"] is False
    assert json.loads(rest[-1])["done"] is True
    assert json.loads(rest[-1])["eval_count"] > 1
    assert process.wait(60) in (-signal.SIGTERM, 128 + signal.SIGTERM)
    assert process.stderr.read() == ""


ENDLESS = json.dumps(dict(model=small.NAME, prompt="a", raw=True, options=dict(num_predict=-1, temperature=0)))
HALF = b"POST /api/chat HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99\r\n\r\n{"
ENDED = (-signal.SIGTERM, 128 + signal.SIGTERM)


def sent(port, content):
    """A connection that has sent this, which has arrived."""
    made = socket.create_connection(("127.0.0.1", port), timeout=60)
    made.sendall(content)
    urllib.request.urlopen(f"http://127.0.0.1:{port}/api/version").close()
    return made


def test_what_does_not_end_is_not_waited_for_longer_than_the_grace():
    head = f"POST /api/generate HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(ENDLESS)}\r\n\r\n"
    with small.server("--grace", "0") as (process, port), contextlib.ExitStack() as held:
        running = [held.enter_context(sent(port, (head + ENDLESS).encode())) for _ in range(30)]  # for two slots
        assert running[0].recv(20).startswith(b"HTTP/1.1 200")
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) in ENDED
        (line,) = process.stderr.read().splitlines()
        assert re.fullmatch(r"ERROR: +Cancel [1-9]\d* running task\(s\), timeout graceful shutdown exceeded", line)


def test_a_body_that_is_half_there_is_not_waited_for_at_the_end():
    with small.server("--grace", "600", "--patience", "600") as (process, port), sent(port, HALF) as half:
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) in ENDED
        told = half.recv(10_000).decode()
        assert told.startswith("HTTP/1.1 503")
        assert "connection: close" in told.lower()
        assert process.stderr.read() == ""


@pytest.fixture(scope="module")
def impatient():
    """The port of a server that waits half a second for a request's head, and as long as need be for its body."""
    with small.server("--head", "0.5") as (_, port):
        yield port


@pytest.mark.parametrize("begun", [b"", b"GET /api/version HT", b"GET /api/version HTTP/1.1\r\nHost: localhost\r\n"])
def test_a_head_that_does_not_come_is_not_waited_for(impatient, begun):
    whole = b"GET /api/version HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with sent(impatient, begun) as first, sent(impatient, whole) as second:
        assert second.recv(20).startswith(b"HTTP/1.1 200")
        second.sendall(begun)  # which begins another request, or none
        for connection in (first, second):
            while connection.recv(10_000):  # until it is closed
                pass


def test_a_body_may_take_longer_than_a_head(impatient):
    body = json.dumps(dict(model=small.NAME)).encode()
    head = f"POST /api/show HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    with sent(impatient, head) as slow:
        time.sleep(1)
        slow.sendall(body)
        assert slow.recv(20).startswith(b"HTTP/1.1 200")


def test_who_sends_all_of_a_body_that_is_too_long_hears_so(impatient):
    asked = urllib.request.Request(f"http://127.0.0.1:{impatient}/api/chat", b" " * (9 << 20))
    with pytest.raises(urllib.error.HTTPError, match="413"):
        urllib.request.urlopen(asked)


def test_a_length_and_chunks_at_once_are_refused(impatient):
    both = b"Host: localhost\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n"
    with sent(impatient, b"POST /api/show HTTP/1.1\r\n" + both) as connection:
        told = connection.recv(10_000)
        assert told.startswith(b"HTTP/1.1 400")
        assert b"not both" in told


@pytest.mark.parametrize(
    ("options", "words"),
    [(["--host", "0.0.0.0"], "--api-key"), (["--placement", "loop"], "whole answer in one call"),
     (["--slots", "0"], "--slots is 0"), (["--context", "9000"], "--context is 9000")],
)  # fmt: skip
def test_what_cannot_be_served_is_one_line(options, words):
    command = [sys.executable, "-m", "llama_lab", "serve", "--port", "0", *options]
    without = {name: value for name, value in os.environ.items() if name != "LLAMA_JAX_API_KEY"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=without)
    assert done.returncode == 2
    (line,) = (line for line in done.stderr.splitlines() if not line.startswith("loading: "))  # on a slow disk
    assert words in line
