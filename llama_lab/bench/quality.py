"""The effect of an arithmetic on the model: its next-token distribution compared with the float32 model's on the same
weights.

Texts cannot be compared once they diverge, but distributions can. An English text is read in windows, each position
gets all true tokens before it in its window (teacher forcing), and the two distributions are compared there. For a
subject whose tokens differ from float32's, this is the only measure of quality.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from llama_jax import checkpoint, generate
from llama_jax.checkpoint import Checkpoint
from llama_jax.placement import parse
from llama_jax.plumbing.errors import UserError, near
from llama_lab.bench import available, frames, passages, statistics, summary
from llama_lab.bench.arithmetic import Arithmetic
from llama_lab.bench.experiment import Experiment, Point, Runner, Seed, check_counts
from llama_lab.bench.lab import Lab
from llama_lab.bench.record import Row

REFERENCE = "float32"
PLACEMENTS = {  # arithmetic: a placement that computes so
    REFERENCE: "step",
    "bfloat16": "step+bf16",
    "kv-int8": "step+kvint8",
    "kv-f16": "step+kvf16",
    "gguf": "step+gguf",
    "int8": "step+int8",
    "q8_0": "step+q8_0",
    "q4_0": "step+q4_0",
    "gemv": "step+gemv",
    "fused": "step+fused",
}
PEERS = ("torch", "torch-int8", "llamacpp", "llamacpp+q8_0", "llamacpp+q4_0", "ik-llamacpp", "ik-llamacpp+q8_0",
         "ik-llamacpp+q4_0", "openvino", "openvino+q8_0", "openvino+q4_0", "ollama")  # fmt: skip
ALONE = PEERS[2:]  # read in their own process: what goes wrong in a library or a server then costs no other
ARITHMETICS = (*PLACEMENTS, *PEERS)
EXACT = 1e-6  # nats: as far as float32 rounding may take the mean
# nats: a mean beyond this is another model, or one that was fed wrongly; 8-bit activations stay well below
SAME_MODEL = 0.1
# what rounds a small model's weights or activations so that little may be left of it
COARSE, COARSE_MODEL = (("q4_0", "int8"), 4.0)
LEAST_AGREEMENT = 0.5  # share of equal best tokens if there are no logits
POSITIONS = 32  # neighbours share their context: the interval resamples them together
PICO = 1e12


class Window(Row):
    """One window of the text under one arithmetic: an entry per position, including the first. It is not valid if it is
    further from the reference than the same model can be."""

    subject: str  # the arithmetic
    backend: str
    model: str
    weights_hash: str
    first: int  # position of the window's first token in the text
    # KL(float32 || this) of each position in 1e-12 nats; empty where the subject hands out no logits
    kl_pnat: list[int]
    agree: list[int]  # 1 where both have the same best token, 0 if not, -1 if the subject's is not known
    text_sha256: str

    @property
    def kl(self) -> np.ndarray:
        """Nats, one a position."""
        return np.asarray(self.kl_pnat, float) / PICO

    @staticmethod
    def more(text: str, logits: np.ndarray, following: Sequence[int]) -> dict:
        """More fields for another kind of row, from a text's name, logits [T V] and the true next tokens."""
        return {}


def against(reference: np.ndarray, other: np.ndarray) -> dict[str, np.ndarray]:
    """{kl, agree}, one per position, of two sets of logits [T V] for the same tokens.

    kl: KL(reference || other) of the softmax distributions in nats, float64. agree: whether the best token is the same.
    Raises UserError for different shapes and for logits that are no numbers.
    """
    from scipy.special import log_softmax  # here: it is memory that no process should hold whose own is measured

    reference, other = np.asarray(reference), np.asarray(other)
    if reference.shape != other.shape or reference.ndim != 2:
        shapes = f"Logits of shape {other.shape} cannot be compared with {reference.shape}"
        raise UserError(f"{shapes}; both must be [tokens, vocabulary].")
    for name, values in (("reference's", reference), ("other", other)):
        finite = np.isfinite(values).all(-1)
        if not finite.all():
            raise UserError(f"The {name} logits are not all finite: first at position {int(np.argmin(finite))}.")
    ours, theirs = (log_softmax(logits.astype(np.float64), axis=-1) for logits in (reference, other))
    kl = np.sum(np.exp(ours) * (ours - theirs), axis=-1)  # rounding may leave -1e-16 where it is zero
    return dict(kl=np.maximum(kl, 0), agree=reference.argmax(-1) == other.argmax(-1))


@dataclass(frozen=True)
class Texts(Experiment):
    """Texts read under subjects: `quality_tokens` tokens of each in windows. What is not `ALONE` shares one process.

    title: as the progress says it; its first word begins the run's name. count: how many texts there are.
    """

    kind = Window
    title: ClassVar[str] = "quality of"
    count: ClassVar[int] = 1

    model: str
    seed: Seed
    quality_tokens: int
    window: int

    @property
    def names(self) -> Sequence[str]:
        """Arithmetics, placements and peers under which the texts are read."""
        raise NotImplementedError

    def texts(self, loaded: Checkpoint) -> dict[str, list[int]]:
        """Ids of each text by its name, of which the first `quality_tokens` are read."""
        return {"": passages.english(loaded, self.quality_tokens, self.seed)}

    def check(self) -> None:
        check_counts(quality_tokens=self.quality_tokens, window=self.window)
        room = checkpoint.load_config(self.model).max_position_embeddings
        if self.window > room:
            raise UserError(f"window is {self.window}, more than the model's context of {room}; ask for a shorter one.")

    def points(self, runner: Runner) -> list[Point]:
        here = {*PLACEMENTS, *runner.present([name for name in self.names if name not in PLACEMENTS])}
        names = [name for name in self.names if name in here]
        groups = [[name for name in names if name not in ALONE], *([name] for name in names if name in ALONE)]
        rows = -(-self.quality_tokens // self.window) * self.count
        run = self.title.split()[0]
        return [
            Point(f"{run} {' '.join(group)}", 0, self.reading, rows * len(group), dict(names=group),
                  f"{self.title} {', '.join(group)}")
            for group in groups if group
        ]  # fmt: skip

    def about(self, runner: Runner) -> dict:
        return dict(missing=runner.missing)

    def reading(self, lab: Lab, names: Sequence[str], reference: str = "") -> None:
        """Every window of every text under the reference and under each of these subjects. reference: the model whose
        float32 it is, by default the subjects' own."""
        from llama_lab import peers

        loaded = lab.load()
        exact = checkpoint.load(reference) if reference else loaded
        truth, readers, order = reader(exact, REFERENCE), {}, itertools.count()
        for name in names:
            try:
                readers[name] = reader(loaded, name)
            except peers.UnavailableError as error:
                lab.missing(name, error.reason, error.remedy)
        for text, ids in self.texts(loaded).items():
            common = dict(seed=self.seed, phase="read", model=loaded.name, weights_hash=loaded.weights_hash)
            common |= dict(text_sha256=hashlib.sha256(np.asarray(ids, "<i4").tobytes()).hexdigest())
            read = ids[: self.quality_tokens]  # a text may be shorter
            for first in range(0, len(read), self.window):
                piece = read[first : first + self.window]
                right, following = truth(piece), ids[first + 1 : first + 1 + len(piece)]
                for name, logits_of in readers.items():
                    lab.announce()
                    logits = logits_of(piece)
                    measured = compare(name, right, logits, rounded=bool(reference)) | self.kind.more(
                        text, logits, following
                    )
                    where = dict(order=next(order), subject=name, backend=available.backend_of(name), first=first)
                    lab.keep(self.kind(**lab.identity, **common, **measured, **where))


@dataclass(frozen=True)
class Quality(Texts):
    """Each arithmetic over English."""

    arithmetics: tuple[str, ...]

    @property
    def names(self) -> Sequence[str]:
        return self.arithmetics

    def check(self) -> None:
        for name in self.arithmetics:
            if name not in ARITHMETICS:
                raise UserError(f"No such arithmetic: {name!r}.{near(name, ARITHMETICS)}")
        super().check()


def reader(loaded: Checkpoint, name: str) -> Callable:
    """ids → logits [T V] under an arithmetic, or any placement or peer; if there are none, best tokens [T], -1 for
    an unknown one.

    Raises UnavailableError for a peer that cannot run.
    """
    from llama_lab import peers

    if name not in peers.PEERS:
        engine = generate.build(loaded, PLACEMENTS.get(name, name))
        return lambda ids: np.asarray(generate.logits(engine, ids))
    module = peers.module(name)
    if gap := module.missing(name, loaded.name):
        raise peers.UnavailableError(*gap)
    if name == "ollama":
        return lambda ids: module.top1(loaded, ids, range(len(ids)))
    return module.logits(loaded, name)


def bound(name: str) -> float:
    """Nats that the mean of an arithmetic, a placement or a peer may be away from the reference."""
    if name in (REFERENCE, "torch"):
        return EXACT
    is_peer = name in available.peer_names()
    coarse = name.endswith(COARSE) if is_peer else parse(PLACEMENTS.get(name, name)).weights in COARSE
    return COARSE_MODEL if coarse else SAME_MODEL


def compare(name: str, reference: np.ndarray, other: np.ndarray, rounded: bool = False) -> dict:
    """The fields of a window for its distance from the reference, and whether it can be the same model. rounded: its
    weights are the reference's in fewer bits."""
    if other.ndim == 1:
        kl, known, agree = np.array([]), other >= 0, reference.argmax(-1) == other
        share = agree[known].mean() if known.any() else 1.0
        strange = f"another model: {share:.0%} of the best tokens agree" if share < LEAST_AGREEMENT else ""
        agree = np.where(known, agree, -1)
    else:
        kl, agree = against(reference, other).values()
        most = COARSE_MODEL if rounded else bound(name)
        far = f"another model: mean KL {kl.mean():.2g} nats, at most {most:g} expected"
        strange = far if kl.mean() > most else ""
    return dict(kl_pnat=pnat(kl), agree=agree.astype(int).tolist(), valid=not strange, reason=strange)


def pnat(nats: np.ndarray) -> list[int]:
    return np.round(nats * PICO).astype(np.int64).tolist()


# What the rows say ----------------------------------------------------------------------------------------------------


def arithmetic(backend: str, dtype: str, quantisation: str = "none", name: str = "") -> str:
    """The arithmetic of a trial, among those that are read here. name: the subject's."""
    if name in PEERS:
        return name
    if backend != "jax":
        return next((name for name in PEERS if available.backend_of(name) == backend), REFERENCE)
    parts = Arithmetic.read(quantisation)
    # the blocks that kernels take where nothing else is asked for
    if parts.kernels and not parts.kv and parts.form in ("gguf", "q8_0"):
        return parts.kernels
    return dtype if parts == Arithmetic() else quantisation


def table(rows: Sequence[Window], seed: int = 0) -> list[dict]:
    """One entry per arithmetic, in the order of `ARITHMETICS`: {subject, …} of `distance`."""
    by_name = summary.grouped(sorted(rows, key=lambda row: row.first), "subject")
    return [dict(subject=name) | distance(by_name[name], seed) for name in ARITHMETICS if name in by_name]


def distance(windows: Sequence[Window], seed: int = 0) -> dict:
    """How far windows of one subject are from the reference: {backend, tokens, kl, kl_low, kl_high (mean in nats and
    its 95% interval), median, worst, top1, top1_low, top1_high (share of equal best tokens), valid, reasons}; None or
    NaN for what is not known."""
    labels, kl = neighbours(windows), np.concatenate([w.kl for w in windows])
    agree = np.concatenate([np.asarray(w.agree, float) for w in windows])
    known = [label for label, agreed in zip(labels, agree, strict=True) if agreed >= 0]
    return dict(
        backend=windows[0].backend,
        tokens=len(known),
        valid=all(w.valid for w in windows),
        reasons=sorted({w.reason for w in windows if w.reason}),
        **with_interval("kl", kl, labels, seed),
        **with_interval("top1", agree[agree >= 0], known, seed),
        median=float(np.median(kl)) if len(kl) else None,
        worst=float(kl.max()) if len(kl) else None,
    )


def neighbours(windows: Sequence[Window]) -> list[tuple]:
    """For each position of these windows, the neighbours that are resampled with it."""
    return [(getattr(w, "text", ""), w.first, i // POSITIONS) for w in windows for i in range(len(w.agree))]


def with_interval(name: str, values: np.ndarray, groups: Sequence, seed: int) -> dict[str, float | None]:
    """{name, name_low, name_high}: a mean and its interval, neighbouring positions resampled together."""
    mean = statistics.mean(values, seed, groups)
    return {name: mean.value if mean.n else None, f"{name}_low": mean.low, f"{name}_high": mean.high}


def same_model(entry: dict) -> str:
    """Whether an arithmetic can be the same model; else why not."""
    return "yes" if entry["valid"] else "NO: " + "; ".join(entry["reasons"])


COLUMNS = frames.Columns(
    {
        "arithmetic": "subject",
        "backend": "backend",
        "mean KL, nats": "kl",
        "low": "kl_low",
        "high": "kl_high",
        "median KL": "median",
        "worst KL": "worst",
        "top-1": "top1",
        "top-1 low": "top1_low",
        "top-1 high": "top1_high",
        "tokens": "tokens",
        "same model": same_model,
    },
    index="arithmetic",
)
