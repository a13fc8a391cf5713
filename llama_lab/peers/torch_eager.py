"""PyTorch op by op: transformers' `generate`, and loops around transformers' modules. `torch-script` pads the prompt
and chooses the token by TorchScript; nothing else here pads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from transformers import DynamicCache, GenerationConfig
from transformers.generation import BaseStreamer, StoppingCriteria, StoppingCriteriaList

from llama_jax.plumbing import threads
from llama_lab.bench.workload import Workload
from llama_lab.peers import torch_model, torch_static
from llama_lab.peers.torch_script import chooser, pad_or_truncate, sample, sample_frozen, scripted


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
    """transformers' `generate` in its own thread, its tokens through a streamer. cache: its name of a KV cache.

    `generate` may compile by itself on a GPU; that is turned off here: its CUDA graphs do not outlive the thread, and
    `torch.compile` has subjects of its own.
    """
    count = torch.get_num_threads()

    def run(ids: Sequence[int], work: Workload) -> Iterator[np.ndarray]:
        s, chosen = work.sampler, dict(do_sample=False)
        if s.temperature:
            chosen = dict(do_sample=True, temperature=s.temperature, top_k=s.top_k, top_p=s.top_p)
            chosen |= dict(min_p=s.min_p) if s.min_p else {}
        settings = GenerationConfig(
            max_new_tokens=work.new_tokens, cache_implementation=cache, disable_compile=True, **chosen
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


def growing(module, quantised: bool = False):
    """A loop; keys and values in transformers' dynamic cache, which concatenates. quantised: the linear layers in
    int8."""
    module = torch_model.quantised(module) if quantised else module

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


def scripted_whole(module):
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


def scripted_static(module, frozen: bool = False):
    """As `static`, the prompt padded to the workload's length. frozen: the sampler's settings are constants of its
    program."""
    module = torch_static.fixed(module)

    @torch.inference_mode()
    def run(ids: Sequence[int], work: Workload) -> Iterator[np.ndarray]:
        pad, choose = scripted(pad_or_truncate), chooser(work, sample_frozen if frozen else scripted(sample))
        cache = torch_static.Slots(module, work.batch, work.slots)
        text, count = pad(prompt(module, ids, work.batch), work.length)
        token = choose(torch_static.prefill_logits(module, cache, text, count - 1))
        yield fetch(token)
        for _ in range(work.new_tokens - 1):
            token = choose(torch_static.step_logits(module, cache, token))
            yield fetch(token)

    return run
