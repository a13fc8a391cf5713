"""No sentence is printed against the verdict of a ratio that it names."""

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llama_lab.bench import claim
from llama_lab.bench.claim import FORMS, Comparison, fastest_beside, stated
from llama_lab.bench.statistics import Ratio, of_times

NAN = float("nan")
FAST, SLOW, OPEN = Ratio(2.8, 2.4, 3.2, 6), Ratio(0.5, 0.4, 0.6, 6), Ratio(1.1, 0.9, 1.3, 6)
WIDE, EQUAL, NONE = Ratio(4.0, 1.8, 9.1, 4), Ratio(1.0, 0.99, 1.01, 20), Ratio(NAN, NAN, NAN, 0)


@st.composite
def ratios(draw):
    """Any ratio that `statistics` can give, those with one pair or none included."""
    n = draw(st.integers(0, 30))
    logs = st.floats(-3, 3)
    if n < 2:
        return Ratio(math.exp(draw(logs)), NAN, NAN, n) if n else NONE
    middle, below, above = draw(logs), draw(st.floats(0, 2)), draw(st.floats(0, 2))
    value, low, high = (math.exp(x) for x in (middle, middle - below, middle + above))
    spread, floor = draw(st.sampled_from([0.0, 0.5, 5.0])), draw(st.floats(0, 1))
    return Ratio(value, low, high, n, spread=spread, floor=floor)


@settings(deadline=None)
@given(ratios(), st.booleans(), st.sampled_from(list(FORMS)))
def test_no_sentence_contradicts_the_verdict(ratio, times, form):
    ratio = replace(ratio, times=times)
    comparison = Comparison(ratio, "a", "b")
    said = stated(f"It is {{it:{form}}}.", it=comparison)
    generic = comparison.generic.sentence
    if said:
        assert comparison.outcome in FORMS[form].outcomes
        assert claim.narrow(ratio) or not FORMS[form].narrow
        assert said.evidence == (comparison,)
        assert comparison.outcome in said.text()
    assert str(comparison.outcome) in generic or not ratio.n
    assert "nan" not in generic


@settings(deadline=None)
@given(ratios())
def test_the_fastest_placement_is_called_faster_only_where_it_is(ratio):
    said = fastest_beside(Comparison(ratio, "loop", "llama.cpp")).sentence
    if "times as fast" in said or "decodes faster" in said:
        assert ratio.verdict == "faster"
    if "slower" in said:
        assert ratio.verdict == "slower"


@pytest.mark.parametrize(
    ("form", "allowed"),
    [("", [FAST]), ("slower", [SLOW]), ("more", [FAST]), ("share", [FAST]), ("outcome", [FAST, SLOW, WIDE]),
     ("open", [OPEN])],
)  # fmt: skip
def test_a_sentence_says_what_it_takes_a_comparison_to_show(form, allowed):
    every = (FAST, SLOW, OPEN, WIDE, EQUAL, NONE)
    assert [ratio for ratio in every if Comparison(ratio, "a", "b").allows(form)] == allowed


def test_of_a_time_more_is_slower():
    longer = Comparison(of_times(FAST), "a", "b", "time")
    assert longer.outcome == "slower"
    assert str(stated("It takes {longer:slower} times as long.", longer=longer)) == "It takes 2.80 times as long."
    assert stated("It is {longer} times as fast.", longer=longer) is None
    assert longer.generic.sentence == "The time of a is 2.80x [2.40, 3.20] that of b: slower, n = 6."


def test_a_claim_names_the_ratios_that_it_rests_on():
    gain = Comparison(FAST, "loop", "eager")
    said = stated("{name} is {gain} times as fast.", name="Loop", gain=gain)
    assert said.text("", "another detail") == (
        "Loop is 2.80 times as fast. Decode rate, loop over eager: 2.80x [2.40, 3.20], faster, n = 6; another detail."
    )
    assert gain.generic.text() == gain.generic.sentence
    assert stated("It holds.", when=False) is None
    with pytest.raises(KeyError):
        stated("{gain:sooner}", gain=gain)
