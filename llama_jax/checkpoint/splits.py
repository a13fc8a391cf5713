"""How text is split into words before byte-level BPE merges them: the names of `tokenizer.ggml.pre`.

As in llama.cpp (https://github.com/ggml-org/llama.cpp/blob/master/src/llama-vocab.cpp): each pattern splits the pieces
that the previous one left.
"""

from __future__ import annotations

from dataclasses import dataclass

from tokenizers import Regex, pre_tokenizers

WORDS = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LONG_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
UPPER, LOWER = r"((?=[\p{L}])([^a-z]))", r"((?=[\p{L}])([^A-Z]))"  # as llama.cpp writes them
SHORT = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])?"
CASED = rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+SHORT|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*SHORT"
REST = r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LONG_WORDS_AND_DIGITS = LONG_WORDS.replace(r"\p{N}{1,3}", r"\p{N}")  # a number goes digit by digit


@dataclass(frozen=True)
class Split:
    """patterns: split a text, one after the other. whole: a word that is a token is not merged. begins: whether a text
    starts with the first token if the file does not say. composed: characters are composed first (NFC)."""

    patterns: tuple[str, ...]
    whole: bool = False
    begins: bool = False
    composed: bool = False

    def pre_tokenizer(self) -> pre_tokenizers.PreTokenizer:
        cuts = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in self.patterns]
        return pre_tokenizers.Sequence([*cuts, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


SPLITS = {
    name: split
    for names, split in {
        "default": Split((r"[\p{P}\$\+<=>\^~\|]+", WORDS, r"\p{N}+", "[0-9][0-9][0-9]")),
        "gpt-2 phi-2 gigachat a.x-4.0 mellum exaone4 mpt olmo jais trillion granite-docling": Split((WORDS,)),
        "smollm starcoder refact command-r codeshell exaone minerva-7b mellum2": Split((r"\p{N}", WORDS)),
        "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2": Split((LONG_WORDS,), True, True),
        "smaug-bpe dbrx glm4 chatglm-bpe": Split((LONG_WORDS,)),
        "gpt-4o llama4": Split((CASED.replace("SHORT", SHORT) + r"|\p{N}{1,3}" + REST,)),  # Phi-4-mini's
        "tekken": Split((CASED.replace("SHORT", "") + r"|\p{N}" + REST,), True, True),  # Mistral's
        "qwen2": Split((LONG_WORDS_AND_DIGITS,), composed=True),  # as Qwen's own tokenizer does; llama.cpp does not
        "deepseek-r1-qwen megrez kormo f2llmv2 stablelm2 hunyuan solar-open grok-2": Split((LONG_WORDS_AND_DIGITS,)),
    }.items()
    for name in names.split()
}  # fmt: skip
