"""Streams of requests: shapes by policy, what is asked, and the streams really served, on a small model."""

import json

import numpy as np
import pytest

from llama_jax import checkpoint, generate
from llama_lab.bench import compile_causes, process, record, workload
from llama_lab.bench.journal import Journal
from llama_lab.experiments.shapes_and_recompilation import measure, table
from llama_lab.experiments.shapes_and_recompilation.measure import Served, Stream
from tests.bench import labs

pytestmark = pytest.mark.usefixtures("compiling")

MODEL = (
    "random:smollm2-135m,num_hidden_layers=1,hidden_size=32,intermediate_size=64,num_attention_heads=2,num_key_value_heads=1,"
    "head_dim=16,vocab_size=97"
)
NEW = 3


@pytest.fixture(scope="module")
def loaded():
    return checkpoint.load(MODEL)


@pytest.fixture(scope="module")
def stream(loaded):
    return measure.expect(loaded, measure.ragged(loaded, 2, 3, NEW, batch=2, seed=1))


@pytest.mark.parametrize(
    ("name", "count"), [*zip(workload.POLICIES, (300, 300, 10, 10, 1), strict=True)], ids=workload.POLICIES
)
def test_every_policy_makes_room_for_what_is_asked(name, count):
    shapes = {tokens: workload.POLICIES[name].shape(tokens, 300, NEW) for tokens in range(1, 301)}
    assert all(length >= tokens and slots >= length + NEW - 1 for tokens, (length, slots) in shapes.items())
    assert len(set(shapes.values())) == count


def test_powers_are_powers_and_buckets_are_the_packages():
    for tokens in (1, 2, 16, 17, 63, 64, 65, 200):
        length, slots = workload.POLICIES[workload.POWERS].shape(tokens, 200, NEW)
        assert length.bit_count() == slots.bit_count() == 1
        assert length < 2 * tokens
        length, slots = workload.POLICIES[workload.BUCKETS].shape(tokens, 200, NEW)
        assert (length, slots) == (generate.bucket(tokens), generate.bucket(generate.bucket(tokens) + NEW - 1))


def test_a_stream_asks_each_prompt_and_is_the_same_for_the_same_seed(loaded):
    one, two, other = (measure.ragged(loaded, 4, 9, NEW, seed=seed) for seed in (0, 0, 1))
    assert one == two != other
    assert set(one.arrivals) == set(range(4))
    assert len(one.arrivals) == 9
    assert len({len(p) for p in one.prompts}) == 4


def test_real_prompts_are_ragged(packaged):
    made = measure.ragged(packaged, 3, 3, NEW)
    assert len(made.prompts[0]) < len(made.prompts[1]) < len(made.prompts[2]) == made.longest
    assert packaged.tokenizer.decode(made.prompts[1]).count("?") == 3


def recompilation(**changes):
    counts = dict(prompts=1, requests=1, new_tokens=2, batch=4, processes=1, surprise_processes=1)
    return measure.Recompilation(**dict(model=MODEL, seed=0) | counts | changes)


PLAIN = Stream(((1,) * 5, (2,) * 9, (3,) * 20), (0, 2, 1, 2), NEW, 4)


def test_the_last_batch_is_smaller_or_filled_up():
    smaller, padded = (measure.asks(measure.LAST, s, PLAIN) for s in measure.SUBJECTS[measure.LAST])
    assert [a.batch for a in smaller] == [4, 4, 4, 2]
    assert [a.batch for a in padded] == [4, 4, 4, 4]
    assert [a.prompts for a in smaller] == [a.prompts for a in padded]
    assert [len(a.prompts) for a in padded] == [4, 4, 4, 2]


def test_beside_the_first_stream_only_what_is_studied_changes():
    for experiment in table.SURPRISES:
        for subject in measure.SUBJECTS[experiment]:
            asked = measure.asks(experiment, subject, PLAIN)
            assert len(asked) == measure.FEW
            assert {(a.length, a.slots) for a in asked} == {(24, 32)}
    samplers = [a.sampler for a in measure.asks(measure.SAMPLING, measure.STATIC, PLAIN)]
    assert len(set(samplers[:3])) == 3
    assert samplers[3] == samplers[0] == generate.GREEDY
    changes = [a.change for a in measure.asks(measure.COMMITTED, measure.UNCOMMITTED, PLAIN)]
    assert changes.count(measure.RELOADED) == 1
    assert changes[0] == ""


def test_dummy_rows_repeat_the_first_prompt(monkeypatch):
    monkeypatch.setattr(measure.generate, "stream", lambda engine, rows, *a, **k: rows)
    rows = measure.run(None, measure.Ask((1, 0), 24, 32, batch=4), PLAIN, list(PLAIN.prompts[1]), None)
    assert [tuple(r) for r in rows] == [PLAIN.prompts[i] for i in (1, 0, 1, 1)]


def served(stream, experiment, subject):
    """A stream served in this process, as a child would; its rows."""
    plain = json.loads(json.dumps(measure.asdict(stream)))
    asked = dict(experiment=experiment, subject=subject, stream=plain)
    rows, _ = labs.run(measure.serving, MODEL, f"{experiment}: {subject}", **asked)
    return [Served(**row) for row in rows]


@pytest.fixture(scope="module")
def policies(stream):
    return {name: served(stream, measure.SHAPES, name) for name in workload.POLICIES}


@pytest.mark.slow
def test_policies_compile_what_their_shapes_say(policies, stream):
    expected = {workload.GROWING: 2 * NEW, workload.EXACT: 4, workload.BUCKETS: 4, workload.POWERS: 2, workload.ONE: 2}
    lengths = [len(p) for p in stream.prompts]
    assert lengths == [37, 53]  # in different buckets, in the same power of two
    for name, rows in policies.items():
        cold, warm = ([r for r in rows if r.phase == phase] for phase in ("cold", "warm"))
        assert [r.order for r in cold] == [r.order for r in warm] == [0, 1, 2]
        assert sum(r.compiled for r in cold) == expected[name], name
        assert all(r.valid and r.reason == "" for r in cold), name  # what is studied voids nothing
        assert all(r.valid and not r.lowered and not r.cause for r in warm), name
        assert [r.prompt_tokens for r in cold] == [lengths[p] for p in stream.arrivals]
    assert len({tuple(r.tokens_sha256 for r in rows) for rows in policies.values()}) == 1


def test_rows_say_what_ran_and_what_was_asked(policies):
    for r in policies[workload.POWERS]:
        assert (r.padded_tokens, r.cache_slots, r.rows_asked, r.tokens_asked) == (64, 128, 1, r.prompt_tokens)
    for r in policies[workload.EXACT]:
        assert (r.padded_tokens, r.cache_slots) == (r.prompt_tokens, r.prompt_tokens + NEW - 1)
    assert table.account(policies[workload.EXACT], measure.SHAPES, workload.EXACT).padding == 0


def test_causes_are_those_of_the_policy(policies):
    causes_of = {
        name: [compile_causes.kinds(compile_causes.condense(r.cause)) for r in rows if r.phase == "cold" and r.cause]
        for name, rows in policies.items()
    }
    assert causes_of[workload.ONE] == [compile_causes.FIRST]
    assert causes_of[workload.EXACT] == [compile_causes.FIRST, "static argument; shape"]
    # each token is a shape within the first request
    assert causes_of[workload.GROWING] == ["shape", "static argument; shape"]
    assert not any("/llama_jax/" in r.cause or " id=" in r.cause for rows in policies.values() for r in rows)


@pytest.mark.slow
def test_settings_as_arguments_compile_once(stream):
    static, traced = (served(stream, measure.SAMPLING, s) for s in (measure.STATIC, measure.TRACED))
    assert [r.compiled for r in static[:4]] == [2, 2, 2, 0]
    assert [bool(r.compiled) for r in traced[:4]] == [True, False, False, False]
    assert all(r.valid for r in static + traced)
    assert [r.change for r in traced[:4]] == ["greedy", "temperature 0.7", "temperature 1, top-p 0.9", "greedy"]
    assert compile_causes.condense(static[1].cause) == "static argument: temperature 0.7, before greedy"


@pytest.mark.slow
def test_committed_weights_compile_again_without_a_trace(stream):
    uncommitted, always = (served(stream, measure.COMMITTED, s) for s in (measure.UNCOMMITTED, measure.ALWAYS))
    assert [r.compiled for r in uncommitted] == [2, 0, 2, 0] + [0] * 4
    assert (uncommitted[2].trace_ns, uncommitted[2].lowered) == (0, 2)
    assert compile_causes.condense(uncommitted[2].cause) == compile_causes.COMMITTED
    assert [r.compiled for r in always] == [2] + [0] * 7
    assert {r.tokens_sha256 for r in uncommitted} == {r.tokens_sha256 for r in always}


@pytest.mark.slow
def test_a_wrong_answer_is_void_and_keeps_its_programs(stream):
    """Every row of a batch is judged, and dummies are not."""
    wrong = measure.replace(stream, expected=(stream.expected[0], tuple((t + 1) % 97 for t in stream.expected[1])))
    with pytest.MonkeyPatch.context() as patch:  # logits far from a tie
        patch.setattr(measure.Reference, "logits", lambda reference, prompt, row, *kind: np.eye(97)[(row + 1) % 97])
        rows = served(wrong, measure.LAST, measure.SMALLER)
    assert [r.compiled for r in rows[:4]] == [2, 0, 0, 2]
    assert [r.valid for r in rows[:4]] == [False, False, False, True]  # the last batch is prompt 0 alone
    assert all(r.reason.startswith("wrong: token 0") for r in rows[:3])
    filled = served(stream, measure.LAST, measure.PADDED)
    assert [r.compiled for r in filled[:4]] == [2, 0, 0, 0]
    assert all(r.valid for r in filled)
    assert [(r.batch, r.rows_asked) for r in filled[:4]] == [(2, 2)] * 3 + [(2, 1)]


@pytest.mark.slow
def test_children_fill_a_journal_once(loaded, tmp_path, monkeypatch):
    monkeypatch.setattr("llama_jax.plumbing.paths.tempfile.gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(measure, "SUBJECTS", {measure.COMMITTED: measure.SUBJECTS[measure.COMMITTED]})
    journal = Journal(tmp_path / "j.jsonl", kind=Served)
    rows, _ = recompilation().record(journal)
    bad, cured = table.accounts(rows, measure.COMMITTED)
    assert (bad.programs, bad.surprises, cured.programs, cured.surprises) == (4, 2, 2, 0)
    assert len({r.process for r in rows}) == 2
    assert np.isfinite([*bad.total, *bad.warm, *cured.total, *cured.warm]).all()
    path = record.write(tmp_path / "t.csv", rows, Served)
    assert record.read(path, kind=Served)[0] == rows
    monkeypatch.setattr(process, "start", lambda *a, **k: pytest.fail("a process was started"))
    assert recompilation().record(Journal(journal.path, kind=Served))[0] == rows
