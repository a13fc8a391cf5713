"""TorchScript's ends: padding, truncation, and a temperature that is applied once."""

import numpy as np
import pytest
import torch
from transformers import TemperatureLogitsWarper

from llama_jax import config
from llama_jax.bench.workload import Workload
from llama_jax.peers import torch_model, torch_script
from tests.conftest import build

PAD, SAMPLE, CHANCES = (
    torch_script.scripted(f) for f in (torch_script.pad_or_truncate, torch_script.sample, torch_script.probabilities)
)


@pytest.mark.parametrize("length", [1, 4, 5, 6, 9])
def test_a_text_is_padded_behind_or_loses_its_oldest_tokens(length):
    ids = torch.arange(1, 11).reshape(2, 5)
    padded, count = PAD(ids, length)
    kept = min(5, length)
    assert (padded.shape, padded.dtype, count.tolist()) == ((2, length), torch.int64, [kept])
    assert torch.equal(padded[:, :kept], ids[:, 5 - kept :])
    assert not padded[:, kept:].any()
    assert torch.equal(ids, torch.arange(1, 11).reshape(2, 5))


@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.5])
def test_the_temperature_is_applied_exactly_once(temperature):
    logits = torch.randn(3, 50, generator=torch.Generator().manual_seed(0)) * 4
    expected = torch.softmax(TemperatureLogitsWarper(temperature)(None, logits), dim=-1)
    torch.testing.assert_close(CHANCES(logits, temperature), expected)
    if temperature != 1:
        assert not torch.allclose(
            CHANCES(logits, temperature), torch.softmax(logits / temperature**2, dim=-1), atol=1e-3
        )


def test_draws_follow_the_softmax():
    logits = torch.tensor([2.0, 1.0, 0.0, -1.0])
    torch.manual_seed(0)
    n, temperature = 40_000, 0.7
    drawn = SAMPLE(logits.expand(n, 1, 4), temperature)
    assert drawn.shape == (n, 1)
    expected = torch.softmax(logits / temperature, dim=-1)
    seen = torch.bincount(drawn[:, 0], minlength=4) / n
    assert ((seen - expected).abs() < 5 * (expected * (1 - expected) / n).sqrt()).all()


def test_temperature_zero_is_greedy_and_takes_the_last_position():
    logits = torch.randn(2, 3, 50, generator=torch.Generator().manual_seed(1)).bfloat16()
    assert torch.equal(SAMPLE(logits, 0.0), logits[:, -1].float().argmax(-1, keepdim=True))


def test_functions_are_scripted_once():
    once, again = (torch_script.scripted(torch_script.sample) for _ in range(2))
    assert once is again
    assert isinstance(SAMPLE, torch.jit.ScriptFunction)


@pytest.mark.parametrize("way", ["cached", "whole"])
def test_a_temperature_draws_other_texts_within_the_vocabulary(way):
    cfg = config.tiny()
    run = getattr(torch_script, way)(torch_model.module(cfg, build(cfg)), temperature=5.0)
    torch.manual_seed(0)
    texts = [np.concatenate(list(run((5, 9, 33), Workload((), new_tokens=8, length=5, batch=2)))) for _ in range(2)]
    assert all(t.shape == (8, 2) and (t >= 0).all() and (t < cfg.vocab_size).all() for t in texts)
    assert not np.array_equal(*texts)
