"""What every client is asked for, and how its script tells what came of it: a line of JSON on standard output.

A script gets the server's address and the model's name as arguments. A feature is a function that returns the text that
the client gave, or raises what the client raised.
"""

from __future__ import annotations

import importlib.metadata
import json
import sys
from collections.abc import Callable
from typing import Literal

from pydantic import BaseModel

URL, MODEL = sys.argv[1:]
OTHER = "another"
MESSAGES = [{"role": "user", "content": "Hi"}]
GREEDY = dict(temperature=0, max_tokens=32)  # of OpenAI's API
OPTIONS = dict(temperature=0, num_predict=32)  # of Ollama's


class Weather(BaseModel):
    """The answer that is asked for as JSON: a few tokens, whatever the model would say."""

    sky: Literal["blue", "grey"]
    rain: bool


def weather(what: int = 0) -> str:
    """A tool that no model has to call."""
    return "blue"


SCHEMA = Weather.model_json_schema()
FORMAT = dict(type="json_schema", json_schema=dict(name="Weather", schema=SCHEMA))
TOOL = dict(type="function", function=dict(name="weather", parameters=dict(type="object", properties={})))


def joined(parts) -> str:
    return "".join(part or "" for part in parts)


def tell(client: str, package: str, **features: Callable[[], object]) -> None:
    """Try every feature and print {client, version, features: {name: [whether it raised, what was said]}}."""
    found = {}
    for name, use in features.items():
        try:
            said = use()
            found[name] = False, said.model_dump_json() if isinstance(said, BaseModel) else str(said)
        except Exception as error:
            found[name] = True, f"{type(error).__name__}: {error}"
    print(json.dumps(dict(client=client, version=importlib.metadata.version(package), features=found)))
