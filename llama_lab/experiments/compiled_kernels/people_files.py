"""Files as people use them: every engine on the same mixed types, with all instructions of this processor and with
fewer.

A file is named MODEL/INSTRUCTIONS, or MODEL/TYPE/INSTRUCTIONS if llama.cpp's quantiser converts its weights to one
type. Our kernels are compiled for these instructions (`kernels.isa`); a peer always has those that it was built for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from llama_jax import checkpoint
from llama_jax.kernels import isa
from llama_lab.bench import available, frames, quality, summary
from llama_lab.bench.experiment import Named, Runner, Seed
from llama_lab.bench.process import Interpreter
from llama_lab.bench.quality import Window
from llama_lab.bench.record import Trial
from llama_lab.experiments.compiled_kernels import file_types, sizes
from llama_lab.peers import requantised


@dataclass(frozen=True, kw_only=True)
class PeopleFiles(sizes.Sizes):
    """Engines on each file that is here, as `Sizes`. A model that is not here, or instructions that this
    processor does not have, are reported as missing."""

    optional = True

    size_engines: Annotated[tuple[str, ...], Named("people_engines")]
    size_files: Annotated[tuple[str, ...], Named("people_names")]
    size_contexts: Annotated[tuple[int, ...], Named("people_contexts")]
    size_lengths: Annotated[tuple[int, ...], Named("people_lengths")]
    size_tokens: Annotated[int, Named("people_tokens")]
    size_processes: Annotated[int, Named("people_processes")]
    size_blocks: Annotated[int, Named("people_blocks")]
    seed: Seed

    def check_file(self, name: str) -> None:
        model, _, _ = parts(name)
        if self.gap(name) is None:
            self.check_lengths(model)

    def gap(self, name: str) -> dict | None:
        """Why nothing can be measured of a file here: {name, reason, remedy}."""
        model, _, wanted = parts(name)
        return available.file_gap(name, model, wanted)

    def present(self, runner: Runner) -> tuple[str, ...]:
        """Files of which something can be measured; of the others the journal says why not."""
        gaps = [gap for name in self.size_files if (gap := self.gap(name))]
        runner.journal.note_missing(self.size_files, gaps)
        return tuple(name for name in self.size_files if name not in {gap["name"] for gap in gaps})

    def file(self, name: str, tell: Callable) -> tuple[Path, Interpreter]:
        model, kind, wanted = parts(name)
        path = sizes.file_of(model, kind, tell) if kind else checkpoint.gguf_file(model)
        return path, Interpreter(settings={isa.VARIABLE: wanted})


@dataclass(frozen=True, kw_only=True)
class Distances(file_types.Reading):
    """Each file beside float32 on the weights of the model's own: `MODEL` as it is, `MODEL/TYPE` rounded once more.
    Those that are not here are reported as missing."""

    people_read: tuple[str, ...]

    def check(self) -> None:
        for name in self.people_read:
            model, _ = typed(name)
            if available.no_file(model) is None:
                self.reading(model).check()

    def measure(self, runner: Runner) -> tuple[list[Window], dict]:
        gaps = [gap | dict(name=name) for name in self.people_read if (gap := available.no_file(typed(name)[0]))]
        runner.journal.note_missing(self.people_read, gaps)
        for name in self.people_read:
            if name not in {gap["name"] for gap in gaps}:
                model, kind = typed(name)
                path = sizes.file_of(model, kind, runner.progress) if kind else checkpoint.gguf_file(model)
                self.read(runner, model, name, path, reference=model if kind else "")
        # where a file lies is this machine's
        made = [w.model_copy(update=dict(model=w.run.split()[0])) for w in runner.rows]
        return made, dict(missing=runner.missing)


def parts(name: str) -> tuple[str, str, str]:
    """(model, type or "" for the file as it is, instructions) of a name. Raises UserError for other instructions."""
    model, wanted = available.named(name, tuple(isa.NEEDS))
    return (*typed(model), wanted)


def typed(name: str) -> tuple[str, str]:
    """(model, type or "" for the file as it is) of MODEL or MODEL/TYPE."""
    model, _, kind = name.rpartition("/")
    return (model, kind) if model and kind in requantised.TYPES else (name, "")


# What the rows say ----------------------------------------------------------------------------------------------------


def bits(trials: Sequence[Trial], windows: Sequence[Window], seed: int = 0) -> list[dict]:
    """One entry per file that was timed or read: {file, rate, ratio, best: of our fastest placement after the shortest
    text, with the most instructions it was timed with, as `sizes.table`; mine, theirs, within: as `file_types.table`}.
    None for what was not measured."""
    timed: dict[str, dict] = {}
    for e in sorted(sizes.ours(sizes.table(trials, seed)), key=lambda e: (-e["tokens"], e["rate"].median)):
        if e["what"] == sizes.DECODE:
            timed[e["file"].rpartition("/")[0]] = e
    read = summary.grouped(windows, lambda w: w.run.split()[0])
    return [
        {field: (file in timed and timed[file][field]) or None for field in ("name", "rate", "best", "ratio", "bytes")}
        | dict(file=file)
        | file_types.distances({e["subject"]: e for e in quality.table(read.get(file, []), seed)})
        for file in dict.fromkeys([*timed, *read])
    ]


BITS = frames.Columns(
    {
        "file": "file",
        "MB a token": frames.scaled("bytes", 1e6),
        **file_types.DISTANCES,
        "subject": "name",
        "tokens/s": "rate.median",
        "best peer": "best",
        **frames.interval("over it", "ratio", "value", ends="ratio "),
        "n": "rate.n",
    },
    index="file",
    digits=file_types.COLUMNS.digits | {"MB a token": 1, "tokens/s": 1},
)


def words(entries: Sequence[dict]) -> str:
    """`qwen2.5-coder-0.5b/avx2 after 64 tokens: loop+fused 1.4x [1.3, 1.5] llamacpp`, of our fastest placement on each
    file and context, then the same of prompts. entries: of `sizes.table`."""
    asked = {sizes.DECODE: "after {:,} tokens", sizes.PREFILL: "reading {:,} tokens"}
    lines = [
        f"{e['file']} {asked[e['what']].format(e['tokens'])}: {e['name']} {e['ratio'].words} {e['best']}"
        for e in sizes.fastest(entries)
    ]
    return "\n".join(lines) or "Not recorded yet: no file that people have was measured beside a peer."
