"""The server's description of itself is so, and what is drawn from it and damaged is never the server's mistake."""

import asyncio
import json

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from llama_lab.serve import app as routes
from llama_lab.serve import wire
from llama_lab.serve.app import ROUTES, application
from tests.serve import bodies
from tests.serve.conftest import NAME, Client

DESCRIBED = json.loads(json.dumps(routes.document(ROUTES, "0")))
SCHEMAS = DESCRIBED["components"]["schemas"]
ASKED = {
    path: methods["post"]["requestBody"]["content"]["application/json"]["schema"]
    for path, methods in DESCRIBED["paths"].items()
    if "requestBody" in methods.get("post", {})
}
SAID = [dict(role="user", content="Hi")]
FINE = {
    "/api/show": dict(model=NAME),
    "/api/pull": dict(model=NAME, stream=False),
    "/api/chat": dict(model=NAME, messages=SAID, keep_alive="1m", options=dict(num_predict=1, stop=["x"])),
    "/api/generate": dict(model=NAME, prompt="a", think=False, keep_alive=-1, options=dict(num_predict=1, seed=2)),
    "/v1/chat/completions": dict(model=NAME, messages=SAID, max_tokens=1, stop="x"),
    "/v1/completions": dict(model=NAME, prompt=[5, 6], max_tokens=1),
    "/tokenize": dict(model=NAME, prompt="Once"),
    "/detokenize": dict(model=NAME, tokens=[5, 6]),
}
HANGS_S = 60


def fits(path, body):
    schema = ASKED[path] | dict(components=DESCRIBED["components"])
    return jsonschema.Draft202012Validator(schema).is_valid(wire.given(body))


def test_the_description_is_served_and_has_every_route(service):
    found = asyncio.run(Client(application(service)).send("GET", "/openapi.json")).json()
    assert found["openapi"].startswith("3.1")
    assert {(method, path) for path, methods in found["paths"].items() for method in methods} == {
        (served.method.lower(), served.path.replace(":path}", "}")) for served in ROUTES
    }
    for schema in [*found["components"]["schemas"].values(), *routes.ERRORS.values()]:
        jsonschema.Draft202012Validator.check_schema(schema)
    references = {line.rpartition("/")[2] for line in json.dumps(found).split('"') if line.startswith("#/")}
    assert references == set(found["components"]["schemas"])


@pytest.mark.parametrize("path", ASKED)
def test_what_fits_is_answered_and_what_does_not_is_refused(client, path):
    assert FINE.keys() == ASKED.keys()
    assert fits(path, FINE[path])
    assert asyncio.run(client.send("POST", path, FINE[path])).status_code == 200
    for name, value in dict(model=3, messages="x", prompt=dict(a=1), keep_alive="soon", stop=[1] * 3, think=2).items():
        body = FINE[path] | {name: value}
        assert fits(path, body) == (asyncio.run(client.send("POST", path, body)).status_code == 200), name


async def asked(app, method, path, content):
    async with asyncio.timeout(HANGS_S):
        return await Client(app).send(method, path, content=content)


def check(path, answer):
    """An answer, or an error in the API's own shape and of the asker's."""
    assert answer.status_code < 500, answer.text
    if answer.status_code != 200:
        assert answer.headers["content-type"].startswith("application/json")
        jsonschema.validate(answer.json(), routes.error_of(path))


@pytest.fixture(scope="module")
def app(service):
    return application(service)


@pytest.mark.slow
@pytest.mark.parametrize("path", ASKED)
def test_hundreds_of_bodies_are_answered_or_refused_in_the_apis_shape(app, path):
    @settings(max_examples=400, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(bodies.contents(ASKED[path], SCHEMAS))
    def thrown(content):
        answer = asyncio.run(asked(app, "POST", path, content))
        check(path, answer)
        if answer.status_code == 200:  # what the description does not allow is not let through
            assert fits(path, json.loads(content))

    thrown()


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(["/", "/api/chat", "/api/tags", "/v1/models", "/v1/models/x", "/v1/completions", "/api/x", "/v1/"]),
    st.sampled_from(["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"]),
    st.binary(max_size=20),
)
def test_any_method_on_any_path_is_answered_or_refused(app, path, method, content):
    answer = asyncio.run(asked(app, method, path, content))
    assert answer.status_code < 500
    if path.startswith("/v1/") and answer.status_code != 200:
        jsonschema.validate(answer.json(), routes.error_of(path))


@pytest.mark.parametrize("path", ["/api/chat", "/v1/completions"])
def test_an_error_of_another_shape_is_found(path):
    for document in (dict(error="a\nb"), dict(error=dict(message="x")), dict(detail="x"), dict(error="", more=1)):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(document, routes.error_of(path))
