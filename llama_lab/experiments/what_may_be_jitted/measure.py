"""What happens while one token is made: the calls of Python's thread and the operations of the device, from a trace;
and the operations of a program, counted by kind, as traced and as compiled."""

from __future__ import annotations

import tempfile
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass

import jax
from jax.extend import core

from llama_jax import checkpoint, generate
from llama_jax.checkpoint import Checkpoint
from llama_jax.plumbing.errors import UserError
from llama_lab.bench import profiling, tracing
from llama_lab.bench.experiment import Experiment, Runner, Seed
from llama_lab.bench.guard import Guard
from llama_lab.bench.record import Row

PLACEMENTS = ("eager", "step")
PROMPT = (1, 2, 3, 4)
WARM_UPS = 2
MARK = "one token"
CALL = "PjitFunction("  # how JAX names a call of a compiled function in a trace
HOST, DEVICE = "Python calls", "device computes"
INSTEAD = ("parameter", "constant", "tuple", "get-tuple-element", "bitcast")  # these compute nothing


class Traced(Row):
    """One token of a subject, as spans; times in ns since the token began. Names have spaces between them."""

    subject: str
    model: str
    weights_hash: str
    layers: int
    total_ns: int
    host_names: str
    host_starts_ns: list[int]
    host_durations_ns: list[int]
    device_names: str
    device_starts_ns: list[int]
    device_durations_ns: list[int]

    def spans(self, lane: str) -> list[tuple[str, float, float]]:
        """(name, start, duration) in ms of a lane, HOST or DEVICE."""
        kind = "host" if lane == HOST else "device"
        names, starts, durations = (getattr(self, f"{kind}_{part}") for part in ("names", "starts_ns", "durations_ns"))
        return [(n, s / 1e6, d / 1e6) for n, s, d in zip(names.split(), starts, durations, strict=True)]

    @property
    def busy_ms(self) -> float:
        """Milliseconds in which the device computed: its spans' union, since threads overlap."""
        end = busy = 0.0
        for _, start, length in sorted(self.spans(DEVICE), key=lambda span: span[1]):
            busy += max(0.0, start + length - max(start, end))
            end = max(end, start + length)
        return busy


def traced(loaded: Checkpoint, name: str, seed: int = 0) -> Traced:
    """The third token of an answer under a placement, in a warm request; void where it compiled."""
    engine = generate.build(loaded, name)
    for _ in range(WARM_UPS):
        generate.answer(engine, [PROMPT], 4)
    with tempfile.TemporaryDirectory() as place:
        stream = generate.stream(engine, [PROMPT], 4)
        deque((next(stream) for _ in range(2)), maxlen=0)
        with tracing.traced(place), Guard() as guard, jax.profiler.TraceAnnotation(MARK):
            next(stream)
        events = tracing.events(tracing.taken(place))
        deque(stream, maxlen=0)
    return Traced(
        run="trace", block=0, order=PLACEMENTS.index(name) if name in PLACEMENTS else 0, process=0, seed=seed,
        phase="warm", valid=not guard.fired, reason=guard.reason, subject=name, model=loaded.name,
        weights_hash=loaded.weights_hash, layers=loaded.config.num_hidden_layers, **lanes(events),
    )  # fmt: skip


def lanes(events: Sequence[dict]) -> dict:
    """The fields of a `Traced` that its times fill, from a trace's events within MARK.

    Python's lane holds the outermost calls of compiled functions, in the thread of the mark. The device's holds XLA's
    operations, whichever thread ran them: on a CPU small ones run in the caller's. Raises UserError for a trace without
    the mark.
    """
    whole = [e for e in events if e.get("ph") == "X"]
    mark = next((e for e in whole if e["name"] == MARK), None)
    if mark is None:
        raise UserError(f"The trace has no span {MARK!r}: it was taken of something else.")
    begin, end = mark["ts"], mark["ts"] + mark["dur"]
    inside = sorted((e for e in whole if begin <= e["ts"] < end and e is not mark), key=lambda e: e["ts"])
    here = [e for e in inside if (e["pid"], e["tid"]) == (mark["pid"], mark["tid"])]
    calls, until = [], begin
    for e in here:
        if e["name"].startswith(CALL) and e["ts"] >= until:
            calls.append(e)
            until = e["ts"] + e.get("dur", 0)
    computed = [e for e in inside if "hlo_op" in e.get("args", {}) and not e["name"].startswith("end: ")]
    found = {"total_ns": round(mark["dur"] * 1e3)}
    for kind, spans in (("host", calls), ("device", computed)):
        found |= {
            f"{kind}_names": " ".join(e["name"].removeprefix(CALL).removesuffix(")").replace(" ", "_") for e in spans),
            f"{kind}_starts_ns": [round((e["ts"] - begin) * 1e3) for e in spans],
            f"{kind}_durations_ns": [round(e.get("dur", 0) * 1e3) for e in spans],
        }
    return found


@dataclass(frozen=True)
class OneToken(Experiment):
    """One row per placement, measured in this process."""

    kind = Traced

    model: str
    seed: Seed

    def measure(self, runner: Runner) -> tuple[list[Traced], dict]:
        loaded = checkpoint.load(self.model)
        return [traced(loaded, name, self.seed) for name in PLACEMENTS], {}


def primitives(jaxpr) -> Counter[str]:
    """Primitives of a (closed) jaxpr, those of the functions that it calls in their place."""
    counts: Counter[str] = Counter()
    for equation in getattr(jaxpr, "jaxpr", jaxpr).eqns:
        inner = list(core.jaxprs_in_params(equation.params))
        if inner:
            for program in inner:
                counts += primitives(program)
        else:
            counts[equation.primitive.name] += 1
    return counts


def instructions(text: str) -> Counter[str]:
    """Instructions of an optimised HLO module that are run, a fusion counting as one."""
    kept = (i.operation for i in profiling.instructions(text) if not i.fused)
    return Counter(operation for operation in kept if operation not in INSTEAD)
