"""A small random model with the packaged tokenizer, served in this process."""

import asyncio
import json

import httpx
import pytest

from llama_jax import checkpoint, config, generate
from llama_lab.serve.app import application
from llama_lab.serve.service import Service
from tests.conftest import build
from tests.serve.small import NAME

ENDLESS = dict(model=NAME, prompt="a", raw=True, options=dict(temperature=0, num_predict=250))


@pytest.fixture(scope="package")
def loaded():
    tokenizer = checkpoint.find(checkpoint.DEFAULT).tokenizer()
    cfg = config.tiny(vocab_size=49152, max_position_embeddings=512)
    return checkpoint.Checkpoint(NAME, cfg, build(cfg), tokenizer, "0" * 64, "random:tiny", "float32")


@pytest.fixture(scope="package")
def service(loaded):
    made = Service(loaded, "step+donate", slots=2, context=256, queue=3)
    made.start()
    yield made
    made.close()


@pytest.fixture(scope="package")
def expected(loaded):
    """The text that `generate` makes of token ids."""
    engine = generate.build(loaded, "step")

    def said(ids, n, sampler=generate.GREEDY, seed=0):
        options = dict(stop=loaded.tokenizer.stop, sampler=sampler, seeds=seed, length=192, slots=256)  # one program
        (answer,) = generate.answer(engine, [ids], n, **options)
        return loaded.tokenizer.decode(answer.token_ids)

    return said


class Client:
    """Whole answers of an application in this process."""

    def __init__(self, app):
        self.app = app

    async def send(self, method, path, body=None, headers=None, content=None):
        transport = httpx.ASGITransport(self.app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return await client.request(method, path, json=body, content=content, headers=headers)


@pytest.fixture
def client(service):
    return Client(application(service))


def ask(client, path, **body):
    return asyncio.run(client.send("POST", path, dict(model=NAME) | body))


def lines(answer):
    return [json.loads(line) for line in answer.text.splitlines()]


def events(answer):
    parts = [part.removeprefix("data: ") for part in answer.text.split("\n\n") if part]
    assert parts[-1] == "[DONE]"
    return [json.loads(part) for part in parts[:-1]]


def count(service, name, **labels):
    return service.metrics.registry.get_sample_value(f"llama_jax_{name}", labels)
