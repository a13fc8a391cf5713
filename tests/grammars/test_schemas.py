import datetime
import enum
import json
import random
import uuid
from typing import Literal

import jsonschema
import numpy as np
import pydantic
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from llama_jax import grammars
from llama_jax.plumbing.errors import UserError
from tests.grammars import vocabulary
from tests.grammars.vocabulary import takes, written

TOK = vocabulary.tokenizer()
TEXT = st.text(st.characters(exclude_categories=["Cs"], max_codepoint=0x1F700), max_size=6)
LAYOUTS = [dict(), dict(separators=(",", ":")), dict(indent=2), dict(separators=(", ", ":"))]


def made(schema):
    return grammars.compile(schema, TOK, vocabulary.size(TOK), TOK.stop)


def valid(schema, value):
    jsonschema.Draft202012Validator(schema, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER).validate(
        value
    )


def fits(schema, value, seed=0):
    """Whether a grammar takes a value in each layout."""
    rng, grammar = np.random.default_rng(seed), made(schema)
    texts = [json.dumps(value, ensure_ascii=False, **layout).encode() for layout in LAYOUTS]
    results = {takes(TOK, grammar.host(), text, rng) for text in texts}
    assert len(results) == 1
    return results.pop()


def strings():
    def bounds(pair):
        low, high = sorted(pair)
        schema = {"type": "string", "minLength": low, "maxLength": high}
        return schema, st.text(st.characters(exclude_categories=["Cs"]), min_size=low, max_size=high)

    free = st.just(({"type": "string"}, TEXT))
    pattern = st.just(({"type": "string", "pattern": "^(a|bc)+d?$"}, st.from_regex(r"\A(a|bc)+d?\Z")))
    return free | pattern | st.tuples(st.integers(0, 4), st.integers(0, 4)).map(bounds)


def numbers():
    def bounds(pair):
        low, high = sorted(pair)
        return {"type": "integer", "minimum": low, "exclusiveMaximum": high + 1}, st.integers(low, high)

    whole = st.just(({"type": "integer"}, st.integers()))
    real = st.just(({"type": "number"}, st.floats(-1e20, 1e20) | st.floats(-1e-20, 1e-20)))
    return whole | real | st.tuples(st.integers(-2000, 2000), st.integers(-2000, 2000)).map(bounds)


def arrays(inner):
    def schema(pair):
        items, (low, high) = pair[0], sorted(pair[1:])
        asked = {"type": "array", "items": items[0], "minItems": low, "maxItems": high}
        return asked, st.lists(items[1], min_size=low, max_size=high)

    def several(items):
        asked = {"type": "array", "prefixItems": [schema for schema, _ in items], "minItems": 1}
        return asked, st.tuples(*(values for _, values in items)).map(list)

    prefixed = st.lists(inner, min_size=1, max_size=3).map(several)
    return st.tuples(inner, st.integers(0, 3), st.integers(0, 3)).map(schema) | prefixed


def objects(inner):
    def schema(drawn):
        named, required, others = drawn
        names = [name for name in named if required.get(name)]
        asked = {"type": "object", "properties": {k: v[0] for k, v in named.items()}, "required": names}
        parts = st.fixed_dictionaries(
            {k: v[1] for k, v in named.items() if k in names},
            optional={k: v[1] for k, v in named.items() if k not in names},
        ).map(lambda value: {name: value[name] for name in named if name in value})
        if others is None:
            return {**asked, "additionalProperties": False}, parts
        free = st.dictionaries(TEXT.filter(lambda name: name not in named), others[1], max_size=2)
        return {**asked, "additionalProperties": others[0]}, st.builds(lambda a, b: {**a, **b}, parts, free)

    names = st.sampled_from(["a", "ab", "name", "é", 'a"b', ""])
    named = st.dictionaries(names, inner, max_size=4)
    return st.tuples(named, st.dictionaries(names, st.booleans()), st.none() | inner).map(schema)


def choices(inner):
    return st.lists(inner, min_size=1, max_size=3).map(
        lambda some: ({"anyOf": [schema for schema, _ in some]}, st.one_of([values for _, values in some]))
    )


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | TEXT,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(TEXT, inner, max_size=2),
    max_leaves=4,
)
CONSTANTS = st.lists(VALUES, min_size=1, max_size=3).map(lambda some: ({"enum": some}, st.sampled_from(some)))
PLAIN = st.sampled_from([({"type": "boolean"}, st.booleans()), ({"type": "null"}, st.none())])
SCHEMAS = st.recursive(
    strings() | numbers() | CONSTANTS | PLAIN,
    lambda inner: arrays(inner) | objects(inner) | choices(inner),
    max_leaves=5,
)
QUICKLY = settings(deadline=None, max_examples=60, suppress_health_check=[*HealthCheck])


@QUICKLY
@given(SCHEMAS, st.integers(0, 2**32), st.data())
def test_what_a_grammar_writes_is_valid_and_it_takes_what_is(pair, seed, data):
    schema, values = pair
    answer = written(TOK, made(schema).host(), np.random.default_rng(seed))
    if answer is not None:
        valid(schema, json.loads(answer))
    assert fits(schema, data.draw(values), seed)


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Part(pydantic.BaseModel):
    """A part."""

    size: int = pydantic.Field(ge=0, lt=1000)
    note: str | None = None
    kind: Literal["screw", "nut"]
    stock: dict[str, int] = {}


class Cat(pydantic.BaseModel):
    kind: Literal["cat"]
    lives: int


class Dog(pydantic.BaseModel):
    kind: Literal["dog"]


class Whole(pydantic.BaseModel):
    name: str = pydantic.Field(min_length=1, max_length=12)
    parts: list[Part]
    first: Part
    colour: Colour
    when: datetime.datetime
    day: datetime.date
    id: uuid.UUID
    score: float = pydantic.Field(ge=0, le=1)
    pair: tuple[int, str]
    code: str = pydantic.Field(pattern=r"^[A-Z]{2}-\d+$")
    animal: Cat | Dog = pydantic.Field(discriminator="kind")
    others: list[str] = pydantic.Field(max_length=2)


class PromptPool(pydantic.BaseModel):
    prompts: list[str]


@pytest.mark.parametrize("model", [Whole, Part, PromptPool])
def test_models_of_pydantic(model):
    grammar, done = made(model.model_json_schema()), 0
    for seed in range(8):
        answer = written(TOK, grammar.host(), np.random.default_rng(seed), 1500)
        if answer is not None:
            model.model_validate_json(answer)
            done += 1
    assert done


def test_a_pool_of_prompts():
    assert fits(PromptPool.model_json_schema(), {"prompts": ["Why is the sky blue?", 'Is 日本 "big"?']})


@pytest.mark.parametrize(
    ("schema", "right", "wrong"),
    [
        ({"properties": {"a": {"type": "integer"}}}, [{}, {"a": 1}], [{"b": 1}, 3]),
        (
            {"type": "object", "properties": {"a": {"const": 1}, "b": {"const": 2}}},
            [{"a": 1, "b": 2}],
            [{"b": 2, "a": 1}],
        ),
        ({"type": "object", "additionalProperties": {"type": "integer"}}, [{}, {"x": 1, "y": 2}], [{"x": "1"}]),
        ({"type": ["string", "null"]}, ["a", None], [1]),
        ({"type": "number", "minimum": -1.5, "exclusiveMaximum": 7.25}, [-1.5, 0, 7.249, 3.0], [-1.6, 7.25, 8]),
        ({"type": "number"}, [5e-324, -1.5e299, -0.0], ["1"]),
        ({"type": "integer", "multipleOf": 7, "minimum": -20}, [-14, 0, 7, 700], [-21, 8]),
        ({"type": "string", "pattern": "b.d"}, ["bcd", "abcde"], ["bd", "b\nd"]),
        ({"type": "string", "pattern": "^a|c$"}, ["ab", "bc"], ["bab", "cb"]),
        ({"type": "string", "pattern": '^[^a-c"]{2}$'}, ["de", "é日"], ["ad", 'd"', "d"]),
        ({"type": "string", "pattern": "^\\S$"}, ["a", "!"], [" ", "\x1c", "é"]),  # \x1c is a space in Python alone
        ({"type": "string", "pattern": "^[^\\s]$"}, ["a"], ["\n", "\x1c", "é"]),
        ({"type": "string", "pattern": "^[^\\S]$"}, [" ", "\n"], ["a", "\x1c", "\u00a0"]),
        ({"type": "string", "pattern": r"^\[][\]a]$"}, ["[]]", "[]a"], ["[]", "[a"]),
        ({"type": "string", "pattern": "a", "maxLength": 2}, ["ba", "a"], ["bab", "b"]),
        ({"type": "string", "format": "date"}, ["2024-02-29", "1999-12-31"], ["2023-02-29", "2023-13-01"]),
        ({"type": "string", "format": "duration"}, ["P3D", "PT1H30M", "P1DT5S"], ["P", "PT1H5S", "3D"]),
        ({"type": "string", "format": "hostname"}, ["a-b.example.org"], ["-a.org", "a..b", "xn--a", "a." * 150 + "b"]),
        ({"type": "string", "format": "uri"}, ["https://example.org:80/a/b.html?q=1#x"], ["example.org", "https://"]),
        ({"type": "string", "format": "ipv4"}, ["127.0.0.1"], ["256.0.0.1", "1.2.3"]),
        ({"type": "string", "format": "email"}, ["a.b@example.org"], ["a@b", "@example.org"]),
        ({"type": "array", "items": False}, [[]], [[1]]),
        ({"type": "array", "prefixItems": [{"type": "null"}, False], "items": True}, [[], [None]], [[None, 1], [1]]),
        ({"enum": [1, "a", [2], {"k": None}], "type": ["integer", "object"]}, [1, {"k": None}], ["a", [2]]),
        ({"enum": ["a", "bb", "ccc"], "maxLength": 2}, ["a", "bb"], ["ccc"]),
        ({"const": {"a": [1, {"b": "é\u0001"}]}}, [{"a": [1, {"b": "é\u0001"}]}], [{"a": [1]}]),
        ({"allOf": [{"type": "integer", "minimum": 3}, {"maximum": 5}]}, [3, 5], [2, 6]),
        ({"anyOf": [{"type": "integer"}, False], "minimum": 2}, [2], [1]),
        ({"oneOf": [{"type": "integer"}, {"type": "string", "maxLength": 1}]}, [1, "a"], ["ab"]),
        ({"$defs": {"a/b": {"type": "null"}}, "type": "array", "items": {"$ref": "#/$defs/a~1b"}}, [[None]], [[1]]),
        ({"properties": {"a": False, "b": {"type": "null"}}}, [{"b": None}, {}], [{"a": 1}]),
    ],
)
def test_keywords(schema, right, wrong):
    for value in right:
        assert fits(schema, value), value
    for value in wrong:
        assert not fits(schema, value), value


def nested(depth):
    return {"type": "array", "items": nested(depth - 1)} if depth else {"type": "null"}


REFUSED = [
    ({"not": {}}, "not"),
    ({"type": "object", "properties": {"a": {"type": "string", "pattern": "(?=a)b"}}}, "properties.a.pattern"),
    ({"type": "string", "pattern": r"(a)\1"}, "pattern"),
    ({"type": "string", "pattern": r"\bword"}, "pattern"),
    ({"type": "string", "pattern": "(?i)a"}, "pattern"),
    ({"type": "string", "pattern": "("}, "pattern"),
    ({"type": "string", "pattern": "[]a]"}, "pattern"),
    ({"type": "string", "pattern": "b|[^]a]"}, "pattern"),
    ({"type": "string", "format": "binary"}, "format"),
    ({"type": "number", "multipleOf": 0.1}, "multipleOf"),
    ({"type": "array", "items": {"type": "null"}, "uniqueItems": True}, "uniqueItems"),
    ({"type": "array", "items": [{"type": "null"}]}, "items"),
    ({"type": "integer", "exclusiveMinimum": True}, "exclusiveMinimum"),
    ({"type": "strin"}, "type"),
    ({"patternProperties": {"a": {}}}, "patternProperties"),
    ({"anyOf": [{"type": "string"}, {"if": {}}]}, "anyOf.1.if"),
    ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "oneOf"),
    ({"allOf": [{"type": "array", "prefixItems": [{"type": "integer"}]}, {"items": {"type": "string"}}]}, "items"),
    ({"type": "array", "items": {"$id": "https://example.org/s.json", "type": "integer"}}, "items.$id"),
    ({"$ref": "https://example.org/s.json"}, "$ref"),
    ({"$ref": "#/$defs/a", "$defs": {}}, "$ref"),
    ({"$ref": "#"}, "$ref"),
    ({"type": "array", "items": {"$ref": "#"}, "x": 1}, "x"),
    ("xml", "xml"),
]
IMPOSSIBLE = [
    {"type": "string", "minLength": 3, "maxLength": 2},
    {"type": "integer", "minimum": 0.2, "maximum": 0.8},
    {"type": "string", "pattern": "^a$", "minLength": 2},
    {"allOf": [{"type": "string"}, {"type": "integer"}]},
    {"type": "object", "required": ["a"], "additionalProperties": False},
    {"type": "object", "properties": {"a": False}, "required": ["a"]},
    {"enum": ["a"], "type": "integer"},
    {"anyOf": [False, {"enum": ["abc"], "maxLength": 1}]},
    {"type": "array", "prefixItems": [{"type": "null"}], "minItems": 2},
]
DOUBLED = {
    f"d{i}": {"type": "object", "properties": {k: {"$ref": f"#/$defs/d{i + 1}"} for k in "ab"}} for i in range(22)
}
TOO_LARGE = [
    {"type": "string", "pattern": "^(a|b)*a(a|b){40}$"},
    {"type": "string", "pattern": "(((a{1000}){1000}){1000})"},
    {"type": "string", "pattern": "(.{0,1000}a){1000}"},
    {"type": "string", "pattern": "(" * 500 + "a" + ")" * 500},
    {"type": "string", "maxLength": 1_000_000},
    {"type": "array", "items": {"type": "integer"}, "minItems": 1_000_000},
    {"type": "object", "properties": {f"p{i}": {"type": "integer"} for i in range(10_000)}},
    {"$ref": "#/$defs/d0", "$defs": DOUBLED | {"d22": {"type": "integer"}}},
    {"type": "integer", "multipleOf": 10**9},
    {"type": "integer", "maximum": 10**300},
    nested(40),
]


@pytest.mark.parametrize(("schema", "place"), REFUSED)
def test_what_is_not_supported_is_named(schema, place):
    with pytest.raises(UserError) as refused:
        made(schema)
    assert place in str(refused.value)


@pytest.mark.parametrize("value", [10**5000, {1}], ids=["digits", "set"])
def test_a_schema_that_is_no_json_document_is_refused(value):
    for schema in ({"const": value}, {"type": "integer", "minimum": value}, {"default": value}):
        with pytest.raises(UserError, match="JSON has no text for"):
            made(schema)


@pytest.mark.parametrize("schema", IMPOSSIBLE)
def test_what_no_value_satisfies_is_refused(schema):
    with pytest.raises(grammars.ImpossibleError):
        made(schema)


@pytest.mark.parametrize("schema", TOO_LARGE)
def test_bombs_are_refused(schema):
    with pytest.raises(grammars.TooLargeError):
        made(schema)


@QUICKLY
@given(st.integers(0, 2**32), st.sampled_from([0, 0, 1, 2, 5]), st.booleans(), st.booleans())
def test_bounds_of_numbers(seed, places, low_open, high_open):
    rng = random.Random(seed)
    low, high = sorted(round(rng.uniform(-120, 120), places) for _ in range(2))
    schema = {"type": "number", "exclusiveMinimum" if low_open else "minimum": low}
    schema |= {"exclusiveMaximum" if high_open else "maximum": high}
    values = [round(rng.uniform(-130, 130), places) for _ in range(5)] + [low, high, (low + high) / 2]
    try:
        grammar = made(schema)
    except grammars.ImpossibleError:
        assert low == high
        return
    for value in values:
        right = jsonschema.Draft202012Validator(schema).is_valid(round(value, 6))
        text = f"{round(value, 6) + 0.0:.6f}".encode()  # 0, and not -0
        assert takes(TOK, grammar.host(), text, np.random.default_rng(seed)) == right
