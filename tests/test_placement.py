import pytest

from llama_jax.errors import UserError
from llama_jax.placement import LADDER, TREE, Placement, ancestors, parse


def test_the_ladder_is_the_eight():
    assert list(LADDER) == ["eager", "ops", "layer", "split", "step", "step+donate", "chunk8", "loop"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (dict(jit=("attention",)), "attention.*attend"),
        (dict(jit=("decode",), cache="growing"), "growing"),
        (dict(jit=("step",), cache="growing", donate=True), "growing"),
        (dict(jit=("step",), cache="none", donate=True), "no KV cache"),
        (dict(jit=("norm",), donate=True), "donate=True needs"),
        (dict(jit=("step",), tokens_per_call=4), "tokens_per_call needs"),
        (dict(jit=("decode",), tokens_per_call=0), "1 or more"),
        (dict(jit=("step",), until="stop"), "until='stop' needs"),
        (dict(jit=("decode",), until="never"), "only be 'stop'"),
        (dict(jit=("decode",), until="stop", tokens_per_call=8), "one call"),
        (dict(jit=("layer",), layers="scan"), "scan"),
        (dict(compile="aot"), "nothing to compile"),
        (dict(jit=("decode",), until="stop", host="async"), "overlap"),
        (dict(cache="elastic"), "elastic"),
        (dict(weights="f8"), "f8"),
    ],
)
def test_contradictions_say_so(changes, words):
    with pytest.raises(UserError, match=words):
        Placement("mine", **changes)


def test_one_line_makes_ones_own():
    assert Placement("mine", jit=("attend", "head")).outermost == {"attend", "head"}
    assert Placement("mine", jit="step").jit == ("step",)


def test_outermost_is_what_no_other_listed_name_contains():
    assert Placement("x", jit=("norm", "layer", "sample")).outermost == {"layer", "sample"}
    assert ancestors("rope") == ["attend", "layer", "transform", "step", "decode"]
    assert {name for name in TREE if not ancestors(name)} == {"decode"}


def test_names_carry_switches():
    p = parse("chunk16+scan+donate+traced")
    assert (p.tokens_per_call, p.layers, p.donate, p.sampling, p.name) == (16, "scan", True, "traced", "chunk16+scan+donate+traced")
    assert parse("step+donate") is LADDER["step+donate"]


@pytest.mark.parametrize(("name", "hint"), [("stpe", "step"), ("step+scann", "scan"), ("chunk0", "chunk8"), ("loop+growing", "growing")])
def test_unknown_names_get_a_hint(name, hint):
    with pytest.raises(UserError, match=hint):
        parse(name)
