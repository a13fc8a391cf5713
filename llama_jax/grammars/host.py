"""Languages that are not regular, such as JSON of any depth: the `llguidance` library finds each step's mask on the
host (https://github.com/guidance-ai/llguidance)."""

from __future__ import annotations

import json
import weakref
from collections.abc import Collection
from dataclasses import dataclass, field
from functools import cached_property

import llguidance
import numpy as np

from llama_jax.grammars.merging import ANNOTATIONS, is_texts
from llama_jax.grammars.patterns import FORMATS, explicit
from llama_jax.plumbing.errors import UserError
from llama_jax.tokenizer import Tokenizer

SPACES = r"[ ]|\n[ ]{0,48}"  # between the parts of a value
OPTIONS = {"whitespace_pattern": SPACES, "coerce_one_of": True}
KNOWN: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()  # tokenizer: {(V, stop): the library's}


@dataclass(frozen=True)
class Spelling:
    """A tokenizer as the library asks for it. It writes a text that must follow, such as a property's name, in the
    longest tokens: there a mask has only the next of them."""

    tokens: list[bytes]
    special_token_ids: list[int]
    eos_token_id: int
    bos_token_id: int | None = None

    @cached_property
    def known(self) -> dict[bytes, int]:
        special = {*self.special_token_ids}
        return {spelling: i for i, spelling in enumerate(self.tokens) if i not in special}

    def __call__(self, text: bytes) -> list[int]:
        ids, start, longest = [], 0, max(map(len, self.known))
        while start < len(text):
            ends = range(min(start + longest, len(text)), start, -1)
            if (end := next((end for end in ends if text[start:end] in self.known), None)) is None:
                break  # the vocabulary lacks a byte
            ids.append(self.known[text[start:end]])
            start = end
        return ids


def library_tokenizer(tokenizer: Tokenizer, vocab_size: int, stop: tuple[int, ...]) -> llguidance.LLTokenizer:
    """The library's form of a tokenizer, made once: it takes a second."""
    made = KNOWN.setdefault(tokenizer, {})
    if (vocab_size, stop) not in made:
        known = tokenizer.spellings
        spellings = [known[i] if i < len(known) else b"" for i in range(vocab_size)]
        special = [i for i, spelling in enumerate(spellings) if not spelling or i in stop]
        tokens = [spelling if spelling and i not in stop else b"\xff<%d>" % i for i, spelling in enumerate(spellings)]
        wrapper = llguidance.TokenizerWrapper(Spelling(tokens, special, stop[0]))
        made[vocab_size, stop] = llguidance.LLTokenizer(wrapper, n_vocab=vocab_size, eos_token=[*stop])
    return made[vocab_size, stop]


@dataclass
class HostWalker:
    """A place in one answer. Raises UserError for a schema that the library refuses."""

    tokenizer: llguidance.LLTokenizer = field(repr=False)
    grammar: str = field(repr=False)
    stop: tuple[int, ...]
    ended: bool = False

    def __post_init__(self):
        self.matcher = llguidance.LLMatcher(self.tokenizer, self.grammar, log_level=0)
        self.check()

    def check(self) -> None:
        if self.matcher.is_error():
            raise UserError(f"The schema is not supported ({self.matcher.get_error()[:200]}).")

    def mask(self) -> np.ndarray:
        allowed = np.zeros(self.tokenizer.vocab_size, bool)
        if not self.ended:
            bits = np.frombuffer(self.matcher.compute_bitmask(), np.uint8)
            self.check()
            allowed = np.unpackbits(bits, bitorder="little")[: len(allowed)].astype(bool)
        allowed[[*self.stop]] = self.ended or self.matcher.is_accepting()
        return allowed

    def advance(self, token: int) -> None:
        if token in self.stop and (self.ended or self.matcher.is_accepting()):
            self.ended = True
        elif self.ended or token in self.stop or not self.matcher.try_consume_tokens([token]):
            raise ValueError(f"Token {token} may not follow here.")


def closed(schema, closes: bool = True):
    """The schema without annotations, whose objects have only the properties that are named and whose formats are
    patterns, as in `schemas`. closes: False for a part of one that names others. What is wrong where no reference leads
    stays."""
    if not isinstance(schema, dict):
        return schema
    made = {
        name: value for name, value in schema.items() if name not in ANNOTATIONS or name in ("$defs", "definitions")
    }
    for name in ("items", "additionalProperties"):
        if name in made:
            made[name] = closed(made[name])
    alone = closes and "properties" not in made
    for name, apart in dict(prefixItems=True, anyOf=alone, oneOf=alone, allOf=False).items():
        if isinstance(made.get(name), list):
            made[name] = [closed(one, apart) for one in made[name]]
    for name in ("properties", "$defs", "definitions"):
        if isinstance(made.get(name), dict):
            made[name] = {key: closed(one) for key, one in made[name].items()}
    open_ = not closes or made.keys() & {"allOf", "anyOf", "oneOf", "$ref", "additionalProperties"}
    if isinstance(made.get("properties"), dict) and not open_:
        needed = made["required"] if is_texts(made.get("required")) else []
        made |= {"properties": {key: {} for key in needed} | made["properties"], "additionalProperties": False}
    return with_patterns(made)


def with_patterns(schema: dict) -> dict:
    """The schema with its format as a pattern, and patterns spelled out: the library's formats are wider, with 30
    February among the dates, and so are its sets of characters."""
    rest, known, wanted = dict(schema), schema.get("format"), []
    if isinstance(known, str) and known in FORMATS:
        wanted.append(f"^({FORMATS[rest.pop('format')]})$")
    if isinstance(schema.get("pattern"), str):
        wanted.append(rest.pop("pattern"))
    made = [{"pattern": explicit(pattern)} for pattern in wanted]
    return {"allOf": [rest, *made]} if len(made) > 1 else {**rest, **made[0]} if made else rest


def walker(schema: dict | bool, tokenizer: Tokenizer, vocab_size: int, stop: Collection[int]) -> HostWalker:
    """A place at the beginning of an answer."""
    stop = tuple(sorted(stop))
    text = json.dumps(closed(schema) if isinstance(schema, dict) else {})
    grammar = llguidance.LLMatcher.grammar_from_json_schema(text, overrides=OPTIONS)
    return HostWalker(library_tokenizer(tokenizer, vocab_size, stop), grammar, stop)
