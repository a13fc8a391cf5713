"""TorchScript's ends: padding, truncation, and tokens drawn."""

import numpy as np
import pytest
import torch

from llama_jax import config
from llama_jax.sampling import Sampler
from llama_lab.bench.workload import Workload
from llama_lab.peers import torch_model, torch_script
from tests.conftest import build

PAD, SAMPLE = (torch_script.scripted(f) for f in (torch_script.pad_or_truncate, torch_script.sample))


@pytest.mark.parametrize("length", [1, 4, 5, 6, 9])
def test_a_text_is_padded_behind_or_loses_its_oldest_tokens(length):
    ids = torch.arange(1, 11).reshape(2, 5)
    padded, count = PAD(ids, length)
    kept = min(5, length)
    assert (padded.shape, padded.dtype, count.tolist()) == ((2, length), torch.int64, [kept])
    assert torch.equal(padded[:, :kept], ids[:, 5 - kept :])
    assert not padded[:, kept:].any()
    assert torch.equal(ids, torch.arange(1, 11).reshape(2, 5))


def test_functions_are_scripted_once():
    once, again = (torch_script.scripted(torch_script.sample) for _ in range(2))
    assert once is again
    assert isinstance(SAMPLE, torch.jit.ScriptFunction)


@pytest.mark.parametrize("way", ["cached", "whole"])
def test_a_sampler_draws_other_texts_from_other_seeds(way):
    cfg = config.tiny()
    run = getattr(torch_script, way)(torch_model.module(cfg, build(cfg)))

    def text(seed):
        work = Workload((), new_tokens=8, length=5, batch=2, seed=seed, sampler=Sampler(temperature=5.0))
        return np.concatenate(list(run((5, 9, 33), work)))

    texts = [text(seed) for seed in (0, 1, 0)]
    assert all(t.shape == (8, 2) and (t >= 0).all() and (t < cfg.vocab_size).all() for t in texts)
    assert not np.array_equal(*texts[:2])
    assert np.array_equal(texts[0], texts[2])
