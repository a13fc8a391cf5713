"""Which instruction set: by the processor's features, or as the environment says; and code that keeps to it."""

import json
import re

import llvmlite.binding as llvm
import pytest

from llama_jax.kernels import isa
from llama_jax.plumbing.errors import UserError
from tests.conftest import python

HASWELL = dict.fromkeys(isa.AVX2, True)
ZEN4 = HASWELL | dict.fromkeys(("avx512f", "avx512bw", "avx512vl", "avx512vnni"), True)
ALDER_LAKE = HASWELL | {"avxvnni": True, "avx512f": False}
SKYLAKE_X = HASWELL | dict.fromkeys(("avx512f", "avx512bw", "avx512vl"), True)
KNIGHTS_MILL = HASWELL | {"avx512f": True, "avx512vnni": False}
SANDY_BRIDGE = {"avx": True, "sse4.2": True, "avx2": False}
MASKED = HASWELL | {"bmi2": False}  # some virtual machines hide single features
ARM = {"neon": True, "dotprod": True, "fullfp16": True}


@pytest.mark.parametrize(
    ("features", "chosen"),
    [
        (ZEN4, "avx512vnni"),
        (ALDER_LAKE, "avx2vnni"),
        (SKYLAKE_X, "avx2"),
        (HASWELL, "avx2"),
        (KNIGHTS_MILL, "avx2"),
        (SANDY_BRIDGE, "portable"),
        (MASKED, "portable"),
        (ARM, "portable"),
        ({}, "portable"),
    ],
)
def test_the_best_that_the_processor_has(features, chosen):
    assert isa.target(features, "some-cpu", "").isa == chosen


def test_a_worse_one_can_be_forced_and_a_better_one_cannot():
    assert [isa.target(ZEN4, "znver4", name).isa for name in isa.NEEDS] == list(isa.NEEDS) == list(isa.DESCRIPTIONS)
    for features, name, lacks in (
        (HASWELL, "avx512vnni", "avx512vnni"),
        (HASWELL, "avx2vnni", "avxvnni"),
        (ARM, "avx2", "avx2"),
    ):
        with pytest.raises(UserError, match=f"LLAMA_JAX_ISA is '{name}', but this processor lacks {lacks}.*unset it"):
            isa.target(features, "x", name)


@pytest.mark.parametrize(
    ("wanted", "hint"), [("avx512", "avx512vnni"), ("AVX2", "Known|avx2"), ("sse", "Known"), ("none", "portable")]
)
def test_an_unknown_one_is_one_line_with_a_hint(wanted, hint):
    with pytest.raises(UserError, match=f"LLAMA_JAX_ISA is '{wanted}'; it must be one of avx512vnni, .*({hint})"):
        isa.target(ZEN4, "x", wanted)


def test_only_what_is_needed_is_given_to_the_compiler():
    """AVX2 code must run on any processor with AVX2, so nothing else of this one's is asked for; forced portable code
    runs anywhere."""
    assert isa.target(ZEN4, "znver4", "avx2") == isa.Target(
        "avx2", "haswell", ",".join(f"+{name}" for name in isa.AVX2)
    )
    assert isa.target(ZEN4, "znver4", "portable") == isa.Target("portable", "generic", "")
    assert "+avx512vnni" in isa.target(ZEN4, "znver4", "").features
    assert isa.target(ALDER_LAKE, "alderlake", "").features.startswith("+avxvnni,")
    assert isa.target(ARM, "neoverse-n1", "") == isa.Target("portable", "neoverse-n1", "+dotprod,+fullfp16,+neon")


# The code itself ------------------------------------------------------------------------------------------------------

ASSEMBLY = """
import os, llvmlite.binding as llvm
from llama_jax.kernels.native import compiler
triple = os.environ.get("TRIPLE")
compiler.entries()  # Numba compiles for this machine first; what it gives is then read for the other
if triple:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    def machine():
        return llvm.Target.from_triple(triple).create_target_machine(cpu="generic", features="", opt=3)
    compiler.machine = machine
    def converted(text, parse=llvm.parse_assembly):
        lines = [l for l in text.splitlines() if not l.startswith("target ")]
        lines = [l for l in lines if not l.startswith("attributes") or "target" not in l]
        new = parse("\\n".join(l.replace("call void @llvm.x86.sse2.pause()", "") for l in lines))
        new.triple, new.data_layout = triple, str(machine().target_data)
        return new
    llvm.parse_assembly = converted
whole = compiler.module()
assert not compiler.unresolved(whole), compiler.unresolved(whole)
print(compiler.machine().emit_assembly(whole))
"""
TARGETS = {
    "portable": isa.Target("portable", "generic", ""),
    "avx2": isa.target(HASWELL, "haswell", ""),
    "avx2vnni": isa.target(ALDER_LAKE, "alderlake", ""),
    "avx512vnni": isa.Target(
        "avx512vnni", "icelake-server", ",".join(f"+{n}" for n in ("avx512vnni", "avx512bw", "avx512vl", "avx512f"))
    ),
}


def assembly(where, triple=""):
    cpu = dict(NUMBA_CPU_NAME=where.cpu, NUMBA_CPU_FEATURES=where.features, LLAMA_JAX_KERNELS_FOR=where.isa)
    return python(ASSEMBLY, limit=900, **cpu, NUMBA_OPT="0", TRIPLE=triple)[0]


x86_only = pytest.mark.skipif("x86" not in llvm.get_process_triple(), reason="this machine is no x86")


@pytest.mark.slow
@pytest.mark.timeout(1000)
@x86_only
@pytest.mark.parametrize(
    ("name", "has", "never"),
    [
        ("portable", r"\bxmm0\b", r"[yz]mm\d|\bv[a-z]+ps\b|vpdpbusd|vcvtph2ps|vpmaddubsw"),
        ("avx2", r"\bvpmaddubsw\b.*ymm", r"zmm\d|vpdpbusd|%k\d|ymm(1[6-9]|2\d)"),
        ("avx2vnni", r"\bvpdpbusd\b.*ymm", r"zmm\d|%k\d|ymm(1[6-9]|2\d)"),
        ("avx512vnni", r"\bvpdpbusd\b.*zmm", r"vpmaddubsw"),
    ],
)
def test_code_has_the_instructions_of_its_set_and_no_others(name, has, never):
    code = [
        line for line in assembly(TARGETS[name]).splitlines() if line.startswith("\t") and not line.startswith("\t.")
    ]
    assert any(re.search(has, line) for line in code)
    assert not [line for line in code if re.search(never, line)]
    calls = {m[1] for line in code if (m := re.search(r"\bcallq?\s+([\w@$.]+)", line)) and not m[1].startswith("*")}
    assert {c.split("@")[0] for c in calls} <= {"malloc", "free", "sched_yield", "memset", "memcpy", "memmove"}


@pytest.mark.slow
@pytest.mark.timeout(1000)
def test_portable_code_compiles_for_arm():
    try:
        llvm.initialize_all_targets()
        llvm.Target.from_triple("aarch64-unknown-linux-gnu")
    except RuntimeError as error:
        pytest.skip(f"this llvmlite cannot compile for ARM: {error}")
    code = assembly(TARGETS["portable"], "aarch64-unknown-linux-gnu")
    assert "llama_jax_fused:" in code
    assert re.search(r"\bfm(la|ul)\s+v\d", code)  # vectors, not one number after the other
    calls = {name for name in re.findall(r"^\tbl\t(\w+)", code, re.MULTILINE) if f"\n{name}:" not in code}
    assert calls <= {"malloc", "free", "sched_yield", "memset", "memcpy", "memmove"}
    assert re.search(r"\bldar\b", code)  # what threads share is read in order
    assert "ldapr" not in code


CHECKS = """
import json, jax, numpy as np, jax.numpy as jnp
from llama_jax.kernels import isa
from tests.kernels import products, reference, test_fused as fused, test_gemv as gemv
from tests.conftest import relative_error
from llama_jax import quantise
errors = {"isa": isa.target().isa, "gemv": 0.0, "fused": 0.0, "rough": 0.0, "clear": 0}
for kind in gemv.KINDS:
    for n, k, m in ((1, 1, 1), (33, 70, 5), (16, 32, 4), (700, 1024, 3)):
        w = gemv.weight(kind, n, k)  # of whole blocks
        x = gemv.activations(m, w.shape[1])
        error = relative_error(gemv.gemv.product(x, w.data, w.shape), products.reference_product(x, w))
        errors["gemv"] = max(errors["gemv"], float(error))
    gemv.test_subnormal_and_negative_scales(kind, 6e-8, -1)
    gemv.test_a_nan_is_never_lost(kind, 37)
    for size in (0.0, 1e-38, 1e37):
        gemv.test_activations_of_any_size(kind, size)
    for code in (0, 127, 128, 255):
        gemv.test_extreme_codes_meet_extreme_activations(kind, code, -1.0)
for name in ("qwen2", "ratio 3, head 32", "ratio 5, head 48", "untied head"):
    cfg = fused.MODELS[name]
    for error, margin in fused.sweep(cfg, fused.quantised(cfg, "q4_1"), fused.program(cfg)):
        clear = margin > reference.CLEAR
        errors["clear"] += clear
        errors["fused" if clear else "rough"] = max(errors["fused" if clear else "rough"], float(error))
print(json.dumps(errors))
"""


@pytest.mark.slow
@pytest.mark.timeout(1000)
@pytest.mark.parametrize("name", isa.NEEDS)
def test_every_instruction_set_of_this_machine_equals_the_reference(name):
    if isa.supported(name, dict(llvm.get_host_cpu_features())) is None:
        pytest.skip(f"this processor has no {name}")
    errors = json.loads(python(CHECKS, limit=900, **{isa.VARIABLE: name})[0].splitlines()[-1])
    assert errors["isa"] == name
    assert errors["gemv"] <= 1e-5
    assert errors["fused"] <= 1e-5
    assert errors["rough"] <= 0.06
    assert errors["clear"] >= 10
