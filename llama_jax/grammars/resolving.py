"""A schema's references and alternatives: the plain schemas that it is a choice of."""

from __future__ import annotations

import itertools
from urllib.parse import unquote

from llama_jax.grammars.languages import Budget, ImpossibleError, TooLargeError
from llama_jax.grammars.merging import OF_TYPE, Plain, apart, check, inside, merged
from llama_jax.plumbing.errors import UserError, near

MANY = 1_000  # properties of an object, and alternatives of a value
TYPED = {"type", "enum", "const", *itertools.chain(*OF_TYPE.values())}


def satisfiable(make, items) -> list:
    """What is made of each item that a value satisfies. Raises the last ImpossibleError where there is none."""
    made, last = [], None
    for item in items:
        try:
            made.append(make(item))
        except ImpossibleError as error:
            last = error
    if not made and last is not None:
        raise last
    return made


class Resolver:
    """Follows references. regular: False once one has led back to a value that holds it."""

    def __init__(self, root: dict | bool, budget: Budget):
        self.root, self.budget, self.regular = root, budget, True

    def plain(self, schema, place: str, above: frozenset = frozenset(), chain: tuple = ()) -> list[Plain]:
        """The schemas without references and alternatives that a schema is a choice of. above: the references that led
        to the values that hold this one; chain: those that led from there to here."""
        self.budget.take(50)
        if schema is False:
            raise ImpossibleError(f"The schema's {place} is false: no value satisfies it.")
        schema = {} if schema is True else schema
        check(schema, place)
        own = {name: value for name, value in schema.items() if name in TYPED}
        found = [Plain(own, place, above | {*chain})]
        if "$ref" in schema:
            found = self.product(found, self.referred(schema["$ref"], place, above, chain))
        for n, part in enumerate(schema.get("allOf", [])):
            found = self.product(found, self.plain(part, inside(place, "allOf", n), above, chain))
        for name in ("anyOf", "oneOf"):
            if name in schema:
                found = self.product(found, self.options(schema[name], inside(place, name), above, chain))
        return found

    def product(self, left: list[Plain], right: list[Plain]) -> list[Plain]:
        """What one of each ask together."""
        if len(left) * len(right) > MANY:
            raise TooLargeError(f"The schema's {right[0].place} has more than {MANY:,} alternatives.")
        return satisfiable(lambda pair: merged(*pair), itertools.product(left, right))

    def options(self, parts: list, place: str, above: frozenset, chain: tuple) -> list[Plain]:
        """The alternatives of anyOf or oneOf."""
        if len(parts) > MANY:
            raise TooLargeError(f"The schema's {place} has more than {MANY:,} alternatives.")
        sides = satisfiable(lambda one: self.plain(one[1], inside(place, one[0]), above, chain), enumerate(parts))
        if place.rpartition(".")[2] == "oneOf":
            self.budget.take(sum(map(len, sides)) ** 2)
            pairs = itertools.combinations(sides, 2)
            if not all(apart(a, b, self.apart_of) for left, right in pairs for a in left for b in right):
                raise UserError(
                    f"The schema's {place} is not supported: its parts do not differ by type, by const, or by a"
                    " required property's; write anyOf."
                )
        return [one for side in sides for one in side]

    def apart_of(self, schema) -> list[Plain]:
        try:
            return self.plain(schema, "")
        except UserError:
            return [Plain({}, "", frozenset())]  # any value; the error is found where the property is read

    def referred(self, ref: str, place: str, above: frozenset, chain: tuple) -> list[Plain]:
        """The schemas behind a reference."""
        where = inside(place, "$ref")
        if ref in chain:
            raise UserError(f"The schema's {where} leads back to itself; no value ends it.")
        if not ref.startswith("#"):
            raise UserError(f"The schema's {where} is {ref!r}; only references within the schema (#/$defs/…) are read.")
        if ref in above:
            self.regular = False
            return [Plain({}, place, above)]
        schema, path = self.root, []
        for part in filter(None, unquote(ref[1:]).split("/")):
            path.append(part.replace("~1", "/").replace("~0", "~"))
            try:
                schema = schema[int(path[-1]) if isinstance(schema, list) else path[-1]]
            except (KeyError, IndexError, ValueError, TypeError):
                known = near(path[-1], schema) if isinstance(schema, dict) else ""
                raise UserError(f"The schema's {where} is {ref!r}, which is not there.{known}") from None
        if not isinstance(schema, dict | bool):
            raise UserError(f"The schema's {where} is {ref!r}, which is no schema.")
        return self.plain(schema, inside("", *path), above, (*chain, ref))
