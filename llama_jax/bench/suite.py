"""`llama-jax bench`: choose subjects, measure, and lay the result out as a table and as JSON."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from llama_jax import checkpoint, corpus, files, generate, paths, prompts
from llama_jax.bench import environment, phases, profiling, protocol, record, summary
from llama_jax.bench.journal import Journal
from llama_jax.bench.phases import Plan
from llama_jax.bench.progress import Progress, announce
from llama_jax.bench.record import Row, Trial
from llama_jax.bench.summary import median
from llama_jax.bench.workload import Workload
from llama_jax.errors import UserError, near
from llama_jax.placement import LADDER, Placement, parse

PROMPTS = 4  # different prompts, so that no subject can live off one


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
    from llama_jax import peers

    placements, baseline = chosen(settings)
    gaps = peers.missing(settings.peers, settings.model)
    here = tuple(name for name in settings.peers if name not in {gap["name"] for gap in gaps})
    source = checkpoint.find(settings.model)
    ids = random_prompts(source.config.vocab_size, settings.prompt_tokens, settings.seed)
    workload = Workload(ids, settings.new_tokens, settings.prompt_tokens, settings.batch, settings.seed)
    check_context(source.config, workload)
    plan = Plan(settings.model, placements, workload, baseline, "float32", settings.blocks, settings.processes, settings.cold,
                settings.cached, settings.threads, settings.explain, settings.limit, peers=here)  # fmt: skip
    before, names = environment.capture(), [p.name for p in placements]
    about = {k: v for k, v in asdict(settings).items() if k not in ("journal", "limit", "skip_corrupt")}
    about |= dict(placements=names, baseline=baseline, dtype=plan.dtype)
    settled = {k: v for k, v in about.items() if k != "blocks"}  # a journal may be given more blocks
    journal = Journal(settings.journal, journal_plan(settled, before, source.hash()), settings.skip_corrupt, environment=before)
    trials = phases.run(plan, journal, progress)
    gaps += phases.missing(journal)
    names += [name for name in here if name not in {gap["name"] for gap in gaps}]
    after = {**before, **measured_in(journal.notes), "weights_hash": source.hash()}
    meta = dict(parameters=about, baseline=baseline, subjects=names, missing=gaps, environment=after, processes=journal.notes,
                resumed_trials=journal.resumed, torn_line=journal.torn)  # fmt: skip
    return document(trials, summary.table(trials, baseline, names, settings.seed), baseline, meta), trials, meta


def document(trials: Sequence[Trial], table: list[dict], baseline: str, meta: dict) -> dict:
    """The document of `bench --json` for some trials and the meta of their table. The limit is tokens/s of the whole batch."""
    sample = next((t for t in trials if t.subject == baseline and t.valid), trials[0])
    known = {k: getattr(sample, k) for k in ("model", "dtype", "prompt_tokens", "new_tokens", "batch")}
    bandwidth = median([t.bandwidth_gbps for t in trials if t.bandwidth_gbps])
    return {
        "baseline": baseline,
        "protocol": {**known, **meta["parameters"], "random_weights": sample.model.startswith("random:"),
                     "resumed_trials": meta.get("resumed_trials", 0), "torn_line": meta.get("torn_line", False),
                     "limit_tokens_per_second": summary.limit(trials, baseline) * sample.batch},
        "environment": {"weights_hash": sample.weights_hash, **meta["environment"], "bandwidth_gbps": bandwidth},
        "subjects": table,
        "missing": meta.get("missing", []),
    }  # fmt: skip


def chosen(settings: Settings) -> tuple[tuple[Placement, ...], str]:
    """The placements and the baseline that the settings name. Raises UserError for what does not exist or is named twice, peers too."""
    from llama_jax import peers

    placements = tuple(parse(name) for name in settings.placements or LADDER)
    names = [p.name for p in placements]
    if len(set(names)) != len(names):
        raise UserError(f"A placement is named twice: {', '.join(names)}.")
    baseline = settings.baseline or ("step" if "step" in names else names[0])
    if baseline not in names:
        raise UserError(f"The baseline {baseline!r} is not among the placements.{near(baseline, names)}")
    peers.check(settings.peers)
    return placements, baseline


def journal_plan(parameters: dict, machine: dict, weights_hash: str = "") -> dict:
    """What must be the same for an interrupted run to go on: settings, weights, machine, libraries and code."""
    return dict(parameters=parameters, weights_hash=weights_hash, source=environment.source_hash(), packages=machine["packages"],
                settings=machine["settings"], cpu=machine["cpu"], affinity=machine["affinity"])  # fmt: skip


def measured_in(notes: Sequence[dict]) -> dict:
    """The part of the environment that the measuring processes had to themselves, from the notes they left.

    settings, blas, affinity: the last one's, all being started alike. watch: the first load and the last, and the worst
    share of the machine that others took in any of them.
    """
    notes = [note for note in notes if note.get("watch")]
    if not notes:
        return {}
    seen = [note["watch"] for note in notes]
    shares = {kind: max((w[kind] for w in seen if w[kind] != "unknown"), default="unknown") for kind in ("others_cpu", "steal")}
    watch = dict(load_before=seen[0]["load_before"], load_after=seen[-1]["load_after"], **shares)
    gflops = [note["gflops"] for note in notes if note.get("gflops")]
    return {**{k: notes[-1][k] for k in ("settings", "blas", "affinity")}, "watch": watch, **({"gflops": max(gflops)} if gflops else {})}


def collect(plan: Plan, journal: Journal | None = None, progress: Progress = announce) -> list[Trial]:
    """Everything about some placements of one model, in fresh processes; see `phases.run`. Raises UserError for too long a text."""
    check_context(checkpoint.load_config(plan.model), plan.workload)
    return phases.run(plan, journal, progress)


def profile(settings: Settings, folder: Path, tell: Callable[[str], None]) -> list[dict]:
    """A trace and a summary of its programs for each placement, in FOLDER/NAME; see `profiling.profile`."""
    placements, _ = chosen(settings)
    if settings.peers:
        raise UserError(f"--profile looks into placements only, {settings.peers[0]!r} is a peer; leave --peers out.")
    loaded = checkpoint.load(settings.model)
    ids = random_prompts(loaded.config.vocab_size, settings.prompt_tokens, settings.seed, 1)
    workload = Workload(ids, settings.new_tokens, settings.prompt_tokens, settings.batch, settings.seed)
    check_context(loaded.config, workload)
    found = []
    for placement in placements:
        tell(f"profiling {placement.name}")
        found.append({"name": placement.name, **profiling.profile(protocol.subject(loaded, placement), folder, workload)})
    return found


def science(loaded: checkpoint.Checkpoint, questions: Sequence[str], new_tokens: int, seed: int = 0) -> Workload:
    """Questions as chat prompts; for a model without a tokenizer, as many prompts of random ids of like length."""
    if loaded.tokenizer is None:
        ids = random_prompts(loaded.config.vocab_size, 40, seed, len(questions))
        return Workload(ids, new_tokens, generate.bucket(40), seed=seed)
    texts = prompts.as_chat(loaded.tokenizer, questions)
    longest = max(len(loaded.tokenizer.encode(text, special=False)) for text in texts)
    return Workload(texts, new_tokens, generate.bucket(longest), seed=seed)


def exact_length(loaded: checkpoint.Checkpoint, workload: Workload) -> Workload:
    """The workload with its first prompt alone, and no padding before it."""
    first = workload.prompts[0]
    return replace(workload, prompts=(first,), length=len(protocol.encoder(loaded)(first)))


def obtain(
    source: str,
    name: str,
    out_dir: str | Path,
    parameters: dict,
    measure: Callable[[Journal], tuple[list[Row], dict]],
    also: object = None,
    kind: type[Row] = Trial,
) -> tuple[list[Row], dict]:
    """A notebook's trials and their meta: measured now and written to OUT/data/NAME.csv, or as recorded.

    measure(journal) returns trials and what the meta file should say of them. The journal lies in OUT/out/journal: a run
    that was interrupted goes on from it when it is started again with the same parameters, weights, code and machine. also:
    what else makes it the same run, such as placements of one's own; its `repr` counts. kind: what a row is, a Trial by
    default. Recorded data are read from OUT, else from the repository. Raises UserError for another `source`.
    """
    here = Path(out_dir) / "data" / f"{name}.csv"
    if source == "measure":
        before = environment.capture()
        weights = checkpoint.find(parameters["model"]).hash() if "model" in parameters else ""
        plan = {**journal_plan(parameters, before, weights), "also": repr(also)}
        digest = hashlib.sha256(json.dumps(plan, sort_keys=True).encode()).hexdigest()[:12]
        journal = Journal(Path(out_dir) / "out" / "journal" / f"{name}-{digest}.jsonl", plan, kind=kind, environment=before)
        trials, meta = measure(journal)
        around = {**before, **measured_in(journal.notes)}
        record.write(here, trials, kind, environment=around, parameters=parameters, processes=journal.notes,
                     resumed_trials=journal.resumed, **meta)  # fmt: skip
        journal.discard()
    elif source != "recorded":
        raise UserError(f"source is {source!r}; it must be recorded or measure.")
    return record.read(here if here.is_file() else paths.ROOT / "data" / here.name, kind=kind)


def table_beside(name: str, out_dir: str | Path, rows: Sequence[dict] = ()):
    """A small table that belongs to a notebook's trials, OUT/data/NAME.csv, as a pandas.DataFrame; written first where rows are given.

    Read from OUT, else from the repository.
    """
    import pandas as pd

    here = Path(out_dir) / "data" / f"{name}.csv"
    if rows:
        files.write(here, pd.DataFrame(rows).to_csv(index=False, lineterminator="\n"))
    return pd.read_csv(here if here.is_file() else paths.ROOT / "data" / here.name)


def random_prompts(vocabulary: int, tokens: int, seed: int, count: int = PROMPTS) -> tuple[tuple[int, ...], ...]:
    """Prompts of exactly the wanted length: seeded random ids."""
    rng = random.Random(seed)
    return tuple(tuple(rng.randrange(vocabulary) for _ in range(tokens)) for _ in range(count))


def check_context(config, workload: Workload) -> None:
    needed, room = workload.length + workload.new_tokens, config.max_position_embeddings
    if needed > room:
        raise UserError(f"{needed} tokens of prompt and answer exceed the model's context of {room}; ask for fewer.")


def english(loaded: checkpoint.Checkpoint, tokens: int, seed: int = 0) -> list[int]:
    """Ids of an English text of so many tokens, the manual that every Python carries; random ids for a model without a tokenizer."""
    if loaded.tokenizer is None:
        return list(random_prompts(loaded.config.vocab_size, tokens, seed, 1)[0])
    return loaded.tokenizer.encode(corpus.manual()[: 12 * tokens])[:tokens]
