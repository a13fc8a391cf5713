"""The verbs `generate`, `chat` and `serve`."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

from llama_jax.plumbing.errors import UserError
from llama_jax.plumbing.values import shown
from llama_lab import interruption
from llama_lab.cli import options
from llama_lab.cli.common import show, tell, tell_requantised
from llama_lab.cli.options import Sampling, argument, flag, option, verb

SHORT = 256  # tokens of an answer too short to pay back slow huge pages
SCHEMA = 1 << 20  # bytes of a schema
LONGEST = 16 << 20  # bytes of a prompt from standard input


def without_kept() -> Any:
    return flag("Neither read nor write compiled programs in the user's cache.")


@verb("`llama-jax generate 'Why is the sky blue?' --placement loop --max-new-tokens 64`")
class Generate:
    """Answer one prompt."""

    prompt: str | None = argument(None, "The question; `-` reads standard input.")
    token_ids: str | None = option(None, "The prompt as token ids, such as 1,2,3.")
    allow_special_tokens: bool = flag("Treat text in the prompt that spells a special token as that token.")
    no_chat: bool = flag("Continue the text itself, without a chat template.")
    model: str = options.model()
    placement: str | None = options.placement(None)
    max_new_tokens: int = options.new_tokens(128)
    sampling: Sampling
    seed: int = options.seed()
    ignore_eos: bool = flag("Continue past the end of the answer.")
    schema: str | None = option(None, "File with the JSON schema that the answer follows; `json` for any object.")
    dtype: str | None = options.dtype()
    no_keep: bool = without_kept()
    json: bool = options.as_json()

    def run(self) -> dict | None:
        interruption.at_once()
        began = time.perf_counter()
        import numpy as np

        import llama_jax as ll
        from llama_jax import chat, render
        from llama_jax.decoding.request import check_seeds
        from llama_jax.generate import cut, stream
        from llama_jax.plumbing import memory
        from llama_jax.tokenizer import Numbers

        sampler = self.sampling.sampler
        check_seeds(self.seed, 1)
        schema = self.read_schema()
        imported, prompt, asked = time.perf_counter(), self.read_prompt(), time.perf_counter()
        if isinstance(prompt, str) and not self.no_chat:
            chat.start_early()
        with memory.for_a_short_answer() if self.max_new_tokens <= SHORT else contextlib.nullcontext():
            loaded, placed = opened(self.model, self.placement, self.dtype)
        read, ids, encoded = time.perf_counter(), self.encoded(loaded, prompt), time.perf_counter()
        grammar = None if schema is None else ll.grammar(schema, loaded)
        tell_requantised(loaded.origin, [placed], self.dtype)
        (engine, told), tokenizer = built(loaded, placed, not self.no_keep), loaded.tokenizer
        start = time.perf_counter() - (encoded - read)  # a mistake in the prompt is told before the weights are packed
        before = ("import", imported - began), ("load", start - asked)
        stop = () if self.ignore_eos or tokenizer is None else tokenizer.stop
        how = dict(sampler=sampler, seeds=self.seed, stop=stop, grammar=grammar)
        blocks = stream(engine, [ids], self.max_new_tokens, **how)
        if not self.json and tokenizer is not None:
            view = render.show(blocks, tokenizer, start=start, before=before)
            told()
            self.tell_if_cut(view.token_ids, stop)
            return None
        *_, view = render.watch(blocks, Numbers(), start)  # the text is decoded once, at the end
        told()
        answer = cut(np.array(view.token_ids), stop)
        self.tell_if_cut(answer.token_ids, stop)
        if not self.json:
            print(*answer.token_ids)
        return {
            "model": self.model, "placement": placed.name, "prompt_token_ids": ids,
            "token_ids": list(answer.token_ids), "text": tokenizer.decode(answer.token_ids) if tokenizer else None,
            "finish_reason": answer.finish_reason, **{f"{name}_ms": seconds * 1e3 for name, seconds in before},
            "ttft_ms": view.ttft * 1e3, "ttft_compile_ms": view.compiling[0] * 1e3,
            "compile_ms": sum(view.compiling) * 1e3, "kept_programs_ms": sum(view.keeping) * 1e3,
            "warm_tokens": view.warm[0], "tokens_per_second": view.tokens_per_second,
            "note": "tokens_per_second is of the warm_tokens: no program was compiled, read or written in their steps",
        }  # fmt: skip

    def read_schema(self) -> dict | str | None:
        """The schema that the answer follows. Raises UserError."""
        if self.schema is not None and self.ignore_eos:
            raise UserError("--ignore-eos continues past the answer's end, where no JSON may follow; leave it out.")
        if self.schema is None or self.schema == "json":
            return self.schema
        from llama_jax.plumbing import boundary  # here: it takes longer to import than other answers wait

        try:
            return boundary.read(dict, boundary.load(Path(self.schema), SCHEMA), self.schema)
        except FileNotFoundError:
            raise UserError(f"--schema is {shown(self.schema)}; there is no such file.") from None

    def tell_if_cut(self, ids: Sequence[int], stop: Collection[int]) -> None:
        if self.schema is not None and (not ids or ids[-1] not in stop):
            tell(f"--max-new-tokens {self.max_new_tokens} cut the answer, so it is no complete JSON")

    def read_prompt(self) -> str | list[int]:
        """The prompt as text or as ids. Raises UserError for neither, both, or ids that are not numbers."""
        if (self.prompt is None) == (self.token_ids is None):
            raise UserError("Give either a prompt or --token-ids.")
        if self.token_ids is None:
            text = read_input() if self.prompt == "-" else self.prompt
            if not text.strip():
                raise UserError("The prompt is empty; give some text.")
            return text
        try:
            return [int(i) for i in self.token_ids.split(",")]
        except ValueError:
            raise UserError(
                f"--token-ids is {shown(self.token_ids)}; write whole numbers separated by commas, such as 1,2,3."
            ) from None

    def encoded(self, loaded, prompt: str | list[int]) -> list[int]:
        """Token ids of a prompt, in the chat template unless the text itself is to be continued."""
        from llama_jax import chat

        if isinstance(prompt, list):
            return prompt
        if loaded.tokenizer is None:
            raise UserError(f"{loaded.name} has no tokenizer; give --token-ids.")
        if self.no_chat:
            return loaded.tokenizer.encode(prompt, allow_special_tokens=self.allow_special_tokens)
        return chat.encode(loaded.tokenizer, chat.ask(prompt), self.allow_special_tokens)


def opened(model: str, placement: str | None, dtype: str | None = None, otherwise: str = "step") -> tuple[Any, Any]:
    """(the loaded model, its placement). Without a name, `step+fused` if kernels can read the file's blocks, otherwise
    `otherwise`."""
    from llama_jax.checkpoint import find
    from llama_jax.engine import load, usual
    from llama_jax.placement import parse

    placed = parse(placement or otherwise)  # a wrong name is told before anything is opened
    source = find(model)
    if placement is None and dtype is None and (found := usual(source)).kernels != "none":
        placed = found
    return load(source, placed, dtype), placed


def built(loaded, placed, keep: bool) -> tuple[Any, Callable[[], None]]:
    """(engine, a function that reports on standard error where its programs are kept, if there are any)."""
    from llama_jax import kept
    from llama_jax.generate import build

    try:
        store = kept.Store() if keep else None
    except UserError as error:
        tell(f"programs are not kept: {error}")
        store = None
    if store is None:
        return build(loaded, placed), lambda: None

    def told() -> None:
        if line := store.summary:
            tell(f"{line} (--no-keep turns this off)")

    return kept.build(loaded, placed, store), told


def read_input(remedy: str = "give the prompt as an argument") -> str:
    """Standard input as text. Raises UserError if it is not text, or longer than a prompt can be."""
    if sys.stdin is None:
        raise UserError(f"Standard input is closed; {remedy}.")
    content = sys.stdin.buffer.read(LONGEST + 1)
    if len(content) > LONGEST:
        raise UserError(f"Standard input has more than {LONGEST:,} bytes; a prompt is shorter.")
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise UserError(f"Standard input is not UTF-8: {error}.") from None


@verb("`llama-jax chat --temperature 0.7 --top-p 0.9`")
class Chat:
    """Chat with the model; an empty line or Ctrl-D ends the chat."""

    model: str = options.model()
    placement: str | None = options.placement(None)
    system: str | None = option(None, "The system message.")
    max_new_tokens: int = options.new_tokens(512)
    sampling: Sampling
    seed: int = options.seed()
    no_keep: bool = without_kept()

    def run(self) -> None:
        interruption.at_once()
        from rich.console import Console

        from llama_jax import chat, render
        from llama_jax.generate import stream

        sampler = self.sampling.sampler
        loaded, placed = opened(self.model, self.placement)
        if loaded.tokenizer is None:
            raise UserError(f"{self.model} has no tokenizer, so it cannot chat; use `llama-jax generate --token-ids`.")
        tell_requantised(loaded.origin, [placed])
        (engine, told), console = built(loaded, placed, not self.no_keep), Console()
        messages = [{"role": "system", "content": self.system}] if self.system else []
        while question := read_line(console):
            messages.append({"role": "user", "content": question})
            start, stop = time.perf_counter(), loaded.tokenizer.stop
            ids = chat.encode(loaded.tokenizer, messages)
            blocks = stream(engine, [ids], self.max_new_tokens, sampler=sampler, seeds=self.seed, stop=stop)
            view = render.show(blocks, loaded.tokenizer, console, start)
            messages.append({"role": "assistant", "content": view.text})
        told()


def read_line(console) -> str:
    try:
        return console.input("[bold]> [/bold]").strip() if sys.stdin else ""
    except EOFError:
        return ""
    except UnicodeDecodeError as error:
        raise UserError(f"The input is not UTF-8: {error}.") from None


@verb("`llama-jax serve --placement step+fused --slots 4`")
class Serve:
    """Answer Ollama's and OpenAI's clients."""

    model: str = options.model()
    placement: str | None = options.placement(None, options.USUAL_OF_A_SERVER)
    slots: int = option(4, "Requests answered at the same time.")
    context: int | None = option(
        None, "Tokens of a prompt and its answer; by default 2048, or the model's limit if that is lower."
    )
    host: str = option("127.0.0.1", "Address to listen on; any but loopback needs a key.")
    port: int = option(11434, "0 lets the system choose.", min=0, max=65535)
    api_key: str | None = option(
        None, "Key that clients must send. LLAMA_JAX_API_KEY is safer: process lists do not show it."
    )
    dtype: str | None = options.dtype()

    def run(self) -> None:
        interruption.at_once()  # while it loads and compiles; a running server ends in its own way
        from llama_jax.placement import parse
        from llama_lab.serve import process, stepper
        from llama_lab.serve.service import Service, check_slots

        key = self.api_key if self.api_key is not None else os.environ.get("LLAMA_JAX_API_KEY") or None
        if self.placement:
            stepper.check(parse(self.placement))
        process.check_key(self.host, key)
        check_slots(self.slots)
        bound = process.bind(self.host, self.port)
        loaded, placed = opened(self.model, self.placement, self.dtype, otherwise="step+donate")
        tell_requantised(loaded.origin, [placed], self.dtype)
        service = Service(loaded, placed.name, self.slots, self.context)
        tell(f"compiling {self.model} under {placed.name}")
        programs, seconds = service.start()
        address, number = bound.getsockname()[:2]
        at = f"http://{f'[{address}]' if ':' in address else address}:{number}"
        room = f"{self.slots} slots of {service.context} tokens"
        ready = f"{service.about.name} answers at {at}: {room}; {programs} programs compiled in {seconds:.1f} s"
        process.run(service, bound, key, lambda: print(ready, flush=True))


@verb("`llama-jax attack http://127.0.0.1:8080`")
class Attack:
    """Check whether a server's answers depend on other requests: send the same ones alone and among others."""

    url: str = argument(..., "Address of an OpenAI-like server, ours or another.")
    model: str | None = option(None, "Model to ask for; by default the first that the server lists.")
    requests: int = option(24, "Number of requests.", min=2, max=1000)
    tokens: int = option(24, "Tokens of each answer.", min=1, max=4096)
    seed: int = options.seed()
    api_key: str | None = option(None, "Key to send. LLAMA_JAX_API_KEY is safer: process lists do not show it.")
    json: bool = options.as_json()

    def run(self) -> tuple[dict, bool]:
        from llama_lab import attack

        try:
            server = attack.Server(self.url, self.api_key or os.environ.get("LLAMA_JAX_API_KEY") or "")
            bodies = attack.requests_of(self.model or server.model(), self.requests, self.tokens, self.seed)
            entries = attack.attack(server, bodies, self.seed, tell)
        except attack.AttackError as error:
            raise UserError(str(error)) from None
        show(attack.lines(entries), self.json)
        return dict(url=self.url, requests=self.requests, situations=entries), not attack.differs(entries)
