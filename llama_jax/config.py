"""Model configuration: a frozen, hashable value with Hugging Face's field names, and one line a preset."""

from __future__ import annotations

from dataclasses import dataclass, replace

import jax


@dataclass(frozen=True)
class RopeScaling:
    """How rotary frequencies are stretched beyond the trained context.

    kind: "linear" (all frequencies divided by `factor`), "llama3" (Llama 3.1's piecewise rule:
    https://github.com/meta-llama/llama-models, `apply_scaling`) or "factors" (one divisor a frequency, as
    GGUF's `rope_freqs.weight` stores them).
    """

    kind: str
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position_embeddings: int = 8192
    factors: tuple[float, ...] = ()


@jax.tree_util.register_static
@dataclass(frozen=True)
class ModelConfig:
    """Shape of one Llama-architecture transformer. Static under `jax.jit`: a new value is a new program."""

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int
    rms_norm_eps: float = 1e-5
    rope_theta: float = 10_000.0
    rope_scaling: RopeScaling | None = None
    max_position_embeddings: int = 2048
    tie_word_embeddings: bool = False

    @property
    def parameters_per_layer(self) -> int:
        """Number of weights in one layer, norms included."""
        attention = self.hidden_size * self.head_dim * (2 * self.num_attention_heads + 2 * self.num_key_value_heads)
        return attention + 3 * self.hidden_size * self.intermediate_size + 2 * self.hidden_size

    @property
    def num_parameters(self) -> int:
        """Number of weights, a tied embedding counted once."""
        tables = self.vocab_size * self.hidden_size * (1 if self.tie_word_embeddings else 2)
        return self.num_hidden_layers * self.parameters_per_layer + tables + self.hidden_size

    @property
    def weights_read_per_token(self) -> int:
        """Number of weights one decode step must read: every layer, the final norm, the head (not the embedding table)."""
        return (self.num_hidden_layers * self.parameters_per_layer
                + self.vocab_size * self.hidden_size + self.hidden_size)  # fmt: skip

    def kv_bytes_per_position(self, itemsize: int = 4) -> int:
        """Bytes of keys *and* values that one position of one sequence occupies."""
        return 2 * self.num_hidden_layers * self.num_key_value_heads * self.head_dim * itemsize


LLAMA_3_SCALING = RopeScaling("llama3", 32.0, 1.0, 4.0, 8192)

PRESETS: dict[str, ModelConfig] = {
    # name: hidden, ffn, layers, heads, kv heads, head size, vocabulary
    "smollm2-135m": ModelConfig(576, 1536, 30, 9, 3, 64, 49152, 1e-5, 1e5, None, 8192, True),
    "smollm2-360m": ModelConfig(960, 2560, 32, 15, 5, 64, 49152, 1e-5, 1e5, None, 8192, True),
    "smollm2-1.7b": ModelConfig(2048, 8192, 24, 32, 32, 64, 49152, 1e-5, 1.3e5, None, 8192, True),
    "llama-2-7b": ModelConfig(4096, 11008, 32, 32, 32, 128, 32000, 1e-5, 1e4, None, 4096, False),
    "llama-3.2-1b": ModelConfig(2048, 8192, 16, 32, 8, 64, 128256, 1e-5, 5e5, LLAMA_3_SCALING, 131072, True),
    "llama-3.2-3b": ModelConfig(3072, 8192, 28, 24, 8, 128, 128256, 1e-5, 5e5, LLAMA_3_SCALING, 131072, True),
}


def tiny(**changes) -> ModelConfig:
    """A very small model with grouped-query attention, for tests and experiments of a few milliseconds."""
    return replace(ModelConfig(32, 64, 2, 4, 2, 8, 97, 1e-5, 1e4, None, 256, True), **changes)
