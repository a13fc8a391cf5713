"""What the sentences on measuring say of made-up numbers."""

from llama_lab.bench.statistics import Ratio
from llama_lab.experiments.honest_measurement import finding


def scenario(name, protocol, coverage, processes=20, wrong=0.14):
    about = dict(aa_false_positive_rate=wrong, processes=processes, runs=200, power=processes / 25)
    return dict(scenario=name, protocol=protocol, coverage=coverage, **about)


def test_how_often_intervals_hold_the_truth_is_said_of_each_way():
    table = [
        scenario("base", "ours", 0.94),
        scenario("base", "naive", 0.355, wrong=0.635),
        scenario("one process", "ours", 0.805, processes=1),
        scenario("10 blocks", "ours", 0.92, processes=10),
        scenario("5 processes", "ours", 0.94, processes=5),
        scenario("noise 10 %", "ours", 0.94),
        scenario("no drift", "naive", 0.87),
    ]
    assert finding.simulated(table, 0.93) == [
        "one process, this protocol: 80.5% of intervals cover the truth",
        "two processes or more, this protocol: 92.0% (10 blocks) to 94.0%; required 93%, error about 4%",
        "power by processes, this protocol: 80.0% with 20, 20.0% with 5; required 85%; with 10% noise 80.0%",
        "naive: 35.5% of intervals cover the truth, 63.5% of equal subjects called different",
        "naive, without drift: 87.0% of intervals cover the truth, 14.0% of equal subjects called different",
    ]
    assert finding.simulated([], 0.93) == []


def test_few_rounds_do_not_tell_the_two_ways_apart():
    apart, level = (Ratio(1.1, low, 1.2, 10) for low in (1.05, 0.9))
    rounds = [dict(sequential=apart, interleaved=level)] * 3 + [dict(sequential=level, interleaved=level)] * 3
    assert finding.undecided(rounds) == ": too few to tell the two ways apart"
    assert finding.undecided(2 * rounds) == ""
    assert finding.undecided([]) == ": too few to tell the two ways apart"


def test_what_the_harness_costs_is_judged_by_its_interval():
    cost = dict(value=1.01, low=0.99, high=1.03, n=30, placement="step")
    assert finding.overhead(cost).endswith(
        "1.0100 [0.9900, 1.0300], n = 30 pairs under step: not told apart from no cost."
    )
    assert finding.overhead(cost | dict(value=0.9, low=0.8, high=0.95)).endswith("slower with it.")
    assert finding.overhead(cost | dict(low=1.005)).endswith("no slower with it.")
