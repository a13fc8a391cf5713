"""What a token stands for, in bytes, which need not be whole characters."""

from __future__ import annotations

import re

from llama_jax.tokenizer import Tokenizer

PRINTED = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
LETTERS = {chr(byte): bytes([byte]) for byte in PRINTED} | {  # GPT-2's letter → byte: others follow U+0100 in turn
    chr(256 + n): bytes([byte]) for n, byte in enumerate(sorted(set(range(256)) - set(PRINTED)))
}
BYTE = re.compile("<0x([0-9A-F]{2})>")  # SentencePiece's, for what its vocabulary does not spell


def token_bytes(tokenizer: Tokenizer, i: int) -> bytes:
    """The bytes of a byte-level or SentencePiece token; a special token's spelling; none for an id without a token."""
    token = tokenizer.backend.id_to_token(i)
    if token is None or i in tokenizer.special:
        return (token or "").encode()
    if "ByteLevel" in repr(tokenizer.backend.decoder):
        return b"".join(LETTERS.get(letter) or letter.encode() for letter in token)
    byte = BYTE.fullmatch(token)
    return bytes([int(byte[1], 16)]) if byte else token.replace("▁", " ").encode()
