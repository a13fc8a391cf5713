"""Host strategies: what made-up trials say, and charts of them; the clock; and the children that measure, on a small
model."""

import threading
import time

import numpy as np
import pytest

from llama_jax import generate
from llama_jax.checkpoint import Checkpoint
from llama_jax.plumbing.errors import UserError
from llama_lab.bench import AGAIN, process, protocol, record
from llama_lab.bench.frames import show
from llama_lab.bench.journal import Journal
from llama_lab.bench.workload import Workload
from llama_lab.experiments.host_loop import chart, finding, measure
from llama_lab.experiments.host_loop import clock as host_clock
from llama_lab.experiments.host_loop.clock import ONE_THREAD, THREADS, HostTrial
from tests.bench.test_record import trial
from tests.figures.drawn import assert_drawn, words

TINY = (
    "random:smollm2-135m,num_hidden_layers=2,hidden_size=64,intermediate_size=128,num_attention_heads=4,num_key_value_heads=2,"
    "head_dim=16,vocab_size=97"
)
N = 11  # tokens of a made-up answer
VOID = dict(valid=False, reason="wrong: token 1", dispatch_ns=10**12)


def host_trial(subject, model, weights, dispatch_us, wait_us, block=0, what="strategies", **changes):
    """An answer whose tokens take dispatch and wait, and nothing else."""
    step, n = (dispatch_us + wait_us) * 1000, N - 1
    base = trial(subject, block, [1 + i * step / 1e6 for i in range(N)], model=model, run=f"{what} {model}", **changes)
    times = dict(dispatch_ns=n * dispatch_us * 1000, fetch_ns=n * wait_us * 1000, text_ns=10, wall_ns=n * step)
    cpu = dict(cpu_ns=n * step * 3 // 2, reader_cpu_ns=n * step // 2)
    return HostTrial(**base.model_dump(), weights_read=weights, calls=n, **times, **cpu)


def measured_models(blocks=6):
    """Dispatch is 100 us at every size; the device's work is 20, 100, 4000 us; a loop pays no dispatch."""
    models = (("random:small", 10**5, 20), ("random:middle", 10**6, 100), ("m", 10**8, 4000))
    dispatches = {measure.BASELINE: 100, measure.BASELINE + AGAIN: 100, "step+async8": 60, "loop": 1}
    return [
        host_trial(subject, model, weights, dispatch, device + block % 3, block)
        for model, weights, device in models
        for block in range(blocks)
        for subject, dispatch in dispatches.items()
    ]


def spoilt(trials, wanted):
    return [t.model_copy(update=VOID) if wanted(t) else t for t in trials]


def test_where_the_time_went_and_it_comes_back_from_a_table(tmp_path):
    t = host_trial("step", "m", 5, dispatch_us=30, wait_us=70)
    assert (t.per_token("dispatch_ns"), t.per_token("fetch_ns"), t.per_token("wall_ns")) == (30, 70, 100)
    assert t.cores == 1.5
    assert np.isnan(t.model_copy(update=dict(new_tokens=1)).per_token("fetch_ns"))
    trials = [t, t.model_copy(update=dict(subject="step+async8", in_flight=8))]
    assert record.read(record.write(tmp_path / "t.csv", trials, HostTrial), kind=HostTrial)[0] == trials


def test_models_come_smallest_first_with_their_times():
    points = measure.by_size(measured_models())
    assert [(p["model"], p["dispatch"].median, p["wait"].median, p["alone"].median) for p in points] == [
        ("random:small", 100, 21, 22),
        ("random:middle", 100, 101, 102),
        ("m", 100, 4001, 4002),
    ]
    small, large = points[0]["ratios"]["loop"], points[-1]["ratios"]["loop"]
    assert small.value == pytest.approx(121 / 22, rel=0.01)
    assert large.value == pytest.approx(4101 / 4002, rel=0.01)
    frame = measure.ratios_frame(points)
    assert list(frame.columns) == ["weights", "step+async8", "loop"]
    assert frame["loop"].iloc[0] == f"{small.words} faster"


def test_the_crossing_is_between_the_sizes_that_straddle_it():
    points = measure.by_size(measured_models())
    assert points[0]["weights"] < measure.crossover(points) < points[1]["weights"]
    assert measure.crossover(points[1:]) is None  # the host never dominates there
    assert measure.crossover(points[:1]) is None
    even = [dict(weights=w, dispatch=points[0]["dispatch"], wait=points[0]["dispatch"]) for w in (10**4, 10**5)]
    assert measure.crossover(even + points[1:]) == pytest.approx(10**5)


def test_the_table_tells_where_the_time_went_and_void_trials_do_not_count():
    table = {r["name"]: r for r in measure.table(spoilt(measured_models(), lambda t: t.block == 0), "m")}
    assert list(table) == ["step", "step (again)", "step+async8", "loop"]
    names = ("valid_trials", "dispatch_us", "fetch_us", "calls", "cores", "reader_cores")
    assert [table["step"][name] for name in names] == [5, 100, 4001, 10, 1.5, 0.5]
    none = spoilt(measured_models(), lambda t: t.subject == "loop")
    assert {r["name"]: r for r in measure.table(none, "m")}["loop"]["dispatch_us"] is None
    assert measure.by_size(none) == []
    assert list(show(measure.table(none, "m"), measure.COLUMNS).index) == list(table)


def test_serving_pairs_whole_runs():
    made = [
        host_trial(subject, "m", 5, round(600 / speed), round(400 / speed), block, "serve")
        for block in range(6)
        for subject, speed in ((ONE_THREAD, 1.0), (THREADS, 2.0))
    ]
    (found,) = measure.served(spoilt(made, lambda t: t.block == 5 and t.subject == THREADS))
    assert (found["model"], found["ratio"].verdict, found["ratio"].n) == ("m", "faster", 5)
    assert found["ratio"].value == pytest.approx(found["rates"][THREADS] / found["rates"][ONE_THREAD], rel=1e-6)
    assert found["cores"] == {THREADS: 1.5, ONE_THREAD: 1.5}
    assert measure.served(measured_models()) == []


def panels(trials):
    return [(m, measure.of_model(trials, m), measure.table(trials, m)) for m in ("random:small", "m")]


@pytest.mark.parametrize("much", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_charts_say_what_the_trials_say_also_of_little(tmp_path, much):
    made = measured_models() if much else spoilt(measured_models(1), lambda t: t.subject == "loop")
    rates, load = chart.host_strategies(panels(made)), chart.host_load(panels(made), 2)
    if not much:
        assert "no valid trial: wrong: token 1" in words(rates)
        return
    for text in ("baseline", "equal within 2%", "faster", "n = 6", "bandwidth limit 1,000"):
        assert text in words(rates)
    points = measure.by_size(made)
    crossing = chart.dispatch_and_device(points, measure.crossover(points))
    assert "waiting overtakes launching" in words(crossing)
    assert "waiting overtakes launching" not in words(chart.dispatch_and_device(points[1:], None))
    for figure in (rates, load, crossing):
        assert_drawn(figure, tmp_path)


def test_a_control_that_fails_is_said():
    """Where `step` is not as fast as itself, only larger effects count."""
    twin = measure.BASELINE + AGAIN
    slower = [
        host_trial(t.subject, "m", 5, 200 if t.subject == twin else t.dispatch_ns // (N - 1) // 1000, 20, t.block)
        for t in measured_models()
        if t.model == "random:small"
    ]
    assert "the control failed" in finding.spread(measure.table(slower, "m"), "m")
    assert "the same program differs:\nonly larger effects count" in words(
        chart.host_strategies([("m", slower, measure.table(slower, "m"))])
    )
    fine = measure.table(measured_models(), "random:small")
    assert "the control failed" not in finding.spread(fine, "m")
    assert finding.fastest(fine)[0] == "loop"
    assert "on m loop leads among the 2 of 8 strategies measured" in finding.gain(fine, "m")


def test_the_clock_adds_up_what_each_thread_spends():
    clock = host_clock.Clock()
    timed = clock.around("fetch", lambda seconds: time.sleep(seconds) or seconds)
    clock.spent["dispatch"] = 5
    clock.restart()
    other = threading.Thread(target=lambda: clock.around("dispatch", time.sleep)(0.01))
    other.start()
    assert timed(0.01) == 0.01
    other.join()
    with pytest.raises(ZeroDivisionError):
        clock.around("text", lambda: 1 // 0)()
    clock.stop()
    read = clock.reading()
    assert min(read["fetch_ns"], read["dispatch_ns"]) >= 10**7
    assert read["text_ns"] > 0
    assert read["calls"] == 1
    assert read["wall_ns"] >= 10**7 > read["reader_cpu_ns"]


@pytest.fixture(scope="module")
def loaded(tiny):
    return Checkpoint("tiny", *tiny, None, "h", "random:", "float32")


def test_equal_programs_are_one_object_and_tokens_are_those_of_each_placement_alone(loaded):
    engines = host_clock.engines(loaded, measure.STRATEGIES)
    assert {name: e.placement.name for name, e in engines.items()} == {name: name for name in measure.STRATEGIES}
    assert len({id(e.programs.prefill) for e in engines.values()}) == 1
    # chunk8, loop, and both with a callback
    assert len({id(e.programs.decode) for e in engines.values() if e.programs.decode}) == 4
    assert [name for name, e in engines.items() if e.programs.receiver] == ["chunk8+callback", "loop+callback"]
    assert len({generate.answer(e, [[1, 2, 3]], 10)[0].token_ids for e in engines.values()}) == 1


def test_a_served_run_with_one_wrong_answer_is_void(loaded):
    workload = Workload(((1, 2, 3), (4, 5, 6)), 5, 4)
    who = host_clock.server(loaded, ONE_THREAD, host_clock.Clock())
    reference = protocol.Reference(loaded, workload)
    made, tokens = protocol.trial(who, workload, 0, run="r", block=0, order=0, process=0, phase="warm")
    made = made.model_copy(update=dict(valid=True, reason=""))  # whatever compiled is not the question
    assert len(tokens) == 10
    assert host_clock.judged(made, tokens, reference).valid
    tokens[7] = (tokens[7] + 1) % 97
    wrong = host_clock.judged(made, tokens, reference)
    assert not wrong.valid
    assert "wrong: token 2" in wrong.reason
    assert not host_clock.judged(made, tokens[:9], reference).valid


def host_loop(**changes):
    counts = dict(prompts=2, blocks=2, processes=1, rounds=2, new_tokens=10)
    return measure.HostLoop(**dict(model=TINY, seed=0, sizes=[]) | counts | changes)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (dict(processes=0), "processes is 0"),
        (dict(sizes=["0.2M"]), "No such size of a model: '0.2M'.*0.1M"),
        (dict(rounds=0), "rounds is 0"),
    ],
)
def test_mistakes_are_named_before_anything_runs(changes, words):
    with pytest.raises(UserError, match=words):
        host_loop(**changes).record()


def test_each_model_is_asked_once_and_more_often_where_it_takes_no_time():
    assert measure.known(["0.1M", "1M", "0.1M"], measure.SIZES["1M"]) == ["0.1M"]
    assert [measure.short(name) for name in (measure.SIZES["1M"], "mine", TINY)] == [
        "random 1M", "mine", "random:smollm2-135m (changed)",
    ]  # fmt: skip
    experiment, work = host_loop(sizes=["0.1M", "360M"]), Workload(((1, 2),), 10, 8)
    models = experiment.asked(work, experiment.sizes)
    assert [(times, names) for _, _, times, names in models] == [
        (1, measure.STRATEGIES), (5, measure.STRATEGIES), (1, measure.SWEPT),
    ]  # fmt: skip
    assert [len(asked.prompts[0]) for _, asked, *_ in models] == [2, 8, 8]
    second = [experiment.compared(1, *models[1]), experiment.served(1, *models[1][:3])]
    assert [(p.block, p.rows) for p in second] == [(19, 10), (19, 2)]
    assert second[0].arguments["blocks"] == list(range(10, 20))


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    home = tmp_path_factory.mktemp("hostloop")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("llama_jax.plumbing.paths.tempfile.gettempdir", lambda: str(home))
        journal = Journal(home / "j.jsonl", kind=HostTrial)
        host_loop().record(journal)
        yield journal


@pytest.mark.slow
def test_every_strategy_is_measured_and_makes_the_same_tokens(measured):
    trials = measure.of_model(measured.trials, TINY)
    assert {t.subject for t in trials} == {*measure.STRATEGIES, "step (again)"}
    assert len(trials) == 2 * (len(measure.STRATEGIES) + 1)
    assert all(t.valid for t in trials), {t.reason for t in trials}
    by_prompt = {t.prompt: t.tokens_sha256 for t in trials}
    assert all(t.tokens_sha256 == by_prompt[t.prompt] for t in trials)
    calls = {"step": 9, "step+queue": 9, "chunk8": 2, "loop": 1, "loop+callback": 1}
    assert {t.subject: t.calls for t in trials}.items() >= calls.items()
    in_flight = {"step+async": 2, "step+async4": 4, "step+async8": 8, "step+queue": 2}
    assert {t.subject: t.in_flight for t in trials if t.in_flight} == in_flight
    assert all(t.dispatch_ns > 0 and t.fetch_ns > 0 and t.text_ns > 0 and t.wall_ns > 0 for t in trials)
    arrivals = {"loop": 2, "chunk8": 3, "loop+callback": 10, "chunk8+callback": 10}
    assert {t.subject: len(set(t.token_times_ns)) for t in trials}.items() >= arrivals.items()
    order = {block: [t.subject for t in sorted(trials, key=lambda t: t.order) if t.block == block] for block in (0, 1)}
    assert order[0] != order[1]


@pytest.mark.slow
def test_both_ways_to_serve_are_measured(measured):
    trials = measure.of_model(measured.trials, TINY, "serve")
    assert sorted((t.block, t.subject) for t in trials) == [(b, s) for b in (0, 1) for s in (ONE_THREAD, THREADS)]
    assert {(t.valid, t.new_tokens, t.calls, t.prompt_tokens) for t in trials} == {(True, 20, 18, 80)}
    assert measure.served(measured.trials)[0]["ratio"].n == 2


@pytest.mark.slow
def test_measured_again_from_the_journal_nothing_is_run(measured, monkeypatch):
    monkeypatch.setattr(process, "start", lambda *a, **k: pytest.fail("a process was started"))
    again = Journal(measured.path, kind=HostTrial)
    host_loop().record(again)
    assert measure.by_size(again.trials)[0]["model"] == TINY
