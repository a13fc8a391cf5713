"""One-sentence answers, computed from records. What the data do not decide, the sentence does not claim."""

from llama_jax.bench.findings.jit import growth

__all__ = ["growth", ]  # fmt: skip
