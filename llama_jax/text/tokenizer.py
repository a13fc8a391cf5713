"""Text to token ids and back, on the `tokenizers` library; built from GGUF metadata or a Hugging Face folder."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors

from llama_jax.errors import UserError

LLAMA_3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN_2_SPLIT = LLAMA_3_SPLIT.replace(r"\p{N}{1,3}", r"\p{N}")  # a number goes digit by digit
END_OF_TURN = ("<|endoftext|>", "<|im_end|>", "<|eot_id|>", "<|end_of_text|>")  # what ends an answer, besides eos
CONTROL = 3  # GGUF token type of special tokens


@dataclass(frozen=True)
class Tokenizer:
    """A tokenizer with what generation needs to know of it.

    definition: tokenizer.json as text. stop: ids that end an answer. chat_template: Jinja source, or None.
    """

    definition: str = field(repr=False)
    chat_template: str | None = field(repr=False)
    bos_token: str
    eos_token: str
    stop: tuple[int, ...]

    @classmethod
    def from_dict(cls, parts: dict) -> Tokenizer:
        return cls(**{**parts, "stop": tuple(parts["stop"])})

    @cached_property
    def backend(self) -> tokenizers.Tokenizer:
        return tokenizers.Tokenizer.from_str(self.definition)

    def encode(self, text: str, special: bool = True) -> list[int]:
        """Token ids of a text. special: add what the model expects around a plain text, such as its first token."""
        return self.backend.encode(text, add_special_tokens=special).ids

    def decode(self, ids: Iterable[int]) -> str:
        """Text of token ids, special tokens left out."""
        return self.backend.decode([int(i) for i in ids], skip_special_tokens=True)


def stop_ids(vocabulary: dict[str, int], *extra: int | None) -> tuple[int, ...]:
    """Ids that end an answer: those given and the vocabulary's own end-of-turn tokens."""
    known = {vocabulary[t] for t in END_OF_TURN if t in vocabulary}
    return tuple(sorted(known | {i for i in extra if i is not None}))


def from_folder(folder: Path, config: dict, tokenizer_config: dict, generation_config: dict) -> Tokenizer:
    """From tokenizer.json and its neighbours in a Hugging Face folder."""
    definition = (folder / "tokenizer.json").read_text(encoding="utf-8")
    try:
        backend = tokenizers.Tokenizer.from_str(definition)
    except Exception as error:  # the library raises bare Exception
        raise UserError(f"{folder / 'tokenizer.json'}: not a tokenizer ({error}).") from error
    template = tokenizer_config.get("chat_template")
    if (jinja := folder / "chat_template.jinja").is_file():
        template = jinja.read_text(encoding="utf-8")

    def text(token) -> str:
        return token.get("content", "") if isinstance(token, dict) else token or ""

    bos, eos = text(tokenizer_config.get("bos_token")), text(tokenizer_config.get("eos_token"))
    ends = generation_config.get("eos_token_id", config.get("eos_token_id"))
    ends = ends if isinstance(ends, list) else [ends]
    stop = stop_ids(backend.get_vocab(), backend.token_to_id(eos) if eos else None, *ends)
    return Tokenizer(definition, template if isinstance(template, str) else None, bos, eos, stop)


def from_gguf(fields: dict, where: str) -> dict:
    """A Tokenizer's parts, as plain JSON values, from GGUF metadata (`tokenizer.ggml.*`)."""

    def field(key: str, default=None):
        return fields.get(f"tokenizer.ggml.{key}", default)

    tokens, types = field("tokens"), field("token_type", [])
    if not tokens:
        raise UserError(f"{where}: the GGUF file has no vocabulary (tokenizer.ggml.tokens).")
    builders = {"gpt2": byte_level_bpe, "llama": sentencepiece_bpe}
    if (kind := field("model")) not in builders:
        raise UserError(f"{where}: tokenizer {kind!r} is not supported; supported: {', '.join(builders)}.")
    backend = builders[kind](tokens, field, where)
    special = [
        AddedToken(t, special=True, normalized=False) for t, k in zip(tokens, types, strict=False) if k == CONTROL
    ]
    backend.add_special_tokens(special)
    bos, eos = field("bos_token_id"), field("eos_token_id")
    adds_bos = field("add_bos_token", kind == "llama" or field("pre") == "llama-bpe")
    if adds_bos and bos is not None:
        first = tokens[bos]
        backend.post_processor = processors.TemplateProcessing(
            single=f"{first} $A", pair=f"{first} $A $B", special_tokens=[(first, bos)]
        )
    vocabulary = {t: i for i, t in enumerate(tokens)}
    return asdict(
        Tokenizer(
            definition=backend.to_str(),
            chat_template=fields.get("tokenizer.chat_template"),
            bos_token=tokens[bos] if bos is not None else "",
            eos_token=tokens[eos] if eos is not None else "",
            stop=stop_ids(vocabulary, eos, field("eot_token_id")),
        )
    )


def byte_level_bpe(tokens: list[str], field, where: str) -> tokenizers.Tokenizer:
    """GPT-2's byte-level BPE, with the way of splitting words that the file names."""
    splits = {
        "gpt-2": [pre_tokenizers.ByteLevel(add_prefix_space=False)],
        "default": [pre_tokenizers.ByteLevel(add_prefix_space=False)],
        "smollm": [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)],
        "llama-bpe": [pre_tokenizers.Split(Regex(LLAMA_3_SPLIT), "isolated"),
                      pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)],
        "qwen2": [pre_tokenizers.Split(Regex(QWEN_2_SPLIT), "isolated"),
                  pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)],
    }  # fmt: skip
    if (pre := field("pre", "default")) not in splits:
        raise UserError(f"{where}: pre-tokenizer {pre!r} is not supported; supported: {', '.join(splits)}.")
    merges = [tuple(m.split(" ", 1)) for m in field("merges", [])]
    vocabulary = {t: i for i, t in enumerate(tokens)}
    # Llama 3 looks a whole word up before it merges
    backend = tokenizers.Tokenizer(models.BPE(vocabulary, merges, ignore_merges=pre == "llama-bpe"))
    if pre == "qwen2":
        backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = pre_tokenizers.Sequence(splits[pre])
    backend.decoder = decoders.ByteLevel()
    return backend


def sentencepiece_bpe(tokens: list[str], field, where: str) -> tokenizers.Tokenizer:
    """Llama 2's SentencePiece BPE: merges rebuilt from the scores, unknown characters spelt in bytes."""
    vocabulary, scores = {t: i for i, t in enumerate(tokens)}, field("scores") or []
    if len(scores) != len(tokens):
        raise UserError(f"{where}: the SentencePiece vocabulary has {len(tokens)} tokens but {len(scores)} scores.")
    merges = []
    for token, score in zip(tokens, scores, strict=True):
        halves = [(token[:i], token[i:]) for i in range(1, len(token))]
        pairs = [(a, b) for a, b in halves if a in vocabulary and b in vocabulary]
        merges += [(-score, vocabulary[a], vocabulary[b], a, b) for a, b in pairs]
    ordered = [(a, b) for *_, a, b in sorted(merges)]
    unknown = field("unknown_token_id", 0)
    backend = tokenizers.Tokenizer(
        models.BPE(vocabulary, ordered, unk_token=tokens[unknown], fuse_unk=True, byte_fallback=True)
    )
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return backend
