"""The open loop: nobody waits for anybody, and a request is clocked from when it was due."""

import json
import threading
import time

import pytest

from llama_lab.experiments.what_serving_needs import client
from llama_lab.experiments.what_serving_needs.client import Heard
from llama_lab.experiments.what_serving_needs.load import Ask
from tests.experiments.what_serving_needs.made import ANSWER, LAST, line, serving


def asked(url, n=1, api=client.OLLAMA):
    return client.load(api, url, [client.body(api, "m", Ask(0, "x", 1, 2), 64, 2)] * n, [0.0] * n)


def test_requests_go_out_though_nobody_has_been_answered():
    """A client that waited for the first answer would never send the other two."""
    together = threading.Barrier(3)

    def answer(body):
        together.wait(30)
        return 200, ANSWER

    with serving(answer) as url:
        answers = asked(url, 3)
    assert [(each.status, each.text, each.tokens, each.prompt_tokens, each.reason) for each in answers] == [
        (200, "a b", 2, 3, "")
    ] * 3
    assert all(0 < each.sent_ns <= each.piece_ns[0] <= each.piece_ns[1] for each in answers)


def test_a_request_that_is_sent_late_is_clocked_from_when_it_was_due():
    heard, late = Heard(), 3600 * 10**9
    with serving(lambda body: (200, ANSWER)) as url:
        client.send(url, b"{}", time.perf_counter_ns() - late, heard)
    answer = client.read(client.OLLAMA, heard)
    assert late <= answer.sent_ns <= answer.piece_ns[0]


def test_requests_wait_for_their_second():
    with serving(lambda body: (200, ANSWER)) as url:
        answers = client.load(client.OLLAMA, url, [b"{}"] * 2, [0.0, 0.2])
    assert all(answer.sent_ns >= 0 for answer in answers)  # since due: nobody goes out before


def test_what_a_server_is_asked():
    seen = []
    with serving(lambda body: (seen.append(body), (200, ANSWER))[1]) as url:
        asked(url)
    (body,) = seen
    assert (body["model"], body["prompt"], body["raw"], body["stream"]) == ("m", "x", True, True)
    assert {key: body["options"][key] for key in ("temperature", "num_predict", "num_ctx", "num_thread")} == dict(
        temperature=0, num_predict=2, num_ctx=64, num_thread=2
    )


def test_llama_cpps_server_is_asked_alike_and_its_events_are_read():
    last = dict(content="", stop=True, tokens_predicted=2, tokens_evaluated=3)
    pieces = [dict(content="a", stop=False), dict(content=" b", stop=False), last]
    seen, events = [], [b"data: " + json.dumps(piece).encode() + b"\n\n" for piece in pieces]
    with serving(lambda body: (seen.append(body), (200, events))[1]) as url:
        (answer,) = asked(url, api=client.LLAMACPP)
    assert (answer.text, answer.tokens, answer.prompt_tokens, answer.reason) == ("a b", 2, 3, "")
    (body,) = seen
    assert (body["prompt"], body["n_predict"], body["temperature"], body["stream"]) == ("x", 2, 0, True)
    assert body["cache_prompt"] is False
    with serving(lambda body: (200, events[:1])) as url:
        (answer,) = asked(url, api=client.LLAMACPP)
    assert answer.reason == "the answer broke off: no last line"


@pytest.mark.parametrize(
    ("status", "lines", "reason"),
    [
        (503, [b'{"error": "busy"}'], ""),  # refused, which is no failure
        (500, [b'{"error":\n "no luck"}'], 'status 500: {"error": "no luck"}'),
        (200, ANSWER[:1], "the answer broke off: no last line"),
        (200, [line("a"), b'{"error": "the request failed"}\n'], "the answer broke off: the request failed"),
        (200, [LAST], "no text came"),
        (200, [], "the answer broke off: no last line"),
    ],
)
def test_what_is_no_answer_says_why(status, lines, reason):
    with serving(lambda body: (status, lines)) as url:
        (answer,) = asked(url)
    assert (answer.status, answer.reason, answer.piece_ns) == (status, reason, [])


def test_a_server_that_is_not_there_is_a_failure_of_the_request():
    with serving(lambda body: (200, ANSWER)) as url:
        pass
    (answer,) = asked(url)
    assert (answer.status, answer.piece_ns) == (0, [])
    assert answer.reason.startswith("the connection broke")
