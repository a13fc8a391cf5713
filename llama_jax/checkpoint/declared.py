"""What a Hugging Face folder, a GGUF header or the changes of a preset may say about a model's shape.

Each has its own names for the same fields (`shape`).
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, model_validator

from llama_jax.config import FAMILIES, ModelConfig, RopeScaling
from llama_jax.plumbing.boundary import Declared
from llama_jax.plumbing.values import shown

Size = Annotated[int, Field(ge=1, le=1 << 20)]
Factor = Annotated[float, Field(gt=0, le=1e12)]
Length = Annotated[int, Field(ge=1, lt=1 << 31)]  # positions are int32

Shard = Annotated[str, Field(pattern=r"^[\w.-]+\.safetensors$")]  # beside the index, nowhere else


class Rope(Declared):
    """Rotary positions, as `rope_parameters` (transformers 5) or `rope_scaling` (4) gives them. Every other field would
    scale positions, so it is refused."""

    model_config = ConfigDict(extra="allow")

    rope_type: Literal["default", "linear", "llama3"] | None = None
    type: Literal["default", "linear", "llama3"] | None = None
    rope_theta: Factor | None = None
    factor: Factor | None = None
    low_freq_factor: Factor | None = None
    high_freq_factor: Factor | None = None
    original_max_position_embeddings: Length | None = None

    @model_validator(mode="before")
    @classmethod
    def flat(cls, value: Any) -> Any:
        """Settings nested by layer type, if all layers have one type."""
        return value["full_attention"] if isinstance(value, dict) and [*value] == ["full_attention"] else value

    @model_validator(mode="after")
    def complete(self) -> Rope:
        if self.rope_type and self.type and self.rope_type != self.type:
            raise ValueError(f"rope_type is {self.rope_type!r} and type is {self.type!r}; keep one of them")
        needed = {"linear": ("factor",), "llama3": LLAMA_3}.get(self.kind, ())
        for field in needed:
            if getattr(self, field) is None:
                raise ValueError(f"RoPE scaling {self.kind!r} needs a {field}")
        given = {field: getattr(self, field) for field in LLAMA_3[:3]} | self.model_extra
        for field in given.keys() - {*needed, "finetuned"}:
            if given[field] not in (None, 1):
                raise ValueError(f"RoPE scaling {self.kind!r} has no {field}, which is {shown(given[field])}")
        if self.kind == "llama3" and self.low_freq_factor >= self.high_freq_factor:
            raise ValueError("low_freq_factor must be less than high_freq_factor")
        return self

    @property
    def kind(self) -> str:
        return self.rope_type or self.type or "default"

    def scaling(self) -> RopeScaling | None:
        if self.kind == "llama3":
            return RopeScaling("llama3", *(getattr(self, field) for field in LLAMA_3))
        return RopeScaling("linear", self.factor) if self.kind == "linear" and self.factor != 1 else None


LLAMA_3 = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")


class Split(Declared):
    """The header of one file of several, as llama.cpp's `gguf-split` writes it."""

    no: Annotated[int, Field(ge=0)] = Field(0, alias="split.no")
    count: Annotated[int, Field(ge=0, lt=1 << 16)] = Field(1, alias="split.count")
    tensors: int | None = Field(None, alias="split.tensors.count")


class Shape(Declared):
    """The fields of a ModelConfig that a checkpoint chooses."""

    hidden_size: Size
    intermediate_size: Size
    num_hidden_layers: Annotated[int, Field(ge=1, le=10_000)]
    num_attention_heads: Size
    num_key_value_heads: Size | None = None
    head_dim: Size | None = None
    vocab_size: Annotated[int, Field(ge=1, le=1 << 24)]
    norm_eps: Annotated[float, Field(ge=0, le=1)]
    max_position_embeddings: Length
    tie_word_embeddings: bool = False

    @model_validator(mode="after")
    def heads_fit(self) -> Shape:
        heads, shared = self.num_attention_heads, self.num_key_value_heads or self.num_attention_heads
        if heads % shared:
            raise ValueError(f"{heads} query heads cannot share {shared} key heads evenly")
        if self.head_dim is None and self.hidden_size % heads:
            raise ValueError(f"{heads} heads cannot share a width of {self.hidden_size} evenly")
        return self

    @property
    def head_size(self) -> int:
        return self.head_dim or self.hidden_size // self.num_attention_heads

    def config(self, family: str, rope_scaling: RopeScaling | None = None) -> ModelConfig:
        fields = {name: getattr(self, name) for name in type(self).model_fields if name in Rotary.model_fields} | dict(
            intermediate_size=self.intermediate_size or 4 * self.hidden_size,
            num_key_value_heads=self.num_key_value_heads or self.num_attention_heads,
            head_dim=self.head_size,
            rope_scaling=rope_scaling,
        )
        return ModelConfig(**FAMILIES[family] | fields | self.features())

    def features(self) -> dict:
        """Fields of a ModelConfig that a checkpoint of this family chooses in addition to its sizes."""
        return {}


class Rotary(Shape):
    rope_theta: Factor = 10_000.0

    @model_validator(mode="after")
    def pairs(self) -> Rotary:
        if self.head_size % 2:
            raise ValueError(f"rotary positions turn pairs of numbers, and a head has {self.head_size}")
        return self


class Learned(Shape):
    """GPT-2's, whose feed-forward network is by default four times as wide as the rest."""

    intermediate_size: Size | None = None
