"""Teaching tools for notebooks: intended errors, counted programs, exercises that check an answer."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Callable, Iterable, Iterator

import jax
import numpy as np

from llama_lab.bench.guard import Guard

UNANSWERED = "Not answered yet. Change the line above, and run this cell again."
ADDRESS = re.compile(r" at 0x[0-9a-f]+")
LONGEST = 300  # characters of an error


@contextlib.contextmanager
def refused() -> Iterator[None]:
    """Code that is meant to fail: prints the kind of error and the first line of its message.

    Raises AssertionError if nothing fails, since the text around it would then be wrong.
    """
    try:
        yield
    except Exception as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        message = re.sub(r"\. [^.]*:$", ".", ADDRESS.sub("", lines[0] if lines else ""))  # what it leads to is left out
        print(f"{type(error).__name__}: {message if len(message) <= LONGEST else message[:LONGEST] + ' …'}")
    else:
        raise AssertionError("This was meant to fail, and did not: JAX has learnt it.")


def programs(function: Callable, *calls: tuple) -> list[int]:
    """How many programs each of these calls compiles, one after the other, as the guard counts them.

    The arguments are computed before.
    """
    counts = []
    for arguments in calls:
        jax.block_until_ready([a for a in arguments if isinstance(a, jax.Array)])
        with Guard() as guard:
            jax.block_until_ready(function(*arguments))
        counts.append(guard.count("backend"))
    return counts


def exercise(answer: object, right: object, why: str, within: float = 0.0) -> str:
    """The reply to an answer: a number (right within a share of it), a name, a list. None means not answered yet."""
    if answer is None:
        return UNANSWERED
    numbers = isinstance(right, (int, float)) and not isinstance(right, bool)
    if numbers and (isinstance(answer, bool) or not isinstance(answer, (int, float))):
        return f"Not yet: {answer!r} is not a number."
    hit = math.isclose(answer, right, rel_tol=within, abs_tol=1e-9) if numbers else answer == right
    shown = f"{right:,.4g}" if isinstance(right, float) else right
    return f"Right: {shown}. {why}" if hit else f"Not yet: it is not {answer!r}. {why}"


def same(mine: Callable | None, reference: Callable, calls: Iterable[tuple], most: int | None = None) -> str:
    """The reply to the reader's function: whether it computes what the reference does, in every call, and in at most
    `most` programs. None means not answered yet."""
    if mine is None:
        return UNANSWERED
    compiled = 0
    for n, arguments in enumerate(calls, 1):
        wanted = np.asarray(reference(*arguments))
        try:
            with Guard() as guard:
                result = np.asarray(mine(*arguments))
        except Exception as error:  # the reader's own, as one line
            return f"Not yet: call {n} ends in {type(error).__name__}: {(str(error).splitlines() or [''])[0][:LONGEST]}"
        compiled += guard.count("backend")
        if result.shape != wanted.shape:
            return f"Not yet: call {n} gives shape {result.shape}, it should be {wanted.shape}."
        if not np.allclose(result, wanted, rtol=1e-4, atol=1e-5):
            return f"Not yet: call {n} gives {result.tolist()!r:.60}, it should be {wanted.tolist()!r:.60}."
    if most is not None and compiled > most:
        return f"Not yet: the values are right, but it compiled {compiled} programs where {most} will do."
    return f"Right, in {compiled} program{'s' * (compiled != 1)}."
