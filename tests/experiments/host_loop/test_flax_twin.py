"""The cost of a call: what the rows say, on made-up rows; and the children that measure it, on a small model."""

import numpy as np
import pytest

from llama_jax.plumbing.errors import UserError
from llama_lab.bench import record
from llama_lab.experiments.host_loop import finding, flax_twin
from llama_lab.experiments.host_loop.flax_twin import CallRow

TINY = (
    "random:smollm2-135m,num_hidden_layers=1,hidden_size=32,intermediate_size=64,num_attention_heads=2,num_key_value_heads=1,"
    "head_dim=16,vocab_size=97"
)
COST = {  # µs until the call returns, and until its token is there
    flax_twin.UNJITTED: (900, 950),
    flax_twin.NNX_UNJITTED: (800, 850),
    flax_twin.NNX_JITTED: (60, 160),
    flax_twin.SPLIT: (20, 120),
    flax_twin.JITTED: (10, 110),
    flax_twin.STEP: (10, 100),
}


def row(subject, turn=0, model="big", process=1, scale=1.0, **changes):
    returned, complete = ([round(us * 1e3 * scale)] * 5 for us in COST[subject])
    place = dict(run=f"per call {model}", block=process, order=turn, process=process, round=turn, seed=0, phase="warm")
    about = dict(model=model, weights_hash="w", layers=2 if model == "small" else 30, width=64, cache_slots=16)
    about |= dict(parameters=10**4 if model == "small" else 10**8, bytes_per_token=4e5, bandwidth_gbps=8.0)
    program = dict(dispatches=200 if "+" not in subject and subject != "step" else 1, lowered=0, compiled=0)
    program |= dict(output_bytes={flax_twin.NNX_JITTED: 4 * 10**8, flax_twin.SPLIT: 10**6}.get(subject))
    burst = dict(subject=subject, valid=True, dispatch_ns=returned, complete_ns=complete, tokens_sha256="t")
    return CallRow(**{**place, **about, **program, **burst, **changes})


def rows(models=("small", "big"), processes=2, rounds=4):
    noise = np.random.default_rng(0)
    return [
        row(way, turn, model, process, scale=1 + noise.normal(0, 0.01))
        for model in models
        for process in range(1, processes + 1)
        for turn in range(rounds)
        for way in flax_twin.WAYS
    ]


def void(made, wanted):
    wrong = dict(valid=False, reason="wrong: token 1 is 2, the reference has 3", complete_ns=[10**9] * 5)
    return [r.model_copy(update=wrong) if wanted(r) else r for r in made]


def test_what_a_row_says_and_it_comes_back_from_a_table(tmp_path):
    r = row(flax_twin.STEP, dispatch_ns=[1000, 2000, 9000], complete_ns=[5000, 4000, 90000])
    assert (r.dispatch_us, r.complete_us) == (2.0, 5.0)
    assert r.limit_us == pytest.approx(4e5 / 8e9 * 1e6)
    assert record.read(record.write(tmp_path / "t.csv", [r], CallRow), kind=CallRow)[0] == [r]


def test_what_flax_takes_under_jit_is_said_of_all_models_and_of_the_largest():
    costs = {("small", flax_twin.JITTED): 50, ("big", flax_twin.JITTED): 110}
    fast = [
        r.model_copy(update=dict(complete_ns=[1000 * costs.get((r.model, r.subject), 100)] * len(r.complete_ns)))
        for r in rows()
    ]
    said = finding.jitted(fast)
    assert said == "a call of flax-linen+jit takes 0.50 to 1.10 times as long as step's, 1.10 on big"
    assert finding.jitted([r for r in fast if r.subject != flax_twin.STEP]) == ""


def test_the_table_pairs_ways_of_a_round():
    table = flax_twin.table(rows())
    assert [e["model"] for e in table] == ["small"] * 6 + ["big"] * 6  # by size
    at = {(e["model"], e["subject"]): e for e in table}
    found = at["big", flax_twin.NNX_JITTED]
    assert found["over_step"].value == pytest.approx(1.6, rel=0.02)
    assert (found["over_step"].n, found["over_step"].clusters) == (8, 2)
    assert found["complete_us"].n == len(found["points"]) == 8
    assert at["big", flax_twin.STEP]["over_step"].value == 1
    more = flax_twin.dispatch_difference(rows(), "big", flax_twin.NNX_JITTED, flax_twin.SPLIT)
    assert more.value == pytest.approx(40, rel=0.1)
    assert more.low > 0


def test_void_bursts_and_what_an_interrupted_process_left_count_nowhere():
    made = void(rows(("big",)), lambda r: (r.subject, r.round) == (flax_twin.SPLIT, 1))
    entry = next(e for e in flax_twin.table(made) if e["subject"] == flax_twin.SPLIT)
    assert (entry["void"], entry["over_step"].n) == (2, 6)
    assert entry["over_step"].value == pytest.approx(1.2, rel=0.02)
    assert "wrong: token 1" in entry["reasons"][0]
    left = [row(flax_twin.STEP, process=1, block=0, complete_ns=[1] * 5)]
    whole = [r.model_copy(update=dict(block=0, process=2)) for r in rows(("big",), processes=1)]
    assert flax_twin.table(left + whole)[-1]["complete_us"].n == 4


def cost_of_a_call(**changes):
    counts = dict(processes=1, flax_rounds=2, flax_calls=4, ways=flax_twin.WAYS)
    return flax_twin.CostOfACall(**dict(model=TINY, seed=0, flax_sizes=[]) | counts | changes)


@pytest.mark.parametrize(
    ("words", "changes"),
    [
        ("processes is 0", dict(processes=0)),
        ("rounds is 0", dict(flax_rounds=0)),
        ("calls is 0", dict(flax_calls=0)),
        ("9000 calls exceed the context of 8192", dict(flax_calls=9000)),
        ("No such way of calling: 'torch'", dict(ways=["torch"])),
        ("No such size of model: '3 layers'. Did you mean .*'2 layers'", dict(flax_sizes=["3 layers"])),
    ],
)
def test_mistakes_are_named_before_anything_runs(words, changes):
    with pytest.raises(UserError, match=words):
        cost_of_a_call(**changes).record()


@pytest.mark.slow
def test_really_measured(tmp_path, monkeypatch):
    """Every way in one process: silent under the guard, equal tokens, and the ways that are jitted one dispatch a
    call."""
    monkeypatch.setattr("llama_jax.plumbing.paths.tempfile.gettempdir", lambda: str(tmp_path))
    made, meta = cost_of_a_call().obtain("measure", "77-calls", tmp_path)
    assert all(r.valid for r in made), [r.reason for r in made]
    assert sorted((r.subject, r.round) for r in made) == sorted((way, n) for way in flax_twin.WAYS for n in range(2))
    assert sorted(r.order for r in made) == list(range(len(made)))
    assert len({r.tokens_sha256 for r in made}) == 1
    for r in made:
        assert len(r.dispatch_ns) == len(r.complete_ns) == 4
        assert all(0 < back <= done for back, done in zip(r.dispatch_ns, r.complete_ns, strict=True))
        assert (r.dispatches == 1) == ("+" in r.subject or r.subject == flax_twin.STEP)
        assert (r.lowered, r.compiled) == (0, 0)
        assert (r.output_bytes is None) == (r.dispatches > 1)
        assert (r.output_bytes or 0) < 4 * r.parameters or r.subject == flax_twin.NNX_JITTED
    assert meta["processes"][0]["watch"]
    assert flax_twin.table(made)
    assert cost_of_a_call().obtain("recorded", "77-calls", tmp_path)[0] == made
