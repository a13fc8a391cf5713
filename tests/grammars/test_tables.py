import jax
import numpy as np
import pytest

from llama_jax import grammars
from llama_jax.grammars import tables
from llama_jax.plumbing.errors import UserError
from llama_jax.tokenizer import Numbers
from tests.grammars import vocabulary
from tests.grammars.vocabulary import takes

TOK = vocabulary.tokenizer()
STRING = {"type": "string"}


def made(schema, tok=TOK):
    return grammars.compile(schema, tok, vocabulary.size(tok), tok.stop)


def test_a_table_has_few_shapes_and_is_a_pytree():
    table, other = made({"type": "integer"}).table, made({"enum": ["a", "b"]}).table
    assert table.next.shape == other.next.shape == (64, 64)
    assert table.next.dtype == np.int16
    assert table.classes.dtype == np.int32
    assert table.classes.shape == (vocabulary.size(TOK),)
    assert len(jax.tree.leaves(table)) == 2
    assert made(STRING | {"maxLength": 30}).table.next.shape[0] == 1024
    with pytest.raises(grammars.TooLargeError):
        tables.rounded(20_000, 3)
    with pytest.raises(grammars.TooLargeError):
        tables.rounded(5000, 1025)


def test_an_answer_ends_where_it_may_and_then_stays_ended():
    walker = made({"enum": [1, 10]}).host()
    stop = [*TOK.stop]
    one, ten, zero = (TOK.spellings.index(text) for text in (b"1", b"10", b"0"))
    assert set(np.flatnonzero(walker.mask())) == {one, ten}
    walker.advance(one)
    assert set(np.flatnonzero(walker.mask())) == {zero, *stop}
    walker.advance(stop[1])
    for _ in range(2):
        assert set(np.flatnonzero(walker.mask())) == {*stop}
        walker.advance(stop[0])
    with pytest.raises(ValueError, match=str(one)):
        walker.advance(one)


def test_a_stop_that_the_model_does_not_have_is_none():
    table = grammars.compile(STRING, TOK, vocabulary.size(TOK), [10**6, TOK.stop[0]]).table
    assert (table.next[:, table.classes[TOK.stop[1]]] == tables.FORBIDDEN).all()
    for tokenizer, stop in ((TOK, [10**6]), (Numbers((1,)), [1])):
        with pytest.raises(UserError, match="token that ends"):
            grammars.compile(STRING, tokenizer, vocabulary.size(TOK), stop)


def test_ids_without_text_never_follow():
    table = made(STRING).table
    never = [i for i in range(vocabulary.size(TOK)) if i >= len(TOK.spellings) or not TOK.spellings[i]]
    assert len(never) == len(vocabulary.SPECIAL) + vocabulary.EXTRA
    never = [i for i in never if i not in TOK.stop]
    assert (table.next[:, table.classes[never]] == tables.FORBIDDEN).all()


def test_tokens_may_end_within_a_character():
    grammar = made(STRING | {"minLength": 1, "maxLength": 1})
    face = [b'"', b"\xf0\x9f", b"\x98\x80", b'"']
    walker = grammar.host()
    for text in face:
        assert walker.mask()[TOK.spellings.index(text)]
        walker.advance(TOK.spellings.index(text))
    assert walker.mask()[TOK.stop[0]]
    walker = grammar.host()
    walker.advance(TOK.spellings.index(b'"'))
    assert not walker.mask()[TOK.spellings.index(b"\x98\x80")]  # no character begins so
    assert not walker.mask()[TOK.spellings.index(b"ab")]


def test_what_the_vocabulary_cannot_end_is_not_begun():
    tok = vocabulary.tokenizer(without=b"z\x80")
    grammar, rng = made({"enum": ["xz", "xy"]}, tok), np.random.default_rng(0)
    assert takes(tok, grammar.host(), b'"xy"', rng)
    walker = made({"enum": ["xz", 3]}, tok).host()
    assert [tok.spellings[i] for i in np.flatnonzero(walker.mask())] == [b"3"]
    with pytest.raises(grammars.ImpossibleError):
        made({"enum": ["z"]}, tok)


def test_each_token_goes_where_its_bytes_go():
    schema = {"type": "object", "properties": {"name": STRING, "ab": {"type": "array", "items": {"type": "number"}}}}
    table = made(schema).table
    single = [TOK.spellings.index(bytes([b])) for b in range(256)]
    for token, text in enumerate(TOK.spellings):
        for state in range(len(table.next)) if text else ():
            after = state
            for byte in text:
                after = table.next[after, table.classes[single[byte]]] if after >= 0 else after
            assert table.next[state, table.classes[token]] == after


def test_a_real_vocabulary(packaged):
    tok, schema = packaged.tokenizer, {"type": "array", "items": STRING | {"maxLength": 40}, "minItems": 1}
    walker = grammars.compile(schema, tok, packaged.config.vocab_size, tok.stop).host()
    rng, ids = np.random.default_rng(0), []
    for _ in range(60):
        allowed = np.flatnonzero(walker.mask())
        ids.append(int(rng.choice(allowed)))
        walker.advance(ids[-1])
    ids = [i for i in ids if i not in tok.stop]
    assert tok.decode(ids) == b"".join(tok.spellings[i] for i in ids).decode(errors="replace")
    walker = grammars.compile(schema, tok, packaged.config.vocab_size, tok.stop).host()
    for token in tok.encode('["Why is the sky blue?", "日本 😀"]', special=False):
        assert walker.mask()[token]
        walker.advance(token)
    assert walker.mask()[list(tok.stop)].all()
