"""Host strategies: what the trials say, on made-up trials; the clock; and the children that measure, on a small
model."""

import threading
import time

import numpy as np
import pytest

from llama_jax import generate, pipeline
from llama_jax.checkpoint import Checkpoint
from llama_jax.plumbing.errors import UserError
from llama_lab.bench import AGAIN, process, protocol, record
from llama_lab.bench.frames import show
from llama_lab.bench.journal import Journal
from llama_lab.bench.workload import Workload
from llama_lab.experiments.host_loop import clock as hostclock
from llama_lab.experiments.host_loop import measure
from llama_lab.experiments.host_loop.clock import HostTrial
from tests.bench.test_record import trial

TINY = (
    "random:smollm2-135m,num_hidden_layers=2,hidden_size=64,intermediate_size=128,num_attention_heads=4,num_key_value_heads=2,"
    "head_dim=16,vocab_size=97"
)
N = 11  # tokens of a made-up answer


def host_trial(subject, model, weights, dispatch_us, wait_us, block=0, what="strategies", **changes):
    """An answer whose tokens take dispatch and wait, and nothing else."""
    step = (dispatch_us + wait_us) * 1000
    base = trial(subject, block, [1 + i * step / 1e6 for i in range(N)], model=model, run=f"{what} {model}", **changes)
    n, wall = N - 1, (N - 1) * step
    return HostTrial(
        **base.model_dump(),
        weights_read=weights,
        calls=n,
        dispatch_ns=n * dispatch_us * 1000,
        fetch_ns=n * wait_us * 1000,
        text_ns=10,
        cpu_ns=wall * 3 // 2,
        reader_cpu_ns=wall // 2,
        wall_ns=wall,
    )


def measured_models(blocks=6):
    """Dispatch is 100 us at every size; the device's work is 20, 100, 4000 us; a loop pays no dispatch."""
    made = []
    for model, weights, device in (("random:small", 10**5, 20), ("random:middle", 10**6, 100), ("m", 10**8, 4000)):
        for block in range(blocks):
            for subject, dispatch in (
                (measure.BASELINE, 100),
                (measure.BASELINE + AGAIN, 100),
                ("step+async8", 60),
                ("loop", 1),
            ):
                made.append(host_trial(subject, model, weights, dispatch, device + block % 3, block))
    return made


def test_where_the_time_went():
    t = host_trial("step", "m", 5, dispatch_us=30, wait_us=70)
    assert (t.per_token("dispatch_ns"), t.per_token("fetch_ns"), t.per_token("wall_ns")) == (30, 70, 100)
    assert t.cores == 1.5
    assert np.isnan(t.model_copy(update=dict(new_tokens=1)).per_token("fetch_ns"))


def test_a_table_of_host_trials_comes_back_as_it_was(tmp_path):
    trials = [
        host_trial("step", "m", 5, 30, 70),
        host_trial("step+async8", "m", 5, 30, 70).model_copy(update=dict(in_flight=8)),
    ]
    path = record.write(tmp_path / "t.csv", trials, HostTrial)
    assert record.read(path, kind=HostTrial)[0] == trials


def test_models_come_smallest_first_with_their_times():
    points = measure.by_size(measured_models())
    assert [p["model"] for p in points] == ["random:small", "random:middle", "m"]
    assert [p["dispatch"].median for p in points] == [100, 100, 100]
    assert [p["wait"].median for p in points] == [21, 101, 4001]
    assert [p["alone"].median for p in points] == [22, 102, 4002]
    small, large = points[0]["ratios"]["loop"], points[-1]["ratios"]["loop"]
    assert small.value == pytest.approx(121 / 22, rel=0.01)
    assert large.value == pytest.approx(4101 / 4002, rel=0.01)


def test_the_crossing_is_between_the_sizes_that_straddle_it():
    points = measure.by_size(measured_models())
    assert points[0]["weights"] < measure.crossover(points) < points[1]["weights"]
    assert measure.crossover(points[1:]) is None  # the host never dominates there
    assert measure.crossover(points[:1]) is None
    exact = [
        dict(weights=w, dispatch=points[0]["dispatch"], wait=points[0]["dispatch"]) for w in (10**4, 10**5)
    ] + points[1:]
    assert measure.crossover(exact) == pytest.approx(10**5)


def test_the_table_tells_where_the_time_went_and_void_trials_do_not_count():
    made = measured_models()
    void = [
        t.model_copy(update=dict(valid=False, reason="wrong: token 1", dispatch_ns=10**12)) if t.block == 0 else t
        for t in made
    ]
    table = {r["name"]: r for r in measure.table(void, "m")}
    assert list(table) == ["step", "step (again)", "step+async8", "loop"]
    assert table["step"]["valid_trials"] == 5
    assert table["step"]["dispatch_us"] == 100
    assert (table["step"]["cores"], table["step"]["reader_cores"]) == (1.5, 0.5)
    none = [t.model_copy(update=dict(valid=False, reason="wrong: token 1")) if t.subject == "loop" else t for t in made]
    assert {r["name"]: r for r in measure.table(none, "m")}["loop"]["dispatch_us"] is None
    assert measure.by_size(none) == []
    assert list(show(measure.table(none, "m"), measure.COLUMNS).index) == list(table)


def serving(threads=2.0):
    made = []
    for block in range(6):
        for subject, speed in ((hostclock.ONE_THREAD, 1.0), (hostclock.THREADS, threads)):
            made.append(host_trial(subject, "m", 5, round(600 / speed), round(400 / speed), block, "serve"))
    return made


def test_serving_pairs_whole_runs():
    (found,) = measure.served(serving())
    assert found["model"] == "m"
    assert found["ratio"].value == pytest.approx(
        found["rates"][hostclock.THREADS] / found["rates"][hostclock.ONE_THREAD], rel=1e-6
    )
    assert found["ratio"].verdict == "faster"
    assert measure.served(measured_models()) == []


def test_the_clock_adds_up_what_each_thread_spends():
    clock = hostclock.Clock()
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
    assert read["fetch_ns"] >= 10**7
    assert read["dispatch_ns"] >= 10**7
    assert read["text_ns"] > 0
    assert read["calls"] == 1
    assert read["wall_ns"] >= 10**7 > read["reader_cpu_ns"]


def test_equal_programs_are_one_object_and_tokens_are_those_of_each_placement_alone(tiny):
    config, params = tiny
    loaded = Checkpoint("tiny", config, params, None, "h", "random:", "float32")
    engines = hostclock.engines(loaded, measure.STRATEGIES)
    assert list(engines) == list(measure.STRATEGIES)
    assert {e.placement.name for e in engines.values()} == set(measure.STRATEGIES)
    assert len({id(e.programs.prefill) for e in engines.values()}) == 1
    # chunk8, loop, and both with a callback
    assert len({id(e.programs.decode) for e in engines.values() if e.programs.decode}) == 4
    assert [name for name, e in engines.items() if e.programs.receiver] == ["chunk8+callback", "loop+callback"]
    found = {name: generate.answer(e, [[1, 2, 3]], 10)[0].token_ids for name, e in engines.items()}
    assert len(set(found.values())) == 1


def test_a_served_run_with_one_wrong_answer_is_void(tiny):
    config, params = tiny
    loaded = Checkpoint("tiny", config, params, None, "h", "random:", "float32")
    workload = Workload(((1, 2, 3), (4, 5, 6)), 5, 4)
    who, reference = (
        hostclock.server(loaded, hostclock.ONE_THREAD, hostclock.Clock()),
        protocol.Reference(loaded, workload),
    )
    made, tokens = protocol.trial(who, workload, 0, run="r", block=0, order=0, process=0, phase="warm")
    made = made.model_copy(update=dict(valid=True, reason=""))  # whatever compiled is not the question
    assert len(tokens) == 10
    assert hostclock.judged(made, tokens, reference).valid
    tokens[7] = (tokens[7] + 1) % 97
    spoilt = hostclock.judged(made, tokens, reference)
    assert not spoilt.valid
    assert "wrong: token 2" in spoilt.reason
    assert not hostclock.judged(made, tokens[:9], reference).valid


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
def test_mistakes_are_named_before_anything_runs(changes, words, monkeypatch):
    monkeypatch.setattr(process, "start", lambda *a, **k: pytest.fail("a process was started"))
    with pytest.raises(UserError, match=words):
        host_loop(**changes).record()


def test_a_size_that_is_the_model_itself_is_measured_once():
    assert measure.known(["0.1M", "1M", "0.1M"], measure.SIZES["1M"]) == ["0.1M"]
    assert measure.short(measure.SIZES["1M"]) == "random 1M"
    assert measure.short("mine") == "mine"
    assert measure.short(TINY) == "random:smollm2-135m (changed)"


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    home = tmp_path_factory.mktemp("hostloop")
    patch = pytest.MonkeyPatch()
    patch.setattr(protocol.tempfile, "gettempdir", lambda: str(home))
    journal = Journal(home / "j.jsonl", kind=HostTrial)
    host_loop().record(journal)
    yield journal
    patch.undo()


@pytest.mark.slow
def test_every_strategy_is_measured_and_makes_the_same_tokens(measured):
    trials = measure.of_model(measured.trials, TINY)
    assert {t.subject for t in trials} == {*measure.STRATEGIES, "step (again)"}
    assert len(trials) == 2 * (len(measure.STRATEGIES) + 1)
    assert all(t.valid for t in trials), {t.reason for t in trials}
    by_prompt = {t.prompt: t.tokens_sha256 for t in trials}
    assert all(t.tokens_sha256 == by_prompt[t.prompt] for t in trials)
    calls = {t.subject: t.calls for t in trials}
    assert (calls["step"], calls["step+queue"], calls["chunk8"], calls["loop"], calls["loop+callback"]) == (
        9,
        9,
        2,
        1,
        1,
    )
    assert {t.subject: t.in_flight for t in trials if t.in_flight} == {
        "step+async": 2,
        "step+async4": 4,
        "step+async8": 8,
        "step+queue": 2,
    }
    assert all(t.dispatch_ns > 0 and t.fetch_ns > 0 and t.text_ns > 0 and t.wall_ns > 0 for t in trials)
    arrivals = {t.subject: len(set(t.token_times_ns)) for t in trials}
    assert (arrivals["loop"], arrivals["chunk8"], arrivals["loop+callback"], arrivals["chunk8+callback"]) == (
        2,
        3,
        10,
        10,
    )
    order = {block: [t.subject for t in sorted(trials, key=lambda t: t.order) if t.block == block] for block in (0, 1)}
    assert order[0] != order[1]


@pytest.mark.slow
def test_both_ways_to_serve_are_measured(measured):
    trials = measure.of_model(measured.trials, TINY, "serve")
    assert sorted((t.block, t.subject) for t in trials) == [
        (b, s) for b in (0, 1) for s in (hostclock.ONE_THREAD, hostclock.THREADS)
    ]
    assert all(t.valid and t.new_tokens == 20 and t.calls == 18 and t.prompt_tokens == 80 for t in trials), {
        t.reason for t in trials
    }
    assert measure.served(measured.trials)[0]["ratio"].n == 2


@pytest.mark.slow
def test_measured_again_from_the_journal_nothing_is_run(measured, monkeypatch):
    monkeypatch.setattr(process, "start", lambda *a, **k: pytest.fail("a process was started"))
    again = Journal(measured.path, kind=HostTrial)
    host_loop().record(again)
    assert measure.by_size(again.trials)[0]["model"] == TINY
    assert pipeline.BOUND > 0
