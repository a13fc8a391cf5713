"""Published claims: what the trials say of them, on made-up trials; and the children that measure them, on a small
model."""

import numpy as np
import pytest
from scipy import stats

from llama_jax.plumbing.errors import UserError
from llama_lab.bench import process, published, record, statistics, summary
from llama_lab.bench.experiment import Runner
from llama_lab.bench.journal import Journal
from llama_lab.bench.workload import Workload
from llama_lab.experiments.honest_measurement import checklist, measure
from tests.bench.test_record import trial
from tests.conftest import save_llama


def answer(subject, phase, seconds, block=0, order=0, **changes):
    """15 tokens in `seconds`."""
    where = dict(run=f"compilation {subject}", phase=phase, order=order)
    return trial(subject, block, np.linspace(1, 1000 * seconds, 15), **where, **changes)


def cache_claim():
    void = dict(valid=False, lowered=3, compiled=3, reason="compiled in the timed region: 3 programs (step)")
    first = ((measure.UNCACHED, "cold", 30), (measure.CACHED, measure.SHORT, 15))
    warm = [(subject, "warm", seconds) for subject, seconds in ((measure.UNCACHED, 3), (measure.CACHED, 1))]
    return [
        *(answer(*each, block, **void) for block in range(2) for each in first),
        *(answer(*each, block, 1 + i) for block in range(2) for i in range(3) for each in warm),
    ]


def first_token_claim(warm=100):
    void = dict(valid=False, lowered=1, compiled=1, reason="compiled in the timed region: 1 programs (prefill)")
    cold = [trial("step", times=(900,), run="tail", phase="cold", order=0, **void)]
    cold += [trial("step", times=(100,), run="tail", phase="cold", order=i) for i in range(1, 5)]
    return cold + [trial("step", times=(100 + i % 7,), run="tail", order=5 + i) for i in range(warm)]


def order_claim():
    """B is measured after the machine has slowed down by 20%."""
    noise, made = np.random.default_rng(1), []
    for i in range(40):
        plan, name = ("sequential", "AB"[i // 10]) if i < 20 else ("interleaved", "AB"[i % 2])
        length = 1000 * (1.2 if plan == "sequential" and name == "B" else 1) * (1 + noise.normal(0, 0.01))
        made.append(trial(f"{plan} {name}", 0, (10, 10 + length), run="order", order=i))
    return made


def test_speed_ups_by_what_was_warm():
    short, cold, warm = measure.speed_ups(cache_claim())
    assert [round(f["ratio"].value, 6) for f in (short, cold, warm)] == [2.0, 30.0, 3.0]
    assert [f["guard"] for f in (short, cold, warm)] == [False, False, True]
    assert [f["published"] for f in (short, cold, warm)] == [2.44, 16.32, None]
    assert (warm["ratio"].n, warm["ratio"].clusters) == (6, 2)


def test_an_answer_with_wrong_tokens_has_no_speed_up():
    wrong = [
        t.model_copy(update=dict(valid=False, reason="wrong: token 0 is 1")) if t.subject == measure.CACHED else t
        for t in cache_claim()
    ]
    assert all(f["ratio"].n == 0 for f in measure.speed_ups(wrong))


def test_a_mean_of_cold_requests_stands_above_a_percentile_of_warm_ones():
    found = measure.first_tokens(first_token_claim())
    assert found["cold_mean"] == pytest.approx((900 + 4 * 100) / 5)
    assert found["cold_mean"] > found["naive_p99"]
    assert found["p99"] is None
    assert "p99 needs 1,000 values, there are 100" in found["note"]
    assert measure.first_tokens(first_token_claim(1000))["p99"] == pytest.approx(106)


def test_drift_is_a_difference_only_one_after_the_other():
    (found,) = measure.two_ways(order_claim())
    assert found["sequential"].high < 1
    assert found["interleaved"].low <= 1 <= found["interleaved"].high


def test_welch_is_scipys():
    a, b = np.random.default_rng(0).lognormal(0, 0.1, (2, 9))
    interval = stats.ttest_ind(np.log(a), np.log(b), equal_var=False).confidence_interval()
    found = statistics.welch(a, b)
    assert (found.low, found.high) == pytest.approx((np.exp(interval.low), np.exp(interval.high)))


def test_what_an_interrupted_process_left_is_dropped():
    made = [t.model_copy(update=dict(process=2)) for t in cache_claim()]
    left = [t.model_copy(update=dict(process=1, token_times_ns=[1, 10**12])) for t in cache_claim()[:3]]
    assert measure.whole(left + made) == made
    assert measure.speed_ups(left + made)[2]["ratio"] == measure.speed_ups(made)[2]["ratio"]


def test_a_void_trial_is_no_answer_with_the_guard_on():
    void = dict(valid=False, reason="compiled in the timed region: 1 programs (step)", token_times_ns=[1, 10**12])
    spoilt = [t.model_copy(update=void) if (t.subject, t.order) == (measure.CACHED, 2) else t for t in cache_claim()]
    warm = measure.speed_ups(spoilt)[2]["ratio"]
    assert warm.value == pytest.approx(3.0)
    pairs = [t.model_copy(update=void) if t.order == 23 else t for t in order_claim()]
    (found,) = measure.two_ways(pairs)
    assert found["interleaved"].n == 9
    assert found["interleaved"].value == pytest.approx(1, abs=0.02)


def honest(**changes):
    counts = dict(processes=1, repeats=2, requests=4, rounds=1, pairs=2, blocks=1, ab_processes=1, simulated=1)
    return measure.HonestMeasurement(**dict(model="m", seed=0, a="step", b="step+donate") | counts | changes)


@pytest.mark.parametrize("name", ["processes", "repeats", "requests", "rounds", "pairs"])
def test_counts_below_one_are_named(name):
    with pytest.raises(UserError, match=f"{name} is 0"):
        honest(**{name: 0}).record()


def test_the_published_way_breaks_the_checklist():
    found = checklist.examine(measure.as_published(cache_claim()), dict(environment={}))
    broken = {r["rule"] for r in found if r["kept"] != "yes"}
    assert {"warmed up at least as long as the test", "an A/A control that finds no difference"} <= broken
    assert set(checklist.AROUND) <= broken  # nothing was published of memory, machine or what else it did


def claimed(model, journal):
    """The processes of all three claims, into a journal."""
    experiment, prompt = honest(model=model), (5, 6, 7)
    runner = Runner(experiment, journal)
    two = Workload((prompt, (8, 9)), 1, 4)
    runner.run(experiment.claims(Workload((prompt,), measure.TEST, len(prompt)), two, Workload((prompt,), 4, 4)))
    return runner


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """All three claims, really measured on a small model, with their journal."""
    home = tmp_path_factory.mktemp("claims")
    folder, _ = save_llama(home / "m")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("llama_jax.plumbing.paths.tempfile.gettempdir", lambda: str(home))
        yield claimed(str(folder), Journal(home / "j.jsonl"))


@pytest.mark.slow
def test_every_length_is_compiled_unless_it_was_warmed(measured):
    runs = summary.grouped(measured.journal.trials, "run")
    (cold, *warm), (short, *warm_too) = (runs[f"compilation {name}"] for name in (measure.UNCACHED, measure.CACHED))
    assert (cold.phase, cold.valid, cold.compiled) == ("cold", False, measure.TEST)
    assert (short.phase, short.valid, short.compiled) == (measure.SHORT, False, measure.TEST - measure.WARM_UP)
    assert "compiled in the timed region" in short.reason
    assert all(t.valid and t.phase == "warm" for t in warm + warm_too)
    assert len(warm) == len(warm_too) == 2
    assert len({t.tokens_sha256 for t in (cold, short, *warm, *warm_too)}) == 1
    assert measure.limit(measured.journal.trials) > 0


@pytest.mark.slow
def test_the_other_two_claims_have_all_their_trials(measured):
    runs = summary.grouped(measured.journal.trials, "run")
    assert [t.phase for t in runs["tail"]] == ["cold"] * published.COLD_LOOP + ["warm"] * 4
    assert [t.valid for t in runs["tail"]] == [False] + [True] * (published.COLD_LOOP + 3)
    names = [t.subject for t in sorted(runs["order"], key=lambda t: t.order)]
    assert names[:4] == ["sequential A", "sequential A", "sequential B", "sequential B"]
    assert [set(names[i : i + 2]) for i in (4, 6)] == [{"interleaved A", "interleaved B"}] * 2
    assert len({t.process for t in measured.journal.trials}) == len(measured.journal.notes) == 4


@pytest.mark.slow
def test_measured_again_from_the_journal_nothing_is_run(measured, monkeypatch):
    monkeypatch.setattr(process, "start", lambda *a, **k: pytest.fail("a process was started"))
    again = claimed(measured.model, Journal(measured.journal.path)).journal
    assert record.read(measured.journal.path)[0] == again.trials
    assert again.next_process() == 5
