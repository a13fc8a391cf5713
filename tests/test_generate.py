import gc
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import islice

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llama_jax import generate
from llama_jax.bench import Guard
from llama_jax.errors import UserError
from llama_jax.placement import parse

THREADED = ["step+queue", "chunk8+queue4", "chunk8+callback", "loop+callback"]
NAMES = ["step", "chunk8", "loop", "step+async", "step+async8", "eager", *THREADED]


@pytest.fixture(scope="module")
def engines(tiny):
    """One of each name. What is the same program under several placements is compiled once."""
    made = {name: generate.bind(*tiny, parse(name)) for name in ("eager", "step")}
    first = made["step"].programs
    for name in ("chunk8", "loop", "chunk8+callback", "loop+callback"):
        engine = generate.bind(*tiny, parse(name))
        made[name] = replace(engine, programs=replace(engine.programs, prefill=first.prefill, step=first.step))
    return {name: made.get(name) or replace(made[name.partition("+")[0]], placement=parse(name)) for name in NAMES}


@pytest.fixture(autouse=True)
def no_thread_stays():
    before = threading.active_count()
    yield
    assert threading.active_count() == before


@given(st.integers(1, 5000))
def test_a_bucket_holds_its_prompt_and_wastes_at_most_a_third(n):
    size = generate.bucket(n)
    assert n <= size
    assert size == 16 or (size - n) / size <= 1 / 3
    assert generate.bucket(size) == size


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("n", [1, 2, 8, 9, 10, 17])
def test_exactly_as_many_tokens_as_asked(engines, name, n):
    blocks = list(generate.stream(engines[name], [[1, 2, 3], [4]], n))
    assert sum(len(b) for b in blocks) == n
    assert all(b.dtype == np.int32 and b.shape[1] == 2 for b in blocks)


@pytest.mark.parametrize("name", NAMES)
def test_stops_at_any_of_several_stop_tokens(engines, name):
    free = generate.answer(engines[name], [[1, 2, 3]], 16)[0].token_ids
    k = next(i for i in range(3, 16) if free[i] not in free[:i])
    answer = generate.answer(engines[name], [[1, 2, 3]], 16, stop=(96_000, free[k]))[0]
    assert answer == generate.Answer(free[: k + 1], "stop")
    assert generate.answer(engines[name], [[1, 2, 3]], 16, stop=(96_000,))[0].finish_reason == "length"


@pytest.mark.parametrize("name", ["step", "loop", "chunk8", *THREADED])
def test_a_batch_goes_on_until_its_last_row_stops(engines, name):
    rows = [a.token_ids for a in generate.answer(engines[name], [[1, 2, 3], [9, 8]], 16)]
    k = next(i for i in range(1, 12) if rows[0][i] not in rows[0][:i] + rows[1])
    answers = generate.answer(engines[name], [[1, 2, 3], [9, 8]], 16, stop=(rows[0][k],))
    assert (answers[0].finish_reason, len(answers[0].token_ids)) == ("stop", k + 1)
    assert answers[1] == generate.Answer(rows[1], "length")


def test_a_stop_in_the_first_token_ends_at_once(engines):
    first = generate.answer(engines["loop"], [[1, 2, 3]], 1)[0].token_ids[0]
    for engine in engines.values():
        assert generate.answer(engine, [[1, 2, 3]], 9, stop=(first,))[0] == generate.Answer((first,), "stop")


@pytest.mark.parametrize(
    ("prompts", "options", "words"),
    [
        ([[]], {}, "empty"),
        ([], {}, "empty"),
        ([[97]], {}, "97 is outside the vocabulary of 97"),
        ([[-1]], {}, "-1 is outside"),
        ([[1]], dict(new_tokens=0), "new_tokens is 0"),
        ([[1]], dict(new_tokens=256), "context of 256"),
        ([[1]], dict(slots=10), "the cache has 10"),
        ([[1, 2, 3]], dict(length=2), "more than the padded length"),
        ([[1]], dict(seeds=-1), "seed is -1"),
        ([[1]], dict(seeds=[1, 2]), "2 seeds for 1"),
    ],
)
def test_bad_requests_are_named_before_any_work(engines, prompts, options, words):
    with Guard() as guard, pytest.raises(UserError, match=words):
        next(generate.stream(engines["step"], prompts, **{"new_tokens": 4, **options}))
    assert not guard.events


def test_a_full_cache_is_used_to_its_last_slot(engines):
    exact = generate.answer(engines["step"], [[1, 2, 3]], 8, length=3, slots=10)
    assert exact == generate.answer(engines["step"], [[1, 2, 3]], 8)
    with pytest.raises(UserError, match="slots"):
        generate.answer(engines["step"], [[1, 2, 3]], 9, length=3, slots=10)


def test_the_fixed_cache_decodes_200_tokens_without_compiling(tiny):
    engine = generate.bind(*tiny, parse("step"))
    generate.answer(engine, [[1, 2]], 200)
    with Guard() as guard:
        generate.answer(engine, [[3, 4, 5]], 200)
    assert not guard.events


@pytest.mark.slow
def test_the_growing_cache_compiles_every_token(tiny):
    jax.clear_caches()
    engine = generate.bind(*tiny, parse("step+growing"))
    with Guard() as guard:
        generate.answer(engine, [[1, 2]], 9)
    assert sum(e.kind == "backend" and e.name == "step" for e in guard.events) == 8


@pytest.mark.parametrize(
    ("name", "most"), [("step", 1), ("step+async", 2), ("step+async8", 8), ("step+queue", 2), ("step+queue4", 4)]
)
def test_the_host_keeps_a_bounded_number_in_flight(engines, name, most):
    engine, lock, flying, seen = engines["step"], threading.Lock(), 1, 0  # the prefill is in flight

    def step(*args):
        nonlocal flying, seen
        with lock:
            flying += 1
            seen = max(seen, flying)
        return engine.programs.step(*args)

    def fetch(tokens):
        nonlocal flying
        block = generate.fetch(tokens)
        with lock:
            flying -= 1
        return block

    counted = replace(engine, placement=parse(name), programs=replace(engine.programs, step=step), fetch=fetch)
    list(generate.stream(counted, [[1, 2]], 20))
    assert seen <= most
    assert seen == most or "queue" in name  # there, the fetching thread may keep up


@pytest.mark.parametrize("name", THREADED)
@pytest.mark.parametrize("how", ["close", "drop", "throw", "raise"])
def test_a_reader_that_leaves_ends_all_threads(engines, name, how):
    before, blocks = threading.active_count(), generate.stream(engines[name], [[1, 2, 3]], 60)
    next(blocks), next(blocks)
    if how == "close":
        blocks.close()
    elif how == "throw":
        with pytest.raises(KeyboardInterrupt):
            blocks.throw(KeyboardInterrupt)
    elif how == "raise":
        with pytest.raises(ZeroDivisionError):
            [1 // 0 for _ in blocks]
        del blocks
    else:
        del blocks
    gc.collect()
    assert threading.active_count() == before
    assert len(generate.answer(engines[name], [[1, 2, 3]], 9)[0].token_ids) == 9  # the next request is served


@pytest.mark.parametrize("name", ["loop+callback", "chunk8+callback"])
def test_a_compiled_loop_stops_when_its_reader_has_left(tiny, name):
    """200 tokens are asked for and two are read: the device must not go on to the last."""
    engine, sent = generate.bind(*tiny, parse(name)), []
    receive, stay = engine.programs.receiver.taking, threading.Event()

    def slowly(take):  # holds the device at the second token until the reader has left
        def taken(tokens):
            sent.append(tokens)
            if len(sent) == 2:
                stay.wait(20)
            return take(tokens)

        return receive(taken)

    engine.programs.receiver.taking = slowly
    blocks = generate.stream(engine, [[1, 2, 3]], 200)
    next(blocks), next(blocks)
    closing = threading.Timer(0.2, stay.set)
    closing.start()
    blocks.close()
    closing.join()
    assert 2 <= len(sent) <= 16


@pytest.mark.parametrize("name", THREADED)
@pytest.mark.parametrize("where", ["start", "fetch"])
def test_an_error_in_any_thread_reaches_the_reader(engines, name, where):
    def broken(*args):
        raise ZeroDivisionError("broken")

    engine = engines[name]
    if where == "start":
        bad = replace(engine, programs=replace(engine.programs, step=broken, decode=engine.programs.decode and broken))
        with pytest.raises(ZeroDivisionError, match="broken"):
            list(generate.stream(bad, [[1, 2]], 20))
    else:
        blocks = generate.stream(engine, [[1, 2]], 20)
        next(blocks)
        bad = replace(engine, fetch=broken)
        batch = generate.request(engine.config, [[1, 2]], 20)
        with pytest.raises(ZeroDivisionError, match="broken"):
            list(generate.decode(bad, batch, *generate.prefill(engine, batch)))
        blocks.close()
    assert threading.active_count() == 1 or len(generate.answer(engine, [[1, 2]], 3)[0].token_ids) == 3


@pytest.mark.parametrize("name", ["loop+callback", "chunk8+callback"])
def test_an_error_in_the_callback_ends_the_program_and_spares_the_next(engines, name):
    engine = engines[name]
    batch = generate.request(engine.config, [[1, 2]], 20)
    token, carry = generate.prefill(engine, batch)
    broken = replace(engine, programs=replace(engine.programs, receiver=Unwilling()))
    with pytest.raises(ZeroDivisionError, match="unwilling"):
        list(generate.decode(broken, batch, token, carry))
    assert len(generate.answer(engine, [[1, 2]], 20)[0].token_ids) == 20


class Unwilling:
    def taking(self, take):
        raise ZeroDivisionError("unwilling")


@pytest.mark.parametrize("name", THREADED)
def test_a_new_request_is_no_new_program(engines, name):
    for _ in range(2):
        generate.answer(engines[name], [[1, 2, 3]], 20)
    with Guard() as guard:
        generate.answer(engines[name], [[4, 5]], 20)
    assert not guard.events


@pytest.mark.parametrize("name", THREADED)
def test_requests_side_by_side_do_not_mix(engines, name):
    prompts = [[i, i + 1, i + 2] for i in range(1, 25)]
    alone = [generate.answer(engines["step"], [p], 20)[0] for p in prompts]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda p: generate.answer(engines[name], [p], 20)[0], prompts))
    assert together == alone


def test_a_callback_streams_each_token_of_a_loop(engines):
    sizes = {
        name: [len(b) for b in generate.stream(engines[name], [[1, 2, 3]], 20)] for name in ("loop", "loop+callback")
    }
    assert sizes == {"loop": [1, 19], "loop+callback": [1] * 20}
    blocks = generate.stream(engines["loop+callback"], [[1, 2, 3]], 20)
    first = [int(b[0, 0]) for b in islice(blocks, 5)]
    blocks.close()
    assert tuple(first) == generate.answer(engines["step"], [[1, 2, 3]], 5)[0].token_ids


def test_equal_prompts_with_one_seed_differ_by_row(tiny):
    engine = generate.bind(*tiny, parse("loop"))
    rows = generate.answer(engine, [[1, 2]] * 3, 12, sampler=generate.Sampler(1.5), seeds=4)
    assert len(set(rows)) == 3
