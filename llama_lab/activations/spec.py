"""What to extract: sites in the model, positions in each example, and the stored type."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Annotated, NamedTuple

import jax.numpy as jnp
import numpy as np
from pydantic import BeforeValidator

from llama_jax.config import ModelConfig
from llama_jax.plumbing.errors import UserError, near
from llama_jax.plumbing.values import integer, plain, shown

OF_A_LAYER = ("resid_pre", "q", "k", "v", "pattern", "attn_out", "resid_mid", "mlp_out", "resid_post")
OF_THE_MODEL = ("ln_final", "logits")
SITES = (*OF_A_LAYER, *OF_THE_MODEL)
DTYPES = ("bfloat16", "float16", "float32")
ROW_LIMIT = 256 * 1024  # bytes of one token; attention patterns and logits soon exceed it

MOST = 1 << 16  # numbers in a list of layers or positions, and sites
Layers = int | Iterable[int] | str | None
Whole = Annotated[int, BeforeValidator(plain)]  # NumPy's too


class Site(NamedTuple):
    """One point of the model, written `resid_post:3`; `layer` is None for those after the last layer."""

    name: str
    layer: int | None = None

    def __str__(self) -> str:
        return self.name if self.layer is None else f"{self.name}:{self.layer}"


@dataclass(frozen=True)
class ActivationSpec:
    """Which activations, of which tokens, stored as which type. Hashable: equal specs make equal stores.

    sites: (name, layers) each: layers a number, several, a range or "all"; negative ones count from the end; None for
        "ln_final" (the final norm's output) and "logits". q, k and v are taken before rotation, `pattern` is the
        attention weights.
    positions: "all" tokens of an example, its "last", or a tuple of numbers, negative ones from its end.
    dtype: "bfloat16", "float16" or "float32". The model computes in the dtype of its own weights.
    Raises UserError for an unknown site, position or dtype.
    """

    sites: tuple[tuple[str, Layers], ...]
    positions: str | tuple[int, ...] = "all"
    dtype: str = "bfloat16"

    def __post_init__(self):
        if not isinstance(self.sites, str | Iterable):
            raise UserError(f"sites is {shown(self.sites)}; name some, such as resid_post:3,7.")
        pairs = parse_sites(self.sites) if isinstance(self.sites, str) else itertools.islice(self.sites, MOST)
        object.__setattr__(self, "sites", tuple(map(checked, pairs)))
        if not self.sites:
            raise UserError("No sites are asked for; name some, such as resid_post:3,7.")
        if not (isinstance(self.positions, str) and self.positions in ("all", "last")):
            if not (numbers := whole(self.positions)):
                raise UserError(f"positions is {shown(self.positions)}; it must be 'all', 'last' or whole numbers.")
            object.__setattr__(self, "positions", tuple(sorted(set(numbers), key=lambda p: (p < 0, p))))
        if not (isinstance(self.dtype, str) and self.dtype in DTYPES):
            raise UserError(f"dtype is {shown(self.dtype)}; activations are kept as {', '.join(DTYPES)}.")

    def resolve(self, config: ModelConfig) -> tuple[Site, ...]:
        """Every site in the model's order, each once. Raises UserError for a layer that the model lacks."""
        depth, sites = config.num_hidden_layers, set()
        for name, layers in self.sites:
            for layer in range(depth) if layers == "all" else layers or (None,):
                if layer is not None and not -depth <= layer < depth:
                    raise UserError(f"{name}:{layer} is asked for; the model has layers 0 to {depth - 1}.")
                sites.add(Site(name, None if layer is None else layer % depth))
        return tuple(sorted(sites, key=lambda s: (depth if s.layer is None else s.layer, SITES.index(s.name))))

    def kept(self, length: int) -> np.ndarray:
        """Indices int64 of the kept tokens of an example with this many tokens, ascending."""
        if self.positions == "all":
            return np.arange(length)
        wanted = (-1,) if self.positions == "last" else self.positions
        return np.array(sorted({p % length for p in wanted if -length <= p < length}) if length else [], np.int64)

    @property
    def itemsize(self) -> int:
        return jnp.dtype(self.dtype).itemsize


def checked(site) -> tuple[str, Layers]:
    """One entry of `ActivationSpec.sites`, its layers as a hashable value: None, "all" or numbers in the order
    given."""
    name, layers = site if isinstance(site, tuple | list) and len(site) == 2 else (site, None)
    if not (isinstance(name, str) and name in SITES):
        raise UserError(f"No such site: {shown(name)}.{near(str(name)[:60], SITES)}")
    if (layers is None) != (name in OF_THE_MODEL):
        wrong = "belongs to no layer" if layers is not None else f"needs layers, such as {name}:3,7"
        raise UserError(f"Site {name} {wrong}.")
    if layers is None or (isinstance(layers, str) and layers == "all"):
        return name, layers
    if not (numbers := whole(layers)):
        raise UserError(f"Layers of {name} are {shown(layers)}; give whole numbers, a range or 'all'.")
    return name, numbers


def whole(value) -> tuple[int, ...]:
    """One whole number, or several, as a tuple; an empty one for anything else, and for more than `MOST`."""
    several = isinstance(value, Iterable) and not isinstance(value, str) and getattr(value, "ndim", 1)
    numbers = tuple(map(integer, itertools.islice(value, MOST + 1) if several else (value,)))
    return numbers if len(numbers) <= MOST and None not in numbers else ()


def parse_sites(text: str) -> Iterable[tuple[str, Layers]]:
    """Sites as a command line has them: `resid_post:3,7 mlp_out:0-5 q:all ln_final`; commas, semicolons or spaces part
    them."""
    sites: list[tuple[str, list[str]]] = []
    for word in filter(None, re.split(r"[\s,;]+", text)):
        name, colon, layer = word.partition(":")
        if colon or name in SITES or not (sites and sites[-1][1]):
            sites.append((name, [layer] if colon else []))
        else:
            sites[-1][1].append(word)
    return ((name, parse_layers(name, words) if words else None) for name, words in sites)


def parse_layers(name: str, words: Sequence[str]) -> str | tuple[int, ...]:
    """`3 7 0-5` as numbers, `all` as it is."""
    if list(words) == ["all"]:
        return "all"
    numbers: list[int] = []
    for word in words:
        match = re.fullmatch(r"(-?\d{1,4})|(\d{1,4})-(\d{1,4})", word)
        some = match and ([int(match[1])] if match[1] else range(int(match[2]), int(match[3]) + 1))
        if not some:
            raise UserError(f"Layers of {name}: {shown(word)} is neither a number, a range (0-5) nor 'all' by itself.")
        numbers += some
    return tuple(numbers)


def row_shape(site: Site, config: ModelConfig, length: int) -> tuple[int, ...]:
    """Shape of one token's value: (D,), (H, h), (K, h), (V,), or (H, T) for the pattern over its context of T
    tokens."""
    shapes = {"q": (config.num_attention_heads, config.head_dim), "pattern": (config.num_attention_heads, length),
              "logits": (config.vocab_size,)}  # fmt: skip
    shapes["k"] = shapes["v"] = (config.num_key_value_heads, config.head_dim)
    return shapes.get(site.name, (config.hidden_size,))


def row_bytes(sites: Iterable[Site], config: ModelConfig, length: int, itemsize: int) -> int:
    """Bytes that the values of one token take."""
    return sum(prod(row_shape(site, config, length)) for site in sites) * itemsize


def check_size(spec: ActivationSpec, config: ModelConfig, length: int, limit: int = ROW_LIMIT) -> None:
    """Raises UserError if one token takes more than `limit` bytes, naming the largest site."""
    sites = spec.resolve(config)
    if (size := row_bytes(sites, config, length, spec.itemsize)) > limit:
        largest = max(sites, key=lambda site: prod(row_shape(site, config, length)))
        raise UserError(
            f"One token of these sites takes {size:,} bytes, more than {limit:,}; the largest is {largest}. Ask for"
            " fewer, for fewer positions, or raise row_limit (--row-limit)."
        )
