"""Runs of the command line in processes of their own, which several modules share."""

import json
import random

import pytest

from llama_lab.activations.folder import open_folder
from llama_lab.experiments.activation_extraction import object_store
from tests.activations.runs import finished, start


@pytest.fixture(scope="module")
def bucket():
    """URL of an empty bucket in an object store that speaks S3."""
    if object_store.missing():
        pytest.skip("`make s3` adds an object store")
    with object_store.running() as url:
        yield url


@pytest.fixture(scope="session")
def source(tmp_path_factory):
    """Examples of token ids, enough for a run of some seconds."""
    draw = random.Random(0)
    rows = [{"text": [draw.randrange(97) for _ in range(draw.randrange(1, 60))]} for _ in range(1200)]
    path = tmp_path_factory.mktemp("source") / "ids.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture(scope="session")
def unbroken(source, tmp_path_factory):
    """The store that one process makes of the source, whole."""
    out = tmp_path_factory.mktemp("unbroken") / "out"
    assert finished(start(source, out)).returncode == 0
    return out


@pytest.fixture
def folder(tmp_path):
    return open_folder(tmp_path)
