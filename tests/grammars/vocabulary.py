"""A small tokenizer for grammars: all bytes, pieces of JSON, halves of characters; and ways through a grammar."""

import numpy as np
import tokenizers
from tokenizers import decoders, models

from llama_jax.tokenizer import LETTERS, Tokenizer

SPELT = {byte[0]: letter for letter, byte in LETTERS.items()}
PIECES = [
    '{"', '":', '": ', '", "', '"]', '"}', "}}", "{}", "[]", "[[", "],", ", ", "\n  ", "\n    ", "  ", "tr", "ue",
    "true", "false", "null",
    "10", "12", "000", "-1", "0.", "1e", "e+", "ab", "aa", "abc", "na", "name", '\\"', "\\n", "\\u00",
    "é", "aé", "日本", "2024-", ":00", " a",
]  # fmt: skip
HALVES = [b"\xe6\x97", b"\xa5\xe6", b"\xf0\x9f", b"\x98\x80", b'\xa9"', b'a"']
SPECIAL = ("<stop>", "<end>", "<other>")
EXTRA = 5  # ids of the model without a token


def tokenizer(without: bytes = b"") -> Tokenizer:
    """without: bytes that have no token."""
    pieces = [bytes([b]) for b in range(256)] + [piece.encode() for piece in PIECES] + HALVES
    known = dict.fromkeys("".join(SPELT[b] for b in piece) for piece in pieces if not {*piece} & {*without})
    backend = tokenizers.Tokenizer(models.BPE({letters: n for n, letters in enumerate(known)}, []))
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([*SPECIAL])
    stop = tuple(backend.token_to_id(token) for token in SPECIAL[:2])
    return Tokenizer(backend, None, "<stop>", "<stop>", stop)


def size(tok: Tokenizer) -> int:
    return len(tok.spellings) + EXTRA


def written(tok: Tokenizer, walker, rng: np.random.Generator, most: int = 400) -> bytes | None:
    """A random answer, or None for one that is longer. What ends a part is preferred, the more so the longer it is."""
    closing = [i for i, spelling in enumerate(tok.spellings) if spelling in (b'"', b"}", b"]", b'"}', b'"]')]
    out = b""
    for n in range(most):
        allowed = walker.mask()
        assert allowed.any()
        if allowed[tok.stop[0]] and (rng.random() < 0.3 or allowed.sum() == len(tok.stop)):
            return out
        some = [i for i in closing if allowed[i]]
        token = rng.choice(some if some and rng.random() < n / 60 else np.flatnonzero(allowed))
        walker.advance(int(token))
        out += tok.spellings[token]
    return None


def takes(tok: Tokenizer, walker, text: bytes, rng: np.random.Generator | None = None) -> bool:
    """Whether an answer may be this text, in tokens by chance, or in the longest."""
    known = {spelling: i for i, spelling in enumerate(tok.spellings) if spelling}
    while text:
        lengths = range(min(len(text), 8), 0, -1) if rng is None else (*rng.integers(1, 8, 3), 1)
        n = next(n for n in lengths if text[:n] in known)
        token = known[text[:n]]
        if not walker.mask()[token]:
            return False
        walker.advance(token)
        text = text[n:]
    return bool(walker.mask()[list(tok.stop)].all())
