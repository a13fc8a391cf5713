"""Memory: predictions against real arrays, XLA's own figures, and a leak that is really there."""

import gc
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from llama_jax import config, generate, kvc
from llama_jax.placement import parse
from llama_lab.bench import memory, protocol
from llama_lab.bench.memory import Program
from llama_lab.bench.workload import Workload
from tests.bench.test_record import trial
from tests.conftest import build

pytestmark = pytest.mark.usefixtures("compiling")

WORK = Workload(((1, 2, 3), (4, 5)), new_tokens=4, length=4)


def total(tree):
    return sum(leaf.nbytes for leaf in jax.tree.leaves(tree))


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize(("policy", "dtype"), [("fixed", jnp.float32), ("fixed", jnp.bfloat16), ("none", jnp.float32)])
def test_what_is_predicted_is_there(tied, policy, dtype):
    cfg = config.tiny(tie_word_embeddings=tied)
    cache = kvc.create(cfg, policy, np.zeros(3, np.int32), 16, dtype)
    known = memory.predicted(cfg, 4, np.dtype(dtype).itemsize, 3, 16, policy)
    assert known == dict(weights_bytes=total(build(cfg)), kv_bytes=total(cache.entries))
    assert memory.predicted(cfg, 0.72, 2, 1, 16)["weights_bytes"] == round(0.72 * cfg.num_parameters)


def step_program(loaded, name):
    """The decode program of a placement that has answered once, its engine, and all programs alive then."""
    before = {id(e) for e in memory.executables()}
    engine = generate.build(loaded, name)
    generate.answer(engine, [[1, 2, 3]], 4, length=4, slots=16)
    own = [memory.analyse(e) for e in memory.executables() if id(e) not in before]
    return memory.decode_program(own, parse(name).outermost), engine, own


def test_a_program_is_as_large_as_what_goes_in_and_out(loaded):
    plain, engine, own = step_program(loaded, "step")
    assert {p.name for p in own} >= {"step", "prefill"}
    kv = memory.predicted(loaded.config, 4, 4, 1, 16)["kv_bytes"]
    assert plain.name == "step"
    assert 0 <= plain.argument_bytes - total(engine.params) - kv < 100  # token, length, pad, key and index
    assert 0 <= plain.output_bytes - kv < 300  # the same, and the table of outputs
    assert plain.alias_bytes == 0
    donated, *_ = step_program(loaded, "step+donate")
    assert donated.alias_bytes >= kv
    assert donated.need_bytes <= plain.need_bytes - kv + (donated.temp_bytes - plain.temp_bytes)


def test_a_dead_subject_leaves_no_program(loaded):
    _, engine, own = step_program(loaded, "step")
    alive = [p.name for p in memory.programs()].count("step")
    del engine, own
    gc.collect()
    assert [p.name for p in memory.programs()].count("step") == alive - 1


def program(name, argument=0, temp=0, alias=0):
    return Program(name, argument, 0, temp, alias, 0)


def test_the_decode_program_is_on_the_path_and_needs_most():
    known = [program("prefill", 900), program("step", 100, 50), program("step", 120, 40, alias=60),
             program("add", 10**6)]  # fmt: skip
    assert memory.decode_program(known, {"step"}) == known[1]  # 150 against 100: what is donated is not there twice
    assert memory.decode_program(known, {"step", "prefill"}) == known[1]
    assert memory.decode_program(known, parse("loop").outermost) is None
    assert memory.decode_program([], {"step"}) is None


def test_programs_that_do_not_tell_their_sizes_are_left_out(monkeypatch):
    class Silent:
        def get_compiled_memory_stats(self):
            raise jax.errors.JaxRuntimeError("UNIMPLEMENTED")

    monkeypatch.setattr(memory, "executables", lambda: [Silent()])
    assert memory.programs() == []


def run(subjects, rounds=9):
    """Interleaved trials, by subject."""
    for who in subjects:
        protocol.warm_up(who, WORK)
    trials = [
        protocol.trial(who, WORK, i % 2, run="r", block=i, order=0, process=0, phase="warm")[0]
        for i in range(rounds)
        for who in subjects
    ]
    return {who.name: [t for t in trials if t.subject == who.name] for who in subjects}


def test_a_leak_is_found_and_is_its_subjects_own(loaded):
    kept, good = [], protocol.subject(loaded, parse("step"))

    def keep(ids, work):
        kept.append(jnp.asarray(np.ones(3, np.float32)))
        yield from good.run(ids, work)

    found = run([good, replace(good, name="leaky", run=keep)])
    assert found["leaky"][0].live_buffers_after is not None
    assert memory.leak(found["leaky"]) == 6  # one a trial: the middles of the first and the last three lie six apart
    assert memory.leak(found["step"]) == 0  # though the number of arrays alive grows there too
    assert found["step"][-1].live_buffers_after > found["step"][0].live_buffers_after


def counted(*pairs, process=0):
    return [trial(process=process, live_buffers_before=before, live_buffers_after=after) for before, after in pairs]


LEAKS = [
    ([], None),
    (counted((5, 9)), None),  # too few to say
    (counted((5, 9), (9, 12)), 3),
    (counted(*[(10, 10)] * 6), 0),
    (counted(*[(10, 44)] * 6), 0),  # collected before the next: not a leak
    (counted((10, 20), (20, 21), (21, 20), (20, 20), (20, 21), (21, 20)), 0),
    (counted(*[(i, i + 2) for i in range(0, 12, 2)]), 8),
    (counted(*[(9 - i, 8 - i) for i in range(6)]), 0),
    (counted(*[(None, i) for i in range(6)]), 4),
    (counted(*[(None, None)] * 6), None),
    # each process starts at its own number
    (counted(*[(10, 10)] * 3, process=1) + counted(*[(90, 90)] * 3, process=2), 0),
    (counted(*[(10, 10)] * 3, process=1) + counted((1, 2), (2, 3), (3, 4), process=2), 2),
]


@pytest.mark.parametrize(("trials", "arrays"), LEAKS)
def test_growth_is_a_leak_and_nothing_else_is(trials, arrays):
    assert memory.leak(trials) == arrays
