"""The plan, the gate of answers, and the processes, on a small model."""

import contextlib
from dataclasses import replace
from types import SimpleNamespace

import pytest

from llama_jax import checkpoint, generate
from llama_jax.plumbing.errors import UserError
from llama_lab.bench import COMPILED
from llama_lab.bench.experiment import Runner
from llama_lab.bench.journal import Journal
from llama_lab.experiments.what_serving_needs import measure, servers, table
from llama_lab.experiments.what_serving_needs.client import Answer
from llama_lab.experiments.what_serving_needs.load import Ask
from llama_lab.experiments.what_serving_needs.measure import Request, Serving
from llama_lab.peers import llama_server
from tests.bench import labs
from tests.experiments.fewer_bits.test_measure import TINY
from tests.experiments.what_serving_needs.made import request

ASKED = dict(
    model=TINY, seed=0, placements=["step+donate"], peers=["ollama", "llama-server"], rates=[4.0], seconds=1.0, slots=2,
    queue=8, one_rate=8.0, shapes=["exact"], slot_rates=[8.0], more_slots=[1], gated=3,
)  # fmt: skip


@pytest.mark.parametrize(
    ("words", "changes"),
    [
        ("No such placement: 'stp'", dict(placements=["stp"])),
        ("'loop' makes a whole answer in one call", dict(placements=["loop"])),
        ("placements is empty", dict(placements=[])),
        ("torch is not a server that can be measured", dict(peers=["torch"])),
        ("shapes hold 'two'; they may hold one, buckets, exact", dict(shapes=["two"])),
        ("A rate is 0; it must be above 0", dict(rates=[0.0, 1.0])),
        ("slots is 0", dict(slots=0)),
        ("more_slots is 0", dict(more_slots=[0])),
        ("gated is 0", dict(gated=0)),
        ("slot_rates has 0 entries; give one per placement", dict(slot_rates=[])),
    ],
)
def test_mistakes_are_named_before_anything_is_started(monkeypatch, words, changes):
    monkeypatch.setattr(Runner, "child", lambda *arguments, **more: pytest.fail("started"))
    with pytest.raises(UserError, match=words):
        Serving(**ASKED | changes).record()


def test_a_load_that_serves_two_parts_is_asked_once():
    rates = dict(rates=[1.0, 4.0], one_rate=1.0, slot_rates=[1.0, 8.0])
    servers = dict(placements=["a", "b"], peers=["ollama"], slots=4, shapes=["buckets", "exact"], more_slots=[1, 4])
    found = Serving(**ASKED | rates | servers).settings
    assert [(s.server, s.slots, s.shapes, s.rates) for s in found] == [
        ("a", 4, "buckets", (1.0, 4.0)),
        ("b", 4, "buckets", (1.0, 4.0, 8.0)),
        ("ollama", 4, "buckets", (1.0, 4.0)),
        ("a", 4, "exact", (1.0,)),
        ("a", 1, "buckets", (1.0,)),
        ("b", 4, "exact", (1.0,)),
        ("b", 1, "buckets", (8.0,)),
    ]
    assert len({s.run for s in found}) == len(found)


def test_llama_cpps_server_is_a_gap_where_it_is_not_built_and_asked_where_it_is(tmp_path, monkeypatch):
    monkeypatch.setenv("LLAMA_JAX_CACHE", str(tmp_path))
    runner = Runner(Serving(**ASKED | dict(model="smollm2-135m-instruct")), Journal(kind=Request))
    for _ in range(2):
        assert measure.present(runner, ["step", "llama-server"]) == ["step"]
    (gap,) = runner.missing
    assert (gap["name"], gap["remedy"]) == ("llama-server", "Run `make llama-server`.")
    made = tmp_path / "llama-server" / llama_server.BUILT.version / "llama-server"
    made.parent.mkdir(parents=True)
    made.touch()
    runner = replace(runner, journal=Journal(kind=Request))
    assert measure.present(runner, ["step", "llama-server"]) == ["step", "llama-server"]
    runner = Runner(Serving(**ASKED), Journal(kind=Request))
    assert measure.present(runner, ["llama-server"]) == []
    assert "reads GGUF files" in runner.missing[0]["reason"]


def test_a_program_compiled_in_service_voids_a_load_unless_that_is_the_question():
    ask, answer = Ask(0.5, "1 2", 2, 4), Answer(10, 200, [20, 30], "5 6", 2, 2)
    own = {"valid", "reason", "due_ns", "sent_ns", "status", "prompt_tokens", "asked_tokens", "tokens", "piece_ns"}
    about = request().model_dump(exclude=own | {"shapes", "compiled"})
    assert measure.row_of(ask, answer, "buckets", 0, **about).valid
    assert measure.row_of(ask, answer, "exact", 3, **about).valid
    row = measure.row_of(ask, answer, "buckets", 1, **about)
    assert (row.valid, row.reason) == (False, COMPILED)
    row = measure.row_of(ask, replace(answer, reason="no text came"), "exact", None, **about)
    assert (row.valid, row.reason, row.due_ns) == (False, "no text came", 500_000_000)


def test_a_server_that_fails_its_first_request_is_not_measured(monkeypatch):
    monkeypatch.setattr(measure, "answers_of", lambda *_: [Answer(0, 500, [], "", 0, 0, "status 500: no")])
    with pytest.raises(UserError, match="failed its first request: status 500: no"):
        measure.warm(servers.Server("http://127.0.0.1:9", "m"))


def test_a_server_that_refused_is_asked_no_higher_rate(monkeypatch):
    rates, counted = [], iter((3, 5, 5, 5))

    def answers(server, asked):
        rates.append(len(asked))
        return [Answer(1, 503 if len(asked) == 8 else 200, [] if len(asked) == 8 else [5], "1", 1, 1)] * len(asked)

    running = SimpleNamespace(programs=3, seconds=1.0, compiled=lambda: next(counted))
    monkeypatch.setattr(servers, "ours", lambda *_: contextlib.nullcontext(running))
    monkeypatch.setattr(measure, "warm", lambda server: None)
    monkeypatch.setattr(measure, "answers_of", answers)
    monkeypatch.setattr(measure, "Alone", lambda *_: None)
    experiment = Serving(**ASKED | dict(rates=[4.0, 8.0], one_rate=16.0, queue=1, gated=1))
    setting = measure.Setting("step+donate", 2, "exact", (4.0, 8.0, 16.0))
    rows, (note,) = labs.run(experiment.loading, TINY, **measure.asdict(setting))
    assert rates == [4, 8]
    trials = [Request(**row) for row in rows]
    assert (len(trials), sum(t.status == measure.REFUSED for t in trials)) == (12, 8)
    assert {(t.rate, t.compiled) for t in trials} == {(4.0, 2), (8.0, 0)}
    assert (note["server"], note["slots"], note["shapes"], note["programs"], note["warm_s"]) == (
        "step+donate", 2, "exact", 3, 1.0)  # fmt: skip


@pytest.fixture(scope="module")
def alone():
    """A prompt and the tokens that `step` makes of it."""
    (answer,) = generate.answer(generate.build(checkpoint.load(TINY), "step"), [[5, 9, 33]], 4)
    return list(answer.token_ids)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda ids: ids, ""),
        (lambda ids: ids[:-1], "wrong: 3 tokens, the reference has 4"),
        (lambda ids: [(ids[0] + 1) % 97, *ids[1:]], "wrong: token 0 is"),
        (lambda ids: [*ids[:-1], (ids[-1] + 1) % 97], "wrong: token 3 is"),
        (lambda ids: [], "wrong: 0 tokens, the reference has 4"),
    ],
)
def test_an_answer_must_be_the_one_that_generate_makes_alone(alone, change, reason):
    text = " ".join(map(str, change(alone)))
    verdict = measure.Alone(TINY, "step+donate").judge(Ask(0, "5 9 33", 3, 4), Answer(0, 200, [1], text, 4, 3))
    assert (verdict.passed, verdict.reason[: len(reason)]) == (not reason, reason)


@pytest.mark.slow
def test_a_server_that_does_not_start_says_why():
    with pytest.raises(UserError, match="did not start: --slots is 0"), servers.ours(TINY, "step", 0, 4, "exact"):
        pass


@pytest.mark.slow
def test_it_is_measured(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # a lock of its own: something may be measured here
    monkeypatch.setattr("llama_jax.plumbing.paths.tempfile.tempdir", None)
    journal = Journal(kind=Request)
    rows, meta = Serving(**ASKED).record(journal)
    assert all(r.valid for r in rows), [r.reason for r in rows]
    assert {gap["name"] for gap in meta["missing"]} == {"ollama", "llama-server"}
    assert meta["text"] == "random ids"
    entries = table.loads(rows, journal.notes)
    found = {(e["slots"], e["shapes"], e["rate"]): e for e in entries}
    assert set(found) == {(2, "buckets", 4.0), (2, "exact", 8.0), (1, "buckets", 8.0)}
    assert found[2, "buckets", 4.0]["compiled"] == 0 < found[2, "exact", 8.0]["compiled"]
    assert found[2, "exact", 8.0]["programs"] < found[2, "buckets", 4.0]["programs"]
    assert sum(e["gated"] for e in entries) == 9
