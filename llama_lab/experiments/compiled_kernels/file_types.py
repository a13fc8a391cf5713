"""Types of blocks: which are read, which have kernels, how far from the file's own weights a token's distribution is
under them, and how fast they decode, beside llama.cpp on the same file.

All files hold one model's weights, every matrix in one type, as llama.cpp's own quantiser rounds them, in rows of whole
blocks of 256 (`widened`). They lie in the user's cache. The distance is that of the float32 model on the weights that
the type has left, so it is what computing on the blocks adds: activations rounded to 8 bits, and where a type has no
kernel the blocks that stand for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import gguf

from llama_jax import checkpoint
from llama_jax.block_types import LAYOUTS
from llama_jax.checkpoint.raw import SUPPORTED
from llama_jax.plumbing import paths
from llama_jax.plumbing.errors import UserError, near
from llama_lab.bench import available, frames, passages, quality, summary
from llama_lab.bench.experiment import Experiment, Named, Point, Runner, Seed
from llama_lab.bench.process import HERE, Interpreter, allowed_cores
from llama_lab.bench.quality import Quality, Window
from llama_lab.bench.record import Trial
from llama_lab.experiments.compiled_kernels import sizes, widened
from llama_lab.peers import UnavailableError, llamacpp, requantised

TYPES = tuple(kind.name.lower() for kind in SUPPORTED)
OTHERWISE = "q8_0"  # the blocks that stand for a type without a kernel
MINE, THEIRS = "fused", "llamacpp"  # who reads the text
QUANTISER = "llama.cpp's quantiser"


@dataclass(frozen=True, kw_only=True)
class Types(sizes.Sizes):
    """Engines on one model in each type, as `Sizes`, without prompts."""

    optional = True
    beside = ("size_lengths", "size_processes")

    typed_model: str
    size_engines: Annotated[tuple[str, ...], Named("type_engines")]
    size_files: Annotated[tuple[str, ...], Named("type_names")]
    size_contexts: Annotated[tuple[int, ...], Named("type_contexts")]
    size_lengths: tuple[int, ...] = ()
    size_tokens: Annotated[int, Named("type_tokens")]
    size_processes: int = 1
    size_blocks: Annotated[int, Named("type_blocks")]
    seed: Seed

    def check_file(self, name: str) -> None:
        check_types(self.typed_model, [name])
        passages.check_contexts(self.typed_model, self.size_contexts, self.size_tokens)

    def present(self, runner: Runner) -> Sequence[str]:
        gaps = unmade(self.typed_model)
        runner.journal.note_missing([QUANTISER], gaps)
        return () if gaps else self.size_files

    def label(self, name: str) -> str:
        return f"{self.typed_model}/{name}"

    def file(self, name: str, tell: Callable) -> tuple[Path, Interpreter]:
        return file_in(self.typed_model, name, tell), HERE


@dataclass(frozen=True, kw_only=True)
class Reading(Experiment):
    """An English text read under the kernels and under llama.cpp on several files: windows as `quality.Quality` makes
    them, whose `run` begins with the file's name."""

    kind = Window
    optional = True

    seed: Seed
    type_quality_tokens: int
    type_window: int

    def reading(self, model: str) -> Quality:
        how = dict(quality_tokens=self.type_quality_tokens, window=self.type_window, arithmetics=(MINE, THEIRS))
        return Quality(model=model, seed=self.seed, **how)

    def read(self, runner: Runner, model: str, name: str, path: Path, reference: str = "") -> None:
        """The text on one file, as `quality.Texts.reading`."""
        readers = {quality.PLACEMENTS[MINE]: MINE, THEIRS: THEIRS}
        gaps = available.gaps(tuple(readers), model)
        runner.journal.note_missing(list(readers), gaps)
        names = [name for who, name in readers.items() if who not in {gap["name"] for gap in gaps}]
        rows = -(-self.type_quality_tokens // self.type_window) * len(names)
        asked, what, at = dict(names=names, reference=reference), f"reading under {name}", str(path)
        runner.child(Point(f"{name} quality", 0, self.reading(at).reading, rows, asked, what, model=at))


@dataclass(frozen=True, kw_only=True)
class Distances(Reading):
    """One model in each type."""

    typed_model: str
    type_names: tuple[str, ...]

    def check(self) -> None:
        check_types(self.typed_model, self.type_names)
        self.reading(self.typed_model).check()

    def measure(self, runner: Runner) -> tuple[list[Window], dict]:
        gaps = unmade(self.typed_model)
        runner.journal.note_missing([QUANTISER], gaps)
        for kind in () if gaps else self.type_names:
            self.read(runner, self.typed_model, kind, file_in(self.typed_model, kind, runner.progress))
        # where a file lies is this machine's
        made = [w.model_copy(update=dict(model=self.typed_model)) for w in runner.rows]
        return made, dict(missing=runner.missing)


def unmade(model: str) -> list[dict]:
    """What is missing for making the files: a list of a gap, or an empty one."""
    gap = llamacpp.missing("llamacpp", model)
    return [dict(zip(("name", "reason", "remedy"), (QUANTISER, *gap), strict=True))] if gap else []


def check_types(model: str, kinds: Sequence[str]) -> None:
    """Raises UserError for a model that is no GGUF file, and for a type that is not read."""
    if checkpoint.gguf_file(model) is None:
        raise UserError(f"{model} is not a GGUF file; name one to compare types on.")
    for kind in kinds:
        if kind not in TYPES:
            raise UserError(f"No such type of block: {kind!r}; known: {', '.join(TYPES)}.{near(kind, TYPES)}")


def file_in(model: str, kind: str, tell: Callable = lambda *_: None) -> Path:
    """A GGUF file's model, widened, in a type: from the user's cache, or made now. Raises UserError."""
    source = checkpoint.gguf_file(model)
    wide = paths.cache("sizes", f"{checkpoint.gguf.weights_hash(source)[:16]}-wide.gguf")
    if not wide.is_file():
        tell(f"writing {model} in float32 to {wide}", 0, 1)
        wide.parent.mkdir(parents=True, exist_ok=True)
        widened.write(source, wide)
    if kind == "f32":
        return wide
    tell(f"rounding {model} to {kind}", 0, 1)
    try:
        return requantised.obtain(wide, checkpoint.gguf.weights_hash(wide), kind, len(allowed_cores()), every=True)
    except UnavailableError as error:
        raise UserError(f"{error.reason} {error.remedy}") from None


# What the rows say ----------------------------------------------------------------------------------------------------


def table(trials: Sequence[Trial], windows: Sequence[Window], seed: int = 0) -> list[dict]:
    """One entry per type that is read: {type, bytes: a weight, kernel: whether it has its own, becomes: the blocks that
    stand for it under the kernels, mine and theirs: entries of `quality.table`, within: whether the kernels' mean
    distance is no further than llama.cpp's, by their intervals, rate and other: Summaries of tokens/s of our fastest
    placement and of the fastest peer, best: that peer, ratio: of the two}. None for what was not measured."""
    rates = summary.grouped(sizes.table(trials, seed), lambda e: e["file"].rpartition("/")[2])
    read = summary.grouped(windows, lambda w: w.run.split()[0])
    return [
        dict(type=kind.name.lower(), **known(kind), **decoding(rates.get(kind.name.lower(), [])))
        | distances({e["subject"]: e for e in quality.table(read.get(kind.name.lower(), []), seed)})
        for kind in SUPPORTED
    ]


def known(kind: gguf.GGMLQuantizationType) -> dict:
    """What the code says of a type."""
    weights, size = gguf.GGML_QUANT_SIZES[kind]
    own = kind.name.lower() in LAYOUTS
    return dict(bytes=size / weights, kernel=own, becomes="" if own else OTHERWISE)


def decoding(entries: Sequence[dict]) -> dict:
    """The fields of an entry that say how fast it decodes. entries: of `sizes.table`, on that file."""
    mine = max(sizes.ours(entries), key=lambda e: e["rate"].median, default=None)
    other = next((e["rate"] for e in entries if mine and e["name"] == mine["best"]), None)
    fields = ("name", "rate", "best", "ratio")
    return {field: mine and mine[field] for field in fields} | dict(other=other)


def distances(read: dict[str, dict]) -> dict:
    """{mine, theirs, within} of an entry, of entries of `quality.table` by their subject."""
    mine, theirs = read.get(MINE), read.get(THEIRS)
    known = mine and theirs and None not in (mine["kl_low"], theirs["kl_high"])
    return dict(mine=mine, theirs=theirs, within=mine["kl_low"] <= theirs["kl_high"] if known else None)


def words(entries: Sequence[dict]) -> str:
    """A sentence on all of them: how many have kernels, and on how many of those we are ahead."""
    own = [e["type"].upper() for e in entries if e["kernel"]]
    text = f"{len(entries)} types are read, {len(own)} have kernels of their own: {', '.join(own)}."
    timed = [e for e in entries if e["ratio"] is not None]
    if not timed:
        return f"{text} Rates and distances are not recorded yet."
    ahead = [e for e in timed if e["ratio"].low > 1]
    close = [e for e in entries if e["within"]]
    asked = [e for e in entries if e["within"] is not None]
    return (
        f"{text} They decode faster than llama.cpp on {len(ahead)} of {len(timed)} files, and are no further than it"
        f" from what the file says on {len(close)} of {len(asked)}."
    )


def said(where: str) -> Callable:
    """A column of what may not have been measured."""
    return lambda entry: {None: "", True: "yes", False: "no"}[frames.value(entry, where)]


KNOWN = frames.Columns(  # where nothing was measured
    {"type": "type", "bytes a weight": "bytes", "own kernel": said("kernel"), "else as": "becomes"},
    index="type",
    digits=4,
)
DISTANCES = {
    **{"KL": "mine.kl", "KL low": "mine.kl_low", "KL high": "mine.kl_high"},
    **{"llama.cpp's KL": "theirs.kl", "its low": "theirs.kl_low", "its high": "theirs.kl_high"},
    "within its rounding": said("within"),
}
COLUMNS = frames.Columns(
    {
        **KNOWN.shown,
        **DISTANCES,
        "subject": "name",
        "tok/s": "rate.median",
        "best peer": "best",
        "its tok/s": "other.median",
        **frames.interval("over it", "ratio", "value", ends="ratio "),
        "n": "rate.n",
    },
    index="type",
    digits={"bytes a weight": 4}
    | dict.fromkeys(("tok/s", "its tok/s"), 1)
    | dict.fromkeys(("over it", "ratio low", "ratio high"), 2)
    | dict.fromkeys(("KL", "KL low", "KL high", "llama.cpp's KL", "its low", "its high"), 6),
)
