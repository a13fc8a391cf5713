"""What the device does during an extraction, and the share of time in which it is idle.

with Trace("trace.json.gz", batches=64) as tracing:
    for number, batch in enumerate(batches):
        with tracing.batch(number):
            extractor.dispatch(batch)
idle_share("trace.json.gz")                        # 0.03: for 3% of the traced time the device ran nothing
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import jax

from llama_jax.plumbing.errors import UserError
from llama_lab.bench import tracing

BATCHES = 64  # a trace of some megabytes that a browser still opens
MOST_EVENTS = 1_000_000  # XLA's exporter keeps so many, the earliest, and drops the rest without a word
NO_WORK = ("MemcpyH2D", "MemcpyD2H", "Memory")  # events of a GPU stream: copies to and from the host, allocations

Interval = tuple[float, float]  # microseconds


class Trace:
    """A Perfetto trace of the first `batches` batches inside the block, in a file. Without a path: nothing.

    It is written when the next batch begins, or when the block ends; until then events are held in memory, hence the
    bound. After an error nothing is written. Raises UserError if the file cannot be written, or another trace is being
    taken.
    """

    def __init__(self, path: str | Path | None, batches: int = BATCHES):
        if batches < 1:
            raise UserError(f"A trace needs at least 1 batch; {batches} were given.")
        self.path, self.left, self.stack = path, batches, contextlib.ExitStack()

    def __enter__(self) -> Trace:
        if self.path is not None:
            self.stack.enter_context(tracing.recorded(Path(self.path)))
        return self

    def __exit__(self, *exception) -> None:
        self.stack.__exit__(*exception)

    @contextlib.contextmanager
    def batch(self, number: int) -> Iterator[None]:
        """Events inside are named `batch NUMBER` in the trace."""
        if not self.left:
            self.stack.close()
        self.left -= self.left > 0
        with jax.profiler.TraceAnnotation(f"batch {number}"):
            yield


def idle_share(trace: bytes | str | Path) -> float:
    """The share, 0 to 1, of the time from the first to the last piece of device work during which the device ran none;
    of several devices the mean of their shares.

    On a CPU, whose cores are the device, an instruction that keeps one thread busy counts the same as one that keeps
    all busy. Copies between host and device are not work. Tracing itself costs time, a large share for short
    instructions; a CUDA graph may show as one event, gaps included. Raises UserError for an invalid trace, for one
    without device work, and for one that XLA truncated at MOST_EVENTS.
    """
    events = tracing.events(trace)
    if sum(e.get("ph") == "X" for e in events) >= MOST_EVENTS:
        raise UserError(f"This trace is cut off: XLA keeps {MOST_EVENTS:,} events. Trace fewer batches.")
    if not (work := device_work(events)):
        raise UserError("This trace has no device work: no XLA instruction ran while it was taken.")
    first = min(start for intervals in work.values() for start, _ in intervals)
    last = max(end for intervals in work.values() for _, end in intervals)
    shares = [1 - covered(intervals) / (last - first) if last > first else 0.0 for intervals in work.values()]
    return max(0.0, sum(shares) / len(shares))


def device_work(events: Sequence[dict]) -> dict[str, list[Interval]]:
    """Device → when it executed something, in any order, overlaps included.

    GPUs and TPUs are processes named /device:KIND:N. Of a GPU the threads named `Stream #…` hold its kernels and
    copies; others, such as `XLA Modules`, sum these up, gaps included. A TPU has the thread `XLA Ops` instead. On the
    CPU backend the instructions run in threads of the host: an event with an `hlo_op` is one (XLA's thunk_executor.cc),
    with its device's number.
    """
    named = [e for e in events if e.get("ph") == "M" and "name" in e["args"]]
    names = [(e["name"], e.get("pid"), e.get("tid"), e["args"]["name"]) for e in named]
    processes = {pid: name for kind, pid, _, name in names if kind == "process_name" and name.startswith("/device:")}
    threads = {(pid, tid): name for kind, pid, tid, name in names if kind == "thread_name" and pid in processes}
    streamed = {pid for (pid, _), name in threads.items() if name.startswith("Stream #")}
    work: dict[str, list[Interval]] = defaultdict(list)
    host: dict[str, list[Interval]] = defaultdict(list)
    for e in events:
        if e.get("ph") != "X":
            continue
        pid, interval = e["pid"], (e["ts"], e["ts"] + e["dur"])
        thread = threads.get((pid, e.get("tid")), "")
        if thread.startswith("Stream #" if pid in streamed else "XLA Ops") and not e["name"].startswith(NO_WORK):
            work[processes[pid]].append(interval)
        elif pid not in processes and "hlo_op" in e.get("args", {}):
            host[f"{pid}:{e['args'].get('device_ordinal', 0)}"].append(interval)
    return work or host  # on a machine with an accelerator, what the host says of instructions is their launch


def covered(intervals: Iterable[Interval]) -> float:
    """The length of the union of intervals."""
    total, reached = 0.0, float("-inf")
    for start, end in sorted(intervals):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total
