"""The server's own description (https://spec.openapis.org/oas/v3.1.0), made of the tables that its requests are checked
with: what it says of a body is what `boundary.read` does with it, but that null is as good as nothing anywhere.

What depends on the model, such as the length of a prompt, and what is asked for and not here is refused beyond it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pydantic.json_schema import models_json_schema

PLACE = "#/components/schemas/{model}"
LINE = {"type": "string", "pattern": "^[^\n]+$"}


@dataclass(frozen=True)
class Served:
    """A route. body: what its requests declare, read before the handler; gives: the types of its answers."""

    method: str
    path: str
    handler: Callable
    about: str
    body: type | None = None
    gives: tuple[str, ...] = ("application/json",)


def fields(**schemas: dict) -> dict:
    """The schema of an object that has these fields and no others."""
    return dict(type="object", properties=schemas, required=list(schemas), additionalProperties=False)


ERRORS = {  # as each API writes them
    "/v1/": fields(error=fields(message=LINE, type={"type": "string"}, param={"type": "null"}, code={"type": "null"})),
    "/": fields(error=LINE),
}


def error_of(path: str) -> dict:
    """The schema of an error of this path."""
    return next(schema for beginning, schema in ERRORS.items() if path.startswith(beginning))


def document(routes: Sequence[Served], version: str) -> dict:
    """The description of these routes, for JSON."""
    bodies = dict.fromkeys(served.body for served in routes if served.body)
    names, schemas = models_json_schema([(body, "validation") for body in bodies], ref_template=PLACE)
    paths: dict[str, dict] = {}
    for served in routes:
        schema = names[served.body, "validation"] if served.body else None
        paths.setdefault(re.sub(r":\w+}", "}", served.path), {})[served.method.lower()] = operation(served, schema)
    return dict(
        openapi="3.1.0",
        info=dict(title="llama-jax serve", version=version),
        paths=paths,
        components=dict(schemas=schemas["$defs"]),
    )


def operation(served: Served, schema: dict | None) -> dict:
    refused = dict(description="An error", content={"application/json": dict(schema=error_of(served.path))})
    description = dict(
        summary=served.about,
        responses={
            "200": dict(description="The answer", content={kind: {} for kind in served.gives}),
            "4XX": refused,
            "5XX": refused,
        },
    )
    if names := re.findall(r"{(\w+)", served.path):
        description["parameters"] = [
            dict(name=name, required=True, schema=dict(type="string", minLength=1)) | {"in": "path"} for name in names
        ]
    if schema:
        description["requestBody"] = dict(required=True, content={"application/json": dict(schema=schema)})
    return description
