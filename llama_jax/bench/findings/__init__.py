"""One-sentence answers, computed from records. What the data do not decide, the sentence does not claim."""

from llama_jax.bench.findings.jit import growth
from llama_jax.bench.findings.own import own_placement

__all__ = ["growth", "own_placement", ]  # fmt: skip
