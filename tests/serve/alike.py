"""One request to two servers: what of an answer must be alike, which requests are sent, and where the answers differ by
intent. Texts may differ."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field

import httpx

TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)")
LEAVE = "access-control-allow-origin"
PATIENCE_S = 120


@dataclass(frozen=True)
class Seen:
    """An answer. lines: shapes of its lines or events, those alike in a row once. documents: the lines themselves."""

    status: int
    kind: str
    leave: str | None
    lines: list
    documents: list = field(compare=False, default_factory=list)


def shape(value):
    """Names and types of a JSON value; the kinds of a list's items once each."""
    if isinstance(value, dict):
        return {name: shape(value[name]) for name in sorted(value)}
    if isinstance(value, list):
        return sorted({json.dumps(shape(each), sort_keys=True) for each in value})
    if isinstance(value, str):
        return "time" if TIME.fullmatch(value) else "text"
    return {bool: "boolean", int: "integer", float: "number", type(None): "null"}[type(value)]


def in_turn(shapes: list) -> list:
    """Without what is like the one before."""
    return [each for i, each in enumerate(shapes) if i == 0 or each != shapes[i - 1]]


def read(kind: str, text: str) -> list:
    """The documents of a body; what is no JSON is one text."""
    if kind.startswith("text/event-stream"):
        parts = [part.removeprefix("data: ") for part in text.split("\n\n") if part]
        return [part if part == "[DONE]" else json.loads(part) for part in parts]
    if kind.startswith("application/x-ndjson"):
        return [json.loads(line) for line in text.splitlines()]
    if kind.startswith("application/json"):
        return [json.loads(text)] if text else []
    return [text] if text else []


def ask(url: str, model: str, method: str, path: str, body=None, headers: dict | None = None) -> Seen:
    """Ask a server for its model, which a request calls MODEL."""
    content = body if isinstance(body, str) or body is None else json.dumps(body)
    content, path = content and content.replace("MODEL", model), path.replace("MODEL", model)
    answer = httpx.request(method, url + path, content=content, headers=headers, timeout=PATIENCE_S)
    kind = answer.headers.get("content-type", "")
    if path.startswith("/v1/"):  # where Ollama itself names the letters of JSON or does not
        kind = kind.partition(";")[0]
    documents = read(kind, answer.text)
    shapes = [each if isinstance(each, str) else shape(each) for each in documents]
    return Seen(answer.status_code, kind, answer.headers.get(LEAVE), in_turn(shapes), documents)


def aspect(ours: Seen, theirs: Seen) -> str:
    """In what two answers differ first; "" where they are alike."""
    for name in ("status", "kind", "leave", "lines"):
        if getattr(ours, name) != getattr(theirs, name):
            return name
    return ""


def wrong_times(document: dict, wall_ns: int) -> list[str]:
    """What cannot be of a last line's durations, if they are in ns and `wall_ns` passed at the client."""
    times = {name: document[name] for name in document if name.endswith("_duration")}
    total, parts = times.get("total_duration", 0), sum(times.values()) - times.get("total_duration", 0)
    return [
        line
        for line, wrong in (
            ("a duration is no whole number", not all(type(each) is int for each in times.values())),
            ("the whole is longer than it took", total > wall_ns),
            ("the whole is not in ns", total * 1000 < wall_ns),
            ("the parts are longer than the whole", parts > total),
        )
        if wrong
    ]
