"""A GGUF file of float32 weights whose rows are whole blocks of 256, and which computes what another file's model does.

The packaged model has rows of 576 weights, which blocks of 256 do not divide: the types in "_k" and "_xs" cannot hold
them. Zeros are added, so that every type holds the same real weights: to the hidden state, to the feed-forward's, and
heads whose output nobody reads. A norm's mean is then over more values, of which none is new: its weights and its
epsilon are scaled by as much.
"""

from __future__ import annotations

import math
from pathlib import Path

import gguf
import numpy as np

from llama_jax import checkpoint
from llama_jax.config import ModelConfig
from llama_jax.plumbing import files
from llama_jax.plumbing.errors import UserError

COLUMNS = 256  # of the widest block
FAMILIES = ("llama", "qwen2")
SIDES = {  # tensor's stem: which sizes its rows and its columns have; "" if it stays as it is
    "token_embd": ("", "hidden"), "output": ("", "hidden"), "output_norm": ("hidden",), "attn_norm": ("hidden",),
    "ffn_norm": ("hidden",), "attn_q": ("heads", "hidden"), "attn_k": ("", "hidden"), "attn_v": ("", "hidden"),
    "attn_output": ("hidden", "heads"), "ffn_gate": ("inner", "hidden"), "ffn_up": ("inner", "hidden"),
    "ffn_down": ("hidden", "inner"),
}  # fmt: skip


def write(path: Path, out: Path) -> None:
    """Write the file. Raises UserError for another family, and for what cannot be read or written."""
    config = checkpoint.load_config(str(path))
    if config.model_type not in FAMILIES:
        raise UserError(f"{path}: only models of {' and '.join(FAMILIES)} are widened, no {config.model_type}.")
    reader, places = gguf.GGUFReader(path), {"": (0, None)} | sizes(config)
    with files.replacing(out) as staged:
        writer = gguf.GGUFWriter(staged, config.model_type)
        try:
            describe(writer, reader, config, {name: size for name, (size, _) in places.items()})
            shapes = {t.name: shape_of(t, places) for t in reader.tensors}
            for name, shape in shapes.items():
                writer.add_tensor_info(name, shape, np.dtype(np.float32), 4 * math.prod(shape))
            writer.write_header_to_file()
            writer.write_kv_data_to_file()
            writer.write_ti_data_to_file()
            for tensor in reader.tensors:
                writer.write_tensor_data(placed(tensor, shapes[tensor.name], places, config))
        finally:
            writer.close()


def up(size: int, unit: int = COLUMNS) -> int:
    return -(-size // unit) * unit


def sizes(config: ModelConfig) -> dict[str, tuple[int, np.ndarray]]:
    """Name of SIDES → (how many there are then, where those that were there stand)."""
    groups, width = config.num_key_value_heads, config.head_dim
    each = config.num_attention_heads // groups  # queries that share a key
    more = next(n for n in range(each, each + COLUMNS) if not n * groups * width % COLUMNS)
    heads = np.arange(more * groups * width).reshape(groups, more * width)[:, : each * width]
    return dict(
        hidden=(up(config.hidden_size), np.arange(config.hidden_size)),
        inner=(up(config.intermediate_size), np.arange(config.intermediate_size)),
        heads=(more * groups * width, heads.ravel()),
    )


def describe(writer: gguf.GGUFWriter, reader: gguf.GGUFReader, config: ModelConfig, new: dict[str, int]) -> None:
    """All that the file says of itself, with the new sizes."""
    whole = {
        "embedding_length": new["hidden"],
        "feed_forward_length": new["inner"],
        "attention.head_count": new["heads"] // config.head_dim,
        **dict.fromkeys(("attention.key_length", "attention.value_length", "rope.dimension_count"), config.head_dim),
    }
    uint32, float32 = gguf.GGUFValueType.UINT32, gguf.GGUFValueType.FLOAT32
    epsilon = config.norm_eps * config.hidden_size / new["hidden"]
    changed = {f"{config.model_type}.{key}": (value, uint32) for key, value in whole.items()}
    changed[f"{config.model_type}.attention.layer_norm_rms_epsilon"] = epsilon, float32
    changed["general.file_type"] = int(gguf.LlamaFileType.ALL_F32), uint32
    for key, (value, kind) in changed.items():
        writer.add_key_value(key, value, kind)
    for field in reader.fields.values():
        if field.name not in changed and field.name != "general.architecture" and not field.name.startswith("GGUF."):
            sub_type = field.types[-1] if len(field.types) > 1 else None
            writer.add_key_value(field.name, field.contents(), field.types[0], sub_type)


def sides(name: str) -> tuple[str, ...]:
    return SIDES.get(name.split(".")[-2], ())


def shape_of(tensor: gguf.ReaderTensor, places: dict) -> tuple[int, ...]:
    old = tuple(int(n) for n in tensor.shape[::-1])  # GGUF says the columns first
    return tuple(places[side][0] or n for n, side in zip(old, sides(tensor.name), strict=False)) or old


def placed(tensor: gguf.ReaderTensor, shape: tuple[int, ...], places: dict, config: ModelConfig) -> np.ndarray:
    """A tensor's weights as float32 where they stand in the new shape, zeros elsewhere."""
    values = gguf.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
    if tensor.name.endswith("norm.weight"):
        values = values * np.float32(math.sqrt(config.hidden_size / places["hidden"][0]))
    known = sides(tensor.name)
    if not known:
        return values
    wide = np.zeros(shape, np.float32)
    at = (np.arange(n) if not side else places[side][1] for n, side in zip(values.shape, known, strict=False))
    wide[np.ix_(*at)] = values
    return wide
