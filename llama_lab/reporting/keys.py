"""Every key and tensor name that the `gguf` library, llama.cpp and transformers know for the supported families, and
what happens to each: the tables of docs/files.md."""

from __future__ import annotations

import dataclasses
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping

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
        return f"refused unless {keys.allowed(verdict)}"
    return f"changes nothing: {verdict.why}" if verdict.what == keys.HARMLESS else "read"


def gguf_table() -> str:
    """Keys of a GGUF header, those of the architecture without it."""

    def word(key: str, family: str) -> str:
        return said(reader.verdict(key, family, reader.read_keys(family)))

    return grouped({f: {key.removeprefix(f"{f}."): word(key, f) for key in gguf_keys(f)} for f in ARCHITECTURES})


def config_table() -> str:
    """Keys of a config.json."""

    def word(key: str, family: str) -> str:
        return said(keys.hf_verdict(key, family, huggingface.read_keys(family)))

    return grouped({f: {key: word(key, f) for key in config_keys(f)} for f in FAMILIES})


def grouped(words: Mapping[str, Mapping[str, str]]) -> str:
    """One row for all keys with the same verdict for the same families, in Markdown. words: family → key → verdict."""
    rows: dict[tuple[str, str], list[str]] = defaultdict(list)
    for key in sorted({key for known in words.values() for key in known}):
        for word in sorted({known[key] for known in words.values() if key in known}):
            families = [family for family, known in words.items() if known.get(key) == word]
            rows[word, "all" if len(families) == len(words) else ", ".join(families)].append(f"`{key}`")
    order = sorted(rows, key=lambda row: (row[0] != "read", row))
    return Table(("what becomes of it", "families", "keys"), [[*row, ", ".join(rows[row])] for row in order]).markdown()


def tensor_table() -> str:
    """Tensors that are read, and under which name; all others are refused."""
    known = {family: tensor_names(family) for family in ARCHITECTURES}
    read = sorted({name for names in known.values() for name, full in names.items() if full})
    rows = [[f"`{layered(n)}`", *(f"`{layered(f)}`" if (f := known[k][n]) else "" for k in known)] for n in read]
    return Table(("GGUF", *known), rows).markdown()


TABLES = {"keys of a header": gguf_table, "keys of config.json": config_table, "tensors": tensor_table}


def marks(name: str) -> tuple[str, str]:
    """The lines of docs/files.md around a table."""
    return f"<!-- {name}: written by `llama-jax report` -->", f"<!-- end of {name} -->"


def layered(name: str) -> str:
    """A name of the first layer as the name for any layer."""
    return re.sub(r"\b(blk|layers|h)\.0\.", r"\1.N.", name)
