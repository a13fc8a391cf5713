"""A conversation with servers that keep the history: what is asked, of whom, and what they read of it."""

import numpy as np
import pytest

from llama_jax.plumbing.errors import UserError
from llama_lab.bench.workload import encoder
from llama_lab.experiments.ollama import conversation_chart, kept, table, turns
from llama_lab.peers import ollama_native
from tests.figures.drawn import words

PLACEMENT = "step+donate"


def said_by(names, packaged, chats=2):
    """The trials of the child, run in this process."""
    heard = []
    job = dict(model="smollm2-135m-instruct", dtype="float32", placements=[], workload=None)
    identity = dict(run=kept.KEPT, block=0, process=1)
    kept.conversations(lambda kind, value: heard.append((kind, value)), job, identity, names, chats, 2, 4, 3)
    return [value for kind, value in heard if kind == "trial"], [value for kind, value in heard if kind == "note"]


def test_no_two_conversations_begin_alike(packaged):
    one, other = (
        encoder(packaged)(turns.conversation(packaged, 1, 4, 0, f"Conversation {n}. ").prompts[0]) for n in (1, 2)
    )
    alike = np.argmin([a == b for a, b in zip(one, other, strict=True)])
    assert 0 < alike < 10 < len(one)


def test_a_server_that_does_not_start_is_named(packaged):
    words = "`llama-jax serve` under step did not start: .*context"
    with pytest.raises(UserError, match=words), kept.ours(packaged.source, "step", 10**9):
        pytest.fail("it started")


@pytest.mark.slow
def test_each_turn_makes_the_tokens_of_the_placement_alone(packaged):
    names = [PLACEMENT] + ["ollama"] * (ollama_native.BUILT.binary() is not None)
    trials, notes = said_by(names, packaged)
    assert {t["subject"] for t in trials} == set(names)
    assert len(trials) == 2 * 2 * len(names)  # chats, turns
    for t in trials:
        assert t["run"] == kept.KEPT
        assert t["valid"], t["reason"]
        assert t["new_tokens"] == 4
        assert t["server_prompt_tokens"] is not None
    assert notes[-1]["watch"]


def test_the_finding_names_who_was_asked_and_is_silent_of_who_was_not():
    assert table.both_ways([], ["step+fused"]).empty
    assert table.both_ways([], []).empty
    drawn = conversation_chart.conversation({}, {}, [40, 110], 16, "")
    assert words(drawn).startswith("Nobody was asked")
