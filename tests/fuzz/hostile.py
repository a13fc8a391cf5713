"""What a damaged or hostile input looks like, as hypothesis strategies: values, JSON documents, bytes, files."""

import copy
import json
import os
from pathlib import Path

from hypothesis import strategies as st

DEEP = 200_000
VALUES = (
    None, True, False, 0, -1, 1, 2, 3, 7, 2**31 - 1, 2**31, 2**40, 2**62, 2**63, 2**64, -(2**63), 10**7, 10**18, 10**30,
    1.5, -0.0, 1e308, float("nan"), float("inf"), float("-inf"),
    "", " ", "x", "1", "nan", "\0", "\ud800", "\n", "é", "👋", "a" * 5_000, "../../etc/passwd", "{{ 1 }}", "<|im_end|>",
    [], {}, [[]], [None], ["x"], [1, 2, 3], [0.5], [1] * 1_000, {"a": {"b": []}}, [2**63], [float("nan")], ["a", 1],
)  # fmt: skip
TEMPLATES = (
    "{{ 'a' * 10**10 }}", "{% for i in range(10**9) %}{{ i }}{% endfor %}",
    "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "{% include 'x' %}", "{% extends 'x' %}", "{{ x.y.z }}",
    "{% set ns = namespace(t='aaaaaaaa') %}{% for i in range(40) %}{% set ns.t = ns.t + ns.t %}{% endfor %}{{ ns.t }}",
    "{{ '%9999999999d' | format(1) }}", "{{ 'a'.ljust(10**10) }}", "{{ 'a' | center(10**10) }}", "{{ 10**10**8 }}",
    "{{ ().__class__.__bases__ }}", "{{ messages[9].content }}", "{% if %}", "{{", "{{ 1/0 }}",
    "{{ raise_exception(1) }}",
    "{{ messages | map(attribute='content') | join('x' * 10**9) }}", "{{ '{:>9999999999}'.format(1) }}",
    "{{ range(10**9) | list | length }}", "{{ strftime_now('%' * 10**6) }}", "{{ strftime_now(1) }}",
    "{{ [1] * 10**10 }}", "{{ lipsum(n=10**6) }}", "{{ messages | tojson | replace('', 'a' * 10**6) }}",
)  # fmt: skip

values = st.sampled_from(VALUES)
sizes = st.sampled_from([0, 1, 2**31 - 1, 2**31, 2**32, 2**40, 2**62, 2**63 - 1, 2**63, 2**64 - 1])


def places(document, at=()):
    """Every path into a JSON document, that of the whole one first; of long lists the first items."""
    yield at
    if isinstance(document, list):
        document = dict(enumerate(document[:3]))
    for key, value in document.items() if isinstance(document, dict) else ():
        yield from places(value, (*at, key))


def changed(document, at, change, value):
    """A copy of a document with something done at one place in it."""
    document = copy.deepcopy(document)
    if not at:
        return value
    parent = document
    for key in at[:-1]:
        parent = parent[key]
    key = at[-1]
    if change == "drop":
        del parent[key]
    elif change == "wrap":
        parent[key] = [parent[key]]
    elif change == "text":
        parent[key] = str(parent[key])
    elif change == "negate" and isinstance(parent[key], int | float):
        parent[key] = -parent[key]
    else:
        parent[key] = value
    return document


@st.composite
def documents(draw, honest):
    """An honest JSON document with one or two things changed."""
    document = honest
    for _ in range(draw(st.sampled_from([1, 1, 1, 2]))):
        at = draw(st.sampled_from(list(places(document))))
        document = changed(
            document, at, draw(st.sampled_from(["put", "put", "put", "drop", "wrap", "text", "negate"])), draw(values)
        )
    return document


@st.composite
def texts_of(draw, honest):
    """An honest JSON document as damaged text: one of `documents`, or text that is hardly JSON."""
    kind = draw(st.sampled_from(["document"] * 8 + ["deep", "twice", "rubbish", "cut"]))
    whole = json.dumps(draw(documents(honest)))
    if kind == "deep":
        return draw(st.sampled_from(["[" * DEEP, '{"a":' * DEEP, "[" * DEEP + "]" * DEEP]))
    if kind == "twice":
        return whole[:-1] + "," + whole[1:] if whole.startswith("{") and len(whole) > 2 else whole * 2
    return whole if kind == "document" else whole + "\n}" if kind == "rubbish" else whole[: len(whole) // 2]


@st.composite
def damage(draw):
    """What happens to a file's bytes: (kind, where as a share of its length, a number)."""
    kind = draw(
        st.sampled_from(["flip", "flip", "flip", "splice", "splice", "cut", "append", "zero", "remove", "empty"])
    )
    return kind, draw(st.floats(0, 1, exclude_max=True)), draw(sizes if kind == "splice" else st.integers(0, 7))


def damaged(content: bytes, how) -> bytes:
    """The bytes after `damage`."""
    kind, share, number = how
    at = int(share * len(content))
    if kind == "flip" and content:
        return content[:at] + bytes([content[at] ^ (1 << number)]) + content[at + 1 :]
    if kind == "splice":
        return content[:at] + number.to_bytes(8, "little") + content[at + 8 :]
    if kind == "append":
        return content + b"rubbish" * (number + 1)
    if kind == "zero":
        return content[:at] + bytes(min(64, len(content) - at)) + content[at + 64 :]
    if kind == "remove":
        return content[:at] + content[at + 1 + number :]
    return b"" if kind == "empty" else content[:at]


ODD = ("folder", "fifo", "missing", "loop", "closed")


def put(path: Path, content) -> None:
    """Write a file, or make one of `ODD` in its place."""
    path.unlink(missing_ok=True)
    if content == "folder":
        path.mkdir()
    elif content == "fifo":
        os.mkfifo(path)
    elif content == "loop":
        path.symlink_to(path.name)
    elif content == "closed":
        path.write_bytes(b"x")
        path.chmod(0)
    elif content != "missing":
        path.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8", "surrogatepass"))
