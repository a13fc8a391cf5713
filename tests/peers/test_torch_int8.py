"""Dynamic quantisation: every linear layer in int8, the float module untouched, rounding of the size that 8 bits
have."""

import dataclasses

import numpy as np
import pytest
import torch

from llama_jax import config
from llama_lab import peers
from llama_lab.bench import protocol
from llama_lab.bench.workload import Workload
from llama_lab.peers import torch as subjects
from llama_lab.peers import torch_int8
from tests.conftest import relative_error
from tests.peers.conftest import small

WORK = Workload(((5, 9, 33, 60, 2), (8, 3)), new_tokens=7, length=8, batch=2)
NAME = "torch-int8"


@pytest.mark.parametrize("family", config.FAMILIES)
def test_every_linear_layer_is_int8_and_the_float_module_stays(family):
    loaded = small(family)
    module = subjects.shared_module(loaded)
    before = {name: value.clone() for name, value in module.state_dict().items()}
    made = torch_int8.quantised(module)
    assert not [part for part in made.modules() if isinstance(part, (torch.nn.Linear, torch_int8.Conv1D))]
    per_layer = 4 if family == "gpt2" else 7
    quantised = [part for part in made.modules() if isinstance(part, torch.ao.nn.quantized.dynamic.Linear)]
    assert len(quantised) == per_layer * loaded.config.num_hidden_layers + 1  # and the head
    assert {part.weight().qscheme() for part in quantised} == {torch.per_channel_affine}
    assert made.get_input_embeddings().weight.data_ptr() == module.get_input_embeddings().weight.data_ptr()
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())


@pytest.mark.parametrize("family", config.FAMILIES)
def test_logits_differ_by_rounding_to_eight_bits(family):
    loaded, ids = small(family), [5, 9, 33, 60, 2, 8, 3]
    exact, rounded = subjects.logits(loaded, "torch")(ids), subjects.logits(loaded, NAME)(ids)
    assert exact.shape == rounded.shape == (7, 97)
    assert 1e-4 < relative_error(rounded, exact) < 0.1


def test_a_product_is_that_of_rounded_factors():
    """One layer by hand: weights of one scale a row, activations of one scale and zero point for all of them."""
    assert subjects.engines()
    torch.manual_seed(0)
    part, x = torch.nn.Linear(64, 16), torch.randn(3, 64)
    made = torch.ao.quantization.quantize_dynamic(
        torch.nn.Sequential(part), {torch.nn.Linear: torch_int8.per_channel_dynamic_qconfig}
    )
    w = part.weight.detach().numpy()
    scale = np.abs(w).max(1, keepdims=True) / 127.5
    weights = np.clip(np.rint(w / scale), -128, 127) * scale
    step = (x.max() - x.min()).item() / 127  # seven bits: room in 16 for the sum of two products
    with torch.inference_mode():
        found = made(x).numpy()
    expected = (np.rint(x.numpy() / step) * step) @ weights.T + part.bias.detach().numpy()
    assert np.abs(found - expected).max() < 0.1 * np.abs(found - part(x).detach().numpy()).max() + 0.02
    assert relative_error(found, part(x).detach().numpy()) > 1e-3


def test_it_generates_and_its_trials_are_approximate(llama):
    who = peers.subject(llama, NAME)
    assert {k: who.identity[k] for k in ("dtype", "quantisation", "weight_bytes", "cache", "cache_bytes")} == dict(
        dtype="int8", quantisation="int8-dynamic", weight_bytes=1, cache="growing", cache_bytes=4
    )
    record, made = protocol.trial(who, WORK, 0, run="", block=0, order=0, process=0, phase="warm")
    assert made.shape == (7, 2)
    assert np.array_equal(made[:, 0], made[:, 1])
    assert protocol.Reference(llama, WORK).judge(record, made).valid
    claimed = dataclasses.replace(who, identity={**who.identity, "quantisation": "none", "dtype": "float32"})
    record, _ = protocol.trial(claimed, WORK, 0, run="", block=0, order=0, process=0, phase="warm")
    # only who says that it rounds may part
    assert not protocol.Reference(llama, WORK).judge(record, (made + 1) % 97).valid


def test_where_it_cannot_run_the_gap_says_so(llama, monkeypatch):
    assert peers.missing([NAME], "m") == []
    monkeypatch.setattr(subjects, "device", lambda: "cuda")
    (gap,) = peers.missing([NAME], "m")
    assert "GPU" in gap["reason"]
    assert "CUDA_VISIBLE_DEVICES" in gap["remedy"]
    with pytest.raises(peers.UnavailableError, match="GPU"):
        subjects.logits(llama, NAME)
    monkeypatch.setattr(subjects, "device", lambda: "cpu")
    monkeypatch.setattr(subjects, "engines", set)
    assert "no integer products" in peers.missing([NAME], "m")[0]["reason"]
