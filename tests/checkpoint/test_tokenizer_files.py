"""Tokenizers of Hugging Face folders, in every form that is read: the ids are those of transformers."""

import json
from types import SimpleNamespace

import pytest
from tokenizers import AddedToken
from tokenizers.pre_tokenizers import ByteLevel
from transformers import AutoTokenizer
from transformers.utils import sentencepiece_model_pb2_new as sentencepiece_message

from llama_jax import chat
from llama_jax.checkpoint import huggingface
from llama_jax.checkpoint.vocabulary import byte_level_bpe
from llama_jax.plumbing.errors import UserError
from tests.test_tokenizer import SCORES, SPM, made, spm

LETTERS = sorted(ByteLevel.alphabet())
MERGES = [("a", "b"), ("1", "2"), ("12", "3"), ("Ġ", "a"), ("Ġa", "b"), ("'", "t")]
TOKENS = [*LETTERS, *(a + b for a, b in MERGES), "<|endoftext|>", "<|im_end|>", "<tool>", "<s>"]
IDS = {token: i for i, token in enumerate(TOKENS)}
TEXTS = [
    "ab ab123",
    "a<tool> ab<|im_end|>  ab",
    "xtoolx<tool>",
    "It'T don't\n\n 12345",
    "é e\u0301 <s>",
    "<|endoftext|>b",
]


def written(folder, config="llama", **files):
    """A folder of JSON documents and texts, with the names that their keyword arguments have but for the dot."""
    documents = {"config.json": {"model_type": config}} | {
        name.replace("_json", ".json"): d for name, d in files.items()
    }
    for name, document in documents.items():
        is_text = isinstance(document, str)
        (folder / name.replace("_txt", ".txt")).write_text(document if is_text else json.dumps(document))
    return folder


def ours(folder, vocab_size=1000):
    raw = json.loads((folder / "config.json").read_text())
    return huggingface.read_tokenizer(folder, SimpleNamespace(vocab_size=vocab_size), raw)


def agree(folder, texts=TEXTS):
    words, theirs = ours(folder), AutoTokenizer.from_pretrained(folder)
    for text in texts:
        assert words.encode(text, allow_special_tokens=True) == theirs(text)["input_ids"], text
    special = {i: token.content for i, token in theirs.added_tokens_decoder.items() if token.special}
    assert words.special == special
    assert words.names == theirs.special_tokens_map
    return words


# tokenizer.json -------------------------------------------------------------------------------------------------------


def definition():
    backend = byte_level_bpe(IDS, MERGES, "gpt-2")
    backend.add_tokens([AddedToken("<tool>", normalized=False), AddedToken("<|im_end|>", normalized=False)])
    backend.add_special_tokens([AddedToken("<|endoftext|>", normalized=False)])
    return json.loads(backend.to_str())


def declared(token, special=False, **more):
    return {"content": token, "lstrip": False, "rstrip": False, "single_word": False, "special": special} | more


END, TOOL, S = (str(IDS[token]) for token in ("<|im_end|>", "<tool>", "<s>"))


@pytest.mark.parametrize(
    "config",
    [
        {},
        dict(eos_token="<|im_end|>"),
        dict(eos_token=declared("<|im_end|>", normalized=False, __type="AddedToken"), pad_token="<|endoftext|>"),
        dict(bos_token=None, unk_token="<|endoftext|>", mask_token="<tool>"),
        dict(additional_special_tokens=["<tool>"]),
        dict(extra_special_tokens=["<tool>", "<s>"]),
        dict(extra_special_tokens={"tool_token": "<tool>"}),
        dict(added_tokens_decoder={END: declared("<|im_end|>", True, normalized=False)}),
        dict(added_tokens_decoder={END: declared("<|im_end|>", True, rstrip=True, lstrip=True, normalized=False)}),
        dict(added_tokens_decoder={TOOL: declared("<tool>", rstrip=True, normalized=True)}),
        dict(added_tokens_decoder={TOOL: declared("<tool>", single_word=True, normalized=False)}),
        dict(added_tokens_decoder={S: declared("<s>", True), TOOL: declared("<tool>")}, eos_token="<s>"),
        dict(add_bos_token=True, add_eos_token=True, bos_token="<s>", eos_token="<s>", add_prefix_space=True),
    ],
)
def test_what_tokenizer_config_declares_goes_before_the_tokenizer(tmp_path, config):
    config = dict(tokenizer_class="PreTrainedTokenizerFast") | config
    agree(written(tmp_path, tokenizer_json=definition(), tokenizer_config_json=config))


def test_older_folders_name_special_tokens_in_a_file_of_their_own(tmp_path):
    special = dict(eos_token=declared("<|im_end|>"), additional_special_tokens=["<tool>"])
    special["eos_token"].pop("special")
    config = dict(tokenizer_class="PreTrainedTokenizerFast")
    files = dict(tokenizer_json=definition(), tokenizer_config_json=config, special_tokens_map_json=special)
    assert agree(written(tmp_path, **files)).eos_token == "<|im_end|>"


def test_a_name_of_a_token_that_is_not_there_adds_none(tmp_path):
    words = ours(written(tmp_path, tokenizer_json=definition(), tokenizer_config_json=dict(pad_token="[PAD]")))
    assert len(words.encode("[PAD]", allow_special_tokens=True)) == 5


def test_a_token_with_another_id_than_the_tokenizer_gives_it_is_refused(tmp_path):
    config = dict(added_tokens_decoder={"5": declared("<tool>")})
    with pytest.raises(UserError, match=f"'<tool>' is token 5 in tokenizer_config.json and {TOOL} in the tokenizer"):
        ours(written(tmp_path, tokenizer_json=definition(), tokenizer_config_json=config))


# vocab.json and merges.txt --------------------------------------------------------------------------------------------

PAIRS = "#version: 0.2\n" + "".join(f"{a} {b}\n" for a, b in MERGES)


@pytest.mark.parametrize(
    ("family", "config"),
    [
        ("gpt2", {}),
        ("qwen2", {}),
        ("llama", dict(tokenizer_class="GPT2Tokenizer")),
        ("llama", dict(tokenizer_class="Qwen2TokenizerFast", eos_token="<|im_end|>", pad_token=None)),
        ("qwen2", dict(added_tokens_decoder={END: declared("<|im_end|>", True), TOOL: declared("<tool>")})),
        ("gpt2", dict(add_bos_token=True, bos_token="<s>")),
        ("gpt2", dict(additional_special_tokens=["<|im_end|>", "<tool>"])),
    ],
)
def test_vocab_and_merges_are_a_tokenizer(tmp_path, family, config):
    agree(written(tmp_path, family, vocab_json=IDS, merges_txt=PAIRS, tokenizer_config_json=config))


def test_tokens_may_be_added_behind_vocab_and_merges(tmp_path):
    files = dict(vocab_json=IDS, merges_txt=PAIRS, added_tokens_json={"<|new|>": len(IDS), "<|end|>": len(IDS) + 1})
    special = dict(special_tokens_map_json=dict(eos_token="<|end|>"))
    words = agree(written(tmp_path, "qwen2", **files, **special), [*TEXTS, "a<|new|> b<|end|> "])
    assert words.stop == (IDS["<|endoftext|>"], IDS["<|im_end|>"], len(IDS) + 1)
    with pytest.raises(UserError, match="reach id"):
        ours(tmp_path, len(IDS))


@pytest.mark.parametrize(
    ("files", "words"),
    [
        (dict(merges_txt="a b c\n"), "line 1 is not a pair"),
        (dict(merges_txt="#version\na b\n\nq\n"), "line 4 is not a pair"),
        (dict(merges_txt="a qq\n"), "vocab.json and merges.txt are no tokenizer.*qq"),
        (dict(vocab_json={"a": -1}), "vocab.json: a is -1"),
        (dict(vocab_json=[]), r"vocab.json: it holds \[\]"),
        (
            dict(tokenizer_config_json=dict(tokenizer_class="CodeGenTokenizer")),
            "form of CodeGenTokenizer is not supported.*python -c",
        ),
    ],
)
def test_damaged_files_and_other_classes_are_named(tmp_path, files, words):
    folder = written(tmp_path, "gpt2", **dict(vocab_json=IDS, merges_txt=PAIRS) | files)
    with pytest.raises(UserError, match=words):
        ours(folder)


@pytest.mark.parametrize("name", ["tekken.json", "spiece.model", "vocab.json", "merges.txt"])
def test_another_form_is_named_with_the_command_that_makes_one_that_is_read(tmp_path, name):
    (written(tmp_path, "llama") / name).write_text("{}")
    with pytest.raises(UserError, match=r"LlamaTokenizer is not supported.*from_pretrained\('.*'\)\.save_pretrained"):
        ours(tmp_path)


def test_a_folder_without_any_has_no_tokenizer(tmp_path):
    assert ours(written(tmp_path)) is None


# tokenizer.model ------------------------------------------------------------------------------------------------------


def pieces(kind=2, **normalizer):
    """A SentencePiece model with the vocabulary of a GGUF file, as Google's own protobuf writes it."""
    message = sentencepiece_message.ModelProto()
    for token, score, type_ in zip(SPM, SCORES, [2, 3, 3] + [6] * 256 + [1] * 7 + [4], strict=True):
        piece = message.pieces.add(piece=token, score=score)
        if type_ != 1:  # what is left out is text
            piece.type = type_
    message.trainer_spec.model_type = kind
    message.trainer_spec.vocab_size = len(SPM)
    for name, value in (
        dict(name="identity", add_dummy_prefix=True, remove_extra_whitespaces=False) | normalizer
    ).items():
        setattr(message.normalizer_spec, name, value)
    return message.SerializeToString()


SAME = ["hi", "hi! ihi", "  é hi", "hi!<s>", "", " "]


@pytest.mark.parametrize(
    ("config", "switches"),
    [
        (dict(legacy=True), {}),
        (dict(legacy=True, add_bos_token=False, add_eos_token=True), dict(add_bos_token=False, add_eos_token=True)),
        (dict(legacy=True, add_prefix_space=False), dict(add_space_prefix=False)),
    ],
)
def test_a_sentencepiece_model_gives_the_ids_of_the_same_gguf_vocabulary(tmp_path, config, switches):
    (written(tmp_path, tokenizer_config_json=config) / "tokenizer.model").write_bytes(pieces())
    words = ours(tmp_path)
    same = made(spm(token_type=[2, 3, 3] + [6] * 256 + [1] * 7 + [4], **switches))
    for text in SAME:
        for special in (False, True):
            assert words.encode(text, allow_special_tokens=special) == same.encode(text, allow_special_tokens=special)
    assert (words.stop, words.bos_token, words.special) == (same.stop, "<s>", same.special)
    assert words.decode(words.encode(" hi é!")) == " hi é!"


def test_behind_a_special_token_transformers_puts_no_space(tmp_path):
    (written(tmp_path) / "tokenizer.model").write_bytes(pieces())
    words = ours(tmp_path)
    spelt = [words.backend.id_to_token(i) for i in words.encode("hi</s>hi", allow_special_tokens=True)]
    assert spelt == ["<s>", "▁hi", "</s>", "hi"]
    assert not set(words.encode("hi</s>hi")[1:]) & words.special.keys()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "not a SentencePiece model"),
        (b"\xff" * 40, "not a SentencePiece model"),
        (pieces()[:-3], "not a SentencePiece model"),
        (b"IQ== 0\nIg== 1\n", "not a SentencePiece model"),
        (pieces(kind=1), "of type BPE are supported. Make a tokenizer.json.*python -c"),
        (pieces(precompiled_charsmap=b"x"), "normalises text is.*python -c"),
        (pieces(remove_extra_whitespaces=True), "normalises text is.*python -c"),
    ],
)
def test_a_sentencepiece_model_that_is_none_or_another_kind_is_named(tmp_path, content, words):
    (written(tmp_path) / "tokenizer.model").write_bytes(content)
    with pytest.raises(UserError, match=f"tokenizer.model: .*{words}"):
        ours(tmp_path)


def test_templates_of_several_names_need_a_plain_one(tmp_path):
    several = [dict(name="tool_use", template="a"), dict(name="default", template="b")]
    folder = written(tmp_path, tokenizer_json=definition(), tokenizer_config_json=dict(chat_template=several))
    assert ours(folder).chat_template == "b"
    folder = written(tmp_path, tokenizer_json=definition(), tokenizer_config_json=dict(chat_template=several[:1]))
    with pytest.raises(UserError, match="none for plain conversations"):
        chat.render(ours(folder), chat.ask("x"))
