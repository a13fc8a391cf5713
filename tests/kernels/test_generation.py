"""Whole answers with kernels: the same tokens however the steps are grouped, and the distributions of other
arithmetic."""

from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import llama_jax as ll
from llama_jax import config, generate, serialised
from llama_jax.plumbing.errors import UserError
from llama_jax.sampling import Sampler
from tests.conftest import among_the_fast, build, python
from tests.kernels.models import random_model, small

FUSED = ("step+fused", "chunk8+fused", "loop+fused")
PROMPT = [5, 9, 33, 60, 2]


def checkpoint_of(cfg):
    return ll.Checkpoint("small", cfg, random_model(cfg), None, "", "random:", "float32")


@pytest.fixture(
    scope="module", params=["llama", *(pytest.param(each, marks=pytest.mark.slow) for each in ("qwen2", "qwen3"))]
)
def checkpoint(request):
    return checkpoint_of(small(request.param))


@pytest.fixture(scope="module")
def engines(checkpoint):
    return {name: ll.build(checkpoint, name) for name in (*FUSED, "step+gemv", "step+gemv+kvf16", "step+fused+traced")}


def tokens(engine, n=40, prompt=PROMPT, **options):
    return ll.answer(engine, [prompt], n, **options)[0]


DRAWN = Sampler(0.9, top_k=8, repetition_penalty=1.2)
OTHERS = [Sampler(1.1, top_p=0.8, repetition_penalty=1.3), Sampler(repetition_penalty=1.5)]


@pytest.mark.parametrize("sampler", among_the_fast((Sampler(), DRAWN), [Sampler(), DRAWN, *OTHERS]))
def test_steps_chunks_and_loop_give_the_same_tokens(engines, sampler):
    steps, chunks, loop = (tokens(engines[name], sampler=sampler, seeds=3) for name in FUSED)
    assert steps == chunks == loop
    assert len(set(steps.token_ids)) > 3
    if sampler != Sampler():
        assert steps != tokens(engines["step+fused"])


@pytest.mark.parametrize("sampler", [Sampler(), DRAWN])
def test_settings_as_arguments_of_the_program_give_the_same_tokens(engines, sampler):
    assert tokens(engines["step+fused+traced"], sampler=sampler) == tokens(engines["step+fused"], sampler=sampler)


@pytest.mark.parametrize("name", FUSED)
def test_a_stop_token_ends_the_answer(engines, name):
    whole = tokens(engines[name])
    stop = next(t for i, t in enumerate(whole.token_ids) if i > 10 and t not in whole.token_ids[:i])
    stopped = tokens(engines[name], stop=(stop,))
    assert stopped.finish_reason == "stop"
    assert stopped.token_ids == whole.token_ids[: whole.token_ids.index(stop) + 1]


@pytest.mark.parametrize("name", FUSED)
def test_a_cache_is_used_to_its_last_slot(engines, name):
    """As many slots as the request needs and no more: the same tokens as in a larger cache."""
    needed = 40 + 16 - 1
    exact, roomy = (tokens(engines[name], 16, PROMPT * 8, length=40, slots=slots) for slots in (needed, needed + 64))
    assert exact == roomy


def test_a_prompt_in_pieces_leaves_the_cache_of_its_tokens_one_by_one(engines, monkeypatch):
    prompt = [int(t) for t in np.random.default_rng(0).integers(0, 97, 700)]
    engine = engines["step+fused"]

    def kept(prompt, length=None):
        batch = generate.request(engine.config, [prompt], 12, length=length, slots=1024)
        token, carry = generate.prefill(engine, batch)
        return [int(token[0]), *(np.asarray(entry) for entry in carry.cache.entries)]

    whole = kept(prompt, 768)
    assert all(map(np.array_equal, whole, kept(prompt, 705)))
    monkeypatch.setattr(generate, "PIECE", 1)
    assert all(map(np.array_equal, whole, kept(prompt, 700)))
    assert not np.array_equal(whole[1], kept([*prompt[1:], 1], 700)[1])


def test_logits_of_the_fused_step_are_those_of_products_alone(engines):
    """Two ways through the same quantised arithmetic, float16 keys and values in both."""
    ids = [int(t) for t in np.random.default_rng(1).integers(0, 97, 150)]
    one, other = (np.asarray(generate.logits(engines[name], ids)) for name in ("step+fused", "step+gemv+kvf16"))
    assert one.shape == other.shape == (150, 97)
    assert divergence(one, other).mean() < 2e-4
    assert (one.argmax(1) == other.argmax(1)).mean() >= 0.98
    assert divergence(one, np.roll(other, 1, axis=0)).mean() > 0.1  # the control: another position's


def divergence(a, b):
    """Kullback-Leibler divergence [T] of two sets of logits, in nats."""
    p, q = jax.nn.log_softmax(jnp.asarray(a)), jax.nn.log_softmax(jnp.asarray(b))
    return np.asarray((jnp.exp(p) * (p - q)).sum(-1))


def test_four_decodes_at_once_are_each_as_alone(engines):
    jobs = [(name, [7 * i + 1, 3, i]) for i, name in enumerate((*FUSED, "step+gemv"))]
    alone = [tokens(engines[name], 60, prompt) for name, prompt in jobs]
    with ThreadPoolExecutor(len(jobs)) as pool:
        together = [
            pool.submit(lambda job: [tokens(engines[job[0]], 60, job[1]) for _ in range(3)], job) for job in jobs
        ]
        assert [future.result(120) for future in together] == [[answer] * 3 for answer in alone]


@pytest.mark.parametrize("name", FUSED)
@pytest.mark.parametrize("sampler", [Sampler(), DRAWN])
def test_each_answer_of_a_batch_is_as_alone(engines, name, sampler):
    """Prompts of several lengths, so that each is padded otherwise than alone."""
    prompts = [PROMPT, PROMPT[:2], [int(t) for t in np.random.default_rng(2).integers(0, 97, 150)]]
    together = ll.answer(engines[name], prompts, 30, sampler=sampler, seeds=[1, 2, 3])
    alone = [tokens(engines[name], 30, p, sampler=sampler, seeds=i) for i, p in enumerate(prompts, 1)]
    assert together == alone


def test_gpt2_is_refused_by_the_fused_step():
    cfg = config.tiny("gpt2")
    with pytest.raises(UserError, match="runs Llama and models like it, not gpt2"):
        ll.generate.bind(cfg, build(cfg), ll.parse("step+fused"))


LOAD = """
import sys, llama_jax as ll
from llama_jax import serialised
from tests.kernels.test_generation import PROMPT, checkpoint_of, small, tokens
print(tokens(serialised.load(checkpoint_of(small()), sys.argv[1], sys.argv[2], trust=True), 12).token_ids)
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", ["step+gemv", "chunk8+gemv"])
def test_programs_from_a_file_find_the_kernels(name, tmp_path):
    """In a process that has traced nothing, so that nothing but loading can have registered them."""
    engine = ll.build(checkpoint_of(small()), name + "+aot")
    expected = tokens(engine, 12)
    assert python(LOAD, name, serialised.save(engine, tmp_path / "x.bin"))[0] == str(expected.token_ids)


@pytest.mark.slow
def test_the_packaged_model_by_distribution(packaged):
    """Real weights, the file's own blocks: the fused step, products alone and XLA's float products agree on a text."""
    ids = packaged.tokenizer.encode(
        "The capital of France is Paris, and the capital of Italy is Rome. Water boils at one hundred degrees."
    )
    names = ("step", "step+gemv", "step+fused", "step+gemv+kvf16")
    exact, gemv, *others = (np.asarray(generate.logits(ll.build(packaged, name), ids)) for name in names)
    rounding = divergence(exact, gemv).mean()  # by activations rounded to int8, which is all that is left
    assert rounding < 0.02
    for other in others:
        assert divergence(exact, other).mean() < 1.5 * rounding
        assert divergence(gemv, other).mean() < 2 * rounding  # two roundings that have nothing to do with each other
        assert (other.argmax(1) == exact.argmax(1)).mean() >= 0.9
    loop, step = (ll.answer(ll.build(packaged, name), [ids[:12]], 24) for name in ("loop+fused", "step+fused"))
    assert loop == step
