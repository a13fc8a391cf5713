"""A JSON schema as a language of bytes.

Objects have only the properties that are named, in the order given, unless `additionalProperties` has a schema for
others, which follow them; so every text satisfies the schema, but not every value that does has a text. Between the
parts of a value there may be nothing, a space, or a new line with two spaces for each level; after a colon a space at
most.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal

from llama_jax.grammars import patterns, ranges
from llama_jax.grammars.automata import automaton, combined
from llama_jax.grammars.languages import (
    EMPTY,
    Budget,
    Choice,
    ImpossibleError,
    Sequence,
    TooLargeError,
    choice,
    text,
)
from llama_jax.grammars.layout import COLON, DEEPEST, enclosed, literal, spelled
from llama_jax.grammars.merging import OF_TYPE, Plain, inside, type_of, widened, written
from llama_jax.grammars.resolving import MANY, Resolver, satisfiable
from llama_jax.plumbing.errors import UserError, near

STRING = Sequence((text('"'), patterns.ANYTHING, text('"')))
CONSTANTS = {"boolean": Choice((text("true"), text("false"))), "null": text("null")}


@contextmanager
def named(place: str) -> Iterator[None]:
    """Puts the place in front of an error that has none."""
    try:
        yield
    except UserError as error:
        if str(error).startswith("The schema"):
            raise
        raise type(error)(f"The schema's {place} {error}." if place else f"The schema {error}.") from None


def check_written(schema: dict) -> None:
    """Raises UserError for one that is no JSON document, such as a number of more digits than Python writes."""
    try:
        json.dumps(schema)
    except (ValueError, TypeError):
        raise UserError("holds a value that JSON has no text for") from None


class Reader(Resolver):
    """Makes the node of a schema. regular: False once it has met a value of any depth, which no automaton describes;
    what it makes is then of no use, but all keywords are still checked."""

    def value(self, schema, place: str, depth: int = 0, above: frozenset = frozenset()) -> object:
        """The node of a schema's values at a level."""
        if depth > DEEPEST:
            raise TooLargeError(f"The schema's {place} is deeper than {DEEPEST} levels.")
        return choice(satisfiable(lambda one: self.one(one, depth), self.plain(schema, place, above)))

    def one(self, plain: Plain, depth: int) -> object:
        keywords = plain.keywords
        if (values := plain.values) is not None:
            return self.listed(plain, values, depth)
        asked = keywords.get("type") or [t for t, names in OF_TYPE.items() if keywords.keys() & {*names}]
        if not asked:
            return self.anything()
        types = [asked] if isinstance(asked, str) else sorted({*asked} - ({"integer"} if "number" in asked else set()))
        return choice(satisfiable(lambda kind: self.typed(kind, plain, depth), types))

    def typed(self, kind: str, plain: Plain, depth: int) -> object:
        if kind in CONSTANTS:
            return CONSTANTS[kind]
        if kind == "string":
            return self.string(plain.keywords, plain.place)
        if kind in ("number", "integer"):
            return self.number(plain.keywords, plain.place, kind == "integer")
        return getattr(self, kind)(plain, depth)

    def anything(self) -> Sequence:
        self.regular = False
        return EMPTY

    def listed(self, plain: Plain, values: list, depth: int) -> object:
        """The values of enum or const that satisfy the other keywords."""
        place = inside(plain.place, "const" if "const" in plain.keywords else "enum")
        rest = {name: value for name, value in plain.keywords.items() if name not in ("enum", "const")}
        if "const" in plain.keywords and "enum" in plain.keywords:
            values = [v for v in values if written(v) in {written(one) for one in plain.keywords["enum"]}]
        values = [value for value in values if "type" not in rest or type_of(value) in widened(rest["type"])]
        with named(place):
            if not values:
                raise ImpossibleError("has no value of its type")
            self.budget.take(sum(len(json.dumps(value)) for value in values))
            node = choice(literal(value, depth) for value in values)
            names = {
                name for kind in map(type_of, values) for name in OF_TYPE.get(kind.replace("integer", "number"), ())
            }
            if not rest.keys() & names:
                return node
            other = self.one(Plain(rest, plain.place, plain.refs), depth)
            return combined(automaton(node, self.budget), automaton(other, self.budget)) if self.regular else EMPTY

    def string(self, keywords: dict, place: str) -> object:
        least, most = keywords.get("minLength", 0), keywords.get("maxLength")
        formatted = keywords.get("format")
        if formatted is not None and formatted not in patterns.FORMATS:
            known = near(formatted, patterns.FORMATS)
            raise UserError(f"The schema's {inside(place, 'format')} {formatted!r} is not supported.{known}")
        ordered(least, most, inside(place, "minLength"))
        asked = [keywords["pattern"]] if "pattern" in keywords else []
        if not (asked or formatted or least or most is not None):
            return STRING
        first = next(name for name in ("pattern", "format", "maxLength", "minLength") if name in keywords)
        with named(inside(place, first)):
            return patterns.string(least, most, asked, formatted, self.budget)

    def number(self, keywords: dict, place: str, whole: bool) -> object:
        factor = keywords.get("multipleOf")
        if factor is not None and (factor <= 0 or factor != int(factor)):
            raise UserError(
                f"The schema's {inside(place, 'multipleOf')} is {factor}; only whole numbers from 1 are read."
            )
        low, low_open = bound(keywords, "minimum", "exclusiveMinimum", 1)
        high, high_open = bound(keywords, "maximum", "exclusiveMaximum", -1)
        with named(inside(place, *[name for name in OF_TYPE["number"] if name in keywords][:1])):
            return ranges.number(low, high, (low_open, high_open), factor and int(factor), whole, self.budget)

    def array(self, plain: Plain, depth: int) -> object:
        keywords, place = plain.keywords, plain.place
        least, most = keywords.get("minItems", 0), keywords.get("maxItems")
        ordered(least, most, inside(place, "minItems"))
        prefix, parts = keywords.get("prefixItems", [])[:most], []
        for n, item in enumerate(prefix):
            node = self.possible(item, inside(place, "prefixItems", n), depth, plain.refs, n < least)
            if node is None:  # so the array ends before
                prefix, most = prefix[:n], n
                break
            parts.append((node, n < least))
        left = None if most is None else most - len(prefix)
        items = keywords.get("items", not prefix)  # after named ones no others, as in objects
        more = None
        if left != 0 and items is not False:
            more = self.possible(items, inside(place, "items"), depth, plain.refs, least > len(prefix))
        elif least > len(prefix):
            raise ImpossibleError(f"The schema's {inside(place, 'minItems')} asks for more items than there may be.")
        size = dict(least=max(least - len(prefix), 0), most=left)
        return enclosed("[]", depth, parts, skips=False, more=more, **size)

    def possible(self, schema, place: str, depth: int, refs: frozenset, required: bool) -> object:
        """The node of a part, or None where no value satisfies it and none must."""
        try:
            return self.value(schema, place, depth + 1, refs)
        except ImpossibleError:
            if required:
                raise
            return None

    def object(self, plain: Plain, depth: int) -> object:
        keywords, place = plain.keywords, plain.place
        required, others = keywords.get("required", []), keywords.get("additionalProperties")
        if "properties" not in keywords and others is None and not required:
            return self.anything()
        properties = {name: (schema, inside(place, "properties", name))
                      for name, schema in keywords.get("properties", {}).items()}  # fmt: skip
        where = inside(place, "additionalProperties")
        for name in required:
            if name not in properties and others is False:
                raise ImpossibleError(f"The schema's {inside(place, 'required')} has {name!r}, which may not be there.")
            properties.setdefault(name, (True if others is None else others, where))
        if len(properties) > MANY:
            raise TooLargeError(f"The schema's {inside(place, 'properties')} are more than {MANY:,}.")
        parts, names = [], [*map(spelled, properties)]
        for (name, (schema, at)), key in zip(properties.items(), names, strict=True):
            node = self.possible(schema, at, depth, plain.refs, name in required)
            if node is not None:
                parts.append((Sequence((key, COLON, node)), name in required))
        more = None
        if others is not None and others is not False:
            more = self.possible(others, where, depth, plain.refs, False)
        if more is not None:
            key = STRING
            if names:
                key = combined(automaton(STRING, self.budget), automaton(choice(names), self.budget), without=True)
            more = Sequence((key, COLON, more))
        return enclosed("{}", depth, parts, more=more)


def ordered(least: int, most: int | None, place: str) -> None:
    if most is not None and least > most:
        raise ImpossibleError(f"The schema's {place} is above its maximum: no value satisfies it.")


def bound(keywords: dict, inner: str, outer: str, sign: int) -> tuple[Decimal | None, bool]:
    """(a bound, whether it is excluded itself): the narrower of two. sign: 1 for a lower one, -1 for an upper one."""
    known = [(Decimal(str(keywords[name])), name == outer) for name in (inner, outer) if name in keywords]
    return max(known, key=lambda one: (one[0] * sign, one[1]), default=(None, False))


def node(schema: dict | bool, budget: Budget) -> object | None:
    """The language of a schema, or None where it is not regular. Raises UserError for one that is not supported,
    ImpossibleError where no value satisfies it, TooLargeError beyond the bounds."""
    reader = Reader(schema, budget)
    made = reader.value(schema, "")
    return made if reader.regular else None
