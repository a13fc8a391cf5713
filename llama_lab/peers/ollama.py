"""Ollama through its official client. It is an HTTP server, so its answers are checked and its own counts are kept.

Which server: the one at OLLAMA_HOST; without that, the one that `make ollama` built, started on loopback and ended with
this process (`ollama_native`); otherwise whatever answers at Ollama's default address.

Weights: the server receives the GGUF file that the checkpoint came from, as a model named after the file's hash
(`llama-jax-0123456789ab`), unless it has it. The file is first uploaded as a blob, then one request makes a model of
it. A server that is stopped between the two holds an unnamed blob, which it deletes at its next start. `ollama rm NAME`
deletes the model.

Requests: `raw`, so that no template is added; temperature 0; as many threads as we have cores, and no GPU if JAX has
none. We cannot pin the server's process. The server keeps the keys and values of earlier prompts, so each prompt starts
with a unique word: in place of its first token, or before a chat text, whose first token matters. A new subject makes
the server unload the model, so that the first request of a process loads it.

Times are the client's, one per chunk. Chunks are text; our tokenizer finds their tokens, and a trial whose number of
tokens differs from the server's count is void. An answer may end early, at the end-of-text token, which the server
counts but does not send.
"""

from __future__ import annotations

import itertools
import os
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from llama_jax import checkpoint, generate
from llama_jax.plumbing.errors import UserError
from llama_lab import peers
from llama_lab.bench.process import allowed_cores
from llama_lab.bench.workload import Subject, Workload, encoder
from llama_lab.peers import UnavailableError, llamacpp, ollama_native

LOOK_S = 2.0  # a server that does not answer a look within this is none
SILENCE_S = 120.0  # one that sends nothing for so long within a request hangs
OLDEST = (0, 5, 5)  # the first version that makes a model of files sent to it
KEEP = "10m"  # how long the server keeps the model in memory after a request
GREEDY = dict(temperature=0, repeat_penalty=1.0)  # a server has a penalty of its own, under which best is another token
WORDS = 500  # different first words, far more than a server keeps prompts
START = "Start it with `ollama serve`, set OLLAMA_HOST to one that runs, or build one with `make ollama`."
UPDATE = (
    f"Update Ollama to {'.'.join(map(str, OLDEST))} or newer (https://ollama.com/download) and start it"
    " with `ollama serve`."
)


class ServerError(RuntimeError):
    """A request that went wrong at the server or on the way: one line."""


def missing(name: str, model: str) -> tuple[str, str] | None:
    """Ollama runs GGUF files where a server of OLDEST or newer answers."""
    if find_spec("ollama") is None:
        return "Ollama's client is not installed.", "Run `make setup`, or `.venv/bin/pip install ollama`."
    gap = llamacpp.no_file(model, "Ollama")
    if gap and model != checkpoint.DEFAULT:
        return gap
    try:
        if not ours():
            look(LOOK_S)
    except UnavailableError as error:
        return error.reason, error.remedy
    return gap  # the packaged weights are not installed; a server that is missing too is reported first


def ours() -> bool:
    """Whether the server is the one that we build, which is started when it is needed."""
    return "OLLAMA_HOST" not in os.environ and ollama_native.BUILT.binary() is not None


def running() -> str | None:
    """Version and address of a server that we did not build: at OLLAMA_HOST, or at Ollama's default address. None if
    none answers."""
    if find_spec("ollama") is None:
        return None
    import httpx
    import ollama

    try:
        host = str(ollama.Client()._client.base_url).rstrip("/")
        return f"{httpx.get(f'{host}/api/version', timeout=LOOK_S).json()['version']} at {host}"
    except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError, TypeError, KeyError):
        return None


def look(patience: float) -> tuple[object, list[str]]:
    """A client of the server, and the server's models. Raises UnavailableError."""
    import httpx
    import ollama

    try:
        where = ollama_native.server() if ours() else None  # None: where the client looks by itself
    except UserError as error:
        raise UnavailableError(str(error), "Build it again: `make ollama`.") from None
    client = ollama.Client(where, timeout=httpx.Timeout(patience, connect=LOOK_S))
    host = str(client._client.base_url).rstrip("/")
    try:
        answer = client._client.get("/api/version", timeout=LOOK_S)
        version = str(answer.json()["version"]) if answer.is_success else ""
        names = [m.model for m in ollama.Client(where, timeout=LOOK_S).list().models]
    except httpx.TimeoutException:
        raise UnavailableError(
            f"The server at {host} did not answer within {LOOK_S:g} s.", "Start it again: `ollama serve`."
        ) from None
    except (ConnectionError, OSError, httpx.HTTPError):
        raise UnavailableError(f"No Ollama server answers at {host}.", START) from None
    except (ollama.ResponseError, ValueError, TypeError, KeyError, AttributeError):
        raise UnavailableError(f"The server at {host} is not Ollama, or it is too old.", UPDATE) from None
    numbers = tuple(map(int, re.findall(r"\d+", version.split("-")[0])[:3]))  # `0.5.4-rc1`
    if not numbers or (0, 0, 0) != numbers < OLDEST:  # one that was built by hand calls itself 0.0.0
        called = version or "it does not say its version"
        raise UnavailableError(f"The Ollama server at {host} is too old ({called}).", UPDATE)
    return client, names


def subject(loaded: checkpoint.Checkpoint, name: str, schema: dict | None = None) -> Subject:
    """The server as a subject of the protocol, with our weights in it. schema: what its answers must be. Raises
    UnavailableError."""
    server, known = connect(loaded), llamacpp.identity(loaded, Path(loaded.source))
    server.schema = schema
    server.forget()
    return Subject("ollama", "ollama", name, server.run, server.encode, known, reported=lambda: server.counts)


def connect(loaded: checkpoint.Checkpoint) -> Server:
    """The server, with a model of the checkpoint's own file under its own quantisation. Raises UnavailableError, also
    where the model cannot be made."""
    import httpx
    import ollama

    peers.require("ollama", loaded.source)
    client, names = look(SILENCE_S)
    model, path = f"llama-jax-{loaded.weights_hash[:12]}", checkpoint.gguf_file(loaded.source)
    if f"{model}:latest" in names:
        return Server(client, model, loaded.tokenizer)
    try:
        made = client.create(model=model, files={path.name: client.create_blob(path)})
    except ollama.ResponseError as error:
        raise UnavailableError(f"Ollama refused to make a model of {path.name}: {error}.", UPDATE) from None
    except (ConnectionError, OSError, httpx.HTTPError, ValueError, TypeError) as error:
        raise UnavailableError(
            f"Ollama stopped while it made a model of {path.name} ({type(error).__name__}).", START
        ) from None
    if made.status != "success":
        raise UnavailableError(f"Ollama did not make a model of {path.name}: it says {made.status!r}.", UPDATE)
    return Server(client, model, loaded.tokenizer)


@dataclass
class Server:
    """A client, the model it asks for, and our tokenizer. counts: what the server counted and clocked in the last
    request, as fields of a Trial, durations in ns. hung: why nothing is asked of it any more. room: positions of its
    context, which only grow. schema: what an answer must be, anything by default."""

    client: object
    model: str
    tokenizer: object
    counts: dict = field(default_factory=dict)
    hung: str = ""
    room: int = 0
    schema: dict | None = None

    def __post_init__(self):
        known = list(itertools.islice(words(self.tokenizer), WORDS))
        # another process, which may have left its prompts there, started elsewhere
        start = time.time_ns() % max(len(known), 1)
        self.words = itertools.cycle(known[start:] + known[:start])

    def forget(self) -> None:
        """Have the server drop the model from its memory, so that the next request loads it."""
        import httpx

        try:
            self.client.generate(model=self.model, keep_alive=0)
        except httpx.TimeoutException:
            self.hang()
        except Exception:  # whatever is wrong, the first request meets it and says so in its trial
            pass

    def hang(self) -> None:
        self.hung = f"the server sent nothing for {SILENCE_S:g} s; start it again with `ollama serve`"

    def encode(self, prompt: str | tuple[int, ...]) -> list[int]:
        """Ids of a prompt with a unique first word, which a server that keeps the last prompts has not seen in this
        place."""
        ids = encoder(self)(prompt)
        if (word := next(self.words, None)) is None:
            return ids
        at = len(self.first) if ids[: len(self.first)] == self.first else 0
        return [*ids[:at], word, *ids[at if isinstance(prompt, str) else at + 1 :]]

    @property
    def first(self) -> list[int]:
        """The tokens that the server puts before every text."""
        return self.tokenizer.encode("")

    def text(self, ids: Sequence[int]) -> str:
        """What to send so that the server reads these ids."""
        ids, first = list(map(int, ids)), self.first
        rest = ids[len(first) :] if ids[: len(first)] == first else ids
        return self.tokenizer.backend.decode(rest, skip_special_tokens=False)

    def run(self, ids: Sequence[int], work: Workload) -> Iterator[np.ndarray]:
        """Blocks [n 1] of greedy tokens, one a chunk. Raises RuntimeError."""
        self.counts = {}
        peers.check_one_row(work, "Ollama")
        # with the word before a chat text; for another context than the last one a server loads the model again
        self.room = room = max(self.room, generate.bucket(max(work.length, len(ids)) + work.new_tokens + 1))
        made, last = 0, None
        for last in self.chunks(self.text(ids), work.new_tokens, room, work.seed):
            if tokens := self.tokenizer.encode(last.response or "", special=False, allow_special_tokens=True):
                made += len(tokens)
                yield np.array(tokens, np.int32)[:, None]
        self.counts = dict(
            server_prompt_tokens=last.prompt_eval_count,
            server_prompt_ns=last.prompt_eval_duration,
            server_tokens=last.eval_count,
            server_decode_ns=last.eval_duration,
            server_load_ns=last.load_duration,
        )
        check(last, made, work.new_tokens)

    def chunks(self, text: str, new_tokens: int, room: int, seed: int = 0) -> Iterator:
        """The parts of the server's answer as they arrive, the last one marked as done. Raises ServerError for any
        failure."""
        import httpx
        import jax
        import ollama

        if self.hung:
            raise ServerError(self.hung)
        options = GREEDY | dict(num_predict=new_tokens, num_ctx=room, num_thread=len(allowed_cores()), seed=seed)
        if jax.default_backend() == "cpu":
            options["num_gpu"] = 0
        done, received = False, 0
        try:
            for part in self.client.generate(
                model=self.model,
                prompt=text,
                raw=True,
                format=self.schema,
                stream=True,
                options=options,
                keep_alive=KEEP,
            ):
                done, received = bool(part.done), received + 1
                yield part
        except httpx.TimeoutException:
            self.hang()
            raise ServerError(self.hung) from None
        except ollama.ResponseError as error:
            raise ServerError(f"the server says after {received} chunks: {error.error}") from None
        except (ConnectionError, httpx.ConnectError):
            raise ServerError("the server does not answer any more; start it with `ollama serve`") from None
        except (httpx.HTTPError, OSError) as error:
            raise ServerError(
                f"the connection broke after {received} chunks ({type(error).__name__}); is `ollama serve` still"
                " running?"
            ) from None
        except (ValueError, TypeError, AttributeError) as error:
            raise ServerError(f"chunk {received + 1} is malformed ({type(error).__name__})") from None
        if not done:
            raise ServerError(f"the answer broke off after {received} chunks")


def check(last, made: int, asked: int) -> None:
    """Raises ServerError if an answer's tokens are not as many as the server counts, or not what was asked for."""
    ended = last.done_reason == "stop"  # at the token that ends a text: counted, not sent
    if last.eval_count not in ((made, made + 1) if ended else (made,)):
        raise ServerError(
            f"the server counts {last.eval_count} tokens, its chunks make {made}: their times are nobody's"
        )
    if made > asked or (made < asked and not ended):
        raise ServerError(f"{asked} tokens were asked for, {made} came")
    if made < min(asked, 2):
        raise ServerError(f"the answer ended after {made} token{'' if made == 1 else 's'}: there is no rate in it")


def words(tokenizer) -> Iterator[int]:
    """Ids of plain words that are one token each, wherever a text starts with them."""
    for token in range(tokenizer.backend.get_vocab_size()):
        text = tokenizer.decode([token])
        plain = text.isascii() and text.strip().isalpha() and len(text) >= 4
        if plain and tokenizer.encode(text, special=False) == [token]:
            yield token


def top1(loaded: checkpoint.Checkpoint, ids: Sequence[int], positions: Sequence[int]) -> np.ndarray:
    """The server's best next token after ids[: p + 1] for each position p: int32 [n].

    -1 if it cannot be known: the text does not lead back to the same ids, or what the server sends is not one token.
    One request per position, each of which may reuse what the server holds of the text before. Raises UnavailableError
    where the server cannot, or at any position does not, answer.
    """
    server, ids = connect(loaded), [int(i) for i in ids]
    room, best = generate.bucket(len(ids) + 1), np.full(len(positions), -1, np.int32)
    for n, p in enumerate(positions):
        before = ids[: p + 1]
        text = server.text(before)
        first = bool(server.first) and before[: len(server.first)] == server.first
        if server.tokenizer.encode(text, first, allow_special_tokens=True) != before:
            continue
        try:
            answer = "".join(part.response or "" for part in server.chunks(text, 1, room))
        except ServerError as error:
            raise UnavailableError(f"Ollama failed at position {p}: {error}.", START) from None
        token = server.tokenizer.encode(answer, special=False, allow_special_tokens=True)
        best[n] = token[0] if len(token) == 1 else -1
    return best
