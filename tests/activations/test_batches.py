"""Batches of one shape: nothing lost, doubled or mixed, whatever the lengths, the shape and the positions that are
kept."""

from dataclasses import replace
from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from llama_lab.activations.batches import SHORTEST, best_fit, capacity, most_segments, plan
from llama_lab.activations.spec import ActivationSpec

LENGTHS = st.lists(st.integers(0, 40), max_size=14)
SHAPES = st.tuples(st.integers(1, 4), st.integers(1, 24))
POSITIONS = st.one_of(st.sampled_from(["all", "last"]), st.lists(st.integers(-6, 6), min_size=1, max_size=4).map(tuple))
FIRST = 1000
ROW = ("token", "example", "segment", "position")


def texts(lengths):
    """Examples in which every token is another: a token says where it came from."""
    ends = np.cumsum([0, *lengths])
    return [(np.arange(start, end) + 1).tolist() for start, end in pairwise(ends)]


def specification(positions):
    return ActivationSpec("resid_post:0", positions)


def expected_rows(examples, length, positions):
    """What is to be kept, in plain Python: (token, example, piece, position in the piece), in order."""
    found = []
    for number, ids in enumerate(examples, FIRST):
        kept = {"all": range(len(ids)), "last": range(len(ids))[-1:]}.get(positions)
        if kept is None:
            kept = sorted({range(len(ids))[p] for p in positions if -len(ids) <= p < len(ids)})
        found += [(ids[i], number, i // length, i % length) for i in kept]
    return found


def rows_of(unit):
    return list(zip(*(unit.rows[name].tolist() for name in ROW), strict=True))


@given(LENGTHS, SHAPES, POSITIONS, st.booleans())
@example([], (2, 8), "all", True)
@example([0, 0, 0], (2, 8), "all", True)
@example([40, 0, 24, 25], (1, 24), "last", True)
@example([1] * 14, (1, 24), "last", True)
@example([5], (1, 1), (0, -1), True)
def test_every_kept_token_is_stored_once_in_order_and_comes_from_its_own_place(lengths, shape, positions, pack):
    examples, spec = texts(lengths), specification(positions)
    unit = plan(3, FIRST, examples, spec, shape, pack)
    expected = expected_rows(examples, shape[1], positions)
    assert (unit.number, unit.first, unit.count, unit.size) == (3, FIRST, len(examples), len(expected))
    assert rows_of(unit) == expected
    assert [unit.rows[name].dtype for name in ROW] == [np.int32, np.int64, np.int32, np.int32]
    stored = np.zeros(unit.size, int)
    for batch in unit.batches:
        stored[batch.to] += 1
        assert np.array_equal(batch.ids.reshape(-1)[batch.at], unit.rows["token"][batch.to])
        assert np.array_equal(batch.positions.reshape(-1)[batch.at], unit.rows["position"][batch.to])
        assert (batch.segments.reshape(-1)[batch.at] > 0).all()
        assert len(batch.at) == len(batch.to) <= capacity(spec, shape, pack)
        assert len(set(batch.at.tolist())) == len(batch.at)
    assert (stored == 1).all()


@given(LENGTHS, SHAPES, POSITIONS, st.booleans())
def test_segments_are_whole_pieces_side_by_side_and_the_rest_is_padding(lengths, shape, positions, pack):
    examples, spec = texts(lengths), specification(positions)
    unit = plan(0, FIRST, examples, spec, shape, pack)
    home = {token: (number, i) for number, ids in enumerate(examples) for i, token in enumerate(ids)}
    read, most = 0, most_segments(spec, shape[1]) if pack else 1
    for batch in unit.batches:
        assert batch.ids.shape == batch.positions.shape == batch.segments.shape == shape
        assert batch.ids.dtype == batch.positions.dtype == batch.segments.dtype == np.int32
        assert (batch.segments > 0).any()  # no batch is padding alone
        for ids, places, segments in zip(batch.ids, batch.positions, batch.segments, strict=True):
            real = int((segments > 0).sum())
            assert not ids[real:].any()
            assert not segments[real:].any()
            assert (np.diff(segments[:real]) >= 0).all()
            assert set(segments[:real].tolist()) == set(range(1, segments.max() + 1))
            assert segments.max() <= most
            for segment in range(1, segments.max() + 1):
                piece, place = ids[segments == segment].tolist(), places[segments == segment]
                number, start = home[piece[0]]
                assert start % shape[1] == 0
                assert piece == examples[number][start : start + len(piece)]
                assert place.tolist() == list(range(len(piece)))
            read += real
    assert read == unit.tokens
    if positions == "all":
        assert unit.tokens == sum(lengths) == unit.size


@given(LENGTHS, SHAPES, POSITIONS)
def test_packing_never_needs_more_rows(lengths, shape, positions):
    units = [plan(0, 0, texts(lengths), specification(positions), shape, pack) for pack in (True, False)]
    packed, alone = (sum((batch.segments > 0).any(axis=1).sum() for batch in unit.batches) for unit in units)
    assert packed <= alone
    assert len(units[0].batches) <= len(units[1].batches)
    assert rows_of(units[0]) == rows_of(units[1])
    assert units[0].tokens == units[1].tokens


@given(LENGTHS, SHAPES, POSITIONS, st.booleans())
def test_a_plan_depends_on_nothing_but_its_arguments(lengths, shape, positions, pack):
    examples, spec = texts(lengths), specification(positions)
    before = [list(ids) for ids in examples]
    one = plan(5, FIRST, examples, spec, shape, pack)
    plan(4, 0, texts([9, 2, 7]), specification("last"), (2, 8), True)
    two = plan(5, FIRST, [np.array(ids, np.int64) for ids in examples], replace(spec, dtype="float32"), shape, pack)
    assert examples == before
    assert same(one, two)
    later = plan(6, FIRST + 7, examples, spec, shape, pack)
    assert same(replace(later, number=5, first=FIRST, rows=later.rows | {"example": later.rows["example"] - 7}), one)


def same(a, b):
    arrays = ("ids", "positions", "segments", "at", "to")
    return (
        (a.number, a.first, a.count, a.tokens) == (b.number, b.first, b.count, b.tokens)
        and all(np.array_equal(a.rows[name], b.rows[name]) for name in ROW)
        and len(a.batches) == len(b.batches)
        and all(
            np.array_equal(getattr(x, name), getattr(y, name))
            for x, y in zip(a.batches, b.batches, strict=True)
            for name in arrays
        )
    )


def test_a_long_example_is_cut_and_what_nobody_wants_is_not_run():
    ids = list(range(1, 21))
    unit = plan(0, 0, [ids], specification("all"), (1, 8), True)
    assert rows_of(unit) == [(i + 1, 0, i // 8, i % 8) for i in range(20)]
    last = plan(0, 0, [ids], specification("last"), (1, 8), True)
    assert (last.tokens, rows_of(last)) == (4, [(20, 0, 2, 3)])  # the last piece alone
    ends = plan(0, 0, [ids], specification((0, -1)), (1, 8), True)
    # nothing after the last token that is kept
    assert (ends.tokens, rows_of(ends)) == (1 + 4, [(1, 0, 0, 0), (20, 0, 2, 3)])
    assert plan(0, 0, [ids, [7]], specification((30,)), (1, 8), True).batches == ()


def test_the_picture_at_the_head_of_the_module():
    unit = plan(0, 0, [[4, 4], [5, 6, 7], [8, 9]], specification("all"), (1, 8), True)
    (batch,) = unit.batches
    assert batch.ids.tolist() == [[5, 6, 7, 4, 4, 8, 9, 0]]  # the longest first, the others as they came
    assert batch.segments.tolist() == [[1, 1, 1, 2, 2, 3, 3, 0]]
    assert batch.positions.tolist() == [[0, 1, 2, 0, 1, 0, 1, 0]]
    assert batch.to.tolist() == [2, 3, 4, 0, 1, 5, 6]


@pytest.mark.parametrize(("positions", "wanted"), [("last", 1), ((0, -1), 2), ((0, 1, 2, 3, 4, 5, 6, 7, 8, 9), 10)])
def test_capacity_is_reached_and_no_more(positions, wanted):
    """Room for every value that a full batch can have: not a row fewer would do, while segments are no shorter than
    foreseen."""
    spec, shape = specification(positions), (2, 32)
    length = max(wanted, SHORTEST)
    unit = plan(0, 0, texts([length] * 8), spec, shape, True)
    assert max(len(batch.at) for batch in unit.batches) == min(capacity(spec, shape, True), 2 * (32 // length) * wanted)
    assert capacity(spec, shape, False) == 2 * wanted
    assert capacity(spec, (2, 4), True) == 2 * min(4, wanted)
    assert capacity(specification("all"), shape, True) == capacity(specification("all"), shape, False) == 64
    # more would fit into a row than there is room for their values
    short = plan(0, 0, texts([wanted] * 40), spec, shape, True)
    assert all(len(batch.at) <= capacity(spec, shape, True) for batch in short.batches)


@given(
    st.lists(st.lists(st.integers(1, 12), min_size=1, max_size=5), min_size=1, max_size=30),
    st.randoms(use_true_random=False),
)
def test_rows_are_few(full, random):
    """Pieces made by cutting full rows: so many rows suffice. Johnson's bound, with Dósa's constant, then holds."""
    room = 24
    pieces = []
    for cut in full:
        while sum(cut) > room:
            cut.pop()
        pieces += [*cut, room - sum(cut)] if sum(cut) < room else cut
    random.shuffle(pieces)
    rows = best_fit(pieces, room, len(pieces))
    assert_fits(rows, pieces, room, len(pieces))
    assert len(rows) <= 11 / 9 * len(full) + 6 / 9


@given(st.lists(st.integers(1, 10), min_size=1, max_size=5), st.integers(1, 4))
def test_rows_are_few_against_every_way_there_is(pieces, most):
    room, n = 10, len(pieces)
    assert_fits(best_fit(pieces, room, most), pieces, room, most)
    rows = best_fit(pieces, room, n)
    assert_fits(rows, pieces, room, n)
    filled = (np.bincount(where, pieces, n) for where in product(range(n), repeat=n))
    fewest = min(np.count_nonzero(tokens) for tokens in filled if tokens.max() <= room)
    assert len(rows) <= 11 / 9 * fewest + 6 / 9


def assert_fits(rows, pieces, room, most):
    assert sorted(i for row in rows for i in row) == list(range(len(pieces)))
    assert all(row and sum(pieces[i] for i in row) <= room and len(row) <= most for row in rows)


def test_nothing_to_pack():
    assert best_fit([], 8, 8) == []
    assert best_fit([8, 8], 8, 8) == [[0], [1]]
    assert best_fit([1, 1, 1], 8, 2) == [[0, 1], [2]]
