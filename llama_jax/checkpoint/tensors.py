"""Named tensors in, the model's pytree out. Every source uses Hugging Face's tensor names and [out, in] layout."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from llama_jax.attention import Attention
from llama_jax.checkpoint import quantised
from llama_jax.checkpoint.source import HEAD, Rows, Source
from llama_jax.config import ModelConfig
from llama_jax.embeddings import Embedding
from llama_jax.ffn import FFN
from llama_jax.head import Head
from llama_jax.kernels import grouping
from llama_jax.kernels.packed import aligned
from llama_jax.layer import Layer
from llama_jax.model import Model
from llama_jax.norm import Norm
from llama_jax.plumbing import memory, progress, threads
from llama_jax.plumbing.errors import UserError
from llama_jax.quantise import FORMS, is_quantised

THREADS = 16  # that read at most: each has some rows in memory beside what it makes of them


def names(config: ModelConfig) -> Model:
    """The model's tree with Hugging Face names in place of the weights."""
    layers, own = range(config.num_hidden_layers), None if config.tie_word_embeddings else Rows((HEAD,))
    if config.model_type == "gpt2":
        tables = Embedding(Rows(("transformer.wte.weight",)), Rows(("transformer.wpe.weight",)))
        return Model(tables, tuple(map(gpt2_layer, layers)), Head(norm_rows("transformer.ln_f", True), own))
    head = Head(norm_rows("model.norm", False), own)
    return Model(Embedding(Rows(("model.embed_tokens.weight",))), tuple(llama_layer(i, config) for i in layers), head)


def norm_rows(name: str, bias: bool) -> Norm:
    return Norm(Rows((f"{name}.weight",)), Rows((f"{name}.bias",)) if bias else None)


def llama_layer(i: int, config: ModelConfig) -> Layer:
    """Names of a layer of Llama and similar families."""

    def rows(*parts: str, kind: str = "weight") -> Rows:
        return Rows(tuple(f"model.layers.{i}.{part}.{kind}" for part in parts))

    def norm(name: str, there: bool = True) -> Norm | None:
        return norm_rows(f"model.layers.{i}.{name}", False) if there else None

    qkv = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
    gate_up = ("mlp.gate_proj", "mlp.up_proj")
    if config.model_type == "phi3":
        qkv, gate_up = ("self_attn.qkv_proj",), ("mlp.gate_up_proj",)
    attention = Attention(
        qkv=rows(*qkv),
        o=rows("self_attn.o_proj"),
        qkv_bias=rows(*qkv, kind="bias") if config.qkv_bias else None,
        o_bias=rows("self_attn.o_proj", kind="bias") if config.o_bias else None,
        q_norm=norm("self_attn.q_norm", config.qk_norm),
        k_norm=norm("self_attn.k_norm", config.qk_norm),
    )
    more = config.post_norms  # then Hugging Face's names of the other two are other ones
    return Layer(
        attention_norm=norm("input_layernorm"),
        attention=attention,
        ffn_norm=norm("pre_feedforward_layernorm" if more else "post_attention_layernorm"),
        ffn=FFN(gate_up=rows(*gate_up), down=rows("mlp.down_proj")),
        attention_post_norm=norm("post_attention_layernorm", more),
        ffn_post_norm=norm("post_feedforward_layernorm", more),
    )


def gpt2_layer(i: int) -> Layer:
    """Names of a layer of GPT-2, whose products are `Conv1D`: weights stored [in, out]."""
    home = f"transformer.h.{i}"

    def conv(part: str) -> tuple[Rows, Rows]:
        return Rows((f"{home}.{part}.weight",), transposed=True), Rows((f"{home}.{part}.bias",))

    (qkv, qkv_bias), (o, o_bias) = conv("attn.c_attn"), conv("attn.c_proj")
    (up, up_bias), (down, down_bias) = conv("mlp.c_fc"), conv("mlp.c_proj")
    return Layer(
        norm_rows(f"{home}.ln_1", True),
        Attention(qkv, o, qkv_bias, o_bias),
        norm_rows(f"{home}.ln_2", True),
        FFN(up, down, up_bias, down_bias),
    )


def shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Hugging Face name → expected shape, for every weight of the model, in the order of the tree."""
    by_name = {}
    for rows in jax.tree.leaves(names(config)):
        for name in rows.names:
            sizes = out_in(name, config)
            by_name[name] = sizes[::-1] if rows.transposed else sizes if name.endswith("weight") else sizes[:1]
    return by_name


def out_in(name: str, config: ModelConfig) -> tuple[int, ...]:
    """(rows, columns) of the product that a tensor belongs to, its table's, or (D,) of a norm's."""
    d, f = config.hidden_size, config.intermediate_size
    queries, keys = config.num_attention_heads * config.head_dim, config.num_key_value_heads * config.head_dim
    sizes = {
        "q_proj": (queries, d),
        "k_proj": (keys, d),
        "v_proj": (keys, d),
        "qkv_proj": (queries + 2 * keys, d),
        "o_proj": (d, queries),
        "q_norm": (config.head_dim,),
        "k_norm": (config.head_dim,),
        "gate_up_proj": (2 * f, d),
        "gate_proj": (f, d),
        "up_proj": (f, d),
        "down_proj": (d, f),
        "embed_tokens": (config.vocab_size, d),
        "lm_head": (config.vocab_size, d),
        "wte": (config.vocab_size, d),
        "wpe": (config.max_position_embeddings, d),
        "attn.c_attn": (queries + 2 * keys, d),
        "attn.c_proj": (d, queries),
        "mlp.c_fc": (f, d),
        "mlp.c_proj": (d, f),
    }
    module = name.rpartition(".")[0]
    return next((size for end, size in sizes.items() if module == end or module.endswith("." + end)), (d,))


def assemble(
    source: Source, dtype: str, device: jax.Device | None = None, meanwhile: Callable[[], object] | None = None
) -> Model:
    """Read every weight into a Model of `dtype`, which may be one of `quantise.FORMS`, on `device` (by default JAX's
    first). Several weights are read at a time, a few rows each from a GGUF file. Whole tensors that are quantised here
    are read one after the other, so that only one is in memory as float32.

    Shapes are checked before anything is read. meanwhile: called while other threads read. Listeners of
    `plumbing.progress` hear how far it is.
    """
    leaves, tree = jax.tree.flatten(names(source.config))
    check(source)
    if dtype == "gguf" and (why := quantised.complaint(source, leaves)):
        raise UserError(f"{why}; use q8_0, which quantises it here (weights='q8_0', +q8_0 or dtype='q8_0').")
    total = size(source, dtype)
    memory.check(total, f"{source.where}: the weights as {dtype}", partial(smaller, source), device)
    weight = partial(quantised.read, form=dtype) if dtype in FORMS else partial(read, dtype=dtype)

    def placed(rows: Rows, memory: np.ndarray | None):
        with jax.default_device(device):  # here: it holds for one thread
            return weight(source, rows, memory=memory)

    in_pieces = all(tensor.raw for tensor in source.tensors.values())
    with ThreadPoolExecutor(min(os.cpu_count() or 1, THREADS) if in_pieces or dtype not in FORMS else 1) as pool:
        rooms = side_by_side(source, leaves, dtype, device)
        sizes = [0 if room is None else room.nbytes for room in rooms]
        if largest := max(sizes):
            grouping.compiled(largest > grouping.WORTH)  # here: a thread that loads it would wait for this one
        order = sorted(range(len(leaves)), key=lambda i: -sizes[i])  # no thread ends with a long one
        parts = pool.map(placed, [leaves[i] for i in order], [rooms[i] for i in order])
        if meanwhile:
            with threads.in_short_turns():
                meanwhile()
        weights = dict(zip(order, progress.told(parts, bytes_of, total), strict=True))
    return jax.tree.unflatten(tree, [weights[i] for i in range(len(leaves))])


def side_by_side(source: Source, leaves: list[Rows], dtype: str, device: jax.Device | None) -> list[np.ndarray | None]:
    """Where each weight's blocks go: one after the other, so that `kernels.packed` finds the layers in one piece and
    copies nothing. None for each if they are not kept in host memory."""
    if dtype not in FORMS or (device or jax.local_devices()[0]).platform != "cpu":
        return [None] * len(leaves)
    ends = list(itertools.accumulate((quantised.room(source, rows, dtype) for rows in leaves), initial=0))
    whole = aligned(ends[-1])
    return [whole[start:end] if end > start else None for start, end in itertools.pairwise(ends)]


def read(source: Source, rows: Rows, dtype: str, memory: None = None) -> jax.Array:
    """One weight, the rows of its tensors stacked; from a GGUF file a few rows at a time."""
    tensors = [source.tensors[name] for name in rows.names]
    if any(tensor.raw is None for tensor in tensors):
        parts = [tensor.read().T if rows.transposed else tensor.read() for tensor in tensors]
        return jnp.asarray(parts[0] if len(parts) == 1 else np.concatenate(parts)).astype(dtype)
    raws, kind = [tensor.raw for tensor in tensors], jnp.dtype(dtype)
    shape = (sum(raw.shape[0] for raw in raws), *raws[0].place.shape[1:])
    values, first = aligned(kind.itemsize * math.prod(shape)).view(kind).reshape(shape), 0
    for piece in (raw.values(*rows_of) for raw in raws for rows_of in raw.pieces()):
        values[first : first + len(piece)] = piece
        first += len(piece)
    return jax.device_put(values)


def check(source: Source) -> None:
    """Check that every weight is present with its shape, and that there is no tensor the model would silently
    ignore."""
    expected, config = shapes(source.config), source.config
    if others := sorted(tensor.name or name for name, tensor in source.tensors.items() if name not in expected):
        more = f" and {len(others) - 1} more" if others[1:] else ""
        raise UserError(
            f"{source.where}: it has tensor {others[0]:.80}{more}, which a {config.model_type} model of"
            f" {config.num_hidden_layers} layers does not have; without it the results would be wrong."
        )
    for name, shape in expected.items():
        if name not in source.tensors:
            raise UserError(
                f"{source.where}: tensor {name} is missing; the file is incomplete or has another configuration."
            )
        stored = tuple(source.tensors[name].shape)
        if stored != shape:
            raise UserError(
                f"{source.where}: tensor {name} has shape {list(stored)}, the configuration says {list(shape)}."
            )


def bytes_of(weight) -> float:
    return sum(leaf.nbytes for leaf in jax.tree.leaves(weight))


def size(source: Source, dtype: str) -> float:
    """Bytes of all weights in this dtype or quantised form."""
    if dtype not in FORMS:
        return source.config.num_parameters * np.dtype(jnp.dtype(dtype)).itemsize
    return sum(quantised.bytes_of(source, rows, dtype) for rows in jax.tree.leaves(names(source.config)))


def smaller(source: Source, left: float) -> str:
    """The forms in which the weights fit into this many bytes."""
    forms = ("bfloat16", *(form for form in FORMS if form != "gguf"))
    own = quantised.complaint(source, jax.tree.leaves(names(source.config)))
    sizes = {form: size(source, form) for form in (forms if own else ("gguf", *forms))}
    told = {form: f"{form} ({needed / 1e9:.1f} GB)" for form, needed in sizes.items()}
    if fits := [form for form, needed in sizes.items() if needed <= left]:
        how = f"--dtype {fits[0]}, in Python dtype={fits[0]!r}"
        return f"it fits as {' or '.join(told[form] for form in fits)}: say {how}, or choose a smaller model"
    return f"its smallest form is {told[min(sizes, key=sizes.get)]}: choose a smaller model"


def named(config: ModelConfig, params: Model) -> dict[str, np.ndarray]:
    """The model's weights as separate host arrays under their Hugging Face names and layout: the inverse of `assemble`.

    Quantised ones are expanded to float32.
    """
    sizes, tensors = shapes(config), {}
    for rows, weight in zip(jax.tree.leaves(names(config)), jax.tree.leaves(params, is_leaf=is_quantised), strict=True):
        values, at = np.asarray(weight.dequantised() if is_quantised(weight) else weight), 0
        for name in rows.names:
            height = sizes[name][-1 if rows.transposed else 0]
            part = values[at : at + height]
            tensors[name], at = part.T if rows.transposed else part, at + height
    return tensors
