"""Where a token's time goes under pure XLA: the loop over tokens, whole and with one part of the model left out at a
time.

What a part costs is the time that its absence saves, all variants interleaved in one process. A variant computes other
numbers than the model, and no text; its weights are read as the model reads them.
`python -m llama_lab.experiments.xla_cpu.account` prints the table.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from llama_jax import checkpoint, transforms
from llama_jax.checkpoint import Checkpoint
from llama_jax.config import ModelConfig
from llama_jax.linear import linear
from llama_jax.placement import LADDER, parse
from llama_lab.bench.workload import shuffled

WHOLE, PRODUCTS, NOTHING = "whole", "products alone", "no product"
SMALL = 0.05  # stands for a norm: keeps the numbers finite
MODEL, SLOTS, TOKENS, ROUNDS = checkpoint.DEFAULT, 192, 12, 6


def without_attention(params, x, where, entry):
    """Both products, nothing between them. The barrier keeps the rows of keys and values in the first."""
    made = lax.optimization_barrier(linear(x, params.qkv, params.qkv_bias))
    return linear(made[..., : params.o.shape[1]], params.o, params.o_bias), entry


NO_ATTENTION = {"attend": without_attention}
NO_NORM = {"norm": lambda params, x: x * SMALL}
NO_FFN = {"ffn": lambda params, x: x}
NO_HEAD = {"head": lambda params, vocabulary, x: x.astype(jnp.float32)}
PARTS: dict[str, dict[str, Callable]] = {  # a variant → what stands in the place of the tree's nodes
    WHOLE: {},
    "no attention between its products": NO_ATTENTION,
    "no norms": NO_NORM,
    "no rotary embedding": {"rope": lambda x, cos, sin: x},
    "no feed-forward": NO_FFN,
    "no head": NO_HEAD,
    PRODUCTS: NO_ATTENTION | NO_NORM,
    NOTHING: {"attend": lambda params, x, where, entry: (x, entry)} | NO_FFN | NO_HEAD | NO_NORM,
}


def tokens_loop(config: ModelConfig, replaced: dict[str, Callable]) -> Callable:
    """(params, token [1], cache, n) → (token, cache) after n greedy tokens in one `lax.while_loop`."""
    transform, _ = transforms.tree(config, LADDER["loop"], lambda name, function: replaced.get(name, function))

    def run(params, token, cache, n):
        def body(state):
            made, token, cache = state
            logits, cache = transform(params, token[:, None], cache)
            return made + 1, jnp.argmax(logits, axis=-1).astype(jnp.int32), cache

        return lax.while_loop(lambda state: state[0] < n, body, (jnp.int32(0), token, cache))[1:]

    return run


def measured(loaded: Checkpoint, placement: str, rounds: int = ROUNDS, tokens: int = TOKENS) -> dict[str, list[float]]:
    """Variant → milliseconds a token of each round, in seeded random order; every variant starts from an empty cache
    of SLOTS. placement: `loop` or `loop+bf16`."""
    chosen = parse(placement)
    params, token = transforms.prepare(loaded.params, chosen), jnp.zeros(1, jnp.int32)
    cache = transforms.new_cache(params, jnp.zeros(1, jnp.int32), SLOTS, loaded.config, chosen)
    programs = {name: jax.jit(tokens_loop(loaded.config, PARTS[name])) for name in PARTS}
    for program in programs.values():
        jax.block_until_ready(program(params, token, cache, tokens))
    times: dict[str, list[float]] = {name: [] for name in PARTS}
    for number in range(rounds):
        for name in shuffled(list(PARTS), 0, number):
            began = time.perf_counter()
            jax.block_until_ready(programs[name](params, token, cache, tokens))
            times[name].append((time.perf_counter() - began) / tokens * 1e3)
    return times


def main() -> None:
    """Print one line per variant and form of weights: median and lower quartile, ms per token, and rounds."""
    loaded = checkpoint.load(MODEL)
    for placement in ("loop", "loop+bf16"):
        for name, ms in measured(loaded, placement).items():
            print(f"{placement},{name},{np.median(ms):.2f},{np.percentile(ms, 25):.2f},{len(ms)}", flush=True)


if __name__ == "__main__":
    main()
