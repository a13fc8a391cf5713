"""Taps: closed ones leave no trace in a program, open ones see every point and can put another value there."""

import ast
import inspect
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from llama_jax import attention, config, ffn, kvc, layer, norm, rope, transforms
from llama_jax.attention import CallPositions
from llama_jax.placement import parse
from llama_jax.sampling import Sampler
from llama_lab.activations.spec import OF_A_LAYER
from tests.conftest import build


class Untapped(ast.NodeTransformer):
    """tap(name, value) → value, in a module's own source."""

    def __init__(self):
        self.names = []

    def visit_Call(self, node):
        self.generic_visit(node)
        if isinstance(node.func, ast.Name) and node.func.id == "tap":
            self.names.append(node.args[0].value)
            return node.args[1]
        return node


def untapped(module):
    """(the module's names with every tap taken out of its functions, names of the taps)."""
    without = Untapped()
    tree = ast.fix_missing_locations(without.visit(ast.parse(inspect.getsource(module))))
    names = dict(vars(module))
    exec(compile(tree, module.__name__, "exec"), names)
    return names, without.names


def program_texts(cfg, params):
    """The program of a prompt as it is before XLA sees it, with and without a cache."""
    ids, row = jnp.zeros((2, 5), jnp.int32), jnp.zeros(2, jnp.int32)
    programs = [transforms.assemble(cfg, parse(placement)).prefill for placement in ("step", "step+nocache")]
    return [prefill.lower(params, ids, row, row, Sampler(), 16).as_text() for prefill in programs]


@pytest.mark.parametrize("family", config.FAMILIES)
def test_closed_taps_leave_no_trace_in_a_program(monkeypatch, family):
    cfg, named = config.tiny(family), []
    params = build(cfg)
    before = program_texts(cfg, params)
    for module, name in ((attention, "attend"), (layer, "layer")):
        names, taps = untapped(module)
        monkeypatch.setattr(module, name, names[name])
        named += taps
    assert sorted(named) == sorted(OF_A_LAYER)
    assert program_texts(cfg, params) == before
    monkeypatch.undo()
    monkeypatch.setattr(transforms, "tree", partial(transforms.tree, tap=lambda name, value: -value))
    assert all(text != old for text, old in zip(program_texts(cfg, params), before, strict=True))


def run(tap):
    """One layer of a tiny Llama over 2 rows of 5 tokens: (its input, its output)."""
    cfg = config.tiny()
    positions = jnp.tile(jnp.arange(5), (2, 1))
    mask = jnp.tile(jnp.tril(jnp.ones((5, 5), bool)), (2, 1, 1))
    where = CallPositions(jnp.int32(0), *rope.angles(positions, rope.frequencies(cfg)), mask)
    x = jax.random.normal(jax.random.key(0), (2, 5, cfg.hidden_size))
    normalise = partial(norm.rms_norm, eps=cfg.norm_eps)
    parts = attention.Parts(cfg.head_dim, normalise, rope.rotate, kvc.append_none, tap=tap)
    attend = partial(attention.attend, parts=parts)
    out, _ = layer.layer(build(cfg).layers[0], x, where, None, norm=normalise, attend=attend, ffn=ffn.gated, tap=tap)
    return np.asarray(x), np.asarray(out)


def test_an_open_tap_sees_every_point_once_in_the_models_order():
    seen = []

    def look(name, value):
        seen.append((name, value.shape))
        return value

    run(look)
    stream, kv = (2, 5, 32), (2, 2, 5, 8)
    shapes = dict.fromkeys(OF_A_LAYER, stream) | dict(q=(2, 4, 5, 8), k=kv, v=kv, pattern=(2, 2, 2, 5, 5))
    assert seen == [(name, shapes[name]) for name in OF_A_LAYER]


def test_the_model_goes_on_with_what_a_tap_gives_back():
    def without(*names):
        return lambda name, value: jnp.zeros_like(value) if name in names else value

    x, usual = run(without())
    assert np.array_equal(run(without("attn_out", "mlp_out"))[1], x)  # the residual stream alone
    assert not run(without("resid_post"))[1].any()
    assert np.array_equal(run(without("v"))[1], run(without("attn_out"))[1])
    # norms and products of nothing are nothing
    assert np.array_equal(run(without("resid_pre"))[1], run(without("resid_mid"))[1])
    others = [run(without(name))[1] for name in OF_A_LAYER]
    assert all(not np.allclose(other, usual) for other in others)
