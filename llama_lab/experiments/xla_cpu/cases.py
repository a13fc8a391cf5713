"""What XLA:CPU makes of the pieces of a decode step: each finding as two programs of a few lines that compute the same
numbers.

Everything is told by the compiled program (bytes of temporaries, instructions of the optimised HLO), which is the same
on each machine with the same jaxlib; what it costs is measured by `measure`. Shapes are those of SmolLM2-135M, unless a
finding says why not. The rule behind `int8 product` and `transposed rows` is CpuInstructionFusion::ShouldFuse in
https://github.com/openxla/xla/blob/main/xla/service/cpu/cpu_instruction_fusion.cc.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import jax
import jax.numpy as jnp
from jax import lax

V, D, F = 49152, 576, 1536  # vocabulary, model, feed-forward
K, H, S = 3, 64, 2048  # key heads and their size, slots of the cache
L, MANY, FEW, TOKENS = 30, 12, 2, 8  # layers that have a cache, that are scanned, that are converted for so many tokens
LONG = 4096  # the shortest row whose vector, 16 KiB of float32, is not fused any more
ROWS = ((1,), (1,)), ((), ())  # x [1 K] and w [N K]: both are contracted over their second axis


@dataclass(frozen=True)
class Program:
    """function(*bring(*base)), called `calls` times for one unit of work.

    feeds: its first output is the first argument of the next call. donated: that argument is given away.
    """

    words: str
    function: Callable
    bring: Callable[..., tuple] = lambda *base: base
    calls: int = 1
    feeds: bool = False
    donated: bool = False

    def compiled(self, base: tuple) -> jax.stages.Compiled:
        """The program for arguments of these shapes; `base` may hold shapes alone."""
        shapes = jax.eval_shape(self.bring, *base)
        return jax.jit(self.function, donate_argnums=(0,) if self.donated else ()).lower(*shapes).compile()


@dataclass(frozen=True)
class Finding:
    """slow and fast compute the same numbers from base(key). evidence(compiled, calls): of a program, in `unit`."""

    name: str
    claim: str
    base: Callable[[jax.Array], tuple]
    slow: Program
    fast: Program
    evidence: Callable[[jax.stages.Compiled, int], int]
    unit: str = "bytes of temporaries"

    def shapes(self) -> tuple:
        return jax.eval_shape(self.base, jax.random.key(0))


# What a compiled program shows ----------------------------------------------------------------------------------------


def temporaries(compiled: jax.stages.Compiled, calls: int = 1) -> int:
    """Bytes that a call needs beside its arguments and results."""
    return compiled.memory_analysis().temp_size_in_bytes


def computations(text: str) -> dict[str, list[str]]:
    """The instructions of each computation of an HLO text; the entry is called ENTRY."""
    lines = text.splitlines()
    heads = [i for i, line in enumerate(lines) if re.match(r"(ENTRY )?%?[\w.-]+ \(.*\{$", line)]
    names = ["ENTRY" if lines[i].startswith("ENTRY") else lines[i].split()[0].lstrip("%") for i in heads]
    return {name: lines[a + 1 : b] for name, (a, b) in zip(names, pairwise([*heads, len(lines)]), strict=True)}


def times(compiled: jax.stages.Compiled, op: str, elements: int, trips: int = 1) -> int:
    """How often a call runs an `op` of so many elements; what is in its only loop's body runs `trips` times."""
    parts = computations(compiled.as_text())
    bodies = {name for lines in parts.values() for line in lines for name in re.findall(r"body=%?([\w.-]+)", line)}

    def within(name: str) -> int:
        text = "\n".join(parts[name])
        shapes = re.findall(rf" = \w+\[([\d,]*)\]\S* {op}\(", text)
        own = sum(math.prod(int(n) for n in shape.split(",") if n) == elements for shape in shapes)
        return own + sum(map(within, re.findall(r" calls=%?([\w.-]+)", text)))

    return within("ENTRY") + trips * sum(map(within, bodies))


# The programs ---------------------------------------------------------------------------------------------------------


def normal(key: jax.Array, *shape: int) -> jax.Array:
    """Random numbers with a mean square of 1/columns, so that products stay of one size."""
    return jax.random.normal(key, shape) * shape[-1] ** -0.5


def wide(x, w):
    """x [1 K], w [N K] of any type, as one usually writes it."""
    return lax.dot_general(x, w.astype(x.dtype), ROWS)


def as_vector(x, w):
    """The same product, of a vector and a transposed matrix."""
    return (x[0] @ w.astype(x.dtype).T)[None]


def narrow(x, w):
    """A product of bfloat16 numbers, summed in float32."""
    return lax.dot_general(x.astype(w.dtype), w, ROWS, preferred_element_type=jnp.float32)


def layer(product: Callable, x, up, down):
    return jnp.tanh(x + product(jnp.tanh(product(x, up)), down))


def step(x, ups, downs):
    for up, down in zip(ups, downs, strict=True):
        x = layer(narrow, x, up, down)
    return x


def loop(x, ups, downs):
    return lax.scan(lambda x, _: (step(x, ups, downs), None), x, length=TOKENS)[0]


def apart(x, ups, downs):
    for up, down in zip(ups, downs, strict=True):
        x = layer(wide, x, up, down)
    return x


def scanned(x, ups, downs):
    return lax.scan(lambda x, w: (layer(wide, x, *w), None), x, (ups, downs))[0]


def attend(x, keys):
    """One token's query heads [K H] over a layer's keys [K S H]."""
    return jnp.tanh(x + jnp.einsum("ks,ksh->kh", jnp.einsum("kh,ksh->ks", x, keys), keys))


def entries(caches, x):
    """A scan over layers that takes each layer's cache and hands it back."""

    def one(x, keys):
        keys = lax.dynamic_update_slice(keys, x[:, None], (0, 1, 0))
        return attend(x, keys), keys

    x, caches = lax.scan(one, x, caches)
    return caches, x


def carried(caches, x):
    """The same scan; the cache is carried, and only the new position is written."""

    def one(state, i):
        caches, x = state
        caches = lax.dynamic_update_slice(caches, x[None, :, None], (i, 0, 1, 0))
        return (caches, attend(x, caches[i])), None

    return lax.scan(one, (caches, x), jnp.arange(len(caches)))[0]


def scores_of_two_axes(keys, new, q):
    """keys [1 K S H]: a batch of one row, the way a cache is usually laid out."""
    keys = lax.dynamic_update_slice(keys, new, (0, 0, 1, 0))
    return keys, jnp.einsum("bkgh,bksh->bkgs", q, keys)


def scores_of_one_axis(keys, new, q):
    """keys [K S H]: batch rows and key heads are one axis."""
    keys = lax.dynamic_update_slice(keys, new, (0, 1, 0))
    return keys, jnp.einsum("kgh,ksh->kgs", q, keys)


def reduced(x, w):
    """A product as multiply and reduce, which is fused with the conversion."""
    return (x * w.astype(x.dtype)).sum(-1)


def two_products(x, gate, up):
    return reduced(x, gate), reduced(x, up)


def one_product(x, both):
    both = reduced(x, both)
    return both[:F], both[F:]


# The findings ---------------------------------------------------------------------------------------------------------


def matrix(rows: int, columns: int, dtype) -> Callable[[jax.Array], tuple]:
    """x [1 columns] and w [rows columns] that the type holds exactly."""

    def base(key):
        x, w = normal(key, 1, columns).astype(jnp.bfloat16), normal(key, rows, columns)
        w = jnp.round(w * columns**0.5 * 30) if dtype == jnp.int8 else w
        return x.astype(jnp.float32), w.astype(dtype)

    return base


def layers(count: int, dtype) -> Callable[[jax.Array], tuple]:
    """x [1 D], and up [count F D] and down [count D F] of layers."""
    return lambda key: (normal(key, 1, D), *(normal(key, count, *s).astype(dtype) for s in ((F, D), (D, F))))


def unstacked(x, ups, downs) -> tuple:
    return x, tuple(ups), tuple(downs)


FINDINGS = (
    Finding(
        "bfloat16 product",
        "A bfloat16 dot writes its whole weight to memory as float32 on each call, and then reads that.",
        matrix(V, D, jnp.bfloat16),
        Program("dot, bfloat16 weight", narrow),
        Program("dot, float32 weight", wide, lambda x, w: (x, w.astype(jnp.float32))),
        temporaries,
    ),
    Finding(
        "int8 product",
        "A weight's conversion is fused into a dot of a vector, and not into the same dot of a matrix with one row.",
        matrix(V, D, jnp.int8),
        Program("[1 K] times w", wide),
        Program("[K] times w transposed", as_vector),
        temporaries,
    ),
    Finding(
        "transposed rows",
        "From rows of 4,096 numbers on, x @ w.T writes the transposed weight to memory before the product.",
        matrix(F, LONG, jnp.float32),
        Program("x @ w.T", as_vector),
        Program("dot over both last axes", wide),
        temporaries,
    ),
    Finding(
        "conversion once a call",
        "A program of one token converts its weights for each token; a program of many tokens, once.",
        layers(FEW, jnp.bfloat16),
        Program(f"{TOKENS} calls of one token", step, unstacked, calls=TOKENS, feeds=True),
        Program(f"one call of {TOKENS} tokens", loop, unstacked),
        lambda compiled, calls: calls * times(compiled, "convert", F * D, TOKENS),
        "weights converted for 8 tokens",
    ),
    Finding(
        "cache in a scan",
        "A scan that takes and returns each layer's cache copies all of it, although it is donated.",
        lambda key: (normal(key, L, K, S // 4, H), normal(key, K, H)),
        Program("caches in, caches out", entries, feeds=True, donated=True),
        Program("cache carried", carried, feeds=True, donated=True),
        temporaries,
    ),
    Finding(
        "weights in a scan",
        "A scan over stacked weights copies each layer's matrix before it multiplies by it.",
        layers(MANY, jnp.float32),
        Program("scan over layers", scanned),
        Program("layers unrolled", apart, unstacked),
        temporaries,
    ),
    Finding(
        "cache of one row",
        "A donated cache with a batch axis of one is copied at each step; without it, updated in place.",
        lambda key: (normal(key, 1, K, S, H), normal(key, 1, K, 1, H), normal(key, 1, K, 3, H)),
        Program("keys [1 K S H]", scores_of_two_axes, feeds=True, donated=True),
        Program("keys [K S H]", scores_of_one_axis, lambda *base: tuple(a[0] for a in base), feeds=True, donated=True),
        lambda compiled, calls: times(compiled, "copy", K * S * H),
        "copies of the cache",
    ),
    Finding(
        "shared vector",
        "A vector that two multiply-and-reduce products read is first written out as often as the weight has rows.",
        lambda key: (normal(key, D), *normal(key, 2, F, D).astype(jnp.bfloat16)),
        Program("two products of x", two_products),
        Program("one product, result cut in two", one_product, lambda x, *both: (x, jnp.concatenate(both))),
        temporaries,
    ),
)
