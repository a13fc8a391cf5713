"""Vocabularies of GGUF files: what each type of token, each switch and each name of a split does. The right values are
llama.cpp's, which `tests/peers/test_llamacpp_tokens.py` asks itself where it is built."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers.pre_tokenizers import ByteLevel

from llama_jax.checkpoint import vocabulary
from llama_jax.checkpoint.splits import SPLITS
from llama_jax.plumbing.errors import UserError
from tests.test_tokenizer import SCORES, SPM, made, spm

ALPHABET = sorted(ByteLevel.alphabet())
NORMAL, UNKNOWN, CONTROL, USER, UNUSED = 1, 2, 3, 4, 5


def bpe(tokens=(), types=None, merges=("a b",), **changes):
    """A byte-level vocabulary: the bytes' letters, "ab", then these tokens."""
    every = [*ALPHABET, "ab", *tokens]
    types = [NORMAL] * 257 + (types or [CONTROL] * len(tokens))
    fields = dict(
        model="gpt2", pre="qwen2", tokens=every, token_type=types, merges=merges and list(merges), scores=None,
        bos_token_id=None, eos_token_id=None, unknown_token_id=None,
    )  # fmt: skip
    return {key: value for key, value in spm(**fields | changes).items() if value is not None}


def spelt(fields, text, **options):
    words = made(fields)
    return [words.backend.id_to_token(i) for i in words.encode(text, **options)]


# Types of tokens ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "as_text", "as_special"),
    [(NORMAL, 0, 0), (UNKNOWN, 0, 1), (CONTROL, 0, 1), (USER, 1, 1), (UNUSED, 0, 0), (0, 0, 0), (6, 0, 0)],
)
@pytest.mark.parametrize("model", ["gpt2", "llama"])
def test_a_token_of_each_type_is_matched_where_llama_cpp_matches_it(model, kind, as_text, as_special):
    if model == "gpt2":
        fields = bpe(["<x y>"], [kind])
    else:
        fields = spm(tokens=[*SPM, "<x y>"], scores=[*SCORES, -1.0], token_type=[2, 3, 3, *[6] * 256, *[1] * 8, kind])
    for special, times in ((False, as_text), (True, as_special)):
        assert spelt(fields, "hi<x y>hi", special=False, allow_special_tokens=special).count("<x y>") == times


def test_a_text_behind_a_matched_token_begins_with_a_space_as_every_text_does():
    fields = spm(tokens=[*SPM, "<t>"], scores=[*SCORES, -1.0], token_type=[2, 3, 3, *[6] * 256, *[1] * 8, USER])
    assert spelt(fields, "hi<t>hi") == ["<s>", "▁hi", "<t>", "▁hi"]
    assert spelt(fields | {"tokenizer.ggml.add_space_prefix": False}, "hi<t>hi") == ["<s>", "hi", "<t>", "hi"]


def test_special_tokens_of_phi_3_take_the_space_behind_them():
    names = ["<|endoftext|>", "<|end|>", "<tool>"]
    fields = bpe(names, [CONTROL, CONTROL, USER])
    text = "a<|end|> \n a<|endoftext|> a<tool> a"
    phi = spelt(fields | {"general.name": "Phi-3 mini"}, text, allow_special_tokens=True)
    assert phi == ["a", "<|end|>", "a", "<|endoftext|>", "Ġ", "a", "<tool>", "a"]
    assert "Ċ" in spelt(fields, text, allow_special_tokens=True)


def partitioned(text, always, special=()):
    """What is matched in a text, the first and there the longest, and its other letters."""
    either = sorted([*always, *special], key=len, reverse=True)
    return re.findall("|".join(map(re.escape, either)) + ("|." if either else "."), text, re.DOTALL)


@settings(deadline=None, max_examples=150)
@given(st.data())
def test_tokens_that_overlap_are_matched_or_text_as_their_type_says(data):
    """Special ones in a text are letters, and hide none of those that are always matched."""
    spellings = st.text("abc<", min_size=2, max_size=4)
    tokens = data.draw(st.lists(spellings, min_size=1, max_size=6, unique=True))
    special = set(data.draw(st.lists(st.sampled_from(tokens), unique=True)))
    tokens = [token for token in tokens if token != "ab"]
    always, special = [token for token in tokens if token not in special], [t for t in tokens if t in special]
    text = "".join(data.draw(st.lists(st.sampled_from([*tokens, *"abc<"]), max_size=8)))
    fields = bpe(tokens, [CONTROL if token in special else USER for token in tokens], merges=[], model="gpt2")
    assert spelt(fields, text) == partitioned(text, always)
    assert spelt(fields, text, allow_special_tokens=True) == partitioned(text, always, special)


def test_what_is_always_matched_is_what_it_spells(packaged):
    words = made(bpe(["é|", "<｜x｜>", "  "], [USER] * 3))
    assert words.encode("aé|<｜x｜>  b", special=False) == [ALPHABET.index("a"), 257, 258, 259, ALPHABET.index("b")]
    assert words.decode([ALPHABET.index("a"), 257, 258, 259]) == "aé|<｜x｜>  "
    assert [words.token_bytes(i) for i in (257, 258, 259)] == ["é|".encode(), "<｜x｜>".encode(), b"  "]
    assert words.decode(words.encode("aé|b")) == "aé|b"


def test_an_end_of_an_answer_is_special_whatever_its_type_says():
    names = ["<|im_end|>", "<|eom_id|>", "<|file_sep|>", "<|fim_prefix|>", "</s>", "<PAD>"]
    words = made(bpe(names, [NORMAL, USER, USER, USER, NORMAL, NORMAL]))
    assert words.stop == (257, 258, 259, 262)
    assert set(words.special.values()) == {*names} - {"</s>"}  # an ordinary word of some vocabularies
    given = made(bpe(names, [NORMAL, USER, USER, USER, NORMAL, NORMAL], fim_pad_token_id=0, eom_token_id=1))
    assert given.stop == (0, 1, 257, 258, 259)
    beyond = made(bpe(names, [NORMAL, USER, USER, USER, NORMAL, NORMAL], fim_pad_token_id=2**32 - 1))
    assert beyond.stop == (257, 258, 259, 262)  # as where the file says nothing
    assert "<PAD>" not in given.special.values()
    assert "<|fim_prefix|>" not in made(bpe(names, [USER] * 6, prefix_token_id=260)).special.values()


def test_special_tokens_have_the_names_that_templates_use():
    names = dict(padding_token_id=256, mask_token_id=1, seperator_token_id=2**31)
    words = made(bpe(bos_token_id=65, add_bos_token=False, **names))
    known = {"bos_token": ALPHABET[65], "pad_token": "ab", "mask_token": ALPHABET[1]}
    assert words.names == known  # none that is beyond the vocabulary


# The vocabulary -------------------------------------------------------------------------------------------------------


def test_a_vocabulary_may_be_shorter_than_the_table():
    words = vocabulary.from_gguf(bpe(), "m.gguf", 300)
    assert words.encode("ab") == [256]
    assert words.decode([256, 280]) == "ab"
    with pytest.raises(UserError, match="257 tokens, the embedding table 256 rows"):
        vocabulary.from_gguf(bpe(), "m.gguf", 256)


@pytest.mark.parametrize(("types", "id_"), [([USER, UNUSED], 257), ([UNUSED, USER], 258), ([0, UNUSED], 257)])
def test_of_tokens_that_are_spelt_alike_the_one_in_use_counts(types, id_):
    words = made(bpe(["<t>", "<t>"], types))
    assert words.backend.token_to_id("<t>") == id_
    assert words.decode([257, 258]) in ("<t>", "<t><t>", "")
    with pytest.raises(UserError, match="'<t>' occurs twice"):
        made(bpe(["<t>", "<t>"], [USER, NORMAL]))


def test_a_token_without_letters_is_none():
    assert made(bpe(["", "", "<t>"], [NORMAL, CONTROL, USER])).encode("<t>") == [259]


# Switches -------------------------------------------------------------------------------------------------------------

FIRST, LAST = "<s>", "</s>"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, [FIRST, "▁hi"]),
        (dict(add_bos_token=False), ["▁hi"]),
        (dict(add_bos_token=True, add_eos_token=True), [FIRST, "▁hi", LAST]),
        (dict(add_bos_token=False, add_eos_token=True), ["▁hi", LAST]),
        (dict(add_space_prefix=False), [FIRST, "hi"]),
        (dict(add_space_prefix=True, add_eos_token=False), [FIRST, "▁hi"]),
        (dict(bos_token_id=None, eos_token_id=None, add_eos_token=True), [FIRST, "▁hi", LAST]),  # as SentencePiece has
        (dict(bos_token_id=2), [LAST, "▁hi"]),
        (dict(remove_extra_whitespaces=True, add_sep_token=True, pre="whatever"), [FIRST, "▁hi"]),
    ],
)
def test_sentencepiece_texts_begin_and_end_as_the_file_says(changes, words):
    fields = {key: value for key, value in spm(**changes).items() if value is not None}
    assert spelt(fields, "hi") == words
    assert made(fields).decode(made(fields).encode(" hi")) == " hi"


@pytest.mark.parametrize(
    ("changes", "ids"),
    [
        (dict(bos_token_id=5, eos_token_id=6), [256]),
        (dict(bos_token_id=5, eos_token_id=6, add_bos_token=True, add_eos_token=True), [5, 256, 6]),
        (dict(pre="llama-bpe", bos_token_id=5), [5, 256]),
        (dict(pre="llama-bpe", bos_token_id=5, add_bos_token=False), [256]),
        (dict(pre="smaug-bpe", bos_token_id=5), [256]),
        (dict(add_space_prefix=True), [256]),
    ],
)
def test_byte_level_texts_begin_and_end_as_the_file_says(changes, ids):
    assert made(bpe(**changes)).encode("ab") == ids


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (dict(pre="llama-bpe"), "begin .*no bos_token_id"),
        (dict(add_eos_token=True), "end .*no eos_token_id"),
        (dict(merges=None), "no merges"),
        (dict(pre="bloom"), "pre is 'bloom'.*known: default, gpt-2, .*qwen2"),
        (dict(eom_token_id=257), "eom_token_id is 257"),
    ],
)
def test_what_would_change_a_text_and_is_not_known_is_refused(changes, words):
    with pytest.raises(UserError, match=words):
        made(bpe(**changes))


# Splits ---------------------------------------------------------------------------------------------------------------

TEXT = "I'LL don't x12345 é!= a+b\r\n\n  x"
WORDS = {
    "default": ["I", "'", "LL", " don", "'", "t", " x", "123", "45", " é", "!=", " a", "+", "b", "\r\n\n ", " x"],
    "gpt-2": ["I", "'", "LL", " don", "'t", " x", "12345", " é", "!=", " a", "+", "b", "\r\n\n ", " x"],
    "smollm": ["I", "'", "LL", " don", "'t", " x", *"12345", " é", "!=", " a", "+", "b", "\r\n\n ", " x"],
    "llama-bpe": ["I", "'LL", " don", "'t", " x", "123", "45", " é", "!=", " a", "+b", "\r\n\n", " ", " x"],
    "qwen2": ["I", "'LL", " don", "'t", " x", *"12345", " é", "!=", " a", "+b", "\r\n\n", " ", " x"],
}
ALIASES = {
    "gpt-2": ["phi-2", "gigachat", "exaone4", "olmo"], "smollm": ["starcoder", "command-r", "minerva-7b"],
    "llama-bpe": ["llama3", "llama-v3", "falcon3", "pixtral", "smaug-bpe", "dbrx", "chatglm-bpe"],
    "qwen2": ["deepseek-r1-qwen", "megrez", "stablelm2", "grok-2"],
}  # fmt: skip


@pytest.mark.parametrize("name", WORDS)
def test_a_text_is_cut_into_the_words_that_llama_cpp_cuts(name):
    for alias in (name, *ALIASES.get(name, [])):
        pieces = SPLITS[alias].pre_tokenizer().pre_tokenize_str(TEXT)
        assert [TEXT[start:end] for _, (start, end) in pieces] == WORDS[name]


def test_a_file_that_names_no_split_gets_llama_cpps_default_and_a_warning(capsys):
    fields = bpe(merges=["a b", "1 2", "12 3", "123 4"], tokens=["12", "123", "1234"], types=[1, 1, 1], pre=None)
    assert spelt(fields, "1234") == ["123", "4"]
    assert re.fullmatch(r"warning: m.gguf .*split.*\n", capsys.readouterr().err)
    assert spelt(fields | {"tokenizer.ggml.pre": "default"}, "1234") == ["123", "4"]
    assert spelt(spm(), "hi") == ["<s>", "▁hi"]  # which has none
    assert not capsys.readouterr().err


# Real files -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", ["qwen2.5-coder-0.5b", "qwen2.5-coder-1.5b"])
def test_tool_calls_of_a_real_file_are_one_token(real_model, name):
    from llama_jax.checkpoint.header import read

    words = vocabulary.from_gguf(read(path := real_model(name)).metadata, str(path), 151936)
    assert words.encode("<tool_call>\n</tool_call>") == [151657, 198, 151658]
    assert words.stop == (151643, 151645, 151662, 151663, 151664)
    assert words.decode([151657, 198]) == "<tool_call>\n"


@pytest.mark.slow
def test_gemmas_spaces_and_lines_are_tokens(real_model):
    from llama_jax.checkpoint.header import read

    words = vocabulary.from_gguf(read(path := real_model("gemma-3-270m")).metadata, str(path), 262144)
    ids = words.encode("Hello   world\n\n\n<h1>é</h1>")
    assert words.decode(ids) == "Hello   world\n\n\n<h1>é</h1>"
    assert ids == [2, 9259, 139, 12392, 109, 184, 236859, 191]
    assert words.stop == (1, 106)
