"""What compiling one decode program costs, stage by stage: trace, lower, compile, first run.

JAX's own stages (`jitted.trace`, `.lower`, `.compile`: https://docs.jax.dev/en/latest/aot.html) are timed one at a time
in a process that has compiled nothing of the model before. The guard listens to each stage, so that what JAX reports of
itself stands beside the clock, and a stage that did another's work voids its row.

A row's `run` begins with what varies: `depth` (random models of growing depth), `placement` (one model, several
placements) or `slots` (sizes alone, against the length of the KV cache).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import serialize_executable

from llama_jax import generate, transforms
from llama_jax.checkpoint import Checkpoint, find
from llama_jax.decoding.steps import Bounds, Carry, new_draw
from llama_jax.generate import Engine
from llama_jax.placement import Placement, parse
from llama_jax.plumbing.errors import UserError
from llama_lab.bench import WRONG, memory, profiling, protocol, roofline, summary
from llama_lab.bench.experiment import Experiment, Point, Runner, Seed, check_counts
from llama_lab.bench.gate import tokens_hash
from llama_lab.bench.guard import Guard
from llama_lab.bench.lab import Lab
from llama_lab.bench.record import Row
from llama_lab.bench.workload import blocks

# the stage: the one kind of event that belongs in it
STAGES = {"trace": "trace", "lower": "lower", "compile": "backend"}
LAYOUTS = ("step", "step+scan")
STAGED = ("step", "chunk8", "chunk32", "loop")  # whose stages are taken apart
SIZED = ("step", "step+donate", "step+scan", "step+scan+donate")  # whose programs' sizes follow the cache's length
DEPTH_TOKENS, PLACEMENT_TOKENS = 16, 32  # that a program is run for
ROOM = 64  # cache slots of the runs that vary something else


class Compilation(Row):
    """One compiled decode program. Times in ns, sizes in bytes. Programs of the run `slots` are not run."""

    placement: str
    model: str
    weights_hash: str
    dtype: str
    depth: int  # layers
    cache_slots: int
    trace_ns: int | None = None
    lower_ns: int | None = None
    compile_ns: int | None = None
    heard_trace_ns: int | None = None  # the same stages as JAX's own events report them
    heard_lower_ns: int | None = None
    heard_compile_ns: int | None = None
    first_run_ns: int | None = None  # until its tokens are on the host
    instructions: int  # instructions of the optimised program, those that a fusion swallowed left out
    executable_bytes: int | None = None  # serialised; None if the device cannot
    argument_bytes: int | None = None
    output_bytes: int | None = None
    temp_bytes: int | None = None
    alias_bytes: int | None = None
    bytes_per_token: float  # that a token must read, from the configuration
    bandwidth_gbps: float | None = None  # as this process read it
    layer_bytes: int  # weights of one layer, from the configuration
    kv_bytes: int  # keys and values of all slots, from the configuration
    token_times_ns: list[int]  # arrival of each token since the start of a second, warm run
    tokens_sha256: str = ""

    @property
    def rate(self) -> float:
        """Tokens/s of the warm run; NaN if there was none."""
        return len(self.token_times_ns) / self.token_times_ns[-1] * 1e9 if self.token_times_ns else float("nan")

    @property
    def seconds(self) -> float:
        """Trace, lower and compile together; NaN if they were not timed."""
        known = [self.trace_ns, self.lower_ns, self.compile_ns]
        return float("nan") if None in known else sum(known) / 1e9


# What the parent plans ------------------------------------------------------------------------------------------------


def of_depth(model: str, layers: int) -> str:
    """`random:PRESET[,…][:SEED]` with another number of layers. Raises UserError for a model of another kind."""
    if not model.startswith("random:"):
        raise UserError(f"{model!r} has a depth of its own; only random weights (random:PRESET) are made of any depth.")
    kind, shape, *seed = model.split(":")
    return ":".join([kind, f"{shape},num_hidden_layers={layers}", *seed])


def numbers(text: str, name: str) -> tuple[int, ...]:
    """`"2 8 16"` as two or more different numbers above 0, in order. Raises UserError for anything else."""
    words = text.replace(",", " ").split()
    counts = sorted({int(word) for word in words if word.isdigit() and int(word)})
    if len(counts) < 2 or len(counts) < len(words):
        raise UserError(f"{name} is {text!r}; give two or more different whole numbers above 0, such as '2 8 16'.")
    return tuple(counts)


@dataclass(frozen=True)
class CompileTime(Experiment):
    """All compilations, each in a fresh process: of random models of growing depth, unrolled and scanned; of one model
    under several placements (`STAGED`); and sizes alone, against the length of the cache (`SIZED`).

    shape: `random:PRESET`, whose depth varies. depths, slots: numbers, as text.
    """

    kind = Compilation

    model: str
    seed: Seed
    shape: str
    depths: str
    depth_processes: int
    placement_processes: int
    slots: str

    @property
    def also(self) -> object:
        return STAGED, SIZED

    def check(self) -> None:
        layers, lengths = numbers(self.depths, "depths"), numbers(self.slots, "slots")
        for n in layers:
            find(of_depth(self.shape, n))
        for name in (*STAGED, *SIZED, *LAYOUTS):
            program_of(parse(name))
        if max(lengths) > (room := find(self.model).config.max_position_embeddings):
            raise UserError(f"A cache of {max(lengths)} slots exceeds the model's context of {room}; ask for fewer.")
        check_counts(depth_processes=self.depth_processes, placement_processes=self.placement_processes)

    def points(self, runner: Runner) -> list[Point]:
        layers = numbers(self.depths, "depths")
        deep = [(of_depth(self.shape, n), name, f", {n} layers") for n in layers for name in LAYOUTS]
        placed = [(self.model, name, "") for name in STAGED]
        lengths = numbers(self.slots, "slots")
        asked, rows = dict(placements=list(SIZED), slots=list(lengths)), len(SIZED) * len(lengths)
        return [
            *self.compiling("depth", deep, self.depth_processes, DEPTH_TOKENS),
            *self.compiling("placement", placed, self.placement_processes, PLACEMENT_TOKENS),
            Point("slots", 0, of_slots, rows, asked, "sizes of programs"),
        ]

    def compiling(self, run: str, wanted: list[tuple[str, str, str]], processes: int, tokens: int) -> list[Point]:
        """One fresh process for each (model, placement, words) in each block, in random order."""
        points = []
        for block, order, (i, (model, name, words)) in blocks(list(enumerate(wanted)), processes, self.seed):
            asked = dict(placement=name, tokens=tokens, seed=self.seed, order=order)
            points.append(Point(f"{run} {i}", block, stages, 1, asked, f"compiling {name}{words}", model))
        return points

    def measure(self, runner: Runner) -> tuple[list[Compilation], dict]:
        rows, about = super().measure(runner)
        return judged(rows), about


def judged(rows: Sequence[Compilation]) -> list[Compilation]:
    """The rows; one whose tokens are not those of an unrolled `step` of the same run, model and length is void."""

    def alike(row: Compilation) -> tuple:
        return row.run.split()[0], row.model, row.dtype, len(row.token_times_ns)

    steps = [r for r in rows if r.placement == LAYOUTS[0] and r.valid]
    hashes = summary.grouped(steps, alike, "tokens_sha256")

    def right(r: Compilation) -> bool:
        return not (r.valid and r.token_times_ns) or r.tokens_sha256 in hashes.get(alike(r), [r.tokens_sha256])

    wrong = dict(valid=False, reason=f"{WRONG}its tokens are not those of {LAYOUTS[0]}")
    return [r if right(r) else r.model_copy(update=wrong) for r in rows]


# What the children run ------------------------------------------------------------------------------------------------


def program_of(placement: Placement) -> str:
    """Name of the one program that decodes. Raises UserError for a placement that has none."""
    if placement.drafts:
        raise UserError(
            f"Placement {placement.name!r} makes a number of tokens that depends on its drafts; leave them out."
        )
    if placement.jits_decode or "step" in placement.outermost:
        return "decode" if placement.jits_decode else "step"
    raise UserError(f"Placement {placement.name!r} decodes with several programs; name one that jits step or decode.")


@dataclass(frozen=True)
class Decoder:
    """An engine's decode program as a host would call it: from an empty cache, for answers of up to `tokens` tokens."""

    engine: Engine
    tokens: int
    slots: int = ROOM

    def start(self) -> tuple[jax.Array, Carry]:
        """The token and the carry that an answer begins with."""
        config, engine = self.engine.config, self.engine
        cache = transforms.new_cache(engine.params, jnp.zeros(1, jnp.int32), self.slots, config, engine.placement)
        draw = new_draw(np.zeros(1, np.uint32), config.vocab_size, generate.GREEDY)
        return jnp.ones(1, jnp.int32), Carry(cache, draw)

    def arguments(self, token, carry: Carry) -> tuple:
        """What the program is called with."""
        common = (self.engine.params, token, carry, generate.GREEDY)
        if self.engine.placement.until is None:
            return common
        room = np.zeros((generate.bucket(self.tokens), 1), np.int32)
        return *common, Bounds(stop=np.array([-1], np.int32), limit=np.int32(self.tokens), out=room)

    def call(self, program: Callable) -> int:
        """Nanoseconds of one call, until its tokens are on the host."""
        start = jax.block_until_ready(self.start())
        began = time.perf_counter_ns()
        np.asarray(program(*self.arguments(*start))[0])
        return time.perf_counter_ns() - began

    def answer(self, program: Callable) -> tuple[np.ndarray, list[int]]:
        """(tokens [n 1], ns at which each was on the host). What a last call makes too much is cut off."""
        made, arrivals, (token, carry) = [], [], jax.block_until_ready(self.start())
        began = time.perf_counter_ns()
        while len(made) < self.tokens:
            results = program(*self.arguments(token, carry))  # (token, carry), or (tokens, made, token, carry)
            token, carry = results[-2:]
            block = np.asarray(results[0]).reshape(-1)[: self.tokens - len(made)]
            made.extend(block.tolist())
            arrivals.extend([time.perf_counter_ns() - began] * len(block))
        return np.array(made, np.int32)[:, None], arrivals


def stages(lab: Lab, placement: str, tokens: int, seed: int, order: int) -> None:
    """One decode program in this process, its stages timed one at a time, then run."""
    loaded = lab.load()
    decoder = Decoder(generate.build(loaded, parse(placement)), tokens)
    program, times, wrong = staged(decoder)
    with Guard() as guard:
        first = decoder.call(program)
        made, arrivals = decoder.answer(program)
    reason = "; ".join([*wrong, guard.reason] if guard.fired else wrong)
    times |= dict(first_run_ns=first, token_times_ns=arrivals, bandwidth_gbps=roofline.Probe().bandwidth())
    judged = dict(valid=not reason, reason=reason, tokens_sha256=tokens_hash(made))
    fields = dict(order=order, seed=seed, phase="cold", **judged, **times)
    lab.keep(Compilation(**lab.identity, **about(decoder, program, loaded), **fields))


def staged(decoder: Decoder) -> tuple[jax.stages.Compiled, dict[str, int], list[str]]:
    """(the executable, ns of each stage by the clock and as JAX reports it, which stages were not apart)."""
    start = jax.block_until_ready(decoder.start())
    jax.block_until_ready(decoder.engine.params)
    stage, times, wrong = getattr(decoder.engine.programs, program_of(decoder.engine.placement)), {}, []
    for name, kind in STAGES.items():
        with Guard() as guard:
            began = time.perf_counter_ns()
            stage = stage.trace(*decoder.arguments(*start)) if name == "trace" else getattr(stage, name)()
            times[f"{name}_ns"] = time.perf_counter_ns() - began
        times[f"heard_{name}_ns"] = round(guard.seconds(kind) * 1e9)
        heard = {k: guard.count(k) for k in STAGES.values()}
        if heard != {**dict.fromkeys(STAGES.values(), 0), kind: heard[kind]} or not heard[kind]:
            wrong.append(f"the stage {name} was not apart: it did {', '.join(f'{k} {n}' for k, n in heard.items())}")
    return stage, times, wrong


def about(decoder: Decoder, program: jax.stages.Compiled, loaded: Checkpoint) -> dict:
    """The fields of a row that its program decides: what it is of, and its sizes."""
    config, placement = decoder.engine.config, decoder.engine.placement
    executable, dtype = program.runtime_executable(), decoder.engine.params.embeddings.weight.dtype
    try:
        length = len(serialize_executable.serialize(program)[0])
    except (ValueError, NotImplementedError, jax.errors.JaxRuntimeError):
        length = None
    kv = memory.predicted(config, dtype.itemsize, dtype.itemsize, 1, decoder.slots, placement.cache)["kv_bytes"]
    return dict(
        placement=placement.name,
        model=loaded.name,
        weights_hash=loaded.weights_hash,
        dtype=dtype.name,
        depth=config.num_hidden_layers,
        cache_slots=decoder.slots,
        instructions=profiling.describe(executable)["instructions"],
        executable_bytes=length,
        bytes_per_token=roofline.bytes_per_token(config, decoder.tokens / 2, dtype.itemsize, dtype.itemsize),
        layer_bytes=config.parameters_per_layer * dtype.itemsize,
        kv_bytes=kv,
        **protocol.program_sizes(memory.analyse(executable)),
    )


def of_slots(lab: Lab, placements: list[str], slots: list[int]) -> None:
    """Programs for KV caches of several lengths, from shapes alone: nothing is allocated and nothing run."""
    loaded = lab.load()
    engines = [generate.build(loaded, parse(name)) for name in placements]
    for order, (engine, n) in enumerate((engine, n) for n in slots for engine in engines):
        decoder = Decoder(engine, 1, n)
        program = getattr(engine.programs, program_of(engine.placement))
        compiled = program.lower(*decoder.arguments(*jax.eval_shape(decoder.start))).compile()
        fields = dict(order=order, seed=0, phase="sizes", valid=True, token_times_ns=[])
        lab.keep(Compilation(**lab.identity, **about(decoder, compiled, loaded), **fields))
