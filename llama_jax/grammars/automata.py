"""The deterministic automaton of a language (the subset construction), and what two of them make together.

Every loop counts its work: a tree that would grow beyond all bounds is refused, as a regular expression may describe an
automaton of exponential size.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from llama_jax.grammars.languages import DEAD, LARGEST, Automaton, Budget, ImpossibleError, TooLargeError
from llama_jax.grammars.networks import Network


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


def alike(table: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(the columns that differ [S K], the number of each of the 256 in it)."""
    known: dict[bytes, int] = {}
    classes = np.array([known.setdefault(column.tobytes(), len(known)) for column in table.T])
    return table[:, np.unique(classes, return_index=True)[1]], classes


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
    letters, classes = alike(np.vstack(tables))
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
    return reduced(following.astype(np.int32), accepts, classes)
