import math
from dataclasses import asdict, replace

import numpy as np
import pytest

from llama_lab.experiments.honest_measurement import simulation
from llama_lab.experiments.honest_measurement.simulation import BASE

RUNS = 200


@pytest.fixture(scope="module")
def ours():
    return simulation.simulate(BASE, RUNS, seed=0)


def test_the_protocol_keeps_its_promises_and_one_subject_after_the_other_does_not(ours):
    naive = simulation.simulate(BASE, RUNS, seed=0, protocol="naive")
    assert simulation.shortfalls(ours) == []
    assert ours.aa_false_positive_rate <= 0.06
    assert ours.coverage >= 0.93
    assert ours.power >= 0.85
    assert naive.aa_false_positive_rate > 5 * simulation.FALSE_POSITIVES
    assert naive.coverage < 0.6
    assert [line.split(":")[0] for line in simulation.shortfalls(naive)] == ["coverage", "A/A", "power"]


def test_without_drift_and_luck_the_naive_way_is_honest():
    calm = replace(BASE, drift=0.0, process_sd=0.0)
    assert simulation.simulate(calm, RUNS, protocol="naive").coverage >= 0.92


def test_pairs_cancel_the_drift(ours):
    still = simulation.simulate(replace(BASE, drift=0.0), RUNS)
    assert ours.half_width == pytest.approx(still.half_width, rel=0.1)
    wild = simulation.simulate(replace(BASE, drift=0.5), 60)
    assert wild.half_width > 1.3 * still.half_width  # what drifts within a block remains, as noise and not as bias
    assert wild.coverage > 0.85


def test_pairs_that_scatter_are_judged_by_their_interval_as_rightly():
    noisy = simulation.simulate(replace(BASE, noise=0.1, processes=5), 5 * RUNS)  # few processes: Student's t, fast
    assert noisy.aa_false_positive_rate <= simulation.FALSE_POSITIVES
    assert noisy.coverage >= simulation.COVERAGE


def test_the_luck_of_one_process_is_not_in_its_interval(ours):
    """Why blocks are spread over processes."""
    lucky = replace(BASE, process_sd=0.02)
    one, many = (simulation.simulate(replace(lucky, processes=n), 60).coverage for n in (1, 20))
    assert one < 0.7
    assert many > 0.85


def test_a_slower_subject_is_called_slower():
    assert simulation.simulate(replace(BASE, effect=-0.1), 20).power == 1


def test_the_same_seed_gives_the_same_result():
    first, again, other = (simulation.simulate(BASE, 5, seed) for seed in (1, 1, 2))
    assert first == again != other


def test_the_model_has_the_noise_and_drift_it_states():
    rng = np.random.default_rng(0)
    for tails in (4, math.inf):
        sd = simulation.noise(replace(BASE, tails=tails), (200_000,), rng).std()
        assert sd == pytest.approx(BASE.noise, rel=0.05)
    ends = [abs(np.diff(simulation.drift(BASE, 60, rng)[[0, -1]])[0]) for _ in range(500)]
    assert np.mean(ends) == pytest.approx(BASE.drift, rel=0.2)


def test_why_means_are_not_bootstrapped_by_bca(ours):
    """With few pairs and heavy tails BCa corrects for skewness that is not there."""
    assert simulation.simulate(simulation.SCENARIOS["base, BCa interval"], RUNS, seed=0).coverage < ours.coverage


def test_the_table_has_every_scenario_both_ways():
    rows = simulation.table(2)
    assert [(r["scenario"], r["protocol"]) for r in rows] == [
        (s, p) for s in simulation.SCENARIOS for p in ("ours", "naive")
    ]
    assert all(row.items() >= asdict(simulation.SCENARIOS[row["scenario"]]).items() for row in rows)
    assert all(0 <= row["coverage"] <= 1 and row["half_width"] > 0 for row in rows)
