"""The vocabulary of a GGUF file, also used for SentencePiece: its tokens with types and scores, and its tokenizer, as
llama.cpp makes it (https://github.com/ggml-org/llama.cpp/blob/master/src/llama-vocab.cpp)."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, Any, Literal

import tokenizers
from pydantic import Field, model_validator
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors

from llama_jax.checkpoint.splits import SPLITS
from llama_jax.plumbing import boundary
from llama_jax.plumbing.errors import UserError
from llama_jax.tokenizer import END_OF_TURN, Tokenizer, plainly, stop_ids

NORMAL, UNKNOWN, CONTROL, USER, UNUSED = 1, 2, 3, 4, 5  # types of tokens; 6 is a byte's
IDLE = (0, UNUSED)
Id = Annotated[int, Field(ge=0, lt=1 << 31)]
Token = Annotated[str, Field(max_length=512)]
Kind = Annotated[int, Field(ge=0, le=6)]
Merge = Annotated[str, Field(pattern="^[^ ]+ [^ ]+$")]
CODE = "<|fim_{0}|> <fim-{0}> <fim_{0}> <|code_{0}|> <|{0}|>"
FILL_IN = {  # field of a token that marks the parts of code around a gap: spellings by which it is known
    "fim_pre_token_id": CODE.format("prefix") + " <｜fim▁begin｜> <PRE> ▁<PRE>",
    "fim_suf_token_id": CODE.format("suffix") + " <｜fim▁hole｜> <SUF> ▁<SUF>",
    "fim_mid_token_id": CODE.format("middle") + " <｜fim▁end｜> <MID> ▁<MID>",
    "fim_pad_token_id": "<|fim_pad|> <fim-pad> <fim_pad> <PAD> [PAD]",
    "fim_rep_token_id": "<|fim_repo|> <|repo_name|> <fim-repo> <REPO> <reponame>",
    "fim_sep_token_id": "<|file_sep|>",
}
ENDS = ("fim_pad_token_id", "fim_rep_token_id", "fim_sep_token_id")  # of these: they end an answer
OLDER = {"prefix_token_id": "fim_pre_token_id", "suffix_token_id": "fim_suf_token_id",
         "middle_token_id": "fim_mid_token_id"}  # fmt: skip
NAMED = {  # name in a chat template: field
    "unk_token": "unknown_token_id", "sep_token": "seperator_token_id", "pad_token": "padding_token_id",
    "cls_token": "cls_token_id", "mask_token": "mask_token_id",
}  # fmt: skip
HARMLESS = {  # keys that are ignored, and why
    "add_sep_token": "llama.cpp adds one for BERT's vocabularies alone",
    "remove_extra_whitespaces": "llama.cpp reads it for T5's vocabularies alone",
    "precompiled_charsmap": "llama.cpp reads it for T5's vocabularies alone",
    "normalizer.lowercase": "llama.cpp reads it for BERT's vocabularies alone",
    "normalizer.strip_accents": "llama.cpp reads it for BERT's vocabularies alone",
    "token_type_count": "of BERT's segments",
}
STRIPPING = ("phi-3", "phi3")  # models whose special tokens take the space behind them, but for these
NOT_STRIPPING = ("<unk>", "<s>", "<|endoftext|>")


class Vocabulary(boundary.Declared):
    """The metadata `tokenizer.ggml.*` of a GGUF file. token_type: if omitted, all tokens are text."""

    model: Literal["gpt2", "llama"]
    pre: str = ""
    tokens: list[Token] = Field(min_length=1, fail_fast=True)
    token_type: list[Kind] | None = Field(None, fail_fast=True)
    scores: list[float] | None = Field(None, fail_fast=True)
    merges: list[Merge] | None = Field(None, fail_fast=True)
    bos_token_id: Id | None = None
    eos_token_id: Id | None = None
    eot_token_id: Id | None = None
    eom_token_id: Id | None = None
    unknown_token_id: Id | None = None
    seperator_token_id: int | None = None
    padding_token_id: int | None = None
    cls_token_id: int | None = None
    mask_token_id: int | None = None
    fim_pre_token_id: int | None = None
    fim_suf_token_id: int | None = None
    fim_mid_token_id: int | None = None
    fim_pad_token_id: int | None = None
    fim_rep_token_id: int | None = None
    fim_sep_token_id: int | None = None
    add_bos_token: bool | None = None
    add_eos_token: bool = False
    add_space_prefix: bool = True
    suppress_tokens: list[int] = Field([], max_length=0)
    chat_template: str | None = None

    @model_validator(mode="after")
    def fits(self) -> Vocabulary:
        count = len(self.tokens)
        for name in ("token_type", "scores"):
            if (values := getattr(self, name)) is not None and len(values) != count:
                raise ValueError(f"the vocabulary has {count} tokens but {len(values)} {name}")
        if self.model == "llama" and self.scores is None:
            raise ValueError(f"the SentencePiece vocabulary has {count} tokens but 0 scores")
        if self.model == "gpt2" and self.merges is None:
            raise ValueError("the vocabulary has no merges")
        if self.model == "gpt2" and self.pre and self.pre not in SPLITS:
            raise ValueError(f"pre is {self.pre[:40]!r}, an unknown way to split words; known: {', '.join(SPLITS)}")
        for name in ("bos", "eos", "eot", "eom", "unknown"):
            if (token := getattr(self, f"{name}_token_id")) is not None and token >= count:
                raise ValueError(f"{name}_token_id is {token}; the vocabulary has {count} tokens")
        _ = self.ids
        return self

    @cached_property
    def spelt(self) -> list[str]:
        """The tokens, none of them empty."""
        return [token or f"[EMPTY_{i}]" for i, token in enumerate(self.tokens)] if "" in self.tokens else self.tokens

    @cached_property
    def ids(self) -> dict[str, int]:
        """Spelling → id. If several tokens share a spelling, it is the one in use."""
        ids = dict(zip(self.spelt, range(len(self.tokens)), strict=True))
        if len(ids) == len(self.tokens):
            return ids
        ids, types = {}, self.token_type or [NORMAL] * len(self.tokens)
        for i, token in enumerate(self.spelt):
            if (first := ids.setdefault(token, i)) == i or types[i] in IDLE:
                continue
            if types[first] not in IDLE:
                raise ValueError(f"token {boundary.shown(token)} occurs twice in the vocabulary")
            ids[token] = i
        return ids

    def id(self, field: str) -> int | None:
        """The id in a field, if it is in the vocabulary."""
        return i if (i := getattr(self, field)) is not None and 0 <= i < len(self.tokens) else None

    def token(self, field: str) -> str:
        """The spelling of the token whose id a field has; "" if it has none."""
        return "" if (i := self.id(field)) is None else self.spelt[i]

    @cached_property
    def fill_in(self) -> dict[str, int]:
        """Field of FILL_IN → id, found by the tokens' spelling, for those that no field names."""
        unnamed = [field for field in FILL_IN if self.id(field) is None]
        return {f: self.ids[token] for f in unnamed for token in FILL_IN[f].split() if token in self.ids}

    @cached_property
    def types(self) -> list[int]:
        """The tokens' types, with tokens that end an answer or are found by their spelling made special."""
        types = list(self.token_type or [NORMAL] * len(self.tokens))
        for i in [*self.fill_in.values(), *(self.ids[token] for token in END_OF_TURN if token in self.ids)]:
            types[i] = CONTROL
        return types

    @property
    def stop(self) -> tuple[int, ...]:
        """Ids that end an answer."""
        ends = [self.fill_in.get(field, self.id(field)) for field in ENDS]
        return stop_ids(self.ids, self.eos_token_id, self.eot_token_id, self.eom_token_id, *ends)

    def added(self, strips: bool = False) -> list[AddedToken]:
        """The tokens that are searched for before text is split: special ones, and those that are never split. strips:
        the space after one belongs to it."""
        return [
            AddedToken(token, special=kind != USER, normalized=False, rstrip=strips and token not in NOT_STRIPPING)
            for token, kind in zip(self.spelt, self.types, strict=True)
            if kind in (UNKNOWN, CONTROL, USER)
        ]


def from_gguf(fields: Mapping[str, Any], where: str, vocab_size: int) -> Tokenizer:
    """From GGUF metadata (`tokenizer.ggml.*`). vocab_size: rows of the embedding table; rows without a token are
    unused."""
    given = {
        key.removeprefix("tokenizer.ggml."): value for key, value in fields.items() if key.startswith("tokenizer.ggml.")
    }
    for older, name in OLDER.items():
        if older in given:
            given.setdefault(name, given[older])
    given["chat_template"] = fields.get("tokenizer.chat_template")
    if not given.get("tokens"):
        raise UserError(f"{where}: the GGUF file has no vocabulary (tokenizer.ggml.tokens).")
    if given.get("model") == "llama":
        given = dict(bos_token_id=1, eos_token_id=2, unknown_token_id=0) | given
    known = boundary.read(Vocabulary, given, f"{where}: tokenizer.ggml")
    if len(known.tokens) > vocab_size:
        raise UserError(
            f"{where}: the vocabulary has {len(known.tokens)} tokens, the embedding table {vocab_size} rows."
        )
    bos, eos = known.token("bos_token_id"), known.token("eos_token_id")
    with plainly(f"{where}: not a tokenizer"):
        if known.model == "gpt2":
            if not known.pre:
                print(f"warning: {where} does not say how to split words; split as llama.cpp does by default,"
                      " answers may be worse.", file=sys.stderr)  # fmt: skip
            pairs = [tuple(merge.split(" ")) for merge in known.merges]
            backend = byte_level_bpe(known.ids, pairs, known.pre or "default")
        else:
            backend = sentencepiece_bpe(known)
        name = str(fields.get("general.name", "")).lower()
        backend.add_tokens(known.added(strips=any(word in name for word in STRIPPING)))
        begins = known.add_bos_token
        if begins is None:
            begins = known.model == "llama" or SPLITS[known.pre or "default"].begins
        if begins and not bos:
            raise UserError(f"{where}: texts begin with a special token, and the file has no bos_token_id.")
        if known.add_eos_token and not eos:
            raise UserError(f"{where}: texts end with a special token, and the file has no eos_token_id.")
        surround(backend, bos if begins else "", eos if known.add_eos_token else "")
    return Tokenizer(
        source=backend,
        chat_template=known.chat_template,
        bos_token=bos,
        eos_token=eos,
        stop=known.stop,
        named=tuple((name, known.token(field)) for name, field in NAMED.items()),
    )


def surround(backend: tokenizers.Tokenizer, first: str, last: str) -> None:
    """Make plain text start and end with these tokens, if there are any."""
    around = [token for token in (first, last) if token]
    if around:
        single = [*([first] if first else []), "$A", *([last] if last else [])]
        backend.post_processor = processors.TemplateProcessing(
            single=single,
            pair=[*single, "$B"],
            special_tokens=[(token, backend.token_to_id(token)) for token in around],
        )


def byte_level_bpe(ids: dict[str, int], merges: list[tuple[str, str]], pre: str) -> tokenizers.Tokenizer:
    """GPT-2's byte-level BPE, with one of SPLITS."""
    split = SPLITS[pre]
    backend = tokenizers.Tokenizer(models.BPE(ids, merges, ignore_merges=split.whole))
    if split.composed:
        backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = split.pre_tokenizer()
    backend.decoder = decoders.ByteLevel()
    return backend


def sentencepiece_bpe(known: Vocabulary, only_first: bool = False) -> tokenizers.Tokenizer:
    """Llama 2's SentencePiece BPE: merges rebuilt from the scores, unknown characters spelt in bytes. Text never merges
    into a special token or a byte token. only_first: a space is put before the text, not after its special tokens."""
    ids, unknown = known.ids, known.spelt[known.unknown_token_id or 0]
    merges, types = [], known.types
    for i in sorted(range(len(types)), key=known.scores.__getitem__, reverse=True):
        if types[i] in (NORMAL, USER, UNUSED):
            token = known.spelt[i]
            for middle in range(1, len(token)):  # a million of them
                if (left := token[:middle]) in ids and (right := token[middle:]) in ids:
                    merges.append((left, right))
    backend = tokenizers.Tokenizer(models.BPE(ids, merges, unk_token=unknown, fuse_unk=True, byte_fallback=True))
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    if known.add_space_prefix:
        steps.append(decoders.Strip(" ", 1, 0))
    backend.decoder = decoders.Sequence(steps)
    if known.add_space_prefix and only_first:
        backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    else:
        prefix = [normalizers.Prepend("▁")] if known.add_space_prefix else []
        backend.normalizer = normalizers.Sequence([*prefix, normalizers.Replace(" ", "▁")])
    return backend
