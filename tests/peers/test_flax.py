"""The Flax twins: the same logits and tokens as ours in every family, and where they compile."""

import numpy as np
import pytest

from llama_jax import checkpoint, generate
from llama_jax.plumbing.errors import UserError
from llama_lab import peers
from llama_lab.bench import Guard, memory, protocol
from llama_lab.bench.workload import Workload
from llama_lab.peers import flax
from tests.conftest import among_the_fast, relative_error
from tests.peers.conftest import answer, small, tokens, trial

pytestmark = pytest.mark.usefixtures("compiling")
WORK = Workload(((5, 9, 33, 60, 2), (8, 3)), new_tokens=6, length=8, batch=1)
OTHER = Workload(((5, 9, 33),), new_tokens=3, length=5)
JITTED = [name for name in flax.WAYS if "+" in name]
UNJITTED = [name for name in flax.WAYS if "+" not in name]


@pytest.mark.parametrize("family", among_the_fast(("gpt2",), peers.TWINS))
def test_greedy_tokens_and_logits_equal_ours(family):
    loaded = small(family, num_hidden_layers=2)
    reference, ids = protocol.Reference(loaded, WORK), np.random.default_rng(0).integers(3, 97, WORK.length)
    ours = generate.logits(generate.build(loaded, "step"), ids)
    for name in flax.WAYS:
        if name in UNJITTED:  # the ways of one module differ in jit alone
            twin = flax.twin(loaded, name)
            theirs = twin.logits(ids[None], twin.start(np.zeros(1, np.int32), WORK.slots))[0]
            assert relative_error(theirs, ours) <= 1e-4
            if family != "llama":  # their un-jitted answers would compile as many operations again and say no more
                continue
        record, made = trial(peers.subject(loaded, name), WORK)
        assert "wrong" not in reference.judge(record, made).reason
        assert len(made) == len(record.token_times_ns) == WORK.new_tokens
        assert np.array_equal(made[:, 0], reference.tokens(0))


def test_rows_of_a_batch_and_long_prompts_equal_ours(llama, monkeypatch):
    monkeypatch.setattr(generate, "PIECE", 8)  # prompts run in pieces
    work = Workload((tuple(range(3, 20)),), new_tokens=4, length=24, batch=2)
    expected = generate.answer(generate.build(llama, "step"), [work.prompts[0]], 4, length=24)[0].token_ids
    for name in ("flax-linen+jit", "flax-nnx+split"):
        assert answer(llama, name, work).T.tolist() == [list(expected)] * 2


@pytest.mark.parametrize("name", JITTED)
def test_a_jitted_twin_compiles_once_a_shape_and_is_silent_then(llama, name):
    subject = peers.subject(llama, name)
    with Guard() as cold:
        first = tokens(subject.run, WORK.prompts[0], WORK)
    lowered = [e.name for e in cold.events if e.kind == "lower"]
    assert lowered.count(flax.PROGRAMS[name]) == 2  # the prompt's shape, the token's
    with Guard() as warm:
        again = tokens(subject.run, WORK.prompts[0], WORK)
        tokens(subject.run, WORK.prompts[1], WORK)  # another prompt of another length, padded to the same
        assert protocol.warm_up(subject, WORK)
    assert not warm.fired
    assert not warm.count("trace")
    assert np.array_equal(first, again)


def test_an_unjitted_twin_compiles_single_operations_only():
    loaded = small(vocab_size=89)  # a shape that no other test has made operations for
    for name in UNJITTED:
        subject = peers.subject(loaded, name)
        with Guard() as cold:
            tokens(subject.run, OTHER.prompts[0], OTHER)
        assert cold.compilations > 30 or name != UNJITTED[0]  # its operations serve the next one as well
        assert not {*flax.PROGRAMS.values(), "run", "apply", "Transformer"} & set(cold.names)
        with Guard() as warm:
            tokens(subject.run, OTHER.prompts[0], OTHER)
        assert not warm.fired


def test_operations_handed_over_by_a_call(llama):
    counts = {}
    for name in flax.WAYS:
        twin = flax.twin(llama, name)
        counts[name] = flax.dispatches(twin, np.zeros((1, 1), np.int32), twin.start(np.zeros(1, np.int32), 16))
    assert {name: n for name, n in counts.items() if name in JITTED} == dict.fromkeys(JITTED, 1)
    assert min(counts[name] for name in UNJITTED) > 100


def test_nnx_jit_hands_all_weights_back_and_the_split_module_does_not(llama):
    for name in JITTED:
        subject = peers.subject(llama, name)  # a program lives as long as its function
        tokens(subject.run, OTHER.prompts[0], OTHER)
        outputs = [p.output_bytes for p in memory.programs() if p.name == flax.PROGRAMS[name]]
        assert (max(outputs) > 4 * llama.config.num_parameters) == (name == "flax-nnx+jit")


def test_weights_are_the_checkpoints_own(llama):
    changed = checkpoint.to_flax(llama.config, llama.params)
    table = changed["model"]["embed_tokens"]["embedding"]
    changed["model"]["embed_tokens"]["embedding"] = table.at[:, 0].add(1.0)
    for module, way in (("flax_linen", "applied"), ("flax_nnx", "called")):
        make = getattr(__import__(f"llama_lab.peers.{module}", fromlist=[way]), way)
        twins = [
            make(llama.config, tree, np.float32) for tree in (checkpoint.to_flax(llama.config, llama.params), changed)
        ]
        ids = np.array([[5, 6, 7]])
        before, after = (t.logits(ids, t.start(np.zeros(1, np.int32), 4)) for t in twins)
        assert relative_error(after, before) > 1e-3


def test_a_text_beyond_the_context_is_named(llama):
    with pytest.raises(UserError, match="context of 256"):
        answer(llama, "flax-linen+jit", Workload(((1,) * 250,), 20, 256))
