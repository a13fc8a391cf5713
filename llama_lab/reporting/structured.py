"""What became of answers that had to be JSON of a schema, in sentences of docs/structured-answers.md."""

from __future__ import annotations

import collections
import csv
from pathlib import Path

from llama_lab.bench import record

SOAK = "serving-soak.csv"


def sentences(path: Path) -> str:
    """Of a table of sampled answers, a row a schema, and of the recorded soak beside it. Raises UserError for a soak
    that was changed since."""
    return f"{sampled(path)} {soaked(record.read_meta(path.with_name(SOAK))['outcomes'])}"


def sampled(path: Path) -> str:
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    total = {name: sum(int(row[name]) for row in rows) for name in ("answers", "valid", "invalid", "cut", "dead")}
    ended, cut = total["valid"] + total["invalid"], total["cut"] + total["dead"]
    of_model = collections.Counter()
    for row in rows:
        of_model[row["model"]] += int(row["answers"])
    models = " and ".join(f"{name} ({count})" for name, count in of_model.items())
    schemas = len({row["schema"] for row in rows})
    return (
        f"Of {total['answers']:,} answers that {models} sampled at temperature 1 under {schemas} schemas"
        f" (`data/{path.name}`), {ended:,} ended by themselves. {some(total['valid'], ended)} of these satisfy their"
        f" schema as `jsonschema` reads it, formats included. The limit of tokens cut the other {cut:,};"
        f" {some(total['cut'], cut).lower()} of these can go on to a valid answer."
    )


def soaked(outcomes: dict[str, int]) -> str:
    """outcomes: how often a manner of asking had which outcome, as "manner: outcome"."""
    forms = [(key.rpartition(": ")[2], n) for key, n in outcomes.items() if key.startswith("form")]
    refused = [(key.rpartition(": ")[2], n) for key, n in outcomes.items() if key.startswith("hostile form")]
    counts = {name: sum(n for each, n in forms if each == name) for name in ("200", "cut")}
    others = sum(n for _, n in forms) - sum(counts.values()) + sum(n for each, n in refused if each != "400")
    return (
        f"In the recorded soak (`data/{SOAK}`), {sum(n for _, n in forms):,} of {sum(outcomes.values()):,} requests"
        f" asked for JSON of a schema: {counts['200']:,} got a complete valid answer and {counts['cut']:,} one that the"
        f" limit of tokens cut off. {sum(n for _, n in refused):,} more sent schemas that must be refused."
        f" {some(others, 0)} of these requests ended in any other way."
    )


def some(count: int, of: int) -> str:
    """A count in a sentence."""
    return "None" if not count else "All" if count == of else f"{count:,}"
