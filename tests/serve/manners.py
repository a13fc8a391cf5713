"""Manners of asking a server: well behaved, for JSON that follows a schema, leaving early, reading slowly, malformed,
vanishing.
Plain sockets, so that each does what it says."""

from __future__ import annotations

import asyncio
import json
import random
import socket
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, replace

from tests.serve import forms
from tests.serve.small import NAME

PATIENCE_S = 120  # an answer that takes longer hangs, unless the machine was suspended
HEAD = "POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n"
WORDS = ("one", "two", "three", "red", "blue", "green", "sea", "sky", "sun", "tree", "rain", "stone")
MALFORMED = (
    ("/api/chat", b"{"),
    ("/api/chat", b"[" * 10_000),
    ("/api/chat", b'{"model": "another", "messages": []}'),
    ("/api/generate", b""),
    ("/api/generate", b'{"model": "tiny", "prompt": 3}'),
    ("/api/generate", b'{"model": "tiny", "prompt": "a", "options": {"temperature": -1}}'),
    ("/api/generate", b'{"model": "tiny", "prompt": "a", "raw": true, "context": [99999999]}'),
    ("/api/generate", b'{"model": "tiny", "prompt": "' + b"long " * 2000 + b'"}'),
    ("/v1/chat/completions", b'{"model": "tiny", "messages": [{"role": "judge", "content": "a"}]}'),
    ("/v1/completions", b'{"model": "tiny", "prompt": "a", "max_tokens": 0}'),
    ("/v1/nowhere", b"{}"),
    ("/api/tags", b"{}"),
)


@dataclass(frozen=True)
class Request:
    """One request. part: how much of it a client that leaves waits for, or one that vanishes sends. form: what its
    answer must be."""

    manner: str
    path: str
    body: bytes
    part: int = 0
    form: dict | str | None = None

    @property
    def bytes(self) -> bytes:
        return HEAD.format(path=self.path, length=len(self.body)).encode() + self.body


async def whole(port: int, asked: Request) -> int:
    """Send it and read to the end: the status."""
    return status(await talk(port, asked.bytes, lambda reader: reader.read()))


async def formed(port: int, asked: Request) -> int | str:
    """Send it and read to the end: what came of its form."""
    return forms.outcome(await talk(port, asked.bytes, lambda reader: reader.read()), asked.form)


async def slowly(port: int, asked: Request) -> int:
    """Read a little, and wait, to the end."""

    async def read(reader: asyncio.StreamReader) -> bytes:
        found = b""
        while part := await reader.read(128):
            found += part
            await asyncio.sleep(0.002)
        return found

    return status(await talk(port, asked.bytes, read, room=2048))


async def leaves(port: int, asked: Request) -> int:
    """Read so many lines of the answer, and go."""

    async def read(reader: asyncio.StreamReader) -> bytes:
        found = await reader.readline()
        for _ in range(asked.part):
            await reader.readline()
        return found

    return status(await talk(port, asked.bytes, read))


async def vanishes(port: int, asked: Request) -> int:
    """Send a part of it, and break the connection: 0."""

    async def nothing(reader: asyncio.StreamReader) -> bytes:
        return b""

    return status(await talk(port, asked.bytes[: asked.part], nothing, abort=True))


async def talk(
    port: int,
    content: bytes,
    read: Callable[[asyncio.StreamReader], Coroutine[None, None, bytes]],
    room: int | None = None,
    abort: bool = False,
) -> bytes:
    """What comes back. room: bytes that wait for a reader on its side."""
    made = socket.socket()
    if room:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, room)
    made.setblocking(False)
    await asyncio.get_running_loop().sock_connect(made, ("127.0.0.1", port))
    reader, writer = await asyncio.open_connection(sock=made)
    try:
        writer.write(content)
        await writer.drain()
        return await patient(read(reader))
    finally:
        if abort:
            writer.transport.abort()
        writer.close()


def status(said: bytes) -> int:
    """The status of a response, 0 of none."""
    return int(said.split(b" ", 2)[1]) if said else 0


async def patient(work: Coroutine[None, None, bytes]) -> bytes:
    """What it returns. Raises TimeoutError once so many seconds were waited, each by itself."""
    task = asyncio.ensure_future(work)
    for _ in range(PATIENCE_S):
        await asyncio.wait({task}, timeout=1)
        if task.done():
            return task.result()
    task.cancel()
    raise TimeoutError


MANNERS: dict[str, Callable[[int, Request], Awaitable[int | str]]] = {
    "answer": whole,
    "stream": whole,
    "form": formed,
    "form, streamed": formed,
    "hostile form": formed,
    "slow reader": slowly,
    "leaves": leaves,
    "malformed": whole,
    "vanishes": vanishes,
}
SHARES = (25, 17, 12, 8, 4, 9, 9, 10, 6)
LONGER, WHOLE = ("leaves", "slow reader"), ("answer", "form", "hostile form")  # whole: not streamed
EXPECTED = {  # statuses, or what came of a form; 0: it did not wait for one
    "answer": {200},
    "stream": {200},
    "form": {200, forms.CUT},
    "form, streamed": {200, forms.CUT},
    "hostile form": {400},
    "slow reader": {200},
    "leaves": {200},
    "malformed": {400, 404, 405},
    "vanishes": {0},
}


def request(drawn: random.Random) -> Request:
    """One request of a random manner."""
    (manner,) = drawn.choices(list(MANNERS), SHARES)
    if manner == "malformed":
        return Request(manner, *drawn.choice(MALFORMED))
    form = None
    if manner == "hostile form":
        form = forms.hostile(drawn)
    elif "form" in manner or (manner in LONGER and drawn.random() < 0.2):
        form = drawn.choice(forms.FORMS)
    path, body = answerable(drawn, manner, form)
    whole = Request(manner, path, json.dumps(body).encode(), form=form)
    return replace(whole, part=drawn.randrange(1, len(whole.bytes)) if manner == "vanishes" else drawn.randrange(12))


def answerable(drawn: random.Random, manner: str, form: dict | str | None) -> tuple[str, dict]:
    """(path, body) that a server answers: some begin alike, some are long, each has its own settings."""
    text = " ".join(
        ["Once upon a time there was"] * drawn.randrange(2) + drawn.choices(WORDS, k=drawn.randrange(1, 60))
    )
    tokens = drawn.randrange(60, 150) if manner in LONGER or form else drawn.randrange(1, 12)
    settings = dict(temperature=drawn.choice([0, 0.7, 1.3]), seed=drawn.randrange(1000), top_p=drawn.choice([0.8, 1.0]))
    streamed, said = manner not in WHOLE, [dict(role="user", content=text)]
    stop = [] if form else ["\n\n"]
    native = dict(model=NAME, stream=streamed, options=settings | dict(num_predict=tokens, stop=stop))
    theirs = dict(model=NAME, stream=streamed, max_tokens=tokens) | settings
    path, body = drawn.choice(
        [
            ("/api/generate", native | dict(prompt=text, raw=drawn.random() < 0.5)),
            ("/api/chat", native | dict(messages=said)),
            ("/v1/chat/completions", theirs | dict(messages=said)),
            ("/v1/completions", theirs | dict(prompt=text)),
        ]
    )
    return path, body | (forms.way(drawn, path, form) if form else {})
