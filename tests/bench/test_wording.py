"""Intervals in words, from every kind of thing that has one."""

import pytest

from llama_lab.bench import numbers, wording
from llama_lab.bench.statistics import Ratio, Summary

NAN = float("nan")


@pytest.mark.parametrize(
    ("found", "form", "name", "expected"),
    [
        (Ratio(1.5, 1.25, 1.756, 6), ".2f", "", "[1.25, 1.76]"),
        (Summary(3, 40.0, 2.0, 38.04, 41.0), ".1f", "", "[38.0, 41.0]"),
        (dict(value=1.5, low=1.25, high=1.756), ".1%", "", "[125.0%, 175.6%]"),
        (dict(kl=0.2, kl_low=0.1234, kl_high=0.3), ".2g", "kl_", "[0.12, 0.3]"),
        (dict(low=0.04, high=0.05), lambda s: f"{1e3 * s:.0f} ms", "", "[40 ms, 50 ms]"),
    ],
)
def test_an_interval_is_said_in_the_form_asked_for(found, form, name, expected):
    assert numbers.interval(found, form, name) == expected
    assert numbers.within(found, form, name) == f" {expected}"


def test_what_has_no_interval_says_none():
    assert numbers.within(Ratio(1.5, NAN, NAN, 1)) == numbers.within(dict(low=NAN, high=NAN)) == ""
    assert Ratio(1.5, NAN, NAN, 1).words == "1.50x"
    assert wording.with_n(Ratio(1.5, 1.4, 1.6, 2)) == "1.50x [1.40, 1.60] (n = 2)"
    assert wording.times(dict(value=1.5, low=1.4, high=1.6)) == "1.50x [1.40, 1.60]"


@pytest.mark.parametrize(
    ("finding", "complaint"),
    [
        ("Step is 1.5 times as fast as loop, 3 times in chunk8. Then 4, 5 and 6.", ""),
        ("A takes 0.5 s. B takes 2.", ""),
        ("From 1 to 2 layers it takes 3 ms. And more.", "3 numbers, more than 2"),
        (" ".join(["word"] * 21) + ".", "21 words, more than 20"),
        ("It ends nowhere", "does not end"),
        ("GPT-2 under float32 and loop+q4_1 takes 1 of 2.", ""),
    ],
)
def test_a_finding_that_does_not_begin_in_plain_words_is_seen(finding, complaint):
    found = wording.complaints(finding)
    assert complaint in " ".join(found)
    assert bool(found) is bool(complaint)


@pytest.mark.parametrize(("ratio", "said"), [(2.54, "2.5"), (9.96, "10"), (55.4, "55"), (0.347, "0.35"), (1.0, "1.0")])
def test_a_ratio_in_two_digits(ratio, said):
    assert numbers.round_ratio(ratio) == said


def test_a_finding_begins_with_its_first_sentence():
    assert wording.opening("It is 2x [1, 3]. The rest is 0.5 long.") == "It is 2x [1, 3]."
    assert wording.opening("JAX 0.4.38 to v. 0.12 is slow. Then more.") == "JAX 0.4.38 to v. 0.12 is slow."
    long = "It is 2x [1, 3] (n = 2, one process), " + "and so on, " * 40
    assert wording.opening(long).endswith("and so on …")
    assert len(wording.opening(long)) <= wording.ROOM + 2


def test_no_clause_is_cut_within_its_brackets():
    text = "a is 1 [1, 2], b is 2 (n = 3, here; there), c"
    assert wording.clipped(text, 100) == text
    assert wording.clipped(text, 20) == "a is 1 [1, 2] …"
    assert wording.clipped(text, 1) == "a is 1 [1, 2] …"  # one at least
    assert wording.clipped(text, 45) == "a is 1 [1, 2], b is 2 (n = 3, here; there) …"


@pytest.mark.parametrize(
    ("ratio", "said"),
    [
        (Ratio(2.8, 2.4, 3.2, 6), True),
        (Ratio(4.0, 1.8, 9.1, 4), False),  # decided, and five times as wide as it is narrow
        (Ratio(1.0, 0.99, 1.01, 20), True),
        (Ratio(1.1, 0.9, 1.3, 6), False),
        (Ratio(2.8, 2.4, 3.2, 6, spread=2.0), False),
        (Ratio(NAN, NAN, NAN, 0), False),
    ],
)
def test_a_ratio_is_said_alone_where_it_is_decided_and_narrow(ratio, said):
    assert wording.settled(ratio) is said


def test_where_only_the_direction_is_known_that_is_said():
    assert wording.decodes(Ratio(2.8, 2.4, 3.2, 6), "that") == "decodes 2.8 times as fast as that"
    assert wording.decodes(Ratio(3.7, 2.6, 5.4, 10), "that") == "decodes faster than that"
    assert wording.decodes(Ratio(0.3, 0.1, 0.5, 10), "that") == "decodes slower than that"


@pytest.mark.parametrize(
    ("environment", "words"),
    [(dict(kernels="avx2"), "kernels avx2"), (dict(kernels="none"), ""), ({}, "")],
)
def test_the_instruction_set_is_said_where_it_is_known(environment, words):
    assert wording.instructions(environment) == words


@pytest.mark.parametrize(
    ("finding", "details"),
    [
        ("It is twice as fast.", []),
        ("It is 2x [1; 3] (n = 2; one process). A takes 1 s [0.9; 1.1]; B 2 s. C (a; b) 3.",
         ["A takes 1 s [0.9; 1.1]", "B 2 s", "C (a; b) 3"]),
    ],
)  # fmt: skip
def test_a_finding_is_told_point_by_point(finding, details):
    first, told = wording.points(finding)
    assert finding.startswith(first)
    assert told == details


def test_what_the_probes_read_is_said_and_how_far_they_lie_apart():
    steady = dict(bandwidth_gbps={"main": dict(max=34.0, median=33.0, min=30.2, n=20)})
    assert wording.probed(steady) == "bandwidth 34 GB/s (probes 30 to 34, n = 20)"
    apart = {
        name: dict(max=63.0, median=middle, min=29.8, n=10) for name, middle in (("a", 34.5), ("b", 36.0), ("c", 30))
    }
    assert wording.probed(dict(bandwidth_gbps=apart)) == (
        "limits by the fastest of n = 30 bandwidth probes, 63 GB/s; median 34"
    )
    assert wording.probed({}) == wording.probed(dict(bandwidth_gbps={})) == ""


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (Ratio(2.0, 1.8, 2.2, 8), "2.00x [1.80, 2.20] of it (torch)"),
        (Ratio(1.0, 0.8, 1.2, 8), "1.00x [0.80, 1.20] of it (torch), which n = 8 blocks do not decide"),
        (Ratio(1.0, 0.8, 1.2, 1), "1.00x [0.80, 1.20] of it (torch), which n = 1 block does not decide"),
        (Ratio(0.7, 0.5, 0.9, 8, spread=0.5), "0.70x [0.50, 0.90] of it (torch), unstable over n = 8 blocks"),
    ],
)
def test_a_ratio_that_decides_nothing_says_which_way(found, said):
    assert wording.standing(found, "it", dict(name="torch", dtype="float32")) == said


def test_a_race_names_all_who_ran_and_counts_where_it_was_won():
    won = Ratio(0.5, 0.4, 0.6, 8, times=True)
    races = [dict(name="a", tokens=n, others=others, ratio=won) for n, others in ((10, ["b"]), (20, ["b", "c"]))]
    races.append(dict(name="a", tokens=30, others=["b"], ratio=Ratio(1.5, 1.4, 1.6, 8, times=True)))
    races.append(dict(name="a", tokens=40, others=[], ratio=None))
    assert wording.first_before(races) == "a makes the first token before b and c at 2 of 3 prompt lengths"
    assert wording.first_before(races[3:]) == ""
