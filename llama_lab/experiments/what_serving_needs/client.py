"""The client: requests go out when they are due, whoever is still waiting, and are clocked from then.

A client that waits for an answer before it asks again asks a slow server less often, and one that clocks a request from
when it got around to sending it leaves out what it waited: both make a slow server look well (coordinated omission,
https://www.youtube.com/watch?v=lJ8ydIuPFeU). Here each request has a thread of its own and a due time of its own.
Lines are kept as they come, with their times, and read when all is over.
"""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from urllib.parse import urlsplit

from llama_lab.experiments.what_serving_needs.load import Ask
from llama_lab.peers.ollama import GREEDY

SILENCE_S = 120.0  # a server that sends nothing for so long within a request has failed it


@dataclass(frozen=True)
class Api:
    """How a server is asked, and under which names its lines say what: a piece of text, that it was the last, tokens
    made, tokens of the prompt."""

    path: str
    text: str
    done: str
    made: str
    read: str


OLLAMA = Api("/api/generate", "response", "done", "eval_count", "prompt_eval_count")  # and ours
LLAMACPP = Api("/completion", "content", "stop", "tokens_predicted", "tokens_evaluated")  # a line an event


@dataclass
class Heard:
    """What came back. Times in ns since the request was due. status: HTTP's, 0 if the connection broke."""

    sent_ns: int = 0
    status: int = 0
    lines: list[tuple[int, bytes]] = field(default_factory=list)
    failure: str = ""


@dataclass(frozen=True)
class Answer:
    """A request as it was answered. piece_ns: when each piece of text came, since it was due. tokens, prompt_tokens: as
    the server counts them. reason: why it is no answer, "" if it is one or was refused (503)."""

    sent_ns: int
    status: int
    piece_ns: list[int]
    text: str
    tokens: int
    prompt_tokens: int
    reason: str = ""


def body(api: Api, model: str, ask: Ask, context: int, threads: int) -> bytes:
    """A request for a stream, greedy, its prompt as it stands, on the processor; options that only Ollama obeys are
    ignored by ours."""
    if api is LLAMACPP:  # whose threads and contexts are its own
        asked = dict(prompt=ask.text, n_predict=ask.new_tokens, cache_prompt=False)
        return json.dumps(asked | GREEDY | dict(stream=True, seed=0)).encode()
    options = GREEDY | dict(num_predict=ask.new_tokens, num_ctx=context, num_thread=threads, num_gpu=0, seed=0)
    return json.dumps(dict(model=model, prompt=ask.text, raw=True, stream=True, options=options)).encode()


def send(url: str, content: bytes, due_ns: int, heard: Heard) -> None:
    """One request, filled in as its lines come. url: with the path; due_ns: on `time.perf_counter_ns`'s clock."""
    at = urlsplit(url)
    connection = http.client.HTTPConnection(at.hostname, at.port, timeout=SILENCE_S)
    try:
        heard.sent_ns = time.perf_counter_ns() - due_ns
        connection.request("POST", at.path, content, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        while line := answer.readline():
            heard.lines.append((time.perf_counter_ns() - due_ns, line))
        heard.status = answer.status
    except (OSError, http.client.HTTPException) as error:
        heard.failure = f"the connection broke: {type(error).__name__}"
    finally:
        connection.close()


def load(api: Api, url: str, contents: Sequence[bytes], due: Sequence[float]) -> list[Answer]:
    """All requests, each sent at its second, and what became of them; returns when the last has ended."""
    began, heard, threads = time.perf_counter_ns(), [Heard() for _ in contents], []
    for content, second, into in zip(contents, due, heard, strict=True):
        due_ns = began + round(second * 1e9)
        time.sleep(max((due_ns - time.perf_counter_ns()) / 1e9, 0))
        threads.append(threading.Thread(target=send, args=(url + api.path, content, due_ns, into), daemon=True))
        threads[-1].start()
    for thread in threads:
        thread.join()
    return [read(api, each) for each in heard]


def read(api: Api, heard: Heard) -> Answer:
    """The lines of an answer as what they say."""
    nothing = partial(Answer, heard.sent_ns, heard.status, [], "", 0, 0)
    if heard.failure or heard.status != 200:
        words = " ".join(b"".join(line for _, line in heard.lines).decode(errors="replace").split())[:200]
        return nothing("" if heard.status == 503 else heard.failure or f"status {heard.status}: {words}")
    documents = [(at, json.loads(line.removeprefix(b"data: "))) for at, line in heard.lines if line.strip()]
    pieces = [(at, document[api.text]) for at, document in documents if document.get(api.text)]
    last = documents[-1][1] if documents else {}
    if not last.get(api.done):
        return nothing(f"the answer broke off: {str(last.get('error', 'no last line'))[:200]}")
    return Answer(
        heard.sent_ns,
        heard.status,
        [at for at, _ in pieces],
        "".join(text for _, text in pieces),
        int(last.get(api.made, 0)),
        int(last.get(api.read, 0)),
        "" if pieces else "no text came",
    )
