"""Ollama's API (https://github.com/ollama/ollama/blob/main/docs/api.md): what it is asked, its lines and its shapes.

Names and defaults of requests are Ollama's but one: no repetition penalty unless one is asked for. A prompt that has
less room than `num_ctx` asks for is answered where it fits.
"""

from __future__ import annotations

import datetime
import time
from collections.abc import AsyncIterator, Callable
from typing import Annotated, Literal

from pydantic import ConfigDict, Field
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from llama_jax import chat
from llama_jax.plumbing import boundary
from llama_jax.plumbing.errors import UserError
from llama_jax.sampling import SCORED
from llama_lab.serve import fields, logprobs, structure, wire
from llama_lab.serve.answers import Answer, unless_gone
from llama_lab.serve.fields import Ids, Role, Settings, Whole, said
from llama_lab.serve.service import Service
from llama_lab.serve.wire import Document

VERSION = "0.24.0"  # the release whose API this is
NEVER = datetime.datetime(2318, 1, 1, tzinfo=datetime.UTC)
NUMBER = r"([0-9]+\.?[0-9]*|\.[0-9]+)"
KEEP_ALIVE = 'it must be seconds, as a number without quotes (-1: for ever), or a time such as "5m"'
THINK = 'it must be true, false, "high", "medium", "low" or "max"'
DURATION = rf"^([-+]?({NUMBER}(ns|us|µs|μs|ms|s|m|h))+|[-+]?0)$"  # https://pkg.go.dev/time#ParseDuration


class Options(Settings):
    """What is read of `options`; num_predict below 1 is as much as there is room for."""

    model_config = fields.described(known=True)
    temperature: float = 0.8
    top_k: Whole = 40
    top_p: float = 0.9
    num_predict: Whole = -1


class Asked(boundary.Declared):
    """What requests for an answer have in common. Other fields than those declared are `fields.check`'s."""

    model_config = fields.described(True, Options.model_fields)
    model: str = ""
    stream: bool = True
    options: Options = Options()
    think: Annotated[bool | Literal["high", "medium", "low", "max"], said(THINK)] = False
    keep_alive: Annotated[int | float | Annotated[str, Field(pattern=DURATION)], said(KEEP_ALIVE)] | None = None
    format: structure.Format = ""
    logprobs: bool = False
    top_logprobs: Whole = Field(0, ge=0, le=SCORED)

    def check(self, service: Service) -> None:
        """Raises RefusalError, UserError."""
        service.check_model(self.model)
        if self.think:
            raise UserError(f'"{self.model}" does not support thinking')
        if misplaced := next((name for name in self.model_extra if name in Options.model_fields), None):
            raise UserError(f"{misplaced} is a field of options; write it there.")
        fields.check(self.model_extra, self.model, known=True)
        fields.check(self.options.model_extra, self.model, "options.", known=True)

    @property
    def loads(self) -> str:
        """What an empty request is for. The model stays where it is, whatever is asked."""
        if self.keep_alive is None:
            return "load"
        return "load" if any(digit in "123456789" for digit in str(self.keep_alive)) else "unload"


class Message(boundary.Declared):
    model_config = ConfigDict(extra="allow")
    role: Role
    content: str = ""


class Chat(Asked):
    messages: Annotated[list[Message], Field(max_length=10_000, fail_fast=True)] = Field([])

    def ids(self, service: Service) -> list[int]:
        """The conversation's token ids. Where the last message is the assistant's, the answer goes on with it. Raises
        UserError."""
        for i, message in enumerate(self.messages):
            given = {name: value for name, value in message.model_extra.items() if name in fields.OF_MESSAGES}
            fields.check(given, self.model, f"messages.{i}.")
        messages = [dict(role=message.role, content=message.content) for message in self.messages]
        return service.conversation(messages, continue_final_message=messages[-1]["role"] == "assistant")


class Generate(Asked):
    prompt: str = ""
    system: str = ""
    raw: bool = False
    context: Ids = Field([])

    def check(self, service: Service) -> None:
        super().check(service)
        if self.raw and (self.system or self.context):
            raise UserError("raw mode does not support template, system, or context")

    def ids(self, service: Service) -> list[int]:
        """Token ids of the prompt, after those of the context. Raises UserError."""
        if self.raw or service.tokenizer.chat_template is None:
            # raw: the prompt is a template that the client has filled, special tokens and all
            ids = service.tokenizer.encode(self.prompt, special=True, allow_special_tokens=self.raw)
        else:
            ids = service.conversation(chat.ask(self.prompt, self.system or None))
        return [*self.context, *ids]


class Named(boundary.Declared):
    model: str = ""
    name: str = ""
    stream: bool = True


async def running(service: Service, request: Request) -> Response:
    return PlainTextResponse("Ollama is running")


async def version(service: Service, request: Request) -> Response:
    return Document({"version": VERSION})


async def tags(service: Service, request: Request) -> Response:
    return Document({"models": [entry(service)]})


async def ps(service: Service, request: Request) -> Response:
    loaded = entry(service) | dict(expires_at=stamp(NEVER), size_vram=0, context_length=service.context)
    del loaded["modified_at"]
    return Document({"models": [loaded]})


async def show(service: Service, request: Request, asked: Named) -> Response:
    service.check_model(asked.model or asked.name)
    about = service.about
    return Document(
        dict(
            modelfile=f"# made by llama-jax serve\nFROM {about.name}\n",
            template=about.template,
            details=details(service),
            model_info=about.info,
            capabilities=["completion"],
            modified_at=stamp(about.modified),
        )
    )


async def embeds(service: Service, request: Request) -> Response:
    raise wire.RefusalError(400, f"{service.about.name} does not support embeddings")


async def absent(service: Service, request: Request) -> Response:
    raise wire.RefusalError(501, f"llama-jax serve holds one model and answers with it; {request.url.path} is not here")


async def pull(service: Service, request: Request, asked: Named) -> Response:
    """/api/pull: the model that is here has been pulled."""
    name = asked.model or asked.name
    if not service.is_named(name):
        line = f"llama-jax serve holds one model, {service.about.name}, and answers with it; '{name[:200]}' is not here"
        raise wire.RefusalError(404 if name else 400, line)
    success = dict(status="success")

    async def told() -> AsyncIterator[dict]:
        yield success

    return wire.lines(told(), lambda: None) if asked.stream else Document(success)


async def converse(service: Service, request: Request, asked: Chat) -> Response:
    """/api/chat"""
    asked.check(service)
    if not asked.messages:
        return Document(line(asked, message("")) | dict(done=True, done_reason=asked.loads))
    return await answered(service, request, asked, message)


async def generate(service: Service, request: Request, asked: Generate) -> Response:
    """/api/generate"""
    asked.check(service)
    if not asked.prompt:
        return Document(line(asked, dict(response="")) | dict(done=True, done_reason=asked.loads))
    return await answered(service, request, asked, lambda text: dict(response=text), not asked.raw)


async def answered(
    service: Service, request: Request, asked: Asked, part: Callable[[str], dict], goes_on: bool = False
) -> Response:
    """An answer as a stream or in one piece. part(text): its fields in this API. goes_on: with the token ids that a
    later request can give back."""
    began, options = time.perf_counter_ns(), asked.options
    ids = await service.apart(request.state.size, asked.ids, service)
    answer = service.answer(
        ids,
        options.num_predict or -1,
        options.sampler(service.context),
        options.seed,
        options.stops,
        asked.logprobs,
        grammar=await service.grammar(None if asked.format == "" else asked.format),
    )
    context = ids if goes_on else None
    documents = written(answer, asked, began, part, context)
    if asked.stream:
        return wire.lines(documents, answer.job.cancel)
    whole = await unless_gone(request.receive, joined(documents, part))
    if whole and "error" in whole:
        raise wire.RefusalError(500, whole["error"])
    return Document(whole or {})


async def joined(documents: AsyncIterator[dict], part: Callable[[str], dict]) -> dict:
    texts, scores, document = [], [], {}
    async for document in documents:
        texts.append(document.get("response", document.get("message", {}).get("content", "")))
        scores += document.get("logprobs", [])
    return document | part("".join(texts)) | (dict(logprobs=scores) if scores else {})


async def written(
    answer: Answer, asked: Asked, began: int, part: Callable[[str], dict], context: list[int] | None
) -> AsyncIterator[dict]:
    """The lines of an answer: a piece of text each, and one that ends it, with times in ns. load_duration: what passed
    until a slot was free, since the model is always loaded."""
    async for piece in answer.pieces():
        end = piece.end
        if end and end.reason == "error":
            yield {"error": wire.FAILED}
            return
        if piece.text or piece.tokens:
            scores = logprobs.listed(answer.tokenizer, piece.tokens, asked.top_logprobs)
            yield line(asked, part(piece.text)) | (dict(logprobs=scores) if scores else {})
        if end:
            kept = {} if context is None else dict(context=[*context, *end.token_ids])
            counts = dict(
                total_duration=time.perf_counter_ns() - began,
                load_duration=end.queued_ns,
                prompt_eval_count=end.prompt_tokens,
                prompt_eval_duration=end.prompt_ns,
                eval_count=len(end.token_ids),
                eval_duration=end.decode_ns,
            )
            yield line(asked, part("")) | dict(done=True, done_reason=end.reason) | kept | counts


def line(asked: Asked, fields: dict) -> dict:
    """A line of an answer that goes on."""
    return dict(model=asked.model, created_at=stamp()) | fields | dict(done=False)


def message(text: str) -> dict:
    return dict(message=dict(role="assistant", content=text))


def stamp(when: datetime.datetime | None = None) -> str:
    return (when or datetime.datetime.now(datetime.UTC)).isoformat().replace("+00:00", "Z")


def full_name(service: Service) -> str:
    name = service.about.name
    return name if ":" in name else f"{name}:latest"


def details(service: Service) -> dict:
    about = service.about
    size = f"{about.parameters / 1e9:.1f}B" if about.parameters >= 1e9 else f"{about.parameters / 1e6:.2f}M"
    return dict(
        parent_model="",
        format=about.format,
        family=about.family,
        families=[about.family],
        parameter_size=size,
        quantization_level=about.quantisation,
    )


def entry(service: Service) -> dict:
    name, about = full_name(service), service.about
    size = dict(size=about.bytes, digest=about.digest, details=details(service))
    return dict(name=name, model=name, modified_at=stamp(about.modified)) | size
