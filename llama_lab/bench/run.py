"""`llama-jax bench`: choose subjects, measure, and lay the result out as a table and as JSON."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from llama_jax import checkpoint
from llama_jax.config import ModelConfig
from llama_jax.engine import requantised
from llama_jax.generate import GREEDY
from llama_jax.placement import LADDER, Placement, parse
from llama_jax.plumbing import runtime
from llama_jax.plumbing.errors import UserError, near
from llama_jax.plumbing.settings import ready
from llama_jax.sampling import Sampler
from llama_lab.bench import environment, phases, profiling, protocol, roofline, summary
from llama_lab.bench.journal import Journal
from llama_lab.bench.passages import PROMPTS, check_context, random_prompts
from llama_lab.bench.phases import Plan
from llama_lab.bench.progress import Progress, announce
from llama_lab.bench.record import Trial
from llama_lab.bench.recorded import journal_plan, measured_in
from llama_lab.bench.workload import Workload


@dataclass(frozen=True)
class Settings:
    model: str
    placements: tuple[str, ...]
    peers: tuple[str, ...] = ()
    baseline: str | None = None
    prompt_tokens: int = 48
    new_tokens: int = 50
    blocks: int = 5
    batch: int = 1
    seed: int = 0
    sampler: Sampler = GREEDY
    processes: int = 1
    cold: int = 1
    cached: int = 0
    threads: int | None = None
    explain: bool = False
    journal: Path | None = None
    limit: float = 600.0
    skip_corrupt: bool = False


def run(settings: Settings, progress: Progress = announce) -> tuple[dict, list[Trial], dict]:
    """Measure and summarise: (the document of `bench --json`, trials, meta for a table of them).

    All names are checked before anything is loaded.
    """
    from llama_lab import peers

    placements, baseline = chosen(settings)
    ready(measuring=True)
    gaps = peers.missing(settings.peers, settings.model, settings.sampler)
    here = tuple(name for name in settings.peers if name not in {gap["name"] for gap in gaps})
    source = checkpoint.find(settings.model)
    workload = asked(settings, source.config)
    check_context(source.config, workload)
    same = ("model", "blocks", "processes", "cold", "cached", "threads", "explain", "limit")
    common = {name: getattr(settings, name) for name in same}
    plan = Plan(placements=placements, workload=workload, baseline=baseline, peers=here, **common)
    before, names = environment.capture(), [p.name for p in placements]
    runtime.warn(before["runtime"])
    about = {k: v for k, v in asdict(settings).items() if k not in ("journal", "limit", "skip_corrupt")}
    about |= dict(placements=names, baseline=baseline, dtype="float32")
    settled = {k: v for k, v in about.items() if k != "blocks"}  # a journal may be given more blocks
    same_run = journal_plan(settled, before, source.hash())
    journal = Journal(settings.journal, same_run, settings.skip_corrupt, environment=before)
    trials = phases.run(plan, journal, progress)
    rounded = next(filter(None, (requantised(source, placement) for placement in placements)), None)
    gaps += journal.missing
    meta = dict(
        parameters=about,
        baseline=baseline,
        subjects=names + [name for name in here if name not in {gap["name"] for gap in gaps}],
        missing=gaps,
        environment={**before, **measured_in(journal.notes), "weights_hash": source.hash(), "requantised": rounded},
        processes=journal.notes,
        resumed_trials=journal.resumed,
        torn_line=journal.torn,
    )
    limited = roofline.of_runs(trials)
    table = summary.table(limited, baseline, meta["subjects"], settings.seed)
    return document(limited, table, baseline, meta), trials, meta


def document(trials: Sequence[Trial], table: list[dict], baseline: str, meta: dict) -> dict:
    """The document of `bench --json` for trials and their table's meta. The limit is that of the whole batch."""
    sample = next((t for t in trials if t.subject == baseline and t.valid), trials[0])
    known = {k: getattr(sample, k) for k in ("model", "dtype", "prompt_tokens", "new_tokens", "batch", "sampling")}
    bandwidth = max((t.bandwidth_gbps for t in trials if t.bandwidth_gbps), default=None)
    return {
        "baseline": baseline,
        "protocol": {**known, **meta["parameters"], "random_weights": sample.model.startswith("random:"),
                     "resumed_trials": meta.get("resumed_trials", 0), "torn_line": meta.get("torn_line", False),
                     "limit_tokens_per_second": summary.limit(trials, baseline) * sample.batch},
        "environment": {"weights_hash": sample.weights_hash, **meta["environment"], "bandwidth_gbps": bandwidth},
        "subjects": table,
        "missing": meta.get("missing", []),
    }  # fmt: skip


def asked(settings: Settings, config: ModelConfig, count: int = PROMPTS) -> Workload:
    """The workload that the settings describe: so many random prompts."""
    ids = random_prompts(config.vocab_size, settings.prompt_tokens, settings.seed, count)
    return Workload(ids, settings.new_tokens, settings.prompt_tokens, settings.batch, settings.seed, settings.sampler)


def chosen(settings: Settings) -> tuple[tuple[Placement, ...], str]:
    """The placements and the baseline of the settings. Raises UserError for what does not exist or is named twice."""
    from llama_lab import peers

    placements = tuple(parse(name) for name in settings.placements or LADDER)
    names = [p.name for p in placements]
    if len(set(names)) != len(names):
        raise UserError(f"A placement is named twice: {', '.join(names)}.")
    baseline = settings.baseline or ("step" if "step" in names else names[0])
    if baseline not in names:
        raise UserError(f"The baseline {baseline!r} is not among the placements.{near(baseline, names)}")
    peers.check(settings.peers)
    return placements, baseline


def collect(plan: Plan, journal: Journal | None = None, progress: Progress = announce) -> list[Trial]:
    """All phases of a plan (`phases.run`). Raises UserError for a text that is too long for the model."""
    check_context(checkpoint.load_config(plan.model), plan.workload)
    return phases.run(plan, journal, progress)


def profile(settings: Settings, folder: Path, tell: Callable[[str], None]) -> list[dict]:
    """A trace and a summary of its programs for each placement, in FOLDER/NAME; see `profiling.profile`."""
    placements, _ = chosen(settings)
    if settings.peers:
        raise UserError(f"--profile looks into placements only, {settings.peers[0]!r} is a peer; leave --peers out.")
    ready(measuring=True)
    loaded = checkpoint.load(settings.model)
    workload = asked(settings, loaded.config, 1)
    check_context(loaded.config, workload)
    profiles = []
    for placement in placements:
        tell(f"profiling {placement.name}")
        subject = protocol.subject(loaded, placement)
        profiles.append({"name": placement.name, **profiling.profile(subject, folder, workload)})
    return profiles
