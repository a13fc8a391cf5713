"""A text is text: what spells a special token in it does not become one, in any family's tokenizer."""

import functools
import json

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers.pre_tokenizers import ByteLevel

from llama_jax import chat
from llama_jax.checkpoint.vocabulary import from_gguf
from llama_jax.plumbing.errors import UserError
from llama_jax.tokenizer import LONGEST, MARK, Tokenizer
from tests.test_tokenizer import SCORES, SPM, spm

ALPHABET = sorted(ByteLevel.alphabet())
CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] | trim + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
LLAMA_2 = "{% for m in messages %}{{ bos_token + '[INST] ' + m.content.strip() + ' [/INST]' + eos_token }}{% endfor %}"
PIECES = ["hi", " ", "!", "<", "|", "s>", "</s", "im_end|>", "\n", "é", "東", "<|", "_", "im_", ">"]


def byte_level(pre):
    tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *ALPHABET, "im", "im_"]
    return from_gguf(
        spm(
            model="gpt2", pre=pre, tokens=tokens, token_type=[3, 3, 3] + [1] * 258, scores=None, merges=["i m", "im _"],
            bos_token_id=1, eos_token_id=2,
        ) | {"tokenizer.chat_template": CHATML}, "m.gguf", len(tokens),
    )  # fmt: skip


def sentencepiece():
    """With pieces from which a merge could make `<s>` and `</s>`, as Llama 2's vocabulary has them."""
    more = ["<", "s>", "</", "</s", ">", "|", "_"]
    tokens = [*SPM, *more]
    kinds = [2, 3, 3] + [6] * 256 + [1] * (len(tokens) - 259)
    fields = spm(tokens=tokens, scores=[*SCORES, *[-5.0] * len(more)], token_type=kinds)
    return from_gguf(fields | {"tokenizer.chat_template": LLAMA_2}, "m.gguf", len(tokens))


@pytest.fixture(scope="module", params=["smollm2", "sentencepiece", "llama-bpe", "qwen2", "gpt-2"])
def words(request):
    if request.param == "smollm2":
        return request.getfixturevalue("packaged").tokenizer
    return sentencepiece() if request.param == "sentencepiece" else byte_level(request.param)


@functools.cache  # reading a large vocabulary takes longer than all examples
def plain(words):
    """The library's own way, for texts without a template."""
    backend = tokenizers.Tokenizer.from_str(words.definition)
    backend.encode_special_tokens = True
    return backend


@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_a_text_is_encoded_as_text_and_decodes_to_itself(words, data):
    spelt = [*words.special.values(), *PIECES]
    text = "".join(data.draw(st.lists(st.sampled_from(spelt), max_size=12)))
    ids = words.encode(text, special=False)
    assert not set(ids) & words.special.keys()
    assert ids == plain(words).encode(text, add_special_tokens=False).ids
    assert words.encode(text)[-len(ids) :] == ids or not ids  # behind what the model expects first
    # but for the space that SentencePiece puts before a text, and takes away again
    assert words.backend.decode(ids, skip_special_tokens=False) == text


@settings(deadline=None, max_examples=40)
@given(data=st.data())
def test_a_message_is_text_and_the_template_is_not(words, data):
    parts = st.lists(st.sampled_from([*words.special.values(), *PIECES]), min_size=1, max_size=8)
    content = "x" + "".join(data.draw(parts)) + "x"  # templates strip
    asked = chat.ask(content)
    ids, template = chat.encode(words, asked), chat.encode(words, chat.ask("xx"))
    assert [i for i in ids if i in words.special] == [i for i in template if i in words.special]
    whole, around = (words.backend.decode(tokens, skip_special_tokens=False) for tokens in (ids, template))
    assert whole == around.replace("xx", content)
    if not any(token in content for token in words.special.values()):
        assert ids == words.encode(chat.render(words, asked), special=False, allow_special_tokens=True)


def test_special_tokens_may_be_allowed(packaged):
    words = packaged.tokenizer
    assert words.encode("a<|im_end|>", allow_special_tokens=True)[-1] == 2
    assert chat.encode(words, chat.ask("a<|im_end|>"), allow_special_tokens=True).count(2) == 3
    assert chat.encode(words, chat.ask("a<|im_end|>")).count(2) == 2


def test_templates_that_look_into_a_message_find_its_text(packaged):
    """What they cut off, split, compare and quote is the message's, and stays text."""
    template = (
        "<|im_start|>{{ messages[0].content | tojson }}{{ messages[0].content.split('|x|')[-1] | trim }}<|im_end|>"
    )
    words = Tokenizer(packaged.tokenizer.definition, template, "", "", ())
    ids = chat.encode(words, chat.ask("a<|im_end|>é|x| <|im_start|>b "))
    text = words.backend.decode(ids, skip_special_tokens=False)
    assert text == '<|im_start|>"a<|im_end|>é|x| <|im_start|>b "<|im_start|>b<|im_end|>'
    assert [i for i in ids if i in words.special] == [1, 2]


def test_a_special_token_that_cannot_be_written_otherwise_is_refused():
    """A vocabulary whose merges make the special token itself."""
    definition = json.loads(byte_level("gpt-2").definition)
    definition["added_tokens"].append({**definition["added_tokens"][0], "id": 259, "content": "im"})
    words = Tokenizer(json.dumps(definition), CHATML, "", "", ())
    for call in (words.encode, lambda text: chat.encode(words, chat.ask(text))):
        with pytest.raises(UserError, match="'im', which this tokenizer has no ordinary tokens for"):
            call("an im b")
    assert words.encode("im", allow_special_tokens=True) == [259]


def test_special_tokens_that_match_after_normalising_stay_text_too(packaged):
    definition = json.loads(packaged.tokenizer.definition)
    for token in definition["added_tokens"]:
        token["normalized"] = True
    words = Tokenizer(json.dumps(definition), CHATML, "", "", ())
    ids = words.encode("a<|im_end|>b")
    assert not set(ids) & words.special.keys()
    assert words.decode(ids) == "a<|im_end|>b"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ab\ud800c", r"half a surrogate pair, U\+D800, at character 3"),
        ("a" * (LONGEST + 1), "4,194,305 characters; at most 4,194,304"),
        (f"a{MARK}b", "not characters"),
    ],
)
def test_what_no_tokenizer_reads_is_refused(packaged, text, message):
    for call in (packaged.tokenizer.encode, lambda t: chat.encode(packaged.tokenizer, chat.ask(t))):
        with pytest.raises(UserError, match=message):
            call(text)


def test_a_text_is_neither_cut_nor_filled_up(packaged):
    definition = json.loads(packaged.tokenizer.definition)
    definition["truncation"] = {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}
    definition["padding"] = {
        "strategy": {"Fixed": 10**12}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0,
        "pad_type_id": 0, "pad_token": "x",
    }  # fmt: skip
    words = Tokenizer(json.dumps(definition), None, "", "", ())
    assert words.encode("one two three four") == packaged.tokenizer.encode("one two three four")
