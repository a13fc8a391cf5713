"""What a grammar's mask costs, by where it is computed: in the compiled program or by the host, beside peers with
grammars of their own."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from llama_jax import checkpoint, generate, grammars
from llama_jax.checkpoint import Checkpoint
from llama_jax.grammars import Grammar, Walker
from llama_jax.placement import parse
from llama_jax.plumbing.errors import UserError
from llama_lab import peers
from llama_lab.bench import WRONG, passages, protocol, roofline
from llama_lab.bench.experiment import Experiment, Point, Runner, Seed, check_counts
from llama_lab.bench.lab import Lab
from llama_lab.bench.record import Trial
from llama_lab.bench.workload import Subject, Workload, shuffled

TABLE, HOST, OTHER = ", masked", ", masked by the host", ", of another schema"  # behind a subject's name
GRAMMARS = ("llamacpp+generate", "ollama")  # peers that take a schema


def schema(plural: str = "") -> dict:
    """Of an event, ten fields and a list of people, in terms that each engine's grammar knows. plural: behind each
    property's name, for another schema of the same size."""
    text = lambda most: dict(type="string", minLength=1, maxLength=most)  # noqa: E731
    person = closed(dict(name=text(30), role=dict(enum=["host", "guest", "organiser"])), plural)
    fields = dict(
        title=text(40),
        category=dict(enum=["concert", "talk", "market", "course", "sports"]),
        date=dict(type="string", pattern="^20[0-9]{2}-[01][0-9]-[0-3][0-9]$"),
        starts=dict(type="string", pattern="^[0-2][0-9]:[0-5][0-9]$"),
        place=text(40),
        city=text(24),
        price=dict(type="number"),
        seats=dict(type="integer"),
        outdoors=dict(type="boolean"),
        people=dict(type="array", minItems=1, maxItems=3, items=person),
    )
    return closed(fields, plural)


def closed(fields: dict, plural: str) -> dict:
    named = {name + plural: value for name, value in fields.items()}
    return dict(type="object", properties=named, required=[*named], additionalProperties=False)


SCHEMA, ANOTHER = schema(), schema("s")
ASKED = "Describe the event in this notice as a JSON object with the fields {fields}.\n\n{notice}"
NOTICES = (
    "Jazz at the Old Mill, Ghent! On 12 May 2026 the Ada Brown Trio plays from 19:30, admission 12.50 euros, 80 seats"
    " inside the mill. Carl Dorn of the music society welcomes the guests.",
    "The farmers' market of Trento is on Piazza Fiera, under the open sky, from 08:00 on 3 October 2026. Admission is"
    " free, stalls for 40 farmers. It is organised by Elena Conci.",
    "Why do octopuses dream? A talk by Dr. Mia Lund in the Natural History Museum, Aarhus, on 21 January 2027 at 18:15."
    " Tickets cost 6 euros; the lecture hall has 220 seats. Your host is Jens Holm.",
)
ANSWER = (  # one that the schema allows: the host's masks are timed on the way through it
    '{"title": "Jazz at the Old Mill", "category": "concert", "date": "2026-05-12", "starts": "19:30", "place": "Old '
    'Mill", "city": "Ghent", "price": 12.50, "seats": 80, "outdoors": false, "people": [{"name": "Ada Brown", "role": '
    '"guest"}, {"name": "Carl Dorn", "role": "host"}]}'
)


@dataclass(frozen=True, kw_only=True)
class Masks(Experiment):
    """Answers with and without a grammar, everyone once with each text in each process; `block` is the process. The
    host masks under placements in which it sees each token before the next. Peers that are not here are reported as
    missing."""

    optional = True

    model: str
    mask_placements: tuple[str, ...]
    mask_peers: tuple[str, ...]
    mask_texts: int
    mask_tokens: int
    mask_processes: int
    seed: Seed

    @property
    def also(self) -> object:
        return SCHEMA, ANOTHER, ASKED, NOTICES

    def check(self) -> None:
        check_counts(mask_texts=self.mask_texts, mask_processes=self.mask_processes)
        peers.check(self.mask_peers)
        if unable := [name for name in self.mask_peers if name not in GRAMMARS]:
            raise UserError(f"{unable[0]!r} takes no schema here; name {' or '.join(GRAMMARS)}.")
        for name in self.mask_placements:
            parse(name)
        if self.mask_tokens < 2 or self.mask_texts > len(NOTICES):
            raise UserError(f"mask_tokens must be 2 or more (a rate needs two), mask_texts {len(NOTICES)} or less.")

    def measure(self, runner: Runner) -> tuple[list[Trial], dict]:
        if checkpoint.find(self.model).tokenizer() is None:
            why = dict(reason="It has no tokenizer, so its answers are no JSON.", remedy="Name a model that has one.")
            return [], dict(missing=[dict(name=self.model) | why], grammar=[], answers=[])
        here = runner.present((*self.mask_placements, *self.mask_peers))
        rows = self.mask_texts * sum(map(len, map(kinds, here))) + sum(name not in GRAMMARS for name in here)
        for process in range(self.mask_processes):
            runner.progress("masks", process, self.mask_processes)
            runner.child(Point("masks", process, self.answering, rows, dict(names=here)))
        grammar, answers = (
            [entry for note in runner.journal.notes for entry in note.get(part, ())] for part in ("grammar", "answers")
        )
        return runner.rows, dict(missing=runner.missing, grammar=grammar, answers=answers)

    def answering(self, lab: Lab, names: Sequence[str]) -> None:
        """All subjects in one process. Each table also takes another schema of its size, which compiles nothing."""
        loaded = lab.load()
        grammar, other, lab.notes["grammar"] = compiled(loaded)
        work = workload(loaded, self.mask_texts, self.mask_tokens, self.seed)
        free, judge = protocol.Reference(loaded, work), Judge(loaded, work, grammar, SCHEMA)
        second, bandwidth, answers = Judge(loaded, work, other, ANOTHER), roofline.Probe().bandwidth(), {}
        judge.engines = second.engines = free.engines
        every = [who for name in names for who in subjects(lab, loaded, name, grammar, other)]
        again, everyone = ([who for who in every if who.name.endswith(OTHER) is is_it] for is_it in (True, False))
        for who in everyone:
            protocol.warm_up(who, work, lab.announce, enough=1)
        asked = [(who, 0, second) for who in again]
        for prompt in range(self.mask_texts):
            drawn = shuffled(everyone, self.seed, lab.block, prompt)
            asked += [(who, prompt, judge if TABLE in who.name else free) for who in drawn]
        for order, (who, prompt, gate) in enumerate(asked):
            lab.announce(what=f"process {lab.block + 1}: {who.name}", subject=who.name, block=lab.block, order=order)
            made, tokens = lab.trial(who, work, prompt, phase="warm", order=order)
            lab.keep(gate.judge(made, tokens), bandwidth_gbps=bandwidth)
            if gate is judge and made.token_times_ns:
                text, ended = judge.text(tokens[:, 0])
                answers[who.name, prompt] = dict(name=who.name, prompt=prompt, finished=ended, text=text)
        lab.notes["answers"] = [] if lab.block else [*answers.values()]


def kinds(name: str) -> list[str]:
    """What stands behind a subject's name, in each of the ways that it is asked."""
    placement = None if name in GRAMMARS else parse(name)
    late = placement is None or placement.jits_decode or placement.drafts or placement.host != "sync"
    return ["", TABLE] if late else ["", TABLE, HOST]


def following(engine: generate.Engine, grammar: Grammar) -> Callable:
    """As `protocol.answering`, of answers that follow a grammar."""

    def run(ids: Sequence[int], work: Workload):
        how = dict(length=work.length, slots=work.slots, grammar=grammar)
        return generate.stream(engine, [ids], work.new_tokens, work.sampler, work.seed, **how)

    return run


def by_host(grammar: Grammar) -> Grammar:
    """The same grammar as one without a table."""
    return Grammar(None, grammar.start)


def subjects(lab: Lab, loaded: Checkpoint, name: str, grammar: Grammar, other: Grammar) -> list[Subject]:
    """A placement or peer in all its ways; a peer that cannot be built is reported as missing."""
    if name in GRAMMARS:
        free = lab.peer(loaded, name)
        return free + [replace(peers.module(name).subject(loaded, name, SCHEMA), name=name + TABLE) for _ in free]
    free, engine = protocol.subject(loaded, parse(name)), generate.build(loaded, parse(name))
    ways = {TABLE: grammar, HOST: by_host(grammar), OTHER: other}
    ways = {way: one for way, one in ways.items() if way in (*kinds(name), OTHER)}
    return [free] + [replace(free, name=name + way, run=following(engine, one)) for way, one in ways.items()]


class Judge(protocol.Reference):
    """The gate of answers under a grammar: a placement's tokens are those of `step` of the same arithmetic under masks
    that the host makes, a peer's are its own, and whoever's answer is finished, it is JSON that the schema allows."""

    def __init__(self, loaded: Checkpoint, work: Workload, grammar: Grammar, schema: dict):
        super().__init__(loaded, work)
        self.grammar, self.schema, self.stop = grammar, schema, loaded.tokenizer.stop

    def tokens(self, prompt, dtype="float32", quantisation="none", sampler=generate.GREEDY, seed=0) -> np.ndarray:
        key = (prompt, dtype, quantisation, sampler, seed)
        if key not in self.known:
            run = following(self.engine(dtype, quantisation), by_host(self.grammar))
            self.known[key] = np.concatenate(list(run(self.encode(self.workload.prompts[prompt]), self.workload)))[:, 0]
        return self.known[key]

    def judge(self, record: Trial, tokens: np.ndarray, sampler=None) -> Trial:
        if not record.token_times_ns:
            return record
        record = super().judge(record, tokens, sampler) if record.backend == "jax" else record
        text, ended = self.text(tokens[:, 0])
        if not ended or not (fault := mistake(text, self.schema)):
            return record
        return record.model_copy(update=dict(valid=False, reason="; ".join(filter(None, (record.reason, fault)))))

    def text(self, tokens: np.ndarray) -> tuple[str, bool]:
        """(an answer's text without the token that ends it, whether it ended: some servers do not send that token)."""
        kept = generate.cut(tokens, self.stop)
        ids = [token for token in kept.token_ids if token not in self.stop]
        return self.checkpoint.tokenizer.decode(ids), len(ids) < self.workload.new_tokens


def mistake(text: str, schema: dict) -> str:
    """Why a text is no value of the schema; "" if it is one."""
    import jsonschema

    try:
        jsonschema.validate(json.loads(text), schema, jsonschema.Draft202012Validator)
    except ValueError as error:
        return f"{WRONG}no JSON: {error}"
    except jsonschema.ValidationError as error:
        return f"{WRONG}not of the schema: {error.message[:100]}"
    return ""


def workload(loaded: Checkpoint, texts: int, tokens: int, seed: int) -> Workload:
    fields = ", ".join(SCHEMA["properties"])
    return passages.science(loaded, [ASKED.format(fields=fields, notice=n) for n in NOTICES[:texts]], tokens, seed)


def compiled(loaded: Checkpoint) -> tuple[Grammar, Grammar, list[dict]]:
    """(the schema's grammar, the other's, [what they cost without a model]): seconds to compile the first in this
    process and the next, sizes of the table, microseconds of a mask by the host: of the table, and of the library for
    languages without one."""
    asked, seconds, made = (loaded.tokenizer, loaded.config.vocab_size, loaded.tokenizer.stop), [], []
    for one in (SCHEMA, ANOTHER):
        began = time.perf_counter()
        made.append(grammars.compile(one, *asked))
        seconds.append(time.perf_counter() - began)
    table, library = made[0].table, grammars.hosted(SCHEMA, *asked)
    sizes = dict(
        states=int((table.next >= 0).any(axis=1).sum()),
        classes=int(table.classes.max()) + 1,
        bytes=table.next.nbytes + table.classes.nbytes,
    )
    masks = {name: mask_us(one.host(), loaded) for name, one in dict(table_us=made[0], library_us=library).items()}
    return *made, [dict(first_s=seconds[0], next_s=seconds[1]) | sizes | masks]


def mask_us(walker: Walker, loaded: Checkpoint, text: str = ANSWER) -> float:
    """Median microseconds of a mask on the way through a text, in the longest tokens that may follow."""
    known = {spelling: i for i, spelling in enumerate(loaded.tokenizer.spellings) if spelling}
    left, took, longest = text.encode(), [], max(map(len, known))
    while left:
        began = time.perf_counter()
        mask = walker.mask()
        took.append(time.perf_counter() - began)
        size = next(n for n in range(longest, 0, -1) if left[:n] in known and mask[known[left[:n]]])
        walker.advance(known[left[:size]])
        left = left[size:]
    return float(np.median(took)) * 1e6
