"""Token ids: llama.cpp's own, of vocabularies in small files and of the real ones."""

import ctypes
import random
from contextlib import contextmanager

import gguf
import pytest
from tokenizers import Tokenizer, models, trainers
from tokenizers.pre_tokenizers import ByteLevel

from llama_jax import checkpoint
from llama_jax.checkpoint import fetched, header, vocabulary
from llama_jax.checkpoint.splits import SPLITS
from tests.checkpoint.test_vocabulary import CONTROL, NORMAL, UNUSED, USER, bpe
from tests.fuzz.base import finish
from tests.test_tokenizer import SCORES, SPM, spm

pytestmark = pytest.mark.peers
PIECES = [
    *("hello", " world", "'s", "'LL", " don't", "123", "1234567", " 12", "3.14", "\n", "\n\n", "\n \n", "  ", "   "),
    *("\t", "\r\n", "é", "日本語", "한국어", "🙂", " été", "…", "—", "“x”", "<", ">", "|", "_", "==", "!=", "/", "#!"),
    *("()", "[]", "\u00a0", "\u3000", "\u200b", "٣٤", "²³", "½", "Ⅷ", "a", "b", "The", "Привет", "मानक", "ไทย", "$"),
    *("€", "^", "~", "`", "\\", "+", "ABCdef", "'S", "'re", "I'M", " $5", " (a)", "\x0b", "\u2028", "<|im_end|>"),
    *("<t>", "<tool_call>", "<h1>", "<s>", "<unk>", "<bos>", "<unused5>", "<|fim_prefix|>", "<start_of_turn>"),
]  # fmt: skip


def texts(seed, count, more=()):
    drawn, pieces = random.Random(seed), [*PIECES, *more]
    return ["".join(drawn.choice(pieces) for _ in range(drawn.randrange(1, 12))) for _ in range(count)]


@contextmanager
def llama_cpps(path):
    """(a function of text, whether special tokens are parsed and whether they are added; ids that end an answer)."""
    import llama_cpp as llama

    quiet = llama.llama_log_callback(lambda *_: None)
    llama.llama_log_set(quiet, None)
    llama.llama_backend_init()
    options = llama.llama_model_default_params()
    options.vocab_only = True
    model = llama.llama_model_load_from_file(str(path).encode(), options)
    assert model
    words = llama.llama_model_get_vocab(model)

    def encode(text, special, add):
        spelt = text.encode()
        ids = (llama.llama_token * (len(spelt) + 9))()
        return ids[: llama.llama_tokenize(words, spelt, len(spelt), ids, len(ids), add, special)]

    ends = [i for i in range(llama.llama_vocab_n_tokens(words)) if llama.llama_vocab_is_eog(words, i)]
    yield encode, ends
    llama.llama_model_free(model)
    llama.llama_log_set(ctypes.cast(None, llama.llama_log_callback), None)


def written(path, fields):
    """A file that has a vocabulary alone."""
    writer = gguf.GGUFWriter(path, "llama")
    for key, value in fields.items():
        if isinstance(value, bool | str | int | float):
            add = {bool: writer.add_bool, str: writer.add_string, int: writer.add_uint32, float: writer.add_float32}
            add[type(value)](key, value)
        elif value:
            writer.add_array(key, value)
    for add in (writer.add_block_count, writer.add_context_length, writer.add_embedding_length, writer.add_head_count):
        add(32)
    writer.add_feed_forward_length(32)
    finish(writer)
    return path


def agree(path, fields, given, but=()):
    """The ids and the ends are the same, but for those texts that have one of some pieces."""
    words = vocabulary.from_gguf(fields, str(path), 1 << 20)
    with llama_cpps(path) as (theirs, ends):
        assert [i for i in ends if words.backend.id_to_token(i) != "</s>" or i == words.stop[0]] == list(words.stop)
        for text in given:
            if not any(piece in text for piece in but):
                for special, add in ((False, True), (True, False)):
                    assert words.encode(text, add, special) == theirs(text, special, add), (text, special)


@pytest.fixture(scope="module")
def crossing():
    """(tokens, merges) of byte-level BPE that knows no words, so that its tokens cross every border of a split."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = ByteLevel(add_prefix_space=False, use_regex=False)
    letters = sorted(ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=1500, initial_alphabet=letters, show_progress=False)
    made.train_from_iterator(texts(1, 800), trainer)
    tokens = [made.id_to_token(i) for i in range(made.get_vocab_size())]
    known = set(tokens)
    halves = [f"{t[:i]} {t[i:]}" for t in tokens for i in range(1, len(t)) if t[:i] in known and t[i:] in known]
    return tokens, halves


@pytest.mark.parametrize("name", [None, *SPLITS])
def test_every_split_is_llama_cpps(tmp_path, crossing, name):
    tokens, merges = crossing
    fields = bpe(tokens=(), merges=merges, pre=name, bos_token_id=0, eos_token_id=1)
    fields |= {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": [NORMAL] * len(tokens)}
    agree(written(tmp_path / "m.gguf", fields), fields, texts(2, 60))


TOKENS = ["<|im_end|>", "<tool_call>", "<t>", "  ", "\n", "<|fim_prefix|>", "<|file_sep|>", "<PAD>"]
TYPES = [CONTROL, USER, UNUSED, USER, USER, USER, NORMAL, NORMAL]


@pytest.mark.parametrize(
    "changes",
    [{}, dict(add_bos_token=True, add_eos_token=True), dict(fim_pre_token_id=262), dict(eom_token_id=258)],
)
def test_every_type_of_token_is_llama_cpps_in_byte_level_vocabularies(tmp_path, changes):
    fields = bpe(TOKENS, TYPES, bos_token_id=0, eos_token_id=1, **changes)
    agree(written(tmp_path / "m.gguf", fields), fields, texts(3, 60, TOKENS))


@pytest.mark.parametrize(
    "changes",
    [{}, dict(add_space_prefix=False), dict(add_bos_token=False, add_eos_token=True), dict(name="Phi-3")],
)
def test_every_type_of_token_is_llama_cpps_in_sentencepiece_vocabularies(tmp_path, changes):
    changes = dict(changes)
    name = changes.pop("name", "a model")
    more = {**dict(zip(TOKENS, TYPES, strict=True)), "<|endoftext|>": CONTROL}
    if name == "Phi-3":  # where a token takes the space behind it, space is none
        more = {token: kind for token, kind in more.items() if not token.isspace()}
    tokens, types = [*SPM, *more], [2, 3, 3, *[6] * 256, *[1] * 8, *more.values()]
    fields = spm(tokens=tokens, scores=[*SCORES, *[-50.0] * len(more)], token_type=types, **changes)
    fields |= {"general.name": name}
    agree(written(tmp_path / "m.gguf", fields), fields, texts(4, 60, [*TOKENS, "hi", " hi!", "<|endoftext|>"]))


def test_the_packaged_files_ids_are_llama_cpps():
    path = checkpoint.gguf.packaged()
    agree(path, header.read(path).metadata, texts(5, 100))


@pytest.mark.slow
@pytest.mark.parametrize("name", fetched.WEIGHTS)
def test_a_real_files_ids_are_llama_cpps(real_model, name):
    path = real_model(name)
    agree(path, header.read(path).metadata, texts(5, 400), but=["</s>"])
