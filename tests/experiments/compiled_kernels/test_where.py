"""A token's time by differences: exact on times whose parts are known, and really measured on a small model."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llama_jax.plumbing.errors import UserError
from llama_lab.bench import protocol
from llama_lab.bench.journal import Journal
from llama_lab.experiments.compiled_kernels import where
from llama_lab.experiments.compiled_kernels.where import LONG, NARROW, SHALLOW, WHOLE
from tests.bench.test_record import trial

TINY = (
    "random:smollm2-135m,num_hidden_layers=2,hidden_size=64,intermediate_size=128,num_attention_heads=4,num_key_value_heads=2,"
    "head_dim=16,vocab_size=97"
)
MODEL, SHORT, FAR = "random:smollm2-135m", 128, 1024
OF = where.Sizes(layers=30, fewer=10, vocabulary=49152, smaller=6144, short=SHORT, long=FAR)


def times(layer, row, position, rest, of=OF):
    """ms of each variant for a model whose parts cost so much: a layer, a row of the head, a position in the cache of
    one layer."""

    def token(layers, rows, context):
        return layers * (layer + position * context) + row * rows + rest

    return {
        WHOLE: token(of.layers, of.vocabulary, of.short),
        SHALLOW: token(of.fewer, of.vocabulary, of.short),
        NARROW: token(of.layers, of.smaller, of.short),
        LONG: token(of.layers, of.vocabulary, of.long),
    }


def answers(name="loop", layer=0.1, row=2e-5, position=1e-5, rest=0.3, blocks=6, noise=0.0):
    made, rng = [], np.random.default_rng(0)
    for block in range(blocks):
        for variant, ms in times(layer, row, position, rest).items():
            gap = ms * (1 + noise * rng.normal())
            made.append(trial(variant, block, [50 + gap * i for i in range(11)], run=f"where {name}", placement=name))
    return made


small = st.floats(1e-6, 10)


@given(layer=small, row=st.floats(1e-7, 1e-3), position=st.floats(1e-7, 1e-2), rest=st.floats(-1, 5))
def test_parts_are_found_exactly(layer, row, position, rest):
    found = where.parts(times(layer, row, position, rest), OF)
    assert found["layers"] == pytest.approx(30 * layer, rel=1e-6, abs=1e-6)
    assert found["head"] == pytest.approx(49152 * row, rel=1e-6, abs=1e-6)
    assert found["attention"] == pytest.approx(30 * 1024 * position, rel=1e-6, abs=1e-6)
    assert found["rest"] == pytest.approx(rest, abs=1e-6 * max(1, 30 * layer))


def test_the_sizes_leave_something_to_subtract():
    from llama_jax import config

    assert where.sizes(config.PRESETS["smollm2-135m"], SHORT, FAR) == OF
    small = where.sizes(config.tiny(), 24, 64)
    assert (small.fewer, small.smaller) == (1, 64)


def test_the_table_adds_up_and_says_how_sure_it_is():
    (entry,) = where.table(answers(noise=0.01), MODEL, SHORT, FAR)
    assert sum(entry[part] for part in where.PARTS) == pytest.approx(entry["total"])
    assert entry["n"] == 6
    assert all(entry[f"{part}_low"] < entry[part] < entry[f"{part}_high"] for part in where.PARTS)
    assert entry["layers"] == pytest.approx(3.0, rel=0.2)
    exact = where.table(answers(), MODEL, SHORT, FAR)[0]
    assert (exact["layers"], exact["head"], exact["rest"]) == pytest.approx((3.0, 0.98304, 0.3), rel=1e-3)


def test_a_block_without_all_variants_is_left_out():
    made = answers(blocks=3)
    broken = [t.model_copy(update=dict(valid=False)) if t.block == 1 and t.subject == NARROW else t for t in made]
    assert where.table(broken, MODEL, SHORT, FAR)[0]["n"] == 2
    assert where.table([t for t in made if t.subject != LONG], MODEL, SHORT, FAR) == []


def parts(**changes):
    fields = dict(model=TINY, seed=0, split=["loop"], split_contexts=[24, 64], split_blocks=1, new_tokens=6)
    return where.PartsOfAToken(**fields | changes)


@pytest.mark.parametrize(
    ("words", "changes"),
    [
        ("only of random weights", dict(model="smollm2-135m-instruct")),
        ("must be longer", dict(split_contexts=[64, 64])),
        ("No such placement", dict(split=["lop"])),
        ("blocks is 0", dict(split_blocks=0)),
        ("leaves no room", dict(split_contexts=[6, 64])),
        ("too small to leave anything out", dict(model=TINY + ",vocab_size=64")),
    ],
)
def test_mistakes_are_named(words, changes):
    with pytest.raises(UserError, match=words):
        parts(**changes).record()


@pytest.mark.slow
def test_really_measured(tmp_path, monkeypatch):
    monkeypatch.setattr(protocol.tempfile, "gettempdir", lambda: str(tmp_path))
    journal, experiment = Journal(), parts(split=["loop", "loop+q8_0"], split_blocks=2)
    made, _ = experiment.record(journal)
    assert all(t.valid for t in made), [t.reason for t in made]
    assert len(made) == 2 * 2 * 4
    assert len({t.bytes_per_token for t in made if t.placement == "loop"}) == 4  # four models, or contexts
    assert [e["name"] for e in where.table(made, TINY, 24, 64)] == ["loop", "loop+q8_0"]
    assert experiment.record(journal)[0] == made
