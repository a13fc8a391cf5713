"""Profiles on a small model: the trace opens, the summary counts what XLA really made."""

import gzip
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from llama_jax.placement import parse
from llama_jax.plumbing.errors import UserError
from llama_lab.bench import memory, profiling, protocol, tracing
from llama_lab.bench.workload import Subject, Workload

pytestmark = pytest.mark.usefixtures("compiling")

WORK = Workload(((1, 2, 3), (4, 5)), new_tokens=5, length=4)


@pytest.fixture(scope="module")
def profiled(loaded, tmp_path_factory):
    """A second `step` in a process where one has run before, under a name that no file may have as it is."""
    first = protocol.subject(loaded, parse("step"))
    protocol.warm_up(first, WORK)
    out = tmp_path_factory.mktemp("out")
    return out, profiling.profile(protocol.subject(loaded, parse("step+scan"), "scan / it"), out, WORK)


def test_the_trace_opens_and_holds_the_request(profiled):
    out, found = profiled
    path = Path(found["trace"])
    assert path == out / "scan-it" / "trace.json.gz"
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    assert {"jit_step", "jit_prefill"} <= {e["args"]["hlo_module"] for e in events if "hlo_module" in e.get("args", {})}
    assert any(e.get("name") == "request to scan / it" and e["dur"] > 0 for e in events)
    assert not [e for e in events if str(e.get("name")).startswith("$")]  # no calls of Python's own


def test_the_programs_are_the_subjects_own_alone(profiled):
    out, found = profiled
    assert {p["name"] for p in found["programs"] if p["instructions"] > 20} == {"step", "prefill"}
    assert found["compiled"] == ""
    (step,) = [p for p in found["programs"] if p["name"] == "step"]  # the other subject's is alive too
    assert (step["own"], step["while_loops"]) == (True, 1)  # the scan over layers
    assert step["fusions"] > 0
    assert step["temp_bytes"] > 0
    assert step["argument_bytes"] > step["output_bytes"] > 0
    sizes = [t["bytes"] for t in step["temporaries"]]
    assert sizes == sorted(sizes, reverse=True)
    assert (len(sizes), sizes[0]) == (10, 4 * 128 * 32)  # a layer's gate and up, sliced from the stack
    assert not any(t["name"].startswith(("param", "carry", "token")) for t in step["temporaries"])
    assert json.loads((out / "scan-it" / "hlo.json").read_text())["programs"] == found["programs"]
    text = Path(found["summary"]).read_text()
    assert f"| step | {step['instructions']} | {step['fusions']} | 0 | 1 |" in text
    assert f"| {sizes[0]} |" in text


def test_a_subject_that_had_run_says_what_is_not_certain(loaded, tmp_path):
    who = protocol.subject(loaded, parse("loop"))
    protocol.warm_up(who, WORK)
    found = profiling.profile(who, tmp_path, WORK)
    decode = [p for p in found["programs"] if p["name"] == "decode"]
    assert decode
    assert {p["own"] for p in decode} == {"unknown"}
    assert "Some may belong to another subject" in Path(found["summary"]).read_text()


def strange(run, name="strange"):
    return Subject(name, "other", "none", run, list, {"config": None, "weight_bytes": 4})


def test_a_subject_without_programs_and_one_that_compiles(tmp_path, monkeypatch):
    monkeypatch.setattr(protocol, "warm_up", lambda who, work: False)  # a bare subject has no configuration to record
    silent = profiling.profile(strange(lambda ids, work: iter([np.zeros((2, 1), np.int32)])), tmp_path, WORK)
    assert silent["programs"] == []

    def compiles(ids, work):
        yield np.asarray(jax.jit(lambda x: x * 3 - 1)(jnp.ones(777)))

    found = profiling.profile(strange(compiles, "compiles"), tmp_path, WORK)
    assert "compiled in the timed region" in found["compiled"]
    assert "was not warm" in Path(found["summary"]).read_text()


def test_a_failing_subject_ends_its_trace_and_a_wrong_folder_begins_none(tmp_path, monkeypatch):
    monkeypatch.setattr(protocol, "warm_up", lambda who, work: True)

    def fail(ids, work):
        raise ValueError("broken")
        yield

    with pytest.raises(ValueError, match="broken"):
        profiling.profile(strange(fail), tmp_path, WORK)
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="Cannot write"):  # before it runs
        profiling.profile(strange(fail), tmp_path / "file", WORK)
    with tracing.traced(str(tmp_path)):
        pass


def test_sizes_that_a_backend_does_not_tell_are_unknown(monkeypatch):
    monkeypatch.setattr(memory, "analyse", lambda executable: None)
    program = jax.jit(lambda x: x + 1).lower(jnp.ones(3)).compile().runtime_executable()
    assert {profiling.describe(program)[f"{kind}_bytes"] for kind in profiling.SIZES} == {"unknown"}


def test_bytes_of_a_shape():
    sizes = {"f32[2,3]{1,0}": 24, "bf16[5]{0}": 10, "pred[7]{0}": 7, "s32[]": 4, "s4[3]{0}": 2, "f8e4m3fn[10]": 10,
             "c64[2]{0}": 16, "(f32[2]{0}, u8[3]{0:T(8,128)})": 11, "token[]": 0, "f32[0,4]{1,0}": 0,
             "f32[<=8,2]{1,0}": 64, "()": 0}  # fmt: skip
    assert {shape: profiling.shape_bytes(shape) for shape in sizes} == sizes


def test_instructions_inside_a_fusion_have_no_buffers():
    text = """HloModule jit_f, entry_computation_layout={(f32[8]{0})->f32[]}

%inside (p.0: f32[8]) -> f32[8] {
  %p.0 = f32[8]{0} parameter(0)
  ROOT %twice = f32[8]{0} add(%p.0, %p.0)
}

%sum (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %plus = f32[] add(%a, %b)
}

%called (q: f32[8]) -> f32[8] {
  %q = f32[8]{0} parameter(0)
  ROOT %work = f32[8]{0} fusion(%q), kind=kLoop, calls=%inside
}

ENTRY %main.3 (x.1: f32[8]) -> (f32[], /*index=1*/f32[8]) {
  %x.1 = f32[8]{0} parameter(0), metadata={op_name="x = sin(y)"}
  %call.1 = f32[8]{0:T(8)} call(%x.1), to_apply=%called
  %lib = (f32[8]{0}, /*index=1*/u8[64]{0}) custom-call(%call.1), custom_call_target="gemm"
  %zero = f32[] constant(0)
  %total = f32[] reduce(%call.1, %zero), dimensions={0}, to_apply=%sum
  ROOT %out = (f32[], f32[8]{0}) tuple(%total, %call.1)
}
"""
    found = profiling.instructions(text)
    kept = {i.name: (i.operation, i.shape) for i in found if not i.fused}
    assert set(kept) == {"q", "work", "x.1", "call.1", "lib", "zero", "total", "out"}
    assert kept["lib"] == ("custom-call", "(f32[8]{0}, u8[64]{0})")
    assert kept["call.1"] == ("call", "f32[8]{0:T(8)}")
    assert {i.name for i in found if i.fused} == {"p.0", "twice", "a", "b", "plus"}
