"""What a PyTorch peer does before and after the forward pass: pad or truncate the text, choose a token. Functions of
tensors and numbers alone, so that `torch.jit.script` takes them too. Historical: `torch.jit` is deprecated.

A token is chosen by the settings of `llama_jax.Sampler`, its filters in the same order, on PyTorch's own generator of
random numbers. The repetition penalty is not among them: it looks back on the text. The published case applied the
temperature twice; here it is applied once.

What is scripted here prepares itself in four places: in `torch.jit.script`, in `torch.jit.freeze` where settings are
frozen, in its first call, which its executor profiles, and in its second, which it optimises. `clocked` tells them
apart.
"""

from __future__ import annotations

import contextlib
import functools
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch

from llama_jax.sampling import Sampler
from llama_lab.bench.workload import Workload


def pad_or_truncate(ids: torch.Tensor, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(text [B length], number of its tokens [1]) of ids [B T]: zeros behind a shorter text, the latest tokens of a
    longer one."""
    kept = ids[:, -length:]
    count = kept.shape[1]
    padded = torch.zeros((ids.shape[0], length), dtype=ids.dtype, device=ids.device)
    padded[:, :count] = kept
    return padded, torch.full((1,), count, dtype=torch.int64, device=ids.device)


def probabilities(logits: torch.Tensor, temperature: float, top_k: int, top_p: float, min_p: float) -> torch.Tensor:
    """What each token of logits [B V], or flat ones [V], is drawn with, float32 of that shape. The only place where a
    temperature is applied."""
    kept = logits.float() / temperature
    if top_k > 0:
        least = torch.topk(kept, min(top_k, kept.shape[-1]))[0][..., -1:]
        kept = kept.masked_fill(kept < least, float("-inf"))
    if top_p < 1.0:
        descending = torch.sort(kept, dim=-1, descending=True)[0]
        shares = torch.softmax(descending, dim=-1)
        beyond = shares.cumsum(-1) - shares >= top_p
        beyond[..., 0] = False  # the best token always stays
        least = descending.masked_fill(beyond, float("inf")).amin(-1, keepdim=True)
        kept = kept.masked_fill(kept < least, float("-inf"))
    if min_p > 0.0:
        shares = torch.softmax(kept, dim=-1)
        kept = kept.masked_fill(shares < min_p * shares.amax(-1, keepdim=True), float("-inf"))
    return torch.softmax(kept, dim=-1)


def sample(logits: torch.Tensor, temperature: float, top_k: int, top_p: float, min_p: float) -> torch.Tensor:
    """A token for each row of logits: [B 1] of [B T V], whose last position counts, or of [B V], and [1] of flat ones
    [V]. Temperature 0 takes the best."""
    last = logits[:, -1] if logits.dim() == 3 else logits
    if temperature == 0.0:
        return last.float().argmax(dim=-1, keepdim=True)
    return torch.multinomial(probabilities(last, temperature, top_k, top_p, min_p), 1)


class Settled(torch.nn.Module):
    """A function of logits and settings, with the settings as attributes: `torch.jit.freeze` makes constants of them.

    function: `sample` or `probabilities`."""

    def __init__(self, function: Callable, temperature: float, top_k: int, top_p: float, min_p: float):
        super().__init__()
        self.function, self.temperature, self.top_k, self.top_p, self.min_p = function, temperature, top_k, top_p, min_p
        self.eval()

    def forward(self, logits: torch.Tensor) -> torch.Tensor:
        return self.function(logits, self.temperature, self.top_k, self.top_p, self.min_p)


@functools.cache
def scripted(function: Callable) -> Callable:
    """A function through `torch.jit.script`, once per process, when it is first needed: a first request pays for it."""
    return watched(made("script_ns", torch.jit.script, function))


@functools.lru_cache(maxsize=16)
def frozen(*settings: float) -> Callable:
    """`sample` for these settings alone (temperature, top_k, top_p, min_p): scripted and frozen, when first needed."""
    return watched(made("freeze_ns", torch.jit.freeze, made("script_ns", torch.jit.script, Settled(sample, *settings))))


def sample_frozen(logits: torch.Tensor, *settings: float) -> torch.Tensor:
    """As `sample`, by a program that has the settings in it as constants: other settings are another program."""
    return frozen(*settings)(logits)


def chooser(work: Workload, sample: Callable = sample) -> Callable[[torch.Tensor], torch.Tensor]:
    """Logits [B 1 V] → token [B 1] as the workload wants it, its draws begun again from its seed."""
    settings = settings_of(work.sampler)
    if work.sampler.temperature > 0:
        torch.manual_seed(work.seed)
    return lambda logits: sample(logits, *settings)


def settings_of(s: Sampler) -> tuple[float, int, float, float]:
    """The settings that the functions here take, of the types that TorchScript insists on."""
    return float(s.temperature), s.top_k, float(s.top_p), float(s.min_p)


# What it costs --------------------------------------------------------------------------------------------------------


@dataclass
class Spent:
    """Nanoseconds that TorchScript took. calls: of each function that it made, those of its calls, in their order."""

    script_ns: int = 0
    freeze_ns: int = 0
    calls: list[list[int]] = field(default_factory=list)

    @property
    def calls_ns(self) -> list[int]:
        """The first calls of all functions together, the second ones, and so on, as far as all were called."""
        return [sum(nth) for nth in zip(*self.calls, strict=False)]


CLOCKS: list[Spent] = []  # those that are open


@contextlib.contextmanager
def clocked() -> Iterator[Spent]:
    """What TorchScript takes between the `with` lines, of what this process scripts there for the first time.

    What was scripted is forgotten at the end: a function that a clock watches is in no request that is timed warm.
    """
    CLOCKS.append(Spent())
    try:
        yield CLOCKS[-1]
    finally:
        CLOCKS.pop()
        scripted.cache_clear()
        frozen.cache_clear()


def made(part: str, make: Callable, given):
    """make(given), what it takes added to this part of the clocks that are open."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it is deprecated: see above
        began = time.perf_counter_ns()
        result = make(given)
        took = time.perf_counter_ns() - began
    for spent in CLOCKS:
        setattr(spent, part, getattr(spent, part) + took)
    return result


def watched(function: Callable) -> Callable:
    """The function itself; where a clock is open, one that notes what each of its calls takes on the host."""
    if not CLOCKS:
        return function
    times: list[int] = []
    CLOCKS[-1].calls.append(times)

    def noted(*given):
        began = time.perf_counter_ns()
        result = function(*given)
        times.append(time.perf_counter_ns() - began)
        return result

    return noted
