"""Time to first token: passages of exact length, shapes, the plan's checks, and the children that measure."""

from collections import Counter
from dataclasses import replace

import pytest

from llama_jax import checkpoint, generate
from llama_jax.plumbing.errors import UserError
from llama_jax.sampling import Sampler
from llama_lab.bench import AGAIN
from llama_lab.bench.cold import Start
from llama_lab.bench.experiment import Runner, whole
from llama_lab.bench.journal import Journal
from llama_lab.bench.lab import Lab
from llama_lab.bench.workload import Workload
from llama_lab.experiments.time_to_first_token import first_requests, measure, scripting
from llama_lab.peers import torch_script
from tests.bench import labs
from tests.bench.test_passages import without_tokenizer
from tests.experiments.compile_time.test_measure import SMALL

PLAN = measure.FirstTokens(
    model=SMALL,
    placements=("step exact", "step bucketed", "step fixed", "layer exact"),
    peers=("flax-linen+jit",),
    lengths=(5, 20),
    blocks=2,
    processes=1,
    at=20,
    starts=1,
    tail=((5, 2),),
    tail_subjects=("step exact",),
)
NOBODY = Lab(lambda *said: None, {}, "")


def test_no_passage_is_asked_twice(tiny):
    works = PLAN.workloads(without_tokenizer(tiny))
    asked = [p for work in works.values() for p in work.prompts]
    assert len(asked) == len(set(asked))
    assert {key: len(work.prompts) for key, work in works.items()} == {
        **{("warm-up", n): measure.SPARE for n in (5, 20)},
        **{(run, n): count for run, count in (("warm", 2), ("cold", 1)) for n in (5, 20)},
        ("tail", 5): 2,
    }
    assert all(len(p) == n for (_, n), work in works.items() for p in work.prompts)


def test_a_tail_may_have_a_length_of_its_own(tiny):
    plan = replace(PLAN, tail=((5, 2), (8, 3)))
    plan.check()
    assert plan.all_lengths == (5, 8, 20)
    counts = {run: len(work.prompts) for (run, n), work in plan.workloads(without_tokenizer(tiny)).items() if n == 8}
    assert counts == {"warm-up": measure.SPARE, "cold": 1, "tail": 3}
    assert plan.starting(8) == ("step exact",)
    everybody, *tails = plan.rounds()
    assert {lengths for *_, lengths in everybody} == {(5, 20)}
    assert [{(names, lengths) for _, _, names, lengths in rounds} for rounds in tails] == [
        {(("step exact",), (n,))} for n in (5, 8)
    ]


def test_a_policy_chooses_the_shape_and_a_peer_gets_none():
    work = Workload(((1,) * 20,), 2, 20)
    plan = replace(PLAN, lengths=(20, 40))
    names = ("step exact", "step exact" + AGAIN, "eager bucketed", "step fixed", "torch")
    shapes = {name: plan.shaped(work, name) for name in names}
    assert {name: (s.length, s.slots) for name, s in shapes.items()} == {
        "step exact": (20, 21),
        "step exact" + AGAIN: (20, 21),
        "eager bucketed": (24, 32),
        "step fixed": (48, 64),
        "torch": (20, generate.bucket(22)),
    }
    assert all(s.prompts == work.prompts for s in shapes.values())


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        (dict(placements=("step",)), "'step' is not a placement with a policy"),
        (dict(placements=("stepp exact",)), "No such placement: 'stepp'"),
        (dict(placements=("step padded",)), "policies: exact, bucketed, fixed"),
        (dict(placements=()), "placements is empty"),
        (dict(placements=("step exact", "step exact")), "named twice"),
        (dict(peers=("torsh",)), "No such peer"),
        (dict(lengths=(5, 5, 20)), "lengths is"),
        (dict(lengths=(0, 20)), "lengths is"),
        (dict(at=7), "at is 7; it must be one of the lengths"),
        (dict(blocks=0), "blocks is 0"),
        (dict(starts=0), "starts is 0"),
        (dict(processes=3), "3 processes for 2 blocks"),
        (dict(tail_subjects=()), "tail has requests but no subjects"),
        (dict(tail=((0, 2),)), r"tail has \[0, 2\]; write \[LENGTH, REQUESTS\], such as \[50, 200\]"),
        (dict(tail=(("7", 2),)), r"tail has \['7', 2\]"),
        (dict(tail=((5, -1),)), r"tail has \[5, -1\]"),
        (dict(tail=((255, 1),)), "257 tokens of prompt and answer exceed the model's context of 256"),
        (dict(tail=((5,),)), r"tail has \[5\]"),
        (dict(tail=((5, 2), (5, 3))), "name each length once"),
        (dict(temperature=-1.0), "temperature"),
        (dict(tail_subjects=("torch",)), "'torch', which is not measured"),
        (dict(lengths=(5, 20, 255)), "257 tokens of prompt and answer exceed the model's context of 256"),
    ],
)
def test_a_plan_that_cannot_be_is_one_line(tiny, monkeypatch, changes, match):
    monkeypatch.setattr(checkpoint, "load_config", lambda model: tiny[0])
    with pytest.raises(UserError, match=match) as caught:
        replace(PLAN, **changes).check()
    assert "\n" not in str(caught.value)


def test_processes_cover_every_block_and_every_tail_request_once(monkeypatch):
    monkeypatch.setattr(measure, "PART", 4)
    processes = replace(PLAN, blocks=5, processes=2, tail=((5, 7), (20, 3))).rounds()
    kinds = [{(run, lengths) for run, _, _, lengths in rounds} for rounds in processes]
    assert kinds == 2 * [{("warm", (5, 20))}] + 2 * [{("tail", (5,))}] + [{("tail", (20,))}]
    assert sorted(b for rounds in processes[:2] for _, b, *_ in rounds) == list(range(5))
    assert sorted(b for rounds in processes[2:] for _, b, *_ in rounds) == list(range(10))
    assert all(1 <= len(rounds) <= 4 for rounds in processes[2:])
    assert {names for rounds in processes[2:] for _, _, names, _ in rounds} == {("step exact",)}
    assert len(replace(PLAN, tail=((5, 0),)).rounds()) == 1


def test_who_can_sample_does_and_the_others_take_the_best_token(tiny):
    loaded, names = without_tokenizer(tiny), ("step exact", "torch", "flax-linen+jit")
    made = replace(PLAN, temperature=0.7).build(NOBODY, loaded, names, 0, {})
    assert {who.name: who.sampler for who in made} == {
        "step exact": Sampler(0.7),
        "torch": Sampler(0.7),
        "flax-linen+jit": None,
    }
    assert {who.sampler for who in PLAN.build(NOBODY, loaded, names, 0, {})} == {None}


def test_policies_share_programs_the_order_is_random_and_the_baseline_runs_twice(tiny):
    engines = {}
    subjects = PLAN.build(NOBODY, without_tokenizer(tiny), PLAN.placements, 0, engines)
    assert list(engines) == ["step", "layer"]
    assert subjects[0].run is subjects[1].run is subjects[2].run is not subjects[3].run
    assert [who.name for who in subjects] == list(PLAN.placements)

    def names(block):
        return [(who.name, n) for who, n, _ in PLAN.drawn(subjects, PLAN.lengths, measure.WARM, block)]

    orders = [names(block) for block in range(9)]
    expected = Counter((name, n) for n in PLAN.lengths for name in (*PLAN.placements, "step exact" + AGAIN))
    assert all(Counter(order) == expected for order in orders)
    assert len(set(map(tuple, orders))) == 9
    assert orders[3] == names(3)
    tail = list(PLAN.drawn(subjects[:1], (20,), measure.TAIL, 0))
    assert [(who.name, n, order) for who, n, order in tail] == [("step exact", 20, 0)]


def test_a_plan_without_some_peers_has_no_tail_for_nobody():
    plan = replace(PLAN, peers=("flax-nnx", "flax-nnx+jit"), tail_subjects=("flax-nnx",))
    fewer = plan.without([dict(name="flax-nnx")])
    assert (fewer.subjects, fewer.tail) == ((*PLAN.placements, "flax-nnx+jit"), ())
    assert plan.without([]) == plan


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    lock = tmp_path_factory.mktemp("lock")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("llama_jax.plumbing.paths.tempfile.gettempdir", lambda: str(lock))
        said = []
        journal = Journal(kind=Start)
        experiment = replace(PLAN, peers=("flax-linen+jit", "llamacpp"), temperature=0.7, tail=((5, 2), (8, 1)))
        _, meta = experiment.record(journal, lambda *words: said.append(words))
        before = len(journal.trials)
        experiment.record(journal)
        return journal, meta["missing"], said, before


@pytest.mark.slow
def test_everything_is_measured_once_and_gated(measured):
    journal, gaps, said, before = measured
    trials = whole(journal.trials)
    warm = Counter((t.run, t.subject, t.prompt_tokens) for t in trials if t.phase == "warm")
    names = (*PLAN.placements, "step exact" + AGAIN, "flax-linen+jit")
    tails = {("tail", "step exact", 5): 2, ("tail", "step exact", 8): 1}
    assert warm == {**{("warm", name, n): 2 for name in names for n in PLAN.lengths}, **tails}
    assert all(t.valid and t.new_tokens == 2 and not t.compiled for t in trials if t.phase == "warm"), [
        t.reason for t in trials
    ]
    sampled = [t for t in trials if (t.run, t.block, t.prompt_tokens, t.backend) == ("warm", 1, 20, "jax")]
    assert len({t.tokens_sha256 for t in sampled}) == 1  # equal draws
    probes = {
        run: {t.bandwidth_gbps for t in trials if (t.run, t.prompt_tokens) == (run, 5)} for run in ("warm", "tail")
    }
    assert {run: len(found) for run, found in probes.items()} == {"warm": 2, "tail": 1}
    assert all("temperature 0.7" in t.sampling for t in sampled), {t.sampling for t in sampled}
    assert [gap["name"] for gap in gaps] == ["llamacpp"]
    assert len(journal.trials) == before  # a run that is whole is not measured again
    assert any("warm-up of step exact" in what for what, *_ in said)


@pytest.mark.slow
def test_cold_requests_have_processes_of_their_own_and_what_they_compiled(measured):
    trials = whole(measured[0].trials)
    cold = [t for t in trials if t.phase == "cold"]
    at = {(name, 20): 1 for name in (*PLAN.placements, "flax-linen+jit")} | {("step exact", n): 1 for n in (5, 8)}
    assert Counter((t.subject, t.prompt_tokens) for t in cold) == at
    assert len({t.process for t in trials}) == len(cold) + 3
    for t in cold:
        assert t.valid, t.reason
        assert t.compiled > 0
        assert t.load_ns > 0
        assert t.peak_rss_bytes > 10**7
        assert 0 < t.first_backend_ns <= t.backend_ns
        assert (t.first_trace_ns + t.first_lower_ns + t.first_backend_ns) / 1e9 < t.ttft
    for e in first_requests.cold(trials, 20):
        assert e["median"] > e["warm_ms"]
        assert e["compile_ms"] + e["once_ms"] + e["usual_ms"] == pytest.approx(e["median"])


@pytest.mark.parametrize("name", ["torch-script+frozen", "torch"])
def test_what_scripting_takes_of_a_first_request_is_in_its_row(name):
    torch_script.scripted.cache_clear()  # of tests before this one
    torch_script.frozen.cache_clear()
    asked = dict(subject=name, order=0, greedy=[], workload=Workload(([1] * 20,), 1, 20))
    plan = replace(PLAN, peers=(name,), new_tokens=1, temperature=0.7)
    (row,), _ = labs.run(plan.first_request, SMALL, f"cold {name}", **asked)
    assert row["compiled"] == (2 if name == "torch-script+frozen" else 0)
    assert len(row["token_times_ns"]) == 1  # the requests that follow are no part of it
    if name == "torch":
        assert (row["script_ns"], row["freeze_ns"], row["script_calls_ns"]) == (0, 0, [])
        return
    assert min(row["script_ns"], row["freeze_ns"], row["first_backend_ns"]) > 0
    assert len(row["script_calls_ns"]) == scripting.CALLS
    first = row["script_ns"] + row["freeze_ns"] + row["script_calls_ns"][0]
    assert first < row["token_times_ns"][0]


@pytest.mark.slow
def test_a_cold_request_with_other_tokens_is_void():
    asked = dict(subject="step exact", order=0, greedy=[96, 96], workload=Workload(([1] * 20,), 2, 20))
    (row,), _ = labs.run(PLAN.first_request, SMALL, "cold step exact", **asked)
    assert not row["valid"]
    assert row["reason"].startswith("wrong: token 0 is")


@pytest.mark.slow
def test_a_peer_that_cannot_start_is_a_gap_and_a_placement_that_cannot_is_not(tmp_path, monkeypatch):
    monkeypatch.setattr("llama_jax.plumbing.paths.tempfile.gettempdir", lambda: str(tmp_path))
    loaded = checkpoint.load(SMALL)
    plan = replace(PLAN, placements=("step exact",), peers=("flax-nnx",), tail=(), tail_subjects=())
    # a child that is silent for so long is stopped
    runner = Runner(plan, Journal(kind=Start), limit=0.05)
    work = plan.workloads(loaded)[measure.COLD, plan.at]
    replace(plan, placements=()).cold_starts(runner, loaded, plan.at, work)
    assert [gap["name"] for gap in runner.missing] == ["flax-nnx"]
    assert "stopped after" in runner.missing[0]["reason"]
    with pytest.raises(UserError, match="measuring process .cold step exact. failed"):
        replace(plan, peers=()).cold_starts(runner, loaded, plan.at, work)
