"""Clients that leave, break off, dawdle or read slowly: at the level of ASGI, where it is certain when they do."""

import asyncio
import json
import threading
import time

import pytest

from llama_jax.tokenizer import Tokenizer
from llama_lab.serve import wire
from llama_lab.serve.app import application
from tests.serve.conftest import ENDLESS, NAME, Client, count


def wait_until(so):
    deadline = time.monotonic() + 30
    while not so():
        assert time.monotonic() < deadline, "it did not come to that"
        time.sleep(0.01)


def free(service):
    return not any(slot.job for slot in service.batcher.slots) and not service.batcher.jobs


def scope(path):
    return dict(type="http", method="POST", path=path, raw_path=path.encode(), headers=[(b"host", b"localhost")],
                query_string=b"", asgi={"spec_version": "2.3"}, http_version="1.1", scheme="http",
                server=("localhost", 1), client=("127.0.0.1", 1), root_path="")  # fmt: skip


class Leaving:
    """A client that reads so many parts and is gone then. half: it is gone within its body. leaves: when it goes."""

    def __init__(self, app, path, body, parts, half=False, leaves=None):
        self.app, self.path, self.body, self.parts, self.half = app, path, json.dumps(body).encode(), parts, half
        self.leaves = leaves

    async def run(self):
        sent, heard, left = False, 0, self.leaves or asyncio.Event()

        async def receive():
            nonlocal sent
            if not sent:
                sent = True
                return dict(type="http.request", body=self.body[: 9 if self.half else None], more_body=self.half)
            if self.parts:
                await left.wait()
            return dict(type="http.disconnect")

        async def send(message):
            nonlocal heard
            heard += message["type"] == "http.response.body"
            if heard >= self.parts:
                left.set()

        await self.app(scope(self.path), receive, send)


@pytest.mark.parametrize(("stream", "parts"), [(True, 3), (True, 0), (False, 0)])
def test_a_client_that_leaves_frees_its_slot(service, stream, parts):
    before, made = count(service, "requests_total", reason="cancelled"), count(service, "tokens_total")
    asyncio.run(Leaving(application(service), "/api/generate", ENDLESS | dict(stream=stream), parts).run())
    wait_until(lambda: free(service))
    assert count(service, "requests_total", reason="cancelled") + (parts == 0) > before
    wait_until(lambda: count(service, "requests_running") == 0)
    assert count(service, "tokens_total") - made < 250


@pytest.mark.parametrize("path", ["/api/chat", "/v1/completions"])
def test_a_client_that_leaves_within_its_body_is_no_mistake_of_the_server(service, path, caplog):
    asyncio.run(Leaving(application(service), path, ENDLESS, 0, half=True).run())  # which would raise
    assert not caplog.records
    assert free(service)


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_frees_the_slots_of_all_its_prompts(service, stream):
    before = count(service, "requests_total", reason="cancelled")
    body = dict(model=NAME, prompt=["a", "b", "c", "d"], temperature=0, ignore_eos=True, stream=stream)
    with pytest.MonkeyPatch.context() as patched:  # they are not done before it has left
        patched.setattr(service.batcher, "hear", slowly(service.batcher.hear))
        asyncio.run(Leaving(application(service), "/v1/completions", body, 3 if stream else 0).run())
    wait_until(lambda: free(service))
    wait_until(lambda: count(service, "requests_total", reason="cancelled") - before == 4)


def test_who_leaves_the_queue_is_counted_and_waits_no_more(service):
    """Before any slot is free, and without anybody else asking."""
    app, body = application(service), ENDLESS | dict(options=dict(temperature=0, num_predict=-1))

    async def crowd():
        before = count(service, "requests_total", reason="cancelled")
        busy = [asyncio.ensure_future(Leaving(app, "/api/generate", body, 10_000).run()) for _ in range(2)]
        while count(service, "requests_running") < 2:
            await asyncio.sleep(0.01)
        leaves = asyncio.Event()
        waiting = [asyncio.ensure_future(Leaving(app, "/api/generate", body, 1, leaves=leaves).run()) for _ in range(3)]
        while count(service, "requests_waiting") < 3:
            await asyncio.sleep(0.01)
        leaves.set()
        await asyncio.gather(*waiting)
        told = count(service, "requests_waiting"), count(service, "requests_total", reason="cancelled") - before
        for task in busy:
            task.cancel()
        await asyncio.gather(*busy, return_exceptions=True)
        return told

    with pytest.MonkeyPatch.context() as patched:  # the two are not done before the three have left
        patched.setattr(service.batcher, "hear", slowly(service.batcher.hear))
        assert asyncio.run(crowd()) == (0, 3)
    wait_until(lambda: free(service))


def slowly(call):
    def slow(*arguments):
        time.sleep(0.02)
        return call(*arguments)

    return slow


def test_a_long_text_stops_nobody(service):
    """It is cut beside the event loop, one after the other; others, short and long, are answered meanwhile."""
    app, going, may_end = application(service), threading.Event(), threading.Event()
    long = dict(model=NAME, prompt="a" * (1 << 17), raw=True, stream=False)

    def cut(self, backend, text, special):
        if len(text) > 1 << 16:
            going.set()
            assert may_end.wait(60)
        return Tokenizer.ids(self, backend, text, special)

    async def meanwhile():
        client = Client(app)
        slow = [asyncio.ensure_future(client.send("POST", "/api/generate", long)) for _ in range(8)]
        await asyncio.to_thread(going.wait, 60)
        short = ENDLESS | dict(stream=False, options=dict(num_predict=2))
        answers = [await client.send("GET", "/metrics"), await client.send("POST", "/api/generate", short)]
        may_end.set()
        return [answer.status_code for answer in (*answers, *await asyncio.gather(*slow))]

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(type(service.tokenizer), "ids", cut)
        assert asyncio.run(meanwhile()) == [200, 200] + [400] * 8


def test_a_body_that_does_not_come_is_not_waited_for(service, monkeypatch):
    monkeypatch.setattr(wire, "BODY_S", 0.05)
    told, first = [], [dict(type="http.request", body=b'{"model":', more_body=True)]

    async def receive():
        if first:
            return first.pop()
        await asyncio.Event().wait()

    async def send(message):
        told.append(message)

    asyncio.run(application(service)(scope("/api/chat"), receive, send))
    assert told[0]["status"] == 408
    assert (b"connection", b"close") in told[0]["headers"]
    assert "did not come within 0.05 s" in json.loads(told[1]["body"])["error"]


def test_who_reads_slowly_holds_no_slot_and_gets_all_of_it(service):
    body, told = ENDLESS | dict(options=dict(temperature=0, num_predict=30)), []
    sent = iter([dict(type="http.request", body=json.dumps(body).encode(), more_body=False)])

    async def receive():
        if (message := next(sent, None)) is not None:
            return message
        await asyncio.Event().wait()

    async def send(message):
        if not told:  # reads nothing until the slot is free
            await asyncio.to_thread(wait_until, lambda: count(service, "tokens_total") - made >= 30 and free(service))
        told.append(message.get("body", b""))

    made = count(service, "tokens_total")
    asyncio.run(application(service)(scope("/api/generate"), receive, send))
    last = json.loads(b"".join(told).splitlines()[-1])
    assert (last["done"], last["eval_count"]) == (True, 30)
