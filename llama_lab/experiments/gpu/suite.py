"""What the GPU suite measures and what its rows hold: shapes, subjects and sizes, and its rehearsal on any device."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from llama_jax.config import PRESETS, ModelConfig, tiny, tuples
from llama_lab.bench.record import Trial
from llama_lab.bench.workload import Workload
from llama_lab.experiments.gpu import device

NAME = "19-gpu"
BASELINE = "step"
LADDER = ("step", "torch", "loop", "torch-cudagraph", "chunk8", "step+donate", "torch-hybrid", "torch-script",
          "torch-compile", "torch-compile+reduce-overhead", "step+scan")  # fmt: skip
FIRST_TOKEN = ("step", "torch", "torch-cudagraph", "torch-hybrid", "torch-script", "torch-compile")
PROMPTS = 4
# Seconds per layer, by how a name begins, that a subject's first request or another part may take before one was seen
GUESSES = {"": 0.8, "torch": 0.3, "torch-script": 0.6, "torch-compile": 2.0, "torch-compile+reduce-overhead": 2.5,
           "eager": 1.0, "first token": 1.0, "weights": 0.4}  # fmt: skip


class GpuTrial(Trial):
    """A request of the GPU suite. phase `first` is a subject's first request in a process that all subjects share."""

    device: str  # as JAX names it
    platform: str  # "gpu", or what a rehearsal ran on
    agreed: int | None = None  # tokens until the text parts from the baseline's
    # the furthest a token is below the best at its place, in standard deviations of the logits
    gap: float | None = None
    # device memory that the subject takes beside the shared weights; first requests only
    extra_bytes: int | None = None


@dataclass(frozen=True)
class Shape:
    """A model of random weights. until: the share of all time that is gone when its own is over. subjects: most wanted
    first."""

    name: str
    config: ModelConfig
    until: float
    subjects: tuple[str, ...] = LADDER
    first_token: tuple[str, ...] = FIRST_TOKEN


@dataclass(frozen=True)
class Suite:
    """What is measured; shapes: most wanted first.

    limit_s: when to stop beginning things. hard_s: when the measuring process is ended, whatever it is at.
    """

    shapes: tuple[Shape, ...]
    prompt_tokens: int = 128
    new_tokens: int = 65  # one, then whole chunks of eight
    blocks: int = 10
    lengths: tuple[int, ...] = (10, 50, 100, 200, 300, 400)
    answers: int = 20  # first tokens of each length
    limit_s: float = 430.0
    hard_s: float = 465.0  # eight minutes, less what imports and the interpreter's end take
    seed: int = 0
    probe_bytes: int = device.PROBE_BYTES
    rehearsal: bool = False
    deterministic: bool = False  # XLA's programs make the same bits in every run (`device.DETERMINISTIC`)

    @classmethod
    def from_json(cls, values: dict) -> Suite:
        """A suite as `dataclasses.asdict` and JSON have left it."""
        configs = [ModelConfig.from_json(shape["config"]) for shape in values["shapes"]]
        shapes = [Shape(**tuples(s | dict(config=c))) for s, c in zip(values["shapes"], configs, strict=True)]
        return cls(**tuples(values | dict(shapes=shapes)))

    def workload(self, config: ModelConfig, tokens: int, new_tokens: int) -> Workload:
        """Prompts of exactly so many random ids, without padding."""
        drawn = np.random.default_rng([self.seed, tokens]).integers(0, config.vocab_size, (PROMPTS, tokens))
        return Workload(tuple(map(tuple, drawn.tolist())), new_tokens, tokens, seed=self.seed)


FULL = Suite(
    (
        Shape("random:llama-3.2-1b", PRESETS["llama-3.2-1b"], 0.5, (*LADDER, "eager")),
        Shape("random:llama-2-7b", PRESETS["llama-2-7b"], 0.82),
        Shape("random:llama-3.2-3b", PRESETS["llama-3.2-3b"], 1.0),
    )
)
UNTIED = dict(tie_word_embeddings=False)
REHEARSAL = Suite(
    (
        Shape("random:tiny", tiny(**UNTIED), 0.7, (*LADDER, "eager")),
        Shape("random:tiny, three layers", tiny(**UNTIED, num_hidden_layers=3), 1.0, ("step", "torch", "loop")),
    ),
    prompt_tokens=12, new_tokens=17, blocks=3, lengths=(4, 12, 20), answers=3, limit_s=200.0, hard_s=230.0,
    probe_bytes=1 << 24, rehearsal=True,
)  # fmt: skip
