"""A campaign against every boundary: `python -m tests.fuzz.campaign --minutes 10` prints the table of outcomes, and
keeps each new kind of fault as a line of JSON. The same seed throws the same examples, as far as the time goes.
"""

import argparse
import csv
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from hypothesis import HealthCheck, Phase, given, seed, settings

from tests.fuzz import arena
from tests.fuzz.boundaries import BOUNDARIES
from tests.fuzz.commands import PROCESS_S


def make_base(folder: Path) -> Path:
    """The honest inputs, made by a process of its own."""
    subprocess.run([sys.executable, "-m", "tests.fuzz.base", str(folder)], check=True, stdout=subprocess.DEVNULL)
    return folder


def thrown(boundary: str, count: int, number: int, visit) -> None:
    """Call `visit` with `count` examples of a boundary, drawn from the seed `number`."""

    options = dict(phases=[Phase.generate], database=None, deadline=None, suppress_health_check=list(HealthCheck))

    @seed(number)
    @settings(max_examples=count, **options)
    @given(BOUNDARIES[boundary].examples)
    def drawn(example):
        visit(example)

    drawn()


def campaign(seconds: float, cases: int, number: int, names: list[str], log: Path) -> dict[str, Counter]:
    """Outcomes by boundary. Each has its share of the time, and ends after `cases`."""
    outcomes: dict[str, Counter] = {}
    with tempfile.TemporaryDirectory() as folder, log.open("w") as file:
        base = make_base(Path(folder))
        for name in names:
            counts, end, kinds = Counter(), time.monotonic() + seconds / len(names), set()
            outcomes[name] = counts

            def visit(example, name=name, counts=counts, end=end, kinds=kinds):
                if time.monotonic() > end or total(counts) >= cases:
                    return
                limit = PROCESS_S + 20 if name == "command line" else arena.LIMIT_S
                outcome, message = arena.outcome(BOUNDARIES[name].run, example, base, limit)
                silent = outcome == "accepted" and message.startswith("silently")
                counts[outcome] += 1
                counts["silent"] += silent
                kind = outcome, message.splitlines()[-1][:60] if message else ""
                if (outcome in arena.BAD or silent) and kind not in kinds:
                    kinds.add(kind)
                    fault = dict(boundary=name, outcome=outcome, message=message, example=repr(example)[:400])
                    file.write(json.dumps(fault) + "\n")
                    file.flush()

            for part in range(10_000):  # hypothesis slows down with the number of examples that it remembers
                if time.monotonic() > end or total(counts) >= cases:
                    break
                thrown(name, 50, number + part, visit)
            print(name, dict(counts), flush=True)
    return outcomes


def total(counts: Counter) -> int:
    return sum(counts[outcome] for outcome in arena.OUTCOMES)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--cases", type=int, default=100_000, help="the most of a boundary")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", action="append", choices=list(BOUNDARIES))
    parser.add_argument("--log", type=Path, default=Path("out/fuzz.jsonl"))
    parser.add_argument("--out", type=Path, help="a CSV table of the outcomes")
    asked = parser.parse_args()
    asked.log.parent.mkdir(parents=True, exist_ok=True)
    outcomes = campaign(asked.minutes * 60, asked.cases, asked.seed, asked.only or list(BOUNDARIES), asked.log)
    columns = [*arena.OUTCOMES, "silent"]
    table = [["boundary", "cases", *columns]]
    table += [[name, total(c), *(c[o] for o in columns)] for name, c in outcomes.items()]
    if asked.out:
        with asked.out.open("w", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows(table)
    for row in table:
        print(" | ".join(str(cell).rjust(9) for cell in row))
    sys.exit(any(counts[o] for counts in outcomes.values() for o in arena.BAD))


if __name__ == "__main__":
    main()
