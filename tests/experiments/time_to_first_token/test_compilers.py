"""One function in two compilers: equal values, constants folded, branches gone, fusions counted."""

import contextlib

import jax.numpy as jnp
import numpy as np
import pytest
import torch

from llama_jax.sampling import Sampler
from llama_lab.experiments.time_to_first_token import compilers
from llama_lab.peers import torch_script

ALL = Sampler(temperature=0.7, top_k=20, top_p=0.9, min_p=0.05)


@pytest.fixture(scope="module")
def stages():
    return {stage.name: stage for stage in compilers.stages()}


@pytest.mark.parametrize("shape", [(50,), (1, 50), (3, 50)])
@pytest.mark.parametrize("settings", [compilers.SAMPLER, ALL, Sampler(temperature=2.0)])
def test_both_compute_the_same_function(shape, settings):
    logits = 4 * np.random.default_rng(1).normal(size=shape).astype(np.float32)
    theirs = torch_script.probabilities(torch.tensor(logits), *torch_script.settings_of(settings)).numpy()
    for given in (settings, settings.traced()):
        np.testing.assert_allclose(compilers.chances(jnp.asarray(logits), given), theirs, atol=1e-6)


def test_freezing_makes_settings_constants_and_drops_the_branches_that_they_decide(stages):
    scripted, frozen = stages["scripted, settings as attributes"], stages["frozen"]
    assert (scripted.branches, frozen.branches) == (3, 0)
    assert {"top_k = 40", "top_p = 0.9", "temperature = 0.7"} == {
        compilers.shown(*pair) for pair in frozen.constants if pair[0].startswith("self.")
    }
    assert not [name for name, _ in scripted.constants if name.startswith("self.")]
    assert frozen.operations < scripted.operations  # what min-p would have computed is gone
    assert "new: top_p = 0.9, top_k = 40, temperature = 0.7" in compilers.folded(scripted, frozen)
    assert "amax 1 → 0" in compilers.changed(scripted, frozen)


def test_a_setting_that_is_on_keeps_its_filter():
    _, frozen, *_ = compilers.torchscript(ALL, 50)
    assert frozen.branches == 0
    assert frozen.operations["amax"] == 1


def test_what_a_fuser_takes_is_nowhere_else(stages):
    frozen, forced = stages["frozen"], stages["the same, its fuser forced"]
    assert forced.fusions > 0
    assert forced.operations + forced.fused == frozen.operations
    if compilers.why_unfused():
        assert stages["frozen and optimised"].fusions == 0


def test_the_fusers_settings_are_put_back():
    from torch import _C

    def settings():
        return _C._jit_can_fuse_on_cpu(), _C._jit_get_te_must_use_llvm_cpu()

    before = settings()
    with contextlib.suppress(KeyboardInterrupt), compilers.fuser_on_cpu():
        assert settings() == (True, False)
        raise KeyboardInterrupt
    assert settings() == before


def test_static_settings_are_constants_of_xlas_program_and_traced_ones_are_not(stages):
    values = {name: {value for _, value in stage.constants} for name, stage in stages.items()}
    assert "0.7" in values["settings static, lowered"]
    assert "0.7" not in values["settings traced, lowered"]
    assert {"40", "0.9"} <= values["settings static, compiled"]
    assert not {"40", "0.9"} & values["settings traced, compiled"]
    assert stages["settings static, compiled"].fusions > 0
    assert stages["settings static, compiled"].branches == 0
    assert stages["settings traced, compiled"].branches == 3  # each filter runs only if its setting asks for it


def test_operations_within_fusions_are_those_of_their_computations_alone():
    text = """HloModule m

%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %sum = f32[] add(%a, %b)
}

%fused (p: f32[4]) -> f32[] {
  %p = f32[4]{0} parameter(0)
  %two = f32[] constant(2)
  %wide = f32[4]{0} broadcast(%two), dimensions={}
  %m = f32[4]{0} multiply(%p, %wide)
  ROOT %r = f32[] reduce(%m, %two), dimensions={0}, to_apply=%add
}

ENTRY %main (x: f32[4]) -> f32[] {
  %x = f32[4]{0} parameter(0)
  %half = f32[1]{0} constant({0.5})
  %many = s32[] constant(2147483647)
  %e = f32[4]{0} exponential(%x)
  ROOT %f = f32[] fusion(%e), kind=kLoop, calls=%fused
}
"""
    stage = compilers.of_hlo("", text)
    assert (stage.operations, stage.fusions) == ({"exponential": 1}, 1)
    assert stage.fused == {"broadcast": 1, "multiply": 1, "reduce": 1}
    assert stage.constants == [("two", "2"), ("half", "0.5")]


def test_without_pytorch_one_line_says_so_and_xlas_half_is_shown(monkeypatch):
    monkeypatch.setattr("llama_lab.peers.torch.find_spec", lambda package: None)
    monkeypatch.setattr(compilers, "why_unfused", lambda: pytest.fail("asked PyTorch"))
    found = compilers.stages()
    assert {stage.compiler for stage in found} == {"XLA"}
    first, *rest = compilers.words(found)
    assert "torch is not installed. Run `make setup`." in first
    assert all(line.startswith("XLA") for line in rest)


def test_words_say_what_each_step_did_and_that_nothing_is_fused(stages, monkeypatch):
    monkeypatch.setattr(torch._C, "_jit_can_fuse_on_cpu", lambda: False)
    why, freezing, executor, fuser, compiling = compilers.words(list(stages.values()))
    assert "fuses nothing on a processor" in why
    assert "top_k = 40" in freezing
    assert "min_p" not in freezing
    assert executor == "TorchScript, by its executor: nothing changes"
    assert fuser == "TorchScript, by its fuser: 2 fusions hold 4 of 24 operations"
    assert "constants gone: 0.7" in compiling
    monkeypatch.setattr(torch._C, "_jit_can_fuse_on_cpu", lambda: True)
    monkeypatch.setattr(torch._C, "_llvm_enabled", lambda: True)
    assert compilers.why_unfused() == ""
