"""The GPU suite's records as a table, where there is what makes tables; and what notebook 19 computes from it.

python -m llama_lab.experiments.gpu.data FOLDER [OUT]      FOLDER/19-gpu.jsonl → OUT/data/19-gpu.csv and its meta
                                                           document
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from llama_jax.plumbing import paths
from llama_jax.plumbing.errors import UserError, near
from llama_lab.bench import AGAIN, frames, record, recorded, statistics, summary
from llama_lab.experiments.gpu.device import DETERMINISTIC, NO_GPU, is_deterministic
from llama_lab.experiments.gpu.suite import BASELINE, NAME, GpuTrial

ALL = "all"  # models
DECODE, FIRST_TOKEN = "decode", "first token "  # how `run` begins
NOT_RECORDED = (
    "No GPU run is recorded yet. On a machine with an NVIDIA GPU, `make gpu` records one in eight minutes"
    " and draws it here."
)


def convert(folder: Path, out_dir: Path = paths.ROOT) -> Path:
    """Write OUT/data/19-gpu.csv from FOLDER/19-gpu.jsonl. A last line that is torn is left out; so may a killed run be
    used.

    Raises UserError for a file that is missing, of another kind, or holds no request.
    """
    source = Path(folder) / f"{NAME}.jsonl"
    if not source.is_file():
        raise UserError(f"No recording at {source}; `python -m llama_lab bench --suite gpu --out {folder}` makes one.")
    rows, meta = record.read(source, skip_corrupt=True, kind=GpuTrial, as_probed=True)
    if not rows:
        raise UserError(f"{source} holds no request; the suite was ended before its first.")
    left_out = [note["left_out"] for note in meta.pop("notes", [])]
    about = {k: v for k, v in meta.items() if k not in ("kind", "schema_version", "plan")}
    return record.write(Path(out_dir) / "data" / f"{NAME}.csv", rows, GpuTrial, left_out=left_out, **about)


def obtain(source: str, out_dir: str | Path, model: str = ALL) -> tuple[list[GpuTrial], dict | None]:
    """Recorded rows and their meta, from OUT or else from the repository; ([], None) where none are recorded.

    source: "measure" records first where there is a GPU. model: whose rows. Raises UserError for another source, for a
    model that is not among the recorded, and where recording fails.
    """
    if recorded.is_measured(source):
        measure(Path(out_dir))
    if not any((Path(home) / "data" / f"{NAME}.csv").is_file() for home in (out_dir, paths.ROOT)):
        return [], None
    rows, meta = recorded.read(NAME, out_dir, GpuTrial)
    wanted = [row for row in rows if model in (ALL, row.model)]
    if not wanted:
        raise UserError(f"{NAME}.csv has no model {model!r}.{near(model, models(rows))}")
    return wanted, meta


def measure(out_dir: Path) -> None:
    """The suite in its own process, then the table. Where there is no GPU nothing is measured, and that is
    said."""
    folder = out_dir / "out" / "gpu"
    command = [sys.executable, "-m", "llama_lab", "bench", "--suite", "gpu", "--out", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True)
    last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
    if done.returncode == 2 and NO_GPU in last:
        print(last.removeprefix("error: "))
    elif done.returncode:
        raise UserError(f"The GPU suite failed: {last}")
    else:
        convert(folder, out_dir)


def requests_of(rows: Sequence[GpuTrial], model: str, run: str, phase: str = "warm") -> list[GpuTrial]:
    return [row for row in rows if (row.model, row.run, row.phase) == (model, run, phase)]


def models(rows: Sequence[GpuTrial]) -> list[str]:
    """In the order measured."""
    return list(dict.fromkeys(row.model for row in rows))


def subjects(rows: Sequence[GpuTrial]) -> list[str]:
    """Names in the order started, the baseline's twin left out."""
    first = [row for row in rows if row.phase == "first"]
    return list(dict.fromkeys(row.subject for row in first if not row.subject.endswith(AGAIN)))


def rates(rows: Sequence[GpuTrial], model: str, seed: int = 0) -> list[dict]:
    """One line per subject of one model that has valid trials, fastest first, of `summary.tally`: {subject, rate:
    Summary of tokens/s, ratio: to the baseline, void, …}, and {values, model, mbu, limit, agreed, tokens, trials,
    texts: most that one prompt was answered with}."""
    warm, order = requests_of(rows, model, DECODE), [(name,) for name in subjects(rows)]
    frame = summary.tally(warm, ["subject"], dict(rate="tg"), against=BASELINE, seed=seed, clusters=None, order=order)
    lines = [
        e
        | dict(
            model=model,
            trials=warm,
            values=e["points"]["rate"],
            mbu=float(np.median([row.mbu for row in e["rows"]])),
            limit=float(np.median([row.limit for row in e["rows"]])),
            agreed=min(row.agreed for row in e["rows"]),
            texts=max(map(len, map(set, summary.grouped(e["rows"], "prompt", "tokens_sha256").values()))),
            tokens=e["first"].new_tokens,
        )
        for e in frame.to_dict("records")
        if e["n"]
    ]
    return sorted(lines, key=lambda r: -r["rate"].median)


def between(line: dict, other: dict) -> statistics.Ratio:
    """Decode rate of one line of `rates` over another's of the same model, in pairs of a block."""
    return summary.paired_ratio(line["trials"], line["subject"], other["subject"])


def first_tokens(rows: Sequence[GpuTrial]) -> dict[str, dict[str, dict[int, list[float]]]]:
    """Model → subject → prompt length → milliseconds to the first token, valid warm trials; nothing of a model where
    the time did not allow that."""
    times: dict[str, dict[str, dict[int, list[float]]]] = {model: {} for model in models(rows)}
    for row in rows:
        if row.run.startswith(FIRST_TOKEN) and row.phase == "warm" and row.valid:
            of_subject = times[row.model].setdefault(row.subject, {})
            of_subject.setdefault(row.prompt_tokens, []).append(row.ttft * 1e3)
    return times


def starts(rows: Sequence[GpuTrial], model: str) -> list[dict]:
    """What a subject's first answer costs beyond a warm one, seconds (n = 1), and its memory beside the weights, bytes
    or None."""
    valid = [row for row in rows if row.valid]
    warm = summary.grouped(requests_of(valid, model, DECODE), "subject", "seconds")
    return [
        dict(
            subject=row.subject,
            seconds=max(0.0, row.seconds - float(np.median(warm[row.subject]))),
            extra=row.extra_bytes,
        )
        for row in requests_of(valid, model, DECODE, "first")
        if row.subject in warm
    ]


def is_gpu(rows: Sequence[GpuTrial]) -> bool:
    return all(row.platform == "gpu" for row in rows)


def measured_on(rows: Sequence[GpuTrial]) -> str:
    """The device, and that a rehearsal's is no GPU."""
    return rows[0].device + ("" if is_gpu(rows) else ", which is no GPU, in a rehearsal on tiny shapes")


def table(rows: Sequence[GpuTrial], seed: int = 0):
    """For reading, a pandas.DataFrame: a line per model and subject."""
    begun = {(model, s["subject"]): s["seconds"] for model in models(rows) for s in starts(rows, model)}
    lines = [line for model in models(rows) for line in rates(rows, model, seed)]
    return frames.show([line | dict(start=begun.get((line["model"], line["subject"]))) for line in lines], COLUMNS)


COLUMNS = frames.Columns(
    {
        "model": lambda r: r["model"].removeprefix("random:"),
        "subject": "subject",
        **frames.interval("tokens/s", "rate"),
        "ratio to step": "ratio.value",
        "MBU": "mbu",
        "n": "rate.n",
        "void": "void",
        "start s": "start",
        "texts a prompt": "texts",  # more than one: the same request was computed differently
        "parts from step at": lambda r: r["agreed"] if r["agreed"] < r["tokens"] else None,
    },
    digits=3,
)


def left_out(meta: dict | None):
    """What could not run or had no time, and why, a pandas.DataFrame."""
    import pandas as pd

    return pd.DataFrame((meta or {}).get("left_out", []), columns=["what", "reason"])


def label(rows: Sequence[GpuTrial], meta: dict | None) -> str:
    """What a figure must say of these data: where they were measured, random weights, and PyTorch's version."""
    if meta is None:
        return NOT_RECORDED
    environment = meta["environment"]
    torch = environment["packages"].get("torch")
    flags = environment.get("settings", {}).get("XLA_FLAGS", "")
    return f"measured on {measured_on(rows)}; random weights, bfloat16, batch 1, one process" + (
        f" · torch {torch}" * bool(torch) + f" · XLA under {DETERMINISTIC}, PyTorch as it is" * is_deterministic(flags)
    )


if __name__ == "__main__":
    try:
        print(f"wrote {convert(*map(Path, sys.argv[1:3]))}")
    except UserError as error:
        sys.exit(f"error: {error}")
