"""Every key and tensor name that the `gguf` library, llama.cpp and transformers know for the supported families, and
what happens to each: the tables of docs/files.md."""

from __future__ import annotations

import dataclasses
import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence

import gguf

from llama_jax.checkpoint import gguf as reader
from llama_jax.checkpoint import huggingface, keys, tensors
from llama_jax.checkpoint.gguf import ARCHITECTURES
from llama_jax.config import FAMILIES, tiny
from llama_lab.reporting.document import Table

# Keys that llama.cpp reads (src/llama-arch.cpp, LLM_KV_NAMES) or Ollama writes (convert/) and the library does not list
OTHERS = (
    "{arch}.attention.head_dim",
    "{arch}.rope.scale_linear", "{arch}.attention.block_skip_connection", "{arch}.dense_2_feat_in",
    "{arch}.dense_2_feat_out", "{arch}.dense_3_feat_in", "{arch}.dense_3_feat_out", "tokenizer.ggml.cls_token_id",
    "tokenizer.ggml.normalizer.lowercase", "tokenizer.ggml.normalizer.strip_accents", "tokenizer.ggml.suppress_tokens",
    "general.source.huggingface.repository",
)  # fmt: skip
# Keys that transformers takes beside the fields of its classes (PreTrainedConfig.__post_init__), or for each of them
TAKEN = (
    "rope_scaling", "rope_theta", "partial_rotary_factor", "torch_dtype", "num_labels", "name_or_path", "_commit_hash",
    "output_attentions", "attn_implementation", "experts_implementation", "per_layer_config", "head_dim", "layer_types",
    "sliding_window", "quantization_config", "model_type",
)  # fmt: skip
PLAIN = {  # reasons of the readers' tables, as sentences about a key
    "is RWKV's": "belongs to RWKV's vocabularies",
    "is another kind of norm's": "belongs to another kind of norm",
    "is of a classifier's head": "belongs to a classifier's head",
    "is used by YaRN and LongRoPE, which are refused": "is used only by YaRN and LongRoPE, which these families refuse",
    "of BERT's segments": "belongs to BERT's segments",
    "llama.cpp adds one for BERT's vocabularies alone": "is used for BERT's vocabularies alone",
    "llama.cpp reads it for BERT's vocabularies alone": "is used for BERT's vocabularies alone",
    "llama.cpp reads it for T5's vocabularies alone": "is used for T5's vocabularies alone",
    "how tokens are chosen is said by whoever asks": "chooses tokens, which each request says itself",
    "whoever loads chooses the type": "is a type, which whoever loads the model chooses",
    "each tensor says its own type": "is a type, which each tensor says itself",
    "another template than the default one": "is a template besides the default one",
    "only with use_sliding_window": "has an effect only with use_sliding_window, which is refused",
    "the tokenizer's own is taken": "is taken from the tokenizer instead",
    "there are no experts": "concerns experts, of which there are none",
    "the rows of the embedding table are counted": "is counted from the embedding table",
    "matters in training alone": "matters only in training",
    "changes rounding alone": "changes only rounding",
    "changes speed alone": "changes only speed",
    "no prompt is padded by this token": "pads prompts, which is done here without a token",
    "model_type chooses the family": "names the family, which model_type chooses",
    "n_positions says it": "repeats n_positions",
}
FEWEST = 3  # names that begin alike and are written as one, or after what they begin with
MOST = 40  # names that a cell shows unfolded
SUFFIXES = ("weight", "bias", "scale", "input_scale")  # of a tensor's name


def gguf_keys(family: str) -> list[str]:
    """Keys of a GGUF header, with the family's name in them."""
    names = sorted({*inside(gguf.constants.Keys), *OTHERS})
    return [name.format(arch=family, id=0, name="tools", dense="dense_2") for name in names]


def inside(branch: type) -> Iterator[str]:
    """The keys of a class of the library, those of its inner classes too."""
    for name, value in vars(branch).items():
        if isinstance(value, type):
            yield from inside(value)
        elif isinstance(value, str) and not name.startswith("__"):
            yield value


def config_keys(family: str) -> list[str]:
    """Keys of a config.json: those of transformers' class, of all its classes, and those that the reader knows."""
    import transformers  # here: takes seconds

    made = transformers.CONFIG_MAPPING[huggingface.MODEL_TYPES.get(family, family)]
    generation = transformers.GenerationConfig._get_default_generation_params()
    fields = {field.name for field in dataclasses.fields(made)}
    return sorted({*fields, *made.attribute_map, *generation, *TAKEN, *keys.HF_ONLY, *keys.HF_ONLY_OF[family]})


def tensor_names(family: str) -> dict[str, str | None]:
    """Names of the tensors of a first layer and around the layers as the library has them for all its architectures:
    the name that Hugging Face has for one that this family's reader takes, None for one that is refused."""
    shapes = tensors.shapes(tiny(family, tie_word_embeddings=False))
    given = [f"{name.format(bid=0, xid=0)}.{end}" for name in gguf.TENSOR_NAMES.values() for end in SUFFIXES]
    full = {name: reader.hugging_face_name(name, family) for name in given}
    scaled = dict.fromkeys(reader.DIVISORS.get(family, ()), "rope_scaling")
    return {name: scaled.get(name, full[name] if full[name] in shapes else None) for name in sorted({*given})}


def said(verdict: keys.Verdict) -> str:
    """A verdict in the words of the table."""
    if verdict.what == keys.REFUSED:
        return f"refused unless {unless(verdict)}"
    return f"ignored: {PLAIN.get(verdict.why, verdict.why)}" if verdict.what == keys.HARMLESS else "read"


def unless(verdict: keys.Verdict) -> str:
    """The values that a refused key may have, as a table says them: `absent`, `1`, `equal to head_dim`."""
    fields = [str(each)[1:] for each in verdict.only if str(each).startswith("=")]
    words = keys.allowed(verdict).replace("nothing", "absent")
    return re.sub(rf"\b({'|'.join(map(re.escape, fields))})\b", r"equal to \1", words) if fields else words


def gguf_table() -> str:
    """Keys of a GGUF header, those of the architecture without it."""

    def word(key: str, family: str) -> str:
        return said(reader.verdict(key, family, reader.read_keys(family)))

    words = {f: {key.removeprefix(f"{f}."): word(key, f) for key in gguf_keys(f)} for f in ARCHITECTURES}
    return grouped(words, stars=True)


def config_table() -> str:
    """Keys of a config.json."""

    def word(key: str, family: str) -> str:
        return said(keys.hf_verdict(key, family, huggingface.read_keys(family)))

    return grouped({f: {key: word(key, f) for key in config_keys(f)} for f in FAMILIES})


def grouped(words: Mapping[str, Mapping[str, str]], stars: bool = False) -> str:
    """One row for all keys with the same verdict for the same families, in Markdown. words: family → key → verdict.
    stars: write `clip.*` for all known keys that begin so, where they are in one row."""
    rows: dict[tuple[str, str], list[str]] = defaultdict(list)
    every = sorted({key for known in words.values() for key in known})
    for key in every:
        for word in sorted({known[key] for known in words.values() if key in known}):
            families = [family for family, known in words.items() if known.get(key) == word]
            rows[word, "all" if len(families) == len(words) else ", ".join(families)].append(key)
    order = sorted(rows, key=lambda row: (row[0] != "read", row))
    known = [[*row, lines(starred(rows[row], every) if stars else rows[row])] for row in order]
    return Table(("what becomes of it", "families", "keys"), known).markdown()


def starred(group: Collection[str], every: Collection[str]) -> list[str]:
    """The names of a group, `clip.*` for all of them that begin so, unless another group has some too."""

    def name(key: str) -> str:
        for at in (match.end() for end in ("[.]", "_") for match in re.finditer(end, key)):
            alike = [each for each in every if each.startswith(key[:at])]
            if len(alike) >= FEWEST and {*alike} <= {*group}:
                return f"{key[:at]}*"
        return key

    return [*dict.fromkeys(map(name, group))]


def lines(names: Sequence[str]) -> str:
    """Names in a cell; those that begin with the same part stand in a line of their own, after that part. Of many names
    the cell shows the number, which unfolds."""
    by_part: dict[str, list[str]] = defaultdict(list)
    for name in names:
        part = name[: name.rfind(".") + 1]
        many = sum(each.startswith(part) and "." not in each[len(part) :] for each in names) >= FEWEST
        by_part[part if many else ""].append(name)
    words = "<br>".join(
        f"`{part}`: " * bool(part) + ", ".join(f"`{name.removeprefix(part)}`" for name in known)
        for part, known in sorted(by_part.items())
    )
    return words if len(names) <= MOST else f"<details><summary>{len(names)} names</summary>{words}</details>"


def tensor_table() -> str:
    """Tensors that are read, and under which name; all others are refused."""
    known = {family: tensor_names(family) for family in ARCHITECTURES}
    read: dict[tuple[str, str], list[str]] = defaultdict(list)
    for family, names in known.items():
        for name, full in names.items():
            if full:
                read[layered(name), layered(full)].append(family)
    rows = [[*(f"`{name}`" for name in pair), "all" if len(read[pair]) == len(known) else ", ".join(read[pair])]
            for pair in sorted(read)]  # fmt: skip
    return Table(("GGUF", "Hugging Face", "families"), rows).markdown()


TABLES = {"keys of a header": gguf_table, "keys of config.json": config_table, "tensors": tensor_table}


def marks(name: str) -> tuple[str, str]:
    """The lines of docs/files.md around a table."""
    return f"<!-- {name}: written by `llama-jax report` -->", f"<!-- end of {name} -->"


def layered(name: str) -> str:
    """A name of the first layer as the name for any layer."""
    return re.sub(r"\b(blk|layers|h)\.0\.", r"\1.N.", name)
