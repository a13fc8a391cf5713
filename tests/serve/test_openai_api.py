"""OpenAI's API: shapes, events, usage, and the same tokens as `generate`."""

import asyncio

import pytest

from llama_jax.text import chat
from tests.serve.conftest import NAME, events
from tests.serve.test_ollama_api import QUESTION


def ask(client, path, **body):
    return asyncio.run(client.send("POST", path, dict(model=NAME) | body))


def test_a_chat_completion_is_generates_answer(client, loaded, expected):
    answer = ask(client, "/v1/chat/completions", messages=QUESTION, temperature=0, max_tokens=9).json()
    ids = chat.encode(loaded.tokenizer, QUESTION)
    assert list(answer) == ["id", "object", "created", "model", "system_fingerprint", "choices", "usage"]
    (choice,) = answer["choices"]
    said = dict(role="assistant", content=expected(ids, 9))
    assert choice == dict(index=0, message=said, finish_reason="length")
    assert answer["usage"] == dict(prompt_tokens=len(ids), completion_tokens=9, total_tokens=len(ids) + 9)
    assert answer["object"] == "chat.completion"


@pytest.mark.parametrize("usage", [False, True])
def test_a_stream_is_events_that_end_with_done(client, loaded, expected, usage):
    answer = ask(client, "/v1/chat/completions", messages=QUESTION, temperature=0, max_completion_tokens=9,
                 stream=True, stream_options=dict(include_usage=usage))  # fmt: skip
    assert answer.headers["content-type"].startswith("text/event-stream")
    found = events(answer)
    last = found.pop() if usage else None
    assert not usage or (last["choices"], last["usage"]["completion_tokens"]) == ([], 9)
    texts = [part["choices"][0]["delta"]["content"] for part in found]
    assert "".join(texts) == expected(chat.encode(loaded.tokenizer, QUESTION), 9)
    assert [part["choices"][0]["finish_reason"] for part in found] == [None] * (len(found) - 1) + ["length"]
    assert {part["object"] for part in found} == {"chat.completion.chunk"}
    assert len({part["id"] for part in found}) == 1


def test_a_completion_continues_its_prompt_as_it_stands(client, loaded, expected):
    ids = loaded.tokenizer.encode("Once upon a time")
    for prompt in ("Once upon a time", ["Once upon a time"], ids):
        answer = ask(client, "/v1/completions", prompt=prompt, temperature=0, max_tokens=7).json()
        assert answer["choices"] == [dict(text=expected(ids, 7), index=0, finish_reason="length")]
        assert answer["usage"]["prompt_tokens"] == len(ids)
    parts = events(ask(client, "/v1/completions", prompt=ids, temperature=0, max_tokens=7, stream=True))
    assert "".join(part["choices"][0]["text"] for part in parts) == expected(ids, 7)


def test_parts_of_a_message_are_one_text_and_a_seed_is_a_seed(client):
    parts = [dict(type="text", text="Why is "), dict(type="text", text="the sky blue?")]
    body = dict(temperature=1.0, seed=3, max_tokens=8)
    one = ask(client, "/v1/chat/completions", messages=[dict(role="user", content=parts)], **body).json()
    other = ask(client, "/v1/chat/completions", messages=QUESTION, **body).json()
    assert one["choices"] == other["choices"]


def test_models_are_listed(client):
    listed = asyncio.run(client.send("GET", "/v1/models")).json()
    assert listed["object"] == "list"
    (one,) = listed["data"]
    assert asyncio.run(client.send("GET", f"/v1/models/{one['id']}")).json() == one
    assert asyncio.run(client.send("GET", "/v1/models/gpt-5")).status_code == 404


BAD = {
    "another model": (dict(model="gpt-5"), 404, "not_found_error"),
    "log probabilities": (dict(logprobs=True), 400, "invalid_request_error"),
    "several answers": (dict(n=2), 400, "invalid_request_error"),
    "tools": (dict(tools=[dict(type="function")]), 400, "invalid_request_error"),
    "json": (dict(response_format=dict(type="json_object")), 400, "invalid_request_error"),
    "an image": (dict(messages=[dict(role="user", content=[dict(type="image_url")])]), 400, "invalid_request_error"),
    "no tokens": (dict(max_tokens=0), 400, "invalid_request_error"),
    "no messages": (dict(messages=[]), 400, "invalid_request_error"),
    "a seed below 0": (dict(seed=-1), 400, "invalid_request_error"),
}


@pytest.mark.parametrize("case", BAD)
def test_an_error_has_openais_shape(client, case):
    body, status, kind = BAD[case]
    answer = ask(client, "/v1/chat/completions", **dict(messages=QUESTION) | body)
    assert answer.status_code == status
    assert list(answer.json()) == ["error"]
    error = answer.json()["error"]
    assert list(error) == ["message", "type", "param", "code"]
    assert error["type"] == kind
    assert "\n" not in error["message"]


def test_what_asks_for_nothing_is_no_error(client):
    nothing = dict(
        n=1, logprobs=False, tools=[], presence_penalty=0, frequency_penalty=0.0, top_logprobs=None, user="x"
    )
    answer = ask(client, "/v1/chat/completions", messages=QUESTION, max_tokens=1, **nothing)
    assert answer.status_code == 200
