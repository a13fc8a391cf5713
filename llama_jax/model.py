"""The model: a pytree of weights, and `transform` = embed → layers → head."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import jax
import jax.numpy as jnp
import numpy as np

from llama_jax import kvc, quantise, rope
from llama_jax.attention import CallPositions
from llama_jax.axes import Array, Int
from llama_jax.config import ModelConfig
from llama_jax.embeddings import Embedding
from llama_jax.head import Head
from llama_jax.kvc import KVCache
from llama_jax.layer import Layer
from llama_jax.plumbing.errors import UserError
from llama_jax.quantise import Int8, Product, is_quantised
from llama_jax.rope import Rope


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Model:
    """The weights."""

    embeddings: Embedding
    # a tuple (unrolled), one Layer whose leaves carry a leading L axis (scan), or `kernels.packed`
    layers: tuple[Layer, ...] | Layer
    head: Head
    rope: Rope | None = field(default=None, metadata=dict(static=True))  # of a model made by `create`

    @property
    def vocabulary(self) -> jax.Array:
        """The matrix of the logits, [V D]: the head's own or, when tied, the embedding's."""
        return self.embeddings.weight if self.head.weight is None else self.head.weight


def create(config: ModelConfig, params: Model | None = None, dtype: str | None = None) -> Model:
    """A model's weights for a step that you compose from its parts: with `rope`, and with a matrix in the head even if
    it is the embedding's. `rope` is None if layers differ in it; `rope.create(config, i)` makes layer i's. params:
    weights that are already loaded; otherwise they are read from where `config` came from, in `dtype` (float32).

    Raises UserError if `config` names no weights, for stacked layers, for weights that do not fit the configuration,
    and for a dtype together with loaded weights. Other errors as `checkpoint.load`.
    """
    if params is None:
        if config.home is None:
            raise UserError("This configuration names no weights; use checkpoint.load_config(name), or give params.")
        params = config.home.load(dtype or "float32")
    elif dtype is not None:
        raise UserError(f"These weights are loaded already; leave dtype={dtype!r} out, or load them with it.")
    if not isinstance(params, Model):
        raise UserError(f"These weights are a {type(params).__name__}; checkpoint.load(name).params are weights.")
    if not isinstance(params.layers, tuple):
        raise UserError("These layers are stacked or packed into one; use the weights as checkpoint.load gives them.")
    (vocabulary, width), depth = params.embeddings.weight.shape, len(params.layers)
    if (vocabulary, width, depth) != (config.vocab_size, config.hidden_size, config.num_hidden_layers):
        raise UserError(
            f"These weights have {depth} layers of width {width} and {vocabulary} tokens, the configuration"
            f" {config.num_hidden_layers} of {config.hidden_size} and {config.vocab_size}; give those of this model."
        )
    ropes, _ = rope.of_layers(config)
    alike = ropes[0] if len(ropes) == 1 else None
    return replace(params, head=replace(params.head, weight=params.vocabulary), rope=alike)


@dataclass(frozen=True)
class Parts:
    """The functions that `transform` is composed of, each jitted or not, and what is fixed before any token."""

    ropes: tuple[Rope, ...]  # those that differ; `layers` knows which of them each layer has
    policy: str  # of the KV cache, one of `kvc.POLICIES`
    embed: Callable
    layers: Callable  # `unrolled` or `scanned`
    head: Callable


def transform(model: Model, ids: Int[Array, "B T"], cache: KVCache, *, parts: Parts, every: bool = False):
    """ids → (logits float32 [B V] of the last token, or [B T V] with `every`; cache with T more positions)."""
    t = ids.shape[1]
    ids, slot, last, opened = kvc.open_call(cache, ids)
    slots = slot + jnp.arange(ids.shape[1], dtype=jnp.int32)
    positions = jnp.maximum(slots[None, :] - cache.pad[:, None], 0)
    seen, wheres = kvc.keys_seen(cache, ids.shape[1], parts.policy), []
    for each in parts.ropes:
        mask = kvc.causal_mask(slots, cache.pad, seen, each.window)
        wheres.append(CallPositions(slot, *rope.turned(each, positions), mask))
    x, entries = parts.layers(model.layers, parts.embed(model.embeddings, ids, positions), wheres, opened.entries)
    if not every:
        x = jax.lax.dynamic_slice_in_dim(x, last, 1, axis=1)
    logits = parts.head(model.head, model.vocabulary, x)
    return logits if every else logits[:, 0], replace(opened, entries=entries, length=cache.length + t)


def unrolled(
    layers: tuple[Layer, ...], x, wheres: list[CallPositions], entries, *, layer: Callable, kinds: tuple[int, ...]
):
    """Run the layers one after the other, each with its own code. kinds: which of `wheres` each layer has."""
    done = []
    for i, params in enumerate(layers):
        x, entry = layer(params, x, wheres[kinds[i]], None if entries is None else entries[i])
        done.append(entry)
    return x, None if entries is None else tuple(done)


def scanned(layers: Layer, x, wheres: list[CallPositions], entries, *, layer: Callable, kinds: tuple[int, ...]):
    """Run the layers as one `lax.scan` over stacked weights: one body to compile, however deep the model. If layers
    differ in their positions, each reads its own from a stack; one that rotates nothing rotates by an angle of 0."""
    if len(wheres) == 1:

        def body(x, layer_and_entry):
            params, entry = layer_and_entry
            return layer(params, x, wheres[0], entry)

        return jax.lax.scan(body, x, (layers, entries))
    cos, sin = next((where.cos, where.sin) for where in wheres if where.cos is not None)
    still = dict(cos=jnp.ones_like(cos), sin=jnp.zeros_like(sin))
    full = [replace(where, **still) if where.cos is None else where for where in wheres]
    stacked = jax.tree.map(lambda *parts: jnp.stack(parts), *full)

    def its_own(x, layer_and_entry):
        params, entry, kind = layer_and_entry
        return layer(params, x, jax.tree.map(lambda parts: parts[kind], stacked), entry)

    return jax.lax.scan(its_own, x, (layers, entries, jnp.asarray(kinds, jnp.int32)))


LAYERS = {"unrolled": unrolled, "scan": scanned}


def stack(model: Model) -> Model:
    """The same weights with all layers stacked along a leading L axis, for `scanned`. Raises UserError if layers
    differ in kind."""
    if len({jax.tree.structure(layer) for layer in model.layers}) > 1:
        raise UserError(
            "layers='scan' needs all layers quantised alike, and this file's are not; leave scan out or use"
            " weights='q8_0'."
        )
    return replace(model, layers=jax.tree.map(lambda *leaves: jnp.stack(leaves), *model.layers))


def cast(model: Model, dtype) -> Model:
    """The same model with every weight in `dtype`, quantised ones expanded."""
    return jax.tree.map(
        lambda w: (w.dequantised() if is_quantised(w) else w).astype(dtype), model, is_leaf=is_quantised
    )


def on_matrices(function: Callable, model: Model) -> Model:
    """The model with each matrix replaced by function(weight, whether it is the vocabulary's); layers not stacked."""
    embeddings = replace(model.embeddings, weight=function(model.embeddings.weight, True))
    head = model.head if model.head.weight is None else replace(model.head, weight=function(model.head.weight, True))

    def within(block: Layer) -> Layer:
        mix, net = block.attention, block.ffn
        return replace(
            block,
            attention=replace(mix, qkv=function(mix.qkv, False), o=function(mix.o, False)),
            ffn=replace(net, gate_up=function(net.gate_up, False), down=function(net.down, False)),
        )

    return replace(model, embeddings=embeddings, layers=tuple(map(within, model.layers)), head=head)


def quantised(model: Model, form: str) -> Model:
    """The same model with its matrices in one of `quantise.FORMS` and everything else in float32; unchanged if it
    already has that form.

    Raises UserError for a model that is quantised otherwise, and for "gguf" if the weights are not a file's blocks.
    """

    def matrix(weight, vocabulary: bool):
        kind = quantise.kind_of(form, vocabulary)
        if is_quantised(weight):
            given = weight.kinds
            if given != (kind,) and (form != "gguf" or given == ("int8",)):
                raise UserError(
                    f"weights={form!r}: these are quantised as {', '.join(given)} already; load the model as float32"
                    f" or as {form}."
                )
            return weight
        if form == "gguf":
            raise UserError(
                "weights='gguf' needs the blocks of a GGUF file, and these weights are from none; use weights='q8_0'."
            )
        return quantise.from_float(np.asarray(weight, np.float32), kind)

    changed = on_matrices(matrix, model)
    return jax.tree.map(lambda w: w if is_quantised(w) else w.astype(jnp.float32), changed, is_leaf=is_quantised)


def multiplied_by(model: Model, product: Product | None) -> Model:
    """The same blocks, multiplied by a kernel; None: by XLA. Raises UserError for weights that are not blocks."""

    def matrix(weight, _):
        if isinstance(weight, Int8):
            raise UserError("Kernels multiply by blocks, and these weights are int8; use weights='q8_0'.")
        return weight.multiplied_by(product)

    return on_matrices(matrix, model)


def kinds(model: Model) -> str:
    """What the weights are kept as: a dtype's name, or the kinds of the matrices in alphabetical order, as in
    "q4_1+q8_0"."""
    names = {kind for w in jax.tree.leaves(model, is_leaf=is_quantised) if is_quantised(w) for kind in w.kinds}
    names.update(*getattr(model.layers, "kinds", ()))  # those of a `kernels.packed.Packed`
    return "+".join(sorted(names)) or model.embeddings.weight.dtype.name
