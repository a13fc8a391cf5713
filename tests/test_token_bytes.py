"""What tokens stand for: side by side they are the text's bytes."""

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from llama_jax.tokenizer import LETTERS
from tests.test_tokenizer import made, spm


@given(st.text("aZ 1\n.éß語👋", max_size=30))
def test_the_bytes_of_a_texts_tokens_are_the_texts(packaged, text):
    spelt = [packaged.tokenizer.token_bytes(i) for i in packaged.tokenizer.encode(text)]
    assert b"".join(spelt) == text.encode()


def test_letters_are_gpt2s():
    assert len(LETTERS) == 256
    assert set(LETTERS) == set(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    assert (LETTERS["Ġ"], LETTERS["Ċ"], LETTERS["a"]) == (b" ", b"\n", b"a")


def test_a_special_token_is_its_spelling_and_an_id_without_a_token_nothing(packaged):
    ends = packaged.tokenizer.stop[-1]
    assert packaged.tokenizer.token_bytes(ends) == packaged.tokenizer.special[ends].encode()
    assert packaged.tokenizer.token_bytes(10**6) == b""


@pytest.mark.parametrize("text", ["ab", "é b"])
def test_sentencepiece_tokens_are_words_with_their_space_or_bytes(text):
    tokenizer = made(spm())
    spelt = [tokenizer.token_bytes(i) for i in tokenizer.encode(text, special=False)]
    assert b"".join(spelt) == f" {text}".encode()
