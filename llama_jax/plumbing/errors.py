"""The exception for users' mistakes: a single line that names the culprit and the remedy."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

LONGEST = 1_000  # characters of a line


class UserError(Exception):
    """A mistake the user can fix. The command line prints it as one line and exits with code 2.

    A line that is too long, because of a name in it, loses its middle: culprit and remedy are at its ends.
    """

    def __init__(self, message: str):
        line, half = " ".join(str(message).split()), LONGEST // 2
        super().__init__(line if len(line) <= LONGEST else f"{line[:half]} … {line[-half:]}")

    def _render_traceback_(self) -> list[str]:
        """What IPython shows, in a notebook too: only the line."""
        return [f"UserError: {self}"]


def near(name: str, known: Iterable[str]) -> str:
    """A hint such as ` Did you mean 'step'?`, or the list of known names when nothing is close."""
    known = sorted(known)
    close = difflib.get_close_matches(name, known, n=3, cutoff=0.55)
    if close:
        return " Did you mean " + " or ".join(repr(c) for c in close) + "?"
    return " Known: " + ", ".join(known) + "."
