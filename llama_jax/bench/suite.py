"""`llama-jax bench`: choose subjects, measure, and lay the result out as a table and as JSON."""

from __future__ import annotations

import contextlib
import random
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import jax
import numpy as np
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from llama_jax import checkpoint, generate, paths, prompts
from llama_jax.bench import cold, environment, protocol, record, statistics, summary
from llama_jax.bench.protocol import AGAIN, Workload
from llama_jax.bench.record import Trial
from llama_jax.errors import UserError, near
from llama_jax.placement import LADDER, Placement, parse

PROMPTS = 4  # different prompts, so that no subject can live off one


@dataclass(frozen=True)
class Settings:
    model: str
    placements: tuple[str, ...]
    peers: tuple[str, ...]
    baseline: str | None
    prompt_tokens: int
    new_tokens: int
    blocks: int
    batch: int
    seed: int
    cold: bool


def run(settings: Settings, progress: Callable[[str, int, int], None]) -> dict:
    """Measure and summarise: the document of `bench --json`. All names are checked before anything is loaded."""
    placements = [parse(name) for name in settings.placements or LADDER]
    names = [p.name for p in placements]
    if len(set(names)) != len(names):
        raise UserError(f"A placement is named twice: {', '.join(names)}.")
    baseline = settings.baseline or ("step" if "step" in names else names[0])
    if baseline not in names:
        raise UserError(f"The baseline {baseline!r} is not among the placements.{near(baseline, names)}")
    if settings.peers:
        raise UserError(f"No such peer: {settings.peers[0]!r}. No peer can be measured in this version; leave --peers out.")
    loaded = checkpoint.load(settings.model)
    ids = random_prompts(loaded.config.vocab_size, settings.prompt_tokens, settings.seed)
    workload = Workload(ids, settings.new_tokens, settings.prompt_tokens, settings.batch, settings.seed)
    trials = collect(loaded, placements, workload, settings.blocks, baseline, int(settings.cold), progress)
    return {
        "baseline": baseline,
        "protocol": {**asdict(settings), "placements": names, "random_weights": loaded.is_random,
                     "limit_tokens_per_second": summary.limit(trials, baseline) * settings.batch},
        "environment": {**environment.capture(), "weights_hash": loaded.weights_hash,
                        "bandwidth_gbps": next(t.bandwidth_gbps for t in trials if t.bandwidth_gbps)},
        "subjects": summary.table(trials, baseline, names, settings.seed),
        "missing": [],
    }  # fmt: skip


def collect(
    loaded: checkpoint.Checkpoint,
    placements: Sequence[Placement],
    workload: Workload,
    blocks: int,
    baseline: str,
    cold_processes: int = 0,
    progress: Callable[[str, int, int], None] = lambda what, done, total: None,
) -> list[Trial]:
    """Everything about some placements: cold starts in processes of their own, then warm, interleaved, gated blocks."""
    check_context(loaded.config, workload)
    trials = cold.measure(loaded.name, placements, workload, cold_processes, uuid.uuid4().hex[:12], progress)
    subjects = [protocol.subject(loaded, p) for p in placements]
    return trials + protocol.measure(subjects, workload, blocks, protocol.Reference(loaded, workload), baseline, progress)


def harness_overhead(loaded: checkpoint.Checkpoint, workload: Workload, pairs: int) -> dict:
    """Seconds of a whole answer under the harness over those of the bare compiled programs, `loop`, in interleaved pairs.

    The bare run calls prefill and decode itself and waits for the tokens: no guard, no tokenisation, no stream, no record.
    """
    who = protocol.subject(loaded, LADDER["loop"])
    engine = generate.build(loaded, "loop")
    ids = [who.encode(prompt) for prompt in workload.prompts]

    def bare(prompt: int) -> float:
        batch = generate.request(engine, [ids[prompt]], workload.new_tokens, length=workload.length, slots=workload.slots)
        out = np.zeros((generate.bucket(workload.new_tokens - 1), 1), np.int32)
        start = time.perf_counter()
        token, carry = generate.prefill(engine, batch)
        limit = np.int32(workload.new_tokens - 1)
        jax.block_until_ready(engine.programs.decode(engine.params, token, carry, generate.GREEDY, batch.stop, limit, out))
        return time.perf_counter() - start

    def harnessed(prompt: int) -> float:
        return protocol.trial(who, workload, prompt, run="", block=0, order=0, phase="warm")[0].seconds

    sides, seconds = (harnessed, bare), {harnessed: [], bare: []}
    with protocol.alone():
        for i in range(-2, pairs):  # the first two rounds compile and warm up
            for side in sides if i % 2 else sides[::-1]:
                taken = side(i % len(ids))
                if i >= 0:
                    seconds[side].append(taken)
    found = statistics.ratio(seconds[harnessed], seconds[bare], workload.seed)
    return dict(value=found.value, low=found.low, high=found.high, n=found.n, harness_s=seconds[harnessed], bare_s=seconds[bare])


def science(loaded: checkpoint.Checkpoint, questions: Sequence[str], new_tokens: int, seed: int = 0) -> Workload:
    """Questions as chat prompts; for a model without a tokenizer, as many prompts of random ids of like length."""
    if loaded.tokenizer is None:
        ids = random_prompts(loaded.config.vocab_size, 40, seed, len(questions))
        return Workload(ids, new_tokens, generate.bucket(40), seed=seed)
    texts = prompts.as_chat(loaded.tokenizer, questions)
    longest = max(len(loaded.tokenizer.encode(text, special=False)) for text in texts)
    return Workload(texts, new_tokens, generate.bucket(longest), seed=seed)


def obtain(source: str, name: str, out_dir: str | Path, measure: Callable[[], tuple[list[Trial], dict]]) -> tuple[list[Trial], dict]:
    """A notebook's trials and their meta: measured now and written to OUT/data/NAME.csv, or as recorded.

    measure() returns trials and what the meta file should say of them. Recorded data are read from OUT, else from the
    repository. Raises UserError for another `source`.
    """
    here = Path(out_dir) / "data" / f"{name}.csv"
    if source == "measure":
        before = environment.capture()
        trials, meta = measure()
        record.write(here, trials, environment=before, **meta)
    elif source != "recorded":
        raise UserError(f"source is {source!r}; it must be recorded or measure.")
    return record.read(here if here.is_file() else paths.ROOT / "data" / here.name)


def random_prompts(vocabulary: int, tokens: int, seed: int, count: int = PROMPTS) -> tuple[tuple[int, ...], ...]:
    """Prompts of exactly the wanted length: seeded random ids."""
    rng = random.Random(seed)
    return tuple(tuple(rng.randrange(vocabulary) for _ in range(tokens)) for _ in range(count))


def check_context(config, workload: Workload) -> None:
    needed, room = workload.length + workload.new_tokens, config.max_position_embeddings
    if needed > room:
        raise UserError(f"{needed} tokens of prompt and answer exceed the model's context of {room}; ask for fewer.")


@contextlib.contextmanager
def progress_bar() -> Iterator[Callable[[str, int, int], None]]:
    """A bar on standard error that says what is being measured."""
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed}/{task.total}"), TimeElapsedColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("loading", total=1)
        yield lambda what, done, total: bar.update(task, description=what, completed=done, total=total)


def print_table(result: dict) -> None:
    """The table for people, on standard error so that standard output stays the program's."""
    about, env = result["protocol"], result["environment"]
    title = f"{about['model']}, {about['prompt_tokens']} + {about['new_tokens']} tokens, batch {about['batch']}"
    table = Table(title=title + (" · random weights" if about["random_weights"] else ""))
    for column in ("placement", "tokens/s", "IQR", "n", f"x {result['baseline']} [95 %]", "verdict", "MBU", "TTFT ms", "ITL p50 ms",
                   "compiles", "s", "tokens"):  # fmt: skip
        table.add_column(column, justify="left" if column in ("placement", "verdict") else "right")
    for s in result["subjects"]:
        rate, ratio, compiled = s["tokens_per_second"], s["ratio_to_baseline"], s["compile"]
        table.add_row(
            s["name"], number(rate["median"], 1), number(rate["iqr"], 1), str(rate["n"]),
            f"{number(ratio['value'], 2)} [{number(ratio['low'], 2)}, {number(ratio['high'], 2)}]",
            "A/A control: " + ratio["verdict"] if s["name"].endswith(AGAIN) else ratio["verdict"] + (", unstable" if s["unstable"] else ""),
            number(s["mbu"] and 100 * s["mbu"], 0, " %"), number(s["ttft_ms"], 0), number(s["itl_ms"]["p50"], 1),
            str(compiled["n"]) if compiled else "", number(compiled and compiled["seconds"], 2), "equal" if s["tokens_equal"] else "WRONG",
        )  # fmt: skip
    console = Console(stderr=True, width=None if Console(stderr=True).is_terminal else 160)
    console.print(table)
    console.print(
        f"Limit {about['limit_tokens_per_second']:.0f} tok/s at {env['bandwidth_gbps']:.1f} GB/s · {environment.machine_line(env)}"
    )
    for s in result["subjects"]:
        if s["voided_trials"]:
            console.print(f"{s['name']}: {s['voided_trials']} void: {'; '.join(s['reasons'])}")


def number(value: float | None, digits: int, unit: str = "") -> str:
    return "" if value is None or value != value else f"{value:.{digits}f}{unit}"
