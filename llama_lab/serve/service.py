"""One model, ready to answer."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import itertools
import json
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import numpy as np

from llama_jax import chat, model
from llama_jax.checkpoint import Checkpoint
from llama_jax.decoding.request import SEEDS, token_ids
from llama_jax.generate import build
from llama_jax.grammars import Grammar
from llama_jax.placement import parse
from llama_jax.plumbing.errors import UserError
from llama_jax.sampling import Sampler
from llama_jax.tokenizer import Numbers
from llama_lab.bench.guard import Guard
from llama_lab.serve import rows, stepper, structure
from llama_lab.serve.answers import Answer
from llama_lab.serve.batcher import Batcher, FullError, Job
from llama_lab.serve.metrics import Metrics
from llama_lab.serve.tokens import Bounded
from llama_lab.serve.wire import RefusalError

T = TypeVar("T")
QUEUE = 64  # requests that may wait
MOST_SLOTS = 64
LONG = 1 << 16  # bytes of a body from which on its text takes longer than a step
RETRY_S = 1  # after which a client that met a full queue may try again


class About:
    """What the APIs tell of the model."""

    def __init__(self, loaded: Checkpoint, params: model.Model):
        config, path, named = loaded.config, Path(loaded.source), Path(loaded.name)
        status = path.stat() if path.is_file() else None
        is_path = named.suffix == ".gguf" or named.is_dir()
        self.name = (named.stem if named.suffix == ".gguf" else named.name) if is_path else loaded.name
        self.family, self.parameters = config.model_type, config.num_parameters
        self.format = "gguf" if path.suffix == ".gguf" else "safetensors"
        self.quantisation, self.digest = model.kinds(params).upper(), loaded.weights_hash
        self.bytes = status.st_size if status else 4 * config.num_parameters
        self.modified = datetime.datetime.fromtimestamp(status.st_mtime if status else time.time(), datetime.UTC)
        self.template = getattr(loaded.tokenizer, "chat_template", None) or ""
        sizes = {
            "attention.head_count": config.num_attention_heads,
            "attention.head_count_kv": config.num_key_value_heads,
            "block_count": config.num_hidden_layers,
            "context_length": config.max_position_embeddings,
            "embedding_length": config.hidden_size,
            "feed_forward_length": config.intermediate_size,
            "rope.freq_base": config.rope_theta,
            "vocab_size": config.vocab_size,
        }
        self.info = {"general.architecture": self.family, "general.parameter_count": self.parameters}
        self.info |= {f"{self.family}.{name}": size for name, size in sizes.items()}


def check_slots(slots: int) -> None:
    """Raises UserError."""
    if not 1 <= slots <= MOST_SLOTS:
        raise UserError(f"--slots is {slots}; it must be 1 to {MOST_SLOTS}.")


class Service:
    """A checkpoint under a placement, in slots. `start` compiles; until then nothing is answered. sizes: of pieces of
    prompt, as `stepper.Stepper` has them."""

    def __init__(
        self,
        loaded: Checkpoint,
        placement: str,
        slots: int,
        context: int | None = None,
        queue: int = QUEUE,
        sizes: tuple[int, ...] = stepper.SIZES,
    ):
        check_slots(slots)
        engine = build(loaded, stepper.check(parse(placement)))
        self.context = context or min(2048, loaded.config.max_position_embeddings)
        self.stepper = rows.build(engine, self.context, slots, sizes)
        self.tokenizer = Bounded.of(loaded.tokenizer, self.context) if loaded.tokenizer else Numbers()
        self.about, self.metrics, self.guard = About(loaded, engine.params), Metrics(), Guard()
        self.batcher = Batcher(self.stepper, slots, queue, self.metrics)
        self.watching = contextlib.ExitStack()  # the guard, from the first request to the last
        self.seeds = itertools.count()  # of requests that name none
        self.long, self.schemas = ThreadPoolExecutor(1, "long"), ThreadPoolExecutor(1, "schemas")
        self.compiled = structure.compiler(self.tokenizer, loaded.config.vocab_size)

    def start(self) -> tuple[int, float]:
        """Compile, then answer: (programs compiled, seconds)."""
        began = time.perf_counter()
        with Guard() as compiling:
            self.stepper.warm()
        seconds = time.perf_counter() - began
        self.metrics.programs.set(compiling.compilations)
        self.metrics.warm_seconds.set(seconds)
        self.watching.enter_context(self.guard)
        self.metrics.compilations.set_function(lambda: self.guard.count("backend"))
        self.batcher.start()
        return compiling.compilations, seconds

    def close(self) -> None:
        self.batcher.close()
        self.watching.close()
        self.long.shutdown(wait=False)
        self.schemas.shutdown(wait=False)

    async def apart(self, size: int, work: Callable[..., T], *arguments) -> T:
        """What `work` returns, computed in a thread, so that the event loop goes on. Long bodies share one, so that
        others find one that is free. size: bytes of the request's body."""
        return await asyncio.get_running_loop().run_in_executor(self.long if size > LONG else None, work, *arguments)

    async def grammar(self, wanted: dict | str | None) -> Grammar | None:
        """What an answer must be, compiled in a thread of its own. Raises UserError."""
        if wanted is None:
            return None
        return await asyncio.get_running_loop().run_in_executor(self.schemas, self.compiled, json.dumps(wanted))

    def check_model(self, name: str) -> None:
        """Raises RefusalError where another model is asked for; letters may be capital or not."""
        if not name:
            raise RefusalError(400, "model is required")
        if not self.is_named(name):
            raise RefusalError(404, f"model '{name[:200]}' not found")

    def is_named(self, name: str) -> bool:
        """Whether a name is the model's, as it is here or as Ollama's registry would have it."""
        asked = name.strip().lower().removeprefix("registry.ollama.ai/").removeprefix("library/")
        return asked.removesuffix(":latest") == self.about.name.strip().lower().removesuffix(":latest")

    def conversation(self, messages: Sequence[dict[str, str]], **how: bool) -> list[int]:
        """Token ids of messages; special tokens that their texts spell are text. how: as for `chat.encode`. Raises
        UserError."""
        chat.template_of(self.tokenizer, "send a prompt to be continued instead")
        return chat.encode(self.tokenizer, messages, **how)

    def answer(
        self,
        ids: Sequence[int],
        new_tokens: int,
        sampler: Sampler,
        seed: int,
        stops: Sequence[str],
        scored: bool = False,
        stop: Collection[int] | None = None,
        grammar: Grammar | None = None,
        echo: str | None = None,
    ) -> Answer:
        """A request on its way. new_tokens: below 0 for as many as there is room for. seed: -1 for none. scored: with
        log probabilities. stop: tokens that end it, by default the model's own. grammar: what the answer must be.
        echo: the prompt's text, if the answer begins with it.

        Raises RefusalError, UserError.
        """
        if not len(ids):
            raise UserError("The prompt is empty; give at least one token.")
        if len(ids) >= self.context:
            raise UserError(f"The prompt has {len(ids)} tokens; this server's contexts have {self.context}, send less.")
        token_ids(ids, self.stepper.engine.config.vocab_size)
        scores_prompt = scored and echo is not None and len(ids) > 1
        if scores_prompt and not self.stepper.scores_prompts:
            raise UserError("echo with logprobs needs a cache, and this server's placement has none; leave echo out.")
        room = self.context - len(ids)
        request = dict(
            ids=list(ids),
            new_tokens=min(new_tokens, room) if new_tokens >= 0 else room,
            sampler=replace(sampler.traced(), scored=np.bool_(scored)),
            seed=(next(self.seeds) if seed == -1 else seed) % SEEDS,
            stop=frozenset(self.tokenizer.stop if stop is None else stop),
            walker=grammar and grammar.host(),
            scores_prompt=scores_prompt,
        )
        return Answer(self.tokenizer, self.submit, stops, echo, **request)

    def submit(self, job: Job) -> None:
        try:
            self.batcher.submit(job)
        except FullError:
            self.metrics.refused.inc()
            line = "server busy, please try again. maximum pending requests exceeded"
            raise RefusalError(503, line, {"Retry-After": str(RETRY_S)}) from None
