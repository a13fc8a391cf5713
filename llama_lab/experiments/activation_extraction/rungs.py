"""The ladder of ways to extract activations: each rung adds one thing to the one before, and all write through the same
writer.

N0 eager per example  op by op, one example at a time, every layer: a straw man
N0 eager copy by copy the same in padded batches, each fetched by a Python loop over samples and layers, a transfer
                      each: where the published plan said that it began
N0 copy by copy       one jit of every layer, fetched by the same loop: where the plan's own code began
N0 stacked            the same jit with all layers stacked in one array, and one transfer
N1 jit, blocking      one jit of every layer, batches padded to their longest example, each result waited for, written
                      in between
N1 spread quarter     every fourth of its layers up to the last: nothing to cut, only less to copy and write
N1 first quarter      the lowest of its layers, and the model cut after the last of them
fixed shapes          one program for every batch, padded to [B, T]; from here on it also sums mean and M2 of what it
                      gives
fixed, scanned        the same for all batches of a unit in one program, a `lax.scan` over them
fixed, vmapped        the same written for one example, and `jax.vmap` over the rows
packing               several examples share a row
async copies          results start towards the host at once, the next batches are dispatched before one is read
writer threads        reading, planning and writing are taken off the loop: `activations.extract` itself
pinned host memory    the program leaves its results in page-locked memory of the host; where there is a GPU

N2 torch              transformers' module with output_hidden_states on the same weights, without its head, the first
                      quarter kept
N2 torch cut          the same with the layers above the first quarter taken out
forward only          the program of `packing`, its results never copied nor written
disk only             the bytes of `packing` written by as many threads, nothing computed

Padding lies on the right, where a causal mask hides it from every token: the torch rungs need no mask, and get none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from llama_jax.checkpoint import Checkpoint
from llama_jax.plumbing.errors import UserError, near
from llama_lab.activations import batches, program
from llama_lab.activations.batches import Batch, Unit
from llama_lab.activations.program import Extractor
from llama_lab.activations.spec import ActivationSpec, Site
from llama_lab.bench.guard import Guard, Region, TorchCounter
from llama_lab.experiments.activation_extraction.pipeline import (
    Example,
    Results,
    Setting,
    disk_only,
    forward_only,
    pipeline,
    product,
    read,
    without_copy,
)

EAGER, UNJITTED, BASE = "N0 eager per example", "N0 eager copy by copy", "N1 jit, blocking"
COPIES, STACKED = "N0 copy by copy", "N0 stacked"
SPREAD, FIRST = "N1 spread quarter", "N1 first quarter"
FIXED, SCANNED, VMAPPED = "fixed shapes", "fixed, scanned", "fixed, vmapped"
PACKED, ASYNC, THREADS, PINNED = "packing", "async copies", "writer threads", "pinned host memory"
TORCH, CUT = "N2 torch", "N2 torch cut"
FORWARD, DISK = "forward only", "disk only"
EVERY = (EAGER, UNJITTED, COPIES, STACKED, BASE)  # which keep every layer
LADDER = (*EVERY, SPREAD, FIRST, FIXED, SCANNED, VMAPPED, PACKED, ASYNC, THREADS, PINNED)
RIVALS, CEILINGS = (TORCH, CUT), (FORWARD, DISK)
SUBJECTS = (*LADDER, *RIVALS, *CEILINGS)
ADDED_TO = {  # rung → the one before: what one thing gains
    COPIES: UNJITTED, STACKED: COPIES, BASE: STACKED, FIRST: BASE, FIXED: FIRST, SCANNED: FIXED, VMAPPED: FIXED,
    PACKED: FIXED, ASYNC: PACKED, THREADS: ASYNC, PINNED: THREADS,
}  # fmt: skip
PRODUCT = THREADS
SHARE = 4  # a quarter of the layers


@dataclass(frozen=True)
class Rung:
    """run(examples, out): everything from the text to the last fsync. plan(number, first, ids) → Unit: the batches it
    makes of a unit. whole: the layers above its sites run too."""

    name: str
    sites: tuple[Site, ...]
    run: Callable[[Sequence[Example], Path], None]
    plan: Callable[[int, int, Sequence[Sequence[int]]], Unit]
    backend: str = "jax"
    guard: type[Region] = Guard
    writes: bool = True
    whole: bool = False


def quarter(depth: int, spread: bool = False) -> tuple[int, ...]:
    """A quarter of the layers, rounded up: the lowest, or every fourth up to the last."""
    return tuple(range(depth - 1, -1, -SHARE))[::-1] if spread else tuple(range(-(-depth // SHARE)))


def spec_of(name: str, depth: int, dtype: str) -> ActivationSpec:
    """What a rung keeps: resid_post of every layer, of the spread quarter, or of the first."""
    layers = "all" if name in EVERY else quarter(depth, name == SPREAD)
    return ActivationSpec((("resid_post", layers),), dtype=dtype)


def sites_of(loaded: Checkpoint) -> str:
    """The product's sites, as `llama-jax extract --sites` takes them."""
    return f"resid_post:{','.join(map(str, quarter(loaded.config.num_hidden_layers)))}"


def missing(model: str) -> list[dict]:
    """Rungs that cannot run here: {name, reason, remedy}."""
    from llama_lab import peers

    gaps = [dict(gap, name=name) for gap in peers.missing(("torch",), model) for name in RIVALS]
    if all(device.platform == "cpu" for device in jax.devices()):
        gaps.append(dict(name=PINNED, reason="no GPU here", remedy="run where JAX finds one"))
    return gaps


def build(name: str, setting: Setting, examples: Sequence[Example]) -> Rung:
    """A rung by its name. What it compiles ahead of time is compiled here. Raises UserError for an unknown name."""
    if name not in SUBJECTS:
        raise UserError(f"No such way of extracting: {name!r}.{near(name, SUBJECTS)}")
    spec = spec_of(name, setting.loaded.config.num_hidden_layers, setting.dtype)
    sites = spec.resolve(setting.loaded.config)
    if name in RIVALS:
        plan, dispatch, fetch = padded(spec, setting.batch), *in_torch(setting, sites, name == CUT)
        run = pipeline(setting, spec, plan, dispatch, fetch)
        return Rung(name, sites, run, plan, "torch", TorchCounter, whole=name == TORCH)
    if name in (*EVERY, SPREAD, FIRST):
        plan = padded(spec, 1 if name == EAGER else setting.batch)
        dispatch, fetch = in_jax(setting, sites, name not in (EAGER, UNJITTED), name == STACKED), read
        if name in (UNJITTED, COPIES, STACKED):
            fetch = partial(unstacked, [str(site) for site in sites]) if name == STACKED else copy_by_copy
        return Rung(name, sites, pipeline(setting, spec, plan, dispatch, fetch), plan)
    scans = -(-setting.unit // setting.batch) if name == SCANNED else 1
    compute = {SCANNED: partial(scanned, scans), VMAPPED: partial(scanned, None)}.get(name, program.program)
    shape, pack = (scans * setting.batch, setting.length), name not in (FIXED, SCANNED, VMAPPED)
    extractor = Extractor(setting.loaded, spec, shape, pack=pack, compute=compute)
    if name == PINNED:
        extractor = on_pinned_host(extractor)
    run = {FORWARD: forward_only, DISK: disk_only, THREADS: product, PINNED: product}.get(name)
    if run:
        return Rung(name, sites, run(setting, extractor, examples), extractor.plan, writes=name != FORWARD)
    dispatch = extractor.dispatch if name == ASYNC else partial(without_copy, extractor)
    run = pipeline(setting, spec, extractor.plan, dispatch, read, setting.depth if name == ASYNC else 0)
    return Rung(name, sites, run, extractor.plan)


# Batches and values of each -------------------------------------------------------------------------------------------


def padded(spec: ActivationSpec, rows: int) -> Callable[..., Unit]:
    """plan(number, first, ids) → Unit: batches of `rows` examples in order, one per row, each batch as long as its
    longest example."""

    def plan(number: int, first: int, examples: Sequence[Sequence[int]]) -> Unit:
        parts = []
        for at in range(0, len(examples), rows):
            group = examples[at : at + rows]
            parts.append(batches.plan(number, first + at, group, spec, (len(group), max(map(len, group))), pack=False))
        offsets = np.cumsum([0, *(part.size for part in parts)])
        laid = tuple(
            replace(b, to=b.to + offset) for part, offset in zip(parts, offsets, strict=False) for b in part.batches
        )
        joined = {name: np.concatenate([part.rows[name] for part in parts]) for name in parts[0].rows}
        return Unit(number, first, len(examples), sum(part.tokens for part in parts), joined, laid)

    return plan


def in_jax(setting: Setting, sites: Sequence[Site], jitted: bool, stacked: bool = False) -> Callable:
    """dispatch(batch): the tapped model, cut after the last site, cast where it computes; one jit around it all, or
    none anywhere. stacked: all sites in one array [L B*T D]."""
    params = program.needed(setting.loaded.params, sites)

    def values(params, ids, positions, segments):
        tapped = program.tapped(params, ids, positions, segments, config=setting.loaded.config, sites=sites)
        flat = {site: value.reshape(-1, *value.shape[2:]).astype(setting.dtype) for site, value in tapped.items()}
        return {"all": jnp.stack([flat[str(site)] for site in sites])} if stacked else flat

    compute, place = (jax.jit(values), np.asarray) if jitted else (values, jnp.asarray)
    return lambda batch: (compute(params, *map(place, (batch.ids, batch.positions, batch.segments))), {})


def copy_by_copy(batch: Batch, results) -> Results:
    """Every sample of every layer fetched by itself, one blocking transfer after the other."""
    width, kept = batch.ids.shape[1], {}
    rows = np.split(batch.at, np.flatnonzero(np.diff(batch.at // width)) + 1)  # the kept tokens of each sample
    for site, value in results[0].items():
        samples = value.reshape(-1, width, *value.shape[1:])
        kept[site] = np.concatenate([np.asarray(samples[at[0] // width])[at % width] for at in rows])
    return kept, {}


def unstacked(names: Sequence[str], batch: Batch, results) -> Results:
    """All layers in one blocking transfer."""
    values = np.asarray(results[0]["all"])
    return {name: value[batch.at] for name, value in zip(names, values, strict=True)}, {}


def scanned(parts: int | None, params, ids, positions, segments, at, *, config, spec):
    """As `program.program` with its rows in so many parts, one after the other in a `lax.scan`; None: each row by
    itself, under `jax.vmap`."""
    rows = (ids, positions, segments)

    def values(*part):
        return program.tapped(params, *part, config=config, sites=spec.resolve(config))

    if parts is None:
        tapped = jax.vmap(lambda *row: jax.tree.map(lambda x: x[0], values(*(x[None] for x in row))))(*rows)
    else:
        split = tuple(x.reshape(parts, -1, x.shape[1]) for x in rows)
        tapped = jax.lax.scan(lambda carry, part: (carry, values(*part)), None, split)[1]
    flat = {site: x.reshape(ids.size, x.shape[-1]) for site, x in tapped.items()}
    kept = {site: value.astype(spec.dtype) for site, value in flat.items()}
    return kept, {site: program.moments(value, segments.reshape(-1) > 0) for site, value in kept.items()}


def nothing_kept(params, ids, positions, segments, at, *, config, spec):
    """The model as far as `program.program` runs it, one number kept of it all."""
    tapped = program.tapped(params, ids, positions, segments, config=config, sites=spec.resolve(config)[-1:])
    return {site: value[0, 0, 0] for site, value in tapped.items()}, {}


def on_pinned_host(extractor: Extractor) -> Extractor:
    """The same with its program's results put into page-locked host memory by the program itself."""
    where = jax.sharding.SingleDeviceSharding(jax.devices()[0], memory_kind="pinned_host")
    whole = partial(program.program, config=extractor.checkpoint.config, spec=extractor.spec)
    integers = [jax.ShapeDtypeStruct(shape, jnp.int32) for shape in (*[extractor.shape] * 3, (0,))]
    extractor.executable = jax.jit(whole, out_shardings=where).lower(extractor.params, *integers).compile()
    return extractor


def in_torch(setting: Setting, sites: Sequence[Site], cut: bool) -> tuple[Callable, Callable]:
    """(dispatch, fetch) of transformers' module on the same weights, its head never run; cut: without the layers above
    the last site."""
    import torch

    from llama_lab.peers import torch_model

    config, params = setting.loaded.config, setting.loaded.params
    if cut:
        depth = 1 + max(site.layer for site in sites)
        config, params = replace(config, num_hidden_layers=depth), replace(params, layers=params.layers[:depth])
    body, kind = torch_model.module(config, params).base_model, getattr(torch, setting.dtype)
    if cut:  # its last hidden state would be the normalised one
        setattr(body, "ln_f" if hasattr(body, "ln_f") else "norm", torch.nn.Identity())

    def dispatch(batch: Batch):
        ids = torch.from_numpy(batch.ids).long()
        with torch.inference_mode():
            return body(input_ids=ids, use_cache=False, output_hidden_states=True).hidden_states

    def as_numpy(tensor) -> np.ndarray:  # which has no bfloat16 of its own
        is_brain = tensor.dtype == torch.bfloat16
        return tensor.view(torch.int16).numpy().view(jnp.bfloat16) if is_brain else tensor.numpy()

    def fetch(batch: Batch, states) -> Results:
        flat = {str(site): states[1 + site.layer].flatten(0, 1).to(kind) for site in sites}
        return {site: as_numpy(value)[batch.at] for site, value in flat.items()}, {}

    return dispatch, fetch
