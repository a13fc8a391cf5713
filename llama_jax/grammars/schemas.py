"""A JSON schema as a language of bytes.

Objects have only the properties that are named, in the order given, unless `additionalProperties` has a schema for
others, which follow them; so every text satisfies the schema, but not every value that does has a text. Between the
parts of a value there may be nothing, a space, or a new line with two spaces for each level; after a colon a space at
most.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from functools import lru_cache
from urllib.parse import unquote

from llama_jax.grammars import patterns, ranges
from llama_jax.grammars.automata import (
    EMPTY,
    Budget,
    Choice,
    ImpossibleError,
    Members,
    Sequence,
    TooLargeError,
    automaton,
    choice,
    combined,
    optional,
    text,
)
from llama_jax.grammars.merging import OF_TYPE, Plain, apart, check, inside, merged, type_of, widened, written
from llama_jax.plumbing.errors import UserError, near

DEEPEST = 24  # levels of values in values
MANY = 1_000  # properties of an object, and alternatives of a value
STRING = Sequence((text('"'), patterns.ANYTHING, text('"')))
COLON = Sequence((text(":"), optional(text(" "))))
CONSTANTS = {"boolean": Choice((text("true"), text("false"))), "null": text("null")}


@lru_cache(maxsize=DEEPEST + 2)
def gap(depth: int) -> Choice:
    """What may stand before a part at this level."""
    return Choice((EMPTY, text(" "), text("\n" + "  " * depth)))


@lru_cache(maxsize=DEEPEST + 2)
def comma(depth: int) -> Sequence:
    return Sequence((text(","), gap(depth)))


def spelled(value) -> Sequence:
    """A text, number, true, false or null. Raises UserError for what JSON cannot write."""
    try:
        return text(json.dumps(value, ensure_ascii=False, allow_nan=False))
    except (ValueError, TypeError):  # also half a surrogate pair
        raise UserError("holds a value that JSON has no text for") from None


def enclosed(marks: str, depth: int, parts, **options) -> Sequence:
    """An object or array of parts (node, whether it must be there), at a level."""
    close = Sequence((gap(depth), text(marks[1])))
    return Sequence((text(marks[0]), Members(tuple(parts), gap(depth + 1), comma(depth + 1), text(marks[1]), close,
                                             **options)))  # fmt: skip


def literal(value, depth: int) -> Sequence:
    """This value, at a level."""
    if depth > DEEPEST:
        raise TooLargeError(f"is deeper than {DEEPEST} levels")
    if isinstance(value, dict):
        parts = [(Sequence((spelled(str(k)), COLON, literal(v, depth + 1))), True) for k, v in value.items()]
        return enclosed("{}", depth, parts)
    if isinstance(value, list):
        return enclosed("[]", depth, [(literal(v, depth + 1), True) for v in value], skips=False)
    return spelled(value)


@contextmanager
def named(place: str) -> Iterator[None]:
    """Puts the place in front of an error that has none."""
    try:
        yield
    except UserError as error:
        if str(error).startswith("The schema"):
            raise
        raise type(error)(f"The schema's {place} {error}." if place else f"The schema {error}.") from None


class Reader:
    """Makes the node of a schema. regular: False once it has met a value of any depth, which no automaton describes;
    what it makes is then of no use, but all keywords are still checked."""

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
        prefix = keywords.get("prefixItems", [])[:most]
        parts = [
            (self.value(item, inside(place, "prefixItems", n), depth + 1, plain.refs), n < least)
            for n, item in enumerate(prefix)
        ]
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
