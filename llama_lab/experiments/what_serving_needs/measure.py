"""Servers under load: rising rates, what few or exact shapes cost, how many slots.

One measuring process a server: it starts the server, asks it each rate's requests, ends it, and then makes the first
answers again by `generate` alone, whose texts they must be.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np

from llama_jax import checkpoint, generate, pipeline
from llama_jax.placement import parse
from llama_jax.plumbing.errors import UserError
from llama_lab.bench import COMPILED, available, gate, passages, standings
from llama_lab.bench.experiment import Experiment, Point, Runner, Seed, check_counts
from llama_lab.bench.lab import Lab
from llama_lab.bench.process import allowed_cores
from llama_lab.bench.record import Row
from llama_lab.experiments.what_serving_needs import client, servers
from llama_lab.experiments.what_serving_needs.client import Answer
from llama_lab.experiments.what_serving_needs.load import ANSWERS, PROMPTS, Ask, asks, count
from llama_lab.experiments.what_serving_needs.servers import BUCKETS, CONTEXT, LLAMACPP, PEERS, SHAPES, Server
from llama_lab.serve import stepper

REFUSED = 503  # HTTP's: too many wait
WARM = ("1", "2 3")  # asked first and not counted: sockets, and the model of a server that loads it then


class Request(Row):
    """One request of a load. Times in ns since it was due; the load's place in its row says to whom and how fast."""

    server: str  # placement or peer
    backend: str
    model: str
    weights_hash: str
    slots: int
    shapes: str  # one of SHAPES; BUCKETS of a peer, which has its own
    rate: float  # requests a second that are due
    due_ns: int  # since the load began
    sent_ns: int
    status: int  # HTTP's: 200 answered, REFUSED, 0 if the connection broke
    prompt_tokens: int
    asked_tokens: int  # of the answer at most
    tokens: int  # of the answer, as the server counts
    piece_ns: list[int]  # when each piece of text came
    compiled: int | None = None  # programs compiled in service during this load, where the server says it
    gated: bool = False  # whether its text was compared

    @property
    def answered(self) -> bool:
        return bool(self.piece_ns)


@dataclass(frozen=True)
class Setting:
    """A server and how it is started. rates: what it is asked, one after the other."""

    server: str
    slots: int
    shapes: str
    rates: tuple[float, ...]

    @property
    def run(self) -> str:
        return f"{self.server}, {self.slots} slots, {self.shapes}"


@dataclass(frozen=True)
class Serving(Experiment):
    """Servers under load, each in its own process.

    one_rate: at which all placements are asked under each of `shapes`. slot_rates: at which each placement is asked
    with each of `more_slots`: where it nearly falls behind, since slots of a server that has little to do are idle.
    gated: answers of each load that are made again.
    """

    kind = Request

    model: str
    seed: Seed
    placements: tuple[str, ...]
    peers: tuple[str, ...]
    rates: tuple[float, ...]
    seconds: float
    slots: int
    queue: int
    one_rate: float
    shapes: tuple[str, ...]
    slot_rates: tuple[float, ...]
    more_slots: tuple[int, ...]
    gated: int

    def check(self) -> None:
        check_counts(slots=self.slots, queue=self.queue, gated=self.gated)
        for name in self.placements:
            stepper.check(parse(name))
        if not self.placements:
            raise UserError("placements is empty; name one that serves, such as step+donate.")
        if strange := [name for name in self.peers if name not in PEERS]:
            raise UserError(f"{strange[0]} is not a server that can be measured; peers may hold {', '.join(PEERS)}.")
        if strange := [name for name in self.shapes if name not in SHAPES]:
            raise UserError(f"shapes hold {strange[0]!r}; they may hold {', '.join(SHAPES)}.")
        if len(self.slot_rates) != len(self.placements):
            raise UserError(f"slot_rates has {len(self.slot_rates)} entries; give one per placement.")
        if not min(self.all_rates) > 0:
            raise UserError(f"A rate is {min(self.all_rates):g}; it must be above 0 requests a second.")
        check_counts(more_slots=min(self.more_slots, default=1))
        passages.check_contexts(self.model, [CONTEXT], ANSWERS[1])

    @property
    def all_rates(self) -> list[float]:
        """Rates of all servers, whose passages are drawn together."""
        return [*self.rates, self.one_rate, *self.slot_rates]

    @property
    def settings(self) -> list[Setting]:
        """Every server with the rates that it is asked, each once: a load of the first part serves the others too."""
        wanted: dict[tuple[str, int, str], list[float]] = {}
        for name in (*self.placements, *self.peers):
            wanted[name, self.slots, BUCKETS] = sorted(set(self.rates))
        for name, rate in zip(self.placements, self.slot_rates, strict=True):
            others = [((name, self.slots, shape), self.one_rate) for shape in self.shapes]
            for key, each in others + [((name, n, BUCKETS), rate) for n in self.more_slots]:
                wanted[key] = sorted({*wanted.get(key, ()), each})
        return [Setting(*key, tuple(asked)) for key, asked in wanted.items()]

    def points(self, runner: Runner) -> list[Point]:
        here = present(runner, [*self.placements, *self.peers])
        settings = [setting for setting in self.settings if setting.server in here]
        requests = [sum(count(rate, self.seconds) for rate in setting.rates) for setting in settings]
        return [
            Point(setting.run, 0, self.loading, n, asdict(setting), f"serving with {setting.run}")
            for setting, n in zip(settings, requests, strict=True)
        ]

    def about(self, runner: Runner) -> dict:
        is_text = checkpoint.find(self.model).tokenizer()
        return dict(missing=runner.missing, text="English" if is_text else "random ids")

    def loading(self, lab: Lab, **setting) -> None:
        """One server under each rate, and its first answers made again. A server that refused requests is asked no
        higher rate: what it would say is known."""
        here, bare = Setting(**setting), lab.without_weights()
        asked = asks(bare, self.all_rates, self.seconds, self.seed)
        loads: list[tuple[float, list[Answer], int | None]] = []
        with servers.started(lab, here.server, here.slots, self.queue, here.shapes) as running:
            warm(running)
            for rate in here.rates:
                lab.progress(f"{here.server} at {rate:g} requests/s", len(loads), len(here.rates))
                before = running.compiled()
                answers = answers_of(running, asked[rate])
                loads.append((rate, answers, None if before is None else running.compiled() - before))
                if any(answer.status == REFUSED for answer in answers):
                    break
        where = dict(server=here.server, slots=here.slots, shapes=here.shapes)
        lab.notes.update(where, programs=running.programs, warm_s=running.seconds)
        where |= dict(seed=self.seed, phase="warm", model=lab.model, weights_hash=bare.weights_hash, **lab.identity,
                      backend=PEERS.get(here.server, standings.JAX))  # fmt: skip
        alone = None if here.server in PEERS else Alone(lab.model, here.server)
        for rate, answers, compiled in loads:
            for i, (ask, answer) in enumerate(zip(asked[rate], answers, strict=True)):
                row = row_of(ask, answer, order=i, rate=rate, compiled=compiled, **where)
                if alone and i < self.gated and row.valid and row.answered:
                    verdict = alone.judge(ask, answer)
                    row = row.model_copy(update=dict(gated=True, valid=verdict.passed, reason=verdict.reason))
                lab.keep(row)


def present(runner: Runner, names: Sequence[str]) -> list[str]:
    """As `Runner.present`, and llama.cpp's server where it is named, which is no subject of other measurements."""
    from llama_lab.peers import llama_server

    here = runner.present([name for name in names if name != LLAMACPP])
    if LLAMACPP in names:
        gap = llama_server.missing(runner.model)
        runner.journal.note_missing([LLAMACPP], [dict(name=LLAMACPP, reason=gap[0], remedy=gap[1])] if gap else [])
        if not gap:
            here.append(LLAMACPP)
    return here


# What the children run ------------------------------------------------------------------------------------------------


def warm(server: Server) -> None:
    """The first requests, one after the other. Raises UserError if one fails."""
    for text in WARM:
        (answer,) = answers_of(server, [Ask(0.0, text, 1, 4)])
        if answer.status != 200 or answer.reason:
            raise UserError(f"The server at {server.url} failed its first request: {answer.reason or answer.status}.")


def answers_of(server: Server, asked: Sequence[Ask]) -> list[Answer]:
    threads = len(allowed_cores())
    bodies = [client.body(server.api, server.model, ask, CONTEXT, threads) for ask in asked]
    return client.load(server.api, server.url, bodies, [ask.due for ask in asked])


def row_of(ask: Ask, answer: Answer, shapes: str, compiled: int | None, **about) -> Request:
    """The row of a request. Where few shapes are meant to be enough, one that was compiled voids the load."""
    reason = answer.reason or (COMPILED if compiled and SHAPES[shapes] else "")
    return Request(
        **about,
        shapes=shapes,
        compiled=compiled,
        valid=not reason,
        reason=reason,
        due_ns=round(ask.due * 1e9),
        sent_ns=answer.sent_ns,
        status=answer.status,
        prompt_tokens=answer.prompt_tokens or ask.prompt_tokens,
        asked_tokens=ask.new_tokens,
        tokens=answer.tokens,
        piece_ns=answer.piece_ns,
    )


class Alone:
    """A model under a placement that answers one request after the other, greedily, as a server's answers must be."""

    def __init__(self, model: str, placement: str):
        self.loaded = checkpoint.load(model, available.loaded_as(placement, model))
        self.words = self.loaded.tokenizer or pipeline.Numbers()
        self.engine = generate.build(self.loaded, placement)
        self.near = gate.near_tie(placement)

    def judge(self, ask: Ask, answer: Answer) -> gate.Verdict:
        """Whether a server's answer is the one made alone: the same text, or tokens that part at a near-tie, as
        `bench`'s gate compares them."""
        ids = self.words.encode(ask.text, special=True, allow_special_tokens=True)
        shape = dict(stop=self.words.stop, length=generate.bucket(PROMPTS[1]), slots=CONTEXT)  # one shape: one program
        (alone,) = generate.answer(self.engine, [ids], ask.new_tokens, **shape)
        if answer.text == self.words.decode(alone.token_ids):
            return gate.Verdict(True)
        made = np.array(self.words.encode(answer.text, special=False, allow_special_tokens=True), np.int32)
        known = np.array([i for i in alone.token_ids if i not in self.words.stop], np.int32)

        def logits() -> np.ndarray:
            return np.asarray(generate.logits(self.engine, [*ids, *made[:-1].tolist()]))[-len(made) :]

        return gate.compare(made, known, logits, self.near)
