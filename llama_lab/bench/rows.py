"""Rows: one per trial, with every token's time. Only observations are stored; rates, percentiles and ratios are derived
here, the same way everywhere."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pydantic
from pydantic import Field, NonNegativeInt, PositiveInt

from llama_jax.plumbing import boundary
from llama_lab.bench import DIED, SCHEMA, WRONG, roofline

LARGEST = 1 << 62  # of a number in a table
NAN = float("nan")
UNCHECKED = "its tokens were not compared"  # how the reason of a valid row begins where there was nothing to hold it to


@dataclass(frozen=True)
class Run:
    """What a row's `run` says where it names more than one thing: of which kind it is, and what of that kind."""

    kind: str
    what: object

    def __str__(self) -> str:
        return f"{self.kind} {self.what}"

    @classmethod
    def read(cls, run: str) -> Run:
        """The same of a row; what: as text, "" if the kind is all it says."""
        kind, _, what = run.partition(" ")
        return cls(kind, what)


class Row(pydantic.BaseModel):
    """Fields of every row of a table. A row that is not valid stays, with its reason."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)

    schema_version: int = SCHEMA
    run: str
    block: int
    order: int  # place within its block
    process: int  # index of the process within the run; trials of one process share its luck and are not independent
    seed: int
    # cold: first request of a fresh process, nothing on disk · cached: the same, programs on disk · warm: after warm-up
    phase: str
    valid: bool
    reason: str = ""  # why a trial is void; or "near-tie at token k"
    cause: str = ""  # why its programs were compiled, in JAX's own words, where that was asked for

    @pydantic.model_validator(mode="after")
    def within_64_bits(self) -> Row:
        """No whole number is too large for the arrays that it goes into."""
        for name, value in self:
            for number in value if isinstance(value, list) else (value,):
                if type(number) is int and not -LARGEST < number < LARGEST:
                    raise ValueError(f"{name} holds {boundary.shown(number)}")
        return self

    @property
    def wrong(self) -> bool:
        """Whether it made wrong tokens or values."""
        return WRONG in self.reason

    @property
    def died(self) -> bool:
        """Whether its process died in it."""
        return self.reason.startswith(DIED)


class Compiled:
    """A row that says what was compiled in its timed region: trace_ns, lower_ns, backend_ns."""

    @property
    def compile_seconds(self) -> float:
        """Trace, lower and backend time together."""
        return (self.trace_ns + self.lower_ns + self.backend_ns) / 1e9


class Trial(Compiled, Row):
    """One request to one subject. Times in ns since the request, sizes in bytes.

    A trial that failed (its process died, or the subject raised) has no token times, is not valid, and says why.
    """

    # subject
    subject: str  # name in tables and figures; the second baseline has its own
    backend: str
    placement: str
    model: str
    weights_hash: str
    dtype: str
    quantisation: str = "none"
    batch: PositiveInt
    prompt: NonNegativeInt  # index of the prompt in the pool
    prompt_tokens: NonNegativeInt
    new_tokens: NonNegativeInt
    sampling: str = "greedy"  # how tokens were chosen: `Sampler` in words
    cache_slots: int
    # times
    token_times_ns: list[int]  # arrival of each token on the host
    tokenize_ns: int
    load_ns: int | None = None
    # as a server counts and clocks the request itself, where the subject is one
    server_prompt_tokens: int | None = None  # evaluated; fewer than were sent when it had some in its cache
    server_prompt_ns: int | None = None
    server_tokens: int | None = None
    server_decode_ns: int | None = None
    server_load_ns: int | None = None
    # compilation, over the timed region
    trace_ns: int
    lower_ns: int
    backend_ns: int
    lowered: int
    # XLA compilations: backend events less persistent-cache hits; of PyTorch, programs compiled and graphs captured
    compiled: int
    cache_hits: int
    cache_misses: int = 0
    # memory
    peak_rss_bytes: int | None = None  # only where the process ran one subject
    device_peak_bytes: int | None = None  # where a device reports it
    weights_bytes: int | None = None  # all parameters together, from the configuration
    kv_bytes: int | None = None  # keys and values of all slots, from the configuration
    argument_bytes: int | None = None  # the compiled decode program's, where it was analysed; so are the next three
    output_bytes: int | None = None
    temp_bytes: int | None = None
    alias_bytes: int | None = None
    live_buffers_before: int | None = None  # arrays alive on the device, so that a leak across trials shows
    live_buffers_after: int | None = None
    # roofline
    bytes_per_token: float | None = Field(None, gt=0)
    bandwidth_gbps: float | None = Field(None, gt=0)  # in a file: of its own block's probe; read: of its run
    flops_per_token: float | None = None
    tokens_sha256: str

    @property
    def ttft(self) -> float:
        """Seconds from request to first token on the host, tokenisation included."""
        return self.token_times_ns[0] / 1e9 if self.token_times_ns else NAN

    @property
    def seconds(self) -> float:
        """Latency: seconds from request to last token on the host."""
        return self.token_times_ns[-1] / 1e9 if self.token_times_ns else NAN

    @property
    def tpot(self) -> float:
        """Seconds per output token after the first: (latency - TTFT) / (n - 1). NaN for a single token."""
        n = len(self.token_times_ns)
        return (self.seconds - self.ttft) / (n - 1) if n > 1 else NAN

    @property
    def tg(self) -> float:
        """Decode rate in tokens/s: (n - 1) / (t_last - t_first), times the batch. NaN for a single token."""
        times = self.token_times_ns or [0]
        spent = times[-1] - times[0]
        return self.batch * (len(times) - 1) / spent * 1e9 if spent > 0 else NAN

    @property
    def pp(self) -> float:
        """Prefill rate in tokens/s: prompt tokens over the time to the first token less tokenisation."""
        spent = self.token_times_ns[0] - self.tokenize_ns if self.token_times_ns else 0
        return self.batch * self.prompt_tokens / spent * 1e9 if spent > 0 else NAN

    @property
    def itl(self) -> list[float]:
        """Inter-token latencies in seconds: the gaps between arrivals. Tokens of one block arrive together, gap 0."""
        return (np.diff(self.token_times_ns) / 1e9).tolist()

    @property
    def limit(self) -> float:
        """Tokens/s that the probed bandwidth allows one row: bytes a second over the bytes a token must read."""
        return self.bandwidth_gbps * 1e9 / self.bytes_per_token

    @property
    def mbu(self) -> float:
        known = self.bytes_per_token and self.bandwidth_gbps
        return roofline.mbu(self.tg / self.batch, self.bytes_per_token, self.bandwidth_gbps) if known else NAN


def fields_of(kind: type[Row], annotation) -> list[str]:
    """Names of the fields of a kind of row that hold values of one type."""
    return [name for name, field in kind.model_fields.items() if field.annotation == annotation]
