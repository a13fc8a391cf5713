"""Rows of a file in groups: compiled code and NumPy put the same bytes, and both see a scale that is none."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llama_jax.block_types import LAYOUTS, ROWS, grouped
from llama_jax.kernels import build, grouping

NUMBER = {kind: range(0, 2 * layout.halves, 2) for kind, layout in LAYOUTS.items()}  # where float16 numbers lie
NUMBER["q6_k"] = range(208, 210, 2)


def drawn(kind, n, blocks, seed=0):
    """Random bytes as rows of blocks; any bits but those of a float16 number that is none."""
    rows = np.random.default_rng(seed).integers(0, 256, (n, blocks, LAYOUTS[kind].row), np.uint8)
    for at in NUMBER[kind]:
        rows[..., at + 1] &= 0xBB  # no exponent of all ones
    return rows


def zeros(kind, n, blocks):
    return np.zeros((-(-n // ROWS), blocks, LAYOUTS[kind].group), np.uint8)


@pytest.fixture(params=["compiled", "numpy"])
def way(request, monkeypatch):
    """Either way to put rows into groups."""
    call = build.called("llama_jax_pack") if request.param == "compiled" else None
    monkeypatch.setattr(grouping, "compiled", lambda worth: call)


@pytest.mark.parametrize("kind", LAYOUTS)
def test_any_bytes_are_put_where_the_layout_says(kind):
    call = build.called("llama_jax_pack")

    @settings(max_examples=25, deadline=None)
    @given(st.integers(1, 50), st.sampled_from((1, 2, 3, 65)), st.integers(0, 40), st.integers(0, 2**32))
    def holds(n, blocks, first, seed):
        rows, groups = drawn(kind, first + n, blocks, seed), zeros(kind, first + n, blocks)
        with pytest.MonkeyPatch.context() as patch:
            for at, part, way in ((0, rows[:first], None), (first, rows[first:], call)):  # a group may be of both
                patch.setattr(grouping, "compiled", lambda worth, way=way: way)
                assert not len(part) or grouping.put(groups, kind, at, part)
        np.testing.assert_array_equal(groups, grouped(rows, kind))

    holds()


@pytest.mark.parametrize("kind", ["q4_0", "q6_k"])
def test_rotary_pairs_are_taken_apart_on_the_way(way, kind):
    """Head by head: of 6 rows that lie 0 3 1 4 2 5 in the file."""
    rows = drawn(kind, 18, 2)
    lies = np.concatenate([rows[at : at + 6][[0, 3, 1, 4, 2, 5]] for at in (0, 6, 12)])
    groups = zeros(kind, 18, 2)
    assert grouping.put(groups, kind, 0, lies, head=6)
    np.testing.assert_array_equal(groups, grouped(rows, kind))


@pytest.mark.parametrize("kind", LAYOUTS)
@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_a_number_that_is_none_is_seen_wherever_it_lies(way, kind, value):
    for at in NUMBER[kind]:
        rows = drawn(kind, 20, 2)
        assert grouping.put(zeros(kind, 20, 2), kind, 0, rows)
        rows[17, 1, at : at + 2] = np.float16(value).reshape(1).view(np.uint8)
        assert not grouping.put(zeros(kind, 20, 2), kind, 0, rows)


@pytest.mark.parametrize(
    ("first", "given", "head"),
    [
        (17, (16, 2, 18), 0),  # beyond the last group
        (0, (16, 3, 18), 0),  # wider
        (0, (16, 2, 20), 0),  # of another type
        (0, (16, 2, 18), 6),  # a head and a half
    ],
)
def test_what_does_not_fit_is_not_written(way, first, given, head):
    groups = zeros("q4_0", 32, 2)
    with pytest.raises(ValueError, match="do not fit"):
        grouping.put(groups, "q4_0", first, np.ones(given, np.uint8), head)
    assert not groups.any()


def test_numpy_does_it_where_the_code_would_have_to_be_compiled_for_little(monkeypatch):
    grouping.compiled.cache_clear()
    monkeypatch.setattr(build, "there", lambda: False)
    monkeypatch.setattr(build, "called", lambda name: pytest.fail("compiled"))
    groups, rows = zeros("q8_0", 16, 1), drawn("q8_0", 16, 1)
    assert grouping.put(groups, "q8_0", 0, rows)
    np.testing.assert_array_equal(groups, grouped(rows, "q8_0"))
    grouping.compiled.cache_clear()
