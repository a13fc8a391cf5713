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

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial

import jax
import numpy as np

from llama_jax import checkpoint, generate, prompts
from llama_jax.generate import GREEDY
from llama_jax.placement import parse
from llama_jax.plumbing.errors import UserError, near
from llama_jax.sampling import Sampler
from llama_lab.bench import compile_causes, passages, protocol
from llama_lab.bench.cold import as_first
from llama_lab.bench.job import Job, check, opened, watched, whole
from llama_lab.bench.journal import Journal
from llama_lab.bench.order import shuffled
from llama_lab.bench.protocol import Reference
from llama_lab.bench.record import Trial
from llama_lab.bench.workload import ONE, POLICIES, Shaped, Subject, Workload

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
    rows_asked: int  # rows of the batch that somebody asked for; the others are dummies
    tokens_asked: int  # prompt tokens of those rows together, without padding
    change: str = (
        ""  # what is new about this request beside its prompt: sampling settings, weights put on the device again
    )


@dataclass(frozen=True)
class Stream:
    """Requests in the order they come. prompts: token ids. arrivals: which prompt each request asks. batch: rows of a
    full batch.

    expected: the reference's greedy tokens of each prompt.
    """

    prompts: tuple[tuple[int, ...], ...]
    arrivals: tuple[int, ...]
    new_tokens: int
    batch: int
    seed: int = 0
    expected: tuple[tuple[int, ...], ...] = ()

    @property
    def longest(self) -> int:
        return max(map(len, self.prompts))


def record(
    journal: Journal,
    *,
    model: str,
    seed: int,
    prompts: int,
    requests: int,
    new_tokens: int,
    batch: int,
    processes: int,
    surprise_processes: int,
) -> tuple[list[Served], dict]:
    """The rows of all four experiments, and what the meta file says of them. surprise_processes: for each side of the
    last three."""
    loaded = checkpoint.load(model)
    stream = ragged(loaded, prompts, requests, new_tokens, batch, seed)
    counts = {SHAPES: processes, SAMPLING: surprise_processes, COMMITTED: surprise_processes, LAST: surprise_processes}
    serve(Job(model, None, journal), loaded, stream, counts)
    about = dict(weights_hash=loaded.weights_hash, prompt_tokens=[len(ids) for ids in stream.prompts])
    return whole(journal.trials), about


def ragged(
    loaded: checkpoint.Checkpoint, count: int, requests: int, new_tokens: int, batch: int = 4, seed: int = 0
) -> Stream:
    """A stream of `requests` over `count` prompts, each of which comes at least once, in seeded random order.

    Prompt k asks 2k + 1 science questions at once; for a model without a tokenizer, random ids of like length.
    Raises UserError for counts that cannot be and a text that exceeds the context.
    """
    check(prompts=count, new_tokens=new_tokens)
    if requests < count:
        raise UserError(
            f"requests is {requests}; each of the {count} prompts comes at least once, so it must be {count} or more."
        )
    if batch < 2:
        raise UserError(f"batch is {batch}; a last batch can only be smaller than one of 2 or more.")
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


def serve(job: Job, loaded: checkpoint.Checkpoint, stream: Stream, processes: dict[str, int]) -> None:
    """Some experiments, each subject in so many processes. Raises UserError for a wrong name or count before anything
    is measured."""
    for experiment, count in processes.items():
        if experiment not in SUBJECTS:
            raise UserError(f"No such experiment: {experiment!r}.{near(experiment, SUBJECTS)}")
        check(**{f"processes ({experiment})": count})
    stream = expect(loaded, stream)
    for experiment, count in processes.items():
        interleaved(job, experiment, stream, count)


def interleaved(job: Job, experiment: str, stream: Stream, processes: int) -> None:
    """Each subject of an experiment in `processes` of its own, in seeded random order. stream: with `expect`ed
    tokens."""
    names = SUBJECTS[experiment]
    for block in range(processes):
        drawn = shuffled(names, stream.seed, experiment, block)
        for i, subject in enumerate(drawn):
            job.progress(f"{experiment}: {subject}", block * len(names) + i, processes * len(names))
            job.child(
                f"{experiment}: {subject}",
                block,
                f"{__name__}:serving",
                2 * len(asks(experiment, subject, stream)),
                experiment=experiment,
                subject=subject,
                stream=asdict(stream),
            )


# What is asked --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ask:
    """One call of the server, its shapes chosen. prompts: the rows somebody asked for; up to `batch` rows run."""

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


# What the children run ------------------------------------------------------------------------------------------------


def serving(say: Callable, job: dict, identity: dict, experiment: str, subject: str, stream: dict) -> dict:
    """A stream in this process, cold and then warm; each request is said as it ends."""
    stream = Stream(**{**stream, **{name: tuple(map(tuple, stream[name])) for name in ("prompts", "expected")}})
    placement = POLICIES[subject].placement if experiment == SHAPES else "step+traced" if subject == TRACED else "step"
    with watched(say):
        loaded, *_ = opened(job)
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
                row = request(engine, base, ask, stream, reference, **identity, order=order, phase=phase)
                say("trial", row.model_dump())
    return {}


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
    asked = dict(
        padded_tokens=ask.length,
        rows_asked=len(ask.prompts),
        change=ask.change,
        tokens_asked=sum(len(stream.prompts[p]) for p in ask.prompts),
    )
    return Served(
        **{**record.model_dump(), "prompt": ask.prompts[0], "cause": compile_causes.shorten(record.cause)}, **asked
    )


def run(engine, ask: Ask, stream: Stream, ids: Sequence[int], work: Workload) -> Iterator[np.ndarray]:
    """The call itself; dummy rows repeat the first prompt."""
    rows = [*(stream.prompts[p] for p in ask.prompts), *[ids] * (ask.batch - len(ask.prompts))]
    return generate.stream(
        engine, rows, stream.new_tokens, ask.sampler, stream.seed, length=ask.length, slots=ask.slots
    )
