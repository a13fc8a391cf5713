"""CUDA graphs by hand: work on buffers that never move, captured once a shape and replayed.

A prompt is padded to its length's bucket (`generate.bucket`), one graph a bucket; the step is one graph a cache. Graphs
are kept in a bounded LRU. All that a request needs is captured before its first replay, since a capture runs the work a
few times to warm up. The hybrid leaves both ends out of the graph: TorchScript pads the prompt and chooses the token.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from weakref import WeakValueDictionary

import numpy as np
import torch

from llama_jax import generate
from llama_lab.bench.workload import Workload
from llama_lab.peers import torch_script, torch_static
from llama_lab.peers.torch_eager import fetch, prompt
from llama_lab.peers.torch_sampling import chooser, sample

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


class Graphs:
    """Replays by key, the least recently used one dropped beyond `bound`; a dropped one is captured again when it is
    asked for.

    Each is kept with its work: a graph remembers addresses only, the work holds on to what lies there.
    """

    def __init__(self, record: Record, bound: int = GRAPHS):
        self.record, self.bound, self.known, self.captured = record, bound, OrderedDict(), 0

    def get(self, key: Hashable, work: Callable[[], None]) -> Callable[[], None]:
        if key not in self.known:
            self.known[key] = self.record(work), work
            self.captured += 1
            while len(self.known) > self.bound:
                self.known.popitem(last=False)
        self.known.move_to_end(key)
        return self.known[key][0]


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

    def fill(self, text: torch.Tensor, count: torch.Tensor) -> None:
        self.text.copy_(text)
        self.count.copy_(count)


class Cached:
    """The graphs of a subject with a KV cache. scripted: the hybrid, TorchScript at both ends."""

    def __init__(self, module: torch.nn.Module, record: Record, scripted: bool, bound: int = GRAPHS):
        self.module, self.scripted, self.graphs = torch_static.fixed(module), scripted, Graphs(record, bound)
        self.homes: WeakValueDictionary = WeakValueDictionary()  # a home lives as long as a graph that works on it

    def home(self, *key) -> Home:
        """(batch, slots) → the cache of that size with the buffers of its step."""
        return self.homes.get(key) or self.homes.setdefault(key, Home(self.module, *key))

    def prompt_graph(self, home: Home, length: int) -> tuple[Callable[[], None], Buffers]:
        """(replay, its buffers) for prompts up to `length`."""
        at = home.prompts.setdefault(length, Buffers(self.module, home.batch, length, home.step.token))

        def work() -> None:
            home.cache.restart()
            logits = torch_static.prefill_logits(self.module, home.cache, at.text, at.count - 1)
            self.finish(at, logits)

        return self.graphs.get((home.batch, home.slots, length), work), at

    def step_graph(self, home: Home) -> Callable[[], None]:
        def work() -> None:
            self.finish(home.step, torch_static.step_logits(self.module, home.cache, home.step.token))

        return self.graphs.get((home.batch, home.slots), work)

    def finish(self, at: Buffers, logits: torch.Tensor) -> None:
        if self.scripted:
            at.logits.copy_(logits)
        else:
            at.token.copy_(torch_static.greedy(logits))

    def chosen(self, at: Buffers, choose: Callable) -> torch.Tensor:
        """The token [B 1] after a replay, where the next step reads it."""
        if self.scripted:
            at.token.copy_(choose(at.logits))
        return at.token

    @torch.inference_mode()
    def run(self, ids: Sequence[int], work: Workload) -> Iterator[np.ndarray]:
        home, length = self.home(work.batch, work.slots), generate.bucket(len(ids))
        home.cache.restart()  # a capture takes a few steps first: from the first slot, not beyond the last
        further = self.step_graph(home) if work.new_tokens > 1 else None
        first, at = self.prompt_graph(home, length)
        at.fill(*padded(self.module, ids, work.batch, length, self.scripted))
        choose = chooser(work, torch_script.scripted(sample))
        first()
        yield fetch(self.chosen(at, choose))
        for _ in range(work.new_tokens - 1):
            further()
            yield fetch(self.chosen(home.step, choose))


class Home:
    """A KV cache of one size, the buffers of its step, and those of prompts by their padded length."""

    def __init__(self, module: torch.nn.Module, batch: int, slots: int):
        self.batch, self.slots = batch, slots
        self.cache = torch_static.Slots(module, batch, slots)
        self.step = Buffers(module, batch, 1)
        self.prompts: dict[int, Buffers] = {}


class Whole:
    """The graphs of a subject without a cache: the whole text in S slots, one graph a number of slots."""

    def __init__(self, module: torch.nn.Module, record: Record, scripted: bool, bound: int = GRAPHS):
        self.module, self.scripted, self.graphs = torch_static.fixed(module), scripted, Graphs(record, bound)
        self.homes: WeakValueDictionary = WeakValueDictionary()

    def graph(self, batch: int, slots: int) -> tuple[Callable[[], None], Buffers]:
        at = self.homes.get((batch, slots)) or self.homes.setdefault((batch, slots), Buffers(self.module, batch, slots))
        at.count.fill_(1)  # a capture appends a few tokens first

        def work() -> None:
            if self.scripted:
                at.logits.copy_(torch_static.whole_logits(self.module, at.text, at.count))
            else:
                at.token.copy_(torch_static.whole_step(self.module, at.text, at.count))

        return self.graphs.get((batch, slots), work), at

    @torch.inference_mode()
    def run(self, ids: Sequence[int], work: Workload) -> Iterator[np.ndarray]:
        replay, at = self.graph(work.batch, work.slots)
        at.fill(*padded(self.module, ids, work.batch, work.slots, self.scripted))
        choose = chooser(work, torch_script.scripted(sample))
        for _ in range(work.new_tokens):
            replay()
            if self.scripted:
                at.token.copy_(choose(at.logits))
                torch_static.append(at.text, at.count, at.token)
            yield fetch(at.token)


def padded(module, ids: Sequence[int], batch: int, length: int, scripted: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """(text [B length], number of its tokens [1]), by TorchScript on the device or on the host."""
    if scripted:
        return torch_script.scripted(torch_script.pad_or_truncate)(prompt(module, ids, batch), length)
    return torch.tensor([[*ids, *[0] * (length - len(ids))]] * batch), torch.tensor([len(ids)])


def cached(module, scripted: bool = False):
    return Cached(module, recorder(), scripted).run


def whole(module, scripted: bool = False):
    return Whole(module, recorder(), scripted).run
