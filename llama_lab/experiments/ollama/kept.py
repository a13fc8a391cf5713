"""A conversation with servers that may keep what was said: each turn reads only what is new.

Ours is `llama-jax serve` under a placement, one slot; Ollama is asked beside it, both by Ollama's own client, both with
their caches of prompts in use. Each conversation says its number at its start, so that nothing of an earlier one helps.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace

from llama_jax import generate
from llama_jax.checkpoint import Checkpoint
from llama_jax.placement import parse
from llama_jax.plumbing.errors import UserError
from llama_lab.bench import parent, protocol, roofline
from llama_lab.bench.lab import Lab
from llama_lab.bench.workload import Subject, encoder
from llama_lab.experiments.ollama.turns import ask, conversation, turn
from llama_lab.peers import UnavailableError, native, ollama

KEPT = "kept"
OLLAMA = "ollama"
ENDS_S = 40.0  # after SIGTERM; what runs then has 30 s
ANSWERS = re.compile(r"^(\S+) answers at (http://\S+?):? ")


def conversations(lab: Lab, names: Sequence[str], chats: int, turns: int, new_tokens: int, seed: int) -> None:
    """`chats` conversations with each server, interleaved turn by turn in seeded random order; judged as all trials
    are. names: placements of ours, or `ollama`, which is said to be missing where it cannot be asked."""
    with contextlib.ExitStack() as open_until_the_end:
        loaded = lab.load()
        whole = conversation(loaded, turns, new_tokens, seed)
        room = generate.bucket(whole.length + new_tokens + 1)
        subjects, probe = [], roofline.Probe()
        for name in names:
            try:
                subjects.append(open_until_the_end.enter_context(server(loaded, name, room)))
            except UnavailableError as error:
                lab.missing(name, error.reason, error.remedy)
        for chat in range(-1, chats):  # the first one warms up, and is not kept
            work = conversation(loaded, turns, new_tokens, seed, f"Conversation {chat + 2}. ")
            bandwidth = probe.bandwidth()
            for k in range(turns):
                reference = protocol.Reference(loaded, turn(work, k, encoder(loaded)))
                ask(lab, subjects, reference, bandwidth, chat, k)


@contextlib.contextmanager
def server(loaded: Checkpoint, name: str, room: int) -> Iterator[Subject]:
    """A server as a subject which is asked the prompts as they are. room: positions of its context. Raises
    UnavailableError for an Ollama that cannot be asked, UserError where ours does not start."""
    if name == OLLAMA:
        yield replace(ollama.subject(loaded, name), encode=encoder(loaded))
        return
    own = protocol.subject(loaded, parse(name))
    with ours(loaded.source, name, room) as (model, url):
        found = ollama.Server(client(url), model, loaded.tokenizer)
        yield replace(own, run=found.run, reported=lambda: found.counts)


def client(url: str):
    import httpx
    import ollama as package

    return package.Client(url, timeout=httpx.Timeout(ollama.SILENCE_S, connect=ollama.LOOK_S))


@contextlib.contextmanager
def ours(model: str, placement: str, context: int) -> Iterator[tuple[str, str]]:
    """(what it calls the model, its address) of `llama-jax serve`, which ends with this process. Raises UserError where
    it does not start, with its last line."""
    asked = ["serve", "--model", model, "--placement", placement, "--slots", "1", "--context", str(context)]
    command = [sys.executable, "-c", parent.FOLLOWER, str(os.getpid()), sys.executable, "-m", "llama_lab", *asked]
    with native.speaking([*command, "--port", "0"], f"`llama-jax serve` under {placement}", ENDS_S) as line:
        if not (found := ANSWERS.match(line)):
            raise UserError(f"`llama-jax serve` under {placement} did not say where it answers: {line.strip()[-300:]}")
        yield found[1], found[2]
