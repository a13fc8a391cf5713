"""A few examples at every boundary, the same ones each time; `make fuzz MINUTES=n` throws as many as time allows."""

import os
import time

import pytest

from llama_jax.plumbing.errors import UserError
from tests.conftest import among_the_fast
from tests.fuzz import arena, campaign
from tests.fuzz.boundaries import BOUNDARIES
from tests.fuzz.commands import PROCESS_S

EXAMPLES = 12
FEWER = {"command line": 5, "requests": 8, "reports": 8}


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return campaign.make_base(tmp_path_factory.mktemp("base"))


@pytest.mark.slow
@pytest.mark.parametrize("boundary", BOUNDARIES)
def test_whatever_comes_in_is_accepted_or_refused_in_one_line(base, boundary):
    faults = []

    def visit(example):
        outcome, message = arena.outcome(BOUNDARIES[boundary].run, example, base, PROCESS_S + 20)
        if outcome in arena.BAD or message.startswith("silently"):
            faults.append((outcome, message, repr(example)[:300]))

    campaign.thrown(boundary, FEWER.get(boundary, EXAMPLES), 0, visit)
    assert not faults


def fault(kind, base, folder):
    """What a boundary must not do."""
    if kind == "traceback":
        return 1 / 0
    if kind == "hang":
        return time.sleep(600)
    if kind == "blow-up":
        return len(bytearray(20 << 30))
    if kind == "abort":
        os.abort()
    raise UserError("It cannot be." if kind == "refused" else "")


@pytest.mark.parametrize("kind", among_the_fast({*arena.OUTCOMES} - {"hang"}, arena.OUTCOMES[1:]))
def test_each_fault_has_its_name(tmp_path, kind):
    assert arena.outcome(fault, kind, tmp_path, 5)[0] == kind


def test_a_refusal_that_says_nothing_is_none(tmp_path):
    assert arena.outcome(fault, "speechless", tmp_path, 5)[0] == "traceback"
