"""The prompt pool: science questions, committed so that runs compare; a running Ollama can write a new one.

The original notebook asked Ollama for its prompts with a JSON schema; `from_ollama` is that step.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from pydantic import Field

from llama_jax import chat
from llama_jax.plumbing import boundary, files, paths
from llama_jax.plumbing.errors import UserError
from llama_jax.tokenizer import Tokenizer

FILE = paths.ROOT / "data" / "prompts.json"
REQUEST = "Write {count} different questions about science that a curious person would ask. Answer as JSON."
REMEDY = 'A prompt pool is {"prompts": [text, …]}.'


class PromptPool(boundary.Declared):
    """What a pool holds, and what a model that writes one must answer with."""

    prompts: list[Annotated[str, Field(min_length=1, max_length=100_000)]] = Field(min_length=1, max_length=100_000)


def load(count: int | None = None, path: Path = FILE) -> list[str]:
    """The first `count` committed questions. Raises UserError when there are fewer."""
    try:
        pool = boundary.read(PromptPool, boundary.load(path, remedy=REMEDY), str(path), REMEDY).prompts
    except FileNotFoundError:
        raise UserError(f"No such file: {path}. {REMEDY}") from None
    if count is not None and not 1 <= count <= len(pool):
        raise UserError(f"{count} prompts asked for; {path.name} has {len(pool)}.")
    return pool[:count]


def as_chat(tokenizer: Tokenizer, questions: Sequence[str]) -> tuple[str, ...]:
    """Each question as the model's chat template renders it, ready to encode."""
    return tuple(chat.render(tokenizer, chat.ask(question)) for question in questions)


def wanted(count: int) -> dict:
    """The JSON schema of a pool of so many prompts, of what a server's grammar of it can count."""
    prompts = dict(type="array", items=dict(type="string"), minItems=count, maxItems=count)
    return dict(type="object", properties=dict(prompts=prompts), required=["prompts"])


def from_ollama(model: str, count: int = 20, path: Path = FILE, client=None) -> list[str]:
    """Ask a running Ollama for `count` science questions and store them in `path`. Raises UserError as `written_by`."""
    questions = written_by(model, count, client)
    files.write(path, json.dumps({"prompts": questions}, indent=1, ensure_ascii=False) + "\n")
    return questions


def written_by(model: str, count: int, client=None, **options) -> list[str]:
    """Science questions of a running Ollama. options: of its request; seed 0 alone where none are given.

    Raises UserError when no server answers, the model is missing, or the answer does not fit the schema.
    """
    import httpx
    import ollama

    try:
        answer = (client or ollama.Client()).chat(
            model=model,
            messages=chat.ask(REQUEST.format(count=count)),
            format=wanted(count),
            options=options or {"seed": 0},
        )
        document = boundary.parse(answer.message.content or "", "Ollama's answer", REMEDY)
        pool = boundary.read(PromptPool, document, "Ollama's answer", f"{REMEDY} Try another model.")
    except (ConnectionError, OSError, httpx.HTTPError) as error:
        raise UserError(
            "No Ollama server answers: start it with `ollama serve` (OLLAMA_HOST names another one)."
        ) from error
    except ollama.ResponseError as error:
        raise UserError(f"Ollama refused: {error.error}; `ollama pull {model}` fetches a model.") from error
    if len(pool.prompts) < count:
        raise UserError(f"Ollama wrote {len(pool.prompts)} prompts instead of {count}; try again or another model.")
    return pool.prompts[:count]
