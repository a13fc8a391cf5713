"""Clients that leave, break off, dawdle or read slowly: at the level of ASGI, where it is certain when they do."""

import asyncio
import json
import time

import pytest

from llama_lab.serve import wire
from llama_lab.serve.app import application
from tests.serve.conftest import ENDLESS, count


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
    """A client that reads so many parts and is gone then. half: it is gone within its body."""

    def __init__(self, app, path, body, parts, half=False):
        self.app, self.path, self.body, self.parts, self.half = app, path, json.dumps(body).encode(), parts, half

    async def run(self):
        sent, heard, left = False, 0, asyncio.Event()

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
