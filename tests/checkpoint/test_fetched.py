"""Models that are known by name and fetched: what stands for them before and after."""

import dataclasses
import pathlib

import pytest

from llama_jax import checkpoint
from llama_jax.checkpoint import fetched, writer
from llama_jax.plumbing.errors import UserError
from tests.checkpoint.test_writer import SMALL

NAME = "qwen2.5-coder-0.5b"


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A small model's file in the place of the real one, which it is said to be."""
    monkeypatch.setenv("LLAMA_JAX_CACHE", str(tmp_path / "cache"))
    path = fetched.place(NAME)
    path.parent.mkdir(parents=True)
    writer.write(SMALL, "q8_0", path)
    monkeypatch.setitem(
        fetched.WEIGHTS, NAME, dataclasses.replace(fetched.WEIGHTS[NAME], bytes=path.stat().st_size, part=1000)
    )
    return path


def test_a_name_is_its_file_in_any_spelling(here):
    loaded = checkpoint.load("Qwen2.5_Coder-0.5B")
    assert (loaded.name, loaded.source) == (NAME, str(here))
    assert checkpoint.gguf_file("Qwen2.5_Coder-0.5B") == here
    assert "is here" in checkpoint.models()[NAME]


@pytest.mark.parametrize("left", [0, 5000])
def test_what_is_not_here_or_not_all_of_it_is_one_line_with_the_command(here, left):
    here.write_bytes(here.read_bytes()[:left])
    if not left:
        here.unlink()
    for ask in (checkpoint.find, checkpoint.load, checkpoint.gguf_file):
        with pytest.raises(UserError, match=f"not here.*llama-jax fetch {NAME}`"):
            ask(NAME)
    assert f"llama-jax fetch {NAME}" in checkpoint.models()[NAME]


def test_models_are_listed_for_a_user_without_a_home(here, monkeypatch):
    monkeypatch.delenv("LLAMA_JAX_CACHE")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(pathlib.Path, "home", lambda: pathlib.Path("~nobody-of-that-name").expanduser())
    assert f"llama-jax fetch {NAME}" in checkpoint.models()[NAME]
    with pytest.raises(UserError, match="HOME"):
        checkpoint.find(NAME)


def test_a_folder_of_ones_own_goes_before(here, tmp_path, monkeypatch):
    (tmp_path / NAME).mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="config.json"):
        checkpoint.find(NAME)
    assert checkpoint.gguf_file(NAME) is None


@pytest.mark.parametrize("name", fetched.WEIGHTS)
def test_parts_are_the_file(name):
    weights = fetched.WEIGHTS[name]
    parts = list(weights.parts())
    assert sum(size for _, size in parts) == weights.bytes
    assert [requirement.rpartition("part")[2] for requirement, _ in parts] == [
        f"{i + 1}=={weights.version}" for i in range(len(parts))
    ]
    held = weights.whole(2 * weights.part + 7)
    assert held == 2 * weights.part
    assert list(weights.parts(held)) == parts[2:]
    assert weights.whole(weights.bytes) == weights.bytes
    assert weights.whole(weights.bytes + 1) == weights.whole(weights.part - 1) == 0
    assert list(weights.parts(weights.bytes)) == []
