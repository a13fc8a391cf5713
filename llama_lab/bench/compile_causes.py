"""JAX's explanations of compilations, shortened for a table and condensed for people.

`shorten` keeps JAX's words but drops repetition and what differs between runs; `condense` names the class of the cause
in a few words.
"""

from __future__ import annotations

import re
from collections import Counter

from llama_lab.bench.guard import NO_LOWERING, NO_RETRACE

SEPARATOR = " | "  # between the messages of a cause, as `Guard.cause` joins them
KEPT = 2  # differing arguments that a message still lists; a cache has two arrays a layer, all with the same story
FIRST = "first call of a function"
COMMITTED = "no retrace, an argument is committed where it was not"
AHEAD = "compiled from a program that was lowered before"
DIFFERENCE = re.compile(
    r"\* at (?P<path>.+?), now (?P<now>.+?) and before (?P<before>.+?)(?=,? so the pytree| \* at | … | \(\d+ times\)|$)"
)
STATIC = re.compile(r"Static\(val=(.*)\)$")
METADATA = re.compile(r"with pytree metadata (\w+)\((.*)\)$")
SETTINGS = re.compile(r"^(<class '[\w.]+'>) with pytree metadata (.*)$")  # of a class with words of its own


def shorten(cause: str) -> str:
    """A cause without paths of the machine, object ids and long lists; equal messages become one with their number."""
    messages: Counter[str] = Counter()
    for message in filter(None, cause.split(SEPARATOR)):
        message = re.sub(r"\S*/(?=llama_(?:jax|lab)/)", "", re.sub(r" id=\d+", "", message))
        head, *differences = message.split(" * at ")
        more = len(differences) - KEPT
        kept = " * at ".join([head, *differences[:KEPT]])
        messages[kept + (f" … and {more} more" if more > 0 else "")] += 1
    return SEPARATOR.join(message + (f" ({n} times)" if n > 1 else "") for message, n in messages.items())


def condense(cause: str) -> str:
    """The classes of a cause, each once, in a few words; "" for an empty cause.

    A function that JAX has never seen says nothing new where another message compares a call with one before: helpers
    inside a program are new whenever the program is traced again.
    """
    classes = list(dict.fromkeys(condense_message(message) for message in cause.split(SEPARATOR) if message))
    return "; ".join([words for words in classes if words != FIRST] or classes)


def kinds(condensed: str) -> str:
    """The classes of a condensed cause without their values, such as `static argument; shape`."""
    return "; ".join(dict.fromkeys(words.partition(":")[0] for words in condensed.split("; ")))


def quote(cause: str) -> str:
    """The most informative message of a cause, in JAX's words, without the parts that every message has."""
    messages = cause.split(SEPARATOR)
    message = next((m for m in messages if condense_message(m) != FIRST), messages[0])
    return re.sub(
        r"TRACING CACHE MISS at \S+ |(?<=: )for .+? all previously seen cache keys differ\. For the closest"
        r" previous key: ",
        "",
        message,
    )


def condense_message(message: str) -> str:
    """The class of one message."""
    if message in (NO_RETRACE, NO_LOWERING):
        return COMMITTED if message == NO_RETRACE else AHEAD
    if "never seen function" in message:
        return FIRST
    difference = DIFFERENCE.search(message)
    if not difference:
        return message[:80]
    now, before = difference["now"].strip(" ,"), difference["before"].strip(" ,")
    if "different input types" in message:  # such as f32[1,3,40,64]
        same = now.partition("[")[0] == before.partition("[")[0]
        return f"{'shape' if same else 'type'}: {now}, before {before}"
    if (a := STATIC.search(now)) and (b := STATIC.search(before)):
        return f"static argument: {a[1]}, before {b[1]}"
    if (a := METADATA.search(now)) and (b := METADATA.search(before)) and a[1] == b[1]:
        return "static argument: " + changed(a[2], b[2])
    if (a := SETTINGS.search(now)) and (b := SETTINGS.search(before)) and a[1] == b[1]:
        return f"static argument: {a[2]}, before {b[2]}"
    return "another structure of the arguments"


def changed(now: str, before: str) -> str:
    """What differs between two lists of `name=value`, such as `temperature=0.7, before 0.0`."""
    old = dict(pair.split("=", 1) for pair in before.split(", "))
    pairs = [pair.split("=", 1) for pair in now.split(", ")]
    return ", ".join(f"{name}={value}, before {old.get(name)}" for name, value in pairs if old.get(name) != value)
