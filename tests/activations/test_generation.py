"""Activations while tokens are made: the tokens of plain generation, the values of the finished text, one program."""

from dataclasses import replace

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llama_jax import config, generate, model
from llama_jax.checkpoint import Checkpoint
from llama_jax.placement import parse
from llama_jax.sampling import Sampler
from llama_lab.activations import ActivationSpec, ActivationStore, Extractor, Generator, extract, generation
from llama_lab.bench.guard import Guard
from tests.activations.stores import says
from tests.conftest import build, relative_error

pytestmark = pytest.mark.usefixtures("compiling")

SITES = "resid_pre:0 resid_post:all q:0 k:1 attn_out:1 mlp_out:0 ln_final logits"
SPEC = ActivationSpec(SITES, dtype="float32")
PROMPTS = [[1, 2, 3, 4], [5, 6, 7, 8, 9, 10, 11]]


def of(family: str) -> Checkpoint:
    made = config.tiny(family, num_hidden_layers=2)
    return Checkpoint("random:tiny", made, build(made), None, "w", "random:", "float32")


@pytest.fixture(scope="module")
def loaded():
    return of("llama")


@pytest.fixture(scope="module")
def engine(loaded):
    return generate.build(loaded, parse("step"))


def read(loaded, spec, prompt, answer):
    """What reading prompt and answer as one text gives for the answer's tokens."""
    text = [*prompt, *answer.token_ids]
    extractor = Extractor(loaded, spec, batch=(1, len(text)), pack=False)
    found = extractor([text])
    return {site: found[site][len(prompt) :] for site in extractor.row_shapes}


@pytest.mark.parametrize("family", ["llama", "gpt2", "qwen2"])
def test_tokens_are_those_of_plain_generation_and_values_those_of_the_finished_text(family):
    own = of(family)
    engine = generate.build(own, parse("step"))
    plain, tapped = generate.answer(engine, PROMPTS, 7), generation.answer(engine, PROMPTS, 7, SPEC)
    assert tapped == plain
    assert plain[0].activations is None
    for prompt, answer in zip(PROMPTS, tapped, strict=True):
        expected = read(own, SPEC, prompt, answer)
        assert answer.activations.keys() == expected.keys()
        for site, value in answer.activations.items():
            assert value.shape == expected[site].shape
            assert relative_error(value, expected[site]) < 1e-5, site


@pytest.mark.slow
@given(
    st.lists(st.lists(st.integers(0, 90), min_size=1, max_size=20), min_size=1, max_size=3),
    st.integers(1, 9),
    st.sampled_from([Sampler(), Sampler(0.8), Sampler(0.8, top_k=9, top_p=0.7), Sampler(1.0, repetition_penalty=1.4)]),
    st.integers(0, 2**32 - 4),
    st.sets(st.integers(0, 90), max_size=30),
)
@settings(max_examples=6, deadline=None)
def test_so_are_drawn_ones_and_those_before_a_stop_token(engine, prompts, count, sampler, seed, stop):
    options = dict(sampler=sampler, seeds=seed, stop=stop)
    tapped = generation.answer(engine, prompts, count, ActivationSpec("resid_post:1"), **options)
    assert tapped == generate.answer(engine, prompts, count, **options)
    assert [len(a.activations["resid_post:1"]) for a in tapped] == [len(a.token_ids) for a in tapped]


def test_prompts_longer_than_a_piece_go_in_pieces(monkeypatch, engine, loaded):
    monkeypatch.setattr(generation, "PIECE", 8)
    generation.COMPILED.clear_cache()
    prompt = [(7 * i) % 90 for i in range(20)]
    (answer,) = generation.answer(engine, [prompt], 4, SPEC)
    generation.COMPILED.clear_cache()
    assert answer == generate.answer(engine, [prompt], 4)[0]
    expected = read(loaded, SPEC, prompt, answer)
    assert all(relative_error(value, expected[site]) < 1e-5 for site, value in answer.activations.items())


def test_all_of_it_is_one_program(engine):
    spec = ActivationSpec("resid_post:0", dtype="bfloat16")
    with Guard() as first:
        (answer,) = generation.answer(engine, [[1, 2, 3]], 5, spec)
    with Guard() as again:
        generation.answer(engine, [[4, 5, 6, 7]], 5, spec)
    assert (first.compilations, again.compilations) == (1, 0)
    assert answer.activations["resid_post:0"].dtype == jax.numpy.bfloat16


def test_what_cannot_be_tapped_is_one_line(engine, loaded):
    for tap, words in (
        ("resid_post:0", "tap is 'resid_post:0'; it must be"),
        (ActivationSpec("pattern:1"), "pattern:1 is as wide as the cache"),
        (ActivationSpec("resid_post:9"), "layers 0 to 1"),
        (ActivationSpec("resid_post:0", "last"), "positions is 'last'"),
    ):
        with says(words):
            generation.answer(engine, [[1, 2]], 3, tap)
    for name in ("step+scan", "step+q8_0", "loop+int8"):
        with says("Activations cannot be taken under", name.partition("+")[0]):
            generation.answer(generate.build(loaded, parse(name)), [[1, 2]], 3, SPEC)


# In bulk --------------------------------------------------------------------------------------------------------------


def test_a_store_of_answers(loaded, engine, tmp_path):
    examples = [[1, 2, 3], [4, 5, 6, 7, 8], [9], [10, 11], [12, 13, 14, 15]]
    spec = ActivationSpec("resid_post:0 ln_final", dtype="float32")
    generator = Generator(loaded, spec, (2, 8), 5)
    report = extract(generator, examples, tmp_path / "store", unit=3)
    assert (report.compilations, report.rows, report.complete) == (1, 25, True)
    store, plain = ActivationStore.open(tmp_path / "store"), generate.answer(engine, examples, 5)
    assert not store.verify()
    for i, (prompt, answer) in enumerate(zip(examples, plain, strict=True)):
        mine, expected = store.example(i), read(loaded, spec, prompt, answer)
        assert tuple(mine["token"].tolist()) == answer.token_ids
        assert mine["position"].tolist() == list(range(len(prompt), len(prompt) + 5))
        assert all(relative_error(mine[site], value) < 1e-5 for site, value in expected.items())
    again = extract(generator, examples, tmp_path / "store", unit=3)
    assert again.written == 0
    with says("generate is 5 there, 4 here"):
        extract(Generator(loaded, spec, (2, 8), 4), examples, tmp_path / "store", unit=3)


def test_means_are_those_of_the_kept_tokens(loaded):
    spec = ActivationSpec("resid_post:1", dtype="float32")
    generator = Generator(loaded, spec, (2, 8), 6)
    free = generator.plan(0, 0, [[1, 2], [3, 4, 5]])
    generator.stop = (int(free.rows["token"][1]),)  # ends the first answer early
    unit = generator.plan(0, 0, [[1, 2], [3, 4, 5]])
    assert unit.size < free.size
    (batch,) = unit.batches
    mean, m2 = batch.moments["resid_post:1"]
    values = batch.values["resid_post:1"].astype(np.float64)
    np.testing.assert_allclose(mean, values.mean(0))
    np.testing.assert_allclose(m2, ((values - values.mean(0)) ** 2).sum(0))
    assert unit.tokens == 5 + unit.size


def test_what_cannot_be_generated_is_one_line(loaded):
    generator = Generator(loaded, ActivationSpec("resid_post:0"), (1, 4), 2)
    for examples, words in (
        ([[1, 2], []], "Example 1 has 0 tokens; as a prompt it must have 1 to 4"),
        ([[1, 2, 3, 4, 5]], "Example 0 has 5 tokens"),
        ([[10**6]], "Example 0 has a token id outside"),
    ):
        with says(words):
            generator.plan(0, 0, examples)
    blocks = replace(loaded, params=model.quantised(loaded.params, "q8_0"), dtype="q8_0")
    for own, batch, new_tokens, words in (
        (loaded, (1, 200), 100, "exceed the model's context of 256"),
        (loaded, (1, 4), 0, "new_tokens is 0"),
        (loaded, (0, 4), 2, "batch is"),
        (blocks, (1, 4), 2, "loaded as q8_0"),
    ):
        with says(words):
            Generator(own, ActivationSpec("resid_post:0"), batch, new_tokens)
