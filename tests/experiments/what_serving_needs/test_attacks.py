"""Servers that are asked the same in company: mistakes first, sums, and one that is really asked."""

import pytest

from llama_jax import checkpoint
from llama_jax.plumbing.errors import UserError
from llama_lab import attack
from llama_lab.bench import standings
from llama_lab.bench.frames import show
from llama_lab.experiments.what_serving_needs import attacks

ASKED = dict(
    model=checkpoint.DEFAULT, seed=0, attacked=("step+fused",), attack_requests=4, attack_tokens=3, attack_rounds=1,
    slots=2,
)  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (dict(attacked=("lop",)), "No such placement"),
        (dict(attacked=("loop",)), "makes a whole answer in one call"),
        (dict(attack_rounds=0), "rounds is 0"),
        (dict(attack_requests=0), "requests is 0"),
    ],
)
def test_mistakes_are_named(changes, words):
    with pytest.raises(UserError, match=words):
        attacks.Attacks(**ASKED | changes).check()


def row(subject, situation, process, backend="x", **counts):
    known = dict(greedy=0, of_greedy=12, sampled=0, of_sampled=12, failed=0) | counts
    where = dict(run=subject, block=process - 1, order=0, process=process, seed=0, phase="warm", valid=True)
    return attacks.Attacked(**where, subject=subject, backend=backend, model="m", slots=4, situation=situation, **known)


def test_rounds_are_added_up():
    rows = [row("a", "at once", 1, sampled=2), row("b", "at once", 2, "y", failed=1, of_greedy=11)]
    rows += [row("a", "at once", 3, greedy=1), row("a", "scattered", 3, greedy=3, sampled=1)]
    entries = attacks.table(rows)
    assert {key: entries[0][key] for key in ("name", "of", "differ", "greedy", "failed", "at once", "scattered")} == {
        "name": "a", "of": 72, "differ": 7, "greedy": 4, "failed": 0, "at once": 3, "scattered": 4
    }  # fmt: skip
    said = attacks.words(rows).splitlines()
    assert said[0].startswith("a: 7 of 72 answers differ")
    assert said[0].endswith("(3 at once and 4 scattered)")
    assert said[1].startswith("b: 0 of 23 ")
    assert said[1].endswith("1 requests failed")
    assert said[2:] == ["other answers only among others: a", "the same answers in every situation: b"]
    assert attacks.words([*rows, row("a", "alone again", 3, greedy=1)]).count("even when nobody else asks: a") == 1
    assert len(show(entries, attacks.COLUMNS)) == 2
    assert attacks.words([]).startswith("Not recorded yet")


def test_our_placements_are_added_up_by_their_kernels():
    names = "step+fused", "chunk8+fused", "step"
    ours = [row(name, "at once", i, standings.JAX, sampled=1) for i, name in enumerate(names, 1)]
    found = attacks.sides([*ours, row("b", "at once", 4)])
    assert [(e["differ"], e["of"]) for e in found] == [(2, 48), (1, 24), (0, 24)]
    assert ["+fused" in e["name"] for e in found] == [True, False, False]


@pytest.mark.slow
def test_our_server_is_really_asked():
    rows, meta = attacks.Attacks(**ASKED).record()
    assert [r.situation for r in rows] == [*attack.SITUATIONS]
    assert {(r.greedy, r.of_greedy, r.sampled, r.of_sampled, r.failed) for r in rows} == {(0, 2, 0, 2, 0)}
    assert meta["missing"] == []
