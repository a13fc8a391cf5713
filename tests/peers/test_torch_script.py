"""TorchScript's ends: padding and truncation; chances that are transformers' own under every filter, scripted or not,
and draws that follow them."""

import numpy as np
import pytest
import torch
from transformers import MinPLogitsWarper, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from llama_jax.sampling import Sampler
from llama_lab import peers
from llama_lab.bench.workload import Workload
from llama_lab.peers import torch_eager, torch_model, torch_script
from tests.peers.conftest import tokens

PAD, CHANCES, SAMPLE = map(
    torch_script.scripted, (torch_script.pad_or_truncate, torch_script.probabilities, torch_script.sample)
)


def logits(seed=0, rows=3):
    return torch.randn(rows, 50, generator=torch.Generator().manual_seed(seed)) * 4


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
@pytest.mark.parametrize(
    ("top_k", "top_p", "min_p"), [(0, 1.0, 0.0), (7, 1.0, 0.0), (0, 0.8, 0.0), (0, 1.0, 0.1), (20, 0.9, 0.05)]
)
def test_the_chances_are_those_of_transformers(temperature, top_k, top_p, min_p):
    expected = TemperatureLogitsWarper(temperature)(None, logits())
    if top_k:
        expected = TopKLogitsWarper(top_k)(None, expected)
    if top_p < 1:
        expected = TopPLogitsWarper(top_p)(None, expected)
    if min_p:
        expected = MinPLogitsWarper(min_p)(None, expected)
    for chances in (CHANCES, torch_script.probabilities):
        torch.testing.assert_close(chances(logits(), temperature, top_k, top_p, min_p), torch.softmax(expected, -1))


def test_the_best_token_stays_however_small_the_share():
    for settings in ((1, 1.0, 0.0), (0, 1e-9, 0.0), (0, 1.0, 1.0)):
        assert torch.equal(CHANCES(logits(), 1.0, *settings).argmax(-1), logits().argmax(-1))
        assert (CHANCES(logits(), 1.0, *settings) > 0).sum(-1).tolist() == [1, 1, 1]


def test_draws_follow_the_chances():
    row, n = torch.tensor([2.0, 1.0, 0.0, -1.0]), 40_000
    torch.manual_seed(0)
    drawn = SAMPLE(row.expand(n, 1, 4), 0.7, 3, 1.0, 0.0)
    assert drawn.shape == (n, 1)
    expected = CHANCES(row[None], 0.7, 3, 1.0, 0.0)[0]
    seen = torch.bincount(drawn[:, 0], minlength=4) / n
    assert ((seen - expected).abs() <= 5 * (expected * (1 - expected) / n).sqrt()).all()


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_flat_logits_and_rows_make_the_same_tokens(temperature):
    """Of the only token that top-k leaves, so that a draw is told from none."""
    settings, rows = (temperature, 1, 1.0, 0.0), logits()
    best = rows.argmax(-1)
    for choose in (SAMPLE, torch_script.sample, torch_script.sample_frozen):
        assert torch.equal(choose(rows[:, None], *settings), best[:, None])
        assert torch.equal(choose(rows, *settings), best[:, None])
        assert torch.equal(choose(rows[0], *settings), best[:1])
    for n, row in enumerate(rows):
        filtered = (0.7, 20, 0.9, 0.05)
        torch.testing.assert_close(CHANCES(row, *filtered), CHANCES(rows, *filtered)[n])


def test_frozen_settings_draw_what_they_draw_as_arguments():
    for settings in ((0.0, 0, 1.0, 0.0), (0.7, 5, 0.9, 0.05), (1.3, 0, 1.0, 0.0)):
        drawn = []
        for choose in (SAMPLE, torch_script.sample_frozen):
            torch.manual_seed(3)
            drawn.append(torch.cat([choose(logits(rows=50), *settings) for _ in range(3)]))
        assert torch.equal(*drawn)
    assert torch_script.frozen(0.7, 5, 0.9, 0.05) is torch_script.frozen(0.7, 5, 0.9, 0.05)


@pytest.fixture
def unscripted():
    torch_script.scripted.cache_clear()
    torch_script.frozen.cache_clear()


def test_a_clock_tells_scripting_freezing_and_the_runs_apart(unscripted, monkeypatch):
    made = []
    for kind in ("script", "freeze"):
        monkeypatch.setattr(torch.jit, kind, lambda given, kind=kind: made.append(kind) or (lambda *x: x))
    with torch_script.clocked() as spent:
        pad, choose = torch_script.scripted(torch_script.pad_or_truncate), torch_script.frozen(0.7, 5, 0.9, 0.05)
        assert torch_script.scripted(torch_script.pad_or_truncate) is pad
        for _ in range(3):
            pad(1)
        choose(1)
        choose(1)
    assert made == ["script", "script", "freeze"]
    assert spent.script_ns > 0
    assert spent.freeze_ns > 0
    assert [len(calls) for calls in spent.calls] == [3, 2]
    assert spent.calls_ns == [sum(nth) for nth in zip(*(calls[:2] for calls in spent.calls), strict=True)]


def test_a_clock_leaves_nothing_in_a_warm_request(unscripted):
    with torch_script.clocked() as spent:
        watched = torch_script.scripted(torch_script.pad_or_truncate)
    assert torch_script.scripted(torch_script.pad_or_truncate) is not watched
    assert isinstance(torch_script.scripted(torch_script.pad_or_truncate), torch.jit.ScriptFunction)
    took = spent.script_ns
    torch_script.scripted(torch_script.sample)
    assert (spent.script_ns, spent.calls) == (took, [[]])


@pytest.mark.parametrize("name", ["torch-script", "torch-script+frozen", "torch-script+nocache"])
def test_nothing_is_scripted_before_a_request(llama, unscripted, name):
    with torch_script.clocked() as spent:
        subject = peers.subject(llama, name)
        assert (spent.script_ns, spent.freeze_ns, spent.calls) == (0, 0, [])
        stream = subject.run([5, 9], Workload((), 2, 2))
        assert spent.script_ns == 0
        next(stream)
        assert [len(calls) for calls in spent.calls] == [1, 1]  # pad and sample, each before the first token
        assert spent.script_ns > 0
        assert (spent.freeze_ns > 0) == (name == "torch-script+frozen")


def test_temperature_zero_is_greedy_and_takes_the_last_position():
    several = torch.randn(2, 3, 50, generator=torch.Generator().manual_seed(1)).bfloat16()
    assert torch.equal(SAMPLE(several, 0.0, 5, 0.5, 0.1), several[:, -1].float().argmax(-1, keepdim=True))


@pytest.mark.parametrize("way", [torch_eager.scripted_static, torch_eager.scripted_whole])
def test_a_sampler_draws_other_texts_from_other_seeds(llama, way):
    run = way(torch_model.module(llama.config, llama.params))

    def drawn(seed):
        return tokens(run, (5, 9, 33), Workload((), 8, 5, batch=2, seed=seed, sampler=Sampler(temperature=5.0)))

    texts = [drawn(seed) for seed in (0, 1, 0)]
    assert all(t.shape == (8, 2) and (t >= 0).all() and (t < llama.config.vocab_size).all() for t in texts)
    assert not np.array_equal(*texts[:2])
    assert np.array_equal(texts[0], texts[2])
