"""Texts of requests to tokens: what cannot fit is refused by its bytes, before it is cut, which may take seconds."""

from __future__ import annotations

import json
import unicodedata
from dataclasses import dataclass

import tokenizers
from tokenizers.models import BPE

from llama_jax.plumbing.errors import UserError
from llama_jax.tokenizer import LETTERS, MARK, Tokenizer, plainly

KEEPING = ("ByteLevel", "Digits", "Split")  # cut a text and lose nothing of it
LONG = 1 << 14  # characters from which on other threads go on meanwhile


@dataclass(frozen=True, eq=False)
class Bounded(Tokenizer):
    """A tokenizer for contexts of so many tokens. longest, unknown: as `bound` says."""

    context: int = 0
    longest: int = 0
    unknown: bytes = b""

    @classmethod
    def of(cls, tokenizer: Tokenizer, context: int) -> Bounded:
        """The same tokens, out of the same tables."""
        known = tokenizer.chat_template, tokenizer.bos_token, tokenizer.eos_token, tokenizer.stop, tokenizer.named
        return cls(tokenizer.backend, *known, context, *bound(tokenizer.backend))

    def ids(self, backend: tokenizers.Tokenizer, text: str, special: bool) -> tokenizers.Encoding:
        size = len(text.replace(MARK, "").encode().translate(None, self.unknown))
        if self.longest and size > self.context * self.longest and unicodedata.is_normalized("NFC", text):
            raise UserError(
                f"The prompt has {size:,} bytes, more than {self.context} tokens can hold; this server's contexts have"
                f" {self.context}, send less."
            )
        if len(text) < LONG:
            return super().ids(backend, text, special)
        with plainly("The tokenizer failed"):  # a batch is encoded without Python's lock
            return backend.encode_batch([text], add_special_tokens=special)[0]


def bound(backend: tokenizers.Tokenizer) -> tuple[int, bytes]:
    """(bytes of a text in NFC that one token stands for at most, bytes that are left out before they are counted, since
    the vocabulary has none such); 0 where a token may stand for any number of them."""
    vocabulary, added = backend.get_vocab(False), backend.get_added_tokens_decoder().values()
    cuts = steps(backend.pre_tokenizer, "pretokenizers")
    in_letters = any(step["type"] == "ByteLevel" for step in cuts)  # GPT-2's, one for a byte
    keeps = (
        all(step["type"] == "NFC" or is_longer(step) for step in steps(backend.normalizer, "normalizers")),
        all(step["type"] in KEEPING and step.get("behavior") != "Removed" for step in cuts),
        isinstance(backend.model, BPE),
        in_letters or all(f"<0x{byte:02X}>" in vocabulary for byte in range(256)),
        not any(token.lstrip or token.rstrip for token in added),  # which take the spaces beside them
    )
    words = [token.content.encode() for token in added] + [t if in_letters else t.encode() for t in vocabulary]
    unknown = b"".join(byte for letter, byte in LETTERS.items() if in_letters and letter not in vocabulary)
    return max(map(len, words)) if all(keeps) else 0, unknown


def steps(part, several: str) -> list[dict]:
    """What a part of a tokenizer does, as tokenizer.json has it."""
    if part is None:
        return []
    made = json.loads(part.__getstate__())
    return made.get(several, [made])


def is_longer(step: dict) -> bool:
    """Whether a step of the normaliser makes no text shorter."""
    pattern = step.get("pattern", {}).get("String") if step["type"] == "Replace" else None
    return step["type"] == "Prepend" or (pattern is not None and len(step["content"].encode()) >= len(pattern.encode()))
