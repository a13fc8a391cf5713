"""What both APIs share on the wire: bodies read within bounds, errors in each one's own shape, lines and events."""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import json
import re
from collections.abc import AsyncIterator, Callable
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, StreamingResponse

from llama_jax.plumbing import boundary
from llama_jax.plumbing.errors import UserError
from llama_lab.serve import structure

T = TypeVar("T")
LIMIT = 8 << 20  # bytes of a body: more text than any context here holds
FAILED = "the request failed; the server's log says why"
MOST = 8  # limits of a body that are read to say that it is too long, which a client hears once it has sent it all
BODY_S = 30.0  # a body that is longer on its way than this is not waited for
VERBATIM = structure.FIELDS
UNHELD = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}  # a proxy passes each part of a stream on
KINDS = {400: "invalid_request_error", 401: "authentication_error", 404: "not_found_error"}  # OpenAI's, else api_error


class Document(JSONResponse):
    """A JSON document as Ollama labels it."""

    media_type = "application/json; charset=utf-8"


class RefusalError(Exception):
    """A request that is not answered: an HTTP status and one line."""

    def __init__(self, status: int, line: str, headers: dict[str, str] | None = None):
        super().__init__(line)
        self.status, self.line, self.headers = status, " ".join(line.split()), headers


def error(path: str, line: str, status: int) -> dict:
    """An error as the API of this path writes it."""
    if path.startswith("/v1/"):
        return {"error": {"message": line, "type": KINDS.get(status, "api_error"), "param": None, "code": None}}
    return {"error": line}


def refused(path: str, refusal: RefusalError) -> JSONResponse:
    kind = JSONResponse if path.startswith("/v1/") else Document
    return kind(error(path, refusal.line, refusal.status), refusal.status, headers=refusal.headers)


class Arrivals:
    """Bodies on their way to a server. Once it ends, none is waited for."""

    def __init__(self):
        self.waits: set[asyncio.Timeout] = set()
        self.closed = False

    def close(self) -> None:
        self.closed = True
        for wait in self.waits:
            wait.reschedule(0)

    @contextlib.asynccontextmanager
    async def patience(self) -> AsyncIterator[None]:
        """Raises RefusalError where what is within takes too long."""
        try:
            async with asyncio.timeout(0 if self.closed else BODY_S) as wait:
                self.waits.add(wait)
                try:
                    yield
                finally:
                    self.waits.discard(wait)
        except TimeoutError:
            why = (503, "The server ends") if self.closed else (408, f"The body did not come within {BODY_S:g} s")
            raise RefusalError(why[0], f"{why[1]}.", {"Connection": "close"}) from None


async def content(request: Request) -> bytes:
    """A request's body. Raises RefusalError for one that is too long, late, broken off or compressed."""
    coding, declared = request.headers.get("content-encoding", "identity"), request.headers.get("content-length", "0")
    if coding.lower() != "identity":
        raise RefusalError(415, f"The body is encoded as {coding[:40]}; send it as it is.", {"Connection": "close"})
    too_long = RefusalError(413, f"The body is longer than {LIMIT:,} bytes; send less.", {"Connection": "close"})
    if "expect" in request.headers and declared.isdecimal() and int(declared) > LIMIT:
        raise too_long  # it waits to be told whether to send
    body, length = bytearray(), 0
    try:
        async with request.app.state.arrivals.patience():
            async for part in request.stream():
                length += len(part)
                body += part if length <= LIMIT else b""
                if length > MOST * LIMIT:
                    break
    except ClientDisconnect:
        raise RefusalError(400, "The client left before its body had come.") from None
    if length > LIMIT:
        raise too_long
    return bytes(body)


def read(body: bytes, kind: type[T]) -> T:
    """The body as what `kind` declares; null is as good as nothing, but in a schema. Raises RefusalError, UserError."""
    body = body.removeprefix(codecs.BOM_UTF8)
    if not body.strip():
        raise RefusalError(400, "missing request body")
    document = boundary.parse(checked(body), "The body", "Send one JSON object.")
    if not isinstance(document, dict):
        raise UserError('The body is JSON, but no object; send one such as {"model": …}.')
    try:
        whole = {name: document[name] for name in VERBATIM if document.get(name) is not None}
        return boundary.read(kind, given(document) | whole, "The request")
    except UserError as error:
        raise UserError(re.sub(r"a valid dictionary( or instance of \w+)?", "an object", str(error))) from None


def checked(body: bytes) -> bytes:
    """Raises UserError for what is no UTF-8."""
    if body.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) or b"\0" in body[:4]:
        raise UserError("The body is UTF-16 or UTF-32; send UTF-8.")
    try:
        body.decode()
    except UnicodeDecodeError as error:
        raise UserError(f"The body is not UTF-8: byte 0x{body[error.start]:02x} at {error.start:,}.") from None
    return body


def given(value: Any) -> Any:
    """A document without the fields that are null. Lists within lists have no fields."""
    if isinstance(value, dict):
        return {name: given(each) for name, each in value.items() if each is not None}
    if isinstance(value, list):
        return [given(each) if isinstance(each, dict) else each for each in value]
    return value


def compact(document: dict) -> str:
    return json.dumps(document, ensure_ascii=False, separators=(",", ":"))


class Stream(StreamingResponse):
    """Documents as they come. However it ends, also before it began, `leave` is called: the slot is free again."""

    def __init__(self, documents: AsyncIterator[dict], write: Callable[[dict], str], kind: str, last: str, leave):
        async def parts() -> AsyncIterator[str]:
            async for document in documents:
                yield write(document)
            if last:
                yield last

        super().__init__(parts(), headers=UNHELD, media_type=kind)
        self.leave = leave

    async def __call__(self, scope, receive, send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self.leave()


def lines(documents: AsyncIterator[dict], leave: Callable[[], None]) -> Stream:
    """Newline-delimited JSON."""
    return Stream(documents, lambda document: compact(document) + "\n", "application/x-ndjson", "", leave)


def events(documents: AsyncIterator[dict], leave: Callable[[], None]) -> Stream:
    """Server-sent events, the last one [DONE]."""
    return Stream(
        documents, lambda event: f"data: {compact(event)}\n\n", "text/event-stream", "data: [DONE]\n\n", leave
    )
