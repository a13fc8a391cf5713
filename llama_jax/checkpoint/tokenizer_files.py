"""The tokenizer of a Hugging Face folder: tokenizer.json or its older forms, and the declarations of its other
files."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import tokenizers
from pydantic import Field
from tokenizers import AddedToken

from llama_jax.checkpoint import sentencepiece
from llama_jax.checkpoint.vocabulary import Id, Vocabulary, byte_level_bpe, sentencepiece_bpe, surround
from llama_jax.plumbing import boundary
from llama_jax.plumbing.errors import UserError
from llama_jax.tokenizer import Tokenizer, built, plainly, stop_ids

NAMED = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
CLASSES = {  # where no file says which
    "gpt2": "GPT2Tokenizer", "qwen2": "Qwen2Tokenizer", "qwen3": "Qwen2Tokenizer", "gemma3_text": "GemmaTokenizer",
    "smollm3": "PreTrainedTokenizerFast",
}  # fmt: skip
SPLITS = {"GPT2Tokenizer": "gpt-2", "Qwen2Tokenizer": "qwen2"}  # of vocab.json and merges.txt
END = "<|endoftext|>"
DEFAULTS = {  # the special tokens that a class of transformers has where no file says which
    "GPT2Tokenizer": dict(bos_token=END, eos_token=END, unk_token=END),
    "Qwen2Tokenizer": dict(eos_token=END, unk_token=END, pad_token=END),
    "GemmaTokenizer": dict(bos_token="<bos>", eos_token="<eos>", unk_token="<unk>", pad_token="<pad>"),
    "LlamaTokenizer": dict(bos_token="<s>", eos_token="</s>", unk_token="<unk>"),
}
NO_PLAIN_ONE = "{{ raise_exception('the model has several, and none for plain conversations (default)') }}"
CURE = (
    'Make a tokenizer.json, with transformers and sentencepiece installed: python -c "from transformers import'
    " AutoTokenizer as T; T.from_pretrained('{folder}').save_pretrained('{folder}')\""
)


class Written(boundary.Declared):
    """A token that is matched as a whole, with its properties."""

    content: str
    lstrip: bool = False
    rstrip: bool = False
    single_word: bool = False
    normalized: bool | None = None
    special: bool | None = None

    def added(self) -> AddedToken:
        """As in the tokenizers library: a token that is not special is searched for in the normalised text."""
        special = bool(self.special)
        return AddedToken(
            self.content, lstrip=self.lstrip, rstrip=self.rstrip, single_word=self.single_word, special=special,
            normalized=not special if self.normalized is None else self.normalized,
        )  # fmt: skip


class Template(boundary.Declared):
    """One of several chat templates."""

    name: str
    template: str


class TokenizerConfig(boundary.Declared):
    """The part of tokenizer_config.json that is read. named: its special tokens, such as pad_token, by their names."""

    tokenizer_class: str | None = None
    named: dict[str, str | Written]
    added_tokens_decoder: dict[Annotated[str, Field(pattern="^[0-9]{1,9}$")], Written] = Field({})
    additional_special_tokens: list[str | Written] | None = None
    extra_special_tokens: list[str | Written] | dict[str, str | Written] | None = None
    add_bos_token: bool | None = None
    add_eos_token: bool | None = None
    add_prefix_space: bool | None = None
    legacy: bool | None = None
    chat_template: str | list[Template] | None = None

    @property
    def template(self) -> str | None:
        """The template; of several, the one for plain conversations, or one that refuses them if there is none."""
        if not isinstance(self.chat_template, list):
            return self.chat_template
        known = {candidate.name: candidate.template for candidate in self.chat_template}
        return known.get("default", NO_PLAIN_ONE if known else None)

    def name(self, name: str) -> str:
        """The spelling of a token that has a name; "" if there is none."""
        token = self.named.get(name, "")
        return token if isinstance(token, str) else token.content

    @property
    def special(self) -> list[tuple[Written, bool]]:
        """The tokens with a name and those in a list, with whether each is special, even if the tokenizer says
        otherwise."""
        listed = self.extra_special_tokens or self.additional_special_tokens or []
        tokens = [(token, True) for token in self.named.values()] + [(token, False) for token in listed]
        return [
            (Written(content=token, special=True) if isinstance(token, str) else token, always)
            for token, always in tokens
        ]


def declared(given: dict, where: str) -> TokenizerConfig:
    """tokenizer_config.json as it is declared. Raises UserError."""
    extra = given.get("extra_special_tokens")
    own = {name: token for name, token in given.items() if name.endswith("_token") and isinstance(token, str | dict)}
    named = {name: given[name] for name in NAMED if given.get(name) is not None} | own
    if isinstance(extra, dict):
        named, given = named | extra, given | dict(extra_special_tokens=None)
    return boundary.read(TokenizerConfig, given | dict(named=named), where)


class Ends(boundary.Declared):
    """The tokens that end an answer, from config.json and generation_config.json."""

    eos_token_id: Id | list[Id] | None = None

    @property
    def ids(self) -> list[int]:
        return self.eos_token_id if isinstance(self.eos_token_id, list) else [self.eos_token_id]


def from_folder(
    folder: Path, vocab_size: int, config: dict, tokenizer_config: dict, generation_config: dict
) -> Tokenizer:
    """From the tokenizer and its neighbours in a Hugging Face folder. vocab_size: rows of the embedding table."""
    where = f"{folder}: tokenizer_config.json"
    kind = declared(tokenizer_config, where).tokenizer_class or CLASSES.get(config["model_type"], "LlamaTokenizer")
    defaults = DEFAULTS.get(kind.removesuffix("Fast"), {})
    parts = declared(defaults | tokenizer_config | dict(tokenizer_class=kind), where)
    if os.path.lexists(folder / "tokenizer.json"):
        backend = built(text(folder / "tokenizer.json", "a tokenizer"), str(folder / "tokenizer.json"))
        add_declared(backend, parts, folder)
    else:
        backend = other_form(folder, parts)
    template = parts.template
    if os.path.lexists(folder / "chat_template.jinja"):
        template = text(folder / "chat_template.jinja", "a text in UTF-8", 1 << 20)
    name = "generation_config.json" if "eos_token_id" in generation_config else "config.json"
    ends = boundary.read(Ends, {**config, **generation_config}, f"{folder}: {name}").ids
    vocabulary = backend.get_vocab()
    stop = stop_ids(vocabulary, vocabulary.get(parts.name("eos_token")), *ends)
    if (most := max([*vocabulary.values(), *stop], default=0)) >= vocab_size:
        raise UserError(
            f"{folder}: the tokenizer and its end-of-answer tokens reach id {most}; the model's vocabulary has"
            f" {vocab_size} tokens. They belong to different models."
        )
    bos, eos = parts.name("bos_token"), parts.name("eos_token")
    named = tuple((name, parts.name(name)) for name in parts.named)
    return Tokenizer(backend, template, bos, eos, stop, named)


def text(path: Path, what: str, limit: int = boundary.LIMIT) -> str:
    try:
        return boundary.content(path, limit).decode()
    except (FileNotFoundError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: not {what} ({error}).") from None


def add_declared(backend: tokenizers.Tokenizer, parts: TokenizerConfig, folder: Path) -> None:
    """Add the tokens that tokenizer_config.json declares. Its properties of a token override the tokenizer's, as in
    transformers. A name of a token that the vocabulary lacks adds none."""
    known = {token.content: token for token in backend.get_added_tokens_decoder().values()}
    before = {content: repr(token) for content, token in known.items()}
    wanted = {token.content: token.added() for token in parts.added_tokens_decoder.values()}
    for token, always in parts.special:
        is_there = (added := wanted.get(token.content) or known.get(token.content)) is not None
        added = added or token.added()
        if always if is_there else backend.token_to_id(token.content) is not None:
            added.special = True
            wanted[token.content] = added
    new = [token for token in wanted.values() if repr(token) != before.get(token.content)]
    with plainly(f"{folder}: the tokens of tokenizer_config.json cannot be added"):
        backend.add_tokens(new)
    for i, token in parts.added_tokens_decoder.items():
        if (is_ := backend.token_to_id(token.content)) != int(i):
            raise UserError(
                f"{folder}: {boundary.shown(token.content)} is token {i} in tokenizer_config.json and {is_} in the"
                " tokenizer; they belong to different models."
            )


# Older forms ----------------------------------------------------------------------------------------------------------


def other_form(folder: Path, parts: TokenizerConfig) -> tokenizers.Tokenizer:
    """The tokenizer of a folder without tokenizer.json: vocab.json with merges.txt, or tokenizer.model. Raises
    UserError, with the command that makes a tokenizer.json, for any other."""
    kind = parts.tokenizer_class.removesuffix("Fast")
    if kind in SPLITS and all(os.path.lexists(folder / name) for name in ("vocab.json", "merges.txt")):
        ids = boundary.read(dict[str, Id], boundary.load(folder / "vocab.json"), str(folder / "vocab.json"))
        with plainly(f"{folder}: vocab.json and merges.txt are no tokenizer"):
            backend, begins = byte_level_bpe(ids, merges(folder / "merges.txt"), SPLITS[kind]), False
    elif os.path.lexists(path := folder / "tokenizer.model"):
        given = sentencepiece.read(path, CURE.format(folder=folder))
        if parts.add_prefix_space is not None:
            given["add_space_prefix"] = parts.add_prefix_space
        known = boundary.read(Vocabulary, given, str(path))
        with plainly(f"{path}: not a tokenizer"):
            backend, begins = sentencepiece_bpe(known, only_first=not parts.legacy), True
            backend.add_tokens(known.added())
    else:
        raise UserError(f"{folder}: this form of {kind} is not supported. {CURE.format(folder=folder)}")
    add_declared(backend, parts, folder)
    begins = begins if parts.add_bos_token is None else parts.add_bos_token
    surround(backend, parts.name("bos_token") if begins else "", parts.name("eos_token") if parts.add_eos_token else "")
    return backend


def merges(path: Path) -> list[tuple[str, str]]:
    """The pairs of merges.txt, one per line after a version line."""
    lines = enumerate(text(path, "a list of merges").split("\n"), 1)
    pairs = {
        i: tuple(line.rstrip("\r").split(" ")) for i, line in lines if line.strip() and not line.startswith("#version")
    }
    if odd := next((i for i, pair in pairs.items() if len(pair) != 2), None):
        raise UserError(f"{path}: line {odd} is not a pair of tokens.")
    return list(pairs.values())
