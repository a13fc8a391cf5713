"""Schemathesis (https://schemathesis.readthedocs.io) against a real server, from its own description: requests that fit
it and such as do not, by dozens. Nothing is the server's mistake, nothing hangs, and an error has its API's shape.

Its plugin for pytest is left out (pyproject.toml): every test session would wait for it.
"""

import json

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings

from llama_lab.serve import app, ollama
from llama_lab.serve.app import ROUTES
from tests.serve import small

HANGS_S = 60
ANSWERED = [served for served in ROUTES if served.handler not in (ollama.absent, ollama.embeds)]
CASES = [(served, "positive") for served in ANSWERED]
CASES += [(served, "negative") for served in ANSWERED if served.body]  # elsewhere nothing can be wrong
SHORT = dict(model=small.NAME, options=dict(num_predict=2), max_tokens=2)  # so that what is answered is answered soon


@pytest.fixture(scope="module")
def described():
    import schemathesis

    with small.server() as (_, port):
        yield schemathesis.openapi.from_url(f"http://127.0.0.1:{port}/openapi.json")


@pytest.mark.slow
@pytest.mark.parametrize(("served", "mode"), CASES, ids=[f"{s.method} {s.path}, {mode}" for s, mode in CASES])
def test_dozens_of_requests_are_answered_or_refused_as_described(described, served, mode):
    from schemathesis import GenerationMode

    path = served.path.replace(":path}", "}")
    drawn = described[path][served.method].as_strategy(generation_mode=GenerationMode(mode))
    count = 60 if served.body else 10

    @settings(max_examples=count, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
    @given(drawn)
    def thrown(case):
        if mode == "positive" and isinstance(case.body, dict):
            case.body = case.body | SHORT
        answer = case.call(timeout=HANGS_S)
        assert answer.status_code < 500, answer.text
        kind = answer.headers["content-type"][0].partition(";")[0]
        if answer.status_code == 200:
            assert kind in served.gives
        elif kind == "text/plain":  # a path or a method that is not there
            assert answer.status_code in (400, 404, 405)
        else:
            jsonschema.validate(json.loads(answer.text), app.error_of(path))

    thrown()
