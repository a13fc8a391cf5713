"""Flax twins: the network of `llama_jax.model` written in Flax, on the same weights, as subjects.

flax-linen       un-jitted `apply`: Flax puts `jax.jit` nowhere by itself, so every operation is a dispatch of its own
flax-linen+jit   `jax.jit` around `apply` and the greedy choice
flax-nnx         the NNX module, called directly
flax-nnx+jit     `nnx.jit`, which takes the module apart and puts it together again in Python at every call, and whose
                 program hands every variable back, the weights as well
flax-nnx+split   `nnx.split` once, then plain `jax.jit` over the parts: what the Flax documentation advises against
                 that cost

The twins share names, the arithmetic between Flax's layers, and the host loop. Dense, embedding and norm layers are
Flax's own (`flax_linen.py`, `flax_nnx.py`). Query, key and value are separate products, and so are gate and up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np

from llama_jax import attention, checkpoint, generate, kvc, rope, sampling
from llama_jax.attention import CallPositions
from llama_jax.axes import Array, Float
from llama_jax.config import ModelConfig
from llama_lab import peers
from llama_lab.bench.workload import Subject, Workload, encoder

WAYS = {  # peer: (module, its function)
    "flax-linen": ("flax_linen", "applied"),
    "flax-linen+jit": ("flax_linen", "jitted"),
    "flax-nnx": ("flax_nnx", "called"),
    "flax-nnx+jit": ("flax_nnx", "nnx_jitted"),
    "flax-nnx+split": ("flax_nnx", "split"),
}
# names of the jitted functions
PROGRAMS = {"flax-linen+jit": "linen_step", "flax-nnx+jit": "nnx_step", "flax-nnx+split": "split_step"}
NAMES = {  # module: Hugging Face's name of it, as `checkpoint.to_flax` nests them: Llama's and Qwen2's, then GPT-2's
    "root": ("model", "transformer"),
    "embed": ("embed_tokens", "wte"),
    "positions": ("", "wpe"),
    "blocks": ("layers", "h"),
    "attention_norm": ("input_layernorm", "ln_1"),
    "attention": ("self_attn", "attn"),
    "o": ("o_proj", "c_proj"),
    "ffn_norm": ("post_attention_layernorm", "ln_2"),
    "ffn": ("mlp", "mlp"),
    "down": ("down_proj", "c_proj"),
    "final_norm": ("norm", "ln_f"),
}
WEIGHTS = peers.Latest()  # of the checkpoint converted last: twins of one process hold them once, not once each
LLAMA, GPT2 = (SimpleNamespace(**{part: both[i] for part, both in NAMES.items()}) for i in range(2))


def names(config: ModelConfig) -> SimpleNamespace:
    """The names of a family's modules, a field each."""
    return GPT2 if config.model_type == "gpt2" else LLAMA


def attention_layers(config: ModelConfig) -> dict[str, tuple[int, int, bool]]:
    """Products of attention by name: (inputs, outputs, whether with a bias). Those that make queries, keys and values
    come in this order, the last one makes the output."""
    d, q = config.hidden_size, config.num_attention_heads * config.head_dim
    kv = config.num_key_value_heads * config.head_dim
    gpt2 = config.model_type == "gpt2"
    widths = {"c_attn": q + 2 * kv} if gpt2 else {"q_proj": q, "k_proj": kv, "v_proj": kv}
    inner = {name: (d, width, config.qkv_bias) for name, width in widths.items()}
    return inner | {names(config).o: (q, d, config.bias)}


def ffn_layers(config: ModelConfig) -> dict[str, tuple[int, int, bool]]:
    """As `attention_layers`: products into the feed-forward width (gate and up, or up alone), and the one out of it."""
    d, width = config.hidden_size, config.intermediate_size
    inner = dict.fromkeys(("gate_proj", "up_proj") if config.gated else ("c_fc",), (d, width, config.bias))
    return inner | {names(config).down: (width, d, config.bias)}


def empty_cache(config: ModelConfig, pad, slots: int, dtype) -> dict:
    """Keys and values of every block, [N S h] zeros as in `kvc`, where the modules keep them; beside them `length` and
    `pad`."""
    name, shape = names(config), (len(pad) * config.num_key_value_heads, slots, config.head_dim)
    blocks = {
        str(i): {name.attention: {"key": jnp.zeros(shape, dtype), "value": jnp.zeros(shape, dtype)}}
        for i in range(config.num_hidden_layers)
    }
    return {"length": jnp.zeros((), jnp.int32), "pad": jnp.asarray(pad), name.root: {name.blocks: blocks}}


def standing(config: ModelConfig, t: int, slots: int, length, pad) -> tuple[jax.Array, CallPositions]:
    """(positions [B T], where this call's tokens stand)."""
    at = length + jnp.arange(t, dtype=jnp.int32)
    positions = jnp.maximum(at[None, :] - pad[:, None], 0)
    angles = rope.angles(positions, rope.frequencies(config)) if config.positions == "rope" else (None, None)
    return positions, CallPositions(length, *angles, kvc.causal_mask(at, pad, slots))


def attend(config: ModelConfig, layer: Callable, x: Float[Array, "B T D"], where: CallPositions, keys, values):
    """Attention of layers: (its output [B T D], keys, values with T more positions). layer(name): a product."""
    *qkv, o = attention_layers(config)
    projected = jnp.concatenate([layer(name)(x) for name in qkv], axis=-1)
    h, kv = config.num_attention_heads, config.num_key_value_heads
    q, k, v = jnp.split(attention.split_heads(projected, config.head_dim), (h, h + kv), axis=1)
    if where.cos is not None:
        q, k = rope.rotate(q, where.cos, where.sin), rope.rotate(k, where.cos, where.sin)
    k, v = attention.merge_rows(k), attention.merge_rows(v)
    keys, values, _ = kvc.append_fixed((keys, values), k, v, where.slot)
    mixed = attention.merge_heads(attention.scaled_dot_product(q, keys, values, where.mask))
    return layer(o)(mixed), keys, values


def feed_forward(config: ModelConfig, layer: Callable, x: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
    """silu(gate) * up, or GELU by its tanh formula. layer(name): a product."""
    *up, down = ffn_layers(config)
    first, *second = [layer(name)(x) for name in up]
    inner = jax.nn.silu(first) * second[0] if config.gated else jax.nn.gelu(first, approximate=True)
    return layer(down)(inner)


def block(config: ModelConfig, part: Callable, x: Float[Array, "B T D"], where: CallPositions) -> Float[Array, "B T D"]:
    """Attention and feed-forward beside the residual. part(name): a module."""
    name = names(config)
    x = x + part(name.attention)(part(name.attention_norm)(x), where)
    return x + part(name.ffn)(part(name.ffn_norm)(x))


def decoder(config: ModelConfig, part: Callable, blocks: Callable, ids, positions, where: CallPositions, every: bool):
    """Embedding, blocks, final norm; logits already where the head is tied to the embedding. part(name): a module."""
    name = names(config)
    table = part(name.embed)
    x = table(ids)
    if config.positions == "learned":
        x = x + part(name.positions)(positions)
    x = blocks(x, where)
    x = part(name.final_norm)(x if every else x[:, -1:])
    return table.attend(x) if config.tie_word_embeddings else x


@dataclass(frozen=True)
class Twin:
    """A Flax model under one way of calling it. `state` is the way's own: a cache, or a module that holds one.

    start(pad [B], slots) → state: an empty cache. advance(ids [B T] or the last token [B], state) → (token [B], state).
    logits(ids [B T], state) → float32 [B T V], un-jitted, for evaluation. pure(ids, state) → a function without side
    effects that does as `advance`, and its arguments; None if `advance` is one.
    """

    config: ModelConfig
    start: Callable
    advance: Callable
    logits: Callable
    pure: Callable | None = None


def dispatches(flax: Twin, ids, state) -> int:
    """Operations that the host dispatches for one `advance`; a jitted function is one, whatever it contains."""
    function, arguments = flax.pure(ids, state) if flax.pure else (flax.advance, (ids, state))
    return len(jax.make_jaxpr(function)(*arguments).eqns)


def greedy(logits: Float[Array, "B T V"]) -> jax.Array:
    """The best token of the last position."""
    return sampling.greedy(logits[:, -1].astype(jnp.float32))


def as_rows(ids) -> jax.Array:
    """Ids [B T], or the last token [B] as [B 1]: within the program, as an operation outside it would be one more
    dispatch."""
    return ids.reshape(ids.shape[0], -1)


def twin(loaded: checkpoint.Checkpoint, name: str) -> Twin:
    """The twin of a checkpoint under one of `WAYS`, on the checkpoint's own weights. Nothing is compiled yet."""
    peers.check_twin(loaded.config, "Flax")
    module, way = WAYS[name]
    make = getattr(import_module(f"llama_lab.peers.{module}"), way)
    weights = WEIGHTS.get(loaded.params, lambda: checkpoint.to_flax(loaded.config, loaded.params))
    return make(loaded.config, weights, loaded.params.embeddings.weight.dtype)


def subject(loaded: checkpoint.Checkpoint, name: str) -> Subject:
    """A way as a subject of the protocol."""
    flax = twin(loaded, name)

    def run(ids: Sequence[int], work: Workload) -> Iterator[np.ndarray]:
        """Blocks [1 B] of greedy tokens as they reach the host, as placement `step` hands them over."""
        batch = generate.request(flax.config, [ids] * work.batch, work.new_tokens, length=work.length, slots=work.slots)
        state = flax.start(batch.pad, batch.slots)
        for i in range(0, work.length, generate.PIECE):
            token, state = flax.advance(batch.ids[:, i : i + generate.PIECE], state)
        yield generate.fetch(token)
        for _ in range(batch.new_tokens - 1):
            token, state = flax.advance(token, state)
            yield generate.fetch(token)

    return Subject(name, "flax", name, run, encoder(loaded), peers.identity(loaded, "fixed"))


def missing(name: str, model: str) -> tuple[str, str] | None:
    """Flax runs wherever it is installed."""
    spec = find_spec("flax")
    return None if spec else ("Flax is not installed.", "Run `make setup`, or `.venv/bin/pip install flax`.")
