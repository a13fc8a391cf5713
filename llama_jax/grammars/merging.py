"""Schemas without references and alternatives: what each keyword may hold, and what two schemas ask together."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from dataclasses import dataclass

from llama_jax.grammars.languages import ImpossibleError
from llama_jax.plumbing import boundary
from llama_jax.plumbing.errors import UserError, near

ANNOTATIONS = frozenset((
    "title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly", "discriminator", "$schema",
    "$id", "$comment", "$defs", "definitions",
))  # fmt: skip
COMBINING = ("$ref", "allOf", "anyOf", "oneOf")
OF_TYPE = {
    "string": ("minLength", "maxLength", "pattern", "format"),
    "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    "array": ("items", "prefixItems", "minItems", "maxItems", "uniqueItems"),
    "object": ("properties", "required", "additionalProperties"),
}
TYPES = ("string", "number", "integer", "array", "object", "boolean", "null")
KEYWORDS = (*COMBINING, "type", "enum", "const", *itertools.chain(*OF_TYPE.values()))
LOWER = ("minLength", "minItems", "minimum", "exclusiveMinimum")
UPPER = ("maxLength", "maxItems", "maximum", "exclusiveMaximum")


def is_count(value) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def is_number(value) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < float("inf")


def is_schema(value) -> bool:
    return isinstance(value, dict | bool)


def is_texts(value) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)


def is_schemas(value) -> bool:
    return isinstance(value, list) and bool(value) and all(is_schema(one) for one in value)


HOLDS = {  # keyword: (whether a value is right, what it must be)
    **dict.fromkeys(("minLength", "maxLength", "minItems", "maxItems"), (is_count, "a whole number from 0")),
    **dict.fromkeys(OF_TYPE["number"], (is_number, "a number")),
    **dict.fromkeys(("pattern", "format", "$ref"), (lambda value: isinstance(value, str), "text")),
    **dict.fromkeys(("items", "additionalProperties"), (is_schema, "a schema")),
    **dict.fromkeys(("prefixItems", "allOf", "anyOf", "oneOf"), (is_schemas, "a list of schemas")),
    "properties": (lambda v: isinstance(v, dict) and all(map(is_schema, v.values())), "names, each with a schema"),
    "required": (is_texts, "a list of names"),
    "enum": (lambda value: isinstance(value, list) and bool(value), "a list of values"),
    "uniqueItems": (lambda value: value is False, "false: items are not compared"),
    "type": (lambda value: value in TYPES or (is_texts(value) and set(value) <= {*TYPES}), f"of {', '.join(TYPES)}"),
}


def check(schema: dict, place: str) -> None:
    """Raises UserError for a keyword that is not supported, and for one whose value is wrong."""
    if place and not str(schema.get("$id", "#")).startswith("#"):
        raise UserError(f"The schema's {inside(place, '$id')} is not supported: references would begin there.")
    for name, value in schema.items():
        if name in ANNOTATIONS:
            continue
        if name not in KEYWORDS:
            raise UserError(f"The schema's {inside(place, name)} is not supported.{near(str(name), KEYWORDS)}")
        right, what = HOLDS.get(name, (lambda _: True, ""))
        if not right(value):
            raise UserError(f"The schema's {inside(place, name)} is {boundary.shown(value)}; it must be {what}.")


def inside(place: str, *names: object) -> str:
    return ".".join([*filter(None, [place]), *map(str, names)])


@dataclass(frozen=True, eq=False)
class Plain:
    """A schema without references and alternatives. place: where it stands. refs: the references that led to it, and
    to the values that hold it."""

    keywords: dict
    place: str
    refs: frozenset[str]

    @property
    def types(self) -> set[str]:
        """The types of its values; a number may be an integer."""
        if (values := self.values) is not None:
            return {type_of(value) for value in values} | {
                "number" for value in values if type_of(value) == "integer"
            }  # 1 is both
        return widened(self.keywords.get("type", TYPES))

    @property
    def values(self) -> list | None:
        """The values of enum and const, or None without them."""
        if "const" in self.keywords:
            return [self.keywords["const"]]
        return self.keywords.get("enum")


def widened(types: str | list | tuple) -> set[str]:
    types = {types} if isinstance(types, str) else set(types)
    return types | ({"integer"} if "number" in types else set())


def type_of(value) -> str:
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, float) and value.is_integer():
        return "integer"
    return {str: "string", int: "integer", float: "number", list: "array", dict: "object"}.get(type(value), "null")


def written(value) -> str:
    """The value as text, equal for equal values."""
    value = int(value) if isinstance(value, float) and value.is_integer() else value
    return json.dumps(value, sort_keys=True)


def merged(left: Plain, right: Plain) -> Plain:
    """What both ask. Raises UserError where that is no such schema, ImpossibleError where nothing satisfies both."""
    place = right.place if right.keywords else left.place
    closing(left, right, place)
    both = dict(left.keywords)
    for name, value in right.keywords.items():
        both[name] = together(name, both[name], value, place) if name in both else value
    return Plain(both, place, left.refs | right.refs)


def together(name: str, left, right, place: str):
    """What a keyword holds if two schemas have it."""
    if name == "type":
        types = widened(left) & widened(right)
        if not types:
            raise ImpossibleError(f"The schema's {inside(place, name)}: no value satisfies it.")
        return sorted(types - ({"integer"} if "number" in types else set()))
    if name in LOWER or name in UPPER:
        return max(left, right) if name in LOWER else min(left, right)
    if name == "required":
        return [*left, *(one for one in right if one not in left)]
    if name == "properties":
        return {**left, **{k: {"allOf": [left[k], v]} if k in left else v for k, v in right.items()}}
    if name == "items":
        return {"allOf": [left, right]}
    if written(left) != written(right):
        raise UserError(f"The schema's {inside(place, name)} is asked twice with other values; write it once.")
    return left


def closing(left: Plain, right: Plain, place: str) -> None:
    """Raises UserError where one schema's additionalProperties concerns properties of the other's, or its items those
    that the other's prefixItems describe."""
    for one, other in ((left, right), (right, left)):
        names = other.keywords.get("properties", {}).keys() - one.keywords.get("properties", {}).keys()
        if names and "additionalProperties" in one.keywords:
            raise UserError(
                f"The schema's {inside(place, 'additionalProperties')} beside properties of another part is not"
                " supported; write them in one part."
            )
        lengths = [len(side.keywords.get("prefixItems", ())) for side in (one, other)]
        if "items" in one.keywords and lengths[0] < lengths[1]:
            raise UserError(
                f"The schema's {inside(place, 'items')} beside prefixItems of another part is not supported; write them"
                " in one part."
            )


def apart(left: Plain, right: Plain, plain: Callable[[object], list[Plain]] | None) -> bool:
    """Whether it is plain that no value satisfies both: by their types, by the values that they name, or by a property
    that both require. plain: the schemas that a property's is made of, None where properties are not looked at."""
    types = left.types & right.types
    if not types:
        return True
    if left.values is not None and right.values is not None:
        return not {written(v) for v in left.values} & {written(v) for v in right.values}
    if types != {"object"} or plain is None:
        return False
    names = set(left.keywords.get("required", ())) & set(right.keywords.get("required", ()))
    pairs = [(side.keywords.get("properties", {}).get(name, True) for side in (left, right)) for name in names]
    return any(all(apart(a, b, None) for a in plain(one) for b in plain(other)) for one, other in pairs)
