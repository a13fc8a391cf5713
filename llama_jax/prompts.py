"""The prompt pool: science questions, committed so that runs are comparable."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from pydantic import Field

from llama_jax import chat
from llama_jax.plumbing import boundary, paths
from llama_jax.plumbing.errors import UserError
from llama_jax.tokenizer import Tokenizer

FILE = paths.ROOT / "data" / "prompts.json"
REMEDY = 'A prompt pool is {"prompts": [text, …]}.'


def uncounted(schema: dict) -> None:
    """Without the upper bound, which is too far for the grammar of a server that is asked to follow the schema."""
    for bound in ("maxLength", "maxItems"):
        schema.pop(bound, None)


BOUNDED = dict(min_length=1, max_length=100_000, json_schema_extra=uncounted)


class PromptPool(boundary.Declared):
    """The schema of a pool; a model that writes one must follow it."""

    prompts: list[Annotated[str, Field(**BOUNDED)]] = Field(**BOUNDED)


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
