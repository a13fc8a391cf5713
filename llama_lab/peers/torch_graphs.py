"""CUDA graphs by hand: work on buffers that never move, captured once per shape and replayed.

A prompt is padded to its length's bucket (`generate.bucket`), one graph a bucket; the step is one graph a cache. Graphs
are kept in a bounded LRU. All that a request needs is captured before its first replay, since a capture runs the work a
few times to warm up. The hybrid leaves both ends out of the graph: TorchScript pads the prompt and chooses the token.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from weakref import WeakValueDictionary

import numpy as np
import torch

from llama_jax import generate
from llama_lab.bench.workload import Workload
from llama_lab.peers import torch_script, torch_static
from llama_lab.peers.torch_eager import fetch, prompt
from llama_lab.peers.torch_script import chooser, sample

GRAPHS = 16  # kept by a subject: two a bucket of prompt lengths at most, and far more than a workload has
WARM_UPS = 3  # runs on a side stream before a capture, so that libraries have their workspaces

Record = Callable[[Callable[[], None]], Callable[[], None]]


def recorder() -> Record:
    """record(work) → replay. work(): launches on fixed buffers, nothing that waits for the device; it runs a few times
    first.

    All graphs share one memory pool: they run one after the other, and what they hand over lies in buffers outside it.
    """
    pool = torch.cuda.graph_pool_handle()

    def record(work: Callable[[], None]) -> Callable[[], None]:
        side, current = torch.cuda.Stream(), torch.cuda.current_stream()
        side.wait_stream(current)
        with torch.cuda.stream(side):
            for _ in range(WARM_UPS):
                work()
        current.wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
            work()
        return graph.replay

    return record


class Buffers:
    """Where a request of one shape lives: its text [B L], the number of its tokens [1], the last token [B 1], the
    logits [B 1 V]."""

    def __init__(self, module: torch.nn.Module, batch: int, length: int, token: torch.Tensor | None = None):
        weight = module.get_input_embeddings().weight
        whole = dict(dtype=torch.int64, device=weight.device)
        self.text = torch.zeros((batch, length), **whole)
        self.count = torch.ones(1, **whole)
        self.token = torch.zeros((batch, 1), **whole) if token is None else token
        self.logits = torch.zeros((batch, 1, module.config.vocab_size), dtype=weight.dtype, device=weight.device)


class Home:
    """A KV cache of one size, the buffers of its step, and those of prompts by their padded length."""

    def __init__(self, module: torch.nn.Module, batch: int, slots: int):
        self.cache = torch_static.Slots(module, batch, slots)
        self.step = Buffers(module, batch, 1)
        self.prompts: dict[int, Buffers] = {}


class Graphs:
    """The graphs of a subject, called as its loop. scripted: the hybrid, TorchScript at both ends.

    The least recently used graph is dropped beyond `bound` and captured again when it is asked for. A graph remembers
    addresses only: the work beside it holds on to what lies there, so that a home lives as long as a graph that works
    on it. Nothing that is kept refers to the subject itself, whose memory is free at once when it goes. captured: how
    often that was done.
    """

    home: type

    def __init__(
        self, module: torch.nn.Module, record: Record | None = None, scripted: bool = False, bound: int = GRAPHS
    ):
        self.module, self.record, self.scripted = torch_static.fixed(module), record or recorder(), scripted
        self.bound, self.captured = bound, 0
        self.graphs: OrderedDict = OrderedDict()  # by (batch, slots, …): (replay, its work)
        self.homes: WeakValueDictionary = WeakValueDictionary()  # by (batch, slots)

    def home_of(self, *key):
        return self.homes.get(key) or self.homes.setdefault(key, self.home(self.module, *key))

    def graph(self, *key) -> Callable[[], None]:
        """The replay of a graph, captured now if there is none."""
        if key not in self.graphs:
            work = self.work(*key)
            self.graphs[key] = self.record(work), work
            self.captured += 1
            if len(self.graphs) > self.bound:
                self.graphs.popitem(last=False)
        self.graphs.move_to_end(key)
        return self.graphs[key][0]

    def fill(self, at: Buffers, ids: Sequence[int], batch: int) -> None:
        """A text and its length into buffers, padded by TorchScript on the device or on the host."""
        length = at.text.shape[1]
        if self.scripted:
            text, count = torch_script.scripted(torch_script.pad_or_truncate)(prompt(self.module, ids, batch), length)
        else:
            text = torch.tensor([[*ids, *[0] * (length - len(ids))]] * batch)
            count = torch.tensor([len(ids)])
        at.text.copy_(text)
        at.count.copy_(count)

    def chosen(self, at: Buffers, choose: Callable) -> torch.Tensor:
        """The token [B 1] after a replay, where the next step reads it."""
        if self.scripted:
            at.token.copy_(choose(at.logits))
        return at.token


class Cached(Graphs):
    """With a KV cache: a graph a bucket of prompts, and one for the step (length 0)."""

    home = Home

    def work(self, batch: int, slots: int, length: int) -> Callable[[], None]:
        module, scripted, home = self.module, self.scripted, self.home_of(batch, slots)
        at = home.prompts[length] if length else home.step

        def work() -> None:
            if length:
                home.cache.restart()
                logits = torch_static.prefill_logits(module, home.cache, at.text, at.count - 1)
            else:
                logits = torch_static.step_logits(module, home.cache, at.token)
            if scripted:
                at.logits.copy_(logits)
            else:
                at.token.copy_(torch_static.greedy(logits))

        return work

    @torch.inference_mode()
    def __call__(self, ids: Sequence[int], work: Workload) -> Iterator[np.ndarray]:
        key, length = (work.batch, work.slots), generate.bucket(len(ids))
        home = self.home_of(*key)
        home.cache.restart()  # a capture takes a few steps first: from the first slot, not beyond the last
        further = self.graph(*key, 0) if work.new_tokens > 1 else None
        if length not in home.prompts:
            home.prompts[length] = Buffers(self.module, work.batch, length, home.step.token)
        first, at = self.graph(*key, length), home.prompts[length]
        self.fill(at, ids, work.batch)
        choose = chooser(work, torch_script.scripted(sample))
        first()
        yield fetch(self.chosen(at, choose))
        for _ in range(work.new_tokens - 1):
            further()
            yield fetch(self.chosen(home.step, choose))


class Whole(Graphs):
    """Without a cache: the whole text in S slots, one graph a number of slots."""

    home = Buffers

    def work(self, batch: int, slots: int) -> Callable[[], None]:
        module, scripted, at = self.module, self.scripted, self.home_of(batch, slots)

        def work() -> None:
            if scripted:
                at.logits.copy_(torch_static.whole_logits(module, at.text, at.count))
            else:
                at.token.copy_(torch_static.whole_step(module, at.text, at.count))

        return work

    @torch.inference_mode()
    def __call__(self, ids: Sequence[int], work: Workload) -> Iterator[np.ndarray]:
        at = self.home_of(work.batch, work.slots)
        at.count.fill_(1)  # a capture appends a few tokens first
        replay = self.graph(work.batch, work.slots)
        self.fill(at, ids, work.batch)
        choose = chooser(work, torch_script.scripted(sample))
        for _ in range(work.new_tokens):
            replay()
            token = self.chosen(at, choose)
            if self.scripted:
                torch_static.append(at.text, at.count, token)
            yield fetch(token)
