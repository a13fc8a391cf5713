"""The journal of a run: each trial is on disk before the next begins, so an interrupted run resumes where it stopped.

JSON lines, as `record.read` reads them. The first line holds the plan (what was to be measured, with what, on which
machine), and a journal is only ever continued under the same plan.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Sequence
from pathlib import Path

from llama_jax.plumbing import boundary
from llama_jax.plumbing.errors import UserError
from llama_lab.bench import record
from llama_lab.bench.record import Row, Trial
from llama_lab.bench.seal import sealed, sealed_row


class Journal:
    """Trials of one run in the order they were made: `append` adds one, flushed to the disk. Without a path, in memory
    only.

    plan: JSON values; a file that holds another plan is refused. skip_corrupt: leave out lines within that cannot be
    read.
    kind: what its rows are. about: what else its first line should say. A last line that was torn when the run was
    stopped is cut off (`torn`).
    Raises UserError for another plan, for unreadable lines within, and when the file cannot be written.
    """

    def __init__(
        self,
        path: Path | None = None,
        plan: dict | None = None,
        skip_corrupt: bool = False,
        kind: type[Row] = Trial,
        **about,
    ):
        self.path, self.kind, self.about = path and Path(path), kind, about
        self.plan = json.loads(json.dumps(plan or {}))
        self.trials: list[Row] = []
        self.notes: list[dict] = []
        self.torn = False
        if self.path:
            self._continue(skip_corrupt)
        self.resumed = len(self.trials)

    def _continue(self, skip_corrupt: bool) -> None:
        raw = boundary.content(self.path, record.LONGEST) if os.path.lexists(self.path) else b""
        whole = raw[: raw.rfind(b"\n") + 1]
        self.torn = len(whole) < len(raw)
        if self.torn:
            os.truncate(self.path, len(whole))
        if not whole:  # or torn within its very first line: nothing was measured yet
            about = record.describe(kind=self.kind.__name__, plan=self.plan, **self.about)
            return self._write(json.dumps({"meta": sealed(about)}, sort_keys=True))
        self.trials, about, _ = record.read_jsonl(self.path, skip_corrupt, self.kind)
        if "plan" not in about:
            raise UserError(f"{self.path} is a finished table, not a journal that can be continued; name another file.")
        before, now = flat(about["plan"]), flat(self.plan)
        if different := sorted(k for k in {*before, *now} if before.get(k) != now.get(k)):
            k = different[0]
            raise UserError(
                f"{self.path} holds a run with another {k} ({before.get(k)!r}, now {now.get(k)!r});"
                " name another file or delete this one."
            )
        self.notes = about.get("notes", [])

    def append(self, trial: Row) -> None:
        self.trials.append(trial)
        if self.path:
            self._write(sealed_row(json.loads(trial.model_dump_json())))

    def note(self, **about) -> None:
        """Keep a note about the run as a whole, such as how busy the machine was."""
        self.notes.append(about)
        if self.path:
            self._write(json.dumps({"note": about}))

    def note_missing(self, names: Collection[str], gaps: Sequence[dict]) -> None:
        """Of these names the gaps are missing, {name, reason, remedy} each, and the others are not, whatever an earlier
        run noted. What a measuring process says of them stays."""

        def is_past(note: dict) -> bool:
            gap = note.get("missing")
            return bool(gap) and "process" not in note and gap["name"] in names and gap not in gaps

        self.notes = [note for note in self.notes if not is_past(note)]
        for gap in gaps:
            if gap not in self.missing:
                self.note(missing=gap)

    def receive(self, kind: str, value: dict, process: int) -> None:
        """Keep the messages of a measuring process: its trials, and its notes under its number."""
        if kind == "trial":
            self.append(self.kind(**value))
        elif kind == "note":
            self.note(process=process, **value)

    @property
    def missing(self) -> list[dict]:
        """The gaps in the notes: {name, reason, remedy}, each once."""
        return list({note["missing"]["name"]: note["missing"] for note in self.notes if "missing" in note}.values())

    def next_process(self) -> int:
        """Processes are numbered from 1 in the order they are started, resumed runs included; 0 is the caller's own."""
        return max([0, *(n["process"] for n in self.notes if "process" in n), *(t.process for t in self.trials)]) + 1

    def _write(self, line: str) -> None:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with open(self.path, "ab") as file:
                file.write(line.encode() + b"\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            safe = f" The {len(self.trials) - 1} trials before this one are safe; the same command resumes there."
            more = safe if len(self.trials) > 1 else ""
            raise UserError(f"Cannot write {self.path}: {error.strerror}.{more}") from error

    def discard(self) -> None:
        """Remove the file: its trials have been written elsewhere."""
        if self.path:
            self.path.unlink(missing_ok=True)


def flat(plan: dict) -> dict:
    """A plan with the values of its dictionaries as values of its own, so that a difference has a short name."""
    settings = {}
    for key, value in plan.items():
        settings |= value if isinstance(value, dict) else {key: value}
    return settings
