"""Servers that are asked the same in company: mistakes first, sums, and one that is really asked."""

import pytest

from llama_jax import checkpoint
from llama_jax.plumbing.errors import UserError
from llama_lab import attack
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


def row(subject, situation, process, **counts):
    known = dict(greedy=0, of_greedy=12, sampled=0, of_sampled=12, failed=0) | counts
    where = dict(run=subject, block=process - 1, order=0, process=process, seed=0, phase="warm", valid=True)
    return attacks.Attacked(**where, subject=subject, backend="x", model="m", slots=4, situation=situation, **known)


def test_rounds_are_added_up():
    rows = [row("a", "at once", 1, sampled=2), row("b", "at once", 2, failed=1, of_greedy=11)]
    rows += [row("a", "at once", 3, greedy=1), row("a", "scattered", 3)]
    entries = attacks.table(rows)
    (first,) = (e for e in entries if (e["name"], e["situation"]) == ("a", "at once"))
    assert {count: first[count] for count in attacks.COUNTS} == dict(
        greedy=1, of_greedy=24, sampled=2, of_sampled=24, failed=0
    )
    said = attacks.words(entries).splitlines()
    assert said[0].startswith("a: 3 of 72 answers differ")
    assert said[1].endswith("from those alone, 1 requests failed")
    assert len(show(entries, attacks.COLUMNS)) == 3
    assert attacks.words([]).startswith("Not recorded yet")


@pytest.mark.slow
def test_our_server_is_really_asked():
    rows, meta = attacks.Attacks(**ASKED).record()
    assert [r.situation for r in rows] == [*attack.SITUATIONS]
    assert {(r.greedy, r.of_greedy, r.sampled, r.of_sampled, r.failed) for r in rows} == {(0, 2, 0, 2, 0)}
    assert meta["missing"] == []
