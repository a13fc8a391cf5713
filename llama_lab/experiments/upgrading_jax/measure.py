"""The same decode under one release of JAX after the other: `make releases`.

Each release has an environment of its own and processes of its own, interleaved with the others'. Whoever measures is
the locked release: it makes the reference tokens, and nothing else of it is timed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import numpy as np

from llama_jax import checkpoint
from llama_jax.plumbing import paths, xla_flags
from llama_jax.plumbing.errors import UserError
from llama_lab.bench import recorded
from llama_lab.bench.experiment import Experiment, Point, Runner, check_counts
from llama_lab.bench.process import Interpreter
from llama_lab.bench.progress import Progress, announce
from llama_lab.bench.record import Trial
from llama_lab.bench.workload import blocks
from llama_lab.experiments.upgrading_jax import child, environments

NAME = "18-upgrading-jax"
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


@dataclass(frozen=True)
class Releases:
    """What a set of releases can be measured with. there: release → what runs it. gaps: {name, reason, remedy}. python:
    its version."""

    there: dict[str, Interpreter]
    gaps: list[dict]
    python: str

    @classmethod
    def made(cls, releases: Sequence[str], progress: Progress, make: Callable = environments.make) -> Self:
        """Environments are made as needed."""
        python, version = environments.interpreter()
        there, gaps = {}, []
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
            there[release] = Interpreter(str(path), settings)
        return cls(there, gaps, version)


@dataclass(frozen=True)
class Upgrading(Experiment):
    """Every release `processes` times, interleaved in seeded order, and its two starts with a persistent cache.

    made: what runs the releases, None before that is known. small: the model of the oracle. folder: for weights, the
    reference and caches.
    """

    optional = True
    beside = ("made", "small", "folder")

    model: str
    releases: tuple[str, ...]
    processes: int
    blocks: int
    prompt_tokens: int
    new_tokens: int
    seed: int
    made: Releases | None = None
    small: str = SMALL
    folder: Path | None = None

    @property
    def parameters(self) -> dict:
        return super().parameters | dict(placements=PLACEMENTS, python=self.made.python)

    @property
    def also(self) -> object:
        return self.small

    def check(self) -> None:
        check_counts(processes=self.processes, blocks=self.blocks)

    def measure(self, runner: Runner) -> tuple[list[Trial], dict]:
        path = runner.journal.path
        folder = self.folder or path.parent.parent / NAME / path.stem
        files = {name: str(folder / name) for name in ("weights", "small", "reference.npz")}
        config = checkpoint.find(self.model).config
        for name, model in (("weights", self.model), ("small", self.small)):
            if not (folder / name / "about.json").is_file():
                runner.progress(f"writing the weights of {model}", 0, 1)
                child.save(checkpoint.find(model), folder / name, model)
        asked = cases(config.vocab_size, self.prompt_tokens, self.new_tokens, self.seed)
        if not (folder / "reference.npz").is_file():
            wanted = dict(folder=files["weights"], cases=asked, out=files["reference.npz"])
            runner.child(Point("reference", 0, child.references, 1, wanted, watched=False))
        dead: dict[str, str] = {}
        points = self.points_of(files, asked, folder)
        for i, (release, point) in enumerate(points):
            if release in dead:  # the others go on
                continue
            runner.progress(point.what, i, len(points))
            try:
                runner.child(point)
            except UserError as error:
                dead[release] = str(error)
        notes = runner.journal.notes
        facts = {note["release"]: note["facts"] for note in notes if "facts" in note}
        sizes = {f"{note['release']} {note['placement']}": note["sizes"] for note in notes if "sizes" in note}
        gaps = [dict(name=name, reason=reason, remedy="it was tried") for name, reason in dead.items()]
        return runner.rows, dict(missing=[*self.made.gaps, *gaps], facts=facts, sizes=sizes)

    def points_of(self, files: dict[str, str], asked: list[dict], folder: Path) -> list[tuple[str, Point]]:
        """(release, what one of its processes measures), in order."""
        rows, points = len(PLACEMENTS) + self.blocks * (len(PLACEMENTS) + len(FIRST_TOKENS)), []
        common = dict(files=files, cases=asked, placements=list(PLACEMENTS), blocks=self.blocks, seed=self.seed)
        for block, _, release in blocks(list(self.made.there), self.processes, self.seed):
            wanted, how = common | dict(release=release), dict(interpreter=self.made.there[release], watched=False)
            points.append(
                (release, Point(DECODE + release, block, child.answers, rows, wanted, f"jax {release}", **how))
            )
        for release, interpreter in self.made.there.items():
            for block, phase in enumerate(("cold", "cached")):
                wanted, what = dict(folder=files["weights"], case=asked[0], phase=phase), f"jax {release}"
                how = dict(cache=folder / f"cache-{release}", interpreter=interpreter, watched=False)
                points.append((release, Point(START + release, block, child.first_request, 1, wanted, what, **how)))
        return points


def obtain(
    source: str,
    out_dir: str | Path,
    asked: Upgrading,
    progress: Progress = announce,
    make: Callable = environments.make,
) -> tuple[list[Trial], dict | None]:
    """Recorded trials and their meta, from OUT or else from the repository; ([], None) where none are recorded.

    source: "measure" measures the releases that are asked for first, where any are named, and goes on where an
    interrupted run stopped. Raises UserError for another source, for a release that is none, where none can be had, and
    for what is asked otherwise than it is recorded.
    """
    if recorded.is_measured(source) and asked.releases:
        environments.check(asked.releases)
        made = Releases.made(asked.releases, progress, make)
        if not made.there:
            raise UserError(f"No release of JAX can be installed here: {made.gaps[0]['reason']}")
        return replace(asked, made=made).obtain(source, NAME, out_dir, progress)
    trials, meta = asked.obtain("recorded", NAME, out_dir, progress)
    return trials, meta or None
