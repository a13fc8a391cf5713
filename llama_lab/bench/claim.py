"""A notebook's conclusion: a sentence written by a person if its condition holds, otherwise the measured ratio with its
interval and verdict.

A sentence names computed numbers in braces. If it names a comparison, it states the outcome that it assumes:

    stated("Jitting makes the model {gain} times as fast.", gain=gain)            # holds where gain is faster
    stated("Without a cache an answer takes {more:slower} times as long.", more=more)

so that no sentence can be printed against the verdict of a ratio that it names.
"""

from __future__ import annotations

import string
from collections.abc import Callable
from dataclasses import dataclass

from llama_lab.bench.statistics import DIFFERENT, Ratio, Verdict
from llama_lab.bench.wording import round_ratio

WIDEST = 2.0  # high over low: a ratio with a wider interval is never printed alone


def narrow(ratio: Ratio) -> bool:
    """Whether a ratio may be printed without its interval."""
    return ratio.high / ratio.low <= WIDEST


def settled(ratio: Ratio) -> bool:
    """Whether the trials decide a ratio, and it may be printed without its interval."""
    return ratio.verdict != Verdict.UNDECIDED and narrow(ratio)


@dataclass(frozen=True)
class Form:
    """How a sentence may name a comparison: under which outcomes, and what is printed.

    narrow: whether the interval must be narrow, as the ratio is printed without it.
    """

    outcomes: tuple[Verdict, ...]
    printed: Callable[[Comparison], str]
    narrow: bool = True


FORMS = {  # by the format in the sentence's braces
    "": Form((Verdict.FASTER,), lambda c: round_ratio(c.ratio.value)),
    "slower": Form((Verdict.SLOWER,), lambda c: round_ratio(c.ratio.value)),
    "more": Form((Verdict.FASTER,), lambda c: f"{c.ratio.value - 1:.0%}"),
    "share": Form((Verdict.FASTER,), lambda c: f"{c.ratio.value:.0%}"),
    "outcome": Form(DIFFERENT, lambda c: str(c.outcome), narrow=False),
    "open": Form((Verdict.UNDECIDED,), lambda c: "show no effect", narrow=False),
}


@dataclass(frozen=True)
class Comparison:
    """A ratio and what it compares: the quantity, a noun, of the subject over that of the baseline."""

    ratio: Ratio
    subject: str
    baseline: str
    quantity: str = "decode rate"

    @property
    def outcome(self) -> Verdict:
        """The verdict about the subject."""
        return self.ratio.verdict

    @property
    def words(self) -> str:
        """`decode rate, loop over eager: 3.92x [3.79, 4.03], faster, n = 40`."""
        pair = f"{self.quantity}, {self.subject} over {self.baseline}"
        return f"{pair}: {self.ratio.words}, {self.ratio.judged}, n = {self.ratio.n}"

    @property
    def generic(self) -> Claim:
        """The text if no person's sentence holds."""
        pair, ratio = f"{self.quantity} of {self.subject}", self.ratio
        if not ratio.n:
            return Claim(f"No pair of valid trials compares the {pair} with that of {self.baseline}.")
        return Claim(f"The {pair} is {ratio.words} that of {self.baseline}: {ratio.judged}, n = {ratio.n}.")

    def allows(self, form: str) -> bool:
        """Whether a sentence may name this comparison in that form. Raises KeyError for a form that does not exist."""
        allowed = FORMS[form]
        return self.ratio.n > 0 and self.outcome in allowed.outcomes and (narrow(self.ratio) or not allowed.narrow)

    def __format__(self, form: str) -> str:
        return FORMS[form].printed(self)


@dataclass(frozen=True)
class Claim:
    """A sentence, and the comparisons that it rests on."""

    sentence: str
    evidence: tuple[Comparison, ...] = ()

    def __str__(self) -> str:
        return self.sentence

    def text(self, *details: str) -> str:
        """The whole finding: the sentence, the ratios behind it with their intervals, and details."""
        text = "; ".join(filter(None, [*(c.words for c in self.evidence), *details]))
        return f"{self.sentence} {text[0].upper()}{text[1:]}." if text else self.sentence


def stated(sentence: str, when: bool = True, **numbers: object) -> Claim | None:
    """The sentence with its numbers where its condition holds, else None.

    when: what must hold beside the outcomes of the comparisons that the sentence names. numbers: what the names in
    braces stand for.
    """
    named = [(numbers[name], form) for _, name, form, _ in string.Formatter().parse(sentence) if name]
    compared = [(number, form) for number, form in named if isinstance(number, Comparison)]
    if not when or not all(comparison.allows(form) for comparison, form in compared):
        return None
    return Claim(sentence.format(**numbers), tuple(comparison for comparison, _ in compared))


def fastest_beside(comparison: Comparison) -> Claim:
    """The fastest placement's decode rate compared with another runtime's."""
    numbers = dict(name=comparison.subject, other=comparison.baseline, ratio=comparison)
    return (
        stated("The fastest placement, {name}, decodes {ratio} times as fast as {other}.", **numbers)
        or stated("The fastest placement, {name}, decodes {ratio:outcome} than {other}.", **numbers)
        or comparison.generic
    )
