"""Traces: idle shares that are known beforehand, and real traces of real programs."""

import gzip
import json
import time

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llama_lab.activations import trace
from llama_lab.activations.trace import Trace, covered, device_work, idle_share
from llama_lab.bench import tracing
from tests.activations.stores import says

pytestmark = pytest.mark.usefixtures("compiling")


def x(ts, end, pid=1, tid=1, name="dot", **args):
    return dict(ph="X", pid=pid, tid=tid, ts=ts, dur=end - ts, name=name, **(dict(args=args) if args else {}))


def op(ts, end, device=0, **where):
    """An instruction as the CPU backend traces it."""
    return x(ts, end, hlo_op="dot", hlo_module="jit_f", device_ordinal=str(device), **where)


def process(pid, name, **threads):
    """A process and its threads, t1="…" being the name of thread 1."""
    named = [dict(ph="M", pid=pid, name="process_name", args=dict(name=name))]
    return named + [
        dict(ph="M", pid=pid, tid=int(t[1:]), name="thread_name", args=dict(name=n)) for t, n in threads.items()
    ]


def packed(*events):
    return gzip.compress(json.dumps({"displayTimeUnit": "ns", "traceEvents": [*events, {}]}).encode())


HOST = process(1, "/host:CPU", t1="python", t2="tf_XLAEigen/1", t3="tf_XLAPjRtCpuClient/2")


@pytest.mark.parametrize(
    ("work", "share"),
    [
        ([op(0, 10)], 0.0),
        ([op(0, 10), op(10, 20)], 0.0),
        ([op(0, 10), op(30, 40)], 0.5),
        ([op(30, 40), op(0, 10)], 0.5),  # in any order
        ([op(100, 110), op(130, 140)], 0.5),  # from the first event, not from 0
        ([op(0, 10), op(5, 15), op(20, 25)], 0.2),  # overlapping
        ([op(0, 20), op(5, 10), op(6, 7), op(35, 40)], 0.375),  # a loop and what it runs
        ([op(0, 10, tid=2), op(5, 10, tid=3), op(15, 20, tid=2)], 0.25),  # several threads of one device
        ([op(0, 10, tid=2), op(10, 20, tid=3)], 0.0),
        ([op(0, 10), op(5, 5), op(40, 40)], 0.75),  # instants
        ([op(7, 7)], 0.0),
        # the host's own work
        ([op(0, 10), x(10, 90, name="batch 1"), x(12, 80, name="PjitFunction(f)"), op(90, 100)], 0.8),
        ([op(0, 40, device=0), op(0, 10, device=1)], 0.375),  # the mean of 0 and 0.75
        ([op(0, 10, device=0), op(90, 100, device=1)], 0.9),
    ],
)
def test_known_idle_shares_on_a_cpu(work, share):
    assert idle_share(packed(*HOST, *work)) == pytest.approx(share)


def test_of_a_gpu_the_streams_count_and_of_a_tpu_the_operations():
    streams = dict(t7="Stream #20(Compute,MemcpyD2D)", t8="Stream #21(MemcpyD2H)")
    gpu = process(2, "/device:GPU:0", **streams, t9="XLA Modules", t10="XLA Ops")
    other = process(3, "/device:GPU:1", t7="Stream #20(Compute)", t8="CUPTI overhead")
    work = [
        x(0, 10, 2, 7, "fusion_1", hlo_op="fusion.1"),
        x(40, 50, 2, 7, "MemcpyD2D"),
        x(10, 40, 2, 8, "MemcpyD2H"),
        x(0, 50, 2, 9, "jit_f"),
        x(0, 50, 2, 10, "fusion.1", hlo_op="fusion.1"),
        x(0, 50, name="launch", hlo_op="fusion.1"),
        x(10, 40, 2, 7, "MemoryAlloc"),
    ]
    assert device_work([*HOST, *gpu, *work]) == {"/device:GPU:0": [(0, 10), (40, 50)]}
    assert idle_share(packed(*HOST, *gpu, *work)) == pytest.approx(0.6)
    both = [*work, x(0, 50, 3, 7, "fusion_1"), x(0, 90, 3, 8, "overhead")]
    assert idle_share(packed(*HOST, *gpu, *other, *both)) == pytest.approx(0.3)
    tpu = process(2, "/device:TPU:0", t1="Steps", t2="XLA Modules", t3="XLA Ops")
    work = [x(0, 100, 2, 1, "0"), x(0, 100, 2, 2, "jit_f"), x(0, 25, 2, 3, "fusion"), x(75, 100, 2, 3, "dot")]
    assert idle_share(packed(*HOST, *tpu, *work)) == pytest.approx(0.5)


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20)), min_size=1))
def test_the_union_of_intervals_is_what_counting_says(spans):
    intervals = [(start, start + length) for start, length in spans]
    assert covered(intervals) == len({t for start, end in intervals for t in range(start, end)})


def test_what_no_share_can_be_computed_of_is_one_line(monkeypatch, tmp_path):
    with says("This is not a trace"):
        idle_share(b"no JSON")
    with says("has no device work"):
        idle_share(packed(*HOST, x(0, 10, name="PjitFunction(f)")))
    monkeypatch.setattr(trace, "MOST_EVENTS", 2)
    with says("is cut off: XLA keeps 2 events"):
        idle_share(packed(*HOST, op(0, 10), op(30, 40)))
    with says("A trace needs at least 1 batch"):
        Trace(tmp_path / "trace.json.gz", 0)


SECONDS = 0.05


@pytest.fixture(scope="module")
def work():
    """A compiled function, and an argument that keeps it busy for some milliseconds."""

    @jax.jit
    def busy(value):
        return jax.lax.fori_loop(0, 5, lambda _, v: jnp.tanh(v @ v), value)

    value = jnp.ones((256, 256))
    busy(value).block_until_ready()
    return lambda: busy(value)


def names(path):
    return [e["name"] for e in tracing.events(path) if e.get("ph") == "X"]


def test_a_real_trace_shows_the_host_sleeping(work, tmp_path):
    path = tmp_path / "deep" / "trace.json.gz"
    with Trace(path) as tracing_:
        for number in range(3):
            with tracing_.batch(number):
                work().block_until_ready()
            time.sleep(SECONDS)
    assert [n for n in names(path) if n.startswith("batch")] == ["batch 0", "batch 1", "batch 2"]
    (intervals,) = device_work(tracing.events(path)).values()
    window = max(end for _, end in intervals) - min(start for start, _ in intervals)
    assert covered(intervals) > 0
    idle = window - covered(intervals)
    assert idle >= 2 * SECONDS * 1e6  # the device slept at least as long as the host did, twice in between
    assert idle_share(path) == pytest.approx(idle / window)
    modules = {e["args"]["hlo_module"] for e in tracing.events(path) if "hlo_op" in e.get("args", {})}
    assert modules == {"jit_busy"}


def test_only_the_first_batches_are_traced(work, tmp_path):
    path = tmp_path / "trace.json.gz"
    with Trace(path, batches=2) as tracing_:
        for number in range(10, 15):
            with tracing_.batch(number):
                work().block_until_ready()
                assert path.exists() == (number >= 12)  # written once the third one begins, and not again
                if number == 12:
                    stamp = path.stat().st_mtime_ns
    assert path.stat().st_mtime_ns == stamp
    assert [n for n in names(path) if n.startswith("batch")] == ["batch 10", "batch 11"]


def test_without_a_path_and_after_an_error_nothing_is_written(work, tmp_path, monkeypatch):
    path = tmp_path / "trace.json.gz"
    with pytest.raises(ZeroDivisionError), Trace(path) as tracing_, tracing_.batch(0):
        raise ZeroDivisionError
    assert list(tmp_path.iterdir()) == []
    with Trace(path), says("No trace can be taken"), Trace(tmp_path / "other"):
        pass
    assert path.exists()
    monkeypatch.setattr(jax.profiler, "start_trace", lambda *_, **__: pytest.fail("it traces"))
    with Trace(None) as tracing_, tracing_.batch(0):
        work()
