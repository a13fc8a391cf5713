"""Messages to prompt: the checkpoint's chat template, rendered in a separate process (`template`)."""

from __future__ import annotations

import contextlib
import functools
import json
import subprocess
import sys
import threading
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, TypedDict

from pydantic import ConfigDict, Field

from llama_jax import template
from llama_jax.plumbing import boundary
from llama_jax.plumbing.errors import UserError
from llama_jax.tokenizer import Numbers, Tokenizer, check_length, check_text


class Message(TypedDict):
    """One message of a conversation: Message(role="user", content="Hi")."""

    role: Literal["system", "user", "assistant"]
    content: str


class GivenMessage(boundary.Declared):
    """The fields that a message must have."""

    model_config = ConfigDict(extra="forbid")
    role: Literal["system", "user", "assistant"]
    content: str


Conversation = Annotated[list[GivenMessage], Field(min_length=1, max_length=10_000)]
STARTED: list[subprocess.Popen] = []  # by `start_early`
END = "\ufdd1\ufdef "  # after a message to be continued; a template that trims a message takes the space away


def render(
    tokenizer: Tokenizer, messages: Sequence[Message], answer: bool = True, continue_final_message: bool = False
) -> str:
    """The conversation in the model's chat template; `answer` opens the assistant's turn.

    continue_final_message: the last message begins the assistant's answer, and its turn stays open instead.

    Raises UserError if a message is invalid, the last one is not the assistant's and should be continued, the
    checkpoint has no template, or the template refuses the messages or takes too much time or memory.
    """
    messages = checked(messages, continue_final_message)
    return left_open(tokenizer, messages) if continue_final_message else rendered(tokenizer, messages, answer)


@dataclass(frozen=True)
class Prompt:
    """A conversation that is not rendered yet; the tokenizer that receives it renders it."""

    messages: tuple[Message, ...]
    continue_final_message: bool = False

    def ids(self, tokenizer: Tokenizer) -> list[int]:
        """Its token ids by this tokenizer's own chat template; the assistant's turn is open."""
        return encode(tokenizer, self.messages, continue_final_message=self.continue_final_message)


def render_prompt(messages: Sequence[Message], continue_final_message: bool = False) -> Prompt:
    """The conversation as a prompt for `BatchTokenizer.encode`. continue_final_message: as for `render`. Raises
    UserError for invalid messages."""
    return Prompt(tuple(checked(messages, continue_final_message)), continue_final_message)


def encode(
    tokenizer: Tokenizer,
    messages: Sequence[Message],
    allow_special_tokens: bool = False,
    answer: bool = True,
    continue_final_message: bool = False,
) -> list[int]:
    """Token ids of a rendered conversation; the template writes the special tokens.

    allow_special_tokens: text in a message that spells a special token becomes that token; otherwise it stays text.
    answer, continue_final_message, and errors: as for `render`.
    """
    messages = checked(messages, continue_final_message)
    template_of(tokenizer)  # before the tokenizer is asked, which may be `Numbers`
    if not allow_special_tokens:
        messages = [{**message, "content": as_text(tokenizer, message["content"])} for message in messages]
    text = left_open(tokenizer, messages) if continue_final_message else rendered(tokenizer, messages, answer)
    return tokenizer.encode_marked(text)


def checked(messages: Sequence[Message], continue_final_message: bool = False) -> list[Message]:
    """The messages. Raises UserError if they are invalid, contain text that no tokenizer reads, or should be continued
    but do not end with the assistant's."""
    given = list(messages) if isinstance(messages, tuple) else messages
    parsed = boundary.read(Conversation, given, "The messages", 'Write each as {"role": "user", "content": text}.')
    for i, message in enumerate(parsed):
        check_text(message.content, f"Message {i + 1}")
    check_length(sum(len(message.content) for message in parsed), "The messages have")
    if continue_final_message and parsed[-1].role != "assistant":
        raise UserError(
            f"The last message is the {parsed[-1].role}'s; with continue_final_message it must be the assistant's."
        )
    return [message.model_dump() for message in parsed]


def as_text(tokenizer: Tokenizer, content: str) -> str:
    """The content with its special tokens marked as text. Raises UserError if that is not possible."""
    if (marked := tokenizer.marked(content)) != content:
        tokenizer.encode(content)
    return marked


def template_of(tokenizer: Tokenizer | Numbers, remedy: str = "give a plain prompt (--no-chat)") -> str:
    """The chat template's source. Raises UserError if there is none."""
    if tokenizer.chat_template is None:
        raise UserError(f"This model has no chat template; {remedy}.")
    return tokenizer.chat_template


def rendered(tokenizer: Tokenizer, messages: list[Message], answer: bool = True) -> str:
    template_source = template_of(tokenizer)
    # tools and documents are None, and a special token that the model lacks is undefined
    given = dict(tokenizer.names, messages=messages, tools=None, documents=None, add_generation_prompt=answer)
    text = renderer(template_source).render(given)
    if "error" in text:
        raise UserError(f"The model's chat template failed: {text['error']}.")
    return text["text"]


def left_open(tokenizer: Tokenizer, messages: list[Message]) -> str:
    """The conversation up to the end of its last message, whose turn is not closed: the bytes of transformers'
    `apply_chat_template(continue_final_message=True)`, except that nothing before an empty message is trimmed.

    Raises UserError if the template leaves out or rewrites that message.
    """
    *before, last = messages
    content = last["content"]
    text = rendered(tokenizer, [*before, {**last, "content": content + END}], answer=False)
    kept, end, after = text.rpartition(END.rstrip())
    if not end or content.strip() not in kept:
        raise UserError("The model's chat template changes the last message, so it cannot be continued; leave it out.")
    trimmed = content.strip() and not after.startswith(" ")
    return kept.removesuffix(content[len(content.rstrip()) :]) if trimmed else kept


def ask(question: str, system: str | None = None) -> list[Message]:
    """A conversation of one question."""
    return ([{"role": "system", "content": system}] if system else []) + [{"role": "user", "content": question}]


class Renderer:
    """The process of one template, started on first use, and again if it was ended."""

    def __init__(self, source: str):
        self.source, self.process, self.lock = source, None, threading.Lock()

    def start(self) -> subprocess.Popen:
        process = STARTED.pop() if STARTED else launched()
        weakref.finalize(self, end, process)
        self.tell(process, self.source)
        return process

    @staticmethod
    def tell(process: subprocess.Popen, value) -> None:
        with contextlib.suppress(BrokenPipeError):  # it has ended, as reading from it says too
            process.stdin.write(json.dumps(value).encode() + b"\n")
            process.stdin.flush()

    def render(self, given: dict) -> dict:
        """What the process answers, or that it was ended."""
        with self.lock:
            alive = self.process and self.process.poll() is None
            process, self.process = self.process if alive else self.start(), None
            try:
                self.tell(process, given)
                line = process.stdout.readline()
                if line.endswith(b"\n"):
                    self.process = process
                    return json.loads(line)
                return {"error": f"it needs more than {template.SECONDS} seconds or {template.BYTES >> 20} MB"}
            finally:
                if self.process is None:
                    end(process)


def launched() -> subprocess.Popen:
    """A process that waits for a template."""
    command = [sys.executable, "-P", template.__file__]  # -P: the folder of the script is no place to import from
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)


def start_early() -> None:
    """Start the process of the next template now, so that it is ready once the model is loaded."""
    STARTED.append(launched())


def end(process: subprocess.Popen) -> None:
    process.kill()
    process.wait()
    process.stdin.close()
    process.stdout.close()


renderer = functools.lru_cache(maxsize=4)(Renderer)
