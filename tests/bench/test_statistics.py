import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy import stats

from llama_lab.bench import intervals, statistics
from llama_lab.bench.statistics import Ratio


def logs(n=20, mean=0.05, sd=0.03, seed=1):
    return np.random.default_rng(seed).normal(mean, sd, n)


def of(values, clusters=None):
    """The ratio whose pairs have these log-ratios."""
    return statistics.ratio(np.exp(values), np.ones(len(values)), clusters=clusters)


def test_summary_equals_numpy():
    values = np.random.default_rng(0).lognormal(4, 0.1, 31)
    s = statistics.summarise(values)
    assert (s.n, s.median) == (31, np.median(values))
    assert s.iqr == pytest.approx(stats.iqr(values))
    assert s.low <= s.median <= s.high
    assert np.isnan(statistics.summarise([]).median)
    assert statistics.summarise([10, 20, 30, 40]).unstable
    assert not statistics.summarise([10, 10.1, 10.2, 10.1]).unstable


@pytest.mark.parametrize("n", [6, 20])
def test_the_medians_interval_is_scipys_bca(n):
    how = dict(n_resamples=intervals.RESAMPLES, method="BCa", rng=np.random.default_rng(0))
    expected = stats.bootstrap((logs(n),), np.median, **how).confidence_interval
    found = statistics.summarise(logs(n))
    assert (found.low, found.high) == pytest.approx(tuple(expected))
    assert intervals.median_interval(np.ones(5), None, 0) == (1, 1)


def test_ratio_is_the_geometric_mean_of_pairs():
    base = np.array([10.0, 20.0, 40.0, 15.0])
    r = statistics.ratio(base * [2, 0.5, 2, 2], base)
    assert r.value == pytest.approx(2**0.5)
    assert r.low <= r.value <= r.high
    assert (r.n, r.clusters, r.spread) == (4, 1, pytest.approx(stats.iqr(np.log([2, 0.5, 2, 2]))))


@pytest.mark.parametrize("clusters", [None, ["only"] * 20, range(20)])
def test_the_interval_of_independent_pairs_is_scipys_at_hesterbergs_level(clusters):
    how = dict(n_resamples=intervals.RESAMPLES, method="percentile", rng=np.random.default_rng(0))
    level = intervals.expanded_level(20)
    expected = stats.bootstrap((logs(),), np.mean, confidence_level=level, **how).confidence_interval
    r = of(logs(), clusters)
    assert (r.low, r.high) == pytest.approx((math.exp(expected.low), math.exp(expected.high)))
    assert r.clusters == (20 if clusters == range(20) else 1)


def test_hesterbergs_level():
    assert intervals.expanded_level(20) == pytest.approx(0.9682, abs=1e-4)  # 2 Phi(sqrt(20/19) 2.0930) - 1
    assert intervals.expanded_level(10**6) == pytest.approx(0.95, abs=1e-5)


def test_clusters_are_resampled_as_wholes():
    """Against processes drawn one by one, their pairs put together; of unequal size, so that sums need their counts."""
    labels = np.repeat(np.arange(8), [1, 2, 3, 4, 1, 2, 3, 4])
    values = logs() + 0.05 * np.random.default_rng(3).normal(size=8)[labels]
    rng = np.random.default_rng(4)
    means = [np.concatenate([values[labels == c] for c in rng.integers(0, 8, 8)]).mean() for _ in range(20_000)]
    tail = 50 * (1 - intervals.expanded_level(8))
    r = of(values, labels.tolist())
    assert np.log([r.low, r.high]) == pytest.approx(np.percentile(means, [tail, 100 - tail]), abs=0.003)
    assert r.clusters == 8


@pytest.mark.parametrize("processes", [3, 10])
def test_processes_that_differ_widen_the_interval(processes):
    labels = np.arange(20) * processes // 20
    values = logs(sd=0.01) + 0.05 * np.random.default_rng(2).normal(size=processes)[labels]
    alone, together = of(values), of(values, labels)
    assert together.value == alone.value
    assert math.log(together.high / together.low) > 1.2 * math.log(alone.high / alone.low)


def test_below_six_units_the_interval_is_students():
    expected = stats.ttest_1samp(logs(5), 0).confidence_interval()
    r = of(logs(5))
    assert (r.low, r.high) == pytest.approx(tuple(np.exp(expected)))
    # each process says the same four times: no more is known
    pooled = of(np.repeat(logs(5), 4), np.repeat(np.arange(5), 4))
    assert (pooled.low, pooled.high) == pytest.approx((r.low, r.high))


def test_two_samples_measured_apart():
    new, old = logs(30, 0.10), logs(20, 0.0, seed=2)
    r = statistics.unpaired_ratio(np.exp(new), np.exp(old))
    expected = stats.ttest_ind(new, old, equal_var=False).confidence_interval()
    assert r.value == pytest.approx(math.exp(new.mean() - old.mean()))
    assert np.log([r.low, r.high]) == pytest.approx(np.array(expected), abs=0.003)  # the bootstrap is near Welch's t
    assert (r.n, r.clusters) == (20, 1)
    few = statistics.unpaired_ratio(np.exp(new), np.exp(old), clusters=(np.arange(30) % 3, np.arange(20) % 4))
    assert few.clusters == 3
    assert few.low < few.value < few.high
    assert statistics.unpaired_ratio([1.0], []).n == 0


@settings(max_examples=15, deadline=None)
@given(st.floats(0.2, 5), st.integers(3, 12), st.integers(0, 9))
def test_a_ratio_turned_round_is_its_inverse(factor, n, seed):
    base = np.random.default_rng(seed).uniform(10, 20, n)
    noisy = base * factor * np.random.default_rng(seed + 1).lognormal(0, 0.01, n)
    there, back = statistics.ratio(noisy, base), statistics.ratio(base, noisy)
    assert there.value == pytest.approx(1 / back.value)
    assert there.low == pytest.approx(1 / back.high, rel=2e-3)


FASTER = Ratio(1.05, 1.03, 1.07, 10)


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        (dict(low=0.7, value=0.8, high=0.9), "slower"),
        (dict(low=0.99, value=1.0, high=1.01), "equal within 2%"),
        (dict(low=0.9, value=1.0, high=1.1), "undecided"),
        (dict(low=0.97, value=1.01, high=1.05), "undecided"),
        (dict(n=1), "undecided"),
        (dict(floor=0.04), "faster"),
        (dict(floor=0.06), "undecided"),  # the baseline differs from itself by more
        (dict(low=0.99, value=1.0, high=1.01, floor=0.03), "undecided"),  # nor does it repeat within 2%
        (dict(low=0.47, value=0.63, high=0.86, spread=0.5), "slower"),
    ],
)
def test_the_interval_decides_unless_the_control_overrules_it(changes, verdict):
    assert replace(FASTER, **changes).verdict == verdict


def test_scatter_is_said_beside_the_verdict():
    assert replace(FASTER, spread=math.log(1.14)).judged == "faster (pairs scatter by 14%)"
    assert not replace(FASTER, spread=0.09).scattered  # more than the effect, but below 10%
    assert not replace(FASTER, value=1.5, spread=0.12).scattered  # the effect is larger


@st.composite
def measured(draw):
    """Any ratio of two pairs or more, often near 1."""
    middle, below, above = (draw(st.one_of(st.floats(low, 0.04), st.floats(low, 2))) for low in (-0.04, 0, 0))
    ends = (math.exp(x) for x in (middle, middle - below, middle + above))
    return Ratio(*ends, draw(st.integers(2, 40)), floor=draw(st.floats(0, 0.2)))


@settings(deadline=None)
@given(measured(), st.floats(0, 9), st.integers(1, 9))
def test_a_verdict_rests_on_interval_floor_and_n_and_turns_round_with_the_ratio(ratio, spread, clusters):
    verdict, turned = ratio.verdict, {"faster": "slower", "slower": "faster"}
    assert replace(ratio, spread=spread, clusters=clusters).verdict == verdict
    assert replace(ratio, n=1).verdict == "undecided"
    assert statistics.of_times(ratio).verdict == turned.get(verdict, verdict)
    back = replace(ratio, value=1 / ratio.value, low=1 / ratio.high, high=1 / ratio.low)
    ends = (max(1 / ratio.low, ratio.high), 1.02), (ratio.effect, ratio.floor)  # where these meet the last bit decides
    if not any(math.isclose(*pair) for pair in ends):
        assert back.verdict == turned.get(verdict, verdict)
    if verdict == "undecided":
        assert ratio.low <= 1 <= ratio.high or ratio.effect <= ratio.floor
        assert replace(ratio, floor=ratio.floor + 0.1).verdict == "undecided"


def test_the_control_is_carried_over():
    for high in (0.98, 1.01):  # whether or not its interval excludes 1
        assert statistics.with_floor(FASTER, Ratio(0.96, 0.94, high, 10)).floor == pytest.approx(-math.log(0.96))
    assert statistics.with_floor(FASTER, statistics.ratio([], [])) == FASTER
    assert statistics.ratio([], []).verdict == "undecided"


def test_the_baselines_two_runs_make_one_denominator():
    both = statistics.pair_baseline([4.0, 9.0, np.nan], [9.0, np.nan, 5.0])
    assert both == pytest.approx([6.0, 9.0, 5.0])


@pytest.mark.parametrize(
    ("found", "more"),
    [
        (Ratio(3.0, 3.0, 3.0, 1), None),
        (FASTER, 0),
        # half-width 0.1 to 0.0488: 10 (0.1 / 0.0488)^2 = 42.01
        (Ratio(1.05, 1.05 / math.exp(0.1), 1.05 * math.exp(0.1), 10), 33),
        (Ratio(1.0, math.exp(-0.04), math.exp(0.04), 10), 31),  # to fit within 2%: 10 (0.04 / 0.0198)^2 = 40.8
        (replace(FASTER, floor=2 * math.log(1.05)), 30),  # the control's own noise is what has to shrink, to half
        (Ratio(1.0, 0.99, 1.01, 10, floor=2 * math.log1p(0.02)), 30),  # the same for two that are equal
    ],
)
def test_more_blocks(found, more):
    assert statistics.more_blocks(found) == more


def test_that_many_more_blocks_make_the_interval_narrow_enough():
    widths, effect = [], math.log(1.03)
    for seed in range(20):
        first = of(logs(10, effect, 0.08, seed))
        wanted = replace(first, value=1.03, low=1.03 * first.low / first.value, high=1.03 * first.high / first.value)
        more = statistics.more_blocks(wanted)
        assert more > 0
        then = of(logs(10 + more, effect, 0.08, seed + 100))
        widths.append(math.log(then.high / then.low) / 2)
    assert np.median(widths) == pytest.approx(effect, rel=0.25)


def test_drift_is_found_and_not_imagined():
    noise = np.random.default_rng(5).normal(0, 0.02, 40)
    falling = statistics.drift(np.exp(noise + np.linspace(0, -0.1, 40)))
    assert falling.significant
    assert falling.change == pytest.approx(-0.095, abs=0.03)
    assert not statistics.drift(np.exp(noise)).significant
    small = statistics.drift(np.exp(noise / 10 + np.linspace(0, 0.03, 40)))
    assert small.change == pytest.approx(0.03, abs=0.01)
    assert not small.significant  # certain, and too small to matter
    assert statistics.drift([1, 1.1, 1.2, 1.3]).significant
    assert not statistics.drift([1, 2, 3]).significant
    assert np.isnan(statistics.drift([1, 2, 3]).change)


@given(st.integers(0, 3000))
@example(999)
@example(1000)
@settings(max_examples=50, deadline=None)
def test_percentiles_need_enough_values_and_the_note_names_just_what_is_missing(n):
    found, note = statistics.percentiles(range(n)), statistics.percentile_note(n)
    assert [name for name, value in found.items() if value is None] == [name for name in found if f"{name} " in note]
    assert (found["p99"] is None) == (n < 1000)
    assert (found["p95"] is None) == (n < 200)
    if n >= 1000:
        assert (found["p99"], note) == (pytest.approx(np.percentile(range(n), 99)), "")
    else:
        assert note.endswith(f"p99 needs 1,000 values, there are {n}")


@pytest.mark.parametrize("processes", [2, 3, 5])
def test_of_few_processes_the_medians_interval_covers_what_is_there(processes):
    """95%, and not what resampling so few would: 50% of two processes, 75 of three, 94 of five."""
    rng, covered = np.random.default_rng(0), 0
    for _ in range(1000):
        luck = rng.normal(0, 0.1, processes)
        values = 100 * np.exp(np.repeat(luck, 4) + rng.normal(0, 0.05, 4 * processes))
        found = statistics.summarise(values, clusters=np.repeat(np.arange(processes), 4))
        covered += found.low <= 100 <= found.high
        assert found.low <= found.median <= found.high
    assert 0.93 <= covered / 1000 <= 0.98


def test_of_few_values_the_interval_is_students_of_logarithms():
    values = np.exp(logs(4))
    expected = np.exp(stats.ttest_1samp(np.log(values), 0).confidence_interval())
    found = statistics.summarise(values)
    assert (found.low, found.high) == pytest.approx(tuple(expected))
    assert intervals.centre([-1.0, 0.0, 1.0]) == pytest.approx(
        tuple(stats.ttest_1samp([-1.0, 0.0, 1.0], 0).confidence_interval())
    )
    one = statistics.summarise([3.0])
    assert np.isnan([one.low, one.high]).all()


@pytest.mark.parametrize("sizes", [(4, 4, 4, 4, 4, 4), (5, 3, 4, 4, 2, 4, 6)])
def test_a_median_of_processes_is_resampled_alike_whether_they_are_of_one_size_or_not(sizes):
    rng = np.random.default_rng(3)
    groups = [rng.normal(10 + i, 1, n) for i, n in enumerate(sizes)]
    labels = [i for i, n in enumerate(sizes) for _ in range(n)]
    picks = np.random.default_rng(1).integers(len(groups), size=(intervals.MEDIANS, len(groups)))
    expected = np.percentile([np.median(np.concatenate([groups[i] for i in pick])) for pick in picks], [2.5, 97.5])
    assert intervals.median_interval(np.concatenate(groups), labels, 1) == tuple(map(float, expected))
