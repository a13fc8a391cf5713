from dataclasses import fields

import numpy as np
import pytest

from llama_jax.placement import DRAFTS, IN_FLIGHT, LADDER, TREE, Placement, ancestors, parse
from llama_jax.plumbing.errors import UserError


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
        (dict(jit=("decode",), until="never"), "until='never' is not one of None, stop"),
        (dict(jit=("decode",), until="stop", tokens_per_call=8), "one call"),
        (dict(jit=("layer",), layers="scan"), "scan"),
        (dict(compile="aot"), "nothing to compile"),
        (dict(jit=("decode",), until="stop", host="async"), "overlap"),
        (dict(jit=("decode",), until="stop", host="queue"), "overlap"),
        (dict(jit=("step",), host="callback"), "host='callback' needs 'decode' in jit"),
        (dict(jit=("decode",), host="callback", compile="persistent"), "keeps no such program on disk"),
        (dict(jit=("step",), host="async", in_flight=0), "in_flight is 0"),
        (dict(jit=("step",), in_flight=4), "in_flight needs host='async' or host='queue'"),
        (dict(jit=("step",), host="threads"), "threads"),
        (dict(cache="elastic"), "elastic"),
        (dict(weights="f8"), "f8"),
        (dict(kernels="cuda"), "cuda"),
        (dict(kernels="gemv", weights="int8"), "not by int8 weights"),
        (dict(kernels="gemv", weights="bf16"), "not by bf16 weights"),
        (dict(kernels="fused", jit="step", weights="f32"), "not by f32 weights"),
        (dict(kernels="fused"), "put 'step' or 'decode' in jit"),
        (dict(kernels="fused", jit=("transform", "sample")), "put 'step' or 'decode' in jit"),
        (dict(kernels="fused", jit="step", cache="growing"), "leave cache='growing' out"),
        (dict(kernels="fused", jit="step", cache="none"), "leave cache='none' out"),
        (dict(kernels="fused", jit="step", layers="scan"), "leave layers='scan' out"),
        (dict(kernels="fused", jit="step", kv="int8"), "leave kv='int8' out"),
        (dict(drafts=4), "put 'step' or 'decode' in jit"),
        (dict(drafts=4, jit=("transform", "sample")), "put 'step' or 'decode' in jit"),
        (dict(drafts=4, jit="step", cache="growing"), "leave cache='growing' out"),
        (dict(drafts=4, jit="step", cache="none"), "leave cache='none' out"),
        (dict(drafts=4, jit="step", host="async"), "nobody knows how many"),
        (dict(drafts=4, jit="decode", host="queue"), "nobody knows how many"),
        (dict(drafts=16, jit="step"), "drafts is 16; .* at most 15"),
        (dict(drafts=-1, jit="step"), "drafts is -1; .* 0 or more"),
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
    assert (p.tokens_per_call, p.layers, p.donate, p.sampling, p.name) == (
        16,
        "scan",
        True,
        "traced",
        "chunk16+scan+donate+traced",
    )
    assert parse("step+donate") is LADDER["step+donate"]


def test_names_carry_weights_and_kernels():
    for name, (weights, kernels) in {
        "step+gguf": ("gguf", "none"),
        "loop+int8": ("int8", "none"),
        "chunk8+gemv": ("loaded", "gemv"),
        "loop+fused": ("loaded", "fused"),
        "step+fused+q4_0": ("q4_0", "fused"),
        "eager+q4_1+gemv": ("q4_1", "gemv"),
    }.items():
        assert (parse(name).weights, parse(name).kernels) == (weights, kernels)
    assert parse("step+kvf16").kv == "f16"
    for name in ("step+gguf+q8_0", "step+gemv+fused"):
        with pytest.raises(UserError, match="contradicts a modifier before it"):
            parse(name)


def test_a_name_makes_ones_own():
    p = parse("jit:attend.head+donate")
    assert (p.name, p.jit, p.donate) == ("jit:attend.head+donate", ("attend", "head"), True)
    assert parse("jit:layer").jit == ("layer",)  # and not the ladder's
    assert (parse("jit:step").jit, parse("jit:step+scan").layers) == (("step",), "scan")
    mistakes = {
        "jit:attention.head": "'attend'",
        "jit:": "unknown function ''",
        "jit:attend+donat": "donate",
        "attend": "'jit:attend'",
        "jit:attend+scan": "layers='scan'",
        "jit:attend.head+aot+persistent": "contradicts",
    }
    for name, hint in mistakes.items():
        with pytest.raises(UserError, match=hint):
            parse(name)


def test_names_carry_the_number_in_flight():
    assert (parse("step+async").host, parse("step+async").in_flight) == ("async", 2)
    assert (parse("chunk8+queue4").host, parse("chunk8+queue4").in_flight) == ("queue", 4)
    assert parse("loop+callback").host == "callback"


def test_names_carry_the_number_of_drafts():
    assert parse("loop+fused+lookup").drafts == DRAFTS
    assert (parse("chunk8+lookup3").drafts, parse("chunk8+lookup3").in_flight) == (3, IN_FLIGHT)
    assert parse("loop").drafts == 0
    with pytest.raises(UserError, match="drafts is 16"):
        parse("loop+lookup16")


@pytest.mark.parametrize(
    "name",
    [
        "step+lookup3+lookup4",
        "step+async+queue",
        "chunk8+callback+async4",
        "step+growing+nocache",
        "step+async4+async8",
    ],
)
def test_modifiers_that_contradict_each_other_are_refused(name):
    with pytest.raises(UserError, match="contradicts a modifier before it"):
        parse(name)


HOSTILE = (None, True, -1, 0, 2**63, 1.5, float("nan"), "", "x", "a" * 5_000, b"step", [], ["x"], [[]], {}, {"a": 1})


@pytest.mark.parametrize("field", [field.name for field in fields(Placement)])
@pytest.mark.parametrize("value", HOSTILE, ids=repr)
def test_a_field_of_another_kind_is_one_short_line(field, value):
    """Whatever a field is given: a placement that can be hashed and named, or one line."""
    try:
        made = Placement(**{"name": "mine", "jit": ("decode",), field: value})
    except UserError as error:
        assert len(str(error)) < 600  # noqa: PT017 whether it is raised is what is open
        return
    assert getattr(made, field) == (tuple(value) if field == "jit" else value)
    assert type(made.donate) is bool
    hash(made)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (dict(tokens_per_call=10**18), "tokens_per_call is 1000000000000000000; .* at most 999999"),
        (dict(tokens_per_call=True), "tokens_per_call is True"),
        (dict(host="async", in_flight=10**9), "in_flight is 1000000000; .* at most 9999"),
        (dict(jit=("decode", "norm", "norm")), "names a function twice"),
        (dict(jit=["norm"] * 10**7), "names a function twice"),
        (dict(donate=1), "donate=1 is not one of False, True"),
    ],
)
def test_counts_and_lists_are_bounded(changes, words):
    with pytest.raises(UserError, match=words):
        Placement(**{"name": "mine", "jit": ("decode",), **changes})


@pytest.mark.parametrize(
    "name",
    [*HOSTILE, "step" + "+scan" * 1_000, "jit:" + "norm." * 1_000, "chunk" + "9" * 5_000, "chunk٣", "chunk1000000"],
)
def test_a_name_that_is_none_is_one_short_line(name):
    with pytest.raises(UserError) as caught:
        parse(name)
    assert len(str(caught.value)) < 600


def test_counts_may_be_numpys_and_a_placement_is_its_own_name():
    made = Placement("mine", jit=("decode",), tokens_per_call=np.int64(8))
    assert type(made.tokens_per_call) is int
    assert parse(made) is made


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("stpe", "step"),
        ("step+scann", "scan"),
        ("chunk0", "chunk8"),
        ("step+async0", "async"),
        ("step+lookup0", "lookup"),
        ("loop+growing", "growing"),
    ],
)
def test_unknown_names_get_a_hint(name, hint):
    with pytest.raises(UserError, match=hint):
        parse(name)
