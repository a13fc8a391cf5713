"""Log probabilities as each API writes them: those of the logits as the model gave them, before penalty, temperature
and filters, as OpenAI, llama.cpp and Ollama have them.

A token that is no whole character has its bytes beside a text that stands in for them; where a text is all there is
(`/v1/completions`), that spells the bytes, as OpenAI's does.
"""

from __future__ import annotations

from collections.abc import Sequence

from llama_jax.tokenizer import Numbers, Tokenizer
from llama_lab.serve.answers import Token


def listed(tokenizer: Tokenizer | Numbers, tokens: Sequence[Token], most: int) -> list[dict]:
    """Ollama's: what stands for nothing is left out."""
    entries = []
    for token in tokens:
        best = [scored(tokenizer, *candidate) for candidate in token.score.best[:most]]
        entries.append(scored(tokenizer, token.id, token.score.chosen) | (dict(top_logprobs=best) if best else {}))
    return entries


def content(tokenizer: Tokenizer | Numbers, tokens: Sequence[Token], most: int) -> dict:
    """OpenAI's for chats: https://platform.openai.com/docs/api-reference/chat/object"""
    none = dict(bytes=None, top_logprobs=[])
    return dict(content=[none | entry for entry in listed(tokenizer, tokens, most)], refusal=None)


def scored(tokenizer: Tokenizer | Numbers, token: int, value: float) -> dict:
    spelt = bytes_of(tokenizer, token)
    entry = dict(token=spelt.decode(errors="replace"), logprob=value)
    return entry | (dict(bytes=list(spelt)) if spelt else {})


def columns(tokenizer: Tokenizer | Numbers, tokens: Sequence[Token], most: int, before: int) -> dict:
    """OpenAI's for completions; null for a prompt's first token. before: characters of the prompt, from whose beginning
    tokens are counted."""
    return dict(
        text_offset=[before + token.at for token in tokens],
        token_logprobs=[token.score and token.score.chosen for token in tokens],
        tokens=[spelling(tokenizer, token.id) for token in tokens],
        top_logprobs=[token.score and likely(tokenizer, token, most) for token in tokens],
    )


def likely(tokenizer: Tokenizer | Numbers, token: Token, most: int) -> dict[str, float]:
    """The most likely tokens, and the one that was drawn, which may be one more; of two that spell alike the more
    likely."""
    values: dict[str, float] = {}
    for i, value in [*token.score.best[:most], (token.id, token.score.chosen)]:
        values.setdefault(spelling(tokenizer, i), value)
    return values


def bytes_of(tokenizer: Tokenizer | Numbers, token: int) -> bytes:
    return str(token).encode() if isinstance(tokenizer, Numbers) else tokenizer.token_bytes(token)


def spelling(tokenizer: Tokenizer | Numbers, token: int) -> str:
    spelt = bytes_of(tokenizer, token)
    try:
        return spelt.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(rf"\x{byte:02x}" for byte in spelt)
