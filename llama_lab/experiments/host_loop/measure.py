"""Who waits for whom: the host's time for starting programs, waiting for them and making text, by host strategy and
model size.

One program can be driven in many ways: token by token, a bounded number of calls ahead, in three threads, several
tokens per call, the whole answer in one call, with tokens sent from inside. If a token takes the device long, the
strategy does not matter; if not, the host is what is measured. On a CPU the "device" is the host's own cores: a thread
that works for one takes from the other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from llama_jax import checkpoint
from llama_jax import prompts as science
from llama_jax.plumbing.errors import UserError, near
from llama_lab.bench import AGAIN, frames, passages, protocol, roofline, statistics, summary
from llama_lab.bench.experiment import Experiment, Point, Runner, Seed, check_counts, whole
from llama_lab.bench.lab import Lab
from llama_lab.bench.protocol import Reference
from llama_lab.bench.wording import short_model
from llama_lab.bench.workload import Workload, blocks, shuffled
from llama_lab.experiments.host_loop import clock as host_clock
from llama_lab.experiments.host_loop.clock import ONE_THREAD, THREADS, Clock, HostTrial

BASELINE = "step"
STRATEGIES = (BASELINE, "step+async", "step+async4", "step+async8", "step+queue", "chunk8", "chunk8+callback", "loop",
              "loop+callback")  # fmt: skip
SWEPT = (BASELINE, "step+async8", "step+queue", "loop", "loop+callback")  # what a larger random model is asked
TIMES = {"0.1M": 5, "1M": 5, "10M": 2}  # as many blocks as asked for, where an answer takes milliseconds
SIZES = {  # random models by about how many weights a token reads
    "0.1M": "random:smollm2-135m,num_hidden_layers=2,hidden_size=64,intermediate_size=128,num_attention_heads=4,"
            "num_key_value_heads=2,head_dim=16,vocab_size=512",
    "1M": "random:smollm2-135m,num_hidden_layers=4,hidden_size=128,intermediate_size=256,num_attention_heads=4,"
          "num_key_value_heads=2,head_dim=32,vocab_size=4096",
    "10M": "random:smollm2-135m,num_hidden_layers=6,hidden_size=320,intermediate_size=768,num_attention_heads=5,"
           "num_key_value_heads=5,head_dim=64,vocab_size=8192",
    "360M": "random:smollm2-360m",
}  # fmt: skip


@dataclass(frozen=True)
class HostLoop(Experiment):
    """Every strategy on the model and on random ones of `sizes`, each in `processes` of its own; all questions served
    two ways by the smallest of them and the model.

    blocks: times a process measures each strategy; rounds: times it serves all questions, each way. Both more often
    where it takes no time (`TIMES`).
    """

    kind = HostTrial

    model: str
    seed: Seed
    sizes: tuple[str, ...]
    prompts: int
    blocks: int
    processes: int
    rounds: int
    new_tokens: int

    @property
    def also(self) -> object:
        return STRATEGIES, SIZES

    def check(self) -> None:
        check_counts(processes=self.processes, blocks=self.blocks, rounds=self.rounds)
        known(self.sizes, self.model)

    def measure(self, runner: Runner) -> tuple[list[HostTrial], dict]:
        """The models take turns in seeded random order; then they are served."""
        loaded = checkpoint.load(self.model)
        work = passages.science(loaded, science.load(self.prompts), self.new_tokens, self.seed)
        drawn = blocks(self.asked(work, self.sizes), self.processes, self.seed)
        runner.run([self.compared(i, *model) for i, _, model in drawn])
        few = self.asked(work, self.sizes[:1])
        runner.run([self.served(i, *model[:3]) for i in range(self.processes) for model in few])
        return runner.rows, dict(weights_hash=loaded.weights_hash, baseline=BASELINE)

    def asked(self, work: Workload, sizes: Sequence[str]) -> list[tuple[str, Workload, int, Sequence[str]]]:
        """(model, its workload, how often it is asked what others are asked once, strategies), the model itself first.
        Random models have prompts of random ids, as long as the others are when padded."""
        models = [(self.model, work, 1, STRATEGIES)]
        for size in known(sizes, self.model):
            vocabulary = checkpoint.load_config(SIZES[size]).vocab_size
            ids = passages.random_prompts(vocabulary, work.length, work.seed, len(work.prompts))
            names = STRATEGIES if size in TIMES else SWEPT
            models.append((SIZES[size], replace(work, prompts=ids), TIMES.get(size, 1), names))
        return models

    def compared(self, i: int, model: str, work: Workload, times: int, names: Sequence[str]) -> Point:
        """The i-th process of a model that compares its strategies."""
        count = times * self.blocks
        numbers = list(range(i * count, (i + 1) * count))
        arguments = dict(names=list(names), blocks=numbers)
        words = f"host strategies of {short(model)}"
        return Point(f"strategies {model}", numbers[-1], strategies, len(names) + 1, arguments, words, model, work)

    def served(self, i: int, model: str, work: Workload, times: int) -> Point:
        """The i-th process of a model that serves its prompts two ways."""
        count = times * self.rounds
        numbers = list(range(i * count, (i + 1) * count))
        arguments = dict(rounds=numbers)
        words = f"serving {short(model)}"
        return Point(f"serve {model}", numbers[-1], served_two_ways, 2, arguments, words, model, work)


def known(sizes: Sequence[str], model: str) -> list[str]:
    """The sizes, each once, less the one that `model` is. Raises UserError for what is no name of `SIZES`."""
    for size in sizes:
        if size not in SIZES:
            raise UserError(f"No such size of a model: {size!r}.{near(str(size), SIZES)}")
    return [size for size in dict.fromkeys(sizes) if SIZES[size] != model]


def random_weights(models: Sequence[str]) -> str:
    """Which of these models have random weights, for a figure's label; "" for none."""
    names = ", ".join(short(model).removeprefix("random ") for model in models if model.startswith("random:"))
    return f"random weights: {names}" if names else ""


def short(model: str) -> str:
    """A model's name for a label: a random one of `SIZES` by its size, another as `wording.short_model` says it."""
    return next((f"random {size}" for size, name in SIZES.items() if name == model), None) or short_model(model)


# What the children run ------------------------------------------------------------------------------------------------


def strategies(lab: Lab, names: Sequence[str], blocks: Sequence[int]) -> None:
    """The strategies of one model, interleaved, with the baseline twice in each block."""
    loaded, clock = lab.load(), Clock()
    subjects = [host_clock.subject(loaded, engine, clock) for engine in host_clock.engines(loaded, names).values()]
    reference = Reference(loaded, lab.workload)
    lab.blocks(subjects, blocks, BASELINE, reference, lambda trial: lab.keep(host_clock.measured(trial, clock, loaded)))


def served_two_ways(lab: Lab, rounds: Sequence[int]) -> None:
    """The prompts served by one thread, and by a pipeline of threads: both in each round, in random order."""
    loaded, workload = lab.load(), lab.workload
    clock, reference, bandwidth = Clock(), Reference(loaded, workload), roofline.Probe().bandwidth()
    servers = [host_clock.server(loaded, name, clock) for name in (ONE_THREAD, THREADS)]
    for server in servers:
        protocol.warm_up(server, workload, lab.announce)
    for block in rounds:
        for order, server in enumerate(shuffled(servers, workload.seed, block)):
            trial, tokens = lab.trial(server, workload, 0, block=block, order=order, phase="warm")
            sizes = dict(bandwidth_gbps=bandwidth, prompt_tokens=sum(map(len, map(reference.encode, workload.prompts))))
            whole_run = host_clock.judged(trial, tokens, reference).model_copy(update=sizes)
            lab.keep(host_clock.measured(whole_run, clock, loaded))


# What the trials say --------------------------------------------------------------------------------------------------


def of_model(trials: Sequence[HostTrial], model: str, what: str = "strategies") -> list[HostTrial]:
    """The trials of one model, without what an interrupted process left."""
    return [t for t in whole(trials) if t.run == f"{what} {model}"]


def models(trials: Sequence[HostTrial], what: str = "strategies") -> list[str]:
    """Names of the models measured, smallest first."""
    read = {t.model: t.weights_read for t in trials if t.run == f"{what} {t.model}"}
    return sorted(read, key=read.get)


def table(trials: Sequence[HostTrial], model: str, seed: int = 0) -> list[dict]:
    """`summary.table` of one model's strategies, each with medians of where its time went: calls, microseconds per
    token, cores busy; None if there is no valid trial."""
    mine = of_model(trials, model)
    present = {t.subject for t in mine}
    entries = summary.table(mine, BASELINE, [n for n in STRATEGIES if n in present], seed)
    for entry in entries:
        rows = summary.warm(mine, entry["name"])
        for what in ("dispatch", "fetch", "text", "wall"):
            entry[f"{what}_us"] = summary.median([t.per_token(f"{what}_ns") for t in rows])
        lasting = [t for t in rows if t.wall_ns]
        entry |= dict(
            calls=summary.median([t.calls for t in rows]),
            cores=summary.median([t.cores for t in lasting]),
            reader_cores=summary.median([t.reader_cpu_ns / t.wall_ns for t in lasting]),
        )
    return entries


COLUMNS = frames.Columns(
    {
        "strategy": "name",
        "tokens/s": "tokens_per_second.median",
        **frames.interval("ratio", "ratio_to_baseline", "value"),
        "verdict": "ratio_to_baseline.judged",
        "TTFT ms": "ttft_ms",
        "gap p50 ms": "itl_ms.p50",
        "gap p95 ms": "itl_ms.p95",
        "calls": "calls",
        "dispatch us/token": "dispatch_us",
        "wait us/token": "fetch_us",
        "text us/token": "text_us",
        "cores busy": "cores",
        "reader's thread": "reader_cores",
        "valid": "valid_trials",
        "void": "voided_trials",
    },
    index="strategy",
    digits=3,
)


def by_size(trials: Sequence[HostTrial], seed: int = 0) -> list[dict]:
    """One entry per model, smallest first: weights a token reads, and microseconds a token with their intervals.

    dispatch, wait: of the synchronous step. alone: of the loop, which no host interrupts. ratios: strategy → Ratio to
    the step. Models without a valid trial of both are left out.
    """
    points = []
    for model in models(trials):
        mine = of_model(trials, model)
        step, loop = summary.warm(mine, BASELINE) + summary.warm(mine, BASELINE + AGAIN), summary.warm(mine, "loop")
        if not step or not loop:
            continue
        point = dict(model=model, weights=step[0].weights_read)
        for name, rows, spent in (("dispatch", step, "dispatch"), ("wait", step, "fetch"), ("alone", loop, "wall")):
            times = [t.per_token(f"{spent}_ns") for t in rows]
            point[name] = statistics.summarise(times, seed, [t.process for t in rows])
        compared = [name for name in STRATEGIES[1:] if summary.warm(mine, name)]
        point["ratios"] = {name: summary.paired_ratio(mine, name, BASELINE, seed) for name in compared}
        points.append(point)
    return points


def ratios_frame(points: Sequence[dict]):
    """Each strategy's ratio to token by token, as a pandas.DataFrame by model. points: of `by_size`."""

    def words(name: str) -> Callable[[dict], str | None]:
        return lambda p: f"{p['ratios'][name].words} {p['ratios'][name].judged}" if name in p["ratios"] else None

    shown = {"model": lambda p: short(p["model"]), "weights": "weights"}
    shown |= {name: words(name) for p in points for name in p["ratios"]}
    return frames.show(points, frames.Columns(shown, index="model"))


def crossover(points: Sequence[dict]) -> float | None:
    """Weights per token at which waiting overtakes dispatching, between two models on log scales, or None."""
    above = [(p["weights"], math.log(p["wait"].median / p["dispatch"].median)) for p in points]
    for (small, a), (large, b) in pairwise(above):
        if a <= 0 < b:
            return math.exp(math.log(small) + math.log(large / small) * -a / (b - a))
    return None


def served(trials: Sequence[HostTrial], seed: int = 0) -> list[dict]:
    """One entry per model served, smallest first: tokens/s and cores busy each way, and the ratio of threads to one
    thread.

    Whole runs count, from the first request to the last token. Runs pair within their round.
    """
    entries = []
    for model in models(trials, "serve"):
        rates, cores = {}, {}
        for way in (THREADS, ONE_THREAD):
            rows = [t for t in of_model(trials, model, "serve") if t.valid and t.subject == way]
            rates[way] = {summary.in_block(t): t.new_tokens / t.seconds for t in rows}
            cores[way] = summary.median([t.cores for t in rows])
        medians = {way: summary.median([*side.values()]) for way, side in rates.items()}
        ratio = summary.over(rates[THREADS], rates[ONE_THREAD], seed)
        entries.append(dict(model=model, ratio=ratio, cores=cores, rates=medians))
    return entries


SERVED = frames.Columns(
    {
        "model": lambda e: short(e["model"]),
        **{f"tokens/s, {way}": f"rates.{way}" for way in (THREADS, ONE_THREAD)},
        **{f"cores, {way}": f"cores.{way}" for way in (THREADS, ONE_THREAD)},
        "threads / one": "ratio.words",
        "verdict": "ratio.judged",
        "runs": "ratio.n",
    },
    index="model",
    digits=2,
)
