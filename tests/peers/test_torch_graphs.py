"""The logic around CUDA graphs on a stand-in that captures nothing: buckets, bounds, buffers. No result comes from
here.

The stand-in behaves as a capture does in what the logic must survive: the work runs a few times beforehand, and a graph
knows addresses only, so that it does not keep alive what lies there. That the work can be captured at all is checked by
its operations.
"""

import gc
import weakref
from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from llama_jax import generate
from llama_lab import peers
from llama_lab.bench.workload import Workload
from llama_lab.peers import torch_eager, torch_graphs, torch_model
from llama_lab.peers.torch_graphs import Cached, Whole
from tests.conftest import among_the_fast
from tests.peers.conftest import small, some_ids, tokens

EDGES = [n for edge in (16, 24, 32) for n in (edge - 1, edge, edge + 1)]
WAYS = [(kind, scripted) for kind in (Cached, Whole) for scripted in (False, True)]


def stand_in(work):
    for _ in range(torch_graphs.WARM_UPS):
        work()
    alive = weakref.ref(work)
    return lambda: alive()()


@pytest.fixture(scope="module")
def module(llama):
    return torch_model.module(llama.config, llama.params)


@pytest.mark.parametrize("family", among_the_fast(("llama",), peers.TWINS))
@pytest.mark.parametrize(("kind", "scripted"), WAYS)
def test_padding_to_a_bucket_never_changes_a_token(family, kind, scripted):
    loaded = small(family)
    module = torch_model.module(loaded.config, loaded.params)
    eager, way = torch_eager.growing(module), kind(module, stand_in, scripted)
    for n in (1, 2, *EDGES):
        work = Workload((), new_tokens=3, length=n, batch=2)
        for seed in (0, 1):  # a second request on buffers that the first has filled
            ids = some_ids(n, seed=seed)
            assert np.array_equal(tokens(way, ids, work), tokens(eager, ids, work)), n


def test_one_graph_a_bucket_and_one_a_cache(module):
    way, lengths = Cached(module, stand_in), range(1, 33)
    for n in lengths:
        tokens(way, some_ids(n), Workload((), new_tokens=3, length=32))
    assert way.captured == len({generate.bucket(n) for n in lengths}) + 1
    tokens(way, some_ids(9), Workload((), new_tokens=1, length=32, batch=2))
    assert way.captured == len({generate.bucket(n) for n in lengths}) + 2  # one token needs no step


@pytest.mark.parametrize(("kind", "scripted"), WAYS)
def test_the_oldest_graph_goes_with_its_buffers_and_is_captured_again(module, kind, scripted):
    eager, way = torch_eager.growing(module), kind(module, stand_in, scripted, bound=2)
    captured = []
    for n in (5, 20, 40, 5, 5):
        ids, work = some_ids(n), Workload((), new_tokens=4, length=n)
        assert np.array_equal(tokens(way, ids, work), tokens(eager, ids, work))
        assert len(way.homes) <= (1 if kind is Cached else 2)
        captured.append(way.captured)
    assert captured == [(2 if kind is Cached else 1) * n for n in (1, 2, 3, 4, 4)]


@pytest.mark.parametrize(("kind", "scripted"), WAYS)
def test_its_memory_is_free_as_soon_as_it_goes(module, kind, scripted):
    way = kind(module, stand_in, scripted)
    tokens(way, some_ids(5), Workload((), new_tokens=3, length=5))
    kept = [weakref.ref(way), *map(weakref.ref, way.homes.values())]
    gc.disable()  # nothing waits for the collector of cycles
    try:
        del way
        assert [known() for known in kept] == [None, None]
    finally:
        gc.enable()


class Operations(TorchDispatchMode):
    """Names of operations, and shapes of what they are given."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.seen.append((str(function), tuple(tuple(a.shape) for a in args if isinstance(a, torch.Tensor))))
        return function(*args, **(kwargs or {}))


WAITING = "_local_scalar_dense", "nonzero", "item", "is_nonzero", "_to_copy.default cpu", "masked_select", "multinomial"


@pytest.mark.parametrize(("kind", "scripted"), WAYS)
def test_captured_work_is_the_same_operations_every_time_and_never_waits(module, kind, scripted):
    """A graph replays what was launched once: nothing in it may depend on values, nor bring one to the host."""
    by_work = {}

    def record(work):
        def replay():
            with Operations() as operations:
                work()
            by_work.setdefault(id(work), []).append(operations.seen)

        return replay

    way = kind(module, record, scripted)
    for n in (9, 12, 3):
        tokens(way, some_ids(n), Workload((), new_tokens=4, length=12))
    assert len(by_work) == (2 if kind is Cached else 1)
    for runs in by_work.values():
        assert len(runs) >= 3
        assert all(run == runs[0] for run in runs)
        assert not [name for name, _ in runs[0] if any(w in name for w in WAITING)]


def test_the_recorder_captures_as_the_documentation_asks(monkeypatch):
    """The order of calls on CUDA's own interface, its driver replaced: warm-ups on a side stream, then one capture in
    the pool."""
    log = []

    class Stream:
        def __init__(self, name="side"):
            self.name = name

        def wait_stream(self, other):
            log.append(f"{self.name} waits for {other.name}")

    @contextmanager
    def within(name):
        log.append(f"in {name}")
        yield
        log.append(f"out of {name}")

    graph = SimpleNamespace(replay=lambda: log.append("replay"))
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: "pool")
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: Stream("current"))
    monkeypatch.setattr(torch.cuda, "stream", lambda s: within(s.name))
    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: graph)
    monkeypatch.setattr(torch.cuda, "graph", lambda g, pool: within(f"capture in {pool}"))
    torch_graphs.recorder()(lambda: log.append("work"))()
    warm_up = ["in side", *["work"] * torch_graphs.WARM_UPS, "out of side"]
    capture = ["in capture in pool", "work", "out of capture in pool"]
    assert log == ["side waits for current", *warm_up, "current waits for side", *capture, "replay"]
