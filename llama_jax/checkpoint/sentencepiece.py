"""A SentencePiece model, tokenizer.model: a protobuf message
(https://github.com/google/sentencepiece/blob/master/src/sentencepiece_model.proto), read here field by field."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

from llama_jax.plumbing import boundary
from llama_jax.plumbing.errors import UserError

PIECES, TRAINER, NORMALIZER = 1, 2, 3  # fields of the message
PIECE, SCORE, TYPE = 1, 2, 3  # of a piece; GGUF has taken over the types
MODEL_TYPE, BPE = 3, 2  # of the trainer
CHARSMAP, DUMMY_PREFIX, REMOVE_EXTRA = 2, 3, 4  # of the normalizer


def read(path: Path, remedy: str) -> dict[str, Any]:
    """What a tokenizer.model says, under the names of GGUF's metadata. Raises UserError for any other file, and
    with the remedy for a model of another kind, or one that changes texts before it cuts them."""
    try:
        message = fields(boundary.content(path))
        pieces = [fields(piece) for piece in message.get(PIECES, [])]
        trainer, normalizer = (fields(message.get(part, [b""])[-1]) for part in (TRAINER, NORMALIZER))
        found = dict(
            model="llama",
            tokens=[piece[PIECE][-1].decode() for piece in pieces],
            scores=[struct.unpack("<f", piece.get(SCORE, [bytes(4)])[-1])[0] for piece in pieces],
            token_type=[piece.get(TYPE, [1])[-1] for piece in pieces],
            add_space_prefix=bool(normalizer.get(DUMMY_PREFIX, [1])[-1]),
        )
    except (ValueError, LookupError, AttributeError, TypeError, struct.error):
        raise UserError(f"{path}: not a SentencePiece model, or a damaged one.") from None
    if not pieces:
        raise UserError(f"{path}: not a SentencePiece model, or a damaged one.")
    if trainer.get(MODEL_TYPE, [1])[-1] != BPE:
        raise UserError(f"{path}: only SentencePiece models of type BPE are supported. {remedy}")
    if normalizer.get(CHARSMAP, [b""])[-1] or normalizer.get(REMOVE_EXTRA, [1])[-1]:
        raise UserError(f"{path}: a SentencePiece model that normalises text is not supported. {remedy}")
    return found


def fields(data: bytes) -> dict[int, list]:
    """Number of a field → its values: whole numbers, and bytes for all else."""
    found, at = {}, 0
    while at < len(data):
        key, at = varint(data, at)
        kind = key & 7
        if kind == 0:
            value, at = varint(data, at)
        else:
            size, at = varint(data, at) if kind == 2 else ({1: 8, 5: 4}[kind], at)
            value, at = data[at : at + size], at + size
        found.setdefault(key >> 3, []).append(value)
    if at > len(data):
        raise ValueError("truncated")
    return found


def varint(data: bytes, at: int) -> tuple[int, int]:
    """(number, where it ends): seven bits a byte, the lowest first, until one without the eighth."""
    number = 0
    for shift in range(0, 70, 7):
        number |= (data[at] & 0x7F) << shift
        at += 1
        if data[at - 1] < 0x80:
            return number, at
    raise ValueError("no number")
