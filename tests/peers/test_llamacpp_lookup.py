"""Drafts by prompt lookup in llama.cpp: what is drafted, and that the tokens stay llama.cpp's own greedy ones."""

from dataclasses import replace

import numpy as np
import pytest

from llama_lab import peers
from llama_lab.bench import protocol
from llama_lab.bench.workload import Workload
from llama_lab.peers import llamacpp
from llama_lab.peers.llamacpp_lookup import LONGEST, SHORTEST, Drafts
from tests.peers.test_llamacpp import answer, some_ids, written

here = pytest.mark.peers


@pytest.fixture(autouse=True)
def _one_thread(monkeypatch, tmp_path):
    monkeypatch.setattr(llamacpp, "allowed_cores", lambda: [0])
    monkeypatch.setenv("LLAMA_JAX_CACHE", str(tmp_path / "cache"))


def test_a_draft_is_what_followed_the_last_occurrence():
    text = Drafts([1, 2, 3, 7, 8, 9, 1, 2, 3, 4, 5, 6, 1, 2, 3])
    assert text.next(8) == [4, 5]
    text.length = 8
    assert text.next(8) == [4, 5, 6, 1, 2, 3]  # what has not been written yet cannot be drafted
    assert text.next(3) == [4, 5, 6]
    assert text.next(0) == []


def test_the_longer_n_gram_decides_and_a_new_one_drafts_nothing():
    text = Drafts([1, 2, 3, 9, 0, 2, 3, 8, 8, 1, 2, 3])
    assert text.next(8)[0] == 9
    assert Drafts([1, 2, 3, 4]).next(8) == []
    assert Drafts([1]).next(8) == []


def test_drafts_grow_while_they_are_right_and_shrink_after():
    text, lengths = Drafts([]), []
    for drafted, accepted in [(2, 2), (4, 4), (8, 8), (16, 16), (16, 3), (8, 0), (4, 0), (2, 0), (0, 0)]:
        text.learn(drafted, accepted)
        lengths.append(text.length)
    assert lengths == [4, 8, 16, LONGEST, 8, 4, SHORTEST, SHORTEST, SHORTEST]


@here
@pytest.mark.parametrize("repeats", [1, 4])
def test_tokens_are_llama_cpps_own_for_every_number_of_them(tmp_path, repeats):
    loaded = written(tmp_path, "F32")
    ids = tuple(some_ids(loaded, 12) * repeats)
    whole = answer(loaded, "llamacpp", Workload((ids,), new_tokens=40, length=64))
    for new_tokens in (1, 2, 3, 17, 40):
        found = answer(loaded, "llamacpp+lookup", Workload((ids,), new_tokens=new_tokens, length=64))
        assert np.array_equal(found, whole[:new_tokens])


@here
@pytest.mark.parametrize("seed", range(4))
def test_wrong_drafts_change_nothing(tmp_path, monkeypatch, seed):
    """Drafts drawn at random, so that any number of their tokens may be right."""
    loaded, rng = written(tmp_path, "F32"), np.random.default_rng(seed)
    ids = tuple(some_ids(loaded, 20))
    whole = answer(loaded, "llamacpp", Workload((ids,), new_tokens=24, length=64))
    true = [*ids, *whole[:, 0].tolist()]

    def drawn(self, most):
        right, wrong = rng.integers(0, 4), rng.integers(0, 3)
        here = len(self.ids)
        return [*true[here : here + right], *rng.integers(0, 100, wrong).tolist()][:most]

    monkeypatch.setattr(Drafts, "next", drawn)
    assert np.array_equal(answer(loaded, "llamacpp+lookup", Workload((ids,), new_tokens=24, length=64)), whole)


@here
def test_a_text_that_repeats_itself_takes_fewer_calls(tmp_path, monkeypatch):
    loaded, counted = written(tmp_path, "F32"), []
    ids = tuple(some_ids(loaded, 20))
    work = Workload((ids,), new_tokens=24, length=64)
    whole = answer(loaded, "llamacpp", work)
    monkeypatch.setattr(llamacpp.Context, "decode", counting(counted, llamacpp.Context.decode))
    again = replace(work, prompts=((*ids, *whole[:, 0].tolist(), *ids),))  # the answer stands in the prompt
    blocks = list(peers.subject(loaded, "llamacpp+lookup").run(again.prompts[0], again))
    assert sum(len(block) for block in blocks) == 24
    assert len(counted) == len(blocks)
    assert max(counted[1:]) > 1


def counting(counted, decode):
    def run(self, tokens):
        counted.append(len(tokens))
        return decode(self, tokens)

    return run


@here
def test_several_rows_are_a_void_trial(tmp_path):
    loaded = written(tmp_path, "F32")
    work = Workload((tuple(some_ids(loaded, 8)),), new_tokens=4, length=32, batch=2)
    who = peers.subject(loaded, "llamacpp+lookup")
    record, _ = protocol.trial(who, work, 0, run="", block=0, order=0, process=0, phase="warm")
    assert not record.valid
    assert "drafts are of one row here, 2 were asked for" in record.reason
