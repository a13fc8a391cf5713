"""The model, cut after the last requested site and tapped at each of them: one program, compiled once, for every
batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Annotated

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jax.stages import Lowered
from pydantic import Field

from llama_jax import embeddings, head, kvc, layer, norm, rope
from llama_jax.attention import CallPositions
from llama_jax.axes import Array, Bool, Int
from llama_jax.checkpoint import Checkpoint
from llama_jax.config import ModelConfig
from llama_jax.model import Model
from llama_jax.plumbing import boundary
from llama_jax.plumbing.boundary import shown
from llama_jax.plumbing.errors import UserError
from llama_jax.quantise import is_quantised
from llama_lab.activations import batches, sharding
from llama_lab.activations.batches import Batch, Unit
from llama_lab.activations.spec import ROW_LIMIT, ActivationSpec, Site, Whole, check_size, row_bytes, row_shape, whole
from llama_lab.bench.guard import Guard

Values = dict[str, jax.Array]
MOST_TOKENS = 1 << 24  # of a batch


def segment_mask(segments: Int[Array, "B T"]) -> Bool[Array, "B T T"]:
    """True for the positions that a token may see: earlier ones of its segment and its own. Padding sees nothing."""
    t = segments.shape[1]
    back = jnp.tril(jnp.ones((t, t), bool))
    return back & (segments[:, :, None] == segments[:, None, :]) & (segments[:, :, None] > 0)


def within(mask: Bool[Array, "B T T"], window: int | None) -> Bool[Array, "B T T"]:
    """A mask under which a token sees only the last `window` tokens, its own included."""
    return mask if window is None else mask & ~jnp.tril(mask, -window)


def needed(params: Model, sites: Sequence[Site]) -> Model:
    """The weights that these sites depend on: layers up to the last; the head for what comes after the layers."""
    names = {site.name for site in sites}
    after = bool(names & {"ln_final", "logits"})
    layers = params.layers if after else params.layers[: 1 + max(site.layer for site in sites)]
    return replace(params, layers=layers, head=params.head if after else None)


def tapped(
    params: Model,
    ids: Int[Array, "B T"],
    positions: Int[Array, "B T"],
    segments: Int[Array, "B T"],
    *,
    config: ModelConfig,
    sites: Sequence[Site],
) -> Values:
    """Site → its values [B T ...] (`spec.row_shape`), in the dtype that the model computes in."""
    ropes, kinds = rope.of_layers(config)
    slot, normalise = jnp.zeros((), jnp.int32), norm.normaliser(config)
    wheres = [
        CallPositions(slot, *rope.turned(each, positions), within(segment_mask(segments), each.window))
        for each in ropes
    ]
    x, values = embeddings.embed(params.embeddings, ids, positions, scale=config.embedding_scale), {}
    for i, weights in enumerate(params.layers):
        seen: Values = {}

        def tap(name: str, value, seen=seen):
            seen[name] = value
            return value

        x, _ = layer.assembled(config, normalise, kvc.append_none, tap=tap)(weights, x, wheres[kinds[i]], None)
        values |= {str(s): laid_out(s.name, seen[s.name], positions) for s in sites if s.layer == i}
    if Site("ln_final") in sites:
        values["ln_final"] = normalise(params.head.norm, x)
    if Site("logits") in sites:
        values["logits"] = head.head(params.head, params.vocabulary, x, norm=normalise)
    return values


def laid_out(name: str, value, positions: Int[Array, "B T"]):
    """A tapped value with its batch row and token first: [B T ...]."""
    if name in ("q", "k", "v"):
        return value.transpose(0, 2, 1, 3)
    if name != "pattern":
        return value
    b, t = positions.shape
    weights = value.reshape(b, -1, t, t).transpose(0, 2, 1, 3)  # [B T H S]
    begins = jnp.arange(t, dtype=jnp.int32) - positions  # [B T]: where each token's segment begins
    keys = begins[:, :, None] + jnp.arange(t, dtype=jnp.int32)  # the segment's keys, first to last, and beyond
    shifted = jnp.take_along_axis(weights, jnp.clip(keys, 0, t - 1)[:, :, None, :], axis=-1)
    return jnp.where((keys <= jnp.arange(t, dtype=jnp.int32)[:, None])[:, :, None, :], shifted, 0)


def moments(values, real: Bool[Array, " R"]) -> tuple[jax.Array, jax.Array]:
    """Mean and sum of squared deviations over the real ones among R rows, float32, one a feature."""
    wide = values.astype(jnp.float32)
    mask = real.reshape(-1, *[1] * (wide.ndim - 1))
    mean = jnp.sum(jnp.where(mask, wide, 0), axis=0) / jnp.maximum(jnp.sum(real), 1)
    return mean, jnp.sum(jnp.where(mask, (wide - mean) ** 2, 0), axis=0)


def program(
    params: Model, ids, positions, segments, at: Int[Array, " R"], *, config: ModelConfig, spec: ActivationSpec
) -> tuple[Values, dict]:
    """({site: values [R ...] in the stored dtype}, {site: (mean, M2)}) of one batch.

    at: the kept tokens, -1 if there are fewer than R; with all positions R is B * T and the values stay where they
    are.
    """
    dtype, everywhere = jnp.dtype(spec.dtype), spec.positions == "all"
    real = segments.reshape(-1) > 0 if everywhere else at >= 0
    values = {}
    for site, value in tapped(params, ids, positions, segments, config=config, sites=spec.resolve(config)).items():
        flat = value.reshape(-1, *value.shape[2:])
        values[site] = (flat if everywhere else flat[jnp.maximum(at, 0)]).astype(dtype)
    return values, {site: moments(value, real) for site, value in values.items()}


class Compiled:
    """Computes an extraction's values for batches of one shape. A subclass has `plan`, which makes a unit's batches,
    `dispatch`, which starts one, and `kept`, which fetches its rows. Compiled once, at construction.

    Raises UserError for quantised weights, for an impossible shape, and for sites that take more than `row_limit` bytes
    per token.
    """

    mesh: Mesh | None = None
    pack = False
    capacity: int  # kept tokens of a batch, at most
    new_tokens: int  # that are made of each example; 0 if it is only read

    def __init__(
        self, checkpoint: Checkpoint, spec: ActivationSpec, batch: tuple[int, int], row_limit: int, new_tokens: int = 0
    ):
        config = checkpoint.config
        if is_quantised(checkpoint.params.embeddings.weight):
            raise UserError(f"Activations are read in float32 or bfloat16; this model is loaded as {checkpoint.dtype}.")
        self.checkpoint, self.spec, self.new_tokens = checkpoint, spec, new_tokens
        self.shape = checked_shape(batch, config.max_position_embeddings)
        if self.shape[1] + new_tokens > config.max_position_embeddings:
            raise UserError(
                f"Prompts of {self.shape[1]} tokens and {new_tokens} new ones exceed the model's context of"
                f" {config.max_position_embeddings}; ask for fewer."
            )
        check_size(spec, config, self.shape[1], row_limit)
        self.sites = spec.resolve(config)

    def compile(self, lower: Callable[[], Lowered]) -> None:
        with Guard() as guard:
            self.executable = lower().compile()
        self.compilations, self.compile_seconds = guard.compilations, guard.backend_seconds

    @property
    def row_bytes(self) -> int:
        """Bytes that the values of one token take."""
        return row_bytes(self.sites, self.checkpoint.config, self.shape[1], self.spec.itemsize)

    @property
    def row_shapes(self) -> dict[str, tuple[int, ...]]:
        return {str(site): row_shape(site, self.checkpoint.config, self.shape[1]) for site in self.sites}

    def room(self, rows: int) -> dict[str, np.ndarray]:
        """Arrays for the values of this many rows: {site: [rows ...]}."""
        dtype = jnp.dtype(self.spec.dtype)
        return {site: np.empty((rows, *shape), dtype) for site, shape in self.row_shapes.items()}

    def checked(self, first: int, examples: Sequence[Sequence[int]]) -> list[np.ndarray]:
        """Token ids [n] of each example. Raises UserError, naming the example, for ids outside the vocabulary."""
        return [checked_ids(i, ids, self.checkpoint.config.vocab_size) for i, ids in enumerate(examples, first)]

    def __call__(self, examples: Iterable[str | Sequence[int]]) -> dict[str, np.ndarray]:
        """The activations of a few examples, at once: {site: [rows ...], token, example, segment, position: [rows]}."""
        if isinstance(examples, str):
            raise UserError("One text is given where several are expected; put it in a list.")
        unit = self.plan(0, 0, [encode(self.checkpoint)(example) for example in examples])
        columns = self.room(unit.size)
        for batch in unit.batches:
            for site, value in self.dispatch(batch)[0].items():
                columns[site][batch.to] = self.kept(batch, value)
        return columns | unit.rows


class Request(boundary.Declared):
    """An extractor's options, beside its checkpoint, spec and batch."""

    pack: bool
    row_limit: Annotated[Whole, Field(ge=1)]


class Extractor(Compiled):
    """The activations that `spec` asks for, of any batch [B T]. Everything is compiled here, once: layers above the
    last site and an unused head are not part of the program.

    checkpoint: its weights decide the dtype of the computation. batch: (B, T). pack: let several examples share a row.
    row_limit: most bytes per token. mesh: of `sharding.mesh`, for a model larger than a device: its weights are spread
    over it from where they were loaded, which should be the host; every process then makes the same calls in the same
    order, and has all results. compute: the function to compile, with the arguments and results of `program`.
    Raises UserError for quantised weights, for sites that the model lacks, or that are too large, and for a batch
    that the mesh cannot share out.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        spec: ActivationSpec,
        batch: tuple[int, int] = (8, 256),
        pack: bool = True,
        row_limit: int = ROW_LIMIT,
        mesh: Mesh | None = None,
        compute: Callable = program,
    ):
        asked = boundary.read(Request, dict(pack=pack, row_limit=row_limit), "The extractor")
        super().__init__(checkpoint, spec, batch, asked.row_limit)
        self.pack, self.capacity = pack, batches.capacity(spec, self.shape, pack)
        self.params, self.mesh = needed(checkpoint.params, self.sites), mesh
        rows = every = None
        if mesh is not None:
            sharding.check_batch(self.shape, mesh)
            self.params = sharding.shard(self.params, mesh)
            rows, every = NamedSharding(mesh, PartitionSpec("data")), NamedSharding(mesh, PartitionSpec())
        abstract = jax.ShapeDtypeStruct(self.shape, jnp.int32, sharding=rows)
        at = jax.ShapeDtypeStruct((self.capacity if spec.positions != "all" else 0,), jnp.int32, sharding=every)
        jitted = jax.jit(partial(compute, config=checkpoint.config, spec=spec), out_shardings=every)
        self.compile(lambda: jitted.lower(self.params, abstract, abstract, abstract, at))

    def plan(self, number: int, first: int, examples: Sequence[Sequence[int]]) -> Unit:
        return batches.plan(number, first, self.checked(first, examples), self.spec, self.shape, self.pack)

    def dispatch(self, batch: Batch) -> tuple[Values, dict]:
        """Start one batch on the device and its results on their way to the host; returns at once, see `program`."""
        at = np.full(self.capacity if self.spec.positions != "all" else 0, -1, np.int32)
        at[: len(batch.at)] = batch.at[: len(at)]
        inputs = (batch.ids, batch.positions, batch.segments, at)
        if self.mesh is not None:
            specs = (*[PartitionSpec("data")] * 3, PartitionSpec())
            inputs = tuple(sharding.spread(values, self.mesh, spec) for values, spec in zip(inputs, specs, strict=True))
        results = self.executable(self.params, *inputs)
        for array in jax.tree.leaves(results):
            array.copy_to_host_async()
        return results

    def kept(self, batch: Batch, value: jax.Array) -> np.ndarray:
        """The kept rows [n ...] of one site of a dispatched batch, on the host."""
        host = np.asarray(value)
        return host[batch.at] if self.spec.positions == "all" else host[: len(batch.at)]


def checked_shape(batch: Sequence[int], context: int) -> tuple[int, int]:
    """(B, T). Raises UserError if it is not that, or longer than the model's context."""
    numbers = whole(batch)
    if len(numbers) != 2 or min(numbers) < 1 or numbers[1] > context or numbers[0] * numbers[1] > MOST_TOKENS:
        raise UserError(
            f"batch is {shown(batch)}; give (B, T), at least (1, 1), with T no longer than the model's context of"
            f" {context}, and {MOST_TOKENS:,} tokens at most."
        )
    return numbers


def checked_ids(example: int, ids: Sequence[int], vocabulary: int) -> np.ndarray:
    """Token ids [n] of one example. Raises UserError, naming it, for anything else."""
    try:
        array = np.asarray(ids)
    except ValueError:  # lists of several lengths
        array = np.asarray(None)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise UserError(f"Example {example} is not a list of token ids.")
    if array.size and not (array.min() >= 0 and array.max() < vocabulary):
        raise UserError(f"Example {example} has a token id outside the vocabulary, of {vocabulary} ids.")
    return array.astype(np.int32)


def encode(checkpoint: Checkpoint) -> Callable[[str | Sequence[int]], Sequence[int]]:
    """Example → token ids: text with the tokens that the model expects around it, ids unchanged. Raises UserError for
    text without a tokenizer."""

    def of(example: str | Sequence[int]) -> Sequence[int]:
        if not isinstance(example, str):
            return example
        if checkpoint.tokenizer is None:
            raise UserError(f"{checkpoint.name} has no tokenizer; give token ids instead of texts.")
        return checkpoint.tokenizer.encode(example)

    return of
