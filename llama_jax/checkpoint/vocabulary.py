"""Tokenizers from files: a Hugging Face folder, or the metadata of a GGUF file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import tokenizers
from pydantic import Field, model_validator
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors

from llama_jax.plumbing import boundary
from llama_jax.plumbing.errors import UserError
from llama_jax.tokenizer import Tokenizer, built, plainly, stop_ids

LLAMA_3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN_2_SPLIT = LLAMA_3_SPLIT.replace(r"\p{N}{1,3}", r"\p{N}")  # a number goes digit by digit
NORMAL, CONTROL, USER = 1, 3, 4  # GGUF token types: text, special, text that is never split
Id = Annotated[int, Field(ge=0, lt=1 << 31)]


class Written(boundary.Declared):
    """A special token of tokenizer_config.json with its properties."""

    content: str


class Template(boundary.Declared):
    """One of several chat templates."""

    name: str
    template: str


class TokenizerConfig(boundary.Declared):
    """What is read of tokenizer_config.json."""

    bos_token: str | Written | None = None
    eos_token: str | Written | None = None
    chat_template: str | list[Template] | None = None

    @property
    def template(self) -> str | None:
        """The template; of several, the one for plain conversations."""
        if not isinstance(self.chat_template, list):
            return self.chat_template
        return next((candidate.template for candidate in self.chat_template if candidate.name == "default"), None)


class Ends(boundary.Declared):
    """What config.json and generation_config.json say of the tokens that end an answer."""

    eos_token_id: Id | list[Id] | None = None

    @property
    def ids(self) -> list[int]:
        return self.eos_token_id if isinstance(self.eos_token_id, list) else [self.eos_token_id]


def from_folder(
    folder: Path, vocab_size: int, config: dict, tokenizer_config: dict, generation_config: dict
) -> Tokenizer:
    """From tokenizer.json and its neighbours in a Hugging Face folder. vocab_size: rows of the embedding table."""
    path = folder / "tokenizer.json"
    try:
        definition = boundary.content(path).decode()
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not a tokenizer ({error}).") from None
    backend = built(definition, str(path))
    parts = boundary.read(TokenizerConfig, tokenizer_config, f"{folder}: tokenizer_config.json")
    template, jinja = parts.template, folder / "chat_template.jinja"
    if os.path.lexists(jinja):
        try:
            template = boundary.content(jinja, 1 << 20).decode()
        except (FileNotFoundError, UnicodeDecodeError) as error:
            raise UserError(f"{jinja}: not a text in UTF-8 ({error}).") from None
    bos, eos = (
        token.content if isinstance(token, Written) else token or "" for token in (parts.bos_token, parts.eos_token)
    )
    name = "generation_config.json" if "eos_token_id" in generation_config else "config.json"
    ends = boundary.read(Ends, {**config, **generation_config}, f"{folder}: {name}").ids
    vocabulary = backend.get_vocab()
    stop = stop_ids(vocabulary, vocabulary.get(eos), *ends)
    if (most := max([*vocabulary.values(), *stop], default=0)) >= vocab_size:
        raise UserError(
            f"{folder}: the tokenizer and its end-of-answer tokens reach id {most}; the model's vocabulary has"
            f" {vocab_size} tokens. They are not of one model."
        )
    return Tokenizer(definition, template, bos, eos, stop)


Token = Annotated[str, Field(max_length=512)]
Kind = Annotated[int, Field(ge=0, le=6)]
Merge = Annotated[str, Field(pattern="^[^ ]+ [^ ]+$")]
SPLITS = {
    "gpt-2": [pre_tokenizers.ByteLevel(add_prefix_space=False)],
    "default": [pre_tokenizers.ByteLevel(add_prefix_space=False)],
    "smollm": [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)],
    "llama-bpe": [pre_tokenizers.Split(Regex(LLAMA_3_SPLIT), "isolated"),
                  pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)],
    "qwen2": [pre_tokenizers.Split(Regex(QWEN_2_SPLIT), "isolated"),
              pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)],
}  # fmt: skip


class Vocabulary(boundary.Declared):
    """The metadata `tokenizer.ggml.*` of a GGUF file. token_type: all text where it is left out."""

    model: Literal["gpt2", "llama"]
    pre: Literal[tuple(SPLITS)] = "default"
    tokens: list[Token] = Field(min_length=1, fail_fast=True)
    token_type: list[Kind] | None = Field(None, fail_fast=True)
    scores: list[float] | None = Field(None, fail_fast=True)
    merges: list[Merge] = Field([], fail_fast=True)
    bos_token_id: Id | None = None
    eos_token_id: Id | None = None
    eot_token_id: Id | None = None
    unknown_token_id: Id = 0
    add_bos_token: bool | None = None
    chat_template: str | None = None

    @model_validator(mode="after")
    def fits(self) -> Vocabulary:
        count = len(self.tokens)
        if len(set(self.tokens)) < count:
            raise ValueError("a token stands twice in the vocabulary")
        for name in ("token_type", "scores"):
            if (values := getattr(self, name)) is not None and len(values) != count:
                raise ValueError(f"the vocabulary has {count} tokens but {len(values)} {name}")
        if self.model == "llama" and self.scores is None:
            raise ValueError(f"the SentencePiece vocabulary has {count} tokens but 0 scores")
        for name in ("bos", "eos", "eot", "unknown"):
            if (token := getattr(self, f"{name}_token_id")) is not None and token >= count:
                raise ValueError(f"{name}_token_id is {token}; the vocabulary has {count} tokens")
        return self

    @property
    def types(self) -> list[int]:
        return self.token_type or [NORMAL] * len(self.tokens)

    @property
    def ids(self) -> dict[str, int]:
        return {token: i for i, token in enumerate(self.tokens)}


def from_gguf(fields: Mapping[str, Any], where: str, vocab_size: int) -> Tokenizer:
    """From GGUF metadata (`tokenizer.ggml.*`). vocab_size: rows of the embedding table."""
    given = {
        key.removeprefix("tokenizer.ggml."): value for key, value in fields.items() if key.startswith("tokenizer.ggml.")
    }
    given["chat_template"] = fields.get("tokenizer.chat_template")
    if not given.get("tokens"):
        raise UserError(f"{where}: the GGUF file has no vocabulary (tokenizer.ggml.tokens).")
    known = boundary.read(Vocabulary, given, f"{where}: tokenizer.ggml")
    if len(known.tokens) != vocab_size:
        raise UserError(
            f"{where}: the vocabulary has {len(known.tokens)} tokens, the embedding table {vocab_size} rows."
        )
    tokens, bos, eos = known.tokens, known.bos_token_id, known.eos_token_id
    with plainly(f"{where}: not a tokenizer"):
        backend = {"gpt2": byte_level_bpe, "llama": sentencepiece_bpe}[known.model](known)
        control = (token for token, kind in zip(tokens, known.types, strict=True) if kind == CONTROL)
        backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in control])
        adds_bos = known.add_bos_token
        if adds_bos is None:
            adds_bos = known.model == "llama" or known.pre == "llama-bpe"
        if adds_bos and bos is not None:
            first = tokens[bos]
            backend.post_processor = processors.TemplateProcessing(
                single=f"{first} $A", pair=f"{first} $A $B", special_tokens=[(first, bos)]
            )
        definition = backend.to_str()
    made = Tokenizer(
        definition=definition,
        chat_template=known.chat_template,
        bos_token=tokens[bos] if bos is not None else "",
        eos_token=tokens[eos] if eos is not None else "",
        stop=stop_ids(known.ids, eos, known.eot_token_id),
    )
    vars(made)["backend"] = backend  # as the definition would make it again
    return made


def byte_level_bpe(known: Vocabulary) -> tokenizers.Tokenizer:
    """GPT-2's byte-level BPE, with the way of splitting words that the file names."""
    merges = [tuple(merge.split(" ")) for merge in known.merges]
    # Llama 3 looks a whole word up before it merges
    backend = tokenizers.Tokenizer(models.BPE(known.ids, merges, ignore_merges=known.pre == "llama-bpe"))
    if known.pre == "qwen2":
        backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = pre_tokenizers.Sequence(SPLITS[known.pre])
    backend.decoder = decoders.ByteLevel()
    return backend


def sentencepiece_bpe(known: Vocabulary) -> tokenizers.Tokenizer:
    """Llama 2's SentencePiece BPE: merges rebuilt from the scores, unknown characters spelt in bytes. Text never
    merges to a special token or a byte's."""
    ids = known.ids
    merges = []
    for token, score, kind in zip(known.tokens, known.scores, known.types, strict=True):
        if kind in (NORMAL, USER):
            halves = ((token[:i], token[i:]) for i in range(1, len(token)))
            merges += [(-score, ids[a], ids[b], a, b) for a, b in halves if a in ids and b in ids]
    ordered = [(a, b) for *_, a, b in sorted(merges)]
    backend = tokenizers.Tokenizer(
        models.BPE(ids, ordered, unk_token=known.tokens[known.unknown_token_id], fuse_unk=True, byte_fallback=True)
    )
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return backend
