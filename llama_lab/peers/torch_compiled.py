"""`torch.compile`: the prompt and the step as two programs, and the whole text as one.

The prompt's program has a symbolic length, so that one compilation serves prompts of every length; it hands its keys
and values back, and they are copied into the slots. The step's program has a symbolic number of slots. Where CUDA
graphs are recorded, shapes are fixed instead: a prompt is padded to the workload's length, and slots come in multiples
of `COARSE`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache

import numpy as np
import torch
from transformers.cache_utils import Cache, StaticLayer

from llama_lab.bench.workload import Workload
from llama_lab.peers.torch_eager import fetch, prompt
from llama_lab.peers.torch_static import Slots, fixed, greedy, prompt_logits, step, whole_step

KEPT = 4  # caches of a subject by (batch, slots), since compiled programs like to see one again; more are made again
COARSE = 1024
PROGRAMS = 64  # compiled from one function before PyTorch would fall back to eager without a word; its default is 8


class Fresh(StaticLayer):
    """A layer that keeps a prompt's keys and values as they are computed."""

    def __init__(self):
        super().__init__(max_cache_len=0)
        self.is_initialized = True

    def update(self, key_states, value_states, *args, **kwargs):
        self.keys, self.values = key_states, value_states
        return key_states, value_states


def prompt_part(module, ids: torch.Tensor, last: torch.Tensor | None):
    """(greedy token [B 1], keys, values: a list of [B K T h] each) of a prompt [B T]. last: as for `prompt_logits`."""
    cache = Cache(layers=[Fresh() for _ in range(module.config.num_hidden_layers)])
    token = greedy(prompt_logits(module, ids, cache, last))
    return token, [layer.keys for layer in cache.layers], [layer.values for layer in cache.layers]


def settle(cache: Slots, keys: list[torch.Tensor], values: list[torch.Tensor], length: int) -> None:
    """A prompt's keys and values into the first slots; `length` of them are no padding."""
    t = keys[0].shape[2]
    torch._foreach_copy_([layer.keys[:, :, :t] for layer in cache.layers], keys)
    torch._foreach_copy_([layer.values[:, :, :t] for layer in cache.layers], values)
    cache.slot.fill_(length)


def compiled(function: Callable, mode: str) -> Callable:
    """`torch.compile` around a whole function, without breaks and with room for as many programs as there are
    shapes."""
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, PROGRAMS)
    return torch.compile(function, mode=mode, fullgraph=True)


def cached(module, mode: str = "default"):
    """A greedy loop over the two programs. On a GPU the other modes record CUDA graphs, one per shape, so prompts are
    padded."""
    module, records = fixed(module), mode != "default" and module.device.type == "cuda"
    first, further = compiled(prompt_part, mode), compiled(step, mode)

    @lru_cache(KEPT)
    def cache_of(batch: int, slots: int) -> Slots:
        cache = Slots(module, batch, slots)
        for layer in cache.layers:
            for tensor in (layer.keys, layer.values):
                # it is changed in place: Inductor gives up its CUDA graph unless it knows that it stays where it is
                if records:
                    torch._dynamo.mark_static_address(tensor)
                else:
                    torch._dynamo.mark_dynamic(tensor, 2)
        if records:
            torch._dynamo.mark_static_address(cache.slot)
        else:
            torch._dynamo.mark_dynamic(cache.columns, 0)
        return cache

    def begin(cache: Slots, ids: Sequence[int], work: Workload) -> torch.Tensor:
        """The prompt's token, in memory of its own: a CUDA graph's outputs are overwritten by the next."""
        cache.restart()
        padding = work.length - len(ids) if records else 0
        rows = prompt(module, [*ids, *[0] * padding], work.batch)
        if rows.shape[1] == 1:
            return further(module, cache, rows).clone()
        last = torch.tensor([len(ids) - 1], device=rows.device) if records else None
        torch.compiler.cudagraph_mark_step_begin()
        torch._dynamo.mark_dynamic(rows, 1)
        token, *entries = first(module, rows, last)
        settle(cache, *entries, len(ids))
        return token.clone()

    @torch.inference_mode()
    def run(ids: Sequence[int], work: Workload) -> Iterator[np.ndarray]:
        cache = cache_of(work.batch, -(-work.slots // COARSE) * COARSE if records else work.slots)
        token = begin(cache, ids, work)
        yield fetch(token)
        for _ in range(work.new_tokens - 1):
            torch.compiler.cudagraph_mark_step_begin()
            token.copy_(further(module, cache, token))
            yield fetch(token)

    return run


def whole(module, mode: str = "default"):
    """A greedy loop without a cache: the text stands in S slots, and one program runs all of them for every token."""
    module, program = fixed(module), compiled(whole_step, mode)

    @torch.inference_mode()
    def run(ids: Sequence[int], work: Workload) -> Iterator[np.ndarray]:
        text = prompt(module, [*ids, *[0] * (work.slots - len(ids))], work.batch)
        length = torch.tensor([len(ids)], device=text.device)
        torch._dynamo.mark_dynamic(text, 1)
        for _ in range(work.new_tokens):
            yield fetch(program(module, text, length))

    return run
