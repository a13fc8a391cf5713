import json

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tokenizers.pre_tokenizers import ByteLevel

from llama_jax import checkpoint
from llama_jax.checkpoint import vocabulary
from llama_jax.plumbing.errors import UserError
from llama_jax.tokenizer import LETTERS
from tests.conftest import edit_json, save_llama

SPM = ["<unk>", "<s>", "</s>"] + [f"<0x{b:02X}>" for b in range(256)] + ["▁", "h", "i", "▁h", "hi", "▁hi", "!", "hi!"]
SCORES = [0.0] * 259 + [-9.0, -9.0, -9.0, -3.0, -2.0, -1.0, -9.0, -4.0]


def spm(**changes):
    fields = {
        "model": "llama",
        "tokens": SPM,
        "scores": SCORES,
        "token_type": [2, 3, 3] + [6] * 256 + [1] * 8,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "unknown_token_id": 0,
        **changes,
    }
    return {f"tokenizer.ggml.{k}": v for k, v in fields.items()}


def made(fields):
    return vocabulary.from_gguf(fields, "m.gguf", len(fields["tokenizer.ggml.tokens"]))


@pytest.fixture(scope="module")
def spelt(packaged):
    """Letters that are tokens by themselves."""
    return {token for token in packaged.tokenizer.backend.get_vocab() if len(token) == 1}


@settings(deadline=None)
@given(text=st.text(st.characters(max_codepoint=0xFFFF, exclude_categories=["Cs"]), max_size=40))
def test_decode_inverts_encode(packaged, spelt, text):
    tok = packaged.tokenizer
    pieces = ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str(text) if text else []
    assume(all(c in spelt for piece, _ in pieces for c in piece))  # the vocabulary lacks a few control bytes
    assert tok.decode(tok.encode(text)) == text


def test_sentencepiece_merges_by_score_and_spells_bytes():
    tok = made(spm())
    assert [SPM[i] for i in tok.encode("hi!")] == ["<s>", "▁hi", "!"]  # ▁hi scores above hi!
    assert [SPM[i] for i in tok.encode("é", special=False)] == ["▁", "<0xC3>", "<0xA9>"]
    assert tok.decode(tok.encode("hi é!")) == "hi é!"
    assert tok.stop == (2,)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (dict(model="bert"), "bert"),
        (dict(tokens=[]), "no vocabulary"),
        (dict(scores=[1.0]), "1 scores"),
        (dict(model="gpt2", pre="odd", merges=[]), "pre is 'odd'.*llama-bpe"),
    ],
)
def test_unsupported_tokenizers_are_named(changes, words):
    with pytest.raises(UserError, match=words):
        made(spm(**changes))


@pytest.mark.parametrize(("pre", "back"), [("qwen2", "\u00e9"), ("llama-bpe", "e\u0301"), ("default", "e\u0301")])
def test_only_qwen2_composes_characters(pre, back):
    tokens = sorted(ByteLevel.alphabet())
    tok = made(spm(model="gpt2", pre=pre, tokens=tokens, token_type=[1] * 256, scores=None, merges=[],
                   bos_token_id=None, eos_token_id=None, add_bos_token=False))  # fmt: skip
    assert tok.decode(tok.encode("e\u0301")) == back


def test_llama3_splits_and_begins_with_bos():
    tokens = ["<|begin|>", "<|eot_id|>", *sorted(ByteLevel.alphabet()), "12", "123"]
    tok = made(spm(
        model="gpt2", pre="llama-bpe", tokens=tokens, token_type=[3, 3] + [1] * 258, scores=None,
        merges=["1 2", "12 3"], bos_token_id=0, eos_token_id=1,
    ))  # fmt: skip
    assert [tokens[i] for i in tok.encode("12312")] == ["<|begin|>", "123", "12"]  # digits in threes
    assert tok.stop == (1,)


def test_a_hub_folder(tmp_path, packaged):
    folder, _ = save_llama(tmp_path / "m", vocab_size=49152)
    assert checkpoint.find(str(folder)).tokenizer() is None
    (folder / "tokenizer.json").write_text(packaged.tokenizer.definition)
    config = dict(bos_token="<|im_start|>", eos_token={"content": "<|im_end|>"}, chat_template="{{ 1 }}")
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    edit_json(folder / "generation_config.json", eos_token_id=[7, 9])
    tok = checkpoint.find(str(folder)).tokenizer()
    assert (tok.stop, tok.chat_template, tok.eos_token) == ((0, 2, 7, 9), "{{ 1 }}", "<|im_end|>")
    (folder / "chat_template.jinja").write_text("{{ 2 }}")
    assert checkpoint.find(str(folder)).tokenizer().chat_template == "{{ 2 }}"
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(UserError, match="not a tokenizer"):
        checkpoint.find(str(folder)).tokenizer()


# Bytes of tokens: side by side they are the text's --------------------------------------------------------------------


@given(st.text("aZ 1\n.éß語👋", max_size=30))
def test_the_bytes_of_a_texts_tokens_are_its_own(packaged, text):
    spelt = [packaged.tokenizer.token_bytes(i) for i in packaged.tokenizer.encode(text)]
    assert b"".join(spelt) == text.encode()


def test_letters_are_gpt2s():
    assert len(LETTERS) == 256
    assert set(LETTERS) == set(ByteLevel.alphabet())
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
