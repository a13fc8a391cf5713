"""What a call costs: one decode step as the placement `step`, and as Flax makes it with and without jit, at several
sizes.

A call *returns* when the host has handed everything to the device, and is *complete* when the token is there. The time
between call and return is Python's and the runtime's own; a small model leaves nothing else to wait for. Every way
starts from an empty cache and one token, so that it is one program at one shape.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from llama_jax import checkpoint, generate, transforms
from llama_jax.decoding.steps import new_draw
from llama_jax.plumbing.errors import UserError, near
from llama_lab.bench import frames, gate, memory, roofline, statistics, summary
from llama_lab.bench.experiment import Experiment, Point, Runner, Seed, check_counts, whole
from llama_lab.bench.gate import tokens_hash
from llama_lab.bench.guard import Guard
from llama_lab.bench.lab import Lab
from llama_lab.bench.record import Row

STEP = "step"
UNJITTED, NNX_UNJITTED = "flax-linen", "flax-nnx"
JITTED, NNX_JITTED, SPLIT = "flax-linen+jit", "flax-nnx+jit", "flax-nnx+split"
WAYS = (UNJITTED, NNX_UNJITTED, NNX_JITTED, SPLIT, JITTED, STEP)
FEWER = (UNJITTED, NNX_JITTED, SPLIT, JITTED, STEP)  # for a quick look: the two un-jitted ways cost most of the time
SMALL = "hidden_size=64,intermediate_size=128,num_attention_heads=4,num_key_value_heads=2,head_dim=16,vocab_size=97"
MODELS = {  # small ones of random weights: few arrays, and as many as SmolLM2-135M has
    "2 layers": f"random:smollm2-135m,num_hidden_layers=2,{SMALL}",
    "30 layers": f"random:smollm2-135m,{SMALL}",
}
FIRST_TOKEN = 1
WARM_CALLS = 2
MAX_WARM_UPS = 6


class CallRow(Row):
    """A burst of decode calls of one way, one after the other, each waited for before the next. Times in ns."""

    subject: str
    model: str
    weights_hash: str
    layers: int
    width: int
    parameters: int
    round: int  # within its process: every way once, in random order
    cache_slots: int
    dispatch_ns: list[int]  # from call to return, each call
    complete_ns: list[int]  # from call to token, each call
    dispatches: int  # operations that one call hands to the device
    output_bytes: int | None = None  # what its program hands back, as XLA says; None if it is no single program
    lowered: int  # in the burst; a burst in which anything was lowered or compiled is void
    compiled: int
    bytes_per_token: float
    bandwidth_gbps: float
    tokens_sha256: str

    @property
    def dispatch_us(self) -> float:
        """The burst's median."""
        return float(np.median(self.dispatch_ns)) / 1e3

    @property
    def complete_us(self) -> float:
        """The burst's median."""
        return float(np.median(self.complete_ns)) / 1e3

    @property
    def limit_us(self) -> float:
        """The least that a token takes: its bytes over the bandwidth that the process read."""
        return self.bytes_per_token / self.bandwidth_gbps / 1e3


@dataclass(frozen=True)
class CostOfACall(Experiment):
    """Bursts of `flax_calls` decode calls of every way, in `flax_rounds` rounds, in `processes` for each model.

    flax_sizes: names of `MODELS`, measured beside the model. ways: of `WAYS`.
    """

    kind = CallRow
    beside = ("ways",)

    model: str
    seed: Seed
    processes: int
    flax_sizes: tuple[str, ...]
    flax_rounds: int
    flax_calls: int
    ways: tuple[str, ...] = FEWER

    @property
    def also(self) -> object:
        return MODELS, self.ways

    @property
    def models(self) -> list[str]:
        return list(dict.fromkeys([*(MODELS[size] for size in self.flax_sizes), self.model]))

    def check(self) -> None:
        check_counts(processes=self.processes, rounds=self.flax_rounds, calls=self.flax_calls)
        asked = [("size of model", size, MODELS) for size in self.flax_sizes]
        for what, name, known in [*asked, *(("way of calling", way, WAYS) for way in self.ways)]:
            if name not in known:
                raise UserError(f"No such {what}: {name!r}.{near(name, known)}")
        for model in self.models:
            room = checkpoint.load_config(model).max_position_embeddings
            if self.flax_calls + 2 > room:
                raise UserError(f"{self.flax_calls} calls exceed the context of {room} of {model}; ask for fewer.")

    def points(self, runner: Runner) -> list[Point]:
        rows = self.flax_rounds * len(self.ways)
        order = [(block, model) for block in range(self.processes) for model in self.models]
        return [
            Point(f"per call {model}", block, self.bursts, rows, {}, f"cost of a call: {model.split(',')[0]}", model)
            for block, model in order
        ]

    def bursts(self, lab: Lab) -> None:
        """Rounds of every way in random order. A burst's tokens must be those of `step`, as the gate compares them."""
        loaded, calls = lab.load(), self.flax_calls
        config, slots = loaded.config, generate.bucket(calls + 2)
        ways = {name: way(loaded, name, slots) for name in self.ways}
        for name, how in ways.items():
            lab.announce(what=f"warm-up {name}")
            warm_up(how)
        judge = judging(loaded, ways.get(STEP) or way(loaded, STEP, slots), calls)
        start = jnp.full(1, FIRST_TOKEN, jnp.int32)
        counts, outputs = {name: how.dispatches(start, how.start()) for name, how in ways.items()}, output_bytes()
        known = dict(
            model=loaded.name,
            weights_hash=loaded.weights_hash,
            layers=config.num_hidden_layers,
            width=config.hidden_size,
            parameters=config.num_parameters,
            cache_slots=slots,
            seed=self.seed,
            phase="warm",
            bytes_per_token=roofline.bytes_per_token(config, calls / 2, 4, 4, 1),
            bandwidth_gbps=roofline.Probe().bandwidth(),
        )
        rng = np.random.default_rng([self.seed, lab.block])
        turns = [(turn, str(name)) for turn in range(self.flax_rounds) for name in rng.permutation(self.ways)]
        for order, (turn, name) in enumerate(turns):
            times, tokens, guard = burst(ways[name], calls)
            verdict = judge(tokens)
            reason = "; ".join(filter(None, (guard.reason, verdict.reason)))
            compiled = dict(lowered=guard.count("lower"), compiled=guard.compilations)
            judged = dict(valid=verdict.passed and not guard.fired, reason=reason, tokens_sha256=tokens_hash(tokens))
            program = dict(dispatches=counts[name], output_bytes=outputs.get(name))
            place = dict(subject=name, round=turn, order=order)
            lab.keep(CallRow(**lab.identity, **known, **place, **times, **program, **compiled, **judged))


# What the children run ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Way:
    """start() → empty state; advance(token [B], state) → (token [B], state); dispatches(token, state) → int."""

    start: Callable
    advance: Callable
    dispatches: Callable


def way(loaded: checkpoint.Checkpoint, name: str, slots: int) -> Way:
    """A way of calling, its state empty. Nothing is compiled yet."""
    from llama_lab.peers import flax  # here, as peers know `bench` and not the other way round

    pad = np.zeros(1, np.int32)
    if name != STEP:
        twin = flax.twin(loaded, name)
        return Way(
            lambda: twin.start(pad, slots), twin.advance, lambda token, state: flax.dispatches(twin, token, state)
        )
    engine = generate.build(loaded, name)

    def start():
        cache = transforms.new_cache(engine.params, pad, slots, loaded.config, engine.placement)
        return transforms.Carry(cache, new_draw(np.zeros(1, np.uint32), loaded.config.vocab_size, generate.GREEDY))

    def advance(token, carry):
        return engine.programs.step(engine.params, token, carry, generate.GREEDY)

    return Way(start, advance, lambda token, carry: len(jax.make_jaxpr(advance)(token, carry).eqns))


def burst(how: Way, calls: int) -> tuple[dict[str, list[int]], np.ndarray, Guard]:
    """Calls after one that is not timed: (ns to return and to token, tokens [calls + 1, 1], the guard)."""
    state, returned, complete = how.start(), [], []
    token, state = how.advance(jnp.full(1, FIRST_TOKEN, jnp.int32), state)
    tokens = [token.block_until_ready()]
    with Guard() as guard:
        for _ in range(calls):
            start = time.perf_counter_ns()
            token, state = how.advance(token, state)
            back = time.perf_counter_ns()
            token.block_until_ready()
            complete.append(time.perf_counter_ns() - start)
            returned.append(back - start)
            tokens.append(token)
    return dict(dispatch_ns=returned, complete_ns=complete), np.stack([np.asarray(t) for t in tokens]), guard


def warm_up(how: Way) -> None:
    """Short bursts until nothing compiles twice in a row. Where that never comes, bursts that count are void."""
    silent = 0
    for _ in range(MAX_WARM_UPS):
        with Guard() as guard:  # around the start as well
            burst(how, WARM_CALLS)
        silent = 0 if guard.fired else silent + 1
        if silent == 2:
            return


def output_bytes() -> dict[str, int]:
    """Bytes that one call's program hands back, by way."""
    from llama_lab.peers import flax

    names = {program: name for name, program in (flax.PROGRAMS | {STEP: STEP}).items()}
    return {names[p.name]: p.output_bytes for p in memory.programs() if p.name in names}


def judging(loaded: checkpoint.Checkpoint, step: Way, calls: int) -> Callable:
    """judge(tokens) → the gate's verdict against the tokens of `step`, whose own logits tell a near-tie."""
    expected = burst(step, calls)[1][:, 0]

    def judge(tokens: np.ndarray) -> gate.Verdict:
        ids = [FIRST_TOKEN, *tokens[:-1, 0].tolist()]
        return gate.compare(tokens[:, 0], expected, lambda: generate.logits(generate.build(loaded, "eager"), ids))

    return judge


# What the rows say ----------------------------------------------------------------------------------------------------


def bursts_of(rows: Sequence[CallRow], model: str, subject: str, field: str) -> dict[tuple[int, int], float]:
    """A field of a way's valid bursts by (process, round): what stood side by side."""
    return {
        (r.process, r.round): getattr(r, field) for r in rows if r.model == model and r.subject == subject and r.valid
    }


def times_as_long(rows: Sequence[CallRow], model: str, subject: str, other: str, seed: int = 0) -> statistics.Ratio:
    """Time of a call until its token, over another way's: medians of bursts in pairs, processes resampled as wholes."""
    times = [bursts_of(rows, model, name, "complete_us") for name in (subject, other)]
    return statistics.of_times(summary.over(*times, seed))


def dispatch_difference(
    rows: Sequence[CallRow], model: str, subject: str, other: str, seed: int = 0
) -> statistics.Mean:
    """Microseconds by which a way's call returns later than another's: the mean of paired differences."""
    later, sooner = (bursts_of(rows, model, name, "dispatch_us") for name in (subject, other))
    pairs = sorted(set(later) & set(sooner))
    return statistics.mean([later[p] - sooner[p] for p in pairs], seed, [process for process, _ in pairs])


def table(rows: Sequence[CallRow], seed: int = 0) -> list[dict]:
    """One entry per model and way, models by size, of `summary.tally`: {model, subject, dispatch_us and complete_us:
    Summaries of the bursts' medians, …}, and {layers, width, parameters, dispatches, output_bytes, calls, over_step:
    Ratio, limit_us}."""
    rows = sorted(whole(rows), key=lambda r: (r.parameters, r.layers, r.model, WAYS.index(r.subject)))
    entries = summary.tally(rows, ("model", "subject"), ("dispatch_us", "complete_us"), seed=seed).to_dict("records")
    for e in entries:
        first = e["every"][0]
        e |= {name: getattr(first, name) for name in ("layers", "width", "parameters", "dispatches", "output_bytes")}
        e |= dict(
            points=list(zip(*e["points"].values(), strict=True)),
            calls=len(first.dispatch_ns),
            over_step=times_as_long(rows, e["model"], e["subject"], STEP, seed),
            limit_us=float(np.median([r.limit_us for r in e["every"]])),
        )
    return entries


COLUMNS = frames.Columns(
    {
        "model": lambda e: e["model"].split(",")[0],
        "layers": "layers",
        "width": "width",
        "way": "subject",
        "dispatches": "dispatches",
        "hands back MB": frames.scaled("output_bytes", 1e6),
        "returns after ms": frames.scaled("dispatch_us.median", 1e3),
        "token after ms": frames.scaled("complete_us.median", 1e3),
        **frames.interval("x step", "over_step", "value"),
        "bursts": "complete_us.n",
        "void": "void",
    },
    index=("model", "layers", "width", "way"),
    digits=3,
)
