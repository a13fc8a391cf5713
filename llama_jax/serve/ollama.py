"""Ollama's API (https://github.com/ollama/ollama/blob/main/docs/api.md): its names, its shapes, its defaults but one:
no repetition penalty unless one is asked for.

Options that say how Ollama computes (num_thread, num_gpu, num_batch …) are passed over; those that would change the
text and that we do not have are refused.
"""

from __future__ import annotations

import datetime
import time
from collections.abc import AsyncIterator
from typing import Annotated, Any

from pydantic import Field
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from llama_jax import boundary
from llama_jax.errors import UserError
from llama_jax.model.sampling import Sampler
from llama_jax.request import SEEDS
from llama_jax.serve import wire
from llama_jax.serve.answers import Answer, End, unless_gone
from llama_jax.serve.service import Service
from llama_jax.text import chat

VERSION = "0.24.0"  # the release whose API this is
STOPS = 16  # texts that may end an answer


Stops = str | Annotated[list[str], Field(max_length=STOPS)]


class Options(boundary.Declared):
    """What is read of `options`. A seed below 0 is none; num_predict below 1 is as much as there is room for."""

    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.9
    min_p: float = 0.0
    repeat_penalty: float = 1.0
    seed: int = -1
    num_predict: int = -1
    num_ctx: int = 0
    stop: Stops = Field([])
    typical_p: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    mirostat: int = 0

    def check(self, context: int) -> None:
        """Raises UserError for what is asked for and not here."""
        for name, neutral in (("typical_p", 1), ("presence_penalty", 0), ("frequency_penalty", 0), ("mirostat", 0)):
            if (value := getattr(self, name)) != neutral:
                raise UserError(f"options.{name} is {value:g}, which this server does not have; leave it out.")
        if self.num_ctx > context:
            raise UserError(f"options.num_ctx is {self.num_ctx}; this server's contexts have {context} tokens.")
        if self.seed >= SEEDS:
            raise UserError(f"options.seed is {self.seed}; it must be below {SEEDS}.")

    @property
    def sampler(self) -> Sampler:
        return Sampler(self.temperature, max(self.top_k, 0), self.top_p or 1.0, self.min_p, self.repeat_penalty)


class Asked(boundary.Declared):
    """What requests for an answer have in common."""

    model: str = ""
    stream: bool = True
    options: Options = Options()
    format: Any = None
    think: bool | str = False
    keep_alive: int | float | str | None = None

    def check(self, service: Service) -> None:
        """Raises RefusalError, UserError."""
        service.check_model(self.model)
        if self.format:
            raise UserError("format is not supported: this server does not constrain what is said; leave it out.")
        if self.think:
            raise UserError(f'"{self.model}" does not support thinking')
        self.options.check(service.context)

    @property
    def loads(self) -> str:
        """What an empty request is for. The model stays where it is, whatever is asked."""
        return "unload" if self.keep_alive in (0, "0", "0s") else "load"


class Message(boundary.Declared):
    role: str
    content: str = ""
    images: list = Field([])
    tool_calls: list = Field([])


class Chat(Asked):
    messages: list[Message] = Field([], max_length=10_000)
    tools: list = Field([])


class Generate(Asked):
    prompt: str = ""
    system: str = ""
    raw: bool = False
    suffix: str = ""
    template: str = ""
    images: list = Field([])
    context: list[int] = Field([], max_length=1 << 20)


class Named(boundary.Declared):
    model: str = ""
    name: str = ""


async def running(service: Service, request: Request) -> Response:
    return PlainTextResponse("Ollama is running")


async def version(service: Service, request: Request) -> Response:
    return JSONResponse({"version": VERSION})


async def tags(service: Service, request: Request) -> Response:
    return JSONResponse({"models": [entry(service)]})


async def ps(service: Service, request: Request) -> Response:
    never = datetime.datetime(2318, 1, 1, tzinfo=datetime.UTC)
    loaded = entry(service) | dict(expires_at=stamp(never), size_vram=0, context_length=service.context)
    del loaded["modified_at"]
    return JSONResponse({"models": [loaded]})


async def show(service: Service, request: Request) -> Response:
    asked = await wire.read(request, Named)
    service.check_model(asked.model or asked.name)
    about = service.about
    found = dict(
        modelfile=f"# made by llama-jax serve\nFROM {about.name}\n",
        template=about.template,
        details=details(service),
        model_info=about.info,
        capabilities=["completion"],
        modified_at=stamp(about.modified),
    )
    return JSONResponse(found)


async def absent(service: Service, request: Request) -> Response:
    raise wire.RefusalError(501, f"llama-jax serve holds one model and answers with it; {request.url.path} is not here")


async def converse(service: Service, request: Request) -> Response:
    """/api/chat"""
    began, asked = time.perf_counter_ns(), await wire.read(request, Chat)
    asked.check(service)
    if asked.tools:
        raise UserError(f"{asked.model} does not support tools")
    if any(message.images or message.tool_calls for message in asked.messages):
        raise UserError("This model reads text; send messages without images and tool calls.")
    if not asked.messages:
        return JSONResponse(said(asked, message("")) | dict(done=True, done_reason=asked.loads))
    ids = service.conversation([dict(role=m.role, content=m.content) for m in asked.messages])
    return await answered(service, request, asked, ids, began, lambda text: message(text))


async def generate(service: Service, request: Request) -> Response:
    """/api/generate"""
    began, asked = time.perf_counter_ns(), await wire.read(request, Generate)
    asked.check(service)
    if asked.raw and (asked.template or asked.system or asked.context):
        raise UserError("raw mode does not support template, system, or context")
    for name in ("suffix", "template", "images"):
        if getattr(asked, name):
            raise UserError(f"{name} is not supported by this server; leave it out.")
    if not asked.prompt:
        return JSONResponse(said(asked, dict(response="")) | dict(done=True, done_reason=asked.loads))
    if asked.raw or service.tokenizer.chat_template is None:
        # raw: the prompt is a template that the client has filled, special tokens and all
        ids = service.tokenizer.encode(asked.prompt, special=True, allow_special_tokens=asked.raw)
    else:
        ids = service.conversation(chat.ask(asked.prompt, asked.system or None))
    context = None if asked.raw else [*asked.context, *ids]
    return await answered(
        service, request, asked, [*asked.context, *ids], began, lambda text: dict(response=text), context
    )


async def answered(
    service: Service, request: Request, asked: Asked, ids: list[int], began: int, part, context: list[int] | None = None
) -> Response:
    """An answer as a stream or in one piece. part(text): its fields in this API. context: what a later request gives
    back, where it can."""
    options = asked.options
    stops = [options.stop] if isinstance(options.stop, str) else options.stop
    answer = service.answer(
        ids,
        options.num_predict if options.num_predict > 0 else None,
        options.sampler,
        options.seed if options.seed >= 0 else None,
        stops,
    )
    documents = written(answer, asked, began, part, context)
    if asked.stream:
        return wire.lines(documents, answer.job.cancel)
    whole = await unless_gone(request.receive, joined(documents, asked, part))
    if whole and "error" in whole:
        raise wire.RefusalError(500, whole["error"])
    return JSONResponse(whole or {})


async def joined(documents: AsyncIterator[dict], asked: Asked, part) -> dict:
    texts, document = [], {}
    async for document in documents:
        texts.append(document.get("response", document.get("message", {}).get("content", "")))
    return document | part("".join(texts))


async def written(answer: Answer, asked: Asked, began: int, part, context: list[int] | None) -> AsyncIterator[dict]:
    """The lines of an answer: a piece of text each, and one that ends it."""
    async for piece in answer.pieces():
        if piece.end and piece.end.reason == "error":
            yield {"error": "the request failed; the server's log says why"}
            return
        if piece.text:
            yield said(asked, part(piece.text))
        if piece.end:
            kept = {} if context is None else dict(context=[*context, *piece.end.token_ids])
            ended = dict(done=True, done_reason=piece.end.reason)
            yield said(asked, part("")) | ended | kept | durations(piece.end, began)


def said(asked: Asked, fields: dict) -> dict:
    return dict(model=asked.model, created_at=stamp()) | fields | dict(done=False)


def message(text: str) -> dict:
    return dict(message=dict(role="assistant", content=text))


def durations(end: End, began: int) -> dict:
    """Times in ns. load_duration: what passed until a slot was free, since the model is always loaded."""
    return dict(
        total_duration=time.perf_counter_ns() - began,
        load_duration=end.queued_ns,
        prompt_eval_count=end.prompt_tokens,
        prompt_eval_duration=end.prompt_ns,
        eval_count=len(end.token_ids),
        eval_duration=end.decode_ns,
    )


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
    return dict(
        name=name,
        model=name,
        modified_at=stamp(about.modified),
        size=about.bytes,
        digest=about.digest,
        details=details(service),
    )
