"""Cold, cached and warm in real processes, and what happens when one of them dies."""

import contextlib
import json
import multiprocessing
import os
import signal
import time
from collections import Counter
from dataclasses import replace
from typing import Literal, Optional

import pytest

from llama_jax.placement import Placement, parse
from llama_jax.plumbing import paths
from llama_jax.plumbing.errors import UserError
from llama_jax.sampling import Sampler
from llama_lab import peers
from llama_lab.bench import AGAIN, SAMPLED, phases, process, protocol, record
from llama_lab.bench.journal import Journal
from llama_lab.bench.workload import Workload
from tests.bench.test_record import trial
from tests.conftest import save_llama

pytestmark = pytest.mark.usefixtures("own_lock")
WORK = Workload(((1, 2, 3), (4, 5)), new_tokens=4, length=4)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return str(save_llama(tmp_path_factory.mktemp("m") / "model")[0])


@pytest.mark.slow
def test_what_pytorch_compiles_is_counted_cold_and_absent_warm(folder):
    names = ("torch-compile", "torch-cudagraph")
    journal = Journal()
    trials = phases.run(plan(folder, "step", blocks=1, cold=1, cached=1, peers=names), journal)
    assert all(t.valid for t in trials), [t.reason for t in trials]
    assert [gap["name"] for gap in journal.missing] == ["torch-cudagraph"]
    (cold,) = (t for t in trials if t.subject == "torch-compile" and t.phase == "cold")
    assert cold.compiled == 2
    assert cold.backend_ns > 0
    warm = [t for t in trials if t.phase == "warm"]
    assert {t.subject for t in warm} == {"step", "step" + AGAIN, "torch-compile"}
    assert len({t.tokens_sha256 for t in warm}) == 1
    assert not any(t.compiled or t.backend_ns for t in warm)
    assert not [t for t in trials if t.phase == "cached" and t.backend == "torch"]


def breaking(monkeypatch, tmp_path, body):
    """A peer `broken` that turns out only in the measuring process not to run. `body`: of its `subject` function."""
    text = f"def missing(name, model):\n    return None\n\n\ndef subject(loaded, name):\n    {body}\n"
    (tmp_path / "broken_peer.py").write_text(text)
    line = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\nfrom llama_lab import peers\n"
    line += "peers.PEERS['broken'] = peers.Peer('x', 'x', 'x'); peers.module = lambda name: __import__('broken_peer')\n"
    monkeypatch.setattr(process, "CHILD", line + process.CHILD)
    monkeypatch.setitem(peers.PEERS, "broken", peers.Peer("x", "x", "x"))


@pytest.mark.slow
def test_a_peer_that_cannot_be_built_is_a_gap_and_the_run_goes_on(folder, monkeypatch, tmp_path):
    error = "peers.UnavailableError('No server answers.', 'Start one.')"
    breaking(monkeypatch, tmp_path, f"from llama_lab import peers; raise {error}")
    journal = Journal(tmp_path / "j.jsonl")
    trials = phases.run(plan(folder, cold=1, peers=("broken",)), journal)
    assert journal.missing == [dict(name="broken", reason="No server answers.", remedy="Start one.")]
    assert {t.subject for t in trials} == {"step", "step" + AGAIN}
    assert all(t.valid for t in trials)
    resumed = Journal(tmp_path / "j.jsonl")
    assert phases.run(plan(folder, cold=1, peers=("broken",)), resumed) == trials  # nothing is tried again
    assert resumed.missing


@pytest.mark.slow
def test_a_peer_that_kills_its_process_while_it_is_built_is_left_out(folder, monkeypatch, tmp_path):
    breaking(monkeypatch, tmp_path, "import os; os.abort()")
    trials = phases.run(plan(folder, blocks=1, peers=("broken",)), Journal())
    lost = [t for t in trials if t.subject == "broken"]
    assert [t.reason.startswith(phases.DIED) for t in lost] == [True] * phases.PATIENCE
    assert {t.backend for t in lost} == {"x"}
    assert {t.subject for t in trials if t.valid} == {"step", "step" + AGAIN}


def plan(folder, names="step", **changes):
    placements = tuple(parse(name) for name in names.split(","))
    return phases.Plan(folder, placements, WORK, "step", **dict(blocks=2, limit=120) | changes)


@pytest.mark.slow
def test_a_plan_may_sample_beside_the_greedy_answers(folder):
    sampler, journal = Sampler(temperature=0.7, top_k=30), Journal()
    trials = phases.run(plan(folder, "step,split", blocks=2, sampled=sampler), journal)
    assert all(t.valid for t in trials), [t.reason for t in trials]
    sampled = [t for t in trials if t.subject.endswith(SAMPLED)]
    assert {t.subject for t in trials} == {"step", "step" + AGAIN, "split", "step" + SAMPLED, "split" + SAMPLED}
    assert {(t.placement, t.sampling) for t in sampled} == {(name, str(sampler)) for name in ("step", "split")}
    for prompt in (0, 1):
        hashes = [{t.tokens_sha256 for t in kind if t.prompt == prompt} for kind in (sampled, trials)]
        assert list(map(len, hashes)) == [1, 2]  # one text drawn, one chosen


@pytest.mark.slow
def test_the_three_phases_of_placements_and_peers(folder, tmp_path):
    journal, flax = Journal(tmp_path / "j.jsonl"), "flax-linen+jit"
    trials = phases.run(plan(folder, processes=2, cold=1, cached=1, threads=1, peers=(flax,)), journal)
    assert all(t.valid for t in trials), [t.reason for t in trials]
    by_phase = {phase: [t for t in trials if t.phase == phase] for phase in ("cold", "cached", "warm")}
    assert [t.subject for t in by_phase["cold"]] == [t.subject for t in by_phase["cached"]] == ["step", flax]
    for cold, cached in zip(by_phase["cold"], by_phase["cached"], strict=True):
        assert cold.compiled >= 2  # prefill and step
        assert (cold.cache_hits, cached.compiled, cached.cache_hits) == (0, 0, cold.compiled)
        assert min(cold.trace_ns, cold.lower_ns, cold.backend_ns, cold.load_ns, cold.peak_rss_bytes) > 0
        # the first token waits for prefill's compilation, one of several
        assert cold.token_times_ns[0] > cold.backend_ns / 10
    step = by_phase["cold"][0]
    assert step.argument_bytes > step.weights_bytes > 0  # the step's arguments are weights, cache and token
    warm = [(t.subject, t.block) for t in by_phase["warm"]]
    assert sorted(warm) == sorted((name, block) for name in ("step", "step" + AGAIN, flax) for block in (0, 1))
    assert {t.lowered for t in by_phase["warm"]} == {0}
    assert len({t.tokens_sha256 for t in by_phase["warm"] if t.prompt == 0}) == 1
    assert len({t.process for t in trials}) == 6  # each start its own, the two blocks one each
    kept = record.read(journal.path, as_probed=True)[0]
    assert [t.model_dump() for t in kept] == [t.model_dump() for t in journal.trials]
    assert {len(note["affinity"]) for note in journal.notes} == {1}
    assert {"load_before", "others_cpu", "steal"} <= set(journal.notes[0]["watch"])


def dying(monkeypatch, deaths):
    """Children of `interleaved_blocks` that are killed from outside as they start the trial (subject, block)."""
    original, popen = process.start, process.subprocess.Popen

    def start(task, arguments, receive, **how):
        children = []

        def hear(kind, value):
            receive(kind, value)
            block = kind == "starting" and value["what"].startswith("block")
            if block and (where := (value["subject"], value["block"])) in deaths:
                deaths.remove(where)
                os.killpg(children[0].pid, signal.SIGKILL)

        def remember(*arguments, **options):
            children.append(popen(*arguments, **options))
            return children[0]

        with monkeypatch.context() as patch:
            patch.setattr(process.subprocess, "Popen", remember)
            return original(task, arguments, hear, **how)

    monkeypatch.setattr(phases.process, "start", start)


@pytest.mark.slow
def test_a_child_killed_in_a_trial_loses_that_trial_only(folder, monkeypatch):
    dying(monkeypatch, [("step+scan", 1)])
    journal = Journal()
    trials = phases.run(plan(folder, "step,step+scan", blocks=3), journal)
    (lost,) = [t for t in trials if t.reason.startswith(phases.DIED)]
    assert (lost.subject, lost.block, lost.token_times_ns) == ("step+scan", 1, [])
    assert "its process died: killed by SIGKILL" in lost.reason
    counts = Counter((t.subject, t.block) for t in trials if t.valid)
    assert set(counts) == {(n, b) for n in ("step", "step" + AGAIN, "step+scan") for b in range(3)}
    assert set(counts.values()) == {1}  # what was left of the block is in the data, and no longer counts
    assert {t.reason for t in trials if not t.valid} - {lost.reason} <= {phases.SUPERSEDED}
    again = next(t.process for t in trials if t.valid and (t.subject, t.block) == ("step+scan", 1))
    assert {t.subject for t in trials if t.process == again and t.block == 1} == {"step", "step" + AGAIN, "step+scan"}


@pytest.mark.slow
def test_a_subject_that_keeps_killing_its_process_is_left_out(folder, monkeypatch):
    dying(monkeypatch, [("step+scan", 0), ("step+scan", 0)])
    trials = phases.run(plan(folder, "step,step+scan"), Journal())
    assert [t.subject for t in trials if t.reason.startswith(phases.DIED)] == ["step+scan"] * phases.PATIENCE
    assert {(t.subject, t.block) for t in trials if t.valid} >= {("step", 0), ("step", 1), ("step" + AGAIN, 1)}


def measure_in_a_process(folder, path, lock):
    paths.tempfile.gettempdir = lambda: lock
    phases.run(plan(folder, blocks=30), Journal(path, {"blocks": 30}))


def wait_for_the_orphan():
    """It holds the lock until it notices that nobody listens."""
    for _ in range(300):
        with contextlib.suppress(UserError), protocol.alone():
            return
        time.sleep(0.2)
    raise AssertionError("the orphan does not end")


@pytest.mark.slow
def test_a_killed_run_goes_on_where_it_stopped(folder, tmp_path):
    """SIGKILL to the whole harness in the middle of its blocks; started again, it measures what is missing."""
    path = tmp_path / "j.jsonl"
    harness = multiprocessing.get_context("spawn").Process(
        target=measure_in_a_process, args=(folder, path, str(tmp_path))
    )
    harness.start()
    while not (path.is_file() and path.read_bytes().count(b'"warm"') >= 5):
        assert harness.is_alive()
        time.sleep(0.02)
    os.kill(harness.pid, signal.SIGKILL)
    harness.join()
    kept = len(record.read_jsonl(path, skip_corrupt=True)[0])
    wait_for_the_orphan()
    journal = Journal(path, {"blocks": 30})
    trials = phases.run(plan(folder, blocks=30), journal)
    assert 5 <= journal.resumed <= kept < 60
    assert {(t.subject, t.block) for t in trials} == {(n, b) for n in ("step", "step" + AGAIN) for b in range(30)}
    void = [t for t in trials if not t.valid]
    assert len(void) <= 1  # only the block that was cut off was measured again
    assert all(t.reason == phases.SUPERSEDED for t in void)
    assert {t.process for t in trials} == {1, 2}


@pytest.mark.slow
def test_a_start_that_crashes_or_hangs_is_a_recorded_failure(folder, monkeypatch):
    """So is one whose cache could not be filled."""
    reasons = iter(["killed by SIGSEGV: Fatal Python error", "stopped after 9 s without a word: x", "exit code 1: y"])
    original = process.start

    def start(task, asked, *rest, **how):
        first = asked["task"].endswith("first_request")
        return process.Outcome(next(reasons)) if first else original(task, asked, *rest, **how)

    monkeypatch.setattr(process, "start", start)
    trials = phases.run(plan(folder, blocks=1, cold=2, cached=1), Journal())
    starts = [t for t in trials if t.phase != "warm"]
    assert [(t.phase, t.valid) for t in starts] == [("cold", False), ("cold", False), ("cached", False)]
    words = ("SIGSEGV", "without a word", "while the cache was filled, exit code 1")
    assert all(said in t.reason for said, t in zip(words, starts, strict=True))
    assert all(t.valid for t in trials if t.phase == "warm")


@pytest.mark.slow
def test_a_model_that_is_not_there_is_one_line(tmp_path):
    with pytest.raises(UserError, match="No such file"):
        phases.run(plan(str(tmp_path / "none.gguf")), Journal())


def test_a_block_counts_where_most_of_it_was_measured():
    made = [
        trial(n, b, process=p)
        for n, b, p in (("a", 0, 1), ("b", 0, 1), ("a", 1, 1), ("a", 1, 2), ("b", 1, 2), ("a", 2, 3))
    ]
    judged = phases.supersede(made)
    assert [t.valid for t in judged] == [True, True, False, True, True, True]
    assert judged[2].reason == phases.SUPERSEDED


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (dict(blocks=0), "0 blocks in 1"),
        (dict(processes=0), "2 blocks in 0"),
        (dict(processes=3), "3 processes for 2"),
        (dict(baseline="loop"), "'loop' is not among"),
        (dict(peers=("flax",)), "No such peer: 'flax'"),
        (dict(placements=(parse("step"), Placement("flax-nnx")), peers=("flax-nnx",)), "both a placement and a peer"),
        (dict(placements=(parse("step"), Placement("step", jit=("head",)))), "named twice: step, step"),
        (dict(threads=999), "999 threads"),
    ],
)
def test_mistakes_in_a_plan_are_named(changes, words):
    replace(plan("m"), processes=2).check()
    with pytest.raises(UserError, match=words):
        phases.run(replace(plan("m"), **changes))


def test_a_failure_says_which_trial_it_is_and_nothing_that_was_not_seen():
    bench, where = phases.Bench(plan("m"), Journal(), None, None), dict(block=1, order=2, phase="warm", process=3)
    bench.fail("step", "killed", **where)
    (lost,) = bench.trials
    assert lost.model_dump(include=where.keys()) == where
    assert (lost.valid, lost.token_times_ns, lost.weights_hash, lost.compiled) == (False, [], "", 0)
    for name in where:
        with pytest.raises(ValueError, match=name):
            bench.fail("step", "killed", **{k: v for k, v in where.items() if k != name})


def test_every_type_of_field_has_a_blank():
    kinds = (str, int, bool, list[int], int | None, Optional[float], Literal["a", "b"])  # noqa: UP045
    assert [phases.blank_of(kind) for kind in kinds] == ["", 0, False, [], None, None, "a"]


def test_a_plan_survives_json(folder):
    mine = Placement("mine", jit=("attend", "head"))
    planned = phases.Plan(folder, (mine,), WORK, "mine", peers=("flax-nnx",))
    asked = json.loads(json.dumps(planned.asked(planned.subjects)))
    assert phases.Subjects(**asked).made() == [mine]
    assert asked["peers"] == ["flax-nnx"]


def test_a_plan_is_made_of_names(folder):
    made = phases.Plan.of(folder, ["step", "flax-nnx", "loop"], WORK, blocks=3)
    assert ([p.name for p in made.placements], made.peers, made.baseline) == (["step", "loop"], ("flax-nnx",), "step")
    assert phases.Plan.of(folder, ["step", "loop"], WORK, "loop").baseline == "loop"


@pytest.mark.parametrize(
    ("made", "changes", "valid"),
    [
        ("good", {}, True),
        ("bad", {}, False),
        ("other", dict(prompt=1), True),  # no warm trial asked this prompt
        ("another", dict(dtype="q4_1", quantisation="gguf-q4_1"), True),  # a text of its own
    ],
)
def test_first_requests_are_judged_by_the_warm_tokens(made, changes, valid):
    warm = trial(tokens_sha256="good", **{**changes, "prompt": 0})
    judged = phases.judge_starts([warm, trial(phase="cold", tokens_sha256=made, **changes)])
    assert [t.valid for t in judged] == [True, valid]
    assert judged[1].wrong != valid
