"""Hundreds of requests leave a server as it was; and what would not be so is found."""

import collections

import pytest

from tests.serve import soak

ROW = dict(run="soak", block=0, order=0, process=0, seed=0, valid=True, phase="warm", requests=1, cpu_seconds=1.0,
           resident_bytes=10**8, threads=20, descriptors=30, compilations=0, waiting=0, running=0)  # fmt: skip
GOOD = [soak.Look(**ROW)] * soak.ROUNDS
FINE = collections.Counter({("answer", 200): 5, ("malformed", 400): 1, ("vanishes", 0): 1})


@pytest.mark.slow
def test_hundreds_of_requests_leave_nothing_behind():
    looks, outcomes = soak.soak(600, 0)
    assert not soak.complaints(looks, outcomes, growth=0.1), looks
    assert sum(outcomes.values()) == 600
    assert {manner for manner, _ in outcomes} == set(soak.MANNERS)


@pytest.mark.parametrize(
    ("last", "outcomes", "words"),
    [
        (dict(), FINE, ""),
        (dict(resident_bytes=104 * 10**6), FINE, "memory grew by 4.0 %"),
        (dict(threads=21), FINE, "threads were 20 after warm-up and are 21"),
        (dict(descriptors=31), FINE, "descriptors were 30"),
        (dict(compilations=1), FINE, "compilations are 1"),
        (dict(running=1), FINE, "running are 1"),
        (dict(), FINE + collections.Counter({("malformed", 500): 2}), "malformed ended with 500, 2 times"),
        (dict(), FINE + collections.Counter({("answer", 503): 1}), "answer ended with 503, 1 times"),
    ],
)
def test_what_grows_or_goes_wrong_is_found(last, outcomes, words):
    found = soak.complaints([*GOOD[:-1], soak.Look(**ROW | last)], outcomes)
    assert len(found) == bool(words)
    assert words in " ".join(found)
