"""What the tokenizer makes of a text, and back, in the shapes of vLLM (https://docs.vllm.ai), which lm-eval's remote
tokenizer reads. A special token that a prompt spells is that token, as there."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from llama_jax.decoding.request import token_ids
from llama_jax.plumbing import boundary
from llama_jax.plumbing.errors import UserError
from llama_jax.tokenizer import Numbers
from llama_lab.serve import fields
from llama_lab.serve.fields import Ids
from llama_lab.serve.logprobs import bytes_of, spelling
from llama_lab.serve.openai import Message
from llama_lab.serve.service import Service


class Asked(boundary.Declared):
    model_config = fields.described(known=False)
    model: str = ""

    def check(self, service: Service) -> None:
        """Raises RefusalError, UserError."""
        if self.model:
            service.check_model(self.model)
        fields.check(self.model_extra, service.about.name)


class Tokenise(Asked):
    """A text, or a conversation in the model's chat template."""

    prompt: str | None = None
    messages: Annotated[list[Message], Field(min_length=1, max_length=10_000, fail_fast=True)] | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    return_token_strs: bool = False

    def ids(self, service: Service) -> list[int]:
        """Raises RefusalError, UserError."""
        self.check(service)
        if (self.prompt is None) == (self.messages is None):
            raise UserError("Send either prompt or messages.")
        if self.prompt is not None:
            return service.tokenizer.encode(
                self.prompt, self.add_special_tokens is not False, allow_special_tokens=True
            )
        if self.add_special_tokens:
            raise UserError("add_special_tokens is for a prompt; a chat template writes its own. Leave it out.")
        for i, message in enumerate(self.messages):
            message.check(self.model, i)
        how = dict(answer=self.add_generation_prompt, continue_final_message=self.continue_final_message)
        return service.conversation([message.plain for message in self.messages], **how)


class Detokenise(Asked):
    tokens: Ids

    def text(self, service: Service) -> str:
        """Special tokens spelt out. Raises RefusalError, UserError."""
        self.check(service)
        tokenizer, ids = service.tokenizer, self.tokens
        if ids:
            token_ids(ids, service.stepper.engine.config.vocab_size)
        if isinstance(tokenizer, Numbers):
            return tokenizer.decode(ids)
        if tokenizer.byte_level:
            return b"".join(bytes_of(tokenizer, i) for i in ids).decode(errors="replace")
        return tokenizer.backend.decode(ids, skip_special_tokens=False)


async def tokenise(service: Service, request: Request, asked: Tokenise) -> Response:
    """/tokenize"""
    ids = await service.apart(request.state.size, asked.ids, service)
    spelt = [spelling(service.tokenizer, i) for i in ids] if asked.return_token_strs else None
    return JSONResponse(dict(count=len(ids), max_model_len=service.context, tokens=ids, token_strs=spelt))


async def detokenise(service: Service, request: Request, asked: Detokenise) -> Response:
    """/detokenize"""
    return JSONResponse(dict(prompt=await service.apart(request.state.size, asked.text, service)))


async def info(service: Service, request: Request) -> Response:
    """/tokenizer_info: the special tokens and the template."""
    names = getattr(service.tokenizer, "names", {})
    return JSONResponse(names | dict(model_max_length=service.context, chat_template=service.about.template or None))
