"""What a checkpoint of each family chooses in addition to its sizes. Both formats have their own names for these fields
(`huggingface.NAMES`, `gguf.KEYS`)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache
from typing import Annotated, Literal

from pydantic import Field, model_validator

from llama_jax.checkpoint.declared import Factor, Learned, Length, Rotary, Shape, Size
from llama_jax.config import RopeScaling

Period = Annotated[int, Field(ge=1, le=10_000)]
Kind = Literal["full_attention", "sliding_attention"]


class Biased(Rotary):
    """Llama's, Qwen3's: attention may have biases."""

    attention_bias: bool = False

    def features(self) -> dict:
        return dict(qkv_bias=True, o_bias=True) if self.attention_bias else {}


class Windowed(Rotary):
    """Mistral's: no layer looks back further than a window, which has no effect if it equals the context."""

    window: Length | None = None

    def features(self) -> dict:
        if self.window is None or self.window >= self.max_position_embeddings:
            return {}
        return dict(window=self.window, local_layers=tuple(range(self.num_hidden_layers)))


class PartlyRotated(Biased):
    """SmolLM3's: every fourth layer rotates nothing."""

    no_rope_layers: list[Literal[0, 1]] | None = None  # 1: that layer rotates
    no_rope_layer_interval: Period = 4

    @model_validator(mode="after")
    def one_a_layer(self) -> PartlyRotated:
        if self.no_rope_layers and len(self.no_rope_layers) < self.num_hidden_layers:
            raise ValueError(f"no_rope_layers has {len(self.no_rope_layers)} of {self.num_hidden_layers} layers")
        return self

    def features(self) -> dict:
        layers = range(self.num_hidden_layers)
        if self.no_rope_layers:
            still = tuple(i for i in layers if not self.no_rope_layers[i])
        else:
            still = tuple(i for i in layers if (i + 1) % self.no_rope_layer_interval == 0)
        return super().features() | dict(unrotated_layers=still)


class Alternating(Biased):
    """Gemma 3's: all layers but every sixth are local, with their own rotary base; the embedding is scaled."""

    window: Length | None = None
    layer_types: list[Kind] | None = None
    period: Period | list[bool] = 6  # of layers, the last of which sees all; or whether each layer is local
    local_rope_theta: Factor = 10_000.0
    attention_scalar: Factor | None = None

    @model_validator(mode="after")
    def one_a_layer(self) -> Alternating:
        for name in ("layer_types", "period"):
            if isinstance(each := getattr(self, name), list) and len(each) != self.num_hidden_layers:
                raise ValueError(f"{name} has {len(each)} layers, the model {self.num_hidden_layers}")
        return self

    def features(self) -> dict:
        def is_local(i: int) -> bool:
            if self.layer_types:
                return self.layer_types[i] == "sliding_attention"
            return self.period[i] if isinstance(self.period, list) else (i + 1) % self.period > 0

        local = tuple(filter(is_local, range(self.num_hidden_layers))) if self.window else ()
        scalar = self.attention_scalar or self.usual_scalar
        near = dict(window=self.window, local_layers=local, local_rope_theta=self.local_rope_theta) if local else {}
        scale = {} if scalar == self.head_size else dict(attention_scale=scalar**-0.5)
        return super().features() | near | scale | dict(embedding_scale=self.hidden_size**0.5)

    @property
    def usual_scalar(self) -> float:
        """Values that a GGUF file omits: only the largest model, with 62 layers, differs."""
        return self.hidden_size / self.num_attention_heads if self.num_hidden_layers == 62 else self.head_size


class LongRope(Windowed):
    """Phi-3's and Phi-4-mini's: a part of each head is rotated, and LongRoPE divides the frequencies. It has other
    divisors beyond the training context, which is therefore the model's context here."""

    rotary_dim: Size | None = None
    partial_rotary_factor: Annotated[float, Field(gt=0, le=1)] | None = None
    original_max_position_embeddings: Length | None = None
    short_factor: Annotated[list[Factor], Field(max_length=1 << 16)] | None = None
    attention_factor: Factor | None = None

    @property
    def rotated(self) -> int:
        return self.rotary_dim or int(self.head_size * (self.partial_rotary_factor or 1))

    @model_validator(mode="after")
    def rotates_pairs(self) -> LongRope:
        if self.rotated % 2 or not 0 < self.rotated <= self.head_size:
            raise ValueError(f"{self.rotated} numbers of a head of {self.head_size} cannot be rotated in pairs")
        if self.short_factor and len(self.short_factor) != self.rotated // 2:
            raise ValueError(f"short_factor has {len(self.short_factor)} divisors, not {self.rotated // 2}")
        if self.short_factor and not self.original_max_position_embeddings:
            raise ValueError("RoPE scaling 'longrope' needs an original_max_position_embeddings")
        return self

    def features(self) -> dict:
        part = dict(rotary_dim=self.rotated) if self.rotated < self.head_size else {}
        if not self.short_factor:
            return super().features() | part
        original, context = self.original_max_position_embeddings, self.max_position_embeddings
        scale = self.attention_factor
        if scale is None:
            scale = math.sqrt(1 + math.log(context / original) / math.log(original)) if context > original else 1.0
        near = super().features() if (self.window or original) < original else {}
        divisors = RopeScaling("factors", factors=tuple(self.short_factor)) if set(self.short_factor) != {1.0} else None
        return near | part | dict(
            rope_scaling=divisors, rotary_scale=scale, max_position_embeddings=min(original, context)
        )  # fmt: skip


SHAPES: dict[str, type[Shape]] = {
    "llama": Biased,
    "qwen2": Rotary,
    "gpt2": Learned,
    "qwen3": Biased,
    "gemma3": Alternating,
    "mistral": Windowed,
    "smollm3": PartlyRotated,
    "phi3": LongRope,
}


def shape(family: str, names: Mapping[str, str] | None = None) -> type[Shape]:
    """A family's declarations under another format's names: field → name; others stay."""
    return named(family, tuple((names or {}).items()))


@cache
def named(family: str, names: tuple[tuple[str, str], ...]) -> type[Shape]:
    """As `shape`; a class takes milliseconds to make."""

    class Named(SHAPES[family], alias_generator=lambda field: dict(names).get(field, field)):
        pass

    return Named
