"""Ollama's API (https://github.com/ollama/ollama/blob/main/docs/api.md): what it is asked, its lines and its shapes.

Names and defaults of requests are Ollama's but one: no repetition penalty unless one is asked for. Options that say how
Ollama computes (num_thread, num_gpu, num_batch …) are passed over; those that would change the text and that we do not
have are refused.
"""

from __future__ import annotations

import datetime
import time
from collections.abc import AsyncIterator, Callable
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from llama_jax import chat
from llama_jax.decoding.request import SEEDS
from llama_jax.plumbing import boundary
from llama_jax.plumbing.errors import UserError
from llama_jax.sampling import SCORED, Sampler
from llama_lab.serve import logprobs, wire
from llama_lab.serve.answers import Answer, unless_gone
from llama_lab.serve.service import Service
from llama_lab.serve.wire import Document, Role, Stops

VERSION = "0.24.0"  # the release whose API this is
NEVER = datetime.datetime(2318, 1, 1, tzinfo=datetime.UTC)
NUMBER = r"([0-9]+\.?[0-9]*|\.[0-9]+)"
DURATION = rf"^([-+]?({NUMBER}(ns|us|µs|μs|ms|s|m|h))+|[-+]?0)$"  # https://pkg.go.dev/time#ParseDuration
# options that we do not have: the value that asks for nothing
MISSING = {"typical_p": 1, "presence_penalty": 0, "frequency_penalty": 0, "mirostat": 0}


def whole(value: Any) -> Any:
    """A number such as 4.0 is whole too, as clients write it whose language has but one kind of number."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


Whole = Annotated[int, BeforeValidator(whole)]


class Options(boundary.Declared):
    """What is read of `options`. A seed below 0 is none; num_predict below 1 is as much as there is room for."""

    temperature: float = 0.8
    top_k: Whole = 40
    top_p: float = 0.9
    min_p: float = 0.0
    repeat_penalty: float = 1.0
    seed: Whole = -1
    num_predict: Whole = -1
    num_ctx: Whole = 0
    stop: Stops = Field([])
    typical_p: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    mirostat: Whole = 0

    def check(self, context: int) -> None:
        """Raises UserError for what is asked for and not here."""
        for name, neutral in MISSING.items():
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
    think: bool | Literal["high", "medium", "low", "max"] = False
    keep_alive: int | float | Annotated[str, Field(pattern=DURATION)] | None = None
    logprobs: bool = False
    top_logprobs: int = Field(0, ge=0, le=SCORED)

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
        if self.keep_alive is None:
            return "load"
        return "load" if any(digit in "123456789" for digit in str(self.keep_alive)) else "unload"


class Message(boundary.Declared):
    role: Role
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


async def absent(service: Service, request: Request) -> Response:
    raise wire.RefusalError(501, f"llama-jax serve holds one model and answers with it; {request.url.path} is not here")


async def converse(service: Service, request: Request, asked: Chat) -> Response:
    """/api/chat. Where the last message is the assistant's, the answer goes on with it."""
    began = time.perf_counter_ns()
    asked.check(service)
    if asked.tools:
        raise UserError(f"{asked.model} does not support tools")
    if any(message.images or message.tool_calls for message in asked.messages):
        raise UserError("This model reads text; send messages without images and tool calls.")
    if not asked.messages:
        return Document(line(asked, message("")) | dict(done=True, done_reason=asked.loads))
    messages = [dict(role=m.role, content=m.content) for m in asked.messages]
    ids = service.conversation(messages, continue_final_message=messages[-1]["role"] == "assistant")
    return await answered(service, request, asked, ids, began, message)


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
    ids = [*asked.context, *ids]
    context = None if asked.raw else ids
    return await answered(service, request, asked, ids, began, lambda text: dict(response=text), context)


async def answered(
    service: Service,
    request: Request,
    asked: Asked,
    ids: list[int],
    began: int,
    part: Callable[[str], dict],
    context: list[int] | None = None,
) -> Response:
    """An answer as a stream or in one piece. part(text): its fields in this API. context: what a later request gives
    back, where it can."""
    options = asked.options
    most, seed = options.num_predict, options.seed
    answer = service.answer(
        ids,
        most if most > 0 else None,
        options.sampler,
        seed if seed >= 0 else None,
        wire.texts(options.stop),
        asked.logprobs,
    )
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
