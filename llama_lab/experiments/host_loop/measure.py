"""Who waits for whom: what the host spends on starting programs, on waiting for them and on text, by host strategy and
size of model.

One program, many ways to drive it: token by token, a bounded number of calls ahead, in three threads, several tokens a
call, the whole answer in one call, with tokens sent from within. Where a token takes the device long, none of it
matters; where it does not, the host is what is measured. On a CPU the "device" is the host's own cores: a thread that
works for one takes from the other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from llama_jax import checkpoint
from llama_jax import prompts as science
from llama_jax.plumbing.errors import UserError, near
from llama_lab.bench import AGAIN, frames, passages, protocol, roofline, statistics, summary
from llama_lab.bench.experiment import Experiment, Point, Runner, check_counts, whole
from llama_lab.bench.lab import Lab
from llama_lab.bench.protocol import Reference
from llama_lab.bench.wording import short_model
from llama_lab.bench.workload import Workload, blocks, shuffled
from llama_lab.experiments.host_loop.clock import (
    ONE_THREAD,
    THREADS,
    Clock,
    HostTrial,
    engines,
    judged,
    measured,
    server,
    subject,
)

BASELINE = "step"
STRATEGIES = (
    BASELINE,
    "step+async",
    "step+async4",
    "step+async8",
    "step+queue",
    "chunk8",
    "chunk8+callback",
    "loop",
    "loop+callback",
)
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
    seed: int
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
        loaded = checkpoint.load(self.model)
        work = passages.science(loaded, science.load(self.prompts), self.new_tokens, self.seed)
        runner.run(self.by_strategy(work))
        runner.run(self.serving(work))
        return runner.rows, dict(weights_hash=loaded.weights_hash, baseline=BASELINE)

    def by_strategy(self, work: Workload) -> list[Point]:
        """Every strategy on the model and on random ones, on larger ones some; the models take turns in seeded random
        order."""
        planned, found = [(self.model, work, STRATEGIES, self.blocks)], []
        for size in known(self.sizes, self.model):
            names, count = STRATEGIES if size in TIMES else SWEPT, self.blocks * TIMES.get(size, 1)
            planned.append((SIZES[size], sized(work, size), names, count))
        for i, _, (model, asked, names, count) in blocks(planned, self.processes, self.seed):
            numbers = list(range(i * count, (i + 1) * count))
            share, what = dict(names=list(names), blocks=numbers), f"host strategies of {short(model)}"
            run, rows = f"strategies {model}", len(names) + 1
            found.append(Point(run, numbers[-1], strategies, rows, share, what, model, asked))
        return found

    def serving(self, work: Workload) -> list[Point]:
        """All prompts of the workload served in one thread and in a pipeline of threads, on the model and on a random
        one."""
        planned, found = [(self.model, work, self.rounds)], []
        for size in known(self.sizes[:1], self.model):
            planned.append((SIZES[size], sized(work, size), self.rounds * TIMES.get(size, 1)))
        for i in range(self.processes):
            for model, asked, count in planned:
                numbers = list(range(i * count, (i + 1) * count))
                run, what = f"serve {model}", f"serving {short(model)}"
                found.append(Point(run, numbers[-1], served_two_ways, 2, dict(rounds=numbers), what, model, asked))
        return found


def known(sizes: Sequence[str], model: str) -> list[str]:
    """The sizes, each once, less the one that `model` is. Raises UserError for what is no name of `SIZES`."""
    for size in sizes:
        if size not in SIZES:
            raise UserError(f"No such size of a model: {size!r}.{near(str(size), SIZES)}")
    return [size for size in dict.fromkeys(sizes) if SIZES[size] != model]


def sized(work: Workload, size: str) -> Workload:
    """The workload for a random model: prompts of random ids, as long as the others are when padded."""
    config = checkpoint.load_config(SIZES[size])
    return replace(work, prompts=passages.random_prompts(config.vocab_size, work.length, work.seed, len(work.prompts)))


def random_weights(models: Sequence[str]) -> str:
    """Which of these models have random weights, for a figure's label; "" for none."""
    found = [short(m).removeprefix("random ") for m in models if m.startswith("random:")]
    return f"random weights: {', '.join(found)}" if found else ""


def short(model: str) -> str:
    """A model's name for a label: a random one of `SIZES` by its size, another as `wording.short_model` says it."""
    return next((f"random {size}" for size, name in SIZES.items() if name == model), None) or short_model(model)


# What the children run ------------------------------------------------------------------------------------------------


def strategies(lab: Lab, names: Sequence[str], blocks: Sequence[int]) -> None:
    """The strategies of one model, interleaved, the baseline twice in each block."""
    loaded = lab.load()
    clock = Clock()
    subjects = [subject(loaded, engine, clock) for engine in engines(loaded, names).values()]
    reference = Reference(loaded, lab.workload)
    lab.blocks(subjects, blocks, BASELINE, reference, lambda trial: lab.keep(measured(trial, clock, loaded)))


def served_two_ways(lab: Lab, rounds: Sequence[int]) -> None:
    """The prompts served one after the other by one thread, and by a pipeline of threads; in each round both, in random
    order."""
    loaded, workload = lab.load(), lab.workload
    clock, reference, bandwidth = Clock(), Reference(loaded, workload), roofline.Probe().bandwidth()
    both = [server(loaded, name, clock) for name in (ONE_THREAD, THREADS)]
    for who in both:
        protocol.warm_up(who, workload, lab.announce)
    for block in rounds:
        for order, who in enumerate(shuffled(both, workload.seed, block)):
            trial, tokens = lab.trial(who, workload, 0, block=block, order=order, phase="warm")
            sizes = dict(bandwidth_gbps=bandwidth, prompt_tokens=sum(map(len, map(reference.encode, workload.prompts))))
            whole_run = judged(trial, tokens, reference).model_copy(update=sizes)
            lab.keep(measured(whole_run, clock, loaded))


# What the trials say --------------------------------------------------------------------------------------------------


def of_model(trials: Sequence[HostTrial], model: str, what: str = "strategies") -> list[HostTrial]:
    """The trials of one model, without what an interrupted process left."""
    return [t for t in whole(trials) if t.run == f"{what} {model}"]


def models(trials: Sequence[HostTrial], what: str = "strategies") -> list[str]:
    """Names of the models measured, smallest first."""
    read = {t.model: t.weights_read for t in trials if t.run == f"{what} {t.model}"}
    return sorted(read, key=read.get)


def table(trials: Sequence[HostTrial], model: str, seed: int = 0) -> list[dict]:
    """`summary.table` of one model's strategies, each with medians of where its time went: microseconds a token, cores
    busy."""
    mine = of_model(trials, model)
    found = {t.subject for t in mine}
    return [
        {**entry, **spent(summary.warm(mine, entry["name"]))}
        for entry in summary.table(mine, BASELINE, [n for n in STRATEGIES if n in found], seed)
    ]


def spent(trials: Sequence[HostTrial]) -> dict:
    """Medians over some trials: calls, microseconds a token, cores busy; None where there is no valid one."""
    times = {
        name: summary.median([t.per_token(f"{name}_ns") for t in trials])
        for name in ("dispatch", "fetch", "text", "wall")
    }
    reader = summary.median([t.reader_cpu_ns / t.wall_ns for t in trials if t.wall_ns])
    return dict(
        calls=summary.median([t.calls for t in trials]),
        **{f"{k}_us": v for k, v in times.items()},
        cores=summary.median([t.cores for t in trials if t.wall_ns]),
        reader_cores=reader,
    )


COLUMNS = frames.Columns(
    {
        "strategy": "name",
        "tokens/s": "tokens_per_second.median",
        **frames.interval("ratio", "ratio_to_baseline", "value"),
        "verdict": "ratio_to_baseline.verdict",
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
    """One entry a model, smallest first: weights a token reads, and microseconds a token with their intervals.

    dispatch, wait: of the synchronous step. alone: of the loop, which no host interrupts. ratios: strategy → Ratio to
    the step. Models without a valid trial of both are left out.
    """
    found = []
    for model in models(trials):
        mine = of_model(trials, model)
        step, loop = summary.warm(mine, BASELINE) + summary.warm(mine, BASELINE + AGAIN), summary.warm(mine, "loop")
        if not step or not loop:
            continue
        times = dict(
            dispatch=[(t.per_token("dispatch_ns"), t.process) for t in step],
            wait=[(t.per_token("fetch_ns"), t.process) for t in step],
            alone=[(t.per_token("wall_ns"), t.process) for t in loop],
        )
        ratios = {
            name: summary.paired_ratio(mine, name, BASELINE, seed)
            for name in STRATEGIES[1:]
            if summary.warm(mine, name)
        }
        middle = {
            k: statistics.summarise([v for v, _ in pairs], seed, [p for _, p in pairs]) for k, pairs in times.items()
        }
        found.append(dict(model=model, weights=step[0].weights_read, ratios=ratios, **middle))
    return found


def ratios_frame(points: Sequence[dict]):
    """Each strategy's ratio to token by token, as a pandas.DataFrame by model. points: of `by_size`."""
    names = dict.fromkeys(name for p in points for name in p["ratios"])
    shown = {"model": lambda p: short(p["model"]), "weights": "weights"}
    return frames.show(points, frames.Columns(shown | {name: ratio_words(name) for name in names}, index="model"))


def ratio_words(name: str) -> Callable:
    """A column: the ratio and the verdict of a strategy."""

    def words(point: dict) -> str | None:
        ratio = point["ratios"].get(name)
        return ratio and f"{ratio.words} {ratio.verdict}"

    return words


def crossover(points: Sequence[dict]) -> float | None:
    """Weights a token at which waiting overtakes dispatching, between two measured models on log scales; None where it
    does not."""
    above = [math.log(p["wait"].median / p["dispatch"].median) for p in points]
    for small, large, a, b in zip(points, points[1:], above, above[1:], strict=False):
        if a <= 0 < b:
            return math.exp(math.log(small["weights"]) + (math.log(large["weights"] / small["weights"])) * -a / (b - a))
    return None


def served(trials: Sequence[HostTrial], seed: int = 0) -> list[dict]:
    """One entry a model served, smallest first: tokens/s and cores busy each way, and the ratio of threads to one
    thread.

    Whole runs count, from the first request to the last token. Runs pair within their round.
    """
    found = []
    for model in models(trials, "serve"):
        good = [t for t in of_model(trials, model, "serve") if t.valid]
        ways = {
            name: {(t.process, t.block): t.new_tokens / t.seconds for t in good if t.subject == name}
            for name in (THREADS, ONE_THREAD)
        }
        ratio = summary.over(ways[THREADS], ways[ONE_THREAD], seed)
        cores = {name: summary.median([t.cores for t in good if t.subject == name]) for name in ways}
        found.append(
            dict(
                model=model,
                ratio=ratio,
                cores=cores,
                rates={name: summary.median([*side.values()]) for name, side in ways.items()},
            )
        )
    return found


SERVED = frames.Columns(
    {
        "model": lambda e: short(e["model"]),
        **{f"tokens/s, {way}": f"rates.{way}" for way in (THREADS, ONE_THREAD)},
        **{f"cores, {way}": f"cores.{way}" for way in (THREADS, ONE_THREAD)},
        "threads / one": "ratio.words",
        "verdict": "ratio.verdict",
        "runs": "ratio.n",
    },
    index="model",
    digits=2,
)
