"""A command that answers one question and ends, timed as a shell would: `llama-jax generate` and llama.cpp's own, on
the same file.

first  nothing that the package keeps in the user's cache is there: kernels are compiled, once for each version of the
       package and each processor, and programs
cold   the kernels are there, and no programs: they are compiled, once for each model and placement
warm   both are there

The file itself lies in memory, as far as there is room: who ran before has read it. The time is that of the whole
process, start of the interpreter included, and the peak is of resident memory, pages of the file that are mapped
included; both are taken by a small process that starts the command and does nothing else.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from llama_jax import checkpoint
from llama_jax.placement import parse
from llama_lab.bench import available, frames, process, standings, summary
from llama_lab.bench.experiment import Experiment, Point, Runner, Seed, check_counts, whole
from llama_lab.bench.lab import Lab
from llama_lab.bench.record import Row
from llama_lab.bench.workload import shuffled
from llama_lab.peers import llama_completion

PEER = llama_completion.NAME
PHASES = FIRST, COLD, WARM = "first", "cold", "warm"
KERNELS = "kernels"  # the folder of the cache that they are kept in
QUESTION = "Why is the sky blue?"
# prints [ns from start to end, most resident bytes, exit code, what it printed] of the command that it is given: what
# a larger process has held counts as its children's
LAUNCHER = """import json, os, subprocess, sys, time
began = time.perf_counter_ns()
child = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
printed = child.stdout.read()
_, status, usage = os.wait4(child.pid, 0)
taken, code = time.perf_counter_ns() - began, os.waitstatus_to_exitcode(status)
print(json.dumps([taken, 1024 * usage.ru_maxrss, code, printed.decode(errors="replace")]))"""


class Command(Row):
    """One command from its start to its end. It is not valid where it failed or printed no answer."""

    subject: str  # a placement under `llama-jax generate`, or PEER
    backend: str
    model: str
    new_tokens: int
    wall_ns: int
    peak_rss_bytes: int  # most that any one of its processes held
    file_bytes: int


@dataclass(frozen=True)
class Commands(Experiment):
    """`command_blocks` warm commands of every subject, file and number of tokens, interleaved; before them a first one
    of one token of every subject and file, and `command_cold` cold ones. A model that is not here is said to be
    missing."""

    kind = Command
    optional = True

    command_files: tuple[str, ...]
    command_placements: tuple[str, ...]
    command_tokens: tuple[int, ...]
    command_cold: int
    command_blocks: int
    seed: Seed

    def check(self) -> None:
        check_counts(command_cold=self.command_cold, command_blocks=self.command_blocks)
        for name in self.command_placements:
            parse(name)
        for count in self.command_tokens:
            check_counts(command_tokens=count)

    def measure(self, runner: Runner) -> tuple[list[Command], dict]:
        gaps = [gap for name in self.command_files if (gap := available.no_file(name))]
        here = [name for name in self.command_files if name not in {gap["name"] for gap in gaps}]
        if here and (gap := llama_completion.missing(here[0])):
            gaps.append(dict(zip(("name", "reason", "remedy"), (PEER, *gap), strict=True)))
        gaps += available.gaps(self.command_placements, here[0]) if here else []
        runner.journal.note_missing([*self.command_files, *self.command_placements, PEER], gaps)
        left_out = {gap["name"] for gap in gaps}
        subjects = [name for name in (*self.command_placements, PEER) if name not in left_out]
        for name in here:
            last, rows = self.command_blocks - 1, len(subjects) * len(self.command_tokens)
            asked = dict(file=name, subjects=subjects)
            runner.child(Point(f"{WARM} {name}", last, self.commanding, rows, asked, f"commands on {name}"))
        return runner.rows, dict(missing=runner.missing)

    def commanding(self, lab: Lab, file: str, subjects: Sequence[str]) -> None:
        """All commands on one file."""
        path = checkpoint.gguf_file(file)

        def keep(subject: str, tokens: int, folder: str, phase: str, block: int, order: int) -> None:
            lab.announce(what=f"{phase} {subject} on {file}", subject=subject, block=block, order=order)
            where = dict(run=f"{phase} {file}", process=lab.identity["process"], block=block, order=order)
            common = dict(seed=self.seed, phase=phase, subject=subject, model=file, new_tokens=tokens)
            known = dict(backend=standings.LLAMACPP if subject == PEER else standings.JAX)
            lab.keep(Command(**where, **common, **known, **timed(subject, path, tokens, folder)))

        with tempfile.TemporaryDirectory() as folder:
            caches = {subject: tempfile.mkdtemp(dir=folder) for subject in subjects}
            for order, subject in enumerate(shuffled(subjects, self.seed, FIRST)):
                keep(subject, 1, caches[subject], FIRST, 0, order)
            for block in range(self.command_cold):
                for order, subject in enumerate(shuffled(subjects, self.seed, COLD, block)):
                    leave_kernels(Path(caches[subject]))
                    keep(subject, 1, caches[subject], COLD, block, order)
            for subject in subjects:  # what more tokens need is made and kept too
                lab.announce(what=f"preparing {subject} on {file}", subject=subject, block=0, order=0)
                timed(subject, path, max(self.command_tokens), caches[subject])
            every = [(subject, tokens) for subject in subjects for tokens in self.command_tokens]
            for block in range(self.command_blocks):
                for order, (subject, tokens) in enumerate(shuffled(every, self.seed, block)):
                    keep(subject, tokens, caches[subject], WARM, block, order)


def leave_kernels(cache: Path) -> None:
    """Take everything out of a user's cache but the kernels."""
    for entry in cache.iterdir():
        if entry.name != KERNELS:
            shutil.rmtree(entry)


def line(subject: str, path: Path, tokens: int) -> list[str]:
    """The command of a subject."""
    if subject == PEER:
        return llama_completion.command(path, QUESTION, tokens, len(process.allowed_cores()))
    asked = ["--model", str(path), "--placement", subject, "--max-new-tokens", str(tokens)]
    return [sys.executable, "-m", "llama_lab", "generate", QUESTION, *asked]


def timed(subject: str, path: Path, tokens: int, folder: str) -> dict:
    """{valid, reason, wall_ns, peak_rss_bytes, file_bytes} of a command whose package keeps what it makes in a
    folder."""
    return launched(line(subject, path, tokens), folder) | dict(file_bytes=path.stat().st_size)


def launched(command: Sequence[str], folder: str) -> dict:
    """{valid, reason, wall_ns, peak_rss_bytes} of a command."""
    kept = process.clean_environment(len(process.allowed_cores())) | dict(LLAMA_JAX_CACHE=folder)
    asked = [sys.executable, "-S", "-c", LAUNCHER, *command]
    done = subprocess.run(asked, env=kept, capture_output=True, text=True, errors="replace", check=False)
    try:
        wall, peak, code, printed = json.loads(done.stdout)
    except ValueError:  # it could not be started
        wall, peak, code, printed = 0, 0, done.returncode, ""
    last = (done.stderr.strip().splitlines() or ["it does not say why"])[-1][:200]
    reason = f"failed: {process.ending(code, None)}, {last}" if code else "" if printed.strip() else "failed: no answer"
    return dict(valid=not reason, reason=reason, wall_ns=wall, peak_rss_bytes=peak)


# What the rows say ----------------------------------------------------------------------------------------------------


def table(rows: Sequence[Command], seed: int = 0) -> list[dict]:
    """One entry per file, phase, number of tokens and subject: {file, phase, tokens, name, s: Summary of seconds, peak:
    most bytes of any, held: the same over the file's size, ratio: of its seconds to llama.cpp's, block by block; None
    without it}."""
    by = dict(file="model", phase="phase", tokens="new_tokens", name="subject")
    frame = summary.tally(whole(rows), by, dict(s=lambda r: r.wall_ns / 1e9), seed=seed, clusters=None)
    entries = [e for e in frame.to_dict("records") if e["n"]]
    for e in entries:
        peak = max(r.peak_rss_bytes for r in e["rows"])
        e |= dict(peak=peak, held=peak / e["first"].file_bytes)
        e["by_block"] = {summary.in_block(r): r.wall_ns for r in e["rows"]}
    theirs = {(e["file"], e["phase"], e["tokens"]): e["by_block"] for e in entries if e["name"] == PEER}
    for e in entries:
        other = theirs.get((e["file"], e["phase"], e["tokens"]))
        e["ratio"] = other and summary.over(e["by_block"], other, seed)
    return sorted(entries, key=lambda e: (e["file"], e["tokens"], PHASES.index(e["phase"]), e["name"] == PEER))


def words(entries: Sequence[dict]) -> str:
    """`qwen2.5-coder-1.5b, 1 token, warm: step+fused 2.1 s, llama-completion 1.9 s`, a line each."""
    known = summary.grouped(entries, lambda e: (e["file"], e["tokens"], e["phase"]))
    lines = [
        f"{file}, {tokens} token{'s' * (tokens > 1)}, {phase}: "
        + ", ".join(f"{e['name']} {e['s'].median:.1f} s" for e in of_one)
        for (file, tokens, phase), of_one in known.items()
    ]
    return "\n".join(lines) or "Not recorded yet: no command was timed."


COLUMNS = frames.Columns(
    {
        **frames.same("file", "phase", "tokens"),
        "command": "name",
        **frames.interval("seconds", "s", ends="s "),
        **frames.interval("over llama.cpp's", "ratio", "value"),
        "peak MB": frames.scaled("peak", 1e6),
        "peak over the file": "held",
        "n": "s.n",
        "void": "void",
    },
    digits=2,
)
