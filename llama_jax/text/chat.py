"""Messages to prompt: the checkpoint's own chat template, in a sandboxed Jinja environment."""

from __future__ import annotations

import datetime
from collections.abc import Sequence

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment

from llama_jax.errors import UserError
from llama_jax.text.tokenizer import Tokenizer

Message = dict[str, str]  # {"role": "system" | "user" | "assistant", "content": text}


def render(tokenizer: Tokenizer, messages: Sequence[Message], answer: bool = True) -> str:
    """The conversation as the model was trained to read it; `answer` opens the assistant's turn.

    Raises UserError when the checkpoint has no template or the template refuses the messages.
    """
    if tokenizer.chat_template is None:
        raise UserError("This model has no chat template; give a plain prompt (--no-chat).")
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.globals["raise_exception"] = refuse
    environment.globals["strftime_now"] = lambda form: datetime.datetime.now().strftime(form)
    try:
        return environment.from_string(tokenizer.chat_template).render(
            messages=list(messages),
            add_generation_prompt=answer,
            bos_token=tokenizer.bos_token,
            eos_token=tokenizer.eos_token,
        )
    except jinja2.TemplateError as error:
        raise UserError(f"The model's chat template failed: {error}.") from error


def refuse(reason: str):
    raise jinja2.TemplateError(reason)


def encode(tokenizer: Tokenizer, messages: Sequence[Message]) -> list[int]:
    """Token ids of a rendered conversation; the template writes the special tokens itself."""
    return tokenizer.encode(render(tokenizer, messages), special=False)


def ask(question: str, system: str | None = None) -> list[Message]:
    """A conversation of one question."""
    return ([{"role": "system", "content": system}] if system else []) + [{"role": "user", "content": question}]
