"""A server's life: it binds its socket before anything is loaded, compiles, and answers until a signal ends it. It then
finishes the requests that it has whole, within GRACE_S."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from llama_jax.plumbing.errors import UserError
from llama_lab.serve.app import application
from llama_lab.serve.gate import is_loopback
from llama_lab.serve.service import Service

GRACE_S = 30  # for requests that run when the server is to end
HEAD_S = 20  # for a request's head to come, from the connection or from its first byte on
CONNECTIONS = 1000  # at a time; others get status 503
LONGEST_KEY = 1000


def check_key(host: str, key: str | None) -> None:
    """Raises UserError where a server that others can reach has no key, or a key is none."""
    if key is not None and not (0 < len(key) <= LONGEST_KEY and key.isascii() and key.isprintable()):
        raise UserError(f"--api-key must be 1 to {LONGEST_KEY} printable ASCII characters.")
    if key is None and not is_loopback(host):
        raise UserError(
            f"--host {host} can be reached from other machines; give --api-key (or set LLAMA_JAX_API_KEY), or leave"
            " --host out."
        )


def bind(host: str, port: int) -> socket.socket:
    """A socket at this address; port 0 lets the system choose. Raises UserError where it cannot be had."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        bound = socket.socket(family, kind, protocol)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
        return bound
    except (OSError, UnicodeError) as error:
        why = getattr(error, "strerror", None) or error
        raise UserError(f"Cannot listen at {host}, port {port}: {why}; choose another --port or --host.") from None


class Connection(H11Protocol):
    """Is closed where no whole head of a request comes within HEAD_S."""

    waits: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        self.watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self.watch()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.stop()

    def watch(self) -> None:
        """Wait no longer than that for the next head, while no request is answered."""
        if self.cycle is not None and not self.cycle.response_complete:
            self.stop()
        elif self.waits is None:
            self.waits = self.loop.call_later(HEAD_S, self.transport.close)

    def stop(self) -> None:
        if self.waits:
            self.waits.cancel()
            self.waits = None


class Server(uvicorn.Server):
    """Says when it listens, and at its end waits for no body that is still on its way."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]):
        super().__init__(config)
        self.ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self.config.app.state.arrivals.close()
        await super().shutdown(sockets)


def is_news(record: logging.LogRecord) -> bool:
    """Whether a line of uvicorn's log says more than that a request was ended because the server ends."""
    return not (record.exc_info and isinstance(record.exc_info[1], asyncio.CancelledError))


def run(service: Service, bound: socket.socket, key: str | None, ready: Callable[[], None]) -> None:
    """Answer until SIGTERM or Ctrl-C, which is raised again once all is done."""
    config = uvicorn.Config(
        application(service, key),
        log_level="warning",
        access_log=False,
        server_header=False,
        limit_concurrency=CONNECTIONS,
        timeout_graceful_shutdown=GRACE_S,
        ws="none",
        http=Connection,
    )
    logging.getLogger("uvicorn.error").addFilter(is_news)
    Server(config, ready).run(sockets=[bound])
