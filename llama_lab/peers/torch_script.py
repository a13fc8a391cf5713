"""TorchScript before and after an eager forward: pad or truncate the text, then choose a token. Historical: `torch.jit`
is deprecated.

The published case applied the temperature twice and ran without a KV cache; here it is applied once, and both are
subjects. Functions are scripted when they are first needed, so that a first request pays for it.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch

from llama_lab.bench.workload import Workload
from llama_lab.peers import torch_static
from llama_lab.peers.torch_eager import fetch, prompt
from llama_lab.peers.torch_sampling import chooser, sample


def pad_or_truncate(ids: torch.Tensor, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(text [B length], number of its tokens [1]) of ids [B T]: zeros behind a shorter text, the latest tokens of a
    longer one."""
    kept = ids[:, -length:]
    count = kept.shape[1]
    padded = torch.zeros((ids.shape[0], length), dtype=ids.dtype, device=ids.device)
    padded[:, :count] = kept
    return padded, torch.full((1,), count, dtype=torch.int64, device=ids.device)


@functools.cache
def scripted(function: Callable) -> Callable:
    """A function through `torch.jit.script`, once a process."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it is deprecated: see above
        return torch.jit.script(function)


def cached(module):
    """A loop over an eager forward with fixed shapes: the prompt padded to the workload's length, keys and values in
    slots."""
    module = torch_static.fixed(module)

    @torch.inference_mode()
    def run(ids: Sequence[int], work: Workload) -> Iterator[np.ndarray]:
        pad, choose = scripted(pad_or_truncate), chooser(work, scripted(sample))
        cache = torch_static.Slots(module, work.batch, work.slots)
        text, count = pad(prompt(module, ids, work.batch), work.length)
        token = choose(torch_static.prefill_logits(module, cache, text, count - 1))
        yield fetch(token)
        for _ in range(work.new_tokens - 1):
            token = choose(torch_static.step_logits(module, cache, token))
            yield fetch(token)

    return run


def whole(module):
    """As published: the whole text padded to S slots and run again for every token."""
    module = torch_static.fixed(module)

    @torch.inference_mode()
    def run(ids: Sequence[int], work: Workload) -> Iterator[np.ndarray]:
        pad, choose = scripted(pad_or_truncate), chooser(work, scripted(sample))
        text = prompt(module, ids, work.batch)
        for _ in range(work.new_tokens):
            token = choose(torch_static.whole_logits(module, *pad(text, work.slots)))
            yield fetch(token)
            text = torch.cat([text, token], dim=1)

    return run
