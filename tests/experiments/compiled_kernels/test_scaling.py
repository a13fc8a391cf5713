"""Rates by one size at a time: mistakes, points in order, and the children, on a small model."""

import pytest

from llama_jax.plumbing.errors import UserError
from llama_lab.bench import protocol
from llama_lab.bench.journal import Journal
from llama_lab.experiments.compiled_kernels import scaling
from tests.bench.test_record import trial

TINY = (
    "random:smollm2-135m,num_hidden_layers=2,hidden_size=64,intermediate_size=128,num_attention_heads=4,num_key_value_heads=2,"
    "head_dim=16,vocab_size=97"
)


def points(name="loop", rates={"256": 60, "4096": 40, "1024": 50}, axis="context", answers=3):  # noqa: B006
    """Answers of a subject at several sizes."""
    return [
        trial(
            name,
            0,
            [50 + 1e3 / rate * (1 + i / 1000) * k for k in range(11)],
            run=f"{axis} {value} {name}",
            order=i,
            weights_bytes=10**8,
        )
        for value, rate in rates.items()
        for i in range(answers)
    ]


def test_points_stand_in_the_order_of_their_size():
    found = scaling.axis_of(points() + points("llamacpp", {"256": 150}), "context")
    assert [p["value"] for p in found["loop"]] == ["256", "1024", "4096"]
    assert [p["rate"].n for p in found["loop"]] == [3, 3, 3]
    assert found["loop"][0]["rate"].median == pytest.approx(60, rel=0.01)
    assert scaling.kept(found["loop"]) == pytest.approx(40 / 60, rel=0.01)
    assert found["loop"][0]["mbu"] == pytest.approx(60 * 1e6 / 1e9, rel=0.01)
    assert scaling.axis_of(points(), "threads") == {}


def test_void_answers_do_not_count():
    made = [t.model_copy(update=dict(valid=False)) if t.run == "context 256 loop" else t for t in points()]
    assert [p["value"] for p in scaling.axis_of(made, "context")["loop"]] == ["1024", "4096"]


def asked(**changes):
    axes = dict(scale_contexts=[24], scale_threads=[])
    counts = dict(scale_tokens=6, scale_answers=1, scale_processes=1)
    return scaling.Scaling(**dict(model=TINY, seed=0, scaled=["loop", "llamacpp"]) | axes | counts | changes)


@pytest.mark.parametrize(
    ("words", "changes"),
    [
        ("threads asked for", dict(scale_threads=[999])),
        ("more than the model's 8192", dict(scale_contexts=[9000])),
        ("leaves no room", dict(scale_contexts=[6])),
        ("answers is 0", dict(scale_answers=0)),
        ("No such placement", dict(scaled=["lop"])),
    ],
)
def test_mistakes_are_named_before_anything_is_measured(words, changes):
    with pytest.raises(UserError, match=words):
        asked(**changes).record()


@pytest.mark.slow
def test_really_measured(tmp_path, monkeypatch):
    monkeypatch.setattr(protocol.tempfile, "gettempdir", lambda: str(tmp_path))
    journal, experiment = Journal(), asked(scale_contexts=[24, 64], scale_threads=[1], scale_answers=2)
    made, meta = experiment.record(journal)
    assert all(t.valid for t in made), [t.reason for t in made]
    assert {t.run for t in made} == {"context 24 loop", "context 64 loop", "threads 1 loop"}
    assert [gap["name"] for gap in meta["missing"]] == ["llamacpp"]
    assert {t.prompt_tokens + t.new_tokens for t in made if t.run == "context 64 loop"} == {64}
    (note,) = [
        n for n in journal.notes if n.get("process") == next(t.process for t in made if t.run == "threads 1 loop")
    ]
    assert len(note["affinity"]) == 1
    assert experiment.record(journal)[0] == made
