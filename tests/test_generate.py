import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llama_jax import generate
from llama_jax.bench import Guard
from llama_jax.errors import UserError
from llama_jax.placement import parse


@pytest.fixture(scope="module")
def engines(tiny):
    return {name: generate.bind(*tiny, parse(name)) for name in ("step", "chunk8", "loop", "step+async", "eager")}


@given(st.integers(1, 5000))
def test_a_bucket_holds_its_prompt_and_wastes_at_most_a_third(n):
    size = generate.bucket(n)
    assert n <= size
    assert size == 16 or (size - n) / size <= 1 / 3
    assert generate.bucket(size) == size


@pytest.mark.parametrize("name", ["step", "chunk8", "loop", "step+async", "eager"])
@pytest.mark.parametrize("n", [1, 2, 8, 9, 10, 17])
def test_exactly_as_many_tokens_as_asked(engines, name, n):
    blocks = list(generate.stream(engines[name], [[1, 2, 3], [4]], n))
    assert sum(len(b) for b in blocks) == n
    assert all(b.dtype == np.int32 and b.shape[1] == 2 for b in blocks)


@pytest.mark.parametrize("name", ["step", "chunk8", "loop", "step+async", "eager"])
def test_stops_at_any_of_several_stop_tokens(engines, name):
    free = generate.answer(engines[name], [[1, 2, 3]], 16)[0].token_ids
    k = next(i for i in range(3, 16) if free[i] not in free[:i])
    answer = generate.answer(engines[name], [[1, 2, 3]], 16, stop=(96_000, free[k]))[0]
    assert answer == generate.Answer(free[: k + 1], "stop")
    assert generate.answer(engines[name], [[1, 2, 3]], 16, stop=(96_000,))[0].finish_reason == "length"


@pytest.mark.parametrize("name", ["step", "loop", "chunk8"])
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


def test_the_growing_cache_compiles_every_token(tiny):
    jax.clear_caches()
    engine = generate.bind(*tiny, parse("step+growing"))
    with Guard() as guard:
        generate.answer(engine, [[1, 2]], 9)
    assert sum(e.kind == "backend" and e.name == "step" for e in guard.events) == 8


def test_the_async_host_keeps_a_bounded_number_in_flight(tiny, monkeypatch):
    engine = generate.bind(*tiny, parse("step+async"))
    flying, most = 1, 0  # the prefill is in flight
    step, fetch = engine.programs.step, generate.fetch

    def counted_step(*args):
        nonlocal flying, most
        flying += 1
        most = max(most, flying)
        return step(*args)

    def counted_fetch(tokens):
        nonlocal flying
        flying -= 1
        return fetch(tokens)

    object.__setattr__(engine.programs, "step", counted_step)
    monkeypatch.setattr(generate, "fetch", counted_fetch)
    list(generate.stream(engine, [[1, 2]], 20))
    assert most == generate.IN_FLIGHT


def test_equal_prompts_with_one_seed_differ_by_row(tiny):
    engine = generate.bind(*tiny, parse("loop"))
    rows = generate.answer(engine, [[1, 2]] * 3, 12, sampler=generate.Sampler(1.5), seeds=4)
    assert len(set(rows)) == 3
