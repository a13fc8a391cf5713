"""Languages of bytes: how they are put together, and the deterministic automaton of one.

A language is a tree of nodes. `automaton` turns it into a nondeterministic automaton (Thompson's construction, from the
end to the start, so that equal ends are shared), that into a deterministic one (the subset construction), and removes
states that lead nowhere. Every loop counts its work: a tree that would grow beyond all bounds is refused, as a regular
expression may describe an automaton of exponential size.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from llama_jax.plumbing.errors import UserError

LARGEST = 16_384  # states of an automaton
WORK = 1_500_000  # steps that making one may take: about a second
DEAD = -1


class TooLargeError(UserError):
    """An automaton beyond the bounds."""


class ImpossibleError(UserError):
    """A language without a text."""


@dataclass(frozen=True, eq=False)
class Bytes:
    """One byte of a set."""

    values: frozenset[int]


@dataclass(frozen=True, eq=False)
class Sequence:
    parts: tuple


@dataclass(frozen=True, eq=False)
class Choice:
    options: tuple


@dataclass(frozen=True, eq=False)
class Repeat:
    """From `least` to `most` times a part, without a limit if `most` is None."""

    part: object
    least: int = 0
    most: int | None = None


@dataclass(frozen=True, eq=False)
class Members:
    """Parts of an object or array: (part, whether it must be there), then from `least` to `most` times `more`. skips:
    a part may follow one that is left out. `empty` closes when there is none, `close` after the last."""

    parts: tuple[tuple[object, bool], ...]
    opening: object
    separator: object
    empty: object
    close: object
    skips: bool = True
    more: object = None
    least: int = 0
    most: int | None = None


@dataclass(frozen=True, eq=False)
class Edge:
    """No byte, but the start of the text, or its end. The text is that of `automaton`'s node."""

    end: bool


@dataclass(frozen=True, eq=False)
class Automaton:
    """next: int32 [S 256], the state after a byte, or DEAD. accepts: bool [S]. State 0 is the start."""

    next: np.ndarray = field(repr=False)
    accepts: np.ndarray = field(repr=False)

    @cached_property
    def arrows(self) -> list[list[tuple[frozenset[int], int]]]:
        """Of each state: (bytes, the state after any of them)."""
        targets = [np.unique(row[row != DEAD]).tolist() for row in self.next]
        return [
            [(frozenset(np.flatnonzero(row == target).tolist()), target) for target in some]
            for row, some in zip(self.next, targets, strict=True)
        ]


EMPTY = Sequence(())


def text(value: str | bytes) -> Sequence:
    """Exactly this text."""
    return Sequence(tuple(BYTES[byte] for byte in (value.encode() if isinstance(value, str) else value)))


BYTES = [Bytes(frozenset([byte])) for byte in range(256)]


def choice(options: Iterable) -> object:
    options = tuple(options)
    return options[0] if len(options) == 1 else Choice(options)


def optional(part: object) -> Choice:
    return Choice((part, EMPTY))


class Budget:
    """Counts work. Raises TooLargeError when it is spent."""

    def __init__(self, left: int = WORK):
        self.left = left

    def take(self, work: int = 1) -> None:
        self.left -= work
        if self.left < 0:
            raise TooLargeError("describes an automaton that is too large")


class Network:
    """A nondeterministic automaton. Each state has arrows with bytes, and free ones: (target, edge or None)."""

    def __init__(self, budget: Budget):
        self.arrows: list[list[tuple[frozenset[int], int]]] = []
        self.free: list[list[tuple[int, Edge | None]]] = []
        self.budget = budget
        self.known: dict = {}
        self.edges = False

    def state(self) -> int:
        self.budget.take(4)
        self.arrows.append([])
        self.free.append([])
        return len(self.arrows) - 1

    def entry(self, node: object, target: int) -> int:
        """The state from which a node's texts lead to the target."""
        key = id(node), target
        if key not in self.known:
            self.budget.take()
            self.known[key] = getattr(self, type(node).__name__.lower())(node, target), node  # which keeps its id
        return self.known[key][0]

    def bytes(self, node: Bytes, target: int) -> int:
        start = self.state()
        self.arrows[start].append((node.values, target))
        return start

    def sequence(self, node: Sequence, target: int) -> int:
        for part in reversed(node.parts):
            target = self.entry(part, target)
        return target

    def choice(self, node: Choice, target: int) -> int:
        start = self.state()
        self.free[start] = [(self.entry(option, target), None) for option in node.options]
        return start

    def repeat(self, node: Repeat, target: int) -> int:
        if node.most is None:
            following = self.state()
            self.free[following] = [(self.entry(node.part, following), None), (target, None)]
        else:
            following = target
            for _ in range(node.most - node.least):
                start = self.state()
                self.free[start] = [(self.entry(node.part, following), None), (target, None)]
                following = start
        for _ in range(node.least):
            following = self.entry(node.part, following)
        return following

    def members(self, node: Members, target: int) -> int:
        first, later = self.entry(node.empty, target), self.entry(node.close, target)
        ends = first, later
        if node.more is not None and node.most != 0:
            following = None if node.most is None else node.most - 1
            least = max(node.least - 1, 0)
            rest = Sequence((node.more, Repeat(Sequence((node.separator, node.more)), least, following)))
            begin = self.entry(rest, later)
            first = self.either([(node.opening, begin)], None if node.least else first)
            later = self.either([(node.separator, begin)], None if node.least else later)
        for part, required in reversed(node.parts):
            begin = self.entry(part, later)
            skipped = (None, None) if required else (first, later) if node.skips else ends
            first = self.either([(node.opening, begin)], skipped[0])
            later = self.either([(node.separator, begin)], skipped[1])
        return first

    def either(self, entries: list, other: int | None) -> int:
        """A state that leads through one of (node, target), or to another state."""
        start = self.state()
        self.free[start] = [(self.entry(node, target), None) for node, target in entries]
        if other is not None:
            self.free[start].append((other, None))
        return start

    def edge(self, node: Edge, target: int) -> int:
        start, self.edges = self.state(), True
        self.free[start].append((target, node))
        return start

    def automaton(self, node: Automaton, target: int) -> int:
        states = [self.state() for _ in node.accepts]
        for state, arrows, accepts in zip(states, node.arrows, node.accepts, strict=True):
            self.arrows[state] = [(values, states[following]) for values, following in arrows]
            if accepts:
                self.free[state].append((target, None))
        return states[0]

    def reached(self, states: Iterable[int], first: bool, last: bool) -> frozenset[int]:
        """States that are reached without a byte. first, last: whether this is the text's start, or its end."""
        found, waiting = set(states), list(states)
        self.budget.take(len(waiting))
        while waiting:
            for target, edge in self.free[waiting.pop()]:
                self.budget.take()
                if target not in found and (edge is None or (last if edge.end else first)):
                    found.add(target)
                    waiting.append(target)
        return frozenset(found)


def automaton(node: object, budget: Budget) -> Automaton:
    """The deterministic automaton of a node's texts, without states that lead nowhere. Raises ImpossibleError where
    there is no text, TooLargeError beyond LARGEST states or the budget."""
    network = Network(budget)
    end = network.state()
    start = network.entry(node, end)
    arrows, classes = classified(network)
    numbers, cores, rows = {}, [], []

    def number(targets: frozenset[int] | int) -> int:
        if targets not in numbers:
            if len(cores) >= LARGEST:
                raise TooLargeError("describes an automaton that is too large")
            numbers[targets] = len(cores)
            cores.append(frozenset([targets]) if isinstance(targets, int) else targets)
        return numbers[targets]

    number(frozenset([start]))
    accepts = []
    for core in cores:  # which grows
        first = not rows
        states = network.reached(core, first, False)
        accepts.append(end in states or (network.edges and end in network.reached(core, first, True)))
        row = [DEAD] * (classes.max() + 1)
        for letter, targets in moves(arrows, states, budget).items():
            row[letter] = number(targets if isinstance(targets, int) else frozenset(targets))
        rows.append(row)
    return reduced(np.array(rows, np.int32), np.array(accepts), classes)


def moves(arrows: list, states: Iterable[int], budget: Budget) -> dict[int, set[int] | int]:
    """The state to which each letter leads from a set of states, or several."""
    found: dict[int, set[int] | int] = {}
    for state in states:
        for letters, target in arrows[state]:
            budget.take(len(letters))
            for letter in letters:
                if (had := found.setdefault(letter, target)) == target:
                    continue
                if isinstance(had, int):
                    found[letter] = {had, target}
                else:
                    had.add(target)
    return found


def classified(network: Network) -> tuple[list, np.ndarray]:
    """(each state's arrows, with classes of bytes in place of bytes; the class of each byte [256]): bytes that no
    arrow tells apart are one letter."""
    sets = {values: n for n, values in enumerate({values for arrows in network.arrows for values, _ in arrows})}
    member = np.zeros((len(sets) + 1, 256), np.uint8)
    for values, n in sets.items():
        member[n, list(values)] = 1
    classes = np.unique(member, axis=1, return_inverse=True)[1].reshape(-1)
    letters = {values: np.unique(classes[list(values)]).tolist() for values in sets}
    return [[(letters[values], target) for values, target in arrows] for arrows in network.arrows], classes


def leading(sources: np.ndarray, targets: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Which states lead to one of the ends, bool [S], along arrows from sources to targets."""
    order = np.argsort(targets, kind="stable")
    sources, places = sources[order], np.searchsorted(targets[order], np.arange(len(ends) + 1))
    found, fresh = ends.copy(), np.flatnonzero(ends)
    while len(fresh):
        counts = places[fresh + 1] - places[fresh]
        within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        before = np.unique(sources[np.repeat(places[fresh], counts) + within])
        fresh = before[~found[before]]
        found[fresh] = True
    return found


def reduced(following: np.ndarray, accepts: np.ndarray, classes: np.ndarray, rounds: int = 8) -> Automaton:
    """The automaton of states [S K] after each class of bytes, without those that lead nowhere, and with most of its
    equal states as one. classes: [256]."""
    sources, letters = np.nonzero(following != DEAD)
    alive = leading(sources, following[sources, letters], accepts)
    if not alive[0]:
        raise ImpossibleError("has no value that satisfies it")
    numbers = np.append(np.where(alive, np.cumsum(alive) - 1, DEAD), DEAD)  # DEAD stays what it is
    following, accepts = numbers[following[alive]].astype(np.int32), accepts[alive]
    for _ in range(rounds):
        known: dict[bytes, int] = {}
        rows = np.column_stack([following, accepts]).astype(np.int32)
        numbers = np.array([known.setdefault(row.tobytes(), len(known)) for row in rows])
        if len(known) == len(rows):
            break
        kept = np.unique(numbers, return_index=True)[1]
        following, accepts = np.append(numbers, DEAD)[following[kept]].astype(np.int32), accepts[kept]
    return Automaton(following[:, classes], accepts)


def combined(left: Automaton, right: Automaton, without: bool = False) -> Automaton:
    """The texts of both automata, or those of the left one without those of the right one."""
    sizes = len(left.accepts) + 1, len(right.accepts) + 1
    tables = [np.vstack([one.next, np.full((1, 256), DEAD)]) for one in (left, right)]
    tables = [np.where(table == DEAD, size - 1, table) for table, size in zip(tables, sizes, strict=True)]
    ends = [np.append(one.accepts, False) for one in (left, right)]
    letters, classes = np.unique(np.vstack(tables), axis=1, return_inverse=True)
    tables, codes, fresh, rows = np.split(letters, [sizes[0]]), [0], np.array([0]), []
    seen = {0}
    while len(fresh):
        if len(seen) > 4 * LARGEST:
            raise TooLargeError("describes an automaton that is too large")
        after = tables[0][fresh // sizes[1]].astype(np.int64) * sizes[1] + tables[1][fresh % sizes[1]]
        rows.append(after)
        fresh = np.array([code for code in np.unique(after).tolist() if code not in seen], np.int64)
        seen.update(fresh.tolist())
        codes += fresh.tolist()
    rows, codes = np.vstack(rows), np.array(codes)
    order = np.argsort(codes)
    following = order[np.searchsorted(codes[order], rows)]
    accepts = ends[0][codes // sizes[1]] & (ends[1][codes % sizes[1]] ^ without)
    return reduced(following.astype(np.int32), accepts, classes.reshape(-1))
