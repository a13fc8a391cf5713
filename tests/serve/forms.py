"""Requests for JSON that follows a schema, at every endpoint and in every form that it takes, and what comes of
them."""

from __future__ import annotations

import http.client
import io
import json
import random

from tests.grammars.examples import SCHEMAS
from tests.grammars.sampled import valid
from tests.grammars.test_schemas import IMPOSSIBLE, REFUSED, TOO_LARGE

FORMS = [*SCHEMAS.values(), "json"]
HOSTILE = ([schema for schema, _ in REFUSED], IMPOSSIBLE, TOO_LARGE)  # not supported, of no value, bombs
CUT, INVALID, BROKEN, LONG = "cut", "invalid", "broken off", "more than a line"  # what is no status


def hostile(drawn: random.Random) -> dict | str:
    """A schema that must be refused."""
    (some,) = drawn.choices(HOSTILE, (5, 3, 2))  # a bomb takes a second to find
    return drawn.choice(some)


def way(drawn: random.Random, path: str, form: dict | str) -> dict:
    """The field that asks for a form."""
    if path.startswith("/api/"):
        return dict(format=form)
    if form == "json":
        return dict(response_format=dict(type="json_object"))
    return drawn.choice(
        [
            dict(response_format=dict(type="json_schema", json_schema=dict(name="form", schema=form, strict=True))),
            dict(guided_json=form),
            dict(guided_json=json.dumps(form)),
            dict(structured_outputs=dict(json=form)),
            dict(json_schema=form),
        ]
    )


class Received(io.BytesIO):
    """Bytes as the socket from which the library reads a response."""

    def makefile(self, *_) -> io.BytesIO:
        return self


def read(said: bytes) -> tuple[int, bytes]:
    """(status, body) of a response. Raises HTTPException for one that is not whole."""
    response = http.client.HTTPResponse(Received(said))
    response.begin()
    return response.status, response.read()


def piece(document: dict) -> tuple[str, str | None]:
    """(text, why it ended) of one document of an answer, in either API's shape."""
    if "choices" in document:
        (choice,) = document["choices"]
        held = choice.get("delta", choice.get("message", choice))
        return held.get("content", held.get("text")) or "", choice["finish_reason"]
    return document.get("response", document.get("message", {}).get("content", "")), document.get("done_reason")


def outcome(said: bytes, form: dict | str) -> int | str:
    """200 for a whole answer of its form, CUT for one that met the limit of its tokens, INVALID for any other; the
    status of what was refused in one line, LONG in several; BROKEN for a response that is not whole."""
    try:
        status, body = read(said)
    except http.client.HTTPException:
        return BROKEN
    lines = [line.removeprefix(b"data: ") for line in body.split(b"\n") if line and line != b"data: [DONE]"]
    documents = [json.loads(line) for line in lines]
    if status != 200:
        error = documents[0]["error"]
        line = error if isinstance(error, str) else error["message"]
        return status if line and "\n" not in line else LONG
    pieces = [piece(document) for document in documents]
    if pieces[-1][1] == "length":
        return CUT
    return 200 if pieces[-1][1] == "stop" and valid(form, "".join(text for text, _ in pieces)) else INVALID
