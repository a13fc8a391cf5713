"""What an answer must be, where a request says so: any JSON object, or a value that a JSON schema allows.

    Ollama      format: "json" or a schema
    OpenAI      response_format: {"type": "json_schema", "json_schema": {"schema": …}} or {"type": "json_object"}
    llama.cpp   json_schema, and response_format's schema beside "json_object"
    vLLM        guided_json, structured_outputs: {"json": …}

A schema is kept as it was sent: a null in it says something, and the order of its fields is the answer's.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import lru_cache
from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from llama_jax import grammars
from llama_jax.grammars import Grammar
from llama_jax.plumbing import boundary
from llama_jax.plumbing.errors import UserError
from llama_jax.tokenizer import Numbers, Tokenizer
from llama_lab.serve.fields import said

FIELDS = ("format", "response_format", "json_schema", "guided_json", "structured_outputs")
KEPT = 8  # grammars, those of the last requests; a table takes at most 32 MiB
JSON = "json"  # any object

Format = Annotated[Literal["", "json"] | dict, said('it must be "json" or a JSON schema')]
Text = Annotated[dict | str, said("it must be a JSON schema")]


class Named(boundary.Declared):
    """strict: makes no difference, since every answer follows its schema."""

    name: str | None = None
    description: str | None = None
    strict: bool | None = None
    definition: dict | None = Field(None, alias="schema")


class ResponseFormat(boundary.Declared):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: Named | None = None
    definition: dict | None = Field(None, alias="schema")

    @property
    def wanted(self) -> dict | str | None:
        """Raises UserError."""
        if self.type == "text":
            return None
        if self.type == "json_object":
            return self.definition or JSON
        if self.json_schema is None or self.json_schema.definition is None:
            raise UserError("response_format.json_schema has no schema.")
        return self.json_schema.definition


class Outputs(boundary.Declared):
    """vLLM's structured_outputs. Its other kinds are not here, and may be null."""

    model_config = ConfigDict(extra="forbid")
    definition: Text | None = Field(None, alias="json")
    regex: None = None
    choice: None = None
    grammar: None = None
    json_object: None = None


class Asked(boundary.Declared):
    """The fields under `/v1`."""

    response_format: ResponseFormat = ResponseFormat(type="text")
    json_schema: Text | None = None
    guided_json: Text | None = None
    structured_outputs: Outputs = Outputs()

    @property
    def wanted(self) -> dict | str | None:
        """What the answer must be, None for anything. Raises UserError."""
        given = dict(
            response_format=self.response_format.wanted,
            json_schema=self.json_schema,
            guided_json=self.guided_json,
            structured_outputs=self.structured_outputs.definition,
        )
        given = {name: value for name, value in given.items() if value is not None}
        if len(given) > 1:
            raise UserError(f"{' and '.join(given)} both say what the answer must be; send one of them.")
        ((name, value),) = given.items() or [("", None)]
        if isinstance(value, str) and name != "response_format":  # a schema as text
            value = boundary.read(dict, boundary.parse(value, name), name)
        return value


def compiler(tokenizer: Tokenizer | Numbers, vocab_size: int) -> Callable[[str], Grammar]:
    """From what is wanted, as the text of a JSON document, to its grammar, which raises UserError; the last few are
    kept."""

    @lru_cache(KEPT)
    def compiled(text: str) -> Grammar:
        if isinstance(tokenizer, Numbers):
            raise UserError("This model has no tokenizer, so its answers are no JSON; leave the format out.")
        return grammars.compile(json.loads(text), tokenizer, vocab_size, tokenizer.stop)

    return compiled
