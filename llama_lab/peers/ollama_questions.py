"""A new prompt pool, written by a running Ollama.

The original notebook asked Ollama for its prompts with a JSON schema; `from_ollama` is that step.
"""

from __future__ import annotations

import json
from pathlib import Path

from llama_jax import chat, prompts
from llama_jax.plumbing import boundary, files
from llama_jax.plumbing.errors import UserError

REQUEST = "Write {count} different questions about science that a curious person would ask. Answer as JSON."


def from_ollama(model: str, count: int = 20, path: Path = prompts.FILE, client=None) -> list[str]:
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

    # terms that a server's grammar can count
    items = dict(type="array", items=dict(type="string"), minItems=count, maxItems=count)
    schema = dict(type="object", properties=dict(prompts=items), required=["prompts"])
    asked = dict(messages=chat.ask(REQUEST.format(count=count)), format=schema, options=options or {"seed": 0})
    try:
        answer = (client or ollama.Client()).chat(model=model, **asked)
        document = boundary.parse(answer.message.content or "", "Ollama's answer", prompts.REMEDY)
        pool = boundary.read(prompts.PromptPool, document, "Ollama's answer", f"{prompts.REMEDY} Try another model.")
    except (ConnectionError, OSError, httpx.HTTPError) as error:
        raise UserError(
            "No Ollama server answers: start it with `ollama serve` (OLLAMA_HOST names another one)."
        ) from error
    except ollama.ResponseError as error:
        raise UserError(f"Ollama refused: {error.error}; `ollama pull {model}` fetches a model.") from error
    if len(pool.prompts) < count:
        raise UserError(f"Ollama wrote {len(pool.prompts)} prompts instead of {count}; try again or another model.")
    return pool.prompts[:count]
