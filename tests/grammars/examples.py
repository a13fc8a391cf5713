"""Schemas of many kinds under which models answer, each with a name."""

from __future__ import annotations

TEXT, WHOLE, YES = dict(type="string"), dict(type="integer"), dict(type="boolean")


def holding(needed: dict, may: dict | None = None, **more) -> dict:
    """An object of properties that must be there, and others that may."""
    return dict(type="object", properties=needed | (may or {}), required=[*needed], additionalProperties=False) | more


def within(low: float, high: float, kind: str = "integer") -> dict:
    return dict(type=kind, minimum=low, maximum=high)


def short(most: int = 20) -> dict:
    return dict(type="string", minLength=1, maxLength=most)


POINT = {"type": "array", "prefixItems": [within(-90, 90, "number"), within(-180, 180, "number")], "minItems": 2}
ADDRESS = holding(dict(street=short(), number=within(1, 999)), dict(floor=within(-2, 60)))
SHAPES = [
    holding(dict(kind=dict(const="circle"), radius=dict(type="number", exclusiveMinimum=0, maximum=100))),
    holding(dict(kind=dict(const="square"), side=within(1, 50))),
]
ROUTE = {
    "$defs": {"stop": holding(dict(name=short(), at=dict(POINT))), "leg": {"$ref": "#/$defs/stop"}},
    **holding(dict(start={"$ref": "#/$defs/stop"}, end={"$ref": "#/$defs/leg"})),
}
TREE = {  # no regular language, as "json" is none
    "$defs": {"node": holding(dict(name=short(12), parts=dict(type="array", items={"$ref": "#/$defs/node"})))},
    "$ref": "#/$defs/node",
}
SCHEMAS: dict[str, dict | str] = {
    "enum": dict(enum=["red", "green", 3, 2.5, None, True, ["a", {"b": []}], {"日本": "é"}]),
    "enum of escapes": dict(enum=['say "no"', "one\ntwo", "a\\b", "tab\t", "\u0001", "</script>", "😀", ""]),
    "object": holding(dict(name=TEXT, age=within(0, 150), kind=dict(enum=["cat", "dog", None]))),
    "nested objects": holding(dict(who=holding(dict(name=short(), home=ADDRESS)), known=YES)),
    "array of objects": dict(type="array", items=holding(dict(item=short(), count=WHOLE)), minItems=1, maxItems=4),
    "arrays of arrays": dict(type="array", items=dict(type="array", items=within(0, 9), maxItems=3), maxItems=4),
    "tuple": dict(type="array", prefixItems=[short(), WHOLE, YES], minItems=2),
    "numbers": holding(dict(p=within(0, 1, "number"), t=within(-273.15, 1e6, "number"), free=dict(type="number"))),
    "multiples": holding(dict(even=dict(type="integer", multipleOf=2, minimum=-100), week=dict(multipleOf=7))),
    "pattern": holding(dict(plate=dict(type="string", pattern=r"^[A-Z]{1,3}-\d{2,4}$"),
                            code=dict(type="string", pattern="a+b", maxLength=12))),
    "lengths": holding(dict(two=dict(type="string", minLength=2, maxLength=2), some=short(40))),
    "formats": holding(dict(day=dict(type="string", format="date"), host=dict(type="string", format="ipv4"),
                            mail=dict(type="string", format="email"))),
    "times": dict(anyOf=[dict(type="string", format=one) for one in ("date-time", "time", "duration")]),
    "names": dict(anyOf=[dict(type="string", format=one) for one in ("uuid", "hostname", "uri")]),
    "optional properties": holding({}, dict(a=YES, b=WHOLE, c=short(), d=dict(type=["string", "null"], maxLength=9))),
    "other properties": dict(type="object", properties=dict(id=WHOLE), required=["id"], additionalProperties=YES),
    "anyOf, allOf": dict(anyOf=[WHOLE, dict(allOf=[dict(type="string", minLength=3), dict(maxLength=5)]), POINT]),
    "oneOf": holding(dict(shape=dict(oneOf=SHAPES))),
    "$ref": ROUTE,
    "recursive": TREE,
}  # fmt: skip
