"""An extraction by more workers than there are here: simulated, event by event, from times that were measured here.

The rule by which units are handed out is the engine's own (`activations.dealer`); what a worker does is drawn. A worker
loads for a drawn start, then does its units one after the other, each for a drawn duration and an overhead. It fails at
a constant rate while it works or loads, loses the unit it is at, and comes back after another start. Not simulated: a
disk, a network or a memory that many share, so what comes out is what the handing out allows, and no forecast.
"""

from __future__ import annotations

import heapq
import itertools
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from llama_lab.activations.dealer import Dealer


@dataclass(frozen=True)
class Fleet:
    """What is simulated. durations, starts: seconds that are drawn from. overhead: seconds a unit takes besides.
    rate: failures of a worker in a second of its work."""

    workers: int
    units: int
    durations: Sequence[float]
    starts: Sequence[float]
    overhead: float = 0.0
    rate: float = 0.0


class Outcome(NamedTuple):
    """seconds: until the last unit is committed. commits: units, each once. repeats: units finished when someone else
    had committed them. failures: of workers. lost: seconds of work that failures took."""

    seconds: float
    commits: int
    repeats: int
    failures: int
    lost: float


class Ahead(NamedTuple):
    """What is to happen to a worker. unit: that it is at, None while it starts or waits. fails: instead of an end."""

    time: float
    order: int
    worker: int
    unit: int | None
    fails: bool
    began: float


def simulate(fleet: Fleet, seed: int = 0) -> Outcome:
    """One run of a fleet; the same for the same seed."""
    draw, orders, dealer = random.Random(seed), itertools.count(), Dealer(range(fleet.units))
    events: list[Ahead] = []
    commits = repeats = failures = 0
    now = lost = 0.0

    def go(worker: int, seconds: float, unit: int | None) -> None:
        until = draw.expovariate(fleet.rate) if fleet.rate else math.inf
        heapq.heappush(events, Ahead(now + min(seconds, until), next(orders), worker, unit, until < seconds, now))

    def start(worker: int) -> None:
        go(worker, draw.choice(fleet.starts), None)

    def work(worker: int) -> None:
        dealer.deal(worker)
        hand = dealer.hands[worker]
        while hand and hand[0] not in dealer.left:  # another has committed it
            dealer.committed(worker, hand[0])
            dealer.deal(worker)
        if hand:
            go(worker, draw.choice(fleet.durations) + fleet.overhead, hand[0])

    for worker in range(fleet.workers):
        start(worker)
    while dealer.left:
        now, _, worker, unit, fails, began = heapq.heappop(events)
        if fails:
            failures, lost = failures + 1, lost + now - began
            start(worker)
            continue
        if unit is not None:
            commits, repeats = commits + (unit in dealer.left), repeats + (unit not in dealer.left)
            dealer.committed(worker, unit)
        work(worker)
    return Outcome(now, commits, repeats, failures, lost)


def useful(fleet: Fleet, outcome: Outcome) -> float:
    """Share of the workers' time that the model computed for a unit that counted: 1 where nothing is lost to starts,
    overhead, failures, repeats and waiting."""
    mean = sum(fleet.durations) / len(fleet.durations)
    return fleet.units * mean / (fleet.workers * outcome.seconds)
