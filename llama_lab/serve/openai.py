"""OpenAI's API (https://platform.openai.com/docs/api-reference): models, chat completions and completions. A completion
continues its prompt as it stands, without a chat template. Fields that vLLM and llama.cpp have beside OpenAI's are read
where the sampler has them, too."""

from __future__ import annotations

import itertools
import time
from collections.abc import AsyncIterator, Sequence
from typing import Annotated, ClassVar, Literal, NamedTuple

from pydantic import AfterValidator, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from llama_jax.plumbing import boundary
from llama_jax.plumbing.errors import UserError
from llama_jax.sampling import SCORED, Sampler
from llama_lab.serve import fields, logprobs, structure, wire
from llama_lab.serve.answers import Answer, Piece, Token, unless_gone
from llama_lab.serve.fields import Ids, Role, Settings, Whole, said
from llama_lab.serve.ollama import full_name
from llama_lab.serve.service import Service
from llama_lab.serve.stepper import LIKELY

PROMPTS = 64  # of one request
numbers = itertools.count(1)  # of answers, for their ids


def some(value: int) -> int:
    if value == 0 or value < -1:
        raise ValueError("it must be 1 or more, or -1 for as many as there is room for")
    return value


Most = Annotated[Whole, AfterValidator(some)]  # tokens of an answer


class StreamOptions(boundary.Declared):
    include_usage: bool = False
    continuous_usage_stats: bool = False


class Asked(Settings, structure.Asked):
    """What requests for an answer have in common. Other fields than those declared are `fields.check`'s.

    opening, closing: what the first event and the last have in place of text.
    """

    model_config = fields.described(known=False)
    object: ClassVar[str]
    opening: ClassVar[tuple[dict, ...]] = ()
    closing: ClassVar[dict] = dict(text="")
    model: str = ""
    stream: bool = False
    stream_options: StreamOptions = StreamOptions()
    repetition_penalty: float = 1.0
    stop_token_ids: Ids = Field([])
    ignore_eos: bool = False
    max_tokens: Most | None = None
    max_completion_tokens: Most | None = None

    @property
    def most(self) -> int:
        """Tokens of the answer, -1 for as many as there is room for."""
        return next((most for most in (self.max_completion_tokens, self.max_tokens) if most is not None), -1)

    def check(self, service: Service) -> None:
        """Raises RefusalError, UserError."""
        service.check_model(self.model)
        given = self.model_extra
        fields.check(given | dict(tools=[]) if given.get("tool_choice") == "none" else given, self.model)
        if self.wanted is not None and self.ignore_eos:
            raise UserError("ignore_eos goes on after the answer's end, where no JSON may follow; leave it out.")

    def sampler(self, context: int) -> Sampler:
        """As `Settings.sampler`: vLLM's penalty is llama.cpp's by another name."""
        if 1 not in (self.repetition_penalty, self.repeat_penalty) and self.repetition_penalty != self.repeat_penalty:
            raise UserError("repetition_penalty and repeat_penalty are two names of one penalty; send one of them.")
        penalty = self.repeat_penalty if self.repetition_penalty == 1 else self.repetition_penalty
        return Settings.sampler(self.model_copy(update=dict(repeat_penalty=penalty)), context)

    def echoed(self, service: Service, i: int, ids: list[int]) -> str | None:
        """The text of a prompt that the answer begins with."""
        return None

    def choice(self, index: int, part: dict, logs: dict | None = None, reason: str | None = None) -> dict:
        return dict(index=index) | part | (dict(logprobs=logs) if self.scored else {}) | dict(finish_reason=reason)


class Part(boundary.Declared):
    type: Literal["text"]
    text: str


PARTS = 'it must be a text, or parts such as {"type": "text", "text": …}: this model reads no images and sounds'


class Message(boundary.Declared):
    """prefix, partial: on the last message, that the answer goes on with it, as DeepSeek's, Mistral's and Qwen's
    clients say."""

    model_config = ConfigDict(extra="allow")
    role: Role
    content: Annotated[str | Annotated[list[Part], Field(fail_fast=True)], said(PARTS)] = ""
    prefix: bool = False
    partial: bool = False

    def check(self, model: str, i: int) -> None:
        """Raises UserError for a message that says more than a text, or nothing though it is not the assistant's."""
        given = {name: value for name, value in self.model_extra.items() if name in fields.OF_MESSAGES}
        fields.check(given, model, f"messages.{i}.")
        if self.role != "assistant" and "content" not in self.model_fields_set:
            raise UserError(f"messages.{i} has no content.")

    @property
    def plain(self) -> dict[str, str]:
        text = self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)
        return dict(role="system" if self.role == "developer" else self.role, content=text)


class Chat(Asked):
    object = "chat.completion"
    opening, closing = (dict(delta=dict(role="assistant", content="")),), dict(delta={})
    messages: Annotated[list[Message], Field(min_length=1, max_length=10_000, fail_fast=True)]
    logprobs: bool = False
    top_logprobs: Whole = Field(0, ge=0, le=SCORED)
    continue_final_message: bool = False
    add_generation_prompt: bool | None = None
    add_special_tokens: Literal[False] = False

    def check(self, service: Service) -> None:
        super().check(service)
        for i, message in enumerate(self.messages):
            message.check(self.model, i)
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

    def prompts(self, service: Service) -> list[list[int]]:
        """The conversation's token ids. Raises RefusalError, UserError."""
        self.check(service)
        how = dict(answer=self.add_generation_prompt is not False, continue_final_message=self.continues)
        return [service.conversation([message.plain for message in self.messages], **how)]

    def part(self, text: str, streamed: bool) -> dict:
        return dict(delta=dict(content=text)) if streamed else dict(message=dict(role="assistant", content=text))

    def logs(self, service: Service, tokens: Sequence[Token], before: int) -> dict:
        return logprobs.content(service.tokenizer, tokens, self.top_logprobs)


class Completion(Asked):
    object = "text_completion"
    prompt: Annotated[
        str
        | Ids
        | Annotated[list[str], Field(max_length=PROMPTS, fail_fast=True)]
        | Annotated[list[Ids], Field(max_length=PROMPTS, fail_fast=True)],
        said(f"it must be a text, token ids, or a list of {PROMPTS} of either at most"),
    ]
    logprobs: Whole | None = Field(None, ge=0, le=LIKELY)
    echo: bool = False
    max_tokens: Annotated[Whole, Field(ge=-1)] | None = None
    add_special_tokens: bool = True

    def check(self, service: Service) -> None:
        super().check(service)
        if self.most == 0 and not self.echo:
            raise UserError("max_tokens is 0, which leaves nothing to answer without echo; ask for 1 or more.")

    @property
    def scored(self) -> bool:
        """Whether log probabilities are wanted, be it of the drawn tokens alone."""
        return self.logprobs is not None

    def prompts(self, service: Service) -> list[list[int]]:
        """Token ids of each prompt. Raises RefusalError, UserError."""
        self.check(service)
        prompts = self.listed
        if len(prompts) > service.batcher.most:
            raise UserError(f"prompt has {len(prompts)} of them; this server takes {service.batcher.most} at a time.")
        special = self.add_special_tokens
        return [service.tokenizer.encode(each, special) if isinstance(each, str) else each for each in prompts]

    @property
    def listed(self) -> list[str] | list[list[int]]:
        """The prompts, also where there is one."""
        is_one = isinstance(self.prompt, str) or all(isinstance(each, int) for each in self.prompt)
        return [self.prompt] if is_one else self.prompt

    def echoed(self, service: Service, i: int, ids: list[int]) -> str | None:
        text = self.listed[i]
        return (text if isinstance(text, str) else service.tokenizer.decode(ids)) if self.echo else None

    def part(self, text: str, streamed: bool) -> dict:
        return dict(text=text)

    def logs(self, service: Service, tokens: Sequence[Token], before: int) -> dict:
        """before: characters of the prompt."""
        return logprobs.columns(service.tokenizer, tokens, self.logprobs, before)


async def models(service: Service, request: Request) -> Response:
    return JSONResponse(dict(object="list", data=[entry(service)]))


async def model(service: Service, request: Request) -> Response:
    if not request.path_params["model"]:  # a slash too many
        return await models(service, request)
    service.check_model(request.path_params["model"])
    return JSONResponse(entry(service))


def entry(service: Service) -> dict:
    created = int(service.about.modified.timestamp())
    return dict(id=full_name(service), object="model", created=created, owned_by="library")


async def answered(service: Service, request: Request, asked: Chat | Completion) -> Response:
    """/v1/chat/completions, /v1/completions: a choice for each prompt, as events or in one piece."""
    prompts = await service.apart(request.state.size, asked.prompts, service)
    how = dict(
        new_tokens=asked.most,
        sampler=asked.sampler(service.context),
        seed=asked.seed,
        stops=asked.stops,
        scored=asked.scored,
        stop=[*asked.stop_token_ids, *(() if asked.ignore_eos else service.tokenizer.stop)],
        grammar=await service.grammar(asked.wanted),
    )
    prefix = "chatcmpl" if isinstance(asked, Chat) else "cmpl"
    head = dict(id=f"{prefix}-{next(numbers)}", object=asked.object, created=int(time.time()), model=asked.model)
    head["system_fingerprint"] = "llama-jax"
    answers = Answers(service, asked, prompts, how)
    if asked.stream:
        return wire.events(answers.chunks(head), answers.leave)
    return JSONResponse(await unless_gone(request.receive, answers.whole(head)) or {})


class Answers:
    """The answers to a request's prompts, which are asked when this is made. Raises RefusalError, UserError."""

    def __init__(self, service: Service, asked: Chat | Completion, prompts: Sequence[list[int]], how: dict):
        self.service, self.asked = service, asked
        self.answers: list[Answer] = []
        echoes = [asked.echoed(service, i, ids) for i, ids in enumerate(prompts)]
        try:
            for ids, echo in zip(prompts, echoes, strict=True):
                self.answers.append(service.answer(ids, **how, echo=echo))
        except BaseException:
            self.leave()
            raise
        decode = service.tokenizer.decode
        texts = (decode(ids) if echo is None else echo for ids, echo in zip(prompts, echoes, strict=True))
        self.before = [len(text) for text in texts] if asked.scored else [0] * len(prompts)  # characters

    def leave(self) -> None:
        for answer in self.answers:
            answer.job.cancel()

    def choice(self, i: int, text: str, tokens: Sequence[Token], streamed: bool, reason: str | None = None) -> dict:
        logs = self.asked.logs(self.service, tokens, self.before[i]) if self.asked.scored else None
        return self.asked.choice(i, self.asked.part(text, streamed), logs, reason)

    async def whole(self, head: dict) -> dict:
        """Raises RefusalError where a prompt failed."""
        choices, counts = [], Usage()
        try:
            for i, answer in enumerate(self.answers):
                text, tokens = "", []
                async for piece in answer.pieces():
                    text += piece.text
                    tokens += piece.tokens
                if piece.end.reason == "error":
                    raise wire.RefusalError(500, wire.FAILED)
                choices.append(self.choice(i, text, tokens, False, piece.end.reason))
                counts += Usage.of(answer, piece)
        finally:
            self.leave()
        return head | dict(choices=choices, usage=counts.said)

    async def chunks(self, head: dict) -> AsyncIterator[dict]:
        """Events, those of one prompt after those of another."""
        asked, counts = self.asked, Usage()
        head = head | (dict(object=f"{asked.object}.chunk") if asked.opening else {})
        for i, answer in enumerate(self.answers):
            opening = [asked.choice(i, part) for part in asked.opening]
            async for piece in answer.pieces():
                if piece.end and piece.end.reason == "error":
                    yield wire.error("/v1/", wire.FAILED, 500)
                    return
                choices, opening = opening, []
                if piece.text or piece.tokens:
                    choices.append(self.choice(i, piece.text, piece.tokens, True))
                if piece.end:
                    choices.append(asked.choice(i, asked.closing, None, piece.end.reason))
                now = counts + Usage.of(answer, piece)
                for choice in choices:
                    each = dict(usage=now.said) if asked.stream_options.continuous_usage_stats else {}
                    yield head | dict(choices=[choice]) | each
            counts = now
        if asked.stream_options.include_usage:
            yield head | dict(choices=[], usage=counts.said)


class Usage(NamedTuple):
    """Tokens: of prompts, of answers, and those of prompts that a slot still had."""

    read: int = 0
    made: int = 0
    cached: int = 0

    @classmethod
    def of(cls, answer: Answer, piece: Piece) -> Usage:
        """Of an answer up to the end of a piece."""
        return cls(len(answer.job.ids), piece.made, piece.cached)

    def __add__(self, other: Usage) -> Usage:
        return Usage(*(one + another for one, another in zip(self, other, strict=True)))

    @property
    def said(self) -> dict:
        counts = dict(prompt_tokens=self.read, completion_tokens=self.made, total_tokens=self.read + self.made)
        return counts | dict(prompt_tokens_details=dict(cached_tokens=self.cached))
