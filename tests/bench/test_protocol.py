"""The protocol on a small model: pairing, order, gate and guard, each with a subject that breaks it."""

import functools
import itertools
import json
import multiprocessing
import os
from dataclasses import asdict, replace
from unittest.mock import Mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from llama_jax import checkpoint, config, generate
from llama_jax.placement import parse
from llama_jax.plumbing import paths
from llama_jax.plumbing.errors import UserError
from llama_jax.sampling import Sampler
from llama_lab.bench import AGAIN, available, gate, guard, harness, protocol, roofline, summary
from llama_lab.bench.arithmetic import Arithmetic
from llama_lab.bench.workload import Workload
from tests.bench.test_record import trial as record_trial
from tests.conftest import build
from tests.kernels.models import small

WORK = Workload(((1, 2, 3), (4, 5)), new_tokens=6, length=4)
SAMPLED = replace(WORK, sampler=Sampler(temperature=0.8, top_k=20, top_p=0.95), seed=5, batch=2)
WHERE = dict(run="r", block=0, order=0, process=0, phase="warm")


@pytest.fixture(autouse=True)
def _quick_probe(monkeypatch, own_lock):
    monkeypatch.setattr(roofline, "PROBE_BYTES", 1 << 22)


@pytest.fixture(scope="module")
def made(loaded):
    """Subjects by their placements' names, each built once."""
    return functools.cache(lambda name: protocol.subject(loaded, parse(name)))


@pytest.fixture(scope="module")
def reference(loaded):
    return protocol.Reference(loaded, WORK)


@pytest.fixture
def measured(made, reference):
    """Blocks of `step` and these subjects."""

    def measured(*subjects, blocks=3, baseline="step"):
        return protocol.measure([made("step"), *subjects], WORK, blocks, reference, baseline)

    return measured


@pytest.fixture
def altered(made):
    """The `loop` placement with its blocks passed through `change`."""
    good = made("loop")
    return lambda name, change: replace(good, name=name, run=lambda ids, work: map(change, good.run(ids, work)))


def test_sampled_tokens_are_equal_under_equal_seeds_and_others_are_wrong(loaded, made, reference):
    sampled = protocol.Reference(loaded, SAMPLED)
    good = made("loop")
    other_ways = (replace(WORK, batch=2), replace(SAMPLED, seed=6), replace(SAMPLED, sampler=Sampler(temperature=3.0)))
    others = [
        replace(good, name=f"other {i}", run=lambda ids, _, work=work: good.run(ids, work))
        for i, work in enumerate(other_ways)
    ]
    subjects = [made(name) for name in ("step", "split", "loop+traced")]
    trials = protocol.measure([*subjects, *others], SAMPLED, 2, sampled, "step")
    valid = [t for t in trials if t.valid]
    assert {t.subject for t in trials} - {t.subject for t in valid} == {who.name for who in others}
    assert len(valid) == 2 * (len(subjects) + 1), {t.subject: t.reason for t in trials}
    assert {t.sampling for t in trials} == {"temperature 0.8, top-k 20, top-p 0.95"}
    for prompt in (0, 1):
        assert len({t.tokens_sha256 for t in valid if t.prompt == prompt}) == 1
    rows = [sampled.tokens(0, sampler=SAMPLED.sampler, seed=seed).tolist() for seed in (5, 6)]
    assert rows[0] != rows[1]  # a row draws with a seed of its own
    assert rows[0] != reference.tokens(0).tolist()
    assert Workload.from_json(json.loads(json.dumps(asdict(SAMPLED)))) == SAMPLED


def test_every_block_holds_every_subject_once_and_the_baseline_twice(loaded, made, measured):
    trials = measured(made("loop"), blocks=8)
    orders = []
    for block in range(8):
        here = sorted((t for t in trials if t.block == block), key=lambda t: t.order)
        assert {t.subject for t in here} == {"step", "step" + AGAIN, "loop"}
        assert {t.prompt for t in here} == {block % 2}
        orders.append(tuple(t.subject for t in here))
    assert len(set(orders)) > 1  # the order is drawn anew
    assert all(t.valid and t.new_tokens == 6 and t.bandwidth_gbps > 0 for t in trials)
    assert all(np.all(np.diff(t.token_times_ns) >= 0) and t.tokenize_ns <= t.token_times_ns[0] for t in trials)
    assert len({t.tokens_sha256 for t in trials if t.prompt == 0}) == 1
    assert {t.weights_bytes for t in trials} == {sum(w.nbytes for w in jax.tree.leaves(loaded.params))}
    assert {t.kv_bytes for t in trials} == {WORK.slots * loaded.config.kv_bytes_per_position(4)}
    part = measured(made("loop"), blocks=[3])  # and is the seed's and the block's
    assert [(t.subject, t.prompt) for t in part] == [(t.subject, t.prompt) for t in trials if t.block == 3]
    with pytest.raises(UserError, match="'loop' is not among"):
        measured(baseline="loop")


def test_a_fault_voids_its_own_trials_and_no_other(altered, measured):
    shapes, runs, kept = iter(range(1000, 2000)), itertools.count(1), []

    def compile_sometimes(block):
        if next(runs) % 4 == 0:
            jnp.cos(jnp.asarray(np.ones(next(shapes), np.float32)))
        return block

    def hoard(block):
        kept.append(jnp.asarray(block))
        return block

    broken = Mock(side_effect=RuntimeError("out of\nluck"))
    faults = dict(liar=lambda block: (block + 1) % 97, leaky=compile_sometimes, broken=broken, hoarder=hoard)
    trials = measured(*(altered(name, fault) for name, fault in faults.items()), blocks=6)
    of = summary.grouped(trials, "subject")
    assert all(t.valid for t in of["step"] + of["step" + AGAIN] + of["hoarder"])
    assert all("wrong: token 0" in t.reason and not t.valid for t in of["liar"])
    void = [t for t in of["leaky"] if not t.valid]
    assert 0 < len(void) < 6
    assert all("compiled in the timed region" in t.reason and t.lowered for t in void)
    assert {t.reason for t in of["broken"]} == {"failed: RuntimeError: out of luck"}
    assert not any(t.valid or t.token_times_ns for t in of["broken"])
    rows = {row["name"]: row for row in summary.table(trials, "step")}
    assert [rows[name]["tokens_equal"] for name in ("liar", "leaky", "broken")] == [False, True, False]
    assert (rows["liar"]["valid_trials"], rows["liar"]["voided_trials"], rows["broken"]["ttft_ms"]) == (0, 6, None)
    assert np.isnan(rows["liar"]["tokens_per_second"]["median"])
    assert rows["hoarder"]["leaked_buffers"] >= 2
    assert rows["step"]["leaked_buffers"] == 0


def test_warm_up_ends_when_the_guard_is_silent_three_times(altered):
    runs, sizes = [], iter(range(3000, 4000))

    def compile_at_first(block, until):
        runs.append(1)
        if len(runs) <= until:
            jnp.sin(jnp.asarray(np.ones(next(sizes), np.float32)))
        return block

    jax.clear_caches()
    first = altered("first", lambda b: compile_at_first(b, until=4))
    assert protocol.warm_up(first, WORK)
    calls = len(runs)
    runs.clear()
    assert protocol.warm_up(altered("none", lambda b: compile_at_first(b, until=0)), WORK)
    assert len(runs) < calls
    runs.clear()
    assert not protocol.warm_up(altered("always", lambda b: compile_at_first(b, until=10**6)), WORK)


def test_warm_up_hears_one_whole_answer_and_then_short_ones(made):
    for backend, expected in (("jax", [12, 8, 8]), ("peer", [12, 12, 12])):
        runs = []

        def run(ids, work, runs=runs):
            runs.append(0)
            for _ in range(work.new_tokens):
                runs[-1] += 1
                yield np.zeros((1, 1), np.int32)

        assert protocol.warm_up(replace(made("step"), backend=backend, run=run), replace(WORK, new_tokens=12))
        assert runs == expected


def test_every_row_of_a_batch_is_judged(loaded, made):
    reference = protocol.Reference(loaded, WORK)
    record, tokens = protocol.trial(made("loop"), replace(WORK, batch=2), 0, **WHERE)
    tokens = tokens.copy()
    assert reference.judge(record, tokens).reason == record.reason
    reference.logits = lambda prompt, row, *kind: (row == tokens[:, 1])[:, None] * np.eye(97)[row]
    tokens[5, 0] += 1  # a near-tie in the first row …
    assert "near-tie" in reference.judge(record, tokens).reason
    tokens[0, 1] += 1  # … does not excuse the second
    judged = reference.judge(record, tokens)
    assert not judged.valid
    assert "wrong: token 0" in judged.reason


@pytest.mark.parametrize(
    ("name", "arithmetic", "most"),
    [("loop+bf16", ("bfloat16", "none"), 0.6), ("chunk8+int8", ("float32", "int8"), 0.5),
     ("loop+q4_1+kvf16", ("float32", "q4_1+kv-f16"), 0.5)],
)  # fmt: skip
def test_subjects_are_gated_by_a_reference_of_their_own_arithmetic(loaded, made, measured, name, arithmetic, most):
    who = made(name)
    trials = measured(who)
    mine = [t for t in trials if t.subject == name]
    assert {(t.dtype, t.quantisation) for t in mine} == {arithmetic}
    assert all(t.valid for t in mine), mine[0].reason
    params = generate.build(loaded, name).params
    assert mine[0].weights_bytes == sum(leaf.nbytes for leaf in jax.tree.leaves(params))
    assert mine[0].bytes_per_token < most * next(t for t in trials if t.subject == "step").bytes_per_token
    record, tokens = protocol.trial(who, WORK, 0, **WHERE)
    reference = protocol.Reference(loaded, WORK)
    # a tie for kernels, not where activations are not rounded
    reference.logits = lambda prompt, row, *kind: 0.02 * np.eye(97)[row - 1]
    assert not reference.judge(record, tokens + 1).valid
    assert reference.judge(record.model_copy(update=dict(quantisation="gguf-q4_1")), tokens + 1).valid == record.valid


def test_the_fused_kernels_cache_counts_in_its_own_size():
    cfg = small()
    loaded = checkpoint.Checkpoint("small", cfg, build(cfg), None, "hash", "random:small", "float32")
    gemv, fused = (protocol.subject(loaded, parse(name)) for name in ("step+q8_0+gemv", "step+q8_0+fused"))
    assert (gemv.identity["cache_bytes"], fused.identity["cache_bytes"]) == (4, 2)
    sizes = [protocol.sizes(who, WORK, 8, 4) for who in (gemv, fused)]
    assert sizes[1]["kv_bytes"] == sizes[0]["kv_bytes"] / 2
    # the table of its packed layers, and what fills up their blocks
    more = fused.identity["held_bytes"] - gemv.identity["held_bytes"]
    assert 0 < more < 128 * 4 * cfg.num_hidden_layers
    assert sizes[0]["bytes_per_token"] - sizes[1]["bytes_per_token"] + more == pytest.approx(
        10 * cfg.kv_bytes_per_position(2)
    )


def test_float_weights_are_read_in_their_own_size(loaded):
    assert protocol.weight_bytes(loaded.params, loaded.config) == (4.0, 4 * loaded.config.num_parameters)
    untied = config.tiny("llama", tie_word_embeddings=False)
    assert protocol.weight_bytes(build(untied), untied)[0] == 4.0
    learned = config.tiny("gpt2")
    assert protocol.weight_bytes(build(learned), learned) == (4.0, 4 * learned.num_parameters)


@pytest.mark.parametrize(
    "name", ["step", "step+bf16", "step+kvint8", "step+gguf", "step+int8+kvf16", "step+gguf+gemv", "step+q4_0+fused"]
)
def test_an_arithmetic_has_one_name_and_one_plain_placement(name):
    placed = parse(name)
    form = placed.weights if placed.weights not in ("loaded", "bf16") else None
    written = str(Arithmetic.of_placement(placed, form))
    again = Arithmetic.read(written).step("bfloat16" if "bf16" in name else "float32")
    assert (again.kernels, again.kv, again.jit) == (placed.kernels, placed.kv, ("step",))
    assert again.weights == ("f32" if placed.weights == "loaded" else placed.weights)
    assert (written == "none") == (name in ("step", "step+bf16"))
    assert not gate.approximate(written)
    assert gate.near_tie(written) == (gate.FLIP if placed.kernels != "none" else gate.NEAR_TIE)


def test_a_process_of_one_quantised_form_loads_no_float_weights(tmp_path, monkeypatch):
    from tests.checkpoint.test_gguf import write

    monkeypatch.setenv("LLAMA_JAX_CACHE", str(tmp_path / "cache"))
    write(tmp_path / "m.gguf", "Q4_1")
    for model, own in ((str(tmp_path / "m.gguf"), "gguf"), ("random:smollm2-135m", "q8_0")):
        cases = {"": "float32", "step": "float32", "step+bf16": "float32", "step step+int8": "float32",
                 "step+int8 loop+int8": "int8", "loop+fused": own, f"loop+fused step+gemv step+{own}": own,
                 "step+q4_0+gemv step+gemv": "float32"}  # fmt: skip
        for names, expected in cases.items():
            assert available.form(model, [parse(name) for name in names.split()]) == expected


def test_a_text_is_judged_by_the_references_own_logits(loaded, reference):
    tokens = reference.tokens(0)
    assert np.all(gate.behind(reference.logits(0, tokens), tokens) <= gate.NEAR_TIE)  # its own text
    other = tokens.copy()
    other[2] = (other[2] + 1) % loaded.config.vocab_size
    found = reference.logits(0, other)
    expected = generate.logits(reference.engine("float32"), [*WORK.prompts[0], *other[:3].tolist()])[-1]
    np.testing.assert_allclose(found[3], expected, atol=1e-4)  # given its own text, not the reference's
    other[1] = -1  # no token: far from the best, and what follows is still said
    assert gate.behind(reference.logits(0, other), other)[1] == np.inf


def hold(folder, ready, release):
    paths.tempfile.gettempdir = lambda: folder
    with protocol.alone():
        ready.set()
        release.wait(60)


def test_two_measurements_never_run_at_once(tmp_path):
    context = multiprocessing.get_context("spawn")
    ready, release = context.Event(), context.Event()
    other = context.Process(target=hold, args=(str(tmp_path), ready, release))
    other.start()
    try:
        assert ready.wait(60)
        with pytest.raises(UserError, match=f"process {other.pid}"), protocol.alone():
            pass
    finally:
        release.set()
        other.join()
    with protocol.alone():
        pass


def test_a_lock_that_cannot_be_taken_is_one_line(tmp_path):
    with protocol.alone():
        (path,) = paths.of_this_machine().iterdir()
    path.write_bytes(b"\xff" * 100)
    with protocol.alone():
        assert path.read_text() == str(os.getpid())
    path.unlink()
    path.mkdir()
    with pytest.raises(UserError, match=f"Cannot write '{path}': Is a directory"), protocol.alone():
        pass


def test_the_cause_is_attached_on_request(altered):
    sizes = iter(range(5000, 6000))
    program = jax.jit(lambda x: x * 2)
    program(np.ones(4999, np.float32))

    def compile_always(block):
        program(np.ones(next(sizes), np.float32))
        return block

    leaky = altered("leaky", compile_always)
    record, _ = protocol.trial(leaky, WORK, 0, explain=True, **WHERE)
    assert not record.valid
    assert "different input types" in record.cause
    assert protocol.trial(leaky, WORK, 0, **WHERE)[0].cause == ""


def test_a_torch_subject_may_compile_while_it_warms_up_and_not_in_a_trial(made, measured):
    """The stance forbids even the first compilation, so warm-up must run without it."""
    torch = pytest.importorskip("torch")
    torch._dynamo.reset()
    program = torch.compile(lambda x: x + 1, backend="eager", dynamic=False)
    good, sizes = made("loop"), [2]

    def run(ids, work):
        program(torch.ones(sizes[-1]))
        yield from good.run(ids, work)

    who = replace(good, name="compiled", run=run, guard=guard.TorchGuard)
    assert [t.valid for t in measured(who) if t.subject == "compiled"] == [True] * 3
    sizes.append(3)
    void, tokens = protocol.trial(who, WORK, 0, **WHERE)
    assert not void.valid
    assert "compiled in the timed region" in void.reason
    assert "expected 2, actual 3" in void.cause
    assert (void.token_times_ns, len(tokens)) == ([], 0)


def test_pairs_use_both_runs_of_the_baseline_and_only_within_a_process():
    rates = {"step": 10, "step" + AGAIN: 40, "fast": 100}
    trials = [
        record_trial(name, block, (10, 10 + 1000 / rate), process=process)
        for process, block in ((1, 0), (1, 1), (2, 2), (2, 3))
        for name, rate in rates.items()
    ]
    found = summary.paired_ratio(trials, "fast", "step")
    assert found.value == pytest.approx(100 / 20)  # over the geometric mean of 10 and 40
    assert (found.n, found.clusters) == (4, 2)
    assert summary.paired_ratio(trials, "step" + AGAIN, "step").value == pytest.approx(4)
    assert found.verdict == "faster"
    assert replace(found, value=1.2).verdict == "undecided"  # two equal things differ more than that
    elsewhere = [t.model_copy(update=dict(process=9)) if t.subject == "fast" and t.block == 0 else t for t in trials]
    assert summary.paired_ratio(elsewhere, "fast", "step").n == 3


def test_the_harness_costs_little_and_says_how_much(loaded):
    cost = harness.cost(loaded, WORK, 3)
    assert cost["n"] == 3
    assert len(cost["harness_s"]) == len(cost["bare_s"]) == 3
    assert 0 < cost["own_us_per_token"] < 1e5
    assert cost["share_at_60"] == pytest.approx(cost["own_us_per_token"] * 60 / 1e6)
