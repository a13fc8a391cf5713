"""A text that cannot fit is refused by its bytes alone, and no text that fits is."""

import contextlib

import pytest
import tokenizers
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, models, normalizers, pre_tokenizers

from llama_jax.plumbing.errors import UserError
from llama_jax.tokenizer import Tokenizer
from llama_lab.serve import tokens
from llama_lab.serve.tokens import Bounded
from tests.serve.small import byte_tokenizer

CONTEXT = 8
TEXTS = st.text(max_size=40) | st.sampled_from([" " * 200, "\x04" * 500, "<|im_end|>" * 9, "é" * 30, "e\u0301" * 30])


def bounded(tokenizer):
    return Bounded.of(tokenizer, CONTEXT)


@settings(deadline=None)  # the first text with a special token makes a tokenizer
@given(TEXTS, st.booleans())
@example("a" * 81 * CONTEXT, False)
@example("\x04" * 9999, False)
def test_what_is_refused_has_more_tokens_than_fit_and_what_is_not_has_its_own(packaged_tokenizer, text, special):
    made = bounded(packaged_tokenizer)
    assert made.longest
    whole = packaged_tokenizer.encode(text, allow_special_tokens=special)
    if len(whole) <= CONTEXT:
        assert made.encode(text, allow_special_tokens=special) == whole
    else:
        with contextlib.suppress(UserError):
            assert made.encode(text, allow_special_tokens=special) == whole


@pytest.fixture(scope="module")
def packaged_tokenizer():
    from llama_jax import checkpoint

    return checkpoint.find(checkpoint.DEFAULT).tokenizer()


def test_a_text_of_any_length_is_refused_without_being_cut(packaged_tokenizer):
    made = bounded(packaged_tokenizer)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Tokenizer, "ids", lambda *any: pytest.fail("it was cut"))
        for text in ("long " * 1000, "👋" * 300, " " * 5000):
            with pytest.raises(UserError, match=r"bytes, more than 8 tokens can hold.* send less"):
                made.encode(text)


def test_a_long_text_is_cut_as_a_short_one_is(packaged_tokenizer):
    text = "The quick brown fox <|im_end|> jumps. " * 500
    assert len(text) > tokens.LONG
    assert Bounded.of(packaged_tokenizer, 1 << 20).encode(text) == packaged_tokenizer.encode(text)


def changed(**parts):
    """The tokenizer of bytes with another part."""
    backend = tokenizers.Tokenizer.from_str(byte_tokenizer().definition)
    for name, part in parts.items():
        setattr(backend, name, part)
    return backend


def added(**how):
    backend = changed()
    backend.add_special_tokens([AddedToken("<pad>", **how)])
    return backend


LETTERS_GROW = normalizers.Replace(" ", "\u2581")


@pytest.mark.parametrize(
    ("backend", "longest"),
    [
        (changed(), len("<|im_start|>")),
        (changed(normalizer=normalizers.NFC()), len("<|im_start|>")),
        (changed(normalizer=normalizers.Sequence([normalizers.NFC(), LETTERS_GROW])), len("<|im_start|>")),
        (changed(normalizer=normalizers.Strip()), 0),
        (changed(normalizer=normalizers.Replace("  ", " ")), 0),
        (changed(pre_tokenizer=pre_tokenizers.Whitespace()), 0),
        (changed(pre_tokenizer=pre_tokenizers.Split(" ", "removed")), 0),
        (changed(model=models.WordLevel({"a": 0}, "a")), 0),
        (changed(pre_tokenizer=None), 0),  # what no token spells is left out
        (added(), len("<|im_start|>")),
        (added(rstrip=True), 0),
    ],
)
def test_a_token_that_may_stand_for_any_number_of_bytes_is_seen(backend, longest):
    assert tokens.bound(backend)[0] == longest


def test_what_a_normaliser_composes_is_counted_after_it():
    backend = changed(normalizer=normalizers.NFC())
    made = Bounded(backend, None, "", "", (), (), CONTEXT, *tokens.bound(backend))
    text = "e\u0301" * (CONTEXT * made.longest // 3 + 1)  # two bytes each, once composed
    assert len(text.encode()) > CONTEXT * made.longest
    assert made.encode(text)
    with pytest.raises(UserError, match="bytes"):
        made.encode("é" * len(text))
