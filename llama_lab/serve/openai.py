"""OpenAI's API (https://platform.openai.com/docs/api-reference): models, chat completions and completions. A completion
continues its prompt as it stands, without a chat template."""

from __future__ import annotations

import itertools
import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from llama_jax.plumbing import boundary
from llama_jax.plumbing.errors import UserError
from llama_jax.sampling import SCORED, Sampler
from llama_lab.serve import logprobs, wire
from llama_lab.serve.answers import Answer, End, Token, unless_gone
from llama_lab.serve.ollama import full_name
from llama_lab.serve.service import Service
from llama_lab.serve.wire import Role, Stops

numbers = itertools.count(1)  # of answers, for their ids


class StreamOptions(boundary.Declared):
    include_usage: bool = False


class Neutral(tuple):
    """Beside a field that is not supported: the values that ask for nothing."""


class Asked(boundary.Declared):
    """What requests for an answer have in common."""

    model: str = ""
    stream: bool = False
    stream_options: StreamOptions = StreamOptions()
    temperature: float = 1.0
    top_p: float = 1.0
    seed: int | None = Field(None, ge=0, lt=1 << 32)
    stop: Stops = Field([])
    max_tokens: int | None = Field(None, ge=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    n: Annotated[Any, Neutral([1])] = None
    best_of: Annotated[Any, Neutral([1])] = None
    echo: Annotated[Any, Neutral([False])] = None
    suffix: Annotated[Any, Neutral([""])] = None
    presence_penalty: Annotated[Any, Neutral([0, 0.0])] = None
    frequency_penalty: Annotated[Any, Neutral([0, 0.0])] = None
    logit_bias: Annotated[Any, Neutral([{}])] = None
    tools: Annotated[Any, Neutral([[]])] = None
    functions: Annotated[Any, Neutral([[]])] = None
    response_format: Annotated[Any, Neutral([{"type": "text"}])] = None
    modalities: Annotated[Any, Neutral([["text"]])] = None

    def check(self, service: Service) -> None:
        """Raises RefusalError, UserError."""
        service.check_model(self.model)
        for name, field in type(self).model_fields.items():
            value = getattr(self, name)
            neutral = next((beside for beside in field.metadata if isinstance(beside, Neutral)), None)
            if neutral and value is not None and not any(type(value) is type(x) and value == x for x in neutral):
                raise UserError(f"{name} is not supported by this server; leave it out.")


class Part(boundary.Declared):
    type: Literal["text"]
    text: str


class Message(boundary.Declared):
    """prefix, partial: on the last message, that the answer goes on with it, as DeepSeek's, Mistral's and Qwen's
    clients say."""

    role: Role
    content: str | list[Part]
    prefix: bool = False
    partial: bool = False

    @property
    def plain(self) -> dict[str, str]:
        text = self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)
        return dict(role="system" if self.role == "developer" else self.role, content=text)


class Chat(Asked):
    messages: list[Message] = Field(min_length=1, max_length=10_000)
    logprobs: bool = False
    top_logprobs: int = Field(0, ge=0, le=SCORED)
    continue_final_message: bool = False
    add_generation_prompt: bool | None = None
    chat_template: Annotated[Any, Neutral([""])] = None
    chat_template_kwargs: Annotated[Any, Neutral([{}])] = None
    documents: Annotated[Any, Neutral([[]])] = None

    def check(self, service: Service) -> None:
        super().check(service)
        if any(message.prefix or message.partial for message in self.messages[:-1]):
            raise UserError("prefix and partial are for the last message, which the answer goes on with.")
        if self.continues and self.add_generation_prompt:
            raise UserError("add_generation_prompt opens a new turn, continue_final_message none; send one of them.")
        if self.top_logprobs and not self.logprobs:
            raise UserError("top_logprobs is given without logprobs; set logprobs to true.")

    @property
    def scored(self) -> bool:
        return self.logprobs

    @property
    def continues(self) -> bool:
        """Whether the answer goes on with the last message."""
        return self.continue_final_message or self.messages[-1].prefix or self.messages[-1].partial


class Completion(Asked):
    prompt: str | list[int] | list[str]
    logprobs: int | None = Field(None, ge=0, le=5)

    @property
    def scored(self) -> bool:
        """Whether log probabilities are wanted, be it of the drawn tokens alone."""
        return self.logprobs is not None

    def ids(self, tokenizer) -> list[int]:
        """Raises UserError for several prompts."""
        prompt = self.prompt
        if isinstance(prompt, list) and all(isinstance(each, int) for each in prompt):
            return prompt
        if isinstance(prompt, list) and len(prompt) != 1:
            raise UserError(f"prompt has {len(prompt)} texts; send one a request.")
        return tokenizer.encode(prompt if isinstance(prompt, str) else prompt[0])


async def models(service: Service, request: Request) -> Response:
    return JSONResponse(dict(object="list", data=[entry(service)]))


async def model(service: Service, request: Request) -> Response:
    service.check_model(request.path_params["model"])
    return JSONResponse(entry(service))


def entry(service: Service) -> dict:
    created = int(service.about.modified.timestamp())
    return dict(id=full_name(service), object="model", created=created, owned_by="library")


async def absent(service: Service, request: Request) -> Response:
    raise wire.RefusalError(501, f"llama-jax serve answers chats and completions; {request.url.path} is not here")


async def converse(service: Service, request: Request, asked: Chat) -> Response:
    """/v1/chat/completions"""
    asked.check(service)
    how = dict(answer=asked.add_generation_prompt is not False, continue_final_message=asked.continues)
    ids = service.conversation([message.plain for message in asked.messages], **how)
    head = dict(id=f"chatcmpl-{next(numbers)}", object="chat.completion", created=int(time.time()), model=asked.model)

    def choice(text: str, reason: str | None, streamed: bool, tokens: Sequence[Token]) -> dict:
        fields = {"delta" if streamed else "message": dict(role="assistant", content=text)}
        if asked.scored:
            fields["logprobs"] = logprobs.content(service.tokenizer, tokens, asked.top_logprobs)
        return dict(index=0, **fields, finish_reason=reason)

    return await answered(service, request, asked, ids, head, choice)


async def complete(service: Service, request: Request, asked: Completion) -> Response:
    """/v1/completions"""
    asked.check(service)
    ids = asked.ids(service.tokenizer)
    head = dict(id=f"cmpl-{next(numbers)}", object="text_completion", created=int(time.time()), model=asked.model)

    def choice(text: str, reason: str | None, streamed: bool, tokens: Sequence[Token]) -> dict:
        fields = dict(text=text, index=0)
        if asked.scored:
            before = len(service.tokenizer.decode(ids))
            fields["logprobs"] = logprobs.columns(service.tokenizer, tokens, asked.logprobs, before)
        return fields | dict(finish_reason=reason)

    return await answered(service, request, asked, ids, head, choice)


async def answered(
    service: Service, request: Request, asked: Chat | Completion, ids: list[int], head: dict, choice: Callable
) -> Response:
    """An answer as events or in one piece. choice(text, reason, streamed, tokens): the choice in this API."""
    wanted = asked.max_completion_tokens or asked.max_tokens
    sampler = Sampler(asked.temperature, top_p=asked.top_p or 1.0)
    answer = service.answer(ids, wanted, sampler, asked.seed, wire.texts(asked.stop), asked.scored)
    head["system_fingerprint"] = "llama-jax"
    if asked.stream:
        return wire.events(chunks(answer, asked, head, choice), answer.job.cancel)
    return JSONResponse(await unless_gone(request.receive, whole(answer, head, choice)) or {})


async def whole(answer: Answer, head: dict, choice: Callable) -> dict:
    """Raises RefusalError where the request failed."""
    text, tokens = "", []
    async for piece in answer.pieces():
        text += piece.text
        tokens += piece.tokens
    if piece.end.reason == "error":
        raise wire.RefusalError(500, wire.FAILED)
    return head | dict(choices=[choice(text, piece.end.reason, False, tokens)], usage=usage(piece.end))


async def chunks(answer: Answer, asked: Asked, head: dict, choice: Callable) -> AsyncIterator[dict]:
    if head["object"] == "chat.completion":
        head["object"] = "chat.completion.chunk"
    async for piece in answer.pieces():
        if piece.end and piece.end.reason == "error":
            yield wire.error("/v1/", wire.FAILED, 500)
            return
        if piece.text or piece.tokens:
            yield head | dict(choices=[choice(piece.text, None, True, piece.tokens)])
        if piece.end:
            yield head | dict(choices=[choice("", piece.end.reason, True, ())])
            if asked.stream_options.include_usage:
                yield head | dict(choices=[], usage=usage(piece.end))


def usage(end: End) -> dict:
    made = len(end.token_ids)
    return dict(prompt_tokens=end.prompt_tokens, completion_tokens=made, total_tokens=end.prompt_tokens + made)
