"""What is asked for: sites as text and as values, positions against plain indexing, sizes, and one line for each
mistake."""

import itertools
from math import prod

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from llama_jax import config
from llama_lab.activations.spec import (
    MOST,
    OF_A_LAYER,
    OF_THE_MODEL,
    ROW_LIMIT,
    SITES,
    ActivationSpec,
    Site,
    check_size,
    parse_sites,
    row_bytes,
    row_shape,
)
from tests.activations.stores import says

CFG = config.tiny(num_hidden_layers=8)
LENGTH = 16
LAYERS = st.lists(st.integers(-8, 7), min_size=1, max_size=5)


def names(sites, cfg=CFG, **rest):
    return [str(site) for site in ActivationSpec(sites, **rest).resolve(cfg)]


def tuples(text):
    return tuple(parse_sites(text))


def test_a_command_lines_sites():
    parsed = tuples("resid_post:3,7 mlp_out:0-5 q:all ln_final")
    assert parsed == (("resid_post", (3, 7)), ("mlp_out", (0, 1, 2, 3, 4, 5)), ("q", "all"), ("ln_final", None))
    assert parsed == tuples("\n resid_post:3;7, mlp_out:0-5;q:all,,ln_final ")
    assert tuples("k:-1,-8,0-1,-2") == (("k", (-1, -8, 0, 1, -2)),)
    assert tuples("logits,v:2") == (("logits", None), ("v", (2,)))
    assert tuples(" ,; ") == ()


def test_sites_come_in_the_models_order_each_once():
    asked = "logits resid_post:-1,7,0 ln_final q:0-1,0 resid_pre:1 mlp_out:0 pattern:0 k:0"
    assert names(asked) == [
        "q:0",
        "k:0",
        "pattern:0",
        "mlp_out:0",
        "resid_post:0",
        "resid_pre:1",
        "q:1",
        "resid_post:7",
        "ln_final",
        "logits",
    ]
    assert names([(name, "all") for name in OF_A_LAYER]) == [f"{name}:{i}" for i in range(8) for name in OF_A_LAYER]
    assert names(OF_THE_MODEL) == list(OF_THE_MODEL)
    assert ActivationSpec("v:2 ln_final").resolve(CFG) == (Site("v", 2), Site("ln_final"))


@given(st.lists(st.tuples(st.sampled_from(OF_A_LAYER), LAYERS), min_size=1, max_size=4))
def test_text_and_values_are_the_same_request(asked):
    text = " ".join(f"{name}:{','.join(map(str, layers))}" for name, layers in asked)
    assert ActivationSpec(text) == ActivationSpec(tuple(asked))
    wanted = {(range(8)[layer], SITES.index(name)) for name, layers in asked for layer in layers}
    assert names(text) == [f"{SITES[site]}:{layer}" for layer, site in sorted(wanted)]
    assert names(" ".join(names(text))) == names(text)


def test_equal_requests_are_equal_keys():
    same = [
        ActivationSpec((("resid_post", 3),), (0, -1)),
        ActivationSpec([["resid_post", [3]]], [-1, 0, 0]),
        ActivationSpec("resid_post:3", np.array([0, -1])),
        ActivationSpec((("resid_post", range(3, 4)),), (-1, 0)),
        ActivationSpec((("resid_post", np.int64(3)),), {0, -1}),
    ]
    assert len(set(same)) == 1
    others = [
        ActivationSpec("resid_post:4", (0, -1)),
        ActivationSpec("resid_post:3"),
        ActivationSpec("resid_post:3", (0, -1), "float16"),
    ]
    assert len({same[0], *others}) == 4
    assert ActivationSpec("q:0", 3).positions == (3,)
    assert ActivationSpec("q:0", (-1, 2, -3, 0)).positions == (0, 2, -3, -1)


@given(st.integers(0, 12), st.lists(st.integers(-14, 14), min_size=1, max_size=6))
@example(0, [0, -1])
@example(3, [-4, 3])
def test_kept_is_plain_indexing(length, positions):
    tokens = list(range(length))
    plain = set()
    for p in positions:
        try:
            plain.add(tokens[p])
        except IndexError:
            pass
    kept = ActivationSpec("q:0", tuple(positions)).kept(length)
    assert kept.dtype == np.int64
    assert kept.tolist() == sorted(plain)
    assert ActivationSpec("q:0").kept(length).tolist() == tokens
    assert ActivationSpec("q:0", "last").kept(length).tolist() == tokens[-1:]


SITES_WRONG = [
    ("", "No sites are asked for"),
    ((), "No sites are asked for"),
    (5, "sites is 5"),
    (None, "sites is None"),
    ("resid_pst:3", "No such site: 'resid_pst'. Did you mean 'resid_post'"),
    (("resid_post", 3), "resid_post needs layers, such as resid_post:3,7"),
    ("3,7", "No such site: '3'. Known: attn_out"),
    ("ln_final 3", "No such site: '3'"),
    ("q", "q needs layers"),
    ("ln_final:3", "ln_final belongs to no layer"),
    ((("logits", "all"),), "logits belongs to no layer"),
    ("q:", "Layers of q: '' is neither"),
    ("q:x", "Layers of q: 'x' is neither"),
    ("q:5-2", "Layers of q: '5-2' is neither"),
    ("q:0-", "Layers of q: '0-' is neither"),
    ("q:1:2", "Layers of q: '1:2' is neither"),
    ("q:all,3", "'all' by itself"),
    ("q:0-99999999999", "is neither"),
    ((("q", "3"),), "Layers of q are '3'"),
    ((("q", ()),), "Layers of q are ()"),
    ((("q", (1, "2")),), "Layers of q are (1, '2')"),
    ((("q", 1.0),), "Layers of q are 1.0"),
    ((("q", True),), "Layers of q are True"),
    ((("q", (True,)),), "Layers of q are (True,)"),
    ((("q", itertools.count()),), "Layers of q are count("),
    ((("q", range(MOST + 1)),), "Layers of q are range("),
    ((("q", np.array([[1]])),), "Layers of q are array([[1]])"),
    ((np.array([1, 2]),), "No such site"),
    ("x" * 10_000, "No such site: 'xxx"),
]
POSITIONS_WRONG = ("first", "0", (), None, 1.5, (0, 1.5), ("0",), (True,), itertools.count())
DTYPES_WRONG = ("float64", "int8", "f32", None, np.float32, np.array(["float32"] * 2), [])
WRONG = [
    *((dict(sites=sites), words) for sites, words in SITES_WRONG),
    *((dict(sites="q:0", positions=p), "must be 'all', 'last' or whole numbers") for p in POSITIONS_WRONG),
    *((dict(sites="q:0", dtype=dtype), "kept as bfloat16, float16, float32") for dtype in DTYPES_WRONG),
]


def test_what_cannot_be_asked_for_is_one_line():
    for asked, words in WRONG:
        with says(words) as caught:
            ActivationSpec(**asked)
        assert len(str(caught.value)) < 400
    for layer in (8, -9):
        with says(f"mlp_out:{layer} is asked for; the model has layers 0 to 7"):
            ActivationSpec((("mlp_out", (0, layer)),)).resolve(CFG)
    assert len(ActivationSpec((("q", range(MOST)),)).sites[0][1]) == MOST


def test_shapes_and_bytes_of_a_row():
    wide = config.tiny(head_dim=16)  # heads wider than the residual stream's share
    shapes = {name: row_shape(Site(name, 0), wide, LENGTH) for name in SITES}
    expected = dict.fromkeys(SITES, (32,)) | dict(q=(4, 16), k=(2, 16), v=(2, 16), pattern=(4, LENGTH), logits=(97,))
    assert shapes == expected
    for dtype, itemsize in (("bfloat16", 2), ("float16", 2), ("float32", 4)):
        spec = ActivationSpec("q:0-1 logits", dtype=dtype)
        assert row_bytes(spec.resolve(wide), wide, LENGTH, spec.itemsize) == (2 * 4 * 16 + 97) * itemsize


@pytest.mark.parametrize(
    ("sites", "largest"), [("resid_post:all logits", "logits"), ("resid_post:0 pattern:1,3", "pattern:1")]
)
def test_what_grows_with_the_vocabulary_or_the_context_is_stopped(sites, largest):
    big = config.tiny(num_hidden_layers=8, vocab_size=70_000, num_attention_heads=32)
    spec = ActivationSpec(sites, dtype="float32")
    with says(f"more than {ROW_LIMIT:,}; the largest is {largest}", "--row-limit"):
        check_size(spec, big, 2048)
    size = sum(prod(row_shape(site, big, 2048)) for site in spec.resolve(big)) * 4
    check_size(spec, big, 2048, size)
    with says(f"takes {size:,} bytes"):
        check_size(spec, big, 2048, size - 1)
