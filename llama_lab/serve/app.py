"""The routes, and the server's own description (https://spec.openapis.org/oas/v3.1.0), made of the tables that its
requests are checked with: what it says of a body is what `boundary.read` does with it, but that null is as good as
nothing anywhere. What depends on the model, such as the length of a prompt, and what is asked for and not here is
refused beyond it.
"""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pydantic.json_schema import models_json_schema
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from llama_jax.plumbing.errors import UserError
from llama_lab.serve import ollama, openai, tokenise, wire
from llama_lab.serve.gate import Gate
from llama_lab.serve.service import Service
from llama_lab.serve.wire import RefusalError, refused

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


async def metrics(service: Service, request: Request) -> Response:
    return Response(service.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")


async def described(service: Service, request: Request) -> Response:
    return JSONResponse(own_description())


@functools.cache  # it takes longer to make than a step does
def own_description() -> dict:
    return document(ROUTES, ollama.VERSION)


LINES, EVENTS = ("application/x-ndjson", "application/json"), ("application/json", "text/event-stream")
ELSEWHERE = "Not here: one model is held, which answers"
ROUTES = (
    Served("GET", "/", ollama.running, "That a server answers", gives=("text/plain",)),
    Served("GET", "/api/version", ollama.version, "The release of Ollama whose API this is"),
    Served("GET", "/api/tags", ollama.tags, "The model"),
    Served("GET", "/api/ps", ollama.ps, "The model, which is in memory"),
    Served("POST", "/api/show", ollama.show, "What the model is", ollama.Named),
    Served("POST", "/api/chat", ollama.converse, "Go on with a conversation", ollama.Chat, LINES),
    Served("POST", "/api/generate", ollama.generate, "Answer or continue a prompt", ollama.Generate, LINES),
    *(
        Served("POST", path, ollama.embeds, "Not here: the model is none for it")
        for path in ("/api/embed", "/api/embeddings", "/v1/embeddings")
    ),
    *(Served("POST", f"/api/{name}", ollama.absent, ELSEWHERE) for name in ("push", "create", "copy")),
    Served("POST", "/api/pull", ollama.pull, "The model, which is here", ollama.Named, LINES),
    Served("DELETE", "/api/delete", ollama.absent, ELSEWHERE),
    Served("GET", "/v1/models", openai.models, "The model"),
    Served("GET", "/v1/models/{model:path}", openai.model, "The model of this name"),
    Served("POST", "/v1/chat/completions", openai.answered, "Go on with a conversation", openai.Chat, EVENTS),
    Served("POST", "/v1/completions", openai.answered, "Continue a prompt as it stands", openai.Completion, EVENTS),
    Served("POST", "/tokenize", tokenise.tokenise, "The tokens of a text or a conversation", tokenise.Tokenise),
    Served("POST", "/detokenize", tokenise.detokenise, "The text of tokens", tokenise.Detokenise),
    Served("GET", "/tokenizer_info", tokenise.info, "The special tokens and the chat template"),
    Served("GET", "/metrics", metrics, "Counters for Prometheus", gives=("text/plain",)),
    Served("GET", "/openapi.json", described, "This description"),
)


def endpoint(service: Service, served: Served) -> Callable:
    """A route's handler, whose mistakes and refusals are answered in the shape of its API."""

    async def handle(request: Request) -> Response:
        try:
            if served.body is None:
                return await served.handler(service, request)
            body = await wire.content(request)
            request.state.size = len(body)
            asked = await service.apart(len(body), wire.read, body, served.body)
            return await served.handler(service, request, asked)
        except RefusalError as refusal:
            return refused(request.url.path, refusal)
        except UserError as error:
            return refused(request.url.path, RefusalError(400, str(error)))

    return handle


async def without_route(request: Request, error: HTTPException) -> Response:
    """What Ollama says of a path or method that is not there is a line of text; OpenAI's clients read an error."""
    status, path = error.status_code, request.url.path
    if path.startswith("/v1/"):
        about = f"{error.detail}: {request.method} {path} is not here; GET /openapi.json lists what is"
        return refused(path, RefusalError(status, about, error.headers))
    line = "page not found" if status == 404 else str(error.detail).lower()
    return Response(f"{status} {line}", status, {**(error.headers or {}), "Content-Type": "text/plain"})


async def failed(request: Request, error: Exception) -> Response:
    return refused(request.url.path, RefusalError(500, "the server made a mistake; its log says which"))


def application(service: Service, key: str | None = None) -> Starlette:
    """The ASGI application of a service that has started, which it closes at its end. key: requests without it are
    refused."""

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette):
        yield
        service.close()

    routes = [Route(served.path, endpoint(service, served), methods=[served.method]) for served in ROUTES]
    app = Starlette(
        routes=routes,
        middleware=[Middleware(Gate, key=key)],
        exception_handlers={HTTPException: without_route, Exception: failed},
        lifespan=lifespan,
    )
    app.state.arrivals = wire.Arrivals()
    return app
