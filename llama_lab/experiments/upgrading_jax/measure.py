"""The same decode under one release of JAX after the other: `make releases`.

Each release has an environment of its own and processes of its own, interleaved with the others'. Whoever measures is
the locked release: it makes the reference tokens, and nothing else of it is timed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from llama_jax import checkpoint
from llama_jax.plumbing import paths, xla_flags
from llama_jax.plumbing.errors import UserError
from llama_lab.bench import record, recorded
from llama_lab.bench.job import Job, check, whole
from llama_lab.bench.journal import Journal
from llama_lab.bench.order import shuffled
from llama_lab.bench.process import Interpreter
from llama_lab.bench.progress import Progress, announce
from llama_lab.bench.record import Trial
from llama_lab.experiments.upgrading_jax import child, environments

NAME = "15-upgrading-jax"
PLACEMENTS = ("eager", "step", "loop", "step+scan")
FIRST_TOKENS = (50, 200)
SMALL = (
    "random:smollm2-135m,num_hidden_layers=3,hidden_size=64,intermediate_size=160,num_attention_heads=4,"
    "num_key_value_heads=2,head_dim=16,vocab_size=97"
)
DECODE, START = "decode ", "start "


def cases(vocabulary: int, prompt_tokens: int, new_tokens: int, seed: int) -> list[dict]:
    """What is asked: a decode, then first tokens after prompts of `FIRST_TOKENS`; ids are drawn from the vocabulary."""
    draw = np.random.default_rng(seed)
    asked = [(prompt_tokens, new_tokens), *((length, 1) for length in FIRST_TOKENS)]
    return [dict(ids=draw.integers(0, vocabulary, n).tolist(), new_tokens=new) for n, new in asked]


def interpreters(
    releases: Sequence[str], progress: Progress, make: Callable = environments.make
) -> tuple[dict[str, Interpreter], list[dict], str]:
    """(release → what runs it, gaps {name, reason, remedy}, version of Python); environments are made as needed."""
    python, version = environments.interpreter()
    found, gaps = {}, []
    for i, release in enumerate(releases):
        progress(f"environment of jax {release}", i, len(releases))
        try:
            path = make(release.removesuffix(environments.FLAGGED), python)
        except environments.GapError as gap:
            gaps.append(dict(name=release, reason=str(gap), remedy=f"make releases RELEASES={release}"))
            continue
        # as it is shipped, unless it says otherwise: what the package sets would hide what a release does
        settings = {"PYTHONPATH": str(paths.ROOT), **xla_flags.shipped()}
        settings["XLA_FLAGS"] += f" {xla_flags.SETTING}" * release.endswith(environments.FLAGGED)
        found[release] = Interpreter(str(path), settings)
    return found, gaps, version


def measure(
    job: Job,
    found: dict[str, Interpreter],
    gaps: list[dict],
    folder: Path,
    *,
    processes: int,
    blocks: int,
    prompt_tokens: int,
    new_tokens: int,
    seed: int,
    small: str = SMALL,
) -> list[dict]:
    """Every release `processes` times, interleaved in seeded order, and its two starts with a persistent cache.

    Returns the gaps, with releases whose process died. folder: for weights, the reference and caches.
    """
    check(processes=processes, blocks=blocks)
    weights, tiny, reference = folder / "weights", folder / "small", folder / "reference.npz"
    source = checkpoint.find(job.model)
    for where, name, opened in ((weights, job.model, source), (tiny, small, checkpoint.find(small))):
        if not (where / "about.json").is_file():
            job.progress(f"writing the weights of {name}", 0, 1)
            child.save(opened, where, name)
    asked = cases(source.config.vocab_size, prompt_tokens, new_tokens, seed)
    if not reference.is_file():
        job.child(
            "reference", 0, f"{child.__name__}:references", 1, folder=str(weights), cases=asked, out=str(reference)
        )
    dead: dict[str, str] = {}
    total = len(found) * (processes + 1)
    shared = dict(folder=str(weights))

    def run(which: str, name: str, block: int, task: str, expected: int, done: int, **more) -> None:
        if which in dead:
            return
        job.progress(f"jax {which}", done, total)
        try:
            job.child(name, block, f"{child.__name__}:{task}", expected, interpreter=found[which], **shared, **more)
        except UserError as error:  # such as a release that crashes: the others go on
            dead[which] = str(error)

    rows = len(PLACEMENTS) + blocks * (len(PLACEMENTS) + len(FIRST_TOKENS))
    answers = dict(
        small=str(tiny), reference=str(reference), cases=asked, placements=list(PLACEMENTS), blocks=blocks, seed=seed
    )
    for block in range(processes):
        for i, release in enumerate(shuffled(list(found), seed, block)):
            run(release, DECODE + release, block, "answers", rows, block * len(found) + i, release=release, **answers)
    for i, release in enumerate(found):
        for block, phase in enumerate(("cold", "cached")):
            cache = dict(cache=folder / f"cache-{release}", case=asked[0], phase=phase)
            run(release, START + release, block, "first_request", 1, processes * len(found) + i, **cache)
    return [*gaps, *(dict(name=name, reason=said, remedy="it was tried") for name, said in dead.items())]


def obtain(
    source: str,
    out_dir: str | Path,
    releases: Sequence[str] = (),
    model: str = checkpoint.DEFAULT,
    progress: Progress = announce,
    make: Callable = environments.make,
    small: str = SMALL,
    **options,
) -> tuple[list[Trial], dict | None]:
    """Recorded trials and their meta, from OUT or else from the repository; ([], None) where none are recorded.

    source: "measure" measures the `releases` first, where any are named, and goes on where an interrupted run stopped.
    options: as for `measure`. Raises UserError for another source, for a release that is none, and where none can be
    had.
    """
    if source == "measure" and releases:
        environments.check(releases)
        found, gaps, version = interpreters(releases, progress, make)
        if not found:
            raise UserError(f"No release of JAX can be had here: {gaps[0]['reason']}")
        parameters = dict(model=model, releases=list(releases), placements=list(PLACEMENTS), python=version, **options)

        def measured(journal: Journal) -> tuple[list[Trial], dict]:
            folder = Path(out_dir) / "out" / NAME / journal.path.stem
            missing = measure(Job(model, None, journal, progress), found, gaps, folder, **options, small=small)
            facts = {note["release"]: note["facts"] for note in journal.notes if "facts" in note}
            sizes = {
                f"{note['release']} {note['placement']}": note["sizes"] for note in journal.notes if "sizes" in note
            }
            return whole(journal.trials), dict(missing=missing, facts=facts, sizes=sizes)

        return recorded.obtain(source, NAME, out_dir, parameters, measured, also=small)
    if source not in ("measure", "recorded"):
        raise UserError(f"source is {source!r}; it must be recorded or measure.")
    known = (Path(home) / "data" / f"{NAME}.csv" for home in (out_dir, paths.ROOT))
    here = next((path for path in known if path.is_file()), None)
    return record.read(here) if here else ([], None)
