"""Thousands of requests of all manners to a server of a small random model: `python -m tests.serve.soak --requests
10000` prints what became of them and of the server, and with `--out` keeps it as a table.

Requests come in rounds. After each the server is left alone until it is idle, and looked at: resident memory, threads,
open descriptors, compilations, slots. The first rounds warm it up; from then on nothing may grow. One seed asks the
same requests in the same order.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import json
import random
import sys
import time
from pathlib import Path

import httpx
import psutil

from llama_lab.bench import environment, record
from tests.serve import small
from tests.serve.manners import EXPECTED, MANNERS, Request, request

ROUNDS, WARM_UP = 20, 4  # rounds; those at the beginning that warm up
TOGETHER = 12  # requests at a time: more than there are slots
IDLE_S = 60  # the server must be idle so soon after its last request
GROWTH = 0.03  # of the resident memory after warm-up that may come on top until the end


class Look(record.Row):
    """The idle server after a round. requests: all so far; cpu_seconds: what the server has computed for them."""

    requests: int
    cpu_seconds: float
    resident_bytes: int
    threads: int
    descriptors: int
    compilations: int
    waiting: int
    running: int


class Soak:
    """A server under load. outcomes: how often a manner of asking had which status."""

    def __init__(self, port: int, pid: int, seed: int, count: int):
        self.port, self.process, self.seed = port, psutil.Process(pid), seed
        self.sizes = [count * (n + 1) // ROUNDS - count * n // ROUNDS for n in range(ROUNDS)]
        self.outcomes, self.looks = collections.Counter(), []
        self.random, self.began = random.Random(seed), self.computed()

    async def run(self, told=lambda look: None) -> None:
        done = 0
        for number, size in enumerate(self.sizes):
            waiting = [request(self.random) for _ in range(size)]
            done += size
            async with asyncio.TaskGroup() as group:
                for _ in range(TOGETHER):
                    group.create_task(self.client(waiting))
            self.looks.append(await asyncio.to_thread(self.look, number, done))
            told(self.looks[-1])

    def computed(self) -> float:
        """CPU seconds of the server."""
        return sum(self.process.cpu_times()[:2])

    async def client(self, waiting: list[Request]) -> None:
        """Ask one request after the other until none is left."""
        while waiting:
            asked = waiting.pop()
            self.outcomes[asked.manner, await MANNERS[asked.manner](self.port, asked)] += 1

    def metrics(self) -> dict[str, float]:
        text = httpx.get(f"http://127.0.0.1:{self.port}/metrics").text
        lines = (line.rpartition(" ") for line in text.splitlines() if line and not line.startswith("#"))
        return {name: float(value) for name, _, value in lines}

    def look(self, number: int, done: int) -> Look:
        """Wait until it is idle, or for IDLE_S, and look."""
        busy = "llama_jax_requests_waiting", "llama_jax_requests_running"
        for _ in range(5 * IDLE_S):
            found = self.metrics()
            time.sleep(0.2)  # what was closed is gone from the list of descriptors
            if not any(found[name] for name in busy):
                break
        with self.process.oneshot():
            return Look(
                run="soak", block=number, order=0, process=0, seed=self.seed, valid=True,
                phase="warm-up" if number < WARM_UP else "warm", requests=done,
                cpu_seconds=round(self.computed() - self.began, 2), resident_bytes=self.process.memory_info().rss,
                threads=self.process.num_threads(), descriptors=self.process.num_fds(),
                compilations=int(found["llama_jax_compilations_in_service"]),
                waiting=int(found[busy[0]]), running=int(found[busy[1]]),
            )  # fmt: skip


def complaints(looks: list[Look], outcomes: collections.Counter, growth: float = GROWTH) -> list[str]:
    """What a server that can be left alone would not have done."""
    before, last = looks[WARM_UP - 1], looks[-1]
    found = [
        f"{manner} ended with {status}, {count} times"
        for (manner, status), count in sorted(outcomes.items(), key=str)
        if status not in EXPECTED[manner]
    ]
    grown = last.resident_bytes / before.resident_bytes - 1
    if grown > growth:
        found.append(f"resident memory grew by {100 * grown:.1f}% after warm-up")
    for name in ("threads", "descriptors"):
        if (now := getattr(last, name)) > (then := getattr(before, name)):
            found.append(f"{name} were {then} after warm-up and are {now}")
    for name in ("compilations", "waiting", "running"):
        if value := getattr(last, name):
            found.append(f"{name} are {value}")
    return found


def soak(count: int, seed: int, told=lambda look: None) -> tuple[list[Look], collections.Counter]:
    """(looks, outcomes) of a server that is started for it and ended."""
    with small.server() as (child, port):
        run = Soak(port, child.pid, seed, count)
        asyncio.run(run.run(told))
        return run.looks, run.outcomes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="a table of the looks, its meta beside it")
    asked = parser.parse_args()

    def tell(look: Look) -> None:
        print(
            f"{look.requests:6} requests  {look.cpu_seconds:7.1f} s  {look.resident_bytes / 1e6:7.1f} MB  "
            f"{look.threads} threads  {look.descriptors} descriptors  {look.compilations} compilations",
            flush=True,
        )

    where = environment.capture() if asked.out else {}
    looks, outcomes = soak(asked.requests, asked.seed, tell)
    counts = {f"{manner}: {status}": count for (manner, status), count in sorted(outcomes.items(), key=str)}
    wrong = complaints(looks, outcomes)
    print(json.dumps(counts, indent=1))
    grown = looks[-1].resident_bytes - looks[WARM_UP - 1].resident_bytes
    print("\n".join(wrong) or f"{grown / 1e6:+.1f} MB since the warm-up; nothing compiled, nothing is left")
    if asked.out:
        settings = dict(requests=asked.requests, seed=asked.seed, together=TOGETHER, context=small.CONTEXT, slots=2)
        about = dict(parameters=settings, environment=where, outcomes=counts, complaints=wrong)
        record.write(asked.out, looks, Look, **about)
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
