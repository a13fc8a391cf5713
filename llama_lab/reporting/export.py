"""A run for other people: a Markdown table, a reporting block to paste beside it, or the raw trials as a file.

`result` is the document that `llama-jax bench --json` prints. A figure that it lacks is an empty cell in the table and
"unknown" in the block.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from pathlib import Path

from llama_jax.plumbing import files
from llama_jax.plumbing.errors import UserError
from llama_lab.bench import AGAIN, environment, record, summary
from llama_lab.bench.record import Trial
from llama_lab.reporting import document
from llama_lab.reporting.document import Table, decimal

TABLES = (".csv", ".parquet", ".jsonl")
TOKENS = {
    "WRONG": "other tokens than the reference's",
    "none": "no whole answer",
    "unchecked": "its tokens were not compared with a reference's",
    "own": "a text of its own: it computes in fewer bits",
}


def check(path: Path) -> None:
    """Raises UserError for a name that `write` cannot write to, before minutes of measuring."""
    if (suffix := Path(path).suffix) not in (*TABLES, ".md"):
        raise UserError(
            f"{path}: cannot export to {suffix or 'a name without suffix'}; use .csv, .parquet, .jsonl or .md."
        )
    folder = next(parent for parent in Path(path).absolute().parents if parent.is_dir())
    try:
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise UserError(f"Cannot write {path}: {error.strerror}.") from None


def write(path: Path, trials: Iterable[Trial], about: dict, result: dict) -> Path:
    """Trials and `about` as .csv, .parquet or .jsonl (see `record.write`), or the result as .md: table and reporting
    block.

    Raises UserError for another suffix and when the file cannot be written.
    """
    path = Path(path)
    check(path)
    if path.suffix in TABLES:
        return record.write(path, trials, **about)
    return files.write(path, f"{table(result).markdown()}\n\n{reporting(result)}")


# The table ------------------------------------------------------------------------------------------------------------


COLUMNS = {  # head → a subject's cell, from its entry
    "subject": lambda e: e.get("name", ""),
    "tokens/s [95%]": lambda e: interval(part(e, "tokens_per_second"), "median", 1),
    "IQR": lambda e: decimal(part(e, "tokens_per_second").get("iqr"), 1),
    "n": lambda e: decimal(part(e, "tokens_per_second").get("n"), 0),
    "x {baseline} [95%]": lambda e: interval(part(e, "ratio_to_baseline"), "value", 2),
    "verdict": lambda e: verdict(e),
    "TTFT ms": lambda e: decimal(e.get("ttft_ms"), 1),
    "ITL p50 ms": lambda e: decimal(part(e, "itl_ms").get("p50"), 2),
    "MBU %": lambda e: decimal(e.get("mbu"), 0, 100),
    "compile s / programs": lambda e: compiled(part(e, "compile")),
    "peak RSS GB": lambda e: decimal(e.get("peak_rss_bytes"), 2, 1e-9),  # 10^9 bytes
    "tokens": lambda e: "" if e.get("tokens_equal") is None else summary.tokens_word(e),
    "valid/void": lambda e: f"{decimal(e.get('valid_trials'), 0)}/{decimal(e.get('voided_trials'), 0)}".strip("/"),
}
WORDS = ("subject", "verdict", "tokens")  # columns that are not of numbers


def table(result: dict) -> Table:
    """One row per subject."""
    heads = [head.format(baseline=result.get("baseline", "baseline")) for head in COLUMNS]
    rows = [[cell(entry) for cell in COLUMNS.values()] for entry in result.get("subjects", ())]
    return Table(heads, rows, frozenset(at for at, head in enumerate(COLUMNS) if head not in WORDS))


def part(entry: dict, key: str) -> dict:
    return entry.get(key) or {}


def verdict(entry: dict) -> str:
    ratio = part(entry, "ratio_to_baseline")
    words = ratio.get("judged") or ratio.get("verdict") or ""
    return f"A/A control: {words}" if words and entry["name"].endswith(AGAIN) else words


def compiled(values: dict) -> str:
    """`1.00 / 7`, or only the seconds; the number of programs means nothing without them."""
    seconds, programs = decimal(values.get("seconds"), 2), decimal(values.get("n"), 0)
    return f"{seconds} / {programs}" if seconds and programs else seconds


def interval(values: dict, key: str, digits: int) -> str:
    """`value [low, high]`, or as much of it as there is."""
    value, low, high = (decimal(values.get(k), digits) for k in (key, "low", "high"))
    return f"{value} [{low}, {high}]" if value and low and high else value


# The block ------------------------------------------------------------------------------------------------------------


def reporting(result: dict) -> str:
    """The reporting block for a paper or an issue, as Markdown: what was measured, where, how, and the results."""
    env, gpus = result.get("environment", {}), result.get("environment", {}).get("gpus")
    if not isinstance(gpus, str):
        gpus = ", ".join(f"{gpu.get('name')} (driver {gpu.get('driver')})" for gpu in gpus or ())
    libraries = env.get("blas") or ()
    return document.render(
        "reporting.md",
        protocol=result.get("protocol", {}),
        env=env,
        limits=env.get("limits") or {},
        git=env.get("git") or {},
        baseline=result.get("baseline"),
        gpus=gpus,
        packages=", ".join(f"{name} {version}" for name, version in (env.get("packages") or {}).items() if version),
        blas=", ".join(f"{b.get('library')} {b.get('version')} ({b.get('threads')} threads)" for b in libraries),
        settings=" ".join(f"`{name}={value}`" for name, value in (env.get("settings") or {}).items()),
        outcomes=[outcome(entry, result.get("baseline") or "baseline") for entry in result.get("subjects", ())],
        flags=[" ".join(line.split()) for line in flags(result) if line],
    )


def outcome(entry: dict, baseline: str) -> str:
    """One subject's result in a line."""
    speed, n, factor = (COLUMNS[head](entry) for head in ("tokens/s [95%]", "n", "x {baseline} [95%]"))
    over = f", {factor} x {baseline}" if factor and entry.get("name") != baseline else ""
    rate = f"{speed} tokens/s" if speed else "no valid time"
    return f"{entry.get('name')}: {rate}, n {n or 'unknown'}{over}, {verdict(entry) or 'no verdict'}"


def flags(result: dict) -> list[str]:
    """Everything that a reader must know before believing the numbers."""
    env, about = result.get("environment", {}), result.get("protocol", {})
    resumed = about.get("resumed_trials")
    return [
        environment.busy(env),
        *(line for entry in result.get("subjects", ()) for line in doubts(entry)),
        *map(missing, result.get("missing", ())),
        "random weights: for speed, not for text" if about.get("random_weights") else "",
        "the source tree differs from its commit" if (env.get("git") or {}).get("dirty") is True else "",
        f"{resumed} trials come from an interrupted run" if resumed else "",
    ]


def doubts(entry: dict) -> list[str]:
    """What speaks against one subject's numbers."""
    name, void, leaked = (entry.get(key) for key in ("name", "voided_trials", "leaked_buffers"))
    drift, reasons = entry.get("drift") or {}, "; ".join(entry.get("reasons") or ()) or "no reason recorded"
    lines = [
        "rates scatter (IQR above 10%)" if entry.get("unstable") else "",
        f"drifted by {decimal(drift.get('change'), 0, 100)}% during the run" if drift.get("significant") else "",
        f"{void} {'trial' if void == 1 else 'trials'} void: {reasons}" if void else "",
        TOKENS[summary.tokens_word(entry)] if entry.get("tokens_equal") is False else "",
        f"leaves {leaked} arrays behind" if leaked else "",
    ]
    return [f"{name}: {line}" for line in lines if line]


def missing(gap: dict | str) -> str:
    """A requested subject that is missing, with the remedy if the table has it."""
    if isinstance(gap, str):
        return f"missing: {gap}"
    words = [str(gap[key]) for key in ("reason", "remedy") if gap.get(key)]
    return f"missing: {gap.get('name', 'unknown')}" + (f": {' '.join(words)}" if words else "")
