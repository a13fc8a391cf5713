"""The value made last, which the subjects of one process share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Latest:
    """Keeps one value and what it was made of. The old value is let go before a new one takes its memory."""

    def __init__(self):
        self.source: Any = None
        self.value: Any = None

    def get(self, source: Any, make: Callable[[], Any]) -> Any:
        """The value made of this source: tuples are compared, other objects must be the same one."""
        same = self.source == source if isinstance(source, tuple) else self.source is source
        if self.value is None or not same:
            self.source = self.value = None
            self.value, self.source = make(), source
        return self.value

    def clear(self) -> None:
        self.source = self.value = None
