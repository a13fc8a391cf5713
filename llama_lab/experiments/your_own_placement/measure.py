"""A placement of one's own beside the ladder, and three that must be caught: a wrong one, one that compiles, one too
close to call.

A placement is data and goes to the measuring process field by field. A subject that is a function cannot: those stand
here by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace

import jax
import numpy as np

from llama_jax import generate
from llama_jax import prompts as science
from llama_jax.checkpoint import Checkpoint, find, load
from llama_jax.placement import LADDER, Placement, parse
from llama_jax.plumbing.errors import UserError
from llama_lab.bench import AGAIN, COMPILED, WRONG, compile_causes, frames, passages, protocol, summary
from llama_lab.bench.experiment import Experiment, Point, Runner, Seed, check_counts, whole
from llama_lab.bench.lab import Lab
from llama_lab.bench.protocol import Reference
from llama_lab.bench.record import Trial
from llama_lab.bench.statistics import Verdict
from llama_lab.bench.wording import times
from llama_lab.bench.workload import Subject, Workload

BASELINE = "step"
NESTED = Placement("nested", jit=("step", "attend", "ffn"))  # a jit inside a jit is inlined: the same program as `step`
SHORT, ANEW = "a layer short", "compiles anew"
OTHER_TOKENS = f"{WRONG}its tokens for another prompt are not the reference's"
GATE, GUARD, INTERVAL, FAILED = "the gate", "the guard", "the interval", "its own failure"


def a_layer_short(loaded: Checkpoint, step: Subject) -> Subject:
    """Wrong: `step` without the model's last layer, the off-by-one of a loop over layers. It does less work, so a time
    would flatter it."""
    config = replace(loaded.config, num_hidden_layers=loaded.config.num_hidden_layers - 1)
    params = replace(loaded.params, layers=loaded.params.layers[:-1])
    return protocol.subject(replace(loaded, config=config, params=params), LADDER[BASELINE], SHORT)


def compiles_anew(loaded: Checkpoint, step: Subject) -> Subject:
    """Contaminated: `step`, and every token goes through a jitted lambda that is made on the spot, so each is traced
    and compiled."""

    def run(ids: Sequence[int], workload: Workload) -> Iterator[np.ndarray]:
        for block in step.run(ids, workload):
            yield np.asarray(jax.jit(lambda tokens: tokens)(block))

    return replace(step, name=ANEW, run=run)


SPECIMENS: dict[str, Callable[[Checkpoint, Subject], Subject]] = {SHORT: a_layer_short, ANEW: compiles_anew}
WHAT = {
    SHORT: "step, but its loop over the layers ends one too early",
    ANEW: "step, but every token goes through a jitted lambda made on the spot",
    NESTED.name: f"jit at {', '.join(NESTED.jit)}: inlined, it should be step again",
}


def placements(mine: Placement, ladder: Sequence[str]) -> list[Placement]:
    """What is measured besides the specimens: the ladder's names, one's own, and the one that is too close to call.

    Raises UserError for an unknown or repeated name, a ladder without the baseline, and kernels that are not here.
    """
    found = [*map(parse, ladder), mine, NESTED]
    if BASELINE not in ladder:
        named = ", ".join(ladder) or "empty"
        raise UserError(f"ladder is {named}; it must hold {BASELINE}, which the others are compared with.")
    names = [*(p.name for p in found), *SPECIMENS]
    if twice := [name for name in names if names.count(name) > 1 or name.endswith(AGAIN)]:
        raise UserError(f"The name {twice[0]!r} is taken; give your placement another.")
    for p in found:
        generate.require_kernels(p)
    return found


@dataclass(frozen=True)
class OwnPlacement(Experiment):
    """One's own placement, the ladder's and those that must be caught, all interleaved, the baseline twice: `blocks`
    times in each of `processes` fresh processes."""

    beside = ("mine",)

    mine: Placement
    model: str
    seed: Seed
    ladder: tuple[str, ...]
    prompts: int
    blocks: int
    processes: int
    new_tokens: int

    def __post_init__(self):
        super().__post_init__()
        if isinstance(self.mine, dict):  # as it was sent to a process
            object.__setattr__(self, "mine", Placement(**self.mine))

    @property
    def also(self) -> object:
        return self.mine, NESTED, *SPECIMENS

    def check(self) -> None:
        check_counts(blocks=self.blocks, processes=self.processes)
        placements(self.mine, self.ladder)

    def points(self, runner: Runner) -> list[Point]:
        workload = passages.science(load(self.model), science.load(self.prompts), self.new_tokens, self.seed)
        rows, found = len(placements(self.mine, self.ladder)) + len(SPECIMENS) + 1, []
        for i in range(self.processes):
            numbers = list(range(i * self.blocks, (i + 1) * self.blocks))
            what = f"{self.mine.name} beside the ladder, process {i + 1}"
            asked = dict(blocks=numbers)
            found.append(Point("own", numbers[-1], self.interleaved, rows, asked, what, workload=workload))
        return found

    def about(self, runner: Runner) -> dict:
        weights = find(self.model).hash()
        return dict(weights_hash=weights, baseline=BASELINE, placement=asdict(self.mine))

    def interleaved(self, lab: Lab, blocks: Sequence[int]) -> None:
        """What a process runs; each trial says in JAX's own words why it compiled."""

        def keep(trial: Trial) -> None:
            lab.keep(trial, cause=compile_causes.shorten(trial.cause))

        def starting(what: str, block: int, **where) -> None:
            lab.progress(what, block - blocks[0], len(blocks))

        loaded = lab.load()
        subjects, reference = built(loaded, placements(self.mine, self.ladder)), Reference(loaded, lab.workload)
        lab.blocks(subjects, blocks, BASELINE, reference, keep, starting=starting, explain=True)


def built(loaded: Checkpoint, asked: Sequence[Placement]) -> list[Subject]:
    """Placements, the baseline among them, and the specimens as subjects."""
    found = [protocol.subject(loaded, p) for p in asked]
    step = next(who for who in found if who.name == BASELINE)
    return found + [build(loaded, step) for build in SPECIMENS.values()]


def as_recorded(mine: Placement, meta: dict) -> Placement:
    """The placement that the trials were made with. Raises UserError if it is not the one that stands in the
    notebook now."""
    there = Placement(**meta["placement"])
    if there != mine:
        remedy = 'source = "measure", or `llama-jax run --measure`'
        raise UserError(f"The trials are of {line(there)}, and you ask about {line(mine)}; measure yours: {remedy}.")
    return there


def line(placement: Placement) -> str:
    """The one line that makes a placement, in Python: what differs from the defaults."""
    changed = {k: v for k, v in asdict(placement).items() if v != getattr(Placement(placement.name), k)}
    return f"Placement({', '.join([repr(placement.name), *(f'{k}={v!r}' for k, v in changed.items())])})"


def strict(trials: Sequence[Trial]) -> list[Trial]:
    """The trials of whole processes, those of a subject with other tokens anywhere void everywhere: right by chance is
    not right."""
    kept = whole(trials)
    wrong = {t.subject for t in kept if t.wrong}
    return [
        t.model_copy(update=dict(valid=False, reason=OTHER_TOKENS)) if t.valid and t.subject in wrong else t
        for t in kept
    ]


def table(trials: Sequence[Trial], names: Sequence[str], seed: int = 0) -> list[dict]:
    """`summary.table` of `strict` trials: the baseline and its control, then the others in the order of `names`."""
    return summary.table(strict(trials), BASELINE, [*names, *SPECIMENS], seed)


@dataclass(frozen=True)
class Fate:
    """What became of a subject. caught: by whom, "" if it has a row with a verdict. why: in words."""

    name: str
    caught: str
    why: str


def fate(entry: dict) -> Fate:
    """An entry of the table was refused by the gate, voided by the guard, left open by the interval, or placed."""
    name, ratio = entry["name"], entry["ratio_to_baseline"]
    if wrong := [reason for reason in entry["reasons"] if WRONG in reason]:
        first = next((reason for reason in wrong if reason != OTHER_TOKENS), wrong[0])
        return Fate(name, GATE, first.partition(WRONG)[2])
    if not entry["valid_trials"]:
        reason = "; ".join(entry["reasons"])
        return Fate(name, GUARD if COMPILED in reason else FAILED, reason)
    why, more = f"{times(ratio)} of {BASELINE}, n = {ratio['n']}: {ratio['judged']}", ratio["more_blocks"]
    if ratio["verdict"] != Verdict.UNDECIDED:
        return Fate(name, "", why)
    why += f", about {more:,} more blocks would show a difference, if there is one" if more else ""
    return Fate(name, INTERVAL, why)


def ladder_frame(entries: Sequence[dict]):
    """`summary.COLUMNS` without what is not measured here. A subject without a time has no verdict: who is to blame
    stands in its place."""
    frame = frames.show(entries, summary.COLUMNS).drop(columns=["compilations", "compile s", "peak RSS GB"])
    for entry in entries:
        if not entry["valid_trials"]:
            frame.loc[entry["name"], "verdict"] = f"none: {fate(entry).caught}"
    return frame


def specimens(entries: Sequence[dict]) -> list[dict]:
    """The entries of the subjects that must not pass, in their order."""
    found = {e["name"]: e for e in entries}
    return [found[name] for name in WHAT if name in found]


COLUMNS = frames.Columns(
    {
        "subject": "name",
        "what it is": lambda e: WHAT[e["name"]],
        "caught by": lambda e: fate(e).caught or "nobody",
        "reason": lambda e: fate(e).why,
        "valid": "valid_trials",
        "void": "voided_trials",
    },
    index="subject",
)
