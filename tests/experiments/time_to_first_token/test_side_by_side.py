"""What is said of subjects side by side, from made-up trials whose answers are known."""

import numpy as np

from llama_lab.bench.frames import show
from llama_lab.bench.statistics import Ratio
from llama_lab.bench.wording import named_well
from llama_lab.experiments.time_to_first_token import finding, first_requests, side_by_side, table
from tests.experiments.time_to_first_token.test_table import LENGTHS, everything


def race(n, value, low, high, peer="torch-compile"):
    return dict(tokens=n, best="step exact", peer=peer, ratio=Ratio(value, low, high, 6))


def test_subjects_stand_side_by_side_the_best_first():
    found = side_by_side.entries(everything())
    assert (found[0]["subject"], found[0]["10 over"]) == ("step exact", "1")
    torch = next(e for e in found if e["subject"] == "torch")
    for n in LENGTHS:
        assert torch[f"{n} ms"] == table.middle(everything(), "torch", n)
        assert torch[f"{n} over"] == table.sooner(everything(), "step exact", "torch", n).words
    assert list(show(found, side_by_side.columns(LENGTHS)).index) == [e["subject"] for e in found]


def test_who_has_fewer_bits_and_is_late_is_named():
    assert side_by_side.late(everything()) == "nobody"
    small = [t.model_copy(update=dict(dtype="int8")) if t.subject == "torch" else t for t in everything()]
    assert side_by_side.late(small).startswith("PyTorch (1.")


def test_who_rounds_the_weights_again_is_marked():
    made = [t.model_copy(update=dict(backend="openvino")) if t.subject == "torch" else t for t in everything()]
    kept = side_by_side.kept(made)
    assert (kept["torch"], kept["step exact"]) == ("float32 rounded again", "float32")
    found = {e["subject"]: e["weights"] for e in side_by_side.entries(made)}
    assert found["torch"] == "float32 rounded again"
    said = finding.beside(made, finding.first_of_all([t for t in made if t.subject != "llamacpp"])[0])
    assert said.startswith("after 10 tokens PyTorch (float32 rounded again) takes 1.4")
    assert "] as long as step exact (paired, n = 6; medians 42" in said


def test_the_first_token_is_set_beside_its_limit_at_the_shortest_and_the_longest_prompt():
    said = side_by_side.near_limit(everything(), "step exact", {10: 15.0, 50: 1.0, 100: 100.0})
    assert said == (
        "at 10 tokens step exact takes 2.0 times the float32 limit (30.1 of 15 ms),"
        " at 100 tokens 1.2 times (120 of 100 ms)"
    )
    assert "no valid" in side_by_side.near_limit(everything(), "other", {10: 15.0})


def test_a_length_that_is_not_decided_is_said_so():
    trials = everything()
    kinds = [t.model_copy(update=dict(subject="torch-compile")) for t in trials if t.subject == "torch"]
    said = finding.soonest(
        [*trials, *kinds],
        [
            race(10, 1.3, 1.2, 1.4),
            race(100, 0.97, 0.92, 1.04),
            race(100, 1.2, 1.1, 1.3, "torch"),
            race(400, 0.8, 0.7, 0.9),
        ],
        "float32",
    )
    assert said == (
        f"in float32 step exact is first at 10 tokens, at 100 undecided: {named_well('torch-compile')} takes 0.97x"
        f" [0.92, 1.04] as long, at 400 later: {named_well('torch-compile')} takes 0.80x [0.70, 0.90] as long"
    )
    assert finding.soonest([*trials, *kinds], [race(400, 0.8, 0.7, 0.9)], "float32").startswith(
        "in float32 ours is at 400"
    )
    open_one = race(50, 1.1, 0.9, 1.3, "torch")  # the soonest is not the one that is undecided
    assert "at 50 undecided: PyTorch takes 1.10x" in finding.soonest(
        [*trials, *kinds], [race(10, 1.3, 1.2, 1.4), race(50, 1.05, 1.02, 1.08), open_one], "float32"
    )
    assert finding.soonest(trials, [], "float32") == ""


def test_tails_are_said_in_milliseconds_and_as_a_factor():
    (said,) = side_by_side.tail_words(side_by_side.tails(everything(tail=200)))
    assert said.startswith("PyTorch, P95 less the median, ms: ")
    assert said.count(" at 50 tokens") == 2


def test_where_a_tail_is_the_largest_share_of_the_median_is_said_with_the_bands_that_it_is_clear_of():
    def tail(name, tokens, late):
        points = dict(ms=np.array([100.0] * 180 + [late] * 20))
        return dict(subject=name, tokens=tokens, p50=100.0, p95=late, points=points)

    found = [tail("step", 10, 150.0), tail("step", 50, 120.0), tail("step", 100, 150.0)]
    said = (
        "the tail of each subject is largest at 10 tokens; its interval there is apart from 1 of the 2 at other lengths"
    )
    assert side_by_side.largest_tail(found) == f"as a share of the median {said}"
    other = [tail("torch", 10, 110.0), tail("torch", 50, 130.0)]
    said = "tail is largest at 10 tokens under step and 50 tokens under PyTorch; its interval there is apart from 2 of"
    assert f"{said} the 3 at other lengths" in side_by_side.largest_tail([*found, *other])
    assert side_by_side.largest_tail(found[:1]) == ""


def test_lengths_that_are_not_won_are_counted_by_how_they_stand():
    races = [race(10, 1.3, 1.2, 1.4), race(50, 1.0, 0.9, 1.1), race(100, 0.8, 0.7, 0.9)]
    assert finding.standing(races) == "1, with 1 later and 1 undecided"
    assert finding.standing(races[:2]) == "1, with 1 undecided"
    assert finding.standing(races[:1]) == "all 1"
    assert finding.standing(races[2:]) == "none, with 1 later"


def test_whose_mean_a_cold_request_lifts_is_said():
    mixed = [
        dict(subject=name, mixed=ratio, largest=1.0) for name, ratio in (("torch", 0.6), ("llamacpp", 0.9), ("step", 3))
    ]
    assert first_requests.lifted(mixed) == (
        "mean above every warm request: step; of the others it is 0.6 to 0.9 of the largest warm request"
    )
    assert first_requests.lifted(mixed[:1]).startswith("mean above every warm request: nobody")
