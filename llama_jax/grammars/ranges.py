"""JSON numbers between bounds, as texts. A bound is exact: the text's value is compared, digit by digit."""

from __future__ import annotations

import math
from decimal import Decimal

import numpy as np

from llama_jax.grammars.automata import automaton, combined
from llama_jax.grammars.languages import (
    DEAD,
    Automaton,
    Budget,
    Choice,
    ImpossibleError,
    Repeat,
    Sequence,
    TooLargeError,
    choice,
    optional,
    text,
)
from llama_jax.grammars.patterns import span, spans

DIGIT, NONZERO = span(48, 57), span(49, 57)
DIGITS = 15  # decimal digits that a double tells apart
LONGEST = 30  # digits of a bound
LARGEST_FACTOR = 2_000


def naturals(low: int, high: int | None, width: int = 1) -> list[Sequence]:
    """Whole numbers from low to high, from 0, with at least `width` digits: zeros stand before shorter ones."""
    options, digits = [], max(len(str(low)), width)
    longest = digits if high is None else max(len(str(high)), width)
    for n in range(digits, longest + 1):
        first = max(low, 10 ** (n - 1) if n > width else 0)
        last = 10**n - 1 if high is None else min(high, 10**n - 1)
        if first <= last:
            options += spans(str(first).zfill(n).encode(), str(last).zfill(n).encode(), 48, 57)
    if high is None:
        options.append(Sequence((NONZERO, Repeat(DIGIT, digits, None))))
    return options


def pointed(number: Sequence, places: int) -> Sequence:
    """The same digits with a decimal point before the last places."""
    if not places:
        return number
    *parts, last = number.parts
    if isinstance(last, Repeat):  # digits without a limit
        parts, rest = [*parts, Repeat(last.part, last.least - places, None)], [last.part] * places
    else:
        parts, rest = number.parts[:-places], number.parts[-places:]
    return Sequence((*parts, text("."), *rest))


def positive(low: Decimal, high: Decimal | None, open_: tuple[bool, bool], places: int) -> list:
    """Numbers from low to high, from 0, with at most so many decimal places. open_: whether low and high are none."""
    options = []
    for k in range(places + 1):
        least = math.floor(low * 10**k) + 1 if open_[0] else math.ceil(low * 10**k)
        most = None if high is None else math.ceil(high * 10**k) - 1 if open_[1] else math.floor(high * 10**k)
        if most is None or least <= most:
            options += [pointed(number, k) for number in naturals(least, most, k + 1)]
    return options


def bounded(low: Decimal | None, high: Decimal | None, open_: tuple[bool, bool], whole: bool) -> object:
    """Numbers between bounds. Those that are not whole have as many decimal places as a double tells apart."""
    before = max([len(str(abs(int(bound)))) for bound in (low, high) if bound is not None], default=1)
    if before > LONGEST:
        raise TooLargeError(f"has a bound of {before} digits; at most {LONGEST} are read")
    places = 0 if whole else max(DIGITS - before, 0)
    options = []
    if high is None or high >= 0:
        reaches = low is not None and low >= 0
        options += positive(low if reaches else Decimal(0), high, (open_[0] and reaches, open_[1]), places)
    if low is None or low < 0:
        reaches = high is not None and high <= 0
        least, most = -high if reaches else Decimal(0), None if low is None else -low
        options += [Sequence((text("-"), n)) for n in positive(least, most, (open_[1] and reaches, open_[0]), places)]
    if not options:
        raise ImpossibleError("leaves no number within its bounds")
    return Choice(tuple(options))


def multiples(factor: int) -> Automaton:
    """Whole numbers that a factor divides. States: start, after a sign, after 0, remainders."""
    if factor > LARGEST_FACTOR:
        raise TooLargeError(f"has a factor above {LARGEST_FACTOR:,}, which is too large")
    table = np.full((3 + factor, 256), DEAD, np.int32)
    digits = np.arange(10)
    table[:2, 49:58], table[:2, 48], table[0, ord("-")] = 3 + digits[1:] % factor, 2, 1
    table[3:, 48:58] = 3 + (np.arange(factor)[:, None] * 10 + digits) % factor
    return Automaton(table, np.isin(np.arange(3 + factor), (2, 3)))


EXPONENT = Sequence((  # to 299, so that a number of usual length is no infinity
    choice([text("e"), text("E")]),
    choice([
        Sequence((optional(choice([text("+"), text("-")])), Repeat(DIGIT, 1, 2))),
        Sequence((optional(text("+")), span(49, 50), DIGIT, DIGIT)),
        Sequence((text("-"), span(49, 51), DIGIT, DIGIT)),
    ]),
))  # fmt: skip
UNBOUNDED = Choice(tuple(naturals(0, None)))
INTEGER = Sequence((optional(text("-")), UNBOUNDED))
NUMBER = Sequence((INTEGER, optional(Sequence((text("."), Repeat(DIGIT, 1, None)))), optional(EXPONENT)))


def number(
    low: Decimal | None, high: Decimal | None, open_: tuple[bool, bool], factor: int | None, whole: bool, budget: Budget
) -> object:
    """A JSON number. low, high: bounds, open where they are excluded. factor: what divides it, so that it is whole.
    Raises ImpossibleError where there is none, TooLargeError beyond the bounds."""
    whole = whole or factor is not None
    if low is None and high is None:
        node = INTEGER if whole else NUMBER
    else:
        node = automaton(bounded(low, high, open_, whole), budget)
    if factor in (None, 1):
        return node
    return combined(node if isinstance(node, Automaton) else automaton(node, budget), multiples(factor))
