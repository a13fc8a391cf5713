"""A run for other people: a Markdown table, a reporting block to paste beside it, or the raw trials as a file.

`result` is the document that `llama-jax bench --json` prints. A figure that it lacks is an empty cell in the table and
"unknown" in the block.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterable
from pathlib import Path

from llama_jax.plumbing import files
from llama_jax.plumbing.errors import UserError
from llama_lab.bench import AGAIN, environment, record, summary
from llama_lab.bench.record import Trial

TABLES = (".csv", ".parquet", ".jsonl")
RIGHT = "---:"
TOKENS = {
    "WRONG": "other tokens than the reference's",
    "none": "no whole answer",
    "own": "a text of its own: it computes in fewer bits",
}


def check(path: Path) -> None:
    """Raises UserError for a name that `write` cannot write to, so that it is known before minutes of measuring."""
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
    return files.write(path, f"{markdown(result)}\n{reporting(result)}")


def markdown(result: dict) -> str:
    """The table in GitHub's Markdown, one row a subject. MBU in %, peak RSS in GB (10^9 bytes), compile in seconds /
    programs."""
    ratio = f"x {result.get('baseline', 'baseline')} [95 %]"
    heads = (
        "subject",
        "tokens/s [95 %]",
        "IQR",
        "n",
        ratio,
        "verdict",
        "TTFT ms",
        "ITL p50 ms",
        "MBU %",
        "compile s / programs",
        "peak RSS GB",
        "tokens",
        "valid/void",
    )
    rule = ["---" if head in ("subject", "verdict", "tokens") else RIGHT for head in heads]
    return "".join(
        f"| {' | '.join(map(cell, row))} |\n" for row in (heads, rule, *map(columns, result.get("subjects", ())))
    )


def columns(entry: dict) -> list[str]:
    """A subject's cells, in the order of the table's heads."""
    rate, compiled = entry.get("tokens_per_second") or {}, entry.get("compile") or {}
    itl, ratio = entry.get("itl_ms") or {}, entry.get("ratio_to_baseline") or {}
    seconds, programs = number(compiled.get("seconds"), 2), number(compiled.get("n"), 0)
    return [
        entry.get("name", ""),
        interval(rate, "median", 1),
        number(rate.get("iqr"), 1),
        number(rate.get("n"), 0),
        interval(ratio, "value", 2),
        verdict(entry),
        number(entry.get("ttft_ms"), 1),
        number(itl.get("p50"), 2),
        number(entry.get("mbu"), 0, 100),
        f"{seconds} / {programs}" if seconds and programs else seconds,
        number(entry.get("peak_rss_bytes"), 2, 1e-9),
        "" if entry.get("tokens_equal") is None else summary.tokens_word(entry),
        f"{number(entry.get('valid_trials'), 0)}/{number(entry.get('voided_trials'), 0)}".strip("/"),
    ]


def verdict(entry: dict) -> str:
    said = (entry.get("ratio_to_baseline") or {}).get("verdict") or ""
    return f"A/A control: {said}" if entry.get("name", "").endswith(AGAIN) else said


def number(value: float | None, digits: int, scale: float = 1) -> str:
    """A number as text; nothing for what is missing, unknown or not finite."""
    known = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return f"{value * scale:.{digits}f}" if known else ""


def interval(found: dict, key: str, digits: int) -> str:
    """`value [low, high]`, or as much of it as there is."""
    value, low, high = (number(found.get(k), digits) for k in (key, "low", "high"))
    return f"{value} [{low}, {high}]" if value and low and high else value


def cell(text: str) -> str:
    """Text that cannot end its cell."""
    return " ".join(str(text).split()).replace("|", "\\|")


def reporting(result: dict) -> str:
    """What a number needs beside it in a paper or an issue, as Markdown: what was measured, where, how, what came
    out."""
    blocks = []
    for title, section in SECTIONS.items():
        lines = [line for line in section(result) if line]
        blocks.append(f"**{title}**\n\n" + "".join(f"- {' '.join(line.split())}\n" for line in lines or ["none"]))
    return "\n".join(blocks)


def fact(label: str, value, unit: str = "", optional: bool = False) -> str:
    """`label: value unit`; nothing for a missing optional one."""
    missing = value is None or value == "" or (isinstance(value, float) and not math.isfinite(value))
    return ("" if optional else f"{label}: unknown") if missing else f"{label}: {value}{unit}"


def configuration(result: dict) -> list[str]:
    about, env = result.get("protocol", {}), result.get("environment", {})
    tokens = [about.get(f"{kind}_tokens", "unknown") for kind in ("prompt", "new")]
    return [
        fact("model", about.get("model")),
        fact("weights (SHA-256)", env.get("weights_hash")),
        fact("dtype", about.get("dtype")),
        f"tokens: {tokens[0]} of prompt + {tokens[1]} new",
        fact("batch", about.get("batch")),
        fact("tokens chosen", about.get("sampling"), optional=True),
        fact("blocks", about.get("blocks")),
        fact("processes", about.get("processes"), optional=True),
        fact("threads", about.get("threads"), optional=True),
        fact("seed", about.get("seed")),
        fact("baseline", result.get("baseline")),
    ]


def hardware(result: dict) -> list[str]:
    env = result.get("environment", {})
    ram, allowed, gpus = number(env.get("ram_bytes"), 0, 2**-30), env.get("limits") or {}, env.get("gpus")
    memory = number(allowed.get("memory_bytes"), 1, 2**-30)
    names = (
        gpus if isinstance(gpus, str) else ", ".join(f"{g.get('name')} (driver {g.get('driver')})" for g in gpus or ())
    )
    return [
        fact("CPU", env.get("cpu")),
        fact("cores", env.get("cores")),
        fact("memory", ram, " GiB"),
        fact("GPU", names, optional=True),
        fact("container's CPUs", allowed.get("cpus"), optional=True),
        fact("container's memory", memory, " GiB", optional=True),
        fact("frequency governor", env.get("governor")),
        fact("system", env.get("os")),
    ]


def versions(result: dict) -> list[str]:
    env = result.get("environment", {})
    packages = ", ".join(f"{name} {found}" for name, found in (env.get("packages") or {}).items() if found)
    blas = ", ".join(
        f"{b.get('library')} {b.get('version')} ({b.get('threads')} threads)" for b in env.get("blas") or ()
    )
    settings = " ".join(f"`{name}={value}`" for name, value in (env.get("settings") or {}).items())
    git = env.get("git") or {}
    state = {True: " with local changes", False: ""}.get(git.get("dirty"), ", local changes unknown")
    return [
        fact("Python", env.get("python")),
        fact("packages", packages),
        fact("BLAS and OpenMP", blas, optional=True),
        f"settings: {settings or 'none'}",
        fact("commit", git.get("commit"), state),
    ]


def protocol(result: dict) -> list[str]:
    return [
        "After a warm-up that ends when nothing compiles, blocks run every subject once and the baseline twice (A/A"
        " control) in seeded random order; a trial is void when anything compiles within it (guard) or when its tokens"
        " are not the reference's, sampled ones under equal seeds (gate). Rates are medians with their 95 % bootstrap"
        " interval, ratios are geometric means of the block-wise ratios with a 95 % bootstrap interval of blocks, or of"
        " whole processes where there are several (few of them: Student's t)."
    ]


def results(result: dict) -> list[str]:
    lines = []
    for entry in result.get("subjects", ()):
        rate, ratio = entry.get("tokens_per_second") or {}, entry.get("ratio_to_baseline") or {}
        speed = interval(rate, "median", 1)
        said = [f"{speed} tokens/s" if speed else "no valid time", f"n {number(rate.get('n'), 0) or 'unknown'}"]
        if (factor := interval(ratio, "value", 2)) and entry.get("name") != result.get("baseline"):
            said.append(f"{factor} x {result.get('baseline', 'baseline')}")
        lines.append(f"{entry.get('name')}: {', '.join([*said, verdict(entry) or 'no verdict'])}")
    return lines


def limits(result: dict) -> list[str]:
    env, about = result.get("environment", {}), result.get("protocol", {})
    return [
        fact("memory bandwidth, probed", number(env.get("bandwidth_gbps"), 1), " GB/s"),
        fact("float32 matrix product, probed", number(env.get("gflops"), 0), " GFLOP/s"),
        fact("decode limit of this bandwidth", number(about.get("limit_tokens_per_second"), 1), " tokens/s"),
    ]


def flags(result: dict) -> list[str]:
    """Everything that a reader must know before believing the numbers."""
    env, about = result.get("environment", {}), result.get("protocol", {})
    lines = [environment.busy(env)]
    for entry in result.get("subjects", ()):
        name, void, leaked, drift = (entry.get(key) for key in ("name", "voided_trials", "leaked_buffers", "drift"))
        reasons = "; ".join(entry.get("reasons") or ()) or "no reason recorded"
        lines += [
            f"{name}: rates scatter (IQR above 10 %)" if entry.get("unstable") else "",
            f"{name}: drifted by {number(drift.get('change'), 0, 100)} % during the run"
            if drift and drift.get("significant")
            else "",
            f"{name}: {void} {'trial' if void == 1 else 'trials'} void: {reasons}" if void else "",
            f"{name}: {TOKENS[summary.tokens_word(entry)]}" if entry.get("tokens_equal") is False else "",
            f"{name}: leaves {leaked} arrays behind" if leaked else "",
        ]
    return (
        lines
        + [missing(peer) for peer in result.get("missing", ())]
        + [
            "random weights: right for speed, never for text" if about.get("random_weights") else "",
            "the source tree differs from its commit" if (env.get("git") or {}).get("dirty") is True else "",
            f"{about['resumed_trials']} trials come from an interrupted run" if about.get("resumed_trials") else "",
        ]
    )


def missing(peer: dict | str) -> str:
    """A subject that was asked for and is not there, with what would bring it."""
    if isinstance(peer, str):
        return f"missing: {peer}"
    remedy = " ".join(str(peer[key]) for key in ("reason", "remedy") if peer.get(key))
    return f"missing: {peer.get('name', 'unknown')}" + (f": {remedy}" if remedy else "")


SECTIONS = {
    "Configuration": configuration,
    "Hardware": hardware,
    "Versions": versions,
    "Protocol": protocol,
    "Results": results,
    "Limits": limits,
    "Flags": flags,
}
