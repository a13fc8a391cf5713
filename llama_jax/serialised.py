"""Compiled programs in a file: a new process that loads them traces nothing, lowers nothing and compiles nothing.

An engine compiled ahead of time (`+aot`) keeps one executable for each shape it has met. `save` writes them, `load`
gives an engine that has them:

    engine = ll.build(checkpoint, "step+aot")
    ll.answer(engine, [prompt], 64)                                # compiles what such a request needs
    ll.serialised.save(engine, "step.bin")
    engine = ll.serialised.load(checkpoint, "step", "step.bin", trust=True)    # later, in another process

The weights are not in the file: they are arguments of the programs, so any weights of the same shapes will do. A
request of a shape that is not in the file compiles, as it does in any engine compiled ahead of time.

Trust such a file as you trust a program. It holds machine code, and `jax.experimental.serialize_executable` wraps that
in a pickle: anybody who can write the file can run code in your process. The SHA-256 in its first line finds damage,
not malice, so nothing is loaded without `trust=True`. Damage, another jax, machine, model, placement or version of this
package are checked on the bytes that are then loaded, before anything is unpickled. The trees of arguments and results
are rebuilt from the configuration, never read.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import jax
from jax.experimental import serialize_executable
from jax.experimental.compilation_cache import compilation_cache

from llama_jax import generate, transforms
from llama_jax.checkpoint import Checkpoint
from llama_jax.config import ModelConfig
from llama_jax.decoding.depth import Learned
from llama_jax.decoding.drafts import Drafted
from llama_jax.decoding.steps import Bounds, Carry
from llama_jax.generate import Engine
from llama_jax.identity import identity
from llama_jax.kvc import KVCache
from llama_jax.model import kinds
from llama_jax.placement import Placement, parse
from llama_jax.plumbing import files
from llama_jax.plumbing.errors import UserError
from llama_jax.sampling import Constrained, Draw, Mask, Sampler, TracedSampler, free
from llama_jax.transforms import AheadOfTime

MAGIC = b"llama-jax executables 1"
NAMES = ("prefill", "extend", "step", "decode")
LARGEST = 4 << 30  # bytes of a file; a program has some hundred thousand
AGAIN = "save it again."
SAMPLER = {"prefill": 3, "extend": 2, "step": 2, "decode": 2}  # program: the place of its sampler after the weights
A = object()  # stands for an array in a tree of arguments
Arguments = tuple[tuple, dict]  # of a call: those by position, without the weights, and those by name


def save(engine: Engine, path: str | Path) -> Path:
    """Write a program for every shape that this engine has met so far, in one piece or not at all.

    Each is compiled once more: XLA on CPU cannot serialise a sort that has run, and what it serialises of a program
    that came from a file or from JAX's persistent cache fails when it is run. Raises UserError when the engine is not
    compiled ahead of time as whole programs, has compiled nothing yet, or has programs that this device cannot
    serialise.
    """
    refuse_drafts(engine.placement)
    fresh, entries, blobs = transforms.assemble(engine.config, engine.placement), [], []
    for name in NAMES:
        for (tree, *leaves), executable in programs(engine, name).items():
            entry = dict(name=name, **call(name, jax.tree.unflatten(tree, leaves)))
            arguments = skeleton(engine, **entry)
            try:
                with without_persistent_cache():
                    args, named = shaped(arguments, executable)
                    again = getattr(fresh, name).lower(engine.params, *args, **named).compile()
                blob, *trees_made = serialize_executable.serialize(again)
            except (ValueError, NotImplementedError, jax.errors.JaxRuntimeError) as error:
                raise UserError(f"The program {name!r} cannot be serialised on this device: {error}") from error
            if [jax.tree.structure(arguments), *trees_made] != [tree, *trees(engine, name, arguments)]:
                raise UserError(f"The program {name!r} has arguments that cannot be rebuilt from the configuration.")
            entries.append(entry | dict(bytes=len(blob)))
            blobs.append(blob)
    if not entries:
        raise UserError("This engine has compiled nothing yet; answer a request of the shapes you want, then save.")
    about = identity(engine.config, engine.placement, kinds(engine.params))
    body = json.dumps(dict(about=about, entries=entries), sort_keys=True).encode() + b"\n" + b"".join(blobs)
    return files.write(Path(path), b"%s %s\n%s" % (MAGIC, hashlib.sha256(body).hexdigest().encode(), body))


@contextlib.contextmanager
def without_persistent_cache() -> Iterator[None]:
    """What is compiled here comes from the compiler, not from JAX's cache on disk."""
    before = jax.config.jax_enable_compilation_cache
    try:
        jax.config.update("jax_enable_compilation_cache", False)
        compilation_cache.reset_cache()
        yield
    finally:
        jax.config.update("jax_enable_compilation_cache", before)
        compilation_cache.reset_cache()


def load(checkpoint: Checkpoint, placement: Placement | str, path: str | Path, trust: bool = False) -> Engine:
    """An engine whose programs are the executables of a file that `save` wrote for the same placement.

    placement: with or without `+aot`; the engine has it. trust: that the file is your own, since it can run whatever it
    likes. Raises UserError without that, and for a file that is missing, damaged, or made by another jax, on another
    kind of machine, for another model or placement, or by another version of this package.
    """
    if trust is not True:
        raise UserError(
            f"{path} holds programs, and loading it runs them; pass trust=True if you made the file yourself."
        )
    refuse_drafts(placement := parse(placement))
    about, entries, blobs = read(Path(path))
    engine = generate.build(checkpoint, replace(placement, compile="aot"))
    if placement.kernels != "none":
        register_kernels(checkpoint.config, placement)
    here = identity(checkpoint.config, placement, kinds(engine.params))
    for what in here:
        if about.get(what) != here[what]:
            raise UserError(
                f"{path} was made with another {what} ({short(about.get(what), here[what])}); answer a request with"
                " this one and save it again."
            )
    for entry, blob in zip(entries, blobs, strict=True):
        try:
            arguments = skeleton(engine, **entry)
            expected = trees(engine, entry["name"], arguments)
            executable = serialize_executable.deserialize_and_load(blob, *expected, execution_devices=jax.devices()[:1])
            programs(engine, entry["name"])[key(shaped(arguments, executable))] = executable
        except Exception as error:  # whatever XLA says of a program that it will not take
            raise UserError(
                f"{path}: this device does not take the program {entry['name']!r} ({type(error).__name__}); save it"
                " again."
            ) from error
    return engine


def refuse_drafts(placement: Placement) -> None:
    """Raises UserError for a placement that names a draft model: a file's programs are of one model."""
    if placement.draft is not None:
        raise UserError(
            f"Placement {placement.name!r} has a draft model, whose programs no file holds; leave +draft out."
        )


def register_kernels(config: ModelConfig, placement: Placement) -> None:
    """Make the kernels known to XLA, which takes no program that calls what it does not know; else only tracing
    would."""
    from llama_jax.kernels import fused  # here: without kernels their compiler is not needed
    from llama_jax.kernels.build import ENTRIES, registered

    for name in {*ENTRIES, fused.entry(config)} if placement.kernels == "fused" else ENTRIES:
        registered(name)


def read(path: Path) -> tuple[dict, list[dict], list[bytes]]:
    """(what it was made with, an entry a program, the programs) of a file, its SHA-256 checked; nothing is
    unpickled."""
    from llama_jax.plumbing import boundary  # here: a bare machine lacks pydantic

    try:
        first, _, body = boundary.content(path, LARGEST).partition(b"\n")
    except FileNotFoundError:
        raise UserError(f"Cannot read {path}: there is no such file.") from None
    magic, _, digest = first.rpartition(b" ")
    if magic != MAGIC:
        raise UserError(f"{boundary.shown(str(path))} is not a file of executables that this version can read; {AGAIN}")
    if hashlib.sha256(body).hexdigest().encode() != digest:
        raise UserError(f"{path} is damaged (its SHA-256 differs); {AGAIN}")
    line, _, rest = body.partition(b"\n")
    header, at, blobs = boundary.read(declared(), boundary.parse(line, str(path), AGAIN), str(path), AGAIN), 0, []
    for entry in header.entries:
        blobs.append(rest[at : at + entry.bytes])
        at += entry.bytes
    if at != len(rest):
        raise UserError(f"{path} lists programs of {at} bytes but holds {len(rest)}; {AGAIN}")
    return header.about, [entry.model_dump(exclude={"bytes"}) for entry in header.entries], blobs


def declared() -> type:
    """What the second line of a file may say."""
    from typing import Annotated, Literal

    from pydantic import Field

    from llama_jax.plumbing.boundary import Declared

    class Entry(Declared):
        name: Literal[NAMES]
        sampler: dict[str, int | float] | None
        allowed: Literal["table", "mask"] | None = None
        slots: Annotated[int, Field(ge=1, le=2**31 - 1)] | None
        bytes: Annotated[int, Field(ge=0, le=LARGEST)]

    class Header(Declared):
        about: dict
        entries: list[Entry]

    return Header


def programs(engine: Engine, name: str) -> dict:
    """The executables of one of the engine's programs by the shapes they are for. Raises UserError when it keeps
    none."""
    program = getattr(engine.programs, name)
    if program is None:
        return {}
    if not isinstance(program, AheadOfTime):
        raise UserError(
            f"Placement {engine.placement.name!r} has no executables to keep: use one that jits step or decode,"
            " with +aot."
        )
    return program.executables


def short(there, here) -> str:
    """Where two values differ, in few words."""
    if isinstance(there, dict) and isinstance(here, dict):
        name = next(k for k in {**here, **there} if there.get(k) != here.get(k))
        return f"{name} {there.get(name)}, here {here.get(name)}"
    return f"{there}, here {here}"


# Trees of arguments ---------------------------------------------------------------------------------------------------


def call(name: str, arguments: Arguments) -> dict:
    """The part of a call that decides its tree: {sampler: its settings, None where they are arguments; slots: of a
    prefill; allowed: what kind of grammar it follows, where it follows one}."""
    positional, named = arguments
    sampler = positional[SAMPLER[name]]
    settings = free(sampler)
    made = dict(sampler=None if isinstance(settings, TracedSampler) else asdict(settings), slots=named.get("slots"))
    follows = isinstance(sampler, Constrained) and ("mask" if isinstance(sampler.allowed, Mask) else "table")
    return made | (dict(allowed=follows) if follows else {})


def skeleton(
    engine: Engine, name: str, sampler: dict | None, slots: int | None, allowed: str | None = None
) -> Arguments:
    """The arguments of a call but for the weights: A for each array, whole numbers as they are."""
    settings = TracedSampler(A, A, A, A, A) if sampler is None else Sampler(**sampler)
    if allowed:
        from llama_jax.grammars import Table  # here: few answers follow a grammar

        settings = Constrained(settings, Mask(A) if allowed == "mask" else Table(A, A))
    if name == "prefill":
        return (A, A, A, settings), dict(slots=slots)
    arguments, placement = (A, carried(engine, settings), settings), engine.placement
    if name == "decode" and (placement.until or placement.drafts):
        out, costs = (A if there else None for there in (placement.until, placement.drafts))
        arguments += (Bounds(stop=A, limit=A, out=out, costs=costs),)
    return arguments, {}


def carried(engine: Engine, sampler: Sampler | TracedSampler | Constrained) -> Carry:
    """A carry of As, as a prompt leaves it."""
    placement = engine.placement
    parts = (A,) * (4 if placement.kv == "int8" else 2)  # keys and values, and the scales of both
    entries = parts if placement.layers == "scan" else (parts,) * engine.config.num_hidden_layers
    cache = KVCache(None, A, A, A) if placement.cache == "none" else KVCache(entries, None, A, A)
    settings, follows = free(sampler), isinstance(sampler, Constrained) and not isinstance(sampler.allowed, Mask)
    remembers = isinstance(settings, TracedSampler) or settings.repetition_penalty != 1.0
    draw = Draw(A, A, A if remembers else None, state=A if follows else None)
    return Drafted(cache, draw, A, Learned(A, A, A, A)) if placement.drafts else Carry(cache, draw)


def trees(engine: Engine, name: str, arguments: Arguments) -> tuple:
    """(tree of the executable's arguments, tree of its results). The weights come first; a prefill's slots are part of
    the program, so they are no argument."""
    carry = carried(engine, arguments[0][SAMPLER[name]])
    results = (A, A, A, carry) if name == "decode" else (A, carry)
    return jax.tree.structure(((engine.params, *arguments[0]), {})), jax.tree.structure(results)


def shaped(arguments: Arguments, executable) -> Arguments:
    """The arguments with the shape and dtype of the executable's own in the place of each A."""
    positional, named = arguments
    leaves, tree = jax.tree.flatten(positional)
    infos = jax.tree.leaves(executable.args_info[0][1:])  # all but the weights
    shapes = [
        jax.ShapeDtypeStruct(info.shape, info.dtype) if leaf is A else leaf
        for leaf, info in zip(leaves, infos, strict=True)
    ]
    return jax.tree.unflatten(tree, shapes), named


def key(arguments: Arguments) -> tuple:
    """What `AheadOfTime` knows an executable by: the tree of its arguments, and the shape and dtype of each array in
    it."""
    leaves, tree = jax.tree.flatten(arguments)
    return (tree, *((x.shape, x.dtype) if hasattr(x, "shape") else x for x in leaves))
