"""Prompts that an Ollama makes, with all that is needed to have them made again."""

import json
from types import SimpleNamespace

import pytest

from llama_jax import checkpoint
from llama_jax.plumbing.errors import UserError
from llama_jax.prompts import as_chat
from llama_lab.experiments.ollama import prompts, table
from llama_lab.peers import UnavailableError
from tests.bench.test_record import trial


class Client:
    """Says which requests it and those made of it got."""

    def __init__(self, host="http://127.0.0.1:9", timeout=0, asked=[]):  # noqa: B006 (which they share)
        self.asked = asked
        get = SimpleNamespace(json=lambda: dict(version="0.24.0"))
        self._client = SimpleNamespace(base_url=host, get=lambda path: get)

    def chat(self, **asked):
        self.asked.append(asked)
        return SimpleNamespace(message=SimpleNamespace(content=json.dumps(dict(prompts=["Why?", "How?"]))))

    def generate(self, **asked):
        self.asked.append(asked)
        return SimpleNamespace(response="So.")


def test_what_is_kept_says_how_it_was_made(tmp_path, monkeypatch, packaged):
    client, path = Client(), tmp_path / "p.json"
    client.asked.clear()
    monkeypatch.setattr(prompts.ollama, "connect", lambda loaded: SimpleNamespace(model="llama-jax-0", client=client))
    made = prompts.make(checkpoint.DEFAULT, 2, 7, path)
    assert prompts.load(path) == made
    assert (made.prompts, made.answers, made.ollama) == (["Why?", "How?"], ["So.", "So."], "0.24.0")
    assert len(made.ours) == 2
    assert all(len(packaged.tokenizer.encode(text)) >= 12 for text in made.ours)  # 24 tokens, or to a stop before
    frame = prompts.both_answers(made)
    assert list(frame.columns) == ["question", "Ollama", "loop+fused", "same words"]
    assert list(frame["same words"]) == [f"0 of {len(text.split())}" for text in made.ours]
    alike = made.model_copy(update=dict(answers=["a b c", "a b"], ours=["a b d", "a b c"]))
    assert list(prompts.both_answers(alike)["same words"]) == ["2 of 3", "2 of 3"]
    whole = made.model_copy(update=dict(answers=["a b c", "a b"], ours=["a b c", "b"]))
    said = "1 of 2 pairs of answers are the same throughout"
    assert prompts.parted(whole) == f"{said}; the others part after 0 to 0 words"
    assert prompts.parted(made.model_copy(update=dict(ours=made.answers))).endswith("the same throughout")
    assert made.weights_hash == packaged.weights_hash
    assert made.command.endswith("--count 2 --seed 7")
    first, *others = client.asked
    assert first["options"] == made.options == prompts.WRITTEN | dict(seed=7)
    counted = first["format"]["properties"]["prompts"]
    assert (counted["minItems"], counted["maxItems"]) == (2, 2)
    assert [one["prompt"] for one in others] == list(as_chat(packaged.tokenizer, made.prompts))
    assert all(one["raw"] for one in others)
    assert all(one["options"] == made.answer_options for one in others)


def test_an_answer_that_is_no_pool_leaves_the_file_alone(tmp_path, monkeypatch):
    path, server = tmp_path / "p.json", SimpleNamespace(model="llama-jax-0", client=Client())
    monkeypatch.setattr(prompts.ollama, "connect", lambda loaded: server)
    with pytest.raises(UserError, match="2 prompts instead of 3"):
        prompts.make(checkpoint.DEFAULT, 3, 0, path)
    assert not path.exists()


def test_a_machine_without_ollama_is_told_in_a_line(monkeypatch, tmp_path):
    def absent(loaded):
        raise UnavailableError("No Ollama server answers.", "Run `make ollama`.")

    monkeypatch.setattr(prompts.ollama, "connect", absent)
    monkeypatch.setattr("sys.argv", ["prompts", "--out", str(tmp_path / "p.json")])
    with pytest.raises(SystemExit, match="error: No Ollama server answers. Run `make ollama`."):
        prompts.main()


def test_medians_are_named_where_they_lie_outside_the_interval_of_pairs():
    """Slow answers of the peer move the mean of pairs, and not the medians."""

    def made(slow):
        gaps = {"loop": lambda b: 10, "ollama": lambda b: 30 if b < 11 else slow}
        return [
            trial(name, b, [10 + gap(b) * i for i in range(5)], run="main", process=b)
            for name, gap in gaps.items()
            for b in range(20)
        ]

    said = table.medians(made(60), "loop", "ollama")
    assert said == "by medians loop over Ollama is 3.00x, outside its interval of pairs"
    assert table.medians(made(30), "loop", "ollama") == ""
    assert table.medians(made(60), "loop", "nobody") == ""
