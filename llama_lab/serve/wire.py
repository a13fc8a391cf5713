"""What both APIs share on the wire: bodies read within bounds, errors in each one's own shape, lines and events."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, Field
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, StreamingResponse

from llama_jax.plumbing import boundary
from llama_jax.plumbing.errors import UserError

T = TypeVar("T")
Role = Annotated[str, AfterValidator(str.lower)]
Stops = str | Annotated[list[str], Field(max_length=16)]  # texts that end an answer
LIMIT = 8 << 20  # bytes of a body: more text than any context here holds
FAILED = "the request failed; the server's log says why"
BODY_S = 30.0  # a body that is longer on its way than this is not waited for
KINDS = {400: "invalid_request_error", 401: "authentication_error", 404: "not_found_error"}  # OpenAI's, else api_error


def texts(stops: Stops) -> list[str]:
    """Stop texts as a list, also where a single one is given."""
    return [stops] if isinstance(stops, str) else stops


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


async def content(request: Request) -> bytes:
    """A request's body. Raises RefusalError for one that is too long, too long on its way, or broken off."""
    body, declared = bytearray(), request.headers.get("content-length", "0")
    too_long = RefusalError(413, f"The body is longer than {LIMIT:,} bytes; send less.", {"Connection": "close"})
    if declared.isdecimal() and int(declared) > LIMIT:
        raise too_long
    try:
        async with asyncio.timeout(BODY_S):
            async for part in request.stream():
                body += part
                if len(body) > LIMIT:
                    raise too_long
    except ClientDisconnect:
        raise RefusalError(400, "The client left before its body had come.") from None
    except TimeoutError:
        raise RefusalError(408, f"The body did not come within {BODY_S:g} s.", {"Connection": "close"}) from None
    return bytes(body)


async def read(request: Request, kind: type[T]) -> T:
    """The body as what `kind` declares; null is as good as nothing. Raises RefusalError, UserError."""
    body = await content(request)
    if not body.strip():
        raise RefusalError(400, "missing request body")
    document = boundary.parse(body, "The body", "Send one JSON object.")
    if not isinstance(document, dict):
        raise UserError('The body is JSON, but no object; send one such as {"model": …}.')
    return boundary.read(kind, given(document), "The request")


def given(value: Any) -> Any:
    """A document without the fields that are null."""
    if isinstance(value, dict):
        return {name: given(each) for name, each in value.items() if each is not None}
    return [given(each) for each in value] if isinstance(value, list) else value


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

        super().__init__(parts(), media_type=kind)
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
