"""Measuring against the clock: what still fits is begun, what was left out is said, and each record is on the disk at
once."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from llama_jax.plumbing.errors import UserError
from llama_lab.bench.seal import sealed


class Budget:
    """Seconds since it was made, against a limit. clock: seconds, monotonic."""

    def __init__(self, limit_s: float, clock: Callable[[], float] = time.monotonic):
        self.limit_s, self.clock, self.began = limit_s, clock, clock()

    @property
    def spent(self) -> float:
        return self.clock() - self.began

    def left(self, until: float = 1.0) -> float:
        """Seconds until this share of the limit is spent; negative afterwards."""
        return self.limit_s * until - self.spent


class Costs:
    """What things have cost so far, so as to guess what they will cost again. A cost grows with a size, such as
    layers."""

    def __init__(self, guesses: dict[str, float], default: float):
        self.guesses, self.default = guesses, default  # seconds a unit of size, by the longest prefix of the name
        self.known: dict[str, float] = {}

    def expected(self, name: str, size: float) -> float:
        """Seconds that `name` will take: as the last time it did, else as guessed."""
        like = max((prefix for prefix in self.guesses if name.startswith(prefix)), key=len, default="")
        return size * self.known.get(name, self.guesses.get(like, self.default))

    def learn(self, name: str, size: float, seconds: float) -> None:
        self.known[name] = seconds / size


class Log:
    """A JSONL file of records: the meta document first, then each record, flushed to the disk before `add` returns.

    A file of the same name is kept as NAME.old. Raises UserError where it cannot be written.
    """

    def __init__(self, path: Path, meta: dict):
        self.path, self.lock, self.records, self.notes = Path(path), threading.Lock(), 0, 0
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            if self.path.exists():
                os.replace(self.path, self.path.with_name(self.path.name + ".old"))
            self.file = open(self.path, "w", encoding="utf-8")  # noqa: SIM115 -- for as long as the run lasts
        except OSError as error:
            raise UserError(f"Cannot write {path}: {error.strerror}.") from error
        self.write({"meta": sealed(meta)})

    def write(self, document: dict) -> None:
        line = json.dumps(document, allow_nan=False) + "\n"
        with self.lock:
            self.file.write(line)
            self.file.flush()
            os.fsync(self.file.fileno())

    def add(self, row: dict) -> None:
        self.records += 1
        self.write(row)

    def note(self, **what) -> None:
        self.notes += 1
        self.write({"note": what})


class Watchdog:
    """Ends the process when time is up, whatever it is at: a compilation cannot be asked to stop. What is on the disk
    is valid.

    doing: set it to what is going on, for the note. end: what ends the process.
    """

    def __init__(self, seconds: float, log: Log, end: Callable[[], None] = lambda: os._exit(0)):
        self.log, self.end, self.doing = log, end, ""
        self.timer = threading.Timer(seconds, self.expire)
        self.timer.daemon = True

    def expire(self) -> None:
        self.log.note(
            left_out=dict(what=f"everything after: {self.doing}", reason="the time was up; the process was ended there")
        )
        print(f"the time is up; what was recorded is in {self.log.path}", file=sys.stderr, flush=True)
        self.end()

    def __enter__(self) -> Watchdog:
        self.timer.start()
        return self

    def __exit__(self, *exception) -> None:
        self.timer.cancel()
