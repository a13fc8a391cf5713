"""A field of a dataclass whose value is made on first use."""

from __future__ import annotations

from typing import Any


class Deferred:
    """Given as a value, or as a function of no arguments that makes it. `field: str = Deferred()` has no default."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, instance: Any, owner: type) -> Any:
        if instance is None:  # which is how dataclass asks for a default
            raise AttributeError(self.name)
        value = vars(instance)[self.name]
        if callable(value):
            value = vars(instance)[self.name] = value()
        return value

    def __set__(self, instance: Any, value: Any) -> None:
        vars(instance)[self.name] = value
