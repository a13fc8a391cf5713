import json

import jsonschema
import llguidance
import numpy as np
import pytest

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
