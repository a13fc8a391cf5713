"""Streams of requests as a server meets them, and what each request compiles.

Four experiments, one `run` name each (followed by the subject's name), every subject in fresh processes of its own:

shapes      prompts of ragged lengths, under five policies for the shapes of prompt and KV cache
sampling    settings that change from request to request, static or traced
committed   the weights are put on the device again between two requests
last batch  a data set in batches, the last one smaller or filled up with dummy rows

A stream runs twice in its process. The first pass is `cold`: what it compiles belongs to what it measures, so a row is
valid when its tokens are right. The second is `warm`: the same requests again, void as everywhere when anything
compiles.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial

import jax
import numpy as np

from llama_jax import checkpoint, generate, prompts
from llama_jax.generate import GREEDY
from llama_jax.placement import parse
from llama_jax.plumbing.errors import UserError
from llama_jax.sampling import Sampler
from llama_lab.bench import compile_causes, passages, protocol
from llama_lab.bench.cold import as_first
from llama_lab.bench.experiment import Experiment, Point, Runner, Seed, check_counts
from llama_lab.bench.lab import Lab
from llama_lab.bench.protocol import Reference
from llama_lab.bench.record import Trial
from llama_lab.bench.workload import ONE, POLICIES, Shaped, Subject, Workload, blocks

SHAPES, SAMPLING, COMMITTED, LAST = "shapes", "sampling", "committed", "last batch"
STATIC, TRACED = "static settings", "traced settings"
UNCOMMITTED, ALWAYS = "uncommitted, then committed", "committed from the start"
SMALLER, PADDED = "smaller last batch", "last batch filled up"
FEW = 4  # requests, or batches, of the three streams beside the first
RELOADED = "weights put on the device again"
SETTINGS = {  # what clients ask for, one after the other
    "greedy": GREEDY,
    "temperature 0.7": Sampler(temperature=0.7),
    "temperature 1, top-p 0.9": Sampler(temperature=1.0, top_p=0.9),
}

SUBJECTS = {  # in each pair the surprise first, then its cure
    SHAPES: tuple(POLICIES),
    SAMPLING: (STATIC, TRACED),
    COMMITTED: (UNCOMMITTED, ALWAYS),
    LAST: (SMALLER, PADDED),
}


class Served(Trial):
    """One request of a stream, or one batch: a Trial, and how much of its shape was asked for. `order` is its place in
    the stream."""

    padded_tokens: int  # length T of the prompt as it ran, the same for all rows
    rows_asked: int  # rows of the batch that someone asked for; the others are dummies
    tokens_asked: int  # prompt tokens of those rows together, without padding
    change: str = ""  # what is new beside its prompt: sampling settings, weights put on the device again


@dataclass(frozen=True)
class Stream:
    """Requests in the order they come. prompts: token ids. arrivals: which prompt each request asks. batch: rows of a
    full batch. expected: the reference's greedy tokens of each prompt."""

    prompts: tuple[tuple[int, ...], ...]
    arrivals: tuple[int, ...]
    new_tokens: int
    batch: int
    seed: int = 0
    expected: tuple[tuple[int, ...], ...] = ()

    @property
    def longest(self) -> int:
        return max(map(len, self.prompts))


@dataclass(frozen=True)
class Recompilation(Experiment):
    """The four experiments, each subject in fresh processes of its own, in seeded random order.

    prompts, requests, batch: of the `Stream`. processes: for each policy of `shapes`; surprise_processes: for each side
    of the other three.
    """

    kind = Served

    model: str
    seed: Seed
    prompts: int
    requests: int
    new_tokens: int
    batch: int
    processes: int
    surprise_processes: int

    def check(self) -> None:
        check_counts(prompts=self.prompts, new_tokens=self.new_tokens)
        check_counts(processes=self.processes, surprise_processes=self.surprise_processes)
        if self.requests < self.prompts:
            least = f"each of the {self.prompts} prompts comes at least once, so it must be {self.prompts} or more."
            raise UserError(f"requests is {self.requests}; {least}")
        if self.batch < 2:
            raise UserError(f"batch is {self.batch}; a last batch can only be smaller than one of 2 or more.")

    def measure(self, runner: Runner) -> tuple[list[Served], dict]:
        loaded = checkpoint.load(self.model)
        stream = ragged(loaded, self.prompts, self.requests, self.new_tokens, self.batch, self.seed)
        stream, points = expect(loaded, stream), []
        for experiment, names in SUBJECTS.items():
            processes = self.processes if experiment == SHAPES else self.surprise_processes
            for block, _, subject in blocks(names, processes, self.seed, experiment):
                asked = dict(experiment=experiment, subject=subject, stream=asdict(stream))
                rows = 2 * len(asks(experiment, subject, stream))
                points.append(Point(f"{experiment}: {subject}", block, serving, rows, asked))
        runner.run(points)
        about = dict(weights_hash=loaded.weights_hash, prompt_tokens=[len(ids) for ids in stream.prompts])
        return runner.rows, about


def ragged(
    loaded: checkpoint.Checkpoint, count: int, requests: int, new_tokens: int, batch: int = 4, seed: int = 0
) -> Stream:
    """A stream of `requests` over `count` prompts, each of which comes at least once, in seeded random order.

    Prompt k asks 2k + 1 science questions at once; for a model without a tokenizer, random ids of like length.
    Raises UserError for a text that exceeds the context.
    """
    rng = np.random.default_rng(seed)
    sizes = [2 * k + 1 for k in range(count)]
    if loaded.tokenizer is None:
        ids = tuple(tuple(rng.integers(loaded.config.vocab_size, size=29 + 8 * n).tolist()) for n in sizes)
    else:
        pool = prompts.load(sizes[-1])
        questions = [" ".join(rng.permutation(pool)[:n]) for n in sizes]
        ids = tuple(
            tuple(loaded.tokenizer.encode(text, special=False, allow_special_tokens=True))
            for text in prompts.as_chat(loaded.tokenizer, questions)
        )
    arrivals = rng.permutation([*range(count), *rng.integers(count, size=requests - count)])
    stream = Stream(ids, tuple(arrivals.tolist()), new_tokens, batch, seed)
    passages.check_context(loaded.config, reference_work(stream))
    return stream


def expect(loaded: checkpoint.Checkpoint, stream: Stream) -> Stream:
    """The stream with the reference's tokens, computed once, so that no measuring process compiles for them."""
    reference = Reference(loaded, reference_work(stream))
    return replace(stream, expected=tuple(tuple(reference.tokens(i).tolist()) for i in range(len(stream.prompts))))


def reference_work(stream: Stream) -> Workload:
    return Workload(stream.prompts, stream.new_tokens, generate.bucket(stream.longest), seed=stream.seed)


@dataclass(frozen=True)
class Ask:
    """One call of the server, its shapes chosen. prompts: the rows someone asked for; up to `batch` rows run."""

    prompts: tuple[int, ...]
    length: int
    slots: int
    batch: int = 1
    change: str = ""

    @property
    def sampler(self) -> Sampler:
        return SETTINGS.get(self.change, GREEDY)


def asks(experiment: str, subject: str, stream: Stream) -> list[Ask]:
    """All calls of a stream under a subject, in order. Beside `shapes` the shapes are those of the policy
    `one shape`."""
    n, longest, new = len(stream.prompts), stream.longest, stream.new_tokens
    if experiment == SHAPES:
        policy = POLICIES[subject]
        return [Ask((p,), *policy.shape(len(stream.prompts[p]), longest, new)) for p in stream.arrivals]
    shape = POLICIES[ONE].shape(longest, longest, new)
    if experiment == LAST:
        rows = np.arange(stream.batch * FEW - stream.batch // 2) % n
        batches = [tuple(rows[i : i + stream.batch].tolist()) for i in range(0, len(rows), stream.batch)]
        return [Ask(b, *shape, batch=len(b) if subject == SMALLER else stream.batch) for b in batches]
    wanted = list(SETTINGS) if experiment == SAMPLING else ["", "", RELOADED, ""]
    return [Ask((i % n,), *shape, change=wanted[i % len(wanted)]) for i in range(FEW)]


def serving(lab: Lab, experiment: str, subject: str, stream: dict) -> None:
    """A stream in this process, cold and then warm; each request is kept as it ends."""
    stream = Stream(**{**stream, **{name: tuple(map(tuple, stream[name])) for name in ("prompts", "expected")}})
    placement = POLICIES[subject].placement if experiment == SHAPES else "step+traced" if subject == TRACED else "step"
    loaded = lab.load()
    if subject == ALWAYS:
        loaded = again(loaded)
    engine, base = generate.build(loaded, placement), protocol.subject(loaded, parse(placement), subject)
    reference = Reference(loaded, reference_work(stream))
    for i, tokens in enumerate(stream.expected):
        reference.expect(i, tokens, base.identity["dtype"])
    for phase in ("cold", "warm"):
        for order, ask in enumerate(asks(experiment, subject, stream)):
            if ask.change == RELOADED:
                engine = replace(engine, params=again(loaded).params)
            lab.keep(request(engine, base, ask, stream, reference, **lab.identity, order=order, phase=phase))


def again(loaded: checkpoint.Checkpoint) -> checkpoint.Checkpoint:
    """The same weights put on a named device, as a server does when it loads new ones: committed to it from then on."""
    return replace(loaded, params=jax.block_until_ready(jax.device_put(loaded.params, jax.devices()[0])))


def request(engine, base: Subject, ask: Ask, stream: Stream, reference: Reference, **identity) -> Served:
    """One timed call, judged row by row where it is greedy."""
    work = Shaped(stream.prompts, stream.new_tokens, ask.length, ask.batch, stream.seed, room=ask.slots)
    record, tokens = protocol.trial(
        replace(base, run=partial(run, engine, ask, stream)), work, ask.prompts[0], explain=True, **identity
    )
    if identity["phase"] == "cold":
        record = as_first(record)
    for row, prompt in enumerate(ask.prompts if ask.sampler == GREEDY and record.token_times_ns else ()):
        record = reference.judge(record.model_copy(update=dict(prompt=prompt)), tokens[:, [row]])
    return Served(
        **record.model_dump() | dict(prompt=ask.prompts[0], cause=compile_causes.shorten(record.cause)),
        padded_tokens=ask.length,
        rows_asked=len(ask.prompts),
        change=ask.change,
        tokens_asked=sum(len(stream.prompts[p]) for p in ask.prompts),
    )


def run(engine, ask: Ask, stream: Stream, ids: Sequence[int], work: Workload) -> Iterator[np.ndarray]:
    """The call itself; dummy rows repeat the first prompt."""
    rows = [*(stream.prompts[p] for p in ask.prompts), *[ids] * (ask.batch - len(ask.prompts))]
    return generate.stream(
        engine, rows, stream.new_tokens, ask.sampler, stream.seed, length=ask.length, slots=ask.slots
    )
