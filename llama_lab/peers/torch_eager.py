"""PyTorch op by op: transformers' `generate`, and loops around transformers' modules. Prompts are never padded
here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from transformers import DynamicCache, GenerationConfig
from transformers.generation import BaseStreamer, StoppingCriteria, StoppingCriteriaList

from llama_jax.plumbing import threads
from llama_jax.sampling import Sampler
from llama_lab.bench.workload import Workload
from llama_lab.peers import torch_static
from llama_lab.peers.torch_sampling import chooser


def fetch(token: torch.Tensor) -> np.ndarray:
    """Tokens [B 1] or [B] as a host array int32 [1 B]; waits until they are computed."""
    return token.reshape(1, -1).cpu().numpy().astype(np.int32)


def prompt(module, ids: Sequence[int], batch: int) -> torch.Tensor:
    """Equal rows [B T] on the module's device."""
    return torch.tensor([list(ids)] * batch, device=module.device)


class Arrivals(BaseStreamer):
    """Hands each step's tokens [1 B] to a channel as `generate` makes them; the prompt, which it streams first, is left
    out.

    Waits until the reader asks for the next: it would otherwise see the tokens when Python's lock happens to be free.
    """

    def __init__(self, channel: threads.Channel):
        self.channel, self.prompted = channel, False

    def put(self, value: torch.Tensor) -> None:
        if self.prompted:
            self.channel.put(fetch(value))
            self.channel.room()
        self.prompted = True

    def end(self) -> None:
        pass


class Left(StoppingCriteria):
    """Stops once nobody reads any more."""

    def __init__(self, channel: threads.Channel):
        self.channel = channel

    def __call__(self, input_ids, scores, **_):
        return torch.full((input_ids.shape[0],), self.channel.closed, device=input_ids.device)


def generated(module, cache: str):
    """transformers' `generate` in a thread of its own, its tokens through a streamer. cache: its name of a KV cache.

    `generate` may compile by itself on a GPU; that is turned off here: its CUDA graphs do not outlive the thread, and
    `torch.compile` has subjects of its own.
    """
    count = torch.get_num_threads()

    def run(ids: Sequence[int], work: Workload) -> Iterator[np.ndarray]:
        settings = GenerationConfig(
            max_new_tokens=work.new_tokens, cache_implementation=cache, disable_compile=True, **chosen_by(work.sampler)
        )

        @torch.inference_mode()
        def produce(channel: threads.Channel) -> None:
            torch.set_num_threads(count)  # OpenMP counts a new thread's own
            torch.manual_seed(work.seed)
            rows = prompt(module, ids, work.batch)
            stop = StoppingCriteriaList([Left(channel)])
            module.generate(
                rows,
                attention_mask=torch.ones_like(rows),
                generation_config=settings,
                streamer=Arrivals(channel),
                stopping_criteria=stop,
            )

        return threads.threaded(produce, 0, "generate")

    return run


def chosen_by(sampler: Sampler) -> dict:
    """The fields of a GenerationConfig that say how tokens are chosen."""
    if sampler.temperature == 0:
        return dict(do_sample=False)
    settings = dict(temperature=sampler.temperature, top_k=sampler.top_k, top_p=sampler.top_p)
    return dict(do_sample=True, **settings, **({"min_p": sampler.min_p} if sampler.min_p else {}))


def growing(module):
    """A loop; keys and values in transformers' dynamic cache, which concatenates."""

    @torch.inference_mode()
    def run(ids: Sequence[int], work: Workload) -> Iterator[np.ndarray]:
        choose, cache = chooser(work), DynamicCache(config=module.config)
        token = prompt(module, ids, work.batch)
        for _ in range(work.new_tokens):
            token = choose(module(token, past_key_values=cache, use_cache=True, logits_to_keep=1).logits)
            yield fetch(token)

    return run


def whole(module):
    """A loop without a KV cache: the whole text again for every token."""

    @torch.inference_mode()
    def run(ids: Sequence[int], work: Workload) -> Iterator[np.ndarray]:
        choose, text = chooser(work), prompt(module, ids, work.batch)
        for _ in range(work.new_tokens):
            token = choose(module(text, use_cache=False, logits_to_keep=1).logits)
            yield fetch(token)
            text = torch.cat([text, token], dim=1)

    return run


def static(module):
    """A loop; keys and values written in place."""
    module = torch_static.fixed(module)

    @torch.inference_mode()
    def run(ids: Sequence[int], work: Workload) -> Iterator[np.ndarray]:
        choose, cache = chooser(work), torch_static.Slots(module, work.batch, work.slots)
        token = choose(torch_static.prefill_logits(module, cache, prompt(module, ids, work.batch)))
        yield fetch(token)
        for _ in range(work.new_tokens - 1):
            token = choose(torch_static.step_logits(module, cache, token))
            yield fetch(token)

    return run
