"""Model configuration: a frozen, hashable value with Hugging Face's field names, and one line per preset."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import KW_ONLY, asdict, dataclass, field, fields, replace

import jax


@dataclass(frozen=True)
class RopeScaling:
    """How rotary frequencies are stretched beyond the trained context.

    kind: "linear" (all frequencies divided by `factor`), "llama3" (Llama 3.1's piecewise rule:
    https://github.com/meta-llama/llama-models, `apply_scaling`) or "factors" (one divisor per frequency, as
    GGUF's `rope_freqs.weight` stores them).
    """

    kind: str
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position_embeddings: int = 8192
    factors: tuple[float, ...] = ()


def tuples(values: dict) -> dict:
    """Values read from JSON, with lists turned into tuples: a static argument of `jax.jit` must be hashable."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}


@dataclass(frozen=True)
class Home:
    """Where the weights of a configuration are: their name for `checkpoint.load`, and a function that reads them in a
    given dtype."""

    name: str
    load: Callable


@jax.tree_util.register_static
@dataclass(frozen=True)
class ModelConfig:
    """Shape of one transformer. Static under `jax.jit`: a new value is a new program.

    The fields from `model_type` on distinguish the families (`FAMILIES`). model_type: the family of the checkpoints,
    which decides the names of the tensors. norm: "rms", or "layer" with a bias. positions: "rope", or "learned" ones in
    a table. hidden_act: "silu", gated (SwiGLU), "gelu_tanh", gated (GeGLU), or "gelu_new", not gated; both GELU by its
    tanh formula. qkv_bias: biases of query, key and value. bias: biases of all other products.

    home: where its weights are; None if it was not read from a checkpoint. It is not part of the shape: two models of
    the same shape share their programs.

    The other fields are off in Llama. o_bias: a bias of attention's output, alone or with `qkv_bias`. qk_norm: a norm
    of each head of queries and keys, before rotation. post_norms: a norm of the output of attention and feed-forward,
    before it is added. embedding_scale: factor of the embedding. attention_scale: of the scores; None: head_dim **
    -0.5. window: number of last positions that `local_layers` see; they rotate by the base `local_rope_theta`,
    unscaled, if there is one. unrotated_layers: their queries and keys are not rotated. rotary_dim: how many numbers
    of a head are rotated, from the first; None: all. rotary_scale: of rotated numbers (LongRoPE).
    """

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int
    norm_eps: float = 1e-5
    rope_theta: float = 10_000.0
    rope_scaling: RopeScaling | None = None
    max_position_embeddings: int = 2048
    tie_word_embeddings: bool = False
    model_type: str = "llama"
    norm: str = "rms"
    positions: str = "rope"
    hidden_act: str = "silu"
    qkv_bias: bool = False
    bias: bool = False
    home: Home | None = field(default=None, repr=False, compare=False)
    _: KW_ONLY
    o_bias: bool = False
    qk_norm: bool = False
    post_norms: bool = False
    embedding_scale: float = 1.0
    attention_scale: float | None = None
    window: int | None = None
    local_layers: tuple[int, ...] = ()
    local_rope_theta: float | None = None
    unrotated_layers: tuple[int, ...] = ()
    rotary_dim: int | None = None
    rotary_scale: float = 1.0

    @property
    def features(self) -> tuple[str, ...]:
        """The fields that are off in Llama and on in this model."""
        return tuple(f.name for f in fields(self) if f.kw_only and getattr(self, f.name) != f.default)

    def __repr__(self) -> str:
        """Only the features that are on: digests of random weights are made of this text."""
        shown = [f.name for f in fields(self) if f.repr and (not f.kw_only or f.name in self.features)]
        return f"ModelConfig({', '.join(f'{name}={getattr(self, name)!r}' for name in shown)})"

    def shape(self) -> dict:
        """The fields as JSON values, without `home`, and of the features those that are on."""
        off = {"home", *(f.name for f in fields(self) if f.kw_only)} - {*self.features}
        return {name: value for name, value in asdict(replace(self, home=None)).items() if name not in off}

    @classmethod
    def from_json(cls, values: dict) -> ModelConfig:
        """The configuration of a `shape`."""
        scaling = values.get("rope_scaling")
        return cls(**tuples(values) | {"rope_scaling": scaling and RopeScaling(**tuples(scaling))})

    @property
    def parameters_per_layer(self) -> int:
        """Number of weights in one layer, norms and biases included."""
        d, f = self.hidden_size, self.intermediate_size
        rows = self.head_dim * (self.num_attention_heads + 2 * self.num_key_value_heads)  # queries, keys and values
        products = d * rows + d * self.head_dim * self.num_attention_heads + (3 if self.gated else 2) * d * f
        biases = rows * self.qkv_bias + (d + (2 if self.gated else 1) * f + d) * self.bias + d * self.o_bias
        norms = (4 if self.post_norms else 2) * self.parameters_per_norm + 2 * self.head_dim * self.qk_norm
        return products + biases + norms

    @property
    def gated(self) -> bool:
        """Whether the feed-forward network has a gate beside its up projection."""
        return self.hidden_act != "gelu_new"

    @property
    def parameters_per_norm(self) -> int:
        return self.hidden_size * (2 if self.norm == "layer" else 1)

    @property
    def num_parameters(self) -> int:
        """Number of weights, a tied embedding counted once."""
        tables = self.vocab_size * (1 if self.tie_word_embeddings else 2)
        tables += self.max_position_embeddings if self.positions == "learned" else 0
        return self.num_hidden_layers * self.parameters_per_layer + tables * self.hidden_size + self.parameters_per_norm

    @property
    def weights_read_per_token(self) -> int:
        """Number of weights one decode step must read: every layer, the final norm, the head (not the embedding
        tables)."""
        head = self.vocab_size * self.hidden_size + self.parameters_per_norm
        return self.num_hidden_layers * self.parameters_per_layer + head

    def kv_bytes_per_position(self, itemsize: float = 4) -> float:
        """Bytes of keys *and* values that one position of one sequence occupies."""
        return 2 * self.num_hidden_layers * self.num_key_value_heads * self.head_dim * itemsize


FAMILIES: dict[str, dict] = {  # model_type: the fields that tell it from Llama
    "llama": {},
    "qwen2": dict(model_type="qwen2", qkv_bias=True),
    "gpt2": dict(model_type="gpt2", norm="layer", positions="learned", hidden_act="gelu_new", qkv_bias=True, bias=True),
    "qwen3": dict(model_type="qwen3", qk_norm=True),
    "gemma3": dict(model_type="gemma3", hidden_act="gelu_tanh", qk_norm=True, post_norms=True),
    "mistral": dict(model_type="mistral"),
    "smollm3": dict(model_type="smollm3"),
    "phi3": dict(model_type="phi3"),
}


def gemma3(width: int, layers: int) -> dict:
    """Fields of a Gemma 3 that follow from its width and depth."""
    local = dict(window=512, local_layers=tuple(i for i in range(layers) if (i + 1) % 6), local_rope_theta=1e4)
    return FAMILIES["gemma3"] | local | dict(embedding_scale=width**0.5)


LLAMA_3_SCALING = RopeScaling("llama3", 32.0, 1.0, 4.0, 8192)

PRESETS: dict[str, ModelConfig] = {
    # name: hidden, ffn, layers, heads, kv heads, head size, vocabulary
    "smollm2-135m": ModelConfig(576, 1536, 30, 9, 3, 64, 49152, 1e-5, 1e5, None, 8192, True),
    "smollm2-360m": ModelConfig(960, 2560, 32, 15, 5, 64, 49152, 1e-5, 1e5, None, 8192, True),
    "smollm2-1.7b": ModelConfig(2048, 8192, 24, 32, 32, 64, 49152, 1e-5, 1.3e5, None, 8192, True),
    "llama-2-7b": ModelConfig(4096, 11008, 32, 32, 32, 128, 32000, 1e-5, 1e4, None, 4096, False),
    "llama-3.2-1b": ModelConfig(2048, 8192, 16, 32, 8, 64, 128256, 1e-5, 5e5, LLAMA_3_SCALING, 131072, True),
    "llama-3.2-3b": ModelConfig(3072, 8192, 28, 24, 8, 128, 128256, 1e-5, 5e5, LLAMA_3_SCALING, 131072, True),
    "qwen2.5-0.5b": ModelConfig(896, 4864, 24, 14, 2, 64, 151936, 1e-6, 1e6, None, 32768, True, **FAMILIES["qwen2"]),
    "qwen2.5-1.5b": ModelConfig(1536, 8960, 28, 12, 2, 128, 151936, 1e-6, 1e6, None, 32768, True, **FAMILIES["qwen2"]),
    "qwen2.5-7b": ModelConfig(3584, 18944, 28, 28, 4, 128, 152064, 1e-6, 1e6, None, 32768, False, **FAMILIES["qwen2"]),
    "gpt2": ModelConfig(768, 3072, 12, 12, 12, 64, 50257, 1e-5, 1e4, None, 1024, True, **FAMILIES["gpt2"]),
    "gpt2-medium": ModelConfig(1024, 4096, 24, 16, 16, 64, 50257, 1e-5, 1e4, None, 1024, True, **FAMILIES["gpt2"]),
    "gpt2-large": ModelConfig(1280, 5120, 36, 20, 20, 64, 50257, 1e-5, 1e4, None, 1024, True, **FAMILIES["gpt2"]),
    "gpt2-xl": ModelConfig(1600, 6400, 48, 25, 25, 64, 50257, 1e-5, 1e4, None, 1024, True, **FAMILIES["gpt2"]),
    "qwen3-0.6b": ModelConfig(1024, 3072, 28, 16, 8, 128, 151936, 1e-6, 1e6, None, 40960, True, **FAMILIES["qwen3"]),
    "qwen3-1.7b": ModelConfig(2048, 6144, 28, 16, 8, 128, 151936, 1e-6, 1e6, None, 40960, True, **FAMILIES["qwen3"]),
    "gemma-3-270m": ModelConfig(640, 2048, 18, 4, 1, 256, 262144, 1e-6, 1e6, None, 32768, True, **gemma3(640, 18)),
    "gemma-3-1b": ModelConfig(1152, 6912, 26, 4, 1, 256, 262144, 1e-6, 1e6, None, 32768, True, **gemma3(1152, 26)),
    "mistral-7b-v0.3": ModelConfig(4096, 14336, 32, 32, 8, 128, 32768, 1e-5, 1e6, None, 32768, False, "mistral"),
    "smollm3-3b": ModelConfig(2048, 11008, 36, 16, 4, 128, 128256, 1e-6, 5e6, None, 65536, True, "smollm3",
                              unrotated_layers=tuple(range(3, 36, 4))),
    # LongRoPE within the context of its training
    "phi-4-mini": ModelConfig(3072, 8192, 32, 24, 8, 128, 200064, 1e-5, 1e4, None, 4096, True, "phi3", rotary_dim=96,
                              rotary_scale=(1 + math.log(32) / math.log(4096)) ** 0.5),
}  # fmt: skip


SMALL = {  # family: what its checkpoints choose, at the size of `tiny`
    "gemma3": dict(embedding_scale=32**0.5, attention_scale=0.3, window=5, local_layers=(0,), local_rope_theta=1e3),
    "mistral": dict(window=5, local_layers=(0, 1)),
    "smollm3": dict(unrotated_layers=(1,)),
    "phi3": dict(rotary_dim=6),
}


def tiny(family: str = "llama", **changes) -> ModelConfig:
    """A very small model of a family, for tests and experiments of a few milliseconds. Grouped-query attention, except
    for GPT-2."""
    own = FAMILIES[family] | SMALL.get(family, {})
    small = ModelConfig(32, 64, 2, 4, 4 if family == "gpt2" else 2, 8, 97, 1e-5, 1e4, None, 256, True, **own)
    return replace(small, **changes)
