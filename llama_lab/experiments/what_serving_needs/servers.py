"""The servers under load, each a process of its own on loopback, ended with the load.

Ours is `llama-jax serve` with its queue and the sizes of its prompts chosen, which the command leaves alone. Ollama is
the one that `make ollama` built, told to answer as many requests at a time and to let as many wait; one that
OLLAMA_HOST names has its own settings. llama.cpp's own server lets all wait who come.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass

from llama_jax import checkpoint
from llama_jax.checkpoint import Checkpoint
from llama_jax.plumbing.errors import UserError
from llama_lab.bench import parent, standings
from llama_lab.bench.lab import Lab
from llama_lab.bench.process import allowed_cores
from llama_lab.experiments.what_serving_needs import client
from llama_lab.experiments.what_serving_needs.client import Api
from llama_lab.peers import native
from llama_lab.serve.stepper import SIZES

CONTEXT = 512  # tokens of a slot: the longest prompt, the longest answer, and room
ENDS_S = 40.0  # after SIGTERM; what runs then has 30 s
BUCKETS = "buckets"
SHAPES: dict[str, tuple[int, ...]] = {"one": (256,), BUCKETS: SIZES, "exact": ()}  # name: sizes of prompts
OLLAMA, LLAMACPP = "ollama", "llama-server"
PEERS = {OLLAMA: standings.OLLAMA, LLAMACPP: standings.LLAMACPP}  # name: backend
COUNTED = re.compile(r"llama_jax_compilations_in_service ([\d.]+)")


@dataclass(frozen=True)
class Server:
    """Where a server answers, what it calls the model, what it compiled before it did (None: nothing known), and how it
    is asked."""

    url: str
    model: str
    programs: int | None = None
    seconds: float | None = None
    api: Api = client.OLLAMA

    def compiled(self) -> int | None:
        """Programs compiled in service so far; None of a server that does not say."""
        if self.programs is None:
            return None
        with urllib.request.urlopen(f"{self.url}/metrics") as answer:
            return int(float(COUNTED.search(answer.read().decode())[1]))


def started(
    lab: Lab, name: str, slots: int, queue: int, shapes: str = BUCKETS, keeps: bool = False
) -> AbstractContextManager[Server]:
    """A placement's server, or one of PEERS. keeps: whether llama.cpp's keeps what it read of earlier prompts, as it
    does by default; ours and Ollama always do. Raises UserError where it does not start."""
    if name == OLLAMA:
        return ollamas(lab.without_weights(), slots, queue)
    if name == LLAMACPP:
        return llamacpps(lab.without_weights(), slots, keeps)
    return ours(lab.model, name, slots, queue, shapes)


@contextlib.contextmanager
def ours(model: str, placement: str, slots: int, queue: int, shapes: str) -> Iterator[Server]:
    """A server of ours. Raises UserError where it does not start, with its last line."""
    asked = json.dumps(dict(model=model, placement=placement, slots=slots, queue=queue, shapes=shapes))
    command = [sys.executable, "-m", __name__, asked, str(os.getpid())]
    with native.speaking(command, f"The server of {placement}", ENDS_S) as line:
        yield Server(**json.loads(line))


@contextlib.contextmanager
def ollamas(loaded: Checkpoint, slots: int, queue: int) -> Iterator[Server]:
    """An Ollama with our file in it. Raises UserError where it does not start, UnavailableError where it refuses the
    file."""
    from llama_lab.peers import ollama, ollama_native

    process = None
    if ollama.ours():
        process, os.environ["OLLAMA_HOST"] = ollama_native.start(
            OLLAMA_NUM_PARALLEL=str(slots), OLLAMA_MAX_QUEUE=str(queue)
        )
    try:
        made = ollama.connect(loaded)
        yield Server(str(made.client._client.base_url).rstrip("/"), made.model)
    finally:
        if process:
            native.end(process)


@contextlib.contextmanager
def llamacpps(loaded: Checkpoint, slots: int, keeps: bool) -> Iterator[Server]:
    """llama.cpp's own server on our file, whose queue has no bound. Raises UserError where it does not start."""
    from llama_lab.peers import llama_server

    file = checkpoint.gguf_file(loaded.source)
    process, url = llama_server.start(file, slots, CONTEXT, len(allowed_cores()), keeps)
    try:
        yield Server(url, loaded.name, api=client.LLAMACPP)
    finally:
        native.end(process)


def main() -> None:
    """The process of one of our servers: what it is asked for and who started it on the command line, one line of JSON
    once it answers."""
    parent.follow(int(sys.argv[2]))
    from llama_lab.serve import process
    from llama_lab.serve.service import Service

    asked = json.loads(sys.argv[1])
    try:
        bound = process.bind("127.0.0.1", 0)
        loaded = checkpoint.load(asked["model"])
        shapes = SHAPES[asked["shapes"]]
        service = Service(loaded, asked["placement"], asked["slots"], CONTEXT, asked["queue"], shapes)
    except UserError as error:
        sys.exit(str(error))
    programs, seconds = service.start()
    address, port = bound.getsockname()[:2]
    about = dict(url=f"http://{address}:{port}", model=service.about.name, programs=programs, seconds=seconds)
    process.run(service, bound, None, lambda: print(json.dumps(about), flush=True))


if __name__ == "__main__":
    main()
