"""Who may use the server, what it does not read, and what it counts."""

import asyncio
import json
import logging

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llama_jax.plumbing.errors import UserError
from llama_lab.serve import process, wire
from llama_lab.serve.app import application
from llama_lab.serve.gate import is_local, is_loopback, is_own_page
from llama_lab.serve.service import Service
from tests.serve.conftest import ENDLESS, NAME, Client, count, lines

LEAVE = "access-control-allow-origin"


def send(client, *request, **rest):
    return asyncio.run(client.send(*request, **rest))


def test_without_the_key_nothing_is_answered(service):
    guarded = Client(application(service, "secret"))
    for headers in ({}, {"Authorization": "Bearer guess"}, {"Authorization": "secret"}):
        for path, shape in (("/api/tags", str), ("/v1/models", dict)):
            answer = send(guarded, "GET", path, headers=headers)
            assert answer.status_code == 401
            assert type(answer.json()["error"]) is shape
    assert send(guarded, "GET", "/api/tags", headers={"Authorization": "Bearer secret"}).status_code == 200


ORIGINS = "https://evil.example", "null", "http://192.168.1.5", "https://localhost.evil.example", "ftp://localhost"
HOSTS = "evil.example", "evil.example:11434"


@pytest.mark.parametrize("headers", [*({"Host": host} for host in HOSTS), *({"Origin": o} for o in ORIGINS)])
def test_a_page_of_another_site_is_refused(client, headers):
    for method in ("GET", "OPTIONS"):
        answer = send(client, method, "/api/tags", headers=headers)
        assert (answer.status_code, LEAVE in answer.headers) == (403, False)


@pytest.mark.parametrize("host", ["localhost:1", "[::1]:1"])
def test_this_machine_is_answered(client, host):
    answer = send(client, "GET", "/api/tags", headers={"Host": host})
    assert (answer.status_code, LEAVE in answer.headers) == (200, False)


@pytest.mark.parametrize("origin", ["http://localhost:3000", "https://127.0.0.1", "http://0.0.0.0:8080", "app://notes"])
def test_a_page_of_this_machine_may_read_what_it_is_answered(client, origin):
    asked = {"Origin": origin, "Access-Control-Request-Method": "POST"}
    first = send(client, "OPTIONS", "/api/chat", headers=asked)
    assert (first.status_code, first.headers[LEAVE]) == (204, origin)
    assert "POST" in first.headers["access-control-allow-methods"]
    answer = send(client, "GET", "/api/tags", headers={"Origin": origin})
    assert (answer.status_code, answer.headers[LEAVE], answer.headers["vary"]) == (200, origin, "Origin")


def test_a_page_is_told_that_a_key_is_wanted_and_may_ask_first_without_one(service):
    guarded, page = Client(application(service, "secret")), {"Origin": "http://localhost:3000"}
    assert send(guarded, "OPTIONS", "/api/chat", headers=page).status_code == 204
    assert send(guarded, "OPTIONS", "/api/chat", headers={"Origin": "https://evil.example"}).status_code == 401
    refused = send(guarded, "GET", "/api/tags", headers=page)
    assert (refused.status_code, refused.headers[LEAVE]) == (401, page["Origin"])


def test_addresses_are_told_apart():
    assert all(map(is_loopback, ("127.0.0.1", "127.3.2.1", "::1", "localhost")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "10.0.0.1", "example.org", "")))
    assert not any(map(is_local, ("8.8.8.8", "example.org", "localhost.example.org")))
    assert is_own_page("http://box.local:11434", "box.local:11434")  # the page came from here
    assert not is_own_page("http://box.local:3000", "box.local:11434")
    assert not is_own_page("http://[", "localhost")


def test_a_server_that_others_reach_has_a_key():
    unreachable = [(host, None) for host in ("0.0.0.0", "::", "example.org")]
    for host, key in [*unreachable, ("127.0.0.1", ""), ("0.0.0.0", "a\nb"), ("0.0.0.0", "é")]:
        with pytest.raises(UserError, match="--api-key"):
            process.check_key(host, key)
    process.check_key("0.0.0.0", "k")
    process.check_key("127.0.0.1", None)


def test_only_what_ended_with_the_server_is_no_news():
    def record(error):
        return logging.LogRecord("uvicorn.error", logging.ERROR, "", 0, "x", None, error and (type(error), error, None))

    assert not process.is_news(record(asyncio.CancelledError()))
    assert process.is_news(record(ValueError()))
    assert process.is_news(record(None))


def test_a_taken_port_is_one_line():
    with process.bind("127.0.0.1", 0) as taken:
        taken.listen()
        with pytest.raises(UserError, match=r"port \d+: .*choose another --port"):
            process.bind("127.0.0.1", taken.getsockname()[1])


@pytest.mark.parametrize("declared", [True, False])
def test_a_body_that_is_too_long_is_not_read(client, monkeypatch, declared):
    monkeypatch.setattr(wire, "LIMIT", 1000)

    async def parts():
        for _ in range(20):
            yield b" " * 100

    content = b" " * 2000 if declared else parts()
    answer = asyncio.run(client.send("POST", "/api/chat", content=content))
    assert answer.status_code == 413
    assert "1,000 bytes" in answer.json()["error"]


@pytest.mark.parametrize(
    ("content", "words"),
    [(b"", "missing request body"), (b"\xef\xbb\xbf", "missing request body"),
     *(('{"model": "tiny"}'.encode(name), "send UTF-8") for name in ("utf-16", "utf-16-le", "utf-32", "utf-32-be")),
     ('{"model": "é"}'.encode("latin-1"), "not UTF-8: byte 0xe9 at 11"), (b"{", "not JSON"),
     (b"[1]", "no object"), (b'{"model": "\xff"}', "not UTF-8: byte 0xff at 11"),
     (b"[" * 100_000, "not JSON"), (b'{"model": NaN}', "not JSON")],
)  # fmt: skip
def test_a_body_that_is_no_object_is_refused(client, content, words):
    answer = asyncio.run(client.send("POST", "/api/chat", content=content))
    assert answer.status_code == 400
    assert words in answer.json()["error"]


def test_a_byte_order_mark_is_no_text(client):
    content = b"\xef\xbb\xbf" + json.dumps(dict(model=NAME)).encode()
    assert asyncio.run(client.send("POST", "/api/show", content=content)).status_code == 200


@pytest.mark.parametrize(
    ("headers", "status"),
    [({"Content-Encoding": "gzip"}, 415), ({"Content-Encoding": "identity"}, 200),
     ({"Content-Length": "17", "Transfer-Encoding": "chunked"}, 400)],
)  # fmt: skip
def test_a_body_whose_bytes_mean_something_else_is_refused(client, headers, status):
    content = json.dumps(dict(model=NAME)).encode()
    answer = asyncio.run(client.send("POST", "/api/show", content=content, headers=headers))
    assert answer.status_code == status
    assert status == 200 or answer.headers["connection"] == "close"


@pytest.mark.parametrize("path", ["/api/generate", "/v1/completions"])
def test_a_proxy_passes_each_part_of_a_stream_on(client, path):
    short = dict(options=dict(num_predict=1)) if path == "/api/generate" else dict(max_tokens=1)
    answer = send(client, "POST", path, dict(model=NAME, prompt="a", stream=True) | short)
    assert (answer.headers["cache-control"], answer.headers["x-accel-buffering"]) == ("no-cache", "no")


def test_a_path_or_method_that_is_not_there_has_the_shape_of_its_api(client):
    assert send(client, "GET", "/nowhere").text == "404 page not found"
    assert send(client, "GET", "/v1/nowhere").json()["error"]["type"] == "not_found_error"
    wrong = send(client, "GET", "/api/chat")
    assert (wrong.status_code, wrong.text, wrong.headers["allow"]) == (405, "405 method not allowed", "POST")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
FIELDS = ("model", "messages", "prompt", "options", "stream", "format", "think", "system", "context", "stop",
          "temperature", "top_p", "max_tokens", "seed", "tools", "logprobs", "keep_alive", "raw", "n")  # fmt: skip
PATHS = ("/api/chat", "/api/generate", "/api/show", "/v1/chat/completions", "/v1/completions")


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(PATHS), st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=5), st.booleans())
def test_a_malformed_body_is_never_the_servers_mistake(client_of_package, path, body, named):
    content = json.dumps(body | (dict(model=NAME) if named else {})).encode(errors="surrogatepass")
    answer = asyncio.run(client_of_package.send("POST", path, content=content))
    assert answer.status_code < 500
    if answer.status_code >= 400:
        assert answer.json()["error"]


@pytest.fixture(scope="module")
def client_of_package(service):
    return Client(application(service))


def test_too_many_are_told_to_come_again_and_the_others_are_answered(service, client):
    async def crowd():
        return await asyncio.gather(*(client.send("POST", "/api/generate", ENDLESS) for _ in range(12)))

    answers = asyncio.run(crowd())
    answered = [answer for answer in answers if answer.status_code == 200]
    refused = [answer for answer in answers if answer.status_code == 503]
    assert len(answered) + len(refused) == 12
    assert len(answered) >= 5  # two slots and a queue of three
    assert refused
    assert all(answer.headers["retry-after"] == "1" and "busy" in answer.json()["error"] for answer in refused)
    assert len({"".join(line["response"] for line in lines(answer)) for answer in answered}) == 1


def test_whatever_was_asked_nothing_was_compiled_and_it_is_all_counted(client, service):
    before = count(service, "compilations_in_service")  # what `generate` compiled here
    for temperature, length in ((0, 1), (0.7, 30), (1.3, 90)):
        body = dict(model=NAME, prompt="a " * length, raw=True, options=dict(temperature=temperature, num_predict=3))
        assert send(client, "POST", "/api/generate", body).status_code == 200
    text = send(client, "GET", "/metrics").text
    assert f"llama_jax_compilations_in_service {before}" in text
    assert count(service, "warm_seconds") > 0
    for name in ("first_token_seconds_count", "inter_token_seconds_bucket", "requests_waiting", "tokens_total"):
        assert f"llama_jax_{name}" in text


@pytest.mark.parametrize(
    ("placement", "slots", "context", "words"),
    [
        ("loop", 1, 64, "whole answer in one call"),
        ("step+growing", 1, 64, "anew for each length"),
        ("step+queue", 1, 64, "host loop"),
        ("step+lookup", 1, 64, "drafts are right"),
        ("step", 0, 64, "--slots"),
        ("step", 65, 64, "--slots"),
        ("step", 1, 1, "--context"),
        ("step", 1, 513, "--context"),
    ],
)
def test_what_cannot_be_shared_is_refused(loaded, placement, slots, context, words):
    with pytest.raises(UserError, match=words):
        Service(loaded, placement, slots, context)
