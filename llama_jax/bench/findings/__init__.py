"""One-sentence answers, computed from records. What the data do not decide, the sentence does not claim."""

from llama_jax.bench.findings.extraction import extraction
from llama_jax.bench.findings.jit import flax_twin, gain, growth, host_loop
from llama_jax.bench.findings.own import own_placement
from llama_jax.bench.findings.peers import first_token, gpu
from llama_jax.bench.findings.precision import precision

__all__ = ["extraction", "first_token", "flax_twin", "gain", "gpu", "growth", "host_loop",
           "own_placement", "precision", ]  # fmt: skip
