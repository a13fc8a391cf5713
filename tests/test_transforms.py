"""Every placement and every switch makes the same tokens."""

import itertools
import random

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from llama_jax import generate, placement, transforms
from llama_jax.placement import LADDER, MODIFIERS, Placement, parse
from llama_jax.plumbing.errors import UserError
from llama_jax.quantise import FORMS
from llama_jax.sampling import Sampler
from llama_lab.bench import Guard
from tests.conftest import among_the_fast

pytestmark = pytest.mark.usefixtures("quickly")

N = 10  # one from the prefill, a chunk of eight, one more
PROMPTS = [[5, 9, 33, 60, 2, 7, 1], [8, 3], [44] * 11]
DRAW = Sampler(temperature=0.8, top_k=20, top_p=0.95, min_p=0.01, repetition_penalty=1.2)
FEWER_BITS = {"bf16", "kvbf16", "kvf16", "kvint8", "gemv", "fused", *FORMS}  # which may mean other tokens
SWITCHED = [m for m in MODIFIERS if m not in {"persistent", *FEWER_BITS}]


def valid_names():
    """Each ladder placement alone and `step` with each switch; among the slow tests two others with each switch too,
    and a seeded sample of the whole cross product."""
    fast = [*LADDER, *(f"step+{m}" for m in SWITCHED)]
    others = [f"{p}+{m}" for p in ("layer", "loop") for m in SWITCHED]
    everything = [
        "+".join([p, *some]) for p in LADDER for n in (1, 2, 3) for some in itertools.combinations(SWITCHED, n)
    ]
    others += random.Random(0).sample([name for name in everything if is_valid(name)], 16)
    return among_the_fast(fast, filter(is_valid, dict.fromkeys([*fast, *others])))


def is_valid(name):
    try:
        return bool(parse(name))
    except UserError:
        return False


def answers(tiny, name, sampler=generate.GREEDY, prompts=PROMPTS, n=N, engine=None, **options):
    engine = engine or generate.bind(*tiny, parse(name) if isinstance(name, str) else name)
    made = generate.answer(engine, prompts, n, sampler=sampler, seeds=[1, 2, 3][: len(prompts)], **options)
    return [answer.token_ids for answer in made]


@pytest.fixture(scope="module")
def expected(tiny):
    return answers(tiny, "step"), answers(tiny, "step", DRAW)


@pytest.mark.parametrize("name", valid_names())
def test_same_tokens_everywhere(tiny, expected, name):
    n = 4 if "growing" in name or "eager" in name else N  # every token is a compilation, or many calls, there
    engine = generate.bind(*tiny, parse(name))
    assert answers(tiny, name, n=n, engine=engine) == [row[:n] for row in expected[0]]
    if name in LADDER or "traced" in name:
        assert answers(tiny, name, DRAW, n=n, engine=engine) == [row[:n] for row in expected[1]]


WARM = ("split+traced+scan", "step+aot+donate", "step+queue", "chunk8+async", "chunk8+queue4", "chunk8+callback",
        "loop+callback", "loop+q8_0")  # fmt: skip


@pytest.mark.parametrize("name", among_the_fast(WARM, [*WARM, "eager+traced", "ops", "layer+aot", "step+nocache"]))
def test_nothing_compiles_after_the_first_request(tiny, name):
    engine = generate.bind(*tiny, parse(name))
    for _ in range(2):
        answers(tiny, name, DRAW, engine=engine)
    with Guard() as guard:
        answers(tiny, name, DRAW, engine=engine)
    assert not guard.fired, guard.reason


def test_sampled_and_greedy_differ(expected):
    assert expected[0] != expected[1]
    assert len(set(expected[0])) == 3


@pytest.fixture
def own_cache(tmp_path, monkeypatch):
    """The folder of a user's cache, of which JAX does not know yet."""
    monkeypatch.setenv("LLAMA_JAX_CACHE", str(tmp_path))
    before = jax.config.jax_compilation_cache_dir
    jax.config.update("jax_compilation_cache_dir", None)
    yield tmp_path / "xla"
    jax.config.update("jax_compilation_cache_dir", before)
    transforms.compilation_cache.reset_cache()


def test_a_persistent_cache_that_others_may_write_is_refused(tiny, own_cache):
    """JAX runs what lies there."""
    own_cache.mkdir()
    own_cache.chmod(0o777)
    with pytest.raises(UserError, match="xla .*may be written by others"):
        generate.bind(*tiny, parse("step+persistent"))
    assert jax.config.jax_compilation_cache_dir is None


def test_persistent_compilation_makes_the_same_tokens(tiny, expected, own_cache):
    assert answers(tiny, "step+persistent") == expected[0]
    assert any(own_cache.iterdir())
    jax.clear_caches()
    with Guard() as guard:
        assert answers(tiny, "step+persistent") == expected[0]
    assert guard.count("hit")


def test_bfloat16_runs_in_bfloat16(tiny):
    engine = generate.bind(*tiny, parse("step+bf16"))
    assert {leaf.dtype for leaf in jax.tree.leaves(engine.params)} == {jnp.dtype("bfloat16")}
    assert generate.logits(engine, PROMPTS[0]).dtype == jnp.float32
    loaded_so = generate.bind(tiny[0], engine.params, parse("step"))  # a checkpoint loaded as bfloat16 is not widened
    assert loaded_so.params.embeddings.weight.dtype == jnp.bfloat16


@pytest.mark.parametrize(
    ("name", "sampler"),
    [*((name, generate.GREEDY) for name in ("step", "step+scan", "step+growing", "step+nocache")), ("loop", DRAW)],
)
@pytest.mark.slow
def test_a_ragged_batch_equals_its_rows_alone(tiny, name, sampler):
    engine, n = generate.bind(*tiny, parse(name)), 3 if "growing" in name else 9
    together = [a.token_ids for a in generate.answer(engine, PROMPTS, n, sampler=sampler, seeds=[7, 8, 9])]
    alone = [
        generate.answer(engine, [p], n, sampler=sampler, seeds=[s])[0].token_ids
        for p, s in zip(PROMPTS, (7, 8, 9), strict=True)
    ]
    assert together == alone


@pytest.mark.parametrize("name", ["step+scan", "step+growing", "step+nocache"])
@pytest.mark.slow
def test_prefill_in_pieces_equals_prefill_in_one(tiny, name, monkeypatch):
    prompt = [int(i) for i in np.random.default_rng(0).integers(0, 97, 40)]
    whole = [answers(tiny, name, s, prompts=[prompt], length=40, n=3) for s in (generate.GREEDY, DRAW)]
    monkeypatch.setattr(generate, "PIECE", 16)
    assert [answers(tiny, name, s, prompts=[prompt], length=48, n=3) for s in (generate.GREEDY, DRAW)] == whole


def test_padding_changes_nothing_at_any_bucket_edge(tiny):
    engine = generate.bind(*tiny, parse("step"))
    for n in (15, 16, 17):
        prompt = list(range(n))
        exact = generate.answer(engine, [prompt], 5, length=n)
        assert exact == generate.answer(engine, [prompt], 5)


@pytest.mark.slow
def test_the_listed_names_and_only_they_are_jitted(tiny):
    """Each program that a placement compiles carries the name of a function the placement lists (or of its prefill)."""
    for p in LADDER.values():
        jax.clear_caches()
        with Guard() as guard:
            answers(tiny, p, prompts=PROMPTS[:1])
        allowed = set(p.jit) | ({"prefill", "extend", "step"} if {"step", "decode"} & set(p.jit) else set())
        named = {e.name for e in guard.events if e.kind == "lower"} & {*placement.TREE, "prefill", "extend"}
        assert named <= allowed
        assert set(p.jit) - {"rope", "norm"} <= named, p.name


def test_donation_reuses_the_buffers(tiny):
    engine = generate.bind(*tiny, parse("step+donate"))
    token, carry = generate.prefill(engine, generate.request(engine.config, PROMPTS, 8))
    text = engine.programs.step.lower(engine.params, token, carry, generate.GREEDY).compile().as_text()
    assert text.count("may-alias") + text.count("must-alias") >= 2 * engine.config.num_hidden_layers
    cached = jax.tree.leaves(carry.cache.entries)
    engine.programs.step(engine.params, token, carry, generate.GREEDY)
    assert all(a.is_deleted() for a in cached)
    assert not any(a.is_deleted() for a in jax.tree.leaves(engine.params))
    plain = generate.bind(*tiny, parse("step"))
    token, carry = generate.prefill(plain, generate.request(plain.config, PROMPTS, 8))
    plain.programs.step(plain.params, token, carry, generate.GREEDY)
    assert not any(a.is_deleted() for a in jax.tree.leaves(carry))


def test_a_leaf_compiled_ahead_of_time_tells_queries_from_keys(tiny, expected):
    made = answers(tiny, Placement("x", jit=("rope", "norm"), compile="aot"), n=2)
    assert made == [row[:2] for row in expected[0]]


def test_ahead_of_time_compiles_a_shape_once(tiny):
    engine = generate.bind(*tiny, parse("step+aot"))
    generate.answer(engine, [[1, 2]], 6)
    assert isinstance(engine.programs.step, transforms.AheadOfTime)
    assert len(engine.programs.step.executables) == 1
    with Guard() as guard:
        generate.answer(engine, [[3, 4, 5]], 6)
    assert not guard.fired
    with Guard() as guard:
        generate.answer(engine, [[3, 4, 5], [6]], 6)
    assert guard.count("backend") >= 2
    assert len(engine.programs.step.executables) == 2


def test_traced_settings_compile_once_for_all_values(tiny):
    def fired(name, second):
        engine = generate.bind(*tiny, parse(name))
        generate.answer(engine, [[1, 2]], 4, sampler=Sampler(0.7, top_k=5))
        second.traced()  # making the arrays is not part of the question
        with Guard() as guard:
            generate.answer(engine, [[1, 2]], 4, sampler=second)
        return guard.fired

    assert not fired("step+traced", Sampler(0.9, top_k=7))
    assert fired("step", Sampler(0.9, top_k=7))


def test_ones_own_placement_in_one_line(tiny, expected):
    assert answers(tiny, Placement("mine", jit=("attend", "head")), n=2) == [row[:2] for row in expected[0]]
