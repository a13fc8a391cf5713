"""The cost of a pass with each number of drafts on this machine, in plain steps: measured once, with the program that
runs, and kept in the user's cache.

    engine = ll.build(checkpoint, "loop+fused+lookup")                       # measures when it is first needed
    engine = replace(engine, costs=Costs((1, 1.1, 1.7, 3.2)))                # or is told: the same passes every time

On a machine where rows cost nothing, every pass may have all drafts; where each costs as much as a step, none pays off.
`decoding.depth` weighs the cost against how many drafts are right. Costs never change the tokens of `fused`, and under
XLA they change only near-ties (`decoding.drafts`).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import jax
import jax.numpy as jnp
import numpy as np

from llama_jax.identity import of_engine
from llama_jax.plumbing import entries, paths
from llama_jax.plumbing.errors import UserError
from llama_jax.plumbing.values import listed, number
from llama_jax.sampling import Sampler, free

FOLDER, MOST, LARGEST = "costs", 256, 4096  # entries that are left; bytes of one
# rounds of a call of each depth: the first warms up, the fastest of the others counts. As many as there is time for,
# since what else the machine does is a large part of a short call
FEWEST, MOST_ROUNDS, TIME = 4, 24, 0.25  # rounds, rounds, seconds
LEAST, GREATEST = 1e-3, 1e3  # that a cost may be
SLIGHTEST = 1.05  # what a pass with drafts costs at least: where it seems to be less, that was noise
QUIET = 1.25  # the usual call may take so many times the fastest; beyond that, others ran and the costs are not kept


@dataclass
class Costs:
    """given: the cost of each of `placement.depths`, in plain steps; None if they are measured. known: measured costs,
    by the shape of the request."""

    given: Sequence[float] | None = None
    known: dict = field(default_factory=dict)

    def __post_init__(self):
        if self.given is not None:
            values = listed(self.given, "costs", "numbers, one for each depth")
            self.given = tuple(number(each, "A pass's cost", LEAST, GREATEST) for each in values)

    def of(self, engine, batch, token, carry, sampler, bounds):
        """(bounds with costs, carry) for a call of `engine.programs.decode` with these arguments, otherwise unchanged.
        If the costs are unknown, that program first runs a few times; its output is not read.

        Raises UserError if those given are for other depths.
        """
        depths = engine.placement.depths
        if self.given is not None:
            if len(self.given) != len(depths):
                raise UserError(
                    f"{len(self.given)} costs are given; {engine.placement.name!r} has passes of"
                    f" {', '.join(map(str, depths))} drafts, so it needs {len(depths)}."
                )
            return replace(bounds, costs=np.array(self.given, np.float32)), carry
        settings, constrained = free(sampler), free(sampler) is not sampler
        settings_of = repr(settings) if isinstance(settings, Sampler) else "traced"
        asked = len(batch.ids), batch.slots, settings_of + ", constrained" * constrained
        if asked not in self.known:
            if batch.ids.shape[1] + depths[-1] >= batch.slots:  # too short an answer for a pass of each depth
                return replace(bounds, costs=only(0, depths)), carry
            path = entry(engine, asked)
            if (costs := kept(path, len(depths))) is None:
                costs, quiet, carry = measured(engine, token, carry, sampler, bounds)
                if quiet:
                    keep(path, costs)
            self.known[asked] = costs
        return replace(bounds, costs=self.known[asked]), carry


def only(index: int, depths: Sequence[int]) -> np.ndarray:
    """Costs that make every pass take the depth of this index, whatever was learned."""
    return np.where(np.arange(len(depths)) == index, LEAST, np.inf).astype(np.float32)


def measured(engine, token, carry, sampler, bounds) -> tuple[np.ndarray, bool, object]:
    """(costs float32 [depths], whether the machine was quiet, carry): calls of one pass each, the depths in turn. They
    write behind the cache's length, where positions are masked until they are overwritten, as after wrong drafts."""
    depths, times, started = engine.placement.depths, [], time.perf_counter()
    bounds = replace(bounds, limit=np.int32(1), stop=np.full_like(bounds.stop, -1))
    while len(times) < FEWEST or (len(times) < MOST_ROUNDS and time.perf_counter() - started < TIME):
        times.append([])
        for index in range(len(depths)):
            before = copied(carry)
            jax.block_until_ready((carry, before))
            with unread(engine) as named:
                began = time.perf_counter()
                called = engine.programs.decode(
                    engine.params, token, carry, sampler, replace(bounds, costs=only(index, depths)), **named
                )
                jax.block_until_ready(called)
                times[-1].append(time.perf_counter() - began)
            carry = rewound(called[-1], before)
    fastest = np.min(times[1:], axis=0)
    quiet = bool((np.median(times[1:], axis=0) < QUIET * fastest).all())
    costs = np.maximum.accumulate(fastest / fastest[0])  # a pass of more rows never takes less
    costs[1:] = np.maximum(costs[1:], SLIGHTEST)
    return costs.astype(np.float32), quiet, carry


def copied(carry):
    """What a call donates and the next one needs again: everything but keys and values, and what a proposer keeps,
    which rewinds by itself as it does after wrong drafts."""
    small = replace(carry, cache=replace(carry.cache, entries=None), kept=None)
    return jax.tree.map(jnp.copy, small)


def rewound(after, before):
    """The carry before a call, with the keys and values of the one after it."""
    return replace(before, cache=replace(before.cache, entries=after.cache.entries), kept=after.kept)


@contextlib.contextmanager
def unread(engine):
    """Arguments for a program that sends tokens, so that no reader gets them."""
    if engine.programs.receiver is None:
        yield {}
        return
    with engine.programs.receiver.taking(lambda tokens: True) as request:
        yield dict(request=request)


def entry(engine, asked: tuple):
    """The file for costs; None if the user's cache cannot be used. Each program, machine and shape has its own file."""
    known = of_engine(engine) | dict(asked=asked, rounds=(FEWEST, MOST_ROUNDS, TIME))
    if engine.placement.kernels != "none":
        from llama_jax.kernels import isa

        known["isa"] = isa.target().isa
    digest = hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()
    try:
        return paths.private(FOLDER) / f"{digest[:32]}.json"
    except UserError:
        return None


def kept(path, many: int) -> np.ndarray | None:
    """Costs of an entry; None if there is none, or if it is not a list of as many costs."""
    content = path and entries.read(path, LARGEST)
    with contextlib.suppress(ValueError, UserError, TypeError):
        costs = Costs(json.loads(content)).given if content else ()
        return np.array(costs, np.float32) if len(costs) == many else None
    return None


def keep(path, costs: np.ndarray) -> None:
    """Write an entry if possible; without it the next process measures again."""
    if path:
        with contextlib.suppress(UserError):
            entries.write(path, json.dumps([round(float(cost), 4) for cost in costs]).encode())
            entries.tidy(path.parent, "*.json", MOST)
