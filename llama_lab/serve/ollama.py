"""Ollama's API (https://github.com/ollama/ollama/blob/main/docs/api.md): its lines and its shapes."""

from __future__ import annotations

import datetime
import time
from collections.abc import AsyncIterator

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from llama_jax import chat
from llama_jax.plumbing.errors import UserError
from llama_lab.serve import logprobs, wire
from llama_lab.serve.answers import Answer, End, unless_gone
from llama_lab.serve.ollama_requests import Asked, Chat, Generate, Named
from llama_lab.serve.service import Service
from llama_lab.serve.wire import Document

VERSION = "0.24.0"  # the release whose API this is


async def running(service: Service, request: Request) -> Response:
    return PlainTextResponse("Ollama is running")


async def version(service: Service, request: Request) -> Response:
    return Document({"version": VERSION})


async def tags(service: Service, request: Request) -> Response:
    return Document({"models": [entry(service)]})


async def ps(service: Service, request: Request) -> Response:
    never = datetime.datetime(2318, 1, 1, tzinfo=datetime.UTC)
    loaded = entry(service) | dict(expires_at=stamp(never), size_vram=0, context_length=service.context)
    del loaded["modified_at"]
    return Document({"models": [loaded]})


async def show(service: Service, request: Request, asked: Named) -> Response:
    service.check_model(asked.model or asked.name)
    about = service.about
    document = dict(
        modelfile=f"# made by llama-jax serve\nFROM {about.name}\n",
        template=about.template,
        details=details(service),
        model_info=about.info,
        capabilities=["completion"],
        modified_at=stamp(about.modified),
    )
    return Document(document)


async def absent(service: Service, request: Request) -> Response:
    raise wire.RefusalError(501, f"llama-jax serve holds one model and answers with it; {request.url.path} is not here")


async def converse(service: Service, request: Request, asked: Chat) -> Response:
    """/api/chat"""
    began = time.perf_counter_ns()
    asked.check(service)
    if asked.tools:
        raise UserError(f"{asked.model} does not support tools")
    if any(message.images or message.tool_calls for message in asked.messages):
        raise UserError("This model reads text; send messages without images and tool calls.")
    if not asked.messages:
        return Document(line(asked, message("")) | dict(done=True, done_reason=asked.loads))
    ids = service.conversation([dict(role=m.role, content=m.content) for m in asked.messages])
    return await answered(service, request, asked, ids, began, lambda text: message(text))


async def generate(service: Service, request: Request, asked: Generate) -> Response:
    """/api/generate"""
    began = time.perf_counter_ns()
    asked.check(service)
    if asked.raw and (asked.template or asked.system or asked.context):
        raise UserError("raw mode does not support template, system, or context")
    for name in ("suffix", "template", "images"):
        if getattr(asked, name):
            raise UserError(f"{name} is not supported by this server; leave it out.")
    if not asked.prompt:
        return Document(line(asked, dict(response="")) | dict(done=True, done_reason=asked.loads))
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
    answer = service.answer(
        ids,
        options.num_predict if options.num_predict > 0 else None,
        options.sampler,
        options.seed if options.seed >= 0 else None,
        wire.texts(options.stop),
        asked.logprobs,
    )
    documents = written(answer, asked, began, part, context)
    if asked.stream:
        return wire.lines(documents, answer.job.cancel)
    whole = await unless_gone(request.receive, joined(documents, asked, part))
    if whole and "error" in whole:
        raise wire.RefusalError(500, whole["error"])
    return Document(whole or {})


async def joined(documents: AsyncIterator[dict], asked: Asked, part) -> dict:
    texts, scores, document = [], [], {}
    async for document in documents:
        texts.append(document.get("response", document.get("message", {}).get("content", "")))
        scores += document.get("logprobs", [])
    return document | part("".join(texts)) | (dict(logprobs=scores) if scores else {})


async def written(answer: Answer, asked: Asked, began: int, part, context: list[int] | None) -> AsyncIterator[dict]:
    """The lines of an answer: a piece of text each, and one that ends it."""
    async for piece in answer.pieces():
        if piece.end and piece.end.reason == "error":
            yield {"error": "the request failed; the server's log says why"}
            return
        if piece.text or piece.tokens:
            scores = logprobs.listed(answer.tokenizer, piece.tokens, asked.top_logprobs)
            yield line(asked, part(piece.text)) | (dict(logprobs=scores) if scores else {})
        if piece.end:
            kept = {} if context is None else dict(context=[*context, *piece.end.token_ids])
            ended = dict(done=True, done_reason=piece.end.reason)
            yield line(asked, part("")) | ended | kept | durations(piece.end, began)


def line(asked: Asked, fields: dict) -> dict:
    """A line of an answer that goes on."""
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
