import itertools
import json
from functools import partial

import jsonschema
import llguidance
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llama_jax import grammars
from llama_jax.grammars import host
from llama_jax.plumbing.errors import UserError
from tests.grammars import vocabulary
from tests.grammars.vocabulary import takes, written

TOK = vocabulary.tokenizer()
SIZE = vocabulary.size(TOK)
TREE = {
    "$defs": {"node": {
        "type": "object", "title": "Node", "required": ["v", "kids"],
        "properties": {"v": {"type": "integer"}, "kids": {"type": "array", "items": {"$ref": "#/$defs/node"}}},
    }},
    "$ref": "#/$defs/node",
}  # fmt: skip


def made(schema):
    return grammars.compile(schema, TOK, SIZE, TOK.stop)


@pytest.mark.parametrize("schema", ["json", TREE, {"type": "array"}, {"properties": {"a": True}, "required": ["a"]}])
def test_values_of_any_depth_are_walked_on_the_host(schema):
    grammar, done = made(schema), 0
    assert grammar.table is None
    for seed in range(8):
        answer = written(TOK, grammar.host(), np.random.default_rng(seed), 150)
        if answer is not None:
            jsonschema.validate(json.loads(answer), {"type": "object"} if schema == "json" else schema)
            done += 1
    assert done


def test_any_object_is_taken_and_ends():
    for value in ({}, {"a": [1, {"b": [[[None]]]}], "é": True}):
        for layout in (dict(), dict(indent=2), dict(separators=(",", ":"))):
            assert takes(TOK, made("json").host(), json.dumps(value, ensure_ascii=False, **layout).encode())
    assert not takes(TOK, made("json").host(), b"[1]")
    walker, stop = made("json").host(), [*TOK.stop]
    for text in (b"{", b"}"):
        walker.advance(TOK.spellings.index(text))
    assert set(np.flatnonzero(walker.mask())) == {*stop}
    walker.advance(stop[1])
    assert set(np.flatnonzero(walker.mask())) == {*stop}
    with pytest.raises(ValueError, match="may not"):
        walker.advance(TOK.spellings.index(b"{"))


def test_a_wrong_token_is_refused():
    walker = made("json").host()
    for token in (TOK.spellings.index(b"a"), TOK.stop[0], SIZE - 1):
        with pytest.raises(ValueError, match=str(token)):
            walker.advance(token)


def test_keywords_are_checked_in_what_the_library_reads_too():
    with pytest.raises(UserError, match="patternProperties"):
        made({"type": "object", "properties": {"a": {}, "b": {"patternProperties": {}}}})
    with pytest.raises(UserError, match="kids"):
        made({"type": "array", "items": {"items": {}, "kids": 1}})


def reference(schema):
    """The library's own walker, with white space as far as it can be written in both: none."""
    options = {"whitespace_flexible": False, "json_allowed_escapes": 'nrbtf\\"u'}
    text = llguidance.LLMatcher.grammar_from_json_schema(json.dumps(schema), overrides=options)
    return host.HostWalker(host.library_tokenizer(TOK, SIZE, TOK.stop), text, TOK.stop)


COMPARED = [
    {"type": "integer"}, {"type": "boolean"}, {"enum": ["a", "abc", 10, None, "日本"]},
    {"type": "array", "items": {"enum": [1, 10, "na"]}, "minItems": 1, "maxItems": 3},
    {"type": "integer", "minimum": 3, "maximum": 120}, {"type": "string", "pattern": "^(ab|aa)+c?$"},
    {"type": "string", "minLength": 1, "maxLength": 5},
    {"type": "object", "required": ["name"], "additionalProperties": False,
     "properties": {"ab": {"type": "null"}, "name": {"type": "string"}, "abc": {"type": "boolean"}}},
]  # fmt: skip


@pytest.mark.parametrize("schema", COMPARED)
def test_masks_are_those_of_the_library(schema):
    """Where neither white space nor an escape nor DEL is at stake: there the two differ on purpose."""
    free = np.array([not {*text} & {*b" \n\\\x7f"} for text in TOK.spellings] + [True] * vocabulary.EXTRA)
    for seed in range(4):
        rng, ours, theirs = np.random.default_rng(seed), made(schema).host(), reference(schema)
        for _ in range(40):
            allowed, same = ours.mask(), theirs.mask()
            forced = same.sum() == 1  # a text that must follow has one token there
            differ = np.flatnonzero(((same & ~allowed) if forced else (same != allowed)) & free)
            assert not len(differ), [TOK.spellings[i] for i in differ]
            token = int(rng.choice(np.flatnonzero(same & free)))
            ours.advance(token)
            theirs.advance(token)


HOSTED = [
    ({"type": "string", "format": "date"}, ["2024-02-29"], ["2023-02-29", "2024-02-30"]),
    ({"type": "string", "format": "date", "pattern": "^2"}, ["2024-02-29"], ["1999-01-01", "2023-02-29", "2"]),
    ({"type": "string", "pattern": '^[^a-c"]{2}$'}, ["de", "é日", "d\n"], ["ad", 'd"', "d"]),
    ({"type": "string", "pattern": r'^["\\\n]$'}, ['"', "\\", "\n"], ["a"]),
    ({"type": "string", "pattern": r"^(\S|b.)+d?$"}, ["a", "bc"], [" ", "\x1c", "b\u2028", "é"]),
    ({"type": "string", "pattern": r"^(a|[^\s\S]|\x1f)$"}, ["a"], ["\x1f", "&", '"']),
    ({"type": "string", "pattern": "^a|c$"}, ["ab", "bc"], ["bab", "cb"]),
    ({"type": "object", "properties": {"a": {}}, "required": ["b", "a"]}, [{"b": 1, "a": []}], [{"a": 1}]),
    ({"properties": {"a": {"type": "null"}}, "anyOf": [{"required": ["b"], "properties": {"b": {}}}], "type": "object"},
     [{"a": None, "b": 1}], [{"a": 1, "b": 1}, {"a": None}]),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "right", "wrong"), HOSTED)
def test_keywords_say_the_same_on_the_host(schema, right, wrong):
    grammar = made({"type": "object", "properties": {"v": schema, "any": {}}, "required": ["v"]})
    assert grammar.table is None
    for values, expected in ((right, True), (wrong, False)):
        for value in values:
            text = json.dumps({"v": value}, ensure_ascii=False).encode()
            assert takes(TOK, grammar.host(), text) == expected, value


SETS = [
    '[^"]', r"[^\\]", r'[^\n"]', r"[\x00-\x1f]", r"[\x00-\x0f]", r"[\x10-!]", r'[\x00-"]', "[ -~]", r"[#-\x7f]",
    ".", r"\S", r"\D", r"\W", r"[^\s]", r"[^\D]", '"', r"\\", r"\n", "a",
]  # fmt: skip
PATTERNS = st.recursive(
    st.sampled_from(SETS),
    lambda part: (
        part.map("({})*".format) | st.builds("({}|{})".format, part, part) | st.builds(str.__add__, part, part)
    ),
    max_leaves=4,
)
TEXTS = ["", "\x00", "é", *'"\\\na', *map("".join, itertools.product('"\\\na', repeat=2))]


@settings(deadline=None, max_examples=40)
@given(PATTERNS.map("^{}$".format), st.integers(0, 2**32))
def test_what_the_host_writes_matches_a_pattern(pattern, seed):
    schema = {"type": "string", "pattern": pattern}
    exact, ours = made(schema), partial(host.walker, schema, TOK, SIZE, TOK.stop)
    answer = written(TOK, ours(), np.random.default_rng(seed))
    if answer is not None:
        jsonschema.validate(json.loads(answer), schema)
    for value in TEXTS:
        text = json.dumps(value, ensure_ascii=False).encode()
        assert takes(TOK, ours(), text) == takes(TOK, exact.host(), text), value


def test_a_pattern_of_u001f_alone_is_refused_on_the_host():
    with pytest.raises(UserError, match="Regex is empty"):
        host.walker({"type": "string", "pattern": r"^\x1f$"}, TOK, SIZE, TOK.stop)


@pytest.mark.parametrize(
    "part", [{"properties": 3}, {"anyOf": 5}, {"format": [1]}, {"pattern": "("}, {"required": 1}, 7]
)
def test_what_no_reference_leads_to_may_be_anything(part):
    assert takes(TOK, made({"type": "array", "$defs": {"unused": part}}).host(), b"[1]")
