"""Text to token ids and back, on the `tokenizers` library. `checkpoint.vocabulary` reads tokenizers from files.

Text stays text: a special token that is spelled in it does not become that token. MARK is put inside such a spelling,
so that the library does not find it. The first step of normalisation removes MARK, so the rest of the text is
unchanged.
"""

from __future__ import annotations

import bisect
import contextlib
import itertools
import json
import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property

import jax
import jax.numpy as jnp
import numpy as np
import tokenizers

from llama_jax.axes import Array, Int
from llama_jax.decoding.request import bucket, padded
from llama_jax.plumbing import boundary
from llama_jax.plumbing.errors import UserError

END_OF_TURN = (  # what ends an answer, besides eos
    "<|endoftext|>", "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<|end|>", "<end_of_turn>",
    "<eos>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]", "<end_of_utterance>", "<｜end▁of▁sentence｜>",
)  # fmt: skip
LONGEST = 1 << 22  # characters of a text: more than a context of a million tokens takes
PRINTED = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
LETTERS = {chr(byte): bytes([byte]) for byte in PRINTED} | {  # GPT-2's letter → byte: others follow U+0100 in turn
    chr(256 + n): bytes([byte]) for n, byte in enumerate(sorted(set(range(256)) - set(PRINTED)))
}
BYTE = re.compile("<0x([0-9A-F]{2})>")  # SentencePiece's, for what its vocabulary does not spell
MARK = "\ufdd0\ufdef"  # two noncharacters, which Unicode keeps for use inside a program


@dataclass(frozen=True, eq=False)
class Tokenizer:
    """A tokenizer with what generation needs to know about it.

    source: tokenizer.json as text, or the library's tokenizer that it makes. stop: ids that end an answer.
    chat_template: Jinja source, or None. named: more special tokens that a template may write, each with its name, such
    as ("pad_token", "<pad>").
    """

    source: str | tokenizers.Tokenizer = field(repr=False)
    chat_template: str | None = field(repr=False)
    bos_token: str
    eos_token: str
    stop: tuple[int, ...]
    named: tuple[tuple[str, str], ...] = ()

    @property
    def names(self) -> dict[str, str]:
        """Name → spelling of the special tokens that the model has, as its chat template names them."""
        known = [("bos_token", self.bos_token), ("eos_token", self.eos_token), *self.named]
        return {name: token for name, token in known if token}

    @cached_property
    def definition(self) -> str:
        """tokenizer.json as text."""
        return self.source if isinstance(self.source, str) else self.source.to_str()

    @cached_property
    def backend(self) -> tokenizers.Tokenizer:
        return built(self.source) if isinstance(self.source, str) else self.source

    @property
    def known(self) -> tuple:
        return self.chat_template, self.bos_token, self.eos_token, self.stop, self.named

    def __eq__(self, other) -> bool:
        alike = isinstance(other, Tokenizer) and self.known == other.known
        return alike and self.definition == other.definition  # which takes a while to write

    def __hash__(self) -> int:
        return hash(self.known)

    @cached_property
    def unmarking(self) -> tokenizers.Tokenizer:
        """The backend that removes MARK from a text after finding the special tokens."""
        parts = json.loads(self.backend.to_str())
        leave_out = {"type": "Replace", "pattern": {"String": MARK}, "content": ""}
        steps = [leave_out, *filter(None, [parts.get("normalizer")])]
        parts["normalizer"] = {"type": "Sequence", "normalizers": steps}
        for token in parts["added_tokens"]:
            token["normalized"] &= not token["special"]  # found before the marks are gone
        return built(json.dumps(parts))

    @cached_property
    def special(self) -> dict[int, str]:
        """Id → spelling of the special tokens."""
        return {i: token.content for i, token in self.backend.get_added_tokens_decoder().items() if token.special}

    @cached_property
    def whole(self) -> dict[int, str]:
        """Id → spelling of the other tokens that are searched for before text is split, such as <tool_call>: they
        always match."""
        return {i: token.content for i, token in self.backend.get_added_tokens_decoder().items() if not token.special}

    @cached_property
    def byte_level(self) -> bool:
        """Whether tokens are spelt in GPT-2's letters."""
        return "ByteLevel" in repr(self.backend.decoder)

    def encode(self, text: str, special: bool = True, allow_special_tokens: bool = False) -> list[int]:
        """Token ids of a text. special: add the tokens that the model expects around plain text, such as the first.
        allow_special_tokens: a spelled special token becomes that token, as in a rendered chat; otherwise it stays
        text.

        Raises UserError for a text that is too long or holds half a surrogate pair, and for a spelled special token
        that the vocabulary cannot write as text.
        """
        check_text(text)
        if allow_special_tokens:
            return self.ids(self.backend, text, special).ids
        marked = self.marked(text)
        if marked == text:
            return self.ids(self.backend, text, special).ids
        encoding = self.ids(self.unmarking, marked, special)
        for i, added in zip(encoding.ids, encoding.special_tokens_mask, strict=True):
            if not added and i in self.special and self.special[i] in text:
                raise UserError(
                    f"The text holds {self.special[i]!r}, which this tokenizer has no ordinary tokens for; remove it."
                )
        return encoding.ids

    def marked(self, text: str) -> str:
        """The text with MARK inside every spelling of a special token, but never inside a token that always matches;
        there MARK follows that token."""
        cuts = {start + 1: end for start, end in found(text, self.special.values())}
        if cuts and self.whole:
            spans = dict(side_by_side(found(text, self.whole.values())))
            starts = list(spans)
            for cut, special_end in list(cuts.items()):
                start = starts[bisect.bisect_left(starts, cut) - 1] if starts else cut
                if start < cut < (end := spans.get(start, cut)):
                    del cuts[cut]
                    if special_end > end:
                        cuts[end] = special_end
        edges = [0, *sorted(cuts), len(text)]
        return MARK.join(text[start:end] for start, end in itertools.pairwise(edges))

    def encode_marked(self, text: str) -> list[int]:
        """Token ids of a text with special tokens, and marked parts that stay text."""
        return self.ids(self.unmarking if MARK in text else self.backend, text, False).ids

    def ids(self, backend: tokenizers.Tokenizer, text: str, special: bool) -> tokenizers.Encoding:
        with plainly("The tokenizer failed"):
            return backend.encode(text, add_special_tokens=special)

    def decode(self, ids: Iterable[int]) -> str:
        """Text of token ids, without special tokens."""
        ids = [int(i) for i in ids]
        if self.byte_level and any(not self.whole.get(i, "").isascii() for i in ids):
            # the library takes the letters of a whole token for bytes
            return b"".join(self.token_bytes(i) for i in ids if i not in self.special).decode(errors="replace")
        return self.backend.decode(ids, skip_special_tokens=True)

    def token_bytes(self, i: int) -> bytes:
        """A token's bytes, which need not be whole characters: those of a byte-level or SentencePiece token, the
        spelling of a token that matches as a whole, none for an id without a token."""
        token = self.backend.id_to_token(i)
        if token is None or i in self.special or i in self.whole:
            return (token or "").encode()
        if self.byte_level:
            return b"".join(LETTERS.get(letter) or letter.encode() for letter in token)
        byte = BYTE.fullmatch(token)
        return bytes([int(byte[1], 16)]) if byte else token.replace("▁", " ").encode()

    @cached_property
    def spellings(self) -> list[bytes]:
        """The bytes of each id that text is made of, none for special tokens and ids without a token."""
        size = max(self.backend.get_vocab().values(), default=-1) + 1
        return [b"" if i in self.special else self.token_bytes(i) for i in range(size)]


def found(text: str, words: Collection[str]) -> Iterator[tuple[int, int]]:
    """(start, end) of the longest of the words at each place where one begins."""
    known = {word for word in words if word}
    lengths = sorted({len(word) for word in known}, reverse=True)
    begins = "|".join(sorted({re.escape(word[:3]) for word in known}))  # found by compiled code, thousands of words too
    for start in (begin.start() for begin in re.finditer(f"(?={begins})", text)) if known else ():
        if length := next((n for n in lengths if text[start : start + n] in known), 0):
            yield start, start + length


def side_by_side(spans: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """The spans that start after the end of the previous one."""
    free = 0
    for start, end in spans:
        if start >= free:
            yield start, end
            free = end


@dataclass(frozen=True)
class Numbers:
    """Replaces the tokenizer of a model without one: text is token ids, written as numbers."""

    stop: tuple[int, ...] = ()
    chat_template = None

    def encode(self, text: str, special: bool = True, allow_special_tokens: bool = False) -> list[int]:
        try:
            return [int(word) for word in text.replace(",", " ").split()]
        except ValueError:
            raise UserError("This model has no tokenizer; write the prompt as token ids, such as 1, 2, 3.") from None

    def decode(self, ids: Iterable[int]) -> str:
        return " ".join(str(int(i)) for i in ids)


@dataclass(frozen=True)
class BatchTokenizer:
    """Prompts to arrays of token ids, and back, for a step that you compose yourself. text: the tokenizer that it
    wraps, which uses lists of ids."""

    text: Tokenizer | Numbers

    @property
    def stop_tokens(self) -> jax.Array:
        """Ids that end an answer, int32 [N]."""
        return jnp.asarray(self.text.stop, jnp.int32)

    def encode(self, prompts) -> tuple[Int[Array, "B T"], Int[Array, "B T"]]:
        """(ids, position mask) of one prompt or a list of them, both int32 [B T]. A prompt is a text, or a conversation
        as `chat.render_prompt` gives it. The mask is 0 where a prompt is padded, on its left, and otherwise 1. T is the
        longest prompt's length rounded up to one of a few, so that prompts share compiled programs.

        Raises UserError for anything but a prompt, for one without tokens, and for a conversation without a template.
        """
        given = prompts if isinstance(prompts, list | tuple) else [prompts]
        rows = [prompt.ids(self.text) if hasattr(prompt, "ids") else self.text.encode(prompt) for prompt in given]
        if not rows or not all(rows):
            raise UserError("There is no prompt, or a prompt has no tokens; give one text or several.")
        ids, pad = padded(rows, bucket(max(map(len, rows))))
        return jnp.asarray(ids), jnp.asarray(np.arange(ids.shape[1]) >= pad[:, None], jnp.int32)

    def decode(self, ids: Int[Array, "B T"]) -> tuple[str, ...]:
        """The text of each row, without special tokens. Raises UserError for anything but an array of ids [B T]."""
        ids = np.asarray(ids)
        if ids.ndim != 2 or not np.issubdtype(ids.dtype, np.integer) or (ids < 0).any():
            raise UserError(
                f"The token ids are {ids.dtype}{list(ids.shape)}; decode takes whole numbers from 0, [B T]."
            )
        return tuple(self.text.decode(row) for row in ids)


def check_length(size: int, what: str) -> None:
    """Raises UserError for more characters than any context holds."""
    if size > LONGEST:
        raise UserError(f"{what} {size:,} characters; at most {LONGEST:,} are read, more than a context holds.")


def check_text(text: str, what: str = "The text") -> None:
    """Raises UserError for text that no tokenizer can read."""
    if not isinstance(text, str):
        raise UserError(f"{what} is {boundary.shown(text)}; it must be text.")
    check_length(len(text), f"{what} has")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UserError(
            f"{what} holds half a surrogate pair, U+{ord(text[error.start]):X}, at character {error.start + 1:,};"
            " write it as valid Unicode."
        ) from None
    if MARK in text:
        raise UserError(f"{what} holds U+FDD0 U+FDEF, which are not characters; remove them.")


@contextlib.contextmanager
def plainly(what: str) -> Iterator[None]:
    """Turns the tokenizers library's exceptions and panics into one line."""
    try:
        yield
    except UserError:
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise UserError(f"{what} ({str(error)[:200]}).") from None


def built(definition: str, where: str = "The tokenizer") -> tokenizers.Tokenizer:
    """The library's tokenizer, without its file's settings for truncation and padding."""
    with plainly(f"{where}: not a tokenizer"):
        backend = tokenizers.Tokenizer.from_str(definition)
        backend.no_truncation()
        backend.no_padding()
        return backend


def stop_ids(vocabulary: dict[str, int], *extra: int | None) -> tuple[int, ...]:
    """Ids that end an answer: those given and the vocabulary's own end-of-turn tokens."""
    known = {vocabulary[t] for t in END_OF_TURN if t in vocabulary}
    return tuple(sorted(known | {i for i in extra if i is not None}))
