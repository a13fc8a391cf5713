"""Texts that come with every Python: the language's manual, as one text or as paragraphs, and modules of its
library."""

from __future__ import annotations

from pathlib import Path


def topics() -> list[str]:
    """The manual's topics in the order of their names."""
    from pydoc_data.topics import topics as known

    return [known[name] for name in sorted(known)]


def manual() -> str:
    """The manual as one text: some 450,000 characters."""
    return "\n".join(topics())


def paragraphs() -> list[str]:
    """The manual's paragraphs: some 2,600, of 180 characters on average."""
    return [part.strip() for topic in topics() for part in topic.split("\n\n") if part.strip()]


MODULES = ("fractions", "statistics", "textwrap", "heapq")  # the standard library's; the first begins with code soon


def code() -> str:
    """Modules of the standard library as one text: some 120,000 characters of Python, comments and all."""
    from importlib.util import find_spec

    return "\n".join(Path(find_spec(name).origin).read_text(encoding="utf-8") for name in MODULES)
