"""All slots in one call: under the fused kernel the weights are read once for all requests.

Slots are sequences of one cache. A call has as many rows as there are requests to step, up to the next power of two: so
many programs, all compiled by `warm`. A row's tokens do not depend on what stands beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from llama_jax import transforms
from llama_jax.engine import Engine, bytes_needed
from llama_jax.plumbing import memory
from llama_jax.plumbing.errors import UserError
from llama_jax.sampling import Constrained, Sampler
from llama_lab.serve.stepper import LIKELY, SIZES, Made, Piece, Sampling, Score, Stepper, answering, padded_pieces


@dataclass(frozen=True)
class Seat:
    """A slot that has something cached. made: the last piece of its prompt. epoch: of the cache that holds it."""

    number: int
    made: Made | None
    epoch: int


class LostError(Exception):
    """The cache that held this request is gone: a call on it failed."""


class Rows(Stepper):
    """As `Stepper`, all its slots one state on the device. A call that fails loses that, and with it every request."""

    together = True

    def __init__(self, engine: Engine, context: int, sizes: tuple[int, ...], slots: int):
        super().__init__(engine, context, sizes)
        self.count, self.epoch = slots, 0
        self.programs = transforms.slots(engine.config, engine.placement)
        self.state = self.programs.create(slots, self.room)

    def pieces(self, ids: Sequence[int]) -> list[Piece]:
        """Padded, which costs nothing: the kernel skips it, and no place of the cache is taken by it."""
        return padded_pieces(ids, self.sizes)

    def kept(self, held: Sequence[int], pad: int, ids: Sequence[int]) -> int:
        return super().kept(held, 0, ids)

    def holds(self, state: Seat | None) -> bool:
        return state is not None and state.epoch == self.epoch

    def begin(self, number: int, piece: np.ndarray, pad: int, seed: int, sampler: Sampling, last: bool = True) -> Seat:
        seat = Seat(number, None, self.epoch)
        return self.extend(self.entered(seat, -pad, [], seed, sampler), piece, sampler, last)

    def resume(self, state: Seat, ids: Sequence[int], seed: int, sampler: Sampling) -> Seat:
        return self.entered(state, len(ids), ids, seed, sampler)

    def entered(self, seat: Seat, position: int, ids: Sequence[int], seed: int, sampler: Sampling) -> Seat:
        seen = np.zeros(self.engine.config.vocab_size, bool)
        seen[list(ids)] = True
        arguments = np.int32(seat.number), np.int32(position), np.uint32(seed), seen, answering(sampler)
        self.state = self.called(seat, self.programs.enter, self.state, *arguments)
        return seat

    def extend(self, state: Seat, piece: np.ndarray, sampler: Sampling, last: bool = True) -> Seat:
        allowed = self.mask(sampler).allowed if last else None
        arguments = self.engine.params, self.state, piece, np.int32(state.number), allowed
        *made, self.state = self.called(state, partial(self.programs.read, last=last), *arguments)
        return Seat(state.number, Made(*made, 0, self.epoch), self.epoch)

    def score(
        self, number: int, state: Seat | None, piece: np.ndarray, following: np.ndarray, pad: int
    ) -> tuple[Made, Seat]:
        seat = state or self.entered(Seat(number, None, self.epoch), -pad, [], 0, Sampler().traced())
        arguments = self.engine.params, self.state, piece, following, np.int32(number)
        found, self.state = self.called(seat, partial(self.programs.score, most=LIKELY), *arguments)
        return Made(following.T, found, 0, self.epoch), seat

    def step(self, states: Sequence[Seat], samplers: Sequence[Sampling]) -> list[tuple[Made, Seat]]:
        numbers, live = among([seat.number for seat in states], self.count)
        for seat in states:
            self.check(seat)
        places, allowed = numbers.tolist(), None
        if any(isinstance(sampler, Constrained) for sampler in samplers):  # then all rows have a mask
            allowed = np.ones((len(numbers), self.engine.config.vocab_size), bool)
            for seat, sampler in zip(states, samplers, strict=True):
                if isinstance(sampler, Constrained):
                    allowed[places.index(seat.number)] = np.asarray(sampler.allowed.allowed)[0]
        arguments = self.engine.params, self.state, numbers, live, allowed
        *made, self.state = self.called(states[0], self.programs.step, *arguments)
        return [
            (Made(*made, places.index(seat.number), self.epoch), Seat(seat.number, None, self.epoch)) for seat in states
        ]

    def fetch(self, made: Made) -> list[int]:
        return self.guarded(made.epoch, super().fetch, made)

    def scores(self, made: Made) -> list[Score]:
        return self.guarded(made.epoch, super().scores, made)

    def called(self, seat: Seat, program, *arguments):
        """What a program returns. The state given is gone then, and where it fails so is what it held."""
        self.check(seat)
        return self.guarded(seat.epoch, program, *arguments)

    def check(self, seat: Seat) -> None:
        if seat.epoch != self.epoch:
            raise LostError

    def guarded(self, epoch: int, call, *arguments):
        try:
            return call(*arguments)
        except Exception:
            if epoch == self.epoch:
                self.epoch += 1
                self.state = self.programs.create(self.count, self.room)
            raise

    def warm(self) -> None:
        sampler, rows = Sampler(temperature=0.5).traced(), 1
        for size in self.sizes or (1,):
            seat = self.begin(0, np.zeros((1, size), np.int32), size - 1, 0, sampler)
            seat = self.extend(self.resume(seat, [0], 0, sampler), np.zeros((1, size), np.int32), sampler)
            self.fetch(seat.made)
        for size in self.sizes[1:]:  # after which more of a prompt comes
            seat = self.extend(self.resume(seat, [0], 0, sampler), np.zeros((1, size), np.int32), sampler, last=False)
            self.fetch(seat.made)
        self.score_once()
        while rows < 2 * self.count:
            seats = [Seat(number, None, self.epoch) for number in range(min(rows, self.count))]
            for seat in seats:
                self.resume(seat, [0], 0, sampler)
            for each in (sampler, Constrained(sampler, self.all)):
                for made, _ in self.step(seats, [each] * len(seats)):
                    self.fetch(made)
            rows *= 2


def among(numbers: Sequence[int], count: int) -> tuple[np.ndarray, np.ndarray]:
    """(numbers of slots int32 [R], rising, R the next power of two or all of them; which of them were asked for)."""
    size = min(1 << (len(numbers) - 1).bit_length(), count)
    others = (number for number in range(count) if number not in numbers)
    chosen = sorted([*numbers, *(next(others) for _ in range(size - len(numbers)))])
    return np.array(chosen, np.int32), np.array([number in numbers for number in chosen])


def build(engine: Engine, context: int, slots: int, sizes: tuple[int, ...] = SIZES) -> Stepper:
    """The stepper of so many slots. Raises UserError where the model has less context, or the machine less memory."""
    most = engine.config.max_position_embeddings
    if not 2 <= context <= most:
        raise UserError(f"--context is {context}; this model has contexts of 2 to {most} tokens.")
    room = Stepper(engine, context, sizes).room
    needed = slots * bytes_needed(engine, False, 1, max(sizes, default=context), room)
    memory.check(needed, f"{slots} slots of {context} tokens", "ask for fewer slots or a smaller context")
    if engine.placement.kernels == "fused":
        return Rows(engine, context, sizes, slots)
    return Stepper(engine, context, sizes)
