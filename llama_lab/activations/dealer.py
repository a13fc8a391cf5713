"""Assigns units to workers: as they have room, again if a worker dies, and the last ones a second time to idle workers,
so that no one waits for a slow one."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Hashable, Iterable

IN_HAND = 6  # units that a worker has at a time: those that are written, one that runs, the next ones being read


class Dealer:
    """Units to do, and the workers that hold them. left: those that are not committed."""

    def __init__(self, numbers: Iterable[int]):
        self.waiting = deque(numbers)
        self.left = set(self.waiting)
        self.hands: dict[Hashable, list[int]] = {}
        self.copies: Counter[int] = Counter()  # hands that a unit is in

    def deal(self, worker: Hashable) -> list[int]:
        """The units that a worker gets now, and holds from now on."""
        hand, given = self.hands.setdefault(worker, []), []
        while len(hand) < IN_HAND and (unit := self.next(hand)) is not None:
            hand.append(unit)
            given.append(unit)
            self.copies[unit] += 1
        return given

    def next(self, hand: list[int]) -> int | None:
        """A unit that has not been started. A worker without any may also get one that others hold: the one with the
        fewest holders, last in its list."""
        while self.waiting:
            if (unit := self.waiting.popleft()) in self.left:
                return unit
        if hand:
            return None
        left, copies = self.left, self.copies
        held = ((copies[u], -i, u) for other in self.hands.values() for i, u in enumerate(other) if u in left)
        return min(held, default=(0, 0, None))[2]

    def committed(self, worker: Hashable, unit: int) -> None:
        """A unit is committed, by this worker or by another."""
        self.left.discard(unit)
        if unit in self.hands.get(worker, ()):
            self.hands[worker].remove(unit)
            self.copies[unit] -= 1

    def lost(self, worker: Hashable) -> None:
        """A worker has died. Its units go to the end: if one of these kills workers, the others are done first."""
        hand = self.hands.pop(worker, [])
        self.copies.subtract(hand)
        self.waiting += hand
