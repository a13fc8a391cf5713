"""Access to the server: clients that know its key. A server without a key answers this machine alone, and no pages but
its own."""

from __future__ import annotations

import contextlib
import hmac
import ipaddress
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from llama_lab.serve.wire import RefusalError, refused

LOCAL_NAMES = (".localhost", ".local", ".internal")  # as Ollama has them
PROGRAMS = ("app", "file", "tauri", "vscode-file", "vscode-webview")  # whose pages no site can be; as Ollama has them
PREFLIGHT = {  # what a page may send (https://fetch.spec.whatwg.org/#http-cors-protocol)
    "Access-Control-Allow-Methods": "GET, POST, DELETE, HEAD",
    "Access-Control-Allow-Headers": "*, Authorization",
    "Access-Control-Max-Age": "43200",
}


def is_loopback(host: str) -> bool:
    """Whether a name or an address is this machine and no network's."""
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost" or host.endswith(".localhost")


def is_local(host: str) -> bool:
    """Whether a request for this host may be meant for a server on loopback: else a page of another site has had its
    name point here."""
    with contextlib.suppress(ValueError):
        address = ipaddress.ip_address(host)
        return address.is_loopback or address.is_private or address.is_unspecified
    return host in ("", "localhost") or host.endswith(LOCAL_NAMES)


def host_of(url: str) -> str:
    """The host that a URL names; the URL where it is none."""
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return url


def is_own_page(origin: str, host: str) -> bool:
    """Whether a page of this origin is this machine's: served from loopback, shown by a program, or our own host's."""
    scheme, name = origin.partition("://")[0], host_of(origin)
    if scheme in PROGRAMS:
        return True
    return scheme in ("http", "https") and (is_loopback(name) or name == "0.0.0.0" or origin.endswith(f"://{host}"))


def readable(send: Send, origin: str) -> Send:
    """The same, with the header that lets a page of this origin read the answer."""

    async def send_readable(message: Message) -> None:
        if message["type"] == "http.response.start":
            more = [(b"access-control-allow-origin", origin.encode("latin-1")), (b"vary", b"Origin")]
            message = message | {"headers": [*message["headers"], *more]}
        await send(message)

    return send_readable


class Gate:
    """Lets allowed requests pass, and answers a browser that asks whether a page is allowed."""

    def __init__(self, app: ASGIApp, key: str | None):
        self.app, self.key = app, key

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        request, answer = Request(scope), self.app
        refusal, origin = self.refusal(request), request.headers.get("origin")
        own = origin is not None and is_own_page(origin, request.headers.get("host", ""))
        if refusal:
            answer = refused(scope["path"], refusal)
        if own and request.method == "OPTIONS" and (refusal is None or refusal.status == 401):  # which has no key yet
            answer = Response(status_code=204, headers=PREFLIGHT)
        await answer(scope, receive, readable(send, origin) if own else send)

    def refusal(self, request: Request) -> RefusalError | None:
        if {"content-length", "transfer-encoding"} <= {*request.headers}:  # whose end a proxy may see elsewhere
            return RefusalError(400, "send Content-Length or Transfer-Encoding, not both", {"Connection": "close"})
        if self.key is not None:
            given = request.headers.get("authorization", "")
            if hmac.compare_digest(given.encode(), f"Bearer {self.key}".encode()):
                return None
            line = "this server wants its key: Authorization: Bearer KEY"
            return RefusalError(401, line, {"WWW-Authenticate": "Bearer"})
        host, origin = request.headers.get("host", ""), request.headers.get("origin")
        if not is_local(host_of(f"//{host}")) or (origin is not None and not is_own_page(origin, host)):
            return RefusalError(403, "this server answers its own machine only")
        return None
