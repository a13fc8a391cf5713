"""Costs of passes are measured once, kept, and change nothing but how many drafts a pass has."""

from dataclasses import replace

import numpy as np
import pytest

from llama_jax import UserError, costs, generate
from llama_jax.costs import Costs
from llama_jax.placement import parse
from llama_jax.sampling import Sampler
from tests.conftest import among_the_fast

pytestmark = pytest.mark.usefixtures("quickly")
PROMPT = [5, 9, 33, 60, 2, 7] * 4


@pytest.fixture
def measuring(tmp_path, monkeypatch):
    """The calls of `measured` so far, with an empty cache of the user's."""
    monkeypatch.setenv("LLAMA_JAX_CACHE", str(tmp_path))
    calls, measured = [], costs.measured
    monkeypatch.setattr(costs, "measured", lambda *given: calls.append(given) or measured(*given))
    monkeypatch.setattr(costs, "QUIET", float("inf"))
    monkeypatch.setattr(costs, "TIME", 0)
    return calls


def test_they_are_measured_once_and_kept(tiny, measuring, tmp_path):
    plain = generate.answer(generate.bind(*tiny, parse("loop")), [PROMPT], 30)

    def answered(**options):
        engine = generate.bind(*tiny, parse("loop+lookup"))
        assert generate.answer(engine, [PROMPT], 30, **options) == generate.answer(engine, [PROMPT], 30, **options)
        return engine

    engine = answered()
    assert len(measuring) == 1
    (values,) = engine.costs.known.values()
    assert values[0] == 1
    assert (np.diff(values) >= 0).all()
    assert generate.answer(answered(), [PROMPT], 30) == plain
    assert len(measuring) == 1
    (path,) = (tmp_path / costs.FOLDER).glob("*.json")
    path.write_bytes(path.read_bytes()[:-3] + b"9.9")
    answered()
    assert len(measuring) == 2
    costs.entries.write(path, b"[1, 2, 3]")  # whole, but none that this placement has
    answered()
    assert len(measuring) == 3
    answered(sampler=Sampler(0.5))  # drawing costs something too
    assert len(measuring) == 4


def test_what_was_measured_beside_other_work_is_not_kept(tiny, measuring, monkeypatch, tmp_path):
    monkeypatch.setattr(costs, "QUIET", 0)
    engine = generate.bind(*tiny, parse("loop+lookup"))
    for _ in range(2):
        generate.answer(engine, [PROMPT], 30)
    assert len(measuring) == 1
    assert not list((tmp_path / costs.FOLDER).glob("*.json"))


NAMES = ["loop+fused+lookup", "loop+lookup", "step+kvint8+lookup", "chunk8+callback+lookup", "loop+callback+lookup2"]


@pytest.mark.parametrize("name", among_the_fast(("step+kvint8+lookup", "loop+callback+lookup2"), NAMES))
def test_the_answer_that_they_are_measured_in_is_the_same(tiny, measuring, name):
    """Neither what was written meanwhile nor what was drawn or sent is left of it."""
    engine = generate.bind(*tiny, parse(name)) if "fused" not in name else None
    if engine is None:
        from tests.kernels.models import random_model, small

        engine = generate.bind(small(), random_model(small()), parse(name))
    depths = engine.placement.depths
    options = dict(sampler=Sampler(0.8, top_k=20, repetition_penalty=1.1), seeds=[4])
    first = np.concatenate(list(generate.stream(engine, [PROMPT], 40, **options)))
    assert len(measuring) == 1
    told = replace(engine, costs=Costs([1] * len(depths)))
    assert first.tolist() == np.concatenate(list(generate.stream(told, [PROMPT], 40, **options))).tolist()
    assert len(measuring) == 1


def test_a_short_answer_measures_nothing(tiny, measuring):
    engine = generate.bind(*tiny, parse("loop+lookup"))
    assert len(generate.answer(engine, [PROMPT[:16]], 5, length=16, slots=20)[0].token_ids) == 5
    assert not measuring


@pytest.mark.parametrize(
    ("given", "said"),
    [((1, 2, 3), "3 costs are given; 'loop.lookup' has passes of 0, 7 drafts, so it needs 2"),
     ((1, 0), "A pass's cost is 0; it must be a number from 0.001"),
     ((1, float("nan")), "A pass's cost is nan"),
     ("12", "costs is '12'; it must be a list of numbers")],
)  # fmt: skip
def test_wrong_ones_are_refused(tiny, given, said):
    with pytest.raises(UserError, match=said):
        generate.answer(replace(generate.bind(*tiny, parse("loop+lookup")), costs=Costs(given)), [PROMPT], 9)
