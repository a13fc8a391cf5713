"""The nondeterministic automaton of a language (Thompson's construction), made from the end to the start, so that
equal ends are shared."""

from __future__ import annotations

from collections.abc import Iterable

from llama_jax.grammars.languages import (
    LARGEST,
    Automaton,
    Budget,
    Bytes,
    Choice,
    Edge,
    Members,
    Repeat,
    Sequence,
    TooLargeError,
)

STATE, ENTRY = 12, 3  # work


class Network:
    """A nondeterministic automaton. Each state has arrows with bytes, and free ones: (target, edge or None)."""

    def __init__(self, budget: Budget):
        self.arrows: list[list[tuple[frozenset[int], int]]] = []
        self.free: list[list[tuple[int, Edge | None]]] = []
        self.budget = budget
        self.known: dict = {}
        self.edges = False

    def state(self) -> int:
        self.budget.take(STATE)
        self.arrows.append([])
        self.free.append([])
        return len(self.arrows) - 1

    def entry(self, node: object, target: int) -> int:
        """The state from which a node's texts lead to the target."""
        key = id(node), target
        if key not in self.known:
            self.budget.take(ENTRY)
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
        if max(node.least, node.most or 0) > LARGEST:
            raise TooLargeError("asks for more repetitions than an automaton has states")
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
