"""One program: nothing that no site needs, one compilation, the rows and the type that were asked for, and one line for
each mistake."""

import functools
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tokenizers

from llama_jax import config
from llama_jax.tokenizer import Tokenizer
from llama_lab.activations import ActivationSpec, Extractor, program
from llama_lab.bench.guard import Guard
from tests.activations.reference import random_checkpoint
from tests.activations.stores import says
from tests.conftest import relative_error

pytestmark = pytest.mark.usefixtures("compiling")

CFG = config.tiny(num_hidden_layers=3, tie_word_embeddings=False)
SHAPE = B, T = 3, 24
LENGTHS = (5, 17, 1, T, 9, T + 16, 0, 3)
FEW = "attn_out:0 v:1 resid_post:1"
CHOSEN = (0, 30, -1, -2)


@pytest.fixture(scope="module")
def checkpoint():
    return random_checkpoint(CFG)


@pytest.fixture(scope="module")
def examples():
    rng = np.random.default_rng(1)
    return [rng.integers(0, CFG.vocab_size, n).tolist() for n in LENGTHS]


@pytest.fixture(scope="module")
def made(checkpoint):
    """(positions, dtype) → an extractor of a few sites, each compiled once."""
    return functools.cache(lambda positions, dtype: Extractor(checkpoint, ActivationSpec(FEW, positions, dtype), SHAPE))


@pytest.fixture
def extractor(made):
    return made("all", "float32")


@pytest.fixture(scope="module")
def wide(made, examples):
    """All tokens of all examples, packed, in float32."""
    return made("all", "float32")(examples)


# --- nothing that no site needs


def spoilt(checkpoint, *paths):
    """The same checkpoint with NaN in the weights whose path begins with one of `paths`."""
    seen = set()

    def fill(path, weight):
        name = jax.tree_util.keystr(path)
        hit = next((p for p in paths if name.startswith(p)), None)
        seen.add(hit)
        return weight if hit is None else jnp.full_like(weight, jnp.nan)

    params = jax.tree_util.tree_map_with_path(fill, checkpoint.params)
    assert seen >= set(paths)
    return replace(checkpoint, params=params)


# operations of the products, two a multiplication, by their shapes: of attention as far as v, of all of it, of a layer
D, H = CFG.hidden_size, CFG.head_dim
HEADS, KV = CFG.num_attention_heads, CFG.num_key_value_heads
QKV = 2 * B * T * D * H * (HEADS + 2 * KV)
ATTENTION = QKV + 2 * 2 * B * HEADS * T * T * H + 2 * B * T * D * H * HEADS
LAYER = ATTENTION + 3 * 2 * B * T * D * CFG.intermediate_size


@pytest.mark.parametrize(
    ("sites", "operations", "unneeded"),
    [
        ("resid_pre:1", LAYER, (".layers[1]", ".layers[2]", ".head")),
        ("v:1", LAYER + QKV, (".layers[1].ffn", ".layers[1].attention.o", ".layers[2]", ".head")),
        ("attn_out:1", LAYER + ATTENTION, (".layers[1].ffn", ".layers[2]", ".head")),
        ("resid_post:0-1", 2 * LAYER, (".layers[2]", ".head")),
        ("ln_final", 3 * LAYER, (".head.weight",)),
    ],
)
def test_what_no_site_needs_is_not_in_the_program(checkpoint, examples, sites, operations, unneeded):
    """NaN in those weights changes no bit, and the arithmetic is that of so much of the model. NaN below the site is
    seen."""
    whole = Extractor(checkpoint, ActivationSpec(sites, dtype="float32"), SHAPE)
    # norms, softmax and the rest are below 15%
    assert operations <= whole.executable.cost_analysis()["flops"] <= 1.15 * operations
    before = whole(examples)
    whole.params = program.needed(spoilt(checkpoint, *unneeded).params, whole.sites)
    after = whole(examples)
    assert all(np.array_equal(before[name], after[name]) for name in before)
    whole.params = program.needed(spoilt(checkpoint, ".layers[0].attention.qkv").params, whole.sites)
    last = list(whole.row_shapes)[-1]
    assert np.isnan(whole(examples)[last]).all()


def test_what_no_site_needs_is_not_even_held(checkpoint):
    for sites, depth, head in (
        ("resid_pre:0", 1, False),
        ("q:1 mlp_out:0", 2, False),
        ("q:0 ln_final", 3, True),
        ("logits", 3, True),
    ):
        held = program.needed(checkpoint.params, ActivationSpec(sites).resolve(CFG))
        assert (len(held.layers), held.head is not None) == (depth, head)


# --- one compilation


def test_one_compilation_however_full_the_batches_are(made, examples):
    rng = np.random.default_rng(2)
    for subject in (made("all", "float32"), made(CHOSEN, "float32")):
        assert subject.compilations == 1
        assert subject.compile_seconds > 0
        with Guard() as guard:
            for some in ([], [[1]], examples, examples[:3], [rng.integers(0, 97, n) for n in (2, 3, 70)]):
                unit = subject.plan(0, 0, some)
                for batch in unit.batches:
                    values, moments = subject.dispatch(batch)
                    assert {site: subject.kept(batch, value).shape for site, value in values.items()} == {
                        site: (len(batch.at), *shape) for site, shape in subject.row_shapes.items()
                    }
                    jax.block_until_ready(moments)
        assert not guard.fired, guard.reason
        assert not guard.count("trace")


# --- positions


def places(found):
    """{(example, token number): row} of what an extractor gave."""
    return {
        (e, s * T + p): i
        for i, (e, s, p) in enumerate(zip(found["example"], found["segment"], found["position"], strict=True))
    }


@pytest.mark.parametrize("positions", [CHOSEN, "last"])
def test_chosen_positions_are_the_same_rows_of_all(made, wide, examples, positions):
    subject = made(positions, "float32")
    some, rows = subject(examples), places(wide)
    assert list(places(some)) == [(e, i) for e, ids in enumerate(examples) for i in subject.spec.kept(len(ids))]
    same = [rows[place] for place in places(some)]
    for name in some:
        assert some[name].shape == wide[name][same].shape
        if name in subject.row_shapes:
            assert relative_error(some[name], wide[name][same]) <= 1e-6
        else:
            assert np.array_equal(some[name], wide[name][same])
    assert [examples[e][i] for e, i in places(some)] == some["token"].tolist()


# --- types


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_narrower_type_is_the_rounded_float32(made, wide, examples, dtype):
    subject = made("all", dtype)
    narrow = subject(examples)
    on_device = subject.dispatch(subject.plan(0, 0, examples).batches[0])[0]
    assert {value.dtype for value in on_device.values()} == {jnp.dtype(dtype)}  # half as much to copy
    for site in FEW.split():
        assert narrow[site].dtype == jnp.dtype(dtype)
        assert np.array_equal(narrow[site].view(np.uint16), wide[site].astype(jnp.dtype(dtype)).view(np.uint16)), site
        assert not np.array_equal(narrow[site].astype(np.float32), wide[site])


def test_a_bfloat16_model_keeps_its_own_values(checkpoint, examples):
    """The model computes in the dtype of its weights; kept as float32, its values are still those that bfloat16 has."""
    half = replace(checkpoint, params=jax.tree.map(lambda w: w.astype("bfloat16"), checkpoint.params), dtype="bfloat16")
    found = Extractor(half, ActivationSpec("resid_pre:0 resid_post:1", dtype="float32"), SHAPE)(examples)
    for site in ("resid_pre:0", "resid_post:1"):
        assert np.array_equal(found[site], found[site].astype(jnp.bfloat16).astype(np.float32)), site


# --- moments


def in_numpy(rows):
    rows = rows.astype(np.float64)
    mean = rows.mean(axis=0)
    return mean, ((rows - mean) ** 2).sum(axis=0)


@pytest.mark.parametrize("positions", ["all", CHOSEN])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_moments_are_those_of_the_rows_that_are_kept(made, examples, positions, dtype):
    """As they are kept: rounded. Padding and tokens that are not asked for have no part in them."""
    subject = made(positions, dtype)
    unit = subject.plan(0, 0, examples)
    assert len(unit.batches) > 1
    for batch in unit.batches:
        values, moments = subject.dispatch(batch)
        for site, value in values.items():
            for mine, expected in zip(moments[site], in_numpy(subject.kept(batch, value)), strict=True):
                assert mine.dtype == np.float32
                assert np.abs(mine - expected).max() <= 2e-6 * np.abs(expected).max(), site


def test_moments_before_rounding_are_others(wide):
    """Control: the test above can tell moments of bfloat16 values from those of the float32 ones that they were made
    of."""
    for site in FEW.split():
        mean, expected = (in_numpy(rows)[0] for rows in (wide[site].astype(jnp.bfloat16), wide[site]))
        assert np.abs(mean - expected).max() > 2e-5 * np.abs(expected).max()


def test_moments_of_nothing_are_zero(extractor):
    (batch,) = extractor.plan(0, 0, [[1, 2]]).batches
    _, moments = extractor.dispatch(replace(batch, segments=np.zeros_like(batch.segments)))
    assert all(not np.asarray(part).any() for site in moments for part in moments[site])


# --- company


def test_alone_in_its_row_an_example_has_the_same_bits_in_any_company(extractor, wide, examples):
    """One example a row: which others share the batch, and in which row it stands, changes nothing at all."""
    extractor.pack = False
    together, turned = extractor(examples), extractor(examples[::-1])
    alone = [extractor([ids]) for ids in examples]
    extractor.pack = True
    for site in extractor.row_shapes:
        assert np.array_equal(together[site], np.concatenate([found[site] for found in alone]))
        back = [turned[site][turned["example"] == len(examples) - 1 - i] for i in range(len(examples))]
        assert np.array_equal(together[site], np.concatenate(back))
        # packed, sums over the keys are taken in another order elsewhere in a row
        assert relative_error(wide[site], together[site]) <= 1e-6


# --- what it is given


@pytest.fixture(scope="module")
def tokenizer():
    words = {word: i for i, word in enumerate(["<s>", "?", "a", "small", "model", "reads"])}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="?"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.post_processor = tokenizers.processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    return Tokenizer(made.to_str(), None, "<s>", "", ())


def test_texts_and_ids_are_the_same_examples(extractor, tokenizer, monkeypatch):
    monkeypatch.setattr(extractor, "checkpoint", replace(extractor.checkpoint, tokenizer=tokenizer))
    texts, ids = extractor(["a small model", "reads"]), extractor([[0, 2, 3, 4], (0, 5)])
    mixed = extractor(iter(["a small model", np.array([0, 5], np.int16)]))
    assert {name: len(rows) for name, rows in extractor([[], []]).items()} == dict.fromkeys(texts, 0)
    assert texts["token"].tolist() == [0, 2, 3, 4, 0, 5]
    assert set(texts) == {*extractor.row_shapes, "token", "example", "segment", "position"}
    assert all(np.array_equal(texts[name], ids[name]) and np.array_equal(texts[name], mixed[name]) for name in texts)


def test_what_cannot_be_extracted_is_one_line_before_anything_is_compiled(checkpoint, extractor):
    for ids in ([97], [-1], [5, 2**40], np.array([2**63], np.uint64)):
        with says("Example 12 has a token id outside the vocabulary, of 97"):
            extractor.plan(0, 11, [[96], ids, [0]])
    for example in (5, None, [1.5], [[1, 2]], [[1], [2, 3]], ["a"], [True], {"text": "a"}):
        with says("Example 1 is not a list of token ids"):
            extractor([[1, 2], example])
    with says("random has no tokenizer; give token ids"):
        extractor(["a text"])
    with says("One text is given where several are expected"):
        extractor("a text")
    blocks = replace(checkpoint, params=checkpoint.weights("q8_0"), dtype="q8_0")
    batches = ((0, 8), (2, 0), (1, 257), (8,), (1, 2, 3), 8, (1.0, 8), ("1", "8"), "18", (2**62, 8), None, (True, 8))
    for given, words in (
        *((dict(batch=batch), "context of 256") for batch in batches),
        (dict(checkpoint=blocks), "float32 or bfloat16; this model is loaded as q8_0"),
        (dict(spec=ActivationSpec("resid_post:3")), "resid_post:3 is asked for; the model has layers 0 to 2"),
        (
            dict(spec=ActivationSpec("pattern:0-1"), row_limit=383),
            "takes 384 bytes, more than 383; the largest is pattern:0",
        ),
        *((asked, f"The extractor: {next(iter(asked))} is") for asked in
          (dict(row_limit=0), dict(row_limit="1"), dict(row_limit=None), dict(pack=1))),
    ):  # fmt: skip
        with Guard() as guard, says(words):
            Extractor(**dict(checkpoint=checkpoint, spec=ActivationSpec("resid_post:0"), batch=SHAPE) | given)
        assert not guard.fired


def test_packing_does_not_change_the_program(checkpoint):
    """Where all positions are kept: tests here and of parity turn it off on an extractor that they have."""
    texts = {Extractor(checkpoint, ActivationSpec("k:0"), SHAPE, pack).executable.as_text() for pack in (True, False)}
    assert len(texts) == 1
