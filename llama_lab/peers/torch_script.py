"""What a PyTorch peer does before and after the forward pass: pad or truncate the text, choose a token. Functions of
tensors and numbers alone, so that `torch.jit.script` takes them too. Historical: `torch.jit` is deprecated.

A token is chosen by the settings of `llama_jax.Sampler`, its filters in the same order, on PyTorch's own generator of
random numbers. The repetition penalty is not among them: it looks back on the text. The published case applied the
temperature twice; here it is applied once.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable

import torch

from llama_lab.bench.workload import Workload


def pad_or_truncate(ids: torch.Tensor, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(text [B length], number of its tokens [1]) of ids [B T]: zeros behind a shorter text, the latest tokens of a
    longer one."""
    kept = ids[:, -length:]
    count = kept.shape[1]
    padded = torch.zeros((ids.shape[0], length), dtype=ids.dtype, device=ids.device)
    padded[:, :count] = kept
    return padded, torch.full((1,), count, dtype=torch.int64, device=ids.device)


def probabilities(logits: torch.Tensor, temperature: float, top_k: int, top_p: float, min_p: float) -> torch.Tensor:
    """What each token of logits [B V] is drawn with, float32. The only place where a temperature is applied."""
    kept = logits.float() / temperature
    if top_k > 0:
        least = torch.topk(kept, min(top_k, kept.shape[-1]))[0][:, -1:]
        kept = kept.masked_fill(kept < least, float("-inf"))
    if top_p < 1.0:
        descending = torch.sort(kept, dim=-1, descending=True)[0]
        shares = torch.softmax(descending, dim=-1)
        beyond = shares.cumsum(-1) - shares >= top_p
        beyond[:, 0] = False  # the best token always stays
        least = descending.masked_fill(beyond, float("inf")).amin(-1, keepdim=True)
        kept = kept.masked_fill(kept < least, float("-inf"))
    if min_p > 0.0:
        shares = torch.softmax(kept, dim=-1)
        kept = kept.masked_fill(shares < min_p * shares.amax(-1, keepdim=True), float("-inf"))
    return torch.softmax(kept, dim=-1)


def sample(logits: torch.Tensor, temperature: float, top_k: int, top_p: float, min_p: float) -> torch.Tensor:
    """A token [B 1] for each row of logits [B 1 V]; temperature 0 takes the best."""
    last = logits[:, -1]
    if temperature == 0.0:
        return last.float().argmax(dim=-1, keepdim=True)
    return torch.multinomial(probabilities(last, temperature, top_k, top_p, min_p), 1)


@functools.cache
def scripted(function: Callable) -> Callable:
    """A function through `torch.jit.script`, once a process, when it is first needed: a first request pays for it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it is deprecated: see above
        return torch.jit.script(function)


def chooser(work: Workload, sample: Callable = sample) -> Callable[[torch.Tensor], torch.Tensor]:
    """Logits [B 1 V] → token [B 1] as the workload wants it, its draws begun anew from its seed."""
    s = work.sampler
    if s.temperature > 0:
        torch.manual_seed(work.seed)
    return lambda logits: sample(logits, float(s.temperature), s.top_k, float(s.top_p), float(s.min_p))
