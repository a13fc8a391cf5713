"""The routes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from llama_jax.plumbing.errors import UserError
from llama_lab.serve import ollama, openai, openapi, wire
from llama_lab.serve.gate import Gate
from llama_lab.serve.openapi import Served
from llama_lab.serve.service import Service
from llama_lab.serve.wire import RefusalError, refused


async def metrics(service: Service, request: Request) -> Response:
    return Response(service.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")


async def described(service: Service, request: Request) -> Response:
    return JSONResponse(openapi.document(ROUTES, ollama.VERSION))


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
        Served("POST", f"/api/{name}", ollama.absent, ELSEWHERE)
        for name in ("embed", "embeddings", "pull", "push", "create", "copy")
    ),
    Served("DELETE", "/api/delete", ollama.absent, ELSEWHERE),
    Served("GET", "/v1/models", openai.models, "The model"),
    Served("GET", "/v1/models/{model:path}", openai.model, "The model of this name"),
    Served("POST", "/v1/chat/completions", openai.converse, "Go on with a conversation", openai.Chat, EVENTS),
    Served("POST", "/v1/completions", openai.complete, "Continue a prompt as it stands", openai.Completion, EVENTS),
    Served("POST", "/v1/embeddings", openai.absent, ELSEWHERE),
    Served("GET", "/metrics", metrics, "Counters for Prometheus", gives=("text/plain",)),
    Served("GET", "/openapi.json", described, "This description"),
)


def endpoint(service: Service, served: Served) -> Callable:
    """A route's handler, whose mistakes and refusals are answered in the shape of its API."""

    async def handle(request: Request) -> Response:
        try:
            bodies = [await wire.read(request, served.body)] if served.body else []
            return await served.handler(service, request, *bodies)
        except RefusalError as refusal:
            return refused(request.url.path, refusal)
        except UserError as error:
            return refused(request.url.path, RefusalError(400, str(error)))

    return handle


async def without_route(request: Request, error: HTTPException) -> Response:
    """What Ollama says of a path or method that is not there is a line of text; OpenAI's clients read an error."""
    status, path = error.status_code, request.url.path
    if path.startswith("/v1/"):
        return refused(path, RefusalError(status, str(error.detail), error.headers))
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
    return Starlette(
        routes=routes,
        middleware=[Middleware(Gate, key=key)],
        exception_handlers={HTTPException: without_route, Exception: failed},
        lifespan=lifespan,
    )
