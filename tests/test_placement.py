from dataclasses import fields

import numpy as np
import pytest

from llama_jax.placement import DRAFTS, IN_FLIGHT, LADDER, MODEL_DRAFTS, TREE, Placement, ancestors, parse
from llama_jax.plumbing.errors import UserError


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
        (dict(draft="x", jit="step"), "proposes no drafts; say how many"),
        (dict(draft="", drafts=4, jit="step"), "draft is ''; it must be the name of a model"),
        (dict(draft="x", drafts=4, jit=("transform", "sample")), "put 'step' or 'decode' in jit"),
        (dict(draft="x", drafts=4, jit="step", cache="growing"), "leave cache='growing' out"),
        (dict(drafts=16, jit="step"), "drafts is 16; .* at most 15"),
        (dict(drafts=-1, jit="step"), "drafts is -1; .* 0 or more"),
        (dict(jit="transform", drafts=2), "drafts are proposed and verified in one program"),
        (dict(jit="decode", tokens_per_call=10**18), "tokens_per_call is 1000000000000000000; .* at most 999999"),
        (dict(jit="decode", tokens_per_call=True), "tokens_per_call is True"),
        (dict(jit="decode", host="async", in_flight=10**9), "in_flight is 1000000000; .* at most 9999"),
        (dict(jit=("decode", "norm", "norm")), "names a function twice"),
        (dict(jit=["norm"] * 10**7), "names a function twice"),
        (dict(jit="decode", donate=1), "donate=1 is not one of False, True"),
    ],
)
def test_contradictions_and_what_is_out_of_bounds_say_so(changes, words):
    with pytest.raises(UserError, match=words):
        Placement("mine", **changes)


@pytest.mark.parametrize("name", ["", "x" * 201, "step" + "+scan" * 1_000, None])
@pytest.mark.parametrize("made", [Placement, parse])
def test_a_name_has_1_to_200_characters(made, name):
    with pytest.raises(UserError, match="a name of 1 to 200 characters") as caught:
        made(name)
    assert len(str(caught.value)) < 300
    assert Placement("x" * 200).name == "x" * 200


def test_one_line_makes_ones_own():
    assert Placement("mine", jit=("attend", "head")).outermost == {"attend", "head"}
    assert Placement("mine", jit="step").jit == ("step",)


def test_outermost_is_what_no_other_listed_name_contains():
    assert Placement("x", jit=("norm", "layer", "sample")).outermost == {"layer", "sample"}
    assert ancestors("rope") == ["attend", "layer", "transform", "step", "decode"]
    assert {name for name in TREE if not ancestors(name)} == {"decode"}


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("chunk16+scan+donate+traced", dict(tokens_per_call=16, layers="scan", donate=True, sampling="traced")),
        ("step+gguf", dict(weights="gguf", kernels="none")),
        ("loop+int8", dict(weights="int8", kernels="none")),
        ("chunk8+gemv", dict(weights="loaded", kernels="gemv")),
        ("loop+fused", dict(weights="loaded", kernels="fused")),
        ("step+fused+q4_0", dict(weights="q4_0", kernels="fused")),
        ("eager+q4_1+gemv", dict(weights="q4_1", kernels="gemv")),
        ("step+kvf16", dict(kv="f16")),
        ("jit:attend.head+donate", dict(jit=("attend", "head"), donate=True)),
        ("jit:layer", dict(jit=("layer",))),  # and not the ladder's
        ("jit:step+scan", dict(jit=("step",), layers="scan")),
        ("step+async", dict(host="async", in_flight=IN_FLIGHT)),
        ("chunk8+queue4", dict(host="queue", in_flight=4)),
        ("loop+callback", dict(host="callback")),
        ("loop+fused+lookup", dict(drafts=DRAFTS)),
        ("chunk8+lookup3", dict(drafts=3, in_flight=IN_FLIGHT)),
        ("loop", dict(drafts=0, draft=None)),
        ("loop+fused+draft:little", dict(kernels="fused", drafts=MODEL_DRAFTS, draft="little")),
        ("step+draft3:/a+b/c:d+fused.gguf", dict(kernels="none", drafts=3, draft="/a+b/c:d+fused.gguf")),
        ("chunk8+draft:random:llama-3.2-1b:7", dict(drafts=MODEL_DRAFTS, draft="random:llama-3.2-1b:7")),
        ("loop+draft2:x+draft:y", dict(drafts=2, draft="x+draft:y")),
    ],
)
def test_a_name_carries_all_switches(name, fields):
    made = parse(name)
    assert {field: getattr(made, field) for field in fields} == fields
    assert made.name == name


@pytest.mark.parametrize(
    ("name", "depths"),
    [
        ("loop", (0,)),
        ("loop+lookup", (0, DRAFTS)),
        ("loop+fused+lookup5", (0, 1, 3, 5)),
        ("loop+draft3:x", (0, 3)),
        ("loop+fused+draft4:x", (0, 1, 2, 3, 4)),
        ("loop+fused+draft1:x", (0, 1)),
    ],
)
def test_how_many_drafts_a_pass_may_have(name, depths):
    assert parse(name).depths == depths


def test_names_of_the_ladder_are_its_own_placements():
    assert all(parse(name) is made for name, made in LADDER.items())


@pytest.mark.parametrize(
    ("name", "words"),
    [
        *(
            (name, "contradicts a modifier before it")
            for name in (
                "step+gguf+q8_0",
                "step+gemv+fused",
                "jit:attend.head+aot+persistent",
                "step+lookup3+lookup4",
                "step+async+queue",
                "chunk8+callback+async4",
                "step+growing+nocache",
                "step+async4+async8",
                "loop+lookup+draft:x",
                "loop+lookup4+draft4:x",
            )
        ),
        ("jit:attention.head", "'attend'"),
        ("jit:", "unknown function ''"),
        ("jit:attend+donat", "donate"),
        ("attend", "'jit:attend'"),
        ("jit:attend+scan", "layers='scan'"),
        ("loop+lookup16", "drafts is 16"),
        ("loop+draft16:x", "drafts is 16"),
        ("loop+draft", "needs a model; write \\+draft:NAME"),
        ("loop+draft4+fused", "needs a model; write \\+draft:NAME"),
        ("loop+draft:", "must be the name of a model"),
        ("eager+draft:x", "put 'step' or 'decode' in jit"),
        ("loop+lookup+nocache", "leave cache='none' out"),
        ("stpe", "step"),
        ("step+scann", "scan"),
        ("chunk0", "chunk8"),
        ("step+async0", "async"),
        ("step+lookup0", "lookup"),
        ("loop+growing", "growing"),
    ],
)
def test_a_name_that_is_none_or_contradicts_itself_gets_a_hint(name, words):
    with pytest.raises(UserError, match=words):
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
