import gc
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import islice

import hypothesis
import jax
import numpy as np
import pytest
from hypothesis import strategies as st

from llama_jax import generate
from llama_jax.engine import bytes_needed
from llama_jax.placement import parse
from llama_jax.plumbing import memory
from llama_jax.plumbing.errors import UserError
from llama_jax.sampling import Sampler
from llama_lab.bench import Guard
from tests.conftest import among_the_fast, python

pytestmark = pytest.mark.usefixtures("no_thread_stays")

THREADED = ["step+queue", "chunk8+queue4", "chunk8+callback", "loop+callback"]
NAMES = ["step", "chunk8", "loop", "step+async", "step+async8", *THREADED, "eager"]


@pytest.fixture(scope="module")
def engines(tiny):
    """One of each name. What is the same program under several placements is compiled once."""
    made = {name: generate.bind(*tiny, parse(name)) for name in ("eager", "step")}
    first = made["step"].programs
    for name in ("chunk8", "loop", "chunk8+callback", "loop+callback"):
        engine = generate.bind(*tiny, parse(name))
        made[name] = replace(engine, programs=replace(engine.programs, prefill=first.prefill, step=first.step))
    return {name: made.get(name) or replace(made[name.partition("+")[0]], placement=parse(name)) for name in NAMES}


@hypothesis.given(st.integers(1, 5000))
def test_a_bucket_holds_its_prompt_and_wastes_at_most_a_third(n):
    size = generate.bucket(n)
    assert n <= size
    assert size == 16 or (size - n) / size <= 1 / 3
    assert generate.bucket(size) == size


@pytest.mark.parametrize("name", among_the_fast(NAMES[:-1], NAMES))
def test_exactly_as_many_tokens_as_asked(engines, name):
    for n in (1, 2, 8, 9, 10, 17):
        blocks = list(generate.stream(engines[name], [[1, 2, 3], [4]], n, slots=32))
        assert sum(len(b) for b in blocks) == n
        assert all(b.dtype == np.int32 and b.shape[1] == 2 for b in blocks)


@pytest.mark.parametrize("name", among_the_fast(NAMES[:-1], NAMES))
def test_stops_at_any_of_several_stop_tokens(engines, name):
    free = generate.answer(engines[name], [[1, 2, 3]], 16)[0].token_ids
    k = next(i for i in range(3, 16) if free[i] not in free[:i])
    answer = generate.answer(engines[name], [[1, 2, 3]], 16, stop=(96_000, free[k]))[0]
    assert answer == generate.Answer(free[: k + 1], "stop")
    assert generate.answer(engines[name], [[1, 2, 3]], 16, stop=(96_000,))[0].finish_reason == "length"


@pytest.mark.parametrize("name", ["step", "loop", "chunk8", *THREADED])
def test_a_batch_goes_on_until_its_last_row_stops(engines, name):
    prompts = [[1, 2, 3], [9, 8]]
    rows = [a.token_ids for a in generate.answer(engines[name], prompts, 16)]
    k = next(i for i in range(1, 12) if rows[0][i] not in rows[0][:i] + rows[1])
    answers = generate.answer(engines[name], prompts, 16, stop=(rows[0][k],))
    assert answers == [generate.Answer(rows[0][: k + 1], "stop"), generate.Answer(rows[1], "length")]


def test_a_stop_in_the_first_token_ends_at_once(engines):
    first = generate.answer(engines["loop"], [[1, 2, 3]], 1)[0].token_ids[0]
    for name in NAMES[:-1]:
        assert generate.answer(engines[name], [[1, 2, 3]], 16, stop=(first,))[0] == generate.Answer((first,), "stop")


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
        *((given, {}, "prompts is .* must be a list of prompts") for given in (None, 5, "1 2", b"12", {1: 2}, {(1,)})),
        *(([given], {}, "A prompt is .* must be a list of token ids") for given in (None, 5, "12", b"12", {1: 2}, {1})),
        ((i for i in [[1]]), {}, "prompts is <generator"),
        ([iter([1])], {}, "A prompt is <list_iterator"),
        ([1, 2, 3], {}, "A prompt is 1; it must be a list"),
        (np.array([1, 2, 3]), {}, "A prompt is "),
        *(([[1, given]], {}, "A token id is ") for given in (None, True, 1.0, "1", "a" * 5_000, [1], {}, np.True_)),
        *(([[1, given]], {}, "is outside the vocabulary of 97") for given in (2**31, 2**63, -(2**63), 10**30)),
        ([np.ones(3)], {}, "an array of float64 with 1 axes"),
        ([np.ones((2, 2), int)], {}, "an array of int64 with 2 axes"),
        ([np.ones(2, bool)], {}, "an array of bool"),
        ([np.array([3, 2**40])], {}, "1099511627776 is outside"),
        ([range(10**15)], {}, "exceed the model's context"),
        ([[1]], dict(new_tokens=None), "new_tokens is None"),
        ([[1]], dict(stop=range(98)), "98 stop tokens; the vocabulary has 97"),
        *(
            ([[1]], {name: given}, words)
            for names, words, values in (
                (
                    ("new_tokens", "slots", "length"),
                    "^(new_tokens|slots|length) is .* whole number",
                    (1.5, True, "4", [4], np.ones(1, int), -1, 2**31, 2**62, 2**63, 10**30, "a" * 5_000),
                ),
                (("slots",), "slots is .* at most 512", (513, 2**31, 2**62)),
                (("seeds",), "seed.? is ", (None, 1.5, "1", b"1", {}, {1}, True, [None], [True], [2**32])),
                (("stop",), "stop is .* list of token ids", (None, 5, "12", b"12", {1: 2}, iter([1]))),
                (("stop",), "A stop token is ", ([None], [True], [1.0], ["1"], [-1], [2**31], [2**40], [[1]])),
                (("sampler",), "sampler is .* must be a llama_jax.Sampler", (None, 0.5, {}, "greedy")),
            )
            for name in names
            for given in values
        ),
    ],
    ids=lambda value: repr(value).split(" at 0x")[0][:40],
)
def test_bad_requests_are_named_before_any_work(engines, prompts, options, words):
    with Guard() as guard, pytest.raises(UserError, match=words) as caught:
        next(generate.stream(engines["step"], prompts, **{"new_tokens": 4, **options}))
    assert not guard.events
    assert len(str(caught.value)) < 300
    if not options and isinstance(prompts, list) and len(prompts) == 1:  # logits name bad ids as requests do
        with pytest.raises(UserError):
            generate.logits(engines["step"], prompts[0])


def test_whole_numbers_and_lists_may_be_numpys(engines):
    """Whatever holds whole numbers is taken: the answer is that of plain lists."""
    plain = dict(prompts=[[1, 2, 3], [4, 5, 6]], new_tokens=6, seeds=[7, 8], stop=[5, 6], slots=24, length=16)
    expected, two, array = generate.answer(engines["step"], **plain), np.array(plain["prompts"]), jax.numpy.array
    same = dict(
        prompts=[
            *(two, two.astype(np.uint8), list(two), array(two), ((1, 2, 3), range(4, 7))),
            [[np.int32(1), 2, np.array(3)], [4, 5, array(6)]],
        ],
        seeds=[np.array([7, 8]), np.uint32([7, 8]), range(7, 9), (np.int64(7), 8), np.int64(7)],
        stop=[np.array([6, 5]), {5, 6}, (np.int32(6), 5, 5)],
        **{name: [np.int16(plain[name]), array(plain[name])] for name in ("new_tokens", "slots", "length")},
    )
    for name, values in same.items():
        for value in values:
            assert generate.answer(engines["step"], **plain | {name: value}) == expected


SCALARS = st.one_of(
    *(st.none(), st.booleans(), st.integers(-3, 300), st.floats(), st.text(max_size=3), st.binary(max_size=3)),
    st.sampled_from([2**31, 2**62, 2**63, 10**30, -(2**63), np.int64(3), np.float32(3), np.True_]),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.tuples(inner) | st.dictionaries(st.text(), inner, max_size=1),
)


@hypothesis.settings(max_examples=300, deadline=None)
@hypothesis.given(st.data())
def test_a_request_is_made_or_is_one_line(tiny, data):
    """Whatever the arguments are, one or several of them hostile at once."""
    honest = dict(prompts=[[1, 2], [3]], new_tokens=4, seeds=0, stop=(), slots=None, length=None)
    hostile = {name: data.draw(VALUES) for name in data.draw(st.sets(st.sampled_from(sorted(honest)), min_size=1))}
    try:
        made = generate.request(tiny[0], **honest | hostile)
    except UserError as error:
        assert 0 < len(f"{error}") < 400  # noqa: PT017 whether it is raised is what is open
        return
    rows, length = made.ids.shape
    assert len(made.pad) == len(made.seeds) == rows
    assert length + made.new_tokens - 1 <= made.slots <= 512
    assert ((made.ids >= 0) & (made.ids < 97)).all()


def test_memory_is_counted_before_any_is_taken(tiny, monkeypatch):
    """The engine's own cache decides: twice a cache that is not donated, half of it in half the bits."""
    cfg, params = tiny
    deep = replace(cfg, max_position_embeddings=2**20, num_hidden_layers=1_000)
    taken = {
        name: bytes_needed(generate.Engine(deep, params, parse(name), None), False, 1, 16, 2**20)
        for name in ("step", "step+donate", "step+kvbf16", "step+kvint8", "step+nocache")
    }
    cache = 2**20 * 2 * 1_000 * 2 * 8 * 4
    rest = 4 * (4 * 16 * 2**20 + 97)
    assert taken["step"] == 2 * cache + rest
    assert taken["step+donate"] == taken["step+kvbf16"] == cache + rest
    assert taken["step+kvint8"] == cache * (1 + 4 / 8) / 2 + rest
    assert taken["step+nocache"] == 4 * (4 * 2**40 + 97)
    engine = generate.Engine(deep, params, parse("step"), None)
    monkeypatch.setattr(memory, "free", lambda device: taken["step"])
    generate.checked_request(engine, [[1]], 4, slots=2**20)
    monkeypatch.setattr(memory, "free", lambda device: taken["step"] - 1)
    with pytest.raises(UserError, match=r"1 prompts of 16 padded tokens with 1048576 cache slots need .* GB are free"):
        generate.checked_request(engine, [[1]], 4, slots=2**20)


def test_ten_million_prompts_are_refused_before_they_are_read(tiny, monkeypatch):
    monkeypatch.setattr(memory, "free", lambda device: 8 << 30)
    with pytest.raises(UserError, match="10000000 prompts of 16 padded tokens"):
        generate.checked_request(generate.bind(*tiny, parse("step")), [[None]] * 10**7, 4)


def test_a_full_cache_is_used_to_its_last_slot(engines):
    exact = generate.answer(engines["step"], [[1, 2, 3]], 8, length=3, slots=10)
    assert exact == generate.answer(engines["step"], [[1, 2, 3]], 8)
    with pytest.raises(UserError, match="slots"):
        generate.answer(engines["step"], [[1, 2, 3]], 9, length=3, slots=10)


def test_the_fixed_cache_decodes_200_tokens_without_compiling(engines):
    generate.answer(engines["step"], [[1, 2]], 200)
    with Guard() as guard:
        generate.answer(engines["step"], [[3, 4, 5]], 200)
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
    def broken(*args, **named):
        raise ZeroDivisionError("broken")

    engine = engines[name]
    batch = generate.request(engine.config, [[1, 2]], 20)
    calls = replace(engine.programs, step=broken, decode=engine.programs.decode and broken)
    bad = replace(engine, programs=calls) if where == "start" else replace(engine, fetch=broken)
    with pytest.raises(ZeroDivisionError, match="broken"):
        list(generate.decode(bad, batch, *generate.prefill(engine, batch)))
    assert len(generate.answer(engine, [[1, 2]], 3)[0].token_ids) == 3


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


SHARED = ["step+donate", "chunk8+aot", "loop+aot+donate", "layer+donate", "step+traced", "step+async4+aot", *THREADED,
          "chunk8+callback+donate", "loop+callback+aot+donate", "chunk8+queue4+aot+donate"]  # fmt: skip
FAST = ("chunk8+aot", "step+async4+aot", "layer+donate", *THREADED)


@pytest.mark.parametrize("name", among_the_fast(FAST, SHARED))
def test_threads_share_an_engine_from_its_first_request_on(tiny, engines, name):
    """All begin at once, so that they meet in the compilation as well."""
    engine, gate = generate.bind(*tiny, parse(name)), threading.Barrier(3)

    def ask(i):
        gate.wait(60)
        return [generate.answer(engine, [[i, j, 3]], 12)[0] for j in range(1, 5)]

    with ThreadPoolExecutor(3) as pool:
        together = list(pool.map(ask, range(3)))
    assert together == [[generate.answer(engines["step"], [[i, j, 3]], 12)[0] for j in range(1, 5)] for i in range(3)]


@pytest.mark.parametrize("name", ["step", *THREADED])
def test_a_stream_may_be_closed_or_read_on_in_another_thread(engines, name):
    blocks = generate.stream(engines[name], [[1, 2, 3]], 40)
    begun = [next(blocks) for _ in range(2)]
    with ThreadPoolExecutor(1) as pool:
        rest = pool.submit(lambda: list(islice(blocks, 1))).result(60)
        pool.submit(blocks.close).result(60)
    assert list(blocks) == []
    tokens = tuple(int(t) for block in begun + rest for t in block[:, 0])
    assert tokens == generate.answer(engines["step"], [[1, 2, 3]], len(tokens))[0].token_ids


CHILD = """
import os, signal, sys, threading, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background is started deaf to it
from llama_jax import config, generate
from llama_jax.checkpoint import random, tensors
from llama_jax.plumbing.errors import UserError
from llama_jax.placement import parse
tiny = config.tiny()
def bind(name):
    return generate.bind(tiny, tensors.assemble(random.open_random(tiny, 0), "float32"), parse(name))
def ask(engine):
    return generate.answer(engine, [[1, 2, 3]], 20)[0].token_ids
"""
FORKS = """
def fork(work):
    child = os.fork()
    if not child:
        try:
            print(work(), flush=True)
        except UserError as error:
            print(error, flush=True)
        finally:
            os._exit(0)
    os.waitpid(child, 0)
fork(lambda: len(ask(bind("step"))))  # before anything was computed
engine = bind("step+queue")
expected = ask(engine)
half = generate.stream(engine, [[1, 2, 3]], 20)
next(half)
sync = generate.stream(bind("step"), [[1, 2, 3]], 20)
next(sync)
fork(lambda: ask(engine))
fork(lambda: bind("step"))
fork(lambda: len(list(half)))
fork(lambda: next(sync))
print(len(list(half)), ask(engine) == expected)
"""


def test_a_fork_of_a_process_with_engines_is_refused():
    before, *within, after = python(CHILD + FORKS)[0].split("\n")
    assert (before, after) == ("20", "19 True")
    assert len(within) == 4
    assert len(set(within)) == 1
    assert "a fork of one that has used JAX" in within[0]


INTERRUPTED = """
signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT))
engine = bind(sys.argv[1])
list(generate.stream(engine, [[1, 2, 3]], 200))  # compiled: JAX survives no exit while a compilation is under way
expected, heard = ask(engine), 0
for delay in (0.001, 0.003, 0.01, 0.02, 0.05, 0.1):
    signal.setitimer(signal.ITIMER_REAL, delay, 5)
    try:
        while True:
            for block in generate.stream(engine, [[1, 2, 3]], 200):
                pass
    except KeyboardInterrupt:
        signal.setitimer(signal.ITIMER_REAL, 0)
        heard += 1
    assert ask(engine) == expected
deadline = time.monotonic() + 60
while threading.active_count() > 1 and time.monotonic() < deadline:
    time.sleep(0.01)
print(heard, threading.active_count())
"""


SLOWER = ("chunk8", "chunk8+callback", "step+queue", "step+async8")


@pytest.mark.parametrize("name", among_the_fast(("loop", "loop+callback"), ("loop", "loop+callback", *SLOWER)))
def test_ctrl_c_at_any_time_ends_a_stream_and_the_next_is_whole(name):
    """A program under way is waited for; no thread stays, and tokens are those of before."""
    assert python(CHILD + INTERRUPTED, name)[0] == "6 1"


def test_a_callback_streams_each_token_of_a_loop(engines):
    for name, sizes in (("loop", [1, 19]), ("loop+callback", [1] * 20)):
        assert [len(b) for b in generate.stream(engines[name], [[1, 2, 3]], 20)] == sizes
    blocks = generate.stream(engines["loop+callback"], [[1, 2, 3]], 20)
    first = [int(b[0, 0]) for b in islice(blocks, 5)]
    blocks.close()
    assert tuple(first) == generate.answer(engines["step"], [[1, 2, 3]], 5)[0].token_ids


def test_equal_prompts_with_one_seed_differ_by_row(tiny):
    engine = generate.bind(*tiny, parse("loop"))
    rows = generate.answer(engine, [[1, 2]] * 3, 12, sampler=Sampler(1.5), seeds=4)
    assert len(set(rows)) == 3
