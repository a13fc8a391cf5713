"""Intervals in words, from every kind of thing that has one."""

import pytest

from llama_lab.bench import wording
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
    assert wording.interval(found, form, name) == expected
    if not name:
        assert wording.within(found, form) == f" {expected}"


def test_what_has_no_interval_says_none():
    assert wording.within(Ratio(1.5, NAN, NAN, 1)) == wording.within(dict(low=NAN, high=NAN)) == ""
    assert Ratio(1.5, NAN, NAN, 1).words == "1.50x"
    assert wording.times(dict(value=1.5, low=1.4, high=1.6)) == "1.50x [1.40, 1.60]"


RATIOS = [(2.544, "2.54"), (7.347, "7.35"), (55.41, "55.4"), (0.347, "0.35"), (1.0, "1.00")]


@pytest.mark.parametrize(("ratio", "said"), RATIOS)
def test_a_title_has_the_number_of_the_text(ratio, said):
    assert wording.round_ratio(ratio) == said


def test_a_span_is_said_once_where_both_ends_read_the_same():
    spans = [wording.span(values) for values in ([], [3.0], [3.001, 3.0], iter([5.0, 2.934, 4.0]))]
    assert spans == ["", "3.00", "3.00", "2.93 to 5.00"]
    assert wording.span({7, 3}, "d") == "3 to 7"
    assert wording.span([12.44, 2.0], wording.round_ratio) == "2.00 to 12.4"


def test_a_runtime_is_named_as_its_makers_write_it_however_often_it_is_asked_for():
    names = ["llamacpp+q4_0", "ik-llamacpp", "torch", "torch-compile+nocache", "torch-script", "loop"]
    well = [wording.named_well(name) for name in names]
    assert well == ["llama.cpp+q4_0", "ik_llama.cpp", "PyTorch", "torch.compile+nocache", "PyTorch-script", "loop"]
    assert [*map(wording.named_well, well)] == well


def test_a_text_is_cut_at_its_clauses_and_never_within_brackets():
    assert wording.opening("JAX 0.4.38 to v. 0.12 is slow. Then more.") == "JAX 0.4.38 to v. 0.12 is slow."
    assert wording.opening("It is 2x [1, 3] (n = 2, one process), " + "and so on, " * 40).endswith("and so on …")
    text = "a is 1 [1, 2], b is 2 (n = 3, here; there), c"
    assert wording.clipped(text, 100) == text
    assert wording.clipped(text, 20) == wording.clipped(text, 1) == "a is 1 [1, 2] …"  # one at least
    assert wording.clipped(text, 45) == "a is 1 [1, 2], b is 2 (n = 3, here; there) …"


def test_a_finding_is_told_point_by_point():
    said = "It is 2x [1; 3] (n = 2; one process). A takes 1 s [0.9; 1.1]; B 2 s. C (a; b) 3."
    details = ["A takes 1 s [0.9; 1.1]", "B 2 s", "C (a; b) 3"]
    assert wording.points(said) == ("It is 2x [1; 3] (n = 2; one process).", details)
    assert wording.points("It is twice as fast.") == ("It is twice as fast.", [])


def test_what_the_probes_read_is_said_and_how_far_they_lie_apart():
    steady = dict(bandwidth_gbps={"main": dict(max=34.0, median=33.0, min=30.2, n=20)})
    assert wording.probed(steady) == "bandwidth 34 GB/s (probes 30 to 34, n = 20)"
    apart = {
        name: dict(max=63.0, median=middle, min=29.8, n=10) for name, middle in (("a", 34.5), ("b", 36.0), ("c", 30))
    }
    assert wording.probed(dict(bandwidth_gbps=apart)) == (
        "limits from the fastest of 30 bandwidth probes, 63 GB/s (median 34 GB/s)"
    )
    few = wording.pooled(dict(bandwidth_gbps=apart | dict(d=dict(max=90.0, median=1.0, min=1.0, n=9)), kept=1), "a")
    assert few == dict(bandwidth_gbps={"pooled": dict(max=63.0, median=34.5, min=29.8, n=10)}, kept=1)
    assert wording.pooled({}) == {}
    apart["c"]["max"] = 54.2
    assert wording.probed(dict(bandwidth_gbps=apart)) == (
        "limits from the fastest bandwidth probe of each run, 54 to 63 GB/s"
    )
    assert wording.probed({}) == wording.probed(dict(bandwidth_gbps={})) == ""


def test_probes_are_the_widest_of_all_runs():
    runs = dict(main=dict(min=1, median=2, max=3), more=dict(min=0.5, median=4, max=5))
    assert wording.bandwidths(dict(bandwidth_gbps=runs)) == (0.5, 4, 5)
    assert wording.bandwidths({}) is None
