"""Records: one row a trial, with every token's time; a meta file beside each table says where it came from.

Only what was seen is stored. Rates, percentiles and ratios are derived by the functions here, the same way everywhere.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pandas as pd
import pydantic

from llama_jax import files
from llama_jax.bench import roofline
from llama_jax.errors import UserError

SCHEMA = 1


class Trial(pydantic.BaseModel):
    """One request to one subject. Times in ns since the request, sizes in bytes."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)

    # identity
    schema_version: int = SCHEMA
    run: str
    block: int
    order: int  # place within its block
    process: int
    seed: int
    phase: str  # warm: after warm-up, same process · cold: first request of a fresh process, no cache on disk
    valid: bool
    reason: str = ""  # why a trial is void; or "near-tie at token k"
    # subject
    subject: str  # name in tables and figures; the second baseline has its own
    backend: str
    placement: str
    model: str
    weights_hash: str
    dtype: str
    quantisation: str = "none"
    batch: int
    prompt: int  # index of the prompt in the pool
    prompt_tokens: int
    new_tokens: int
    cache_slots: int
    # times
    token_times_ns: list[int]  # arrival of each token on the host
    tokenize_ns: int
    load_ns: int | None = None
    # compilation, over the timed region
    trace_ns: int
    lower_ns: int
    backend_ns: int
    lowered: int
    compiled: int  # XLA compilations: backend events less persistent-cache hits
    cache_hits: int
    # memory
    peak_rss_bytes: int | None = None  # only where the process ran one subject
    device_peak_bytes: int | None = None  # where a device reports it
    argument_bytes: int | None = None  # of the compiled decode program, where it was analysed; so are the next three
    output_bytes: int | None = None
    temp_bytes: int | None = None
    alias_bytes: int | None = None
    # roofline
    bytes_per_token: float | None = None
    bandwidth_gbps: float | None = None
    flops_per_token: float | None = None
    tokens_sha256: str

    @property
    def ttft(self) -> float:
        """Seconds from request to first token on the host, tokenisation included."""
        return self.token_times_ns[0] / 1e9

    @property
    def seconds(self) -> float:
        return self.token_times_ns[-1] / 1e9

    @property
    def tg(self) -> float:
        """Decode rate in tokens/s: (n - 1) / (t_last - t_first), times the batch. NaN for a single token."""
        times = self.token_times_ns
        return self.batch * (len(times) - 1) / (times[-1] - times[0]) * 1e9 if len(times) > 1 and times[-1] > times[0] else float("nan")

    @property
    def pp(self) -> float:
        """Prefill rate in tokens/s: prompt tokens over the time to the first token less tokenisation."""
        return self.batch * self.prompt_tokens / (self.token_times_ns[0] - self.tokenize_ns) * 1e9

    @property
    def itl(self) -> list[float]:
        """Inter-token latencies in seconds: the gaps between arrivals. Tokens of one block arrive together, gap 0."""
        return (np.diff(self.token_times_ns) / 1e9).tolist()

    @property
    def mbu(self) -> float:
        return roofline.mbu(self.tg / self.batch, self.bytes_per_token, self.bandwidth_gbps)


def tokens_hash(tokens: np.ndarray) -> str:
    """SHA-256 of token ids as little-endian int32, row by row."""
    return hashlib.sha256(np.ascontiguousarray(tokens.T, "<i4").tobytes()).hexdigest()


def write(path: Path, trials: Iterable[Trial], **meta) -> Path:
    """Write trials as CSV and `NAME.meta.json` beside it, both in one piece or not at all."""
    frame = pd.DataFrame([t.model_dump() for t in trials], columns=list(Trial.model_fields))
    frame["token_times_ns"] = [" ".join(map(str, times)) for times in frame["token_times_ns"]]
    text = frame.to_csv(index=False, lineterminator="\n")
    about = {"schema_version": SCHEMA, "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), **meta}
    about["sha256"] = hashlib.sha256(text.encode()).hexdigest()
    files.write(path, text)
    files.write(meta_path(path), json.dumps(about, indent=1, sort_keys=True) + "\n")
    return path


def meta_path(path: Path) -> Path:
    return path.with_suffix(".meta.json")


def read(path: Path) -> tuple[list[Trial], dict]:
    """Trials and meta of a table. Raises UserError when it is missing, changed since it was written, or of another schema."""
    try:
        raw, about = path.read_bytes(), json.loads(meta_path(path).read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise UserError(f"No recorded data at {error.filename}; measure first (`llama-jax run --measure`).") from None
    if hashlib.sha256(raw).hexdigest() != about.get("sha256"):
        raise UserError(f"{path} is not the table that {meta_path(path).name} describes (its SHA-256 differs); measure again.")
    if about["schema_version"] != SCHEMA:
        raise UserError(f"{path} has schema {about['schema_version']}, this version reads {SCHEMA}; measure again.")
    frame = pd.read_csv(path, keep_default_na=False, dtype=str)
    rows = frame.to_dict("records")
    for row in rows:
        row["token_times_ns"] = row["token_times_ns"].split()
    return [Trial(**{k: None if v == "" and k not in ("reason",) else v for k, v in row.items()}) for row in rows], about
