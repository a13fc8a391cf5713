"""The routes, and who may use them."""

from __future__ import annotations

import contextlib
import hmac
import ipaddress
import logging
from collections.abc import Callable
from urllib.parse import urlsplit

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from llama_jax.errors import UserError
from llama_jax.serve import ollama, openai
from llama_jax.serve.service import Service
from llama_jax.serve.wire import RefusalError, refused

LOG = logging.getLogger(__name__)
LOCAL_NAMES = (".localhost", ".local", ".internal")  # as Ollama has them
ROUTES: list[tuple[str, str, Callable]] = [
    ("GET", "/", ollama.running),
    ("GET", "/api/version", ollama.version),
    ("GET", "/api/tags", ollama.tags),
    ("GET", "/api/ps", ollama.ps),
    ("POST", "/api/show", ollama.show),
    ("POST", "/api/chat", ollama.converse),
    ("POST", "/api/generate", ollama.generate),
    *(("POST", f"/api/{name}", ollama.absent) for name in ("embed", "embeddings", "pull", "push", "create", "copy")),
    ("DELETE", "/api/delete", ollama.absent),
    ("GET", "/v1/models", openai.models),
    ("GET", "/v1/models/{model:path}", openai.model),
    ("POST", "/v1/chat/completions", openai.converse),
    ("POST", "/v1/completions", openai.complete),
    ("POST", "/v1/embeddings", openai.absent),
]


def is_loopback(host: str) -> bool:
    """Whether a name or an address is this machine and no network's."""
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost" or host.endswith(".localhost")


def is_local(host: str) -> bool:
    """Whether a request for this host may be meant for a server on loopback: else a page of another site has had its
    name point here."""
    with contextlib.suppress(ValueError):
        found = ipaddress.ip_address(host)
        return found.is_loopback or found.is_private or found.is_unspecified
    return host in ("", "localhost") or host.endswith(LOCAL_NAMES)


def host_of(url: str) -> str:
    """The host that a URL names; the URL where it is none."""
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return url


class Gate:
    """Lets pass who knows the key, or where there is none who speaks to this machine from no other site's page."""

    def __init__(self, app: ASGIApp, key: str | None):
        self.app, self.key = app, key

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and (refusal := self.refusal(Request(scope))):
            return await refused(scope["path"], refusal)(scope, receive, send)
        await self.app(scope, receive, send)

    def refusal(self, request: Request) -> RefusalError | None:
        if self.key is not None:
            given = request.headers.get("authorization", "")
            if hmac.compare_digest(given.encode(), f"Bearer {self.key}".encode()):
                return None
            line = "this server wants its key: Authorization: Bearer KEY"
            return RefusalError(401, line, {"WWW-Authenticate": "Bearer"})
        origin = request.headers.get("origin")
        if not is_local(host_of(f"//{request.headers.get('host', '')}")) or (
            origin is not None and not is_local(host_of(origin) or origin)
        ):
            return RefusalError(403, "this server answers its own machine only")
        return None


def endpoint(service: Service, handler: Callable) -> Callable:
    """A handler whose mistakes and refusals are answered in the shape of its API."""

    async def handle(request: Request) -> Response:
        try:
            return await handler(service, request)
        except RefusalError as refusal:
            return refused(request.url.path, refusal)
        except UserError as error:
            return refused(request.url.path, RefusalError(400, str(error)))

    return handle


async def metrics(service: Service, request: Request) -> Response:
    return Response(service.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")


async def without_route(request: Request, error: HTTPException) -> Response:
    return refused(request.url.path, RefusalError(error.status_code, str(error.detail), error.headers))


async def failed(request: Request, error: Exception) -> Response:
    return refused(request.url.path, RefusalError(500, "the server made a mistake; its log says which"))


def application(service: Service, key: str | None = None) -> Starlette:
    """The ASGI application of a service that has started, which it closes at its end. key: who does not send it is
    refused."""

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette):
        yield
        service.close()

    routes = [
        Route(path, endpoint(service, handler), methods=[method])
        for method, path, handler in [*ROUTES, ("GET", "/metrics", metrics)]
    ]
    return Starlette(
        routes=routes,
        middleware=[Middleware(Gate, key=key)],
        exception_handlers={HTTPException: without_route, Exception: failed},
        lifespan=lifespan,
    )
