"""What notebooks teach with: a lesson whose example does not fail, or whose exercise takes any answer, is none."""

import jax
import jax.numpy as jnp
import pytest

from llama_lab.playground.lesson import UNANSWERED, exercise, programs, refused, same


def test_an_error_that_is_meant_is_told_in_a_line_and_one_that_does_not_come_is_an_error(capsys):
    with refused():
        jax.jit(lambda x: 1 if x > 0 else 0)(1.0)
    said = capsys.readouterr().out
    assert said.startswith("TracerBoolConversionError: Attempted boolean conversion of traced array")
    assert said.count("\n") == 1
    with refused():
        raise ValueError(f"{object()} is none of them. What it said was:\nmuch")
    assert capsys.readouterr().out == "ValueError: <object object> is none of them.\n"
    with refused():
        raise ValueError("x" * 5000)
    assert len(capsys.readouterr().out) < 400
    with pytest.raises(AssertionError, match="did not"), refused():
        jax.jit(lambda x: x + 1)(1.0)


def test_programs_are_counted_call_by_call():
    function = jax.jit(lambda x: x * 3)
    assert programs(function, (jnp.ones(3),), (jnp.zeros(3),), (jnp.ones(4),)) == [1, 0, 1]


@pytest.mark.parametrize(
    ("answer", "right", "within", "begins"),
    [
        (None, 6, 0, UNANSWERED),
        (6, 6, 0, "Right: 6."),
        (6.0, 6, 0, "Right: 6."),
        (7, 6, 0, "Not yet: it is not 7."),
        (5.5, 6.0, 0.1, "Right: 6."),
        (5.0, 6.0, 0.1, "Not yet: it is not 5.0."),
        ("six", 6, 0, "Not yet: 'six' is not a number."),
        (True, 1, 0, "Not yet: True is not a number."),
        ("step", "step", 0, "Right: step."),
        ("loop", "step", 0, "Not yet: it is not 'loop'."),
        ([1, 2], [1, 2], 0, "Right: [1, 2]."),
        (float("nan"), 6, 0, "Not yet"),
    ],
)
def test_an_answer_is_right_or_not_yet(answer, right, within, begins):
    assert exercise(answer, right, "So it is.", within).startswith(begins)


CALLS = [(jnp.ones(3), 1), (jnp.ones(3), 2)]


@pytest.mark.parametrize(
    ("mine", "begins"),
    [
        (None, UNANSWERED),
        (jax.jit(lambda x, n: x * n), "Right, in 1 program."),
        (lambda x, n: x, "Not yet: call 2 gives [1.0, 1.0, 1.0]"),
        (lambda x, n: x[:n], "Not yet: call 1 gives shape (1,)"),
        (lambda x, n: x / int("a"), "Not yet: call 1 ends in ValueError"),
        (jax.jit(lambda x, n: x * n, static_argnums=1), "Not yet: the values are right, but it compiled 2 programs"),
    ],
)
def test_a_function_is_compared_and_its_programs_counted(mine, begins):
    assert same(mine, lambda x, n: x * n, CALLS, most=1).startswith(begins)
