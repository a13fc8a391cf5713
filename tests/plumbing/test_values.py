"""What a caller gives: taken as Python's own, or one line."""

import fractions
from collections import UserList, deque

import numpy as np
import pytest

from llama_jax.plumbing.errors import UserError
from llama_jax.plumbing.values import integer, listed, number, shown, whole


class Unspeakable:
    def __repr__(self):
        raise ValueError("no")


@pytest.mark.parametrize("value", [3, np.int64(3), np.uint8(3), np.array(3)])
def test_whole_numbers_become_ints(value):
    assert whole(value, "n") == 3
    assert type(whole(value, "n")) is type(integer(value)) is int


@pytest.mark.parametrize(
    "value", [None, True, np.True_, 3.0, np.float32(3), "3", b"3", [3], np.array([3]), 3j, Unspeakable(), int]
)
def test_what_is_no_whole_number_is_named(value):
    assert integer(value) is None
    with pytest.raises(UserError, match="^n is .*; it must be a whole number, 0 or more.$"):
        whole(value, "n")


def test_bounds_belong_to_the_range():
    assert [whole(n, "n", 2, 4) for n in (2, 3, 4)] == [2, 3, 4]
    for n, words in ((1, "2 or more"), (-(10**30), "2 or more"), (5, "at most 4"), (10**5_000, "a int.*at most 4")):
        with pytest.raises(UserError, match=words):
            whole(n, "n", 2, 4)


@pytest.mark.parametrize("value", [0.5, np.float64(0.5), np.float16(0.5), np.array(0.5), fractions.Fraction(1, 2)])
def test_numbers_become_floats(value):
    assert number(value, "x", 0, 1) == 0.5
    assert type(number(value, "x", 0, 1)) is float


@pytest.mark.parametrize(
    "value",
    [None, True, "0.5", [0.5], 1j, -1, 2, 10**400, float("nan"), np.float32("inf"), np.array([0.5]), Unspeakable()],
)
def test_what_is_no_number_within_the_bounds_is_named(value):
    with pytest.raises(UserError, match="^x is .*; it must be a number from 0 to 1.$"):
        number(value, "x", 0, 1)


@pytest.mark.parametrize(
    "value", [[], (1,), range(3), deque([1]), UserList([1]), np.ones(2), np.ones((0, 2))], ids=repr
)
def test_lists_of_all_kinds_stay_as_they_are(value):
    assert listed(value, "them", "things") is value


@pytest.mark.parametrize(
    "value",
    [None, 3, {}, set(), iter([]), np.ones(()), np.ndarray, range(10**30), "ab"]
    + [kind(b"ab") for kind in (bytes, bytearray, memoryview)],
)
def test_what_is_no_list_is_named(value):
    with pytest.raises(UserError, match="^them is .*; it must be a list of things.$"):
        listed(value, "them", "things")


def test_a_value_is_shown_in_few_characters_whatever_it_is():
    for value in ("a" * 10**6, [["a"] * 10**5] * 10, 10**400, 10**5_000, Unspeakable(), {"a": {"b": {"c": {}}}}):
        assert 0 < len(shown(value)) < 300


def test_a_line_that_is_too_long_keeps_its_ends():
    message = str(UserError("The file " + "x" * 50_000 + " is damaged; measure again."))
    assert len(message) < 1_100
    assert message.startswith("The file xxx")
    assert message.endswith("xxx is damaged; measure again.")
