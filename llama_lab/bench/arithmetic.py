"""A subject's arithmetic, beyond the dtype of its floats."""

from __future__ import annotations

from dataclasses import dataclass, replace

from llama_jax.placement import LADDER, Placement
from llama_jax.quantise import FORMS

PLAIN = "none"  # the text of an arithmetic that is nothing but its dtype
KERNELS = ("gemv", "fused")
FLOATS = {"float32": "f32", "bfloat16": "bf16"}


@dataclass(frozen=True)
class Arithmetic:
    """A record's `quantisation` is its text: the parts that are not the plain ones, joined by a plus, such as
    `gguf+gemv` or `kv-int8`; PLAIN for none.

    form: of quantised weights, one of FORMS; for a peer its own name, such as `gguf-q4_1` or `int8-dynamic`.
    kernels: one of KERNELS. kv: what keys and values are kept as. Each is "" if it is the plain one.
    """

    form: str = ""
    kernels: str = ""
    kv: str = ""

    def __str__(self) -> str:
        return "+".join(filter(None, (self.form, self.kernels, self.kv and f"kv-{self.kv}"))) or PLAIN

    @classmethod
    def read(cls, text: str) -> Arithmetic:
        parts = [part for part in text.split("+") if part != PLAIN]
        kernels = next((part for part in parts if part in KERNELS), "")
        kv = next((part.removeprefix("kv-") for part in parts if part.startswith("kv-")), "")
        form = next((part for part in parts if part not in KERNELS and not part.startswith("kv-")), "")
        return cls(form, kernels, kv)

    @classmethod
    def of_placement(cls, placement: Placement, form: str | None) -> Arithmetic:
        """form: of the weights that it computes on, None if they are floats."""
        kernels = "" if placement.kernels == PLAIN else placement.kernels
        return cls(form or "", kernels, "" if placement.kv == "loaded" else placement.kv)

    @property
    def is_approximate(self) -> bool:
        """Whether its subject need not make the reference's tokens, as another program computes on quantised blocks."""
        return self.form.startswith(("gguf-", "int8-"))

    def step(self, dtype: str) -> Placement:
        """The `step` placement that computes so. dtype: of the floats."""
        weights = self.form if self.form in FORMS else FLOATS[dtype]
        return replace(LADDER["step"], weights=weights, kernels=self.kernels or PLAIN, kv=self.kv or "loaded")
