"""Requests that join and leave: each one's tokens are those it gets alone, under any placement that steps."""

import contextlib
import functools
import threading
from dataclasses import replace
from queue import SimpleQueue

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import llama_jax as ll
from llama_jax import config, generate
from llama_jax.placement import Placement, parse
from llama_jax.sampling import Sampler
from llama_lab.bench import Guard
from llama_lab.serve import rows, stepper
from llama_lab.serve.answers import Stops
from llama_lab.serve.batcher import Batcher, FullError, Job
from llama_lab.serve.metrics import Metrics
from llama_lab.serve.rows import among
from tests.conftest import among_the_fast, build
from tests.kernels.models import random_model, small
from tests.test_constrained import random_grammar

pytestmark = pytest.mark.usefixtures("quickly")

CONTEXT, LONGEST = 256, 76  # of a slot; of a prompt that is drawn
SIZES = (16, 32)  # each further size of a prompt's pieces is a program more
FUSED = small(max_position_embeddings=512)  # a model that the fused kernel computes


@functools.cache
def engine_for(placement: Placement):
    """One engine a placement: its programs are compiled once for all tests here."""
    cfg = FUSED if placement.kernels == "fused" else config.tiny()
    return generate.bind(cfg, random_model(cfg) if cfg is FUSED else build(cfg), placement)


@functools.cache
def warmed(placement: str, slots: int):
    """One stepper a placement, and under rows a number of slots."""
    made = rows.build(engine_for(stepper.check(parse(placement))), CONTEXT, slots, SIZES)
    made.warm()
    return made


@contextlib.contextmanager
def started(placement, slots=2, queue=50):
    batcher = Batcher(warmed(placement, slots if "fused" in placement else 1), slots, queue, Metrics())
    batcher.start()
    try:
        yield batcher
    finally:
        batcher.close()


def alone(placement, request):
    """The tokens that a request gets by `generate`; one shape for all, so that one program computes them."""
    options = dict(sampler=request["sampler"], seeds=request["seed"], grammar=request.get("grammar"))
    options |= dict(length=LONGEST, slots=128)
    engine = engine_for(parse(placement))
    return list(generate.answer(engine, [request["ids"]], request["n"], **options)[0].token_ids)


class Reader:
    """Hears one request to its end."""

    def __init__(
        self, batcher, ids, n=8, sampler=generate.GREEDY, seed=0, stop=(), scored=False, grammar=None, echoed=False
    ):
        self.news = SimpleQueue()
        settings = replace(sampler.traced(), scored=np.bool_(scored))
        echoes = bool(echoed and len(ids) > 1)
        self.job = Job(
            ids, n, settings, seed, frozenset(stop), self.news.put, echoes, walker=grammar and grammar.host()
        )
        batcher.submit(self.job)

    def all(self):
        """(tokens, reason); then `scores` has those of each token."""
        heard = [self.news.get(timeout=60)]
        while not heard[-1].reason:
            heard.append(self.news.get(timeout=60))
        self.prompt = [score for news in heard for score in news.prompt]
        self.last, self.scores = heard[-1], [score for news in heard for score in news.scores]
        return [token for news in heard for token in news.tokens], self.last.reason


def asked(seed, count=8):
    """Prompts of many lengths, some that begin alike, with their settings; some follow a grammar."""
    random = np.random.default_rng(seed)
    first = random.integers(3, 97, 70).tolist()
    for i in range(count):
        own = random.integers(3, 97, int(random.integers(1, 80))).tolist()
        ids = (first[: int(random.integers(20, 70))] if i % 2 else []) + own
        sampler = [generate.GREEDY, Sampler(0.8, top_k=9), Sampler(1.2, top_p=0.8, repetition_penalty=1.2)][i % 3]
        grammar = random_grammar(i) if i % 8 in (2, 3, 4) else None
        yield dict(ids=ids[:LONGEST], n=int(random.integers(1, 16)), sampler=sampler, seed=i, grammar=grammar)


@pytest.mark.parametrize(
    ("placement", "slots"),
    among_the_fast(
        [("step+donate", 2), ("step+fused", 3)],  # a call of four rows is one of three
        [
            *((name, 2) for name in ("step+donate", "chunk8", "step+kvint8", "split", "step+aot")),
            *(("step+fused", 1), ("step+fused", 3), ("chunk4+q8_0+fused", 4)),
        ],
    ),
)
def test_each_request_gets_the_tokens_that_it_gets_alone(placement, slots):
    with started(placement, slots) as batcher, Guard() as guard:
        readers = [(request, Reader(batcher, **request)) for request in asked(5)]
        answers = [(request, reader.all()) for request, reader in readers]
        again = [Reader(batcher, [5] * 40, 6).all() for _ in range(2)]
    assert not guard.fired, guard.reason
    for request, answer in answers:
        assert answer == (alone(placement, request), "length")
    assert again[0] == again[1]  # the second from what the first left in its slot
    assert reused(batcher) > 0


@pytest.mark.parametrize(
    ("placement", "slots"),
    among_the_fast([("step+fused", 2)], [("step+fused", 2), ("step+donate", 2), ("chunk8+scan", 1)]),
)
def test_a_prompt_is_scored_among_others_that_answer(placement, slots):
    """Its answer is the one without scores; nothing compiles, and no neighbour's tokens change."""
    requests = list(asked(3, 6))
    with started(placement, slots) as batcher, Guard() as guard:
        readers = [Reader(batcher, **request, scored=i % 2, echoed=i % 2) for i, request in enumerate(requests)]
        answers = [reader.all() for reader in readers]
        nothing = Reader(batcher, [5] * 40, 0, scored=True, echoed=True)
        assert nothing.all() == ([], "length")
    assert not guard.fired, guard.reason
    scores = [ll.score(engine_for(parse(placement)), [r["ids"]])[0] for r in requests[1::2]]
    for request, answer in zip(requests, answers, strict=True):
        assert answer == (alone(placement, request), "length")
    for reader, expected in zip(readers[1::2], scores, strict=True):
        np.testing.assert_allclose([score.chosen for score in reader.prompt], expected.logprobs, atol=1e-4)
    assert len(nothing.prompt) == 39


@pytest.mark.parametrize("placement", ["step+donate", "step+fused"])
def test_a_prompt_whose_scoring_fails_or_is_left_ends_alone(placement, monkeypatch):
    with started(placement) as batcher:
        with monkeypatch.context() as patched:
            patched.setattr(batcher.stepper, "score", lambda *arguments: 1 / 0)
            assert Reader(batcher, [5] * 40, 2, scored=True, echoed=True).all() == ([], "error")
        left = Reader(batcher, [5] * 200, 2, scored=True, echoed=True)
        left.job.cancel()
        request = dict(ids=[5] * 40, n=6, sampler=generate.GREEDY, seed=0)
        assert Reader(batcher, **request, scored=True, echoed=True).all() == (alone(placement, request), "length")


def reused(batcher):
    return batcher.metrics.registry.get_sample_value("llama_jax_prompt_tokens_reused_total")


@pytest.mark.parametrize(
    ("placement", "slots"),
    among_the_fast(
        [("step+fused", 3)],
        [("split", 2), ("step+fused", 3), ("chunk4+q8_0+fused", 4)],
    ),
)
def test_log_probabilities_are_those_of_the_logits_and_cost_others_nothing(placement, slots):
    with started(placement, slots) as batcher, Guard() as guard:
        readers = [Reader(batcher, **request, scored=bool(i % 4)) for i, request in enumerate(asked(6))]
        answers = [(reader, *reader.all()) for reader in readers]
    assert not guard.fired, guard.reason
    for i, (request, (reader, tokens, _)) in enumerate(zip(asked(6), answers, strict=True)):
        assert tokens == alone(placement, request)
        assert len(reader.scores) == (len(tokens) if i % 4 else 0)
        if i % 4:
            text = [*request["ids"], *tokens]
            text += [0] * (LONGEST + 20 - len(text))  # what follows changes nothing, and one program computes all
            logits = generate.logits(engine_for(parse(placement)), text)[len(request["ids"]) - 1 :][: len(tokens)]
            values = np.asarray(jax.nn.log_softmax(logits))
            chosen = [score.chosen for score in reader.scores]
            np.testing.assert_allclose(chosen, values[np.arange(len(tokens)), tokens], atol=1e-3)
            best = [[value for _, value in score.best] for score in reader.scores]
            np.testing.assert_allclose(best, np.sort(values)[:, : -len(best[0]) - 1 : -1], atol=1e-3)
            ids = np.array([[i for i, _ in score.best] for score in reader.scores])
            np.testing.assert_allclose(np.take_along_axis(values, ids, -1), best, atol=1e-3)


def test_an_answer_ends_at_its_stop_token():
    with started("chunk4+fused", 1) as batcher:
        free, _ = Reader(batcher, [5, 9, 33], 12).all()
        answer = Reader(batcher, [5, 9, 33], 12, stop={free[3]}).all()
    assert answer == (free[: free.index(free[3]) + 1], "stop")


def test_what_is_cancelled_makes_room_and_what_waits_is_bounded():
    with started("step+donate", 1, queue=1) as batcher:
        first = Reader(batcher, [5], CONTEXT - 1)
        first.news.get(timeout=60)
        second = Reader(batcher, [9, 8], 3)
        with pytest.raises(FullError):
            Reader(batcher, [7], 3)
        first.job.cancel()
        assert first.all()[1] == "cancelled"
        assert second.all() == (Reader(batcher, [9, 8], 3).all()[0], "length")
        again = Reader(batcher, [5], 9).all()  # the slot that was left half way holds nothing wrong
    assert again == (alone("step+donate", dict(ids=[5], n=9, sampler=generate.GREEDY, seed=0)), "length")


def test_a_request_that_fails_ends_alone(monkeypatch):
    with started("step+donate") as batcher:
        other = Reader(batcher, [4, 5], 60)
        other.news.get(timeout=60)
        monkeypatch.setattr(type(batcher.stepper), "begin", lambda *arguments: 1 / 0)
        assert Reader(batcher, [50, 6], 5).all() == ([], "error")
        monkeypatch.undo()
        assert Reader(batcher, [50, 6], 5).all()[1] == "length"
        assert other.all()[1] == "length"


def test_a_call_that_fails_under_rows_ends_those_in_it_and_the_next_are_served(monkeypatch):
    """All slots are one state there, which a failed call takes with it."""
    with started("step+fused", 3) as batcher:
        programs = batcher.stepper.programs
        expected = Reader(batcher, [5] * 40, 6).all()
        readers = [Reader(batcher, [4, i], 200) for i in (5, 6)]
        for reader in readers:
            reader.news.get(timeout=60)

        def failing(params, slots, *rest):
            programs.step(params, slots, *rest)  # so that what it was given is gone
            raise ValueError

        monkeypatch.setattr(batcher.stepper, "programs", replace(programs, step=failing))
        assert [reader.all()[1] for reader in readers] == ["error", "error"]
        monkeypatch.undo()
        assert Reader(batcher, [5] * 40, 6).all() == expected
    assert reused(batcher) == 0


@given(
    st.integers(1, 20).flatmap(lambda count: st.tuples(st.just(count), st.sets(st.integers(0, count - 1), min_size=1)))
)
def test_rows_are_those_asked_for_and_as_many_more_as_a_shape_needs(drawn):
    count, wanted = drawn
    numbers, live = among(sorted(wanted), count)
    assert len(numbers) in {1, 2, 4, 8, 16, count}
    assert len(wanted) <= len(numbers) < 2 * len(wanted)
    assert (np.diff(numbers) > 0).all()
    assert set(numbers[live].tolist()) == wanted
    assert set(numbers.tolist()) <= set(range(count))


def test_closing_ends_what_runs_and_the_thread_and_times_are_in_order():
    before = threading.active_count()
    with started("step+donate", 1) as batcher:
        timed = Reader(batcher, [5] * 70, 4)
        timed.all()
        reader = Reader(batcher, [5], CONTEXT - 1)
        reader.news.get(timeout=60)
    assert reader.all()[1] in ("error", "length")
    assert threading.active_count() == before
    assert 0 < timed.job.asked_ns <= timed.last.began_ns < timed.last.first_ns < timed.last.last_ns
    with pytest.raises(FullError):
        Reader(batcher, [5], 1)


def test_stops_are_found_across_pieces_and_what_may_begin_one_is_held_back():
    stops = Stops(["END", "\n\n", ""])
    assert stops.feed("a E") == ("a ", False)
    assert stops.feed("N") == ("", False)
    assert stops.feed("S b\n") == ("ENS b", False)
    assert stops.feed("c EN") == ("\nc ", False)
    assert stops.feed("D more") == ("", True)
    assert Stops([]).feed("a") == ("a", False)
    held = Stops(["xy"])
    assert held.feed("x") == ("", False)
    assert held.rest() == "x"
