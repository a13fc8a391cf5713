"""Compiled programs kept in the user's cache, so that the next command traces, lowers and compiles nothing.

    store = kept.Store()
    engine = kept.build(checkpoint, "step", store)        # as `ll.build`: the same tokens

A program is an entry (`plumbing.entries`) of the user's private folder. Its name is a digest of everything it depends
on: the sources of this package, jax, the processor, the options of JAX and XLA, the model's configuration, the
placement, and the shapes of its arguments, including the weights. A damaged entry is made again. An entry does not
contain the weights.

An executable is written before it has run: XLA on CPU cannot serialise a sort that has run, or a program read from a
file.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import pickle
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import jax
import numpy as np
from jax.experimental import serialize_executable

from llama_jax import generate, serialised
from llama_jax.checkpoint import Checkpoint
from llama_jax.generate import Engine
from llama_jax.identity import of_engine
from llama_jax.placement import Placement, parse
from llama_jax.plumbing import compilations, entries, paths
from llama_jax.plumbing.errors import UserError
from llama_jax.sampling import Sampler
from llama_jax.transforms import AheadOfTime, assemble, compiled

FOLDER = "programs"
MOST, ROOM = 64, 256 << 20  # entries that are left, and their bytes
LARGEST = 64 << 20  # bytes of an entry; the largest known has three million
ADDRESS = re.compile(r" at 0x[0-9a-f]+")  # of a function in a description


@dataclass
class Store:
    """The programs of this user. made, read: how many were compiled and written, and how many were read.

    complaint: why some are not kept, one sentence; "" if all are. Raises UserError if the folder cannot be made, or if
    others may write there; then nothing is read.
    """

    made: int = 0
    read: int = 0
    complaint: str = ""
    folder: os.PathLike = field(default_factory=lambda: paths.private(FOLDER))

    def executable(self, name: str, called: Called) -> jax.stages.Compiled:
        """The program of this name: read from its entry, or compiled now and kept."""
        path = self.folder / f"{name}-{called.digest[:32]}"
        with compilations.keeping():
            content = entries.read(path, LARGEST)
            program = content and called.loaded(content)
        if program:
            self.read += 1
            with contextlib.suppress(OSError):
                os.utime(path)  # the oldest go first
            return program
        damaged = path.exists()
        with serialised.without_persistent_cache():
            program = called.compiled()
        try:
            with compilations.keeping():
                entries.write(path, called.content(program))
                entries.tidy(self.folder, "*", MOST, ROOM)
        except (UserError, ValueError, TypeError, NotImplementedError, pickle.PicklingError,
                jax.errors.JaxRuntimeError) as error:  # fmt: skip
            self.complaint = f"{name} is not kept: {' '.join(str(error).split())[:200]}"
        else:
            self.made += 1
            if damaged:
                self.complaint = f"{name} was damaged and is made anew"
        return program

    @property
    def summary(self) -> str:
        """One line about the programs; "" if there were none."""
        parts = [f"{self.read} read"] * bool(self.read) + [f"{self.made} made"] * bool(self.made)
        line = f"programs kept in {self.folder}: {', '.join(parts)}" if parts else ""
        return "; ".join(filter(None, [line, self.complaint]))


@dataclass(frozen=True)
class Called:
    """A program with the arguments of its first call. made_from: everything else that it depends on."""

    program: Callable
    static: str | None
    args: tuple
    named: dict
    made_from: str

    @property
    def dynamic(self) -> dict:
        return {name: value for name, value in self.named.items() if name != self.static}

    @property
    def description(self) -> str:
        """Everything that the executable depends on, as text."""
        leaves, tree = jax.tree.flatten((self.args, self.dynamic))
        samplers = jax.tree.leaves(self.args[1:], is_leaf=lambda value: isinstance(value, Sampler))
        known = {
            "made from": self.made_from,
            "program": self.program.__name__,
            "tree": ADDRESS.sub("", str(tree)),
            "samplers": [repr(each) for each in samplers if isinstance(each, Sampler)],  # a tree's text rounds
            "static": repr(self.named.get(self.static)),
            "arrays": [[list(np.shape(leaf)), str(jax.dtypes.result_type(leaf))] for leaf in leaves],
        }
        return json.dumps(known, sort_keys=True)

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.description.encode()).hexdigest()

    def compiled(self) -> jax.stages.Compiled:
        return self.program.lower(*self.args, **self.named).compile()

    def content(self, program: jax.stages.Compiled) -> bytes:
        """An entry's content: a line of description, and the executable."""
        blob = serialize_executable.serialize(program)
        return self.digest.encode() + b"\n" + pickle.dumps(blob)

    def loaded(self, content: bytes) -> jax.stages.Compiled | None:
        """The executable of an entry with the right SHA-256; None if it belongs to another program, or this device
        rejects it."""
        digest, _, rest = content.partition(b"\n")
        if digest != self.digest.encode():
            return None
        try:
            blob, taken, given = pickle.loads(rest)
            if taken != jax.tree.structure((self.args, self.dynamic)):
                return None
            return serialize_executable.deserialize_and_load(blob, taken, given, execution_devices=jax.devices()[:1])
        except Exception:  # whatever XLA says of a program that it will not take; it is compiled again
            return None


class Kept(AheadOfTime):
    """A jitted function whose executables lie in a store."""

    def __init__(self, program: AheadOfTime, store: Store, made_from: str):
        super().__init__(program.program, program.static)
        self.store, self.made_from = store, made_from

    def made(self, args: tuple, named: dict) -> jax.stages.Compiled:
        called = Called(self.program, self.static, args, named, self.made_from)
        return self.store.executable(self.program.__name__, called)


def build(checkpoint: Checkpoint, placement: Placement | str, store: Store) -> Engine:
    """As `generate.build`, with the programs of a store. A placement that defines how it is compiled (`+aot`,
    `+persistent`) is left as it is; so is one whose programs call back into this process. Raises UserError as
    `generate.build`."""
    placement = parse(placement)
    if placement.compile != "lazy" or not placement.jit:
        return generate.build(checkpoint, placement)
    if placement.host == "callback":
        store.complaint = "programs that call into this process are not kept"
        return generate.build(checkpoint, placement)
    placement = replace(placement, compile="aot")
    engine = generate.build(checkpoint, placement)
    if placement.kernels != "none":
        for config in filter(None, (engine.config, engine.draft)):
            serialised.register_kernels(config, placement)
    made_from = json.dumps(of_engine(engine), sort_keys=True)

    def kept(name: str, function: Callable, placement: Placement, **options) -> Kept:
        return Kept(compiled(name, function, placement, **options), store, made_from)

    return replace(engine, programs=assemble(engine.config, placement, kept, engine.draft))
