"""Time to first token against prompt length: placements under three ways to choose a shape, and peers, cold and warm
apart.

A JAX subject is named "PLACEMENT POLICY". The policy says how long a prompt is when it runs:

exact     as long as it is: a program for every length
bucketed  padded to the next length of `generate.bucket`: a few programs for all lengths
fixed     padded to the bucket of the longest prompt asked: one program

Up to its first token every placement that jits `step` or `decode` runs the same program, so `step` stands for all of
them; one with the jit further inside (`layer`, `eager`) compiles less and dispatches more.

Each request asks a passage of its own, cut from English so that it has exactly the wanted number of tokens and begins
with a token that no other passage begins with: no prefix of it can be cached. Random ids for a model without a
tokenizer. `run` says what a trial belongs to: `warm` (all subjects at the shared lengths, interleaved), `tail` (more
requests of some subjects at one length, for its percentiles) or `cold NAME` (the first request of a fresh process,
which never makes the warm ones).
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np

from llama_jax import checkpoint
from llama_jax.checkpoint import Checkpoint
from llama_jax.config import ModelConfig
from llama_jax.placement import parse
from llama_jax.plumbing.errors import UserError, near
from llama_jax.sampling import Sampler
from llama_lab.bench import AGAIN, available, environment, passages, protocol, roofline, workload
from llama_lab.bench.cold import Start, as_first, noting
from llama_lab.bench.cold import subject as bound
from llama_lab.bench.experiment import Experiment, Point, Runner, Seed, check_counts
from llama_lab.bench.lab import Lab
from llama_lab.bench.protocol import Reference
from llama_lab.bench.workload import Shaped, Subject, Workload, blocks
from llama_lab.experiments.time_to_first_token import scripting

POLICIES = {
    "exact": workload.POLICIES[workload.EXACT],
    "bucketed": workload.POLICIES[workload.BUCKETS],
    "fixed": workload.POLICIES[workload.ONE],
}
REFERENCE = "step bucketed"  # in whose shapes the reference answers
WARM_UP, WARM, TAIL, COLD = "warm-up", "warm", "tail", "cold"
SPARE = 4  # passages of each length that only warm up
POOL = 25  # passages of a length that the requests of its tail ask in turn
PROBED = 10  # requests of a tail that share a probe of the bandwidth, which takes as long as a short prompt
PART = 250  # requests of a tail that one process makes

Round = tuple[str, int, tuple[str, ...], tuple[int, ...]]  # run, block, subjects, lengths
Works = dict[tuple[str, int], Workload]  # (run, length) → its passages


@dataclass(frozen=True)
class FirstTokens(Experiment):
    """The requests of each subject. Cold starts come first: a peer whose process dies there is missing from then on.

    All subjects are asked at `lengths`, in blocks that are spread evenly over `processes`. The `tail_subjects` get more
    requests at each length of `tail`, `PART` in a process, and may be alone there. `starts` fresh processes make their
    first request at the length `at` (all subjects) and at those of `tail` (the `tail_subjects`). temperature: of
    subjects that can sample; the others take the best token.
    """

    kind = Start

    model: str
    placements: tuple[str, ...]  # "PLACEMENT POLICY"; the first is the baseline, which runs twice in a block (A/A)
    peers: tuple[str, ...]
    lengths: tuple[int, ...]  # tokens of the prompts
    blocks: int
    processes: int
    at: int
    starts: int
    tail: tuple[tuple[int, int], ...] = ()  # (length, further requests)
    tail_subjects: tuple[str, ...] = ()
    temperature: float = 0.0
    new_tokens: int = 2
    seed: Seed = 0

    @property
    def all_lengths(self) -> tuple[int, ...]:
        """The shared lengths and those of the tails, ascending."""
        return tuple(sorted({*self.lengths, *dict(self.tail)}))

    @property
    def subjects(self) -> tuple[str, ...]:
        return self.placements + self.peers

    def starting(self, n: int) -> tuple[str, ...]:
        """The subjects whose first request at a length is timed in a fresh process."""
        return self.subjects if n == self.at else self.tail_subjects if n in dict(self.tail) else ()

    def without(self, gaps: Sequence[dict]) -> FirstTokens:
        """The same without the peers that are missing."""
        names = {gap["name"] for gap in gaps}
        kept = {name: tuple(n for n in getattr(self, name) if n not in names) for name in ("peers", "tail_subjects")}
        return replace(self, **kept, tail=self.tail if kept["tail_subjects"] else ())

    def check(self) -> None:
        from llama_lab import peers

        check_counts(blocks=self.blocks, processes=self.processes, starts=self.starts, new_tokens=self.new_tokens)
        if not self.placements:
            raise UserError("placements is empty; name at least one, such as 'step exact'.")
        for name in self.placements:
            placement, _, policy = name.rpartition(" ")
            if policy not in POLICIES or not placement:
                raise UserError(
                    f"{name!r} is not a placement with a policy, such as 'step exact'; policies: {', '.join(POLICIES)}."
                )
            parse(placement)
        peers.check(self.peers)
        if len(set(self.subjects)) != len(self.subjects):
            raise UserError(f"A placement is named twice: {', '.join(self.placements)}.")
        lengths = self.lengths
        if not lengths or len(set(lengths)) != len(lengths) or not all(type(n) is int and n >= 1 for n in lengths):
            raise UserError(f"lengths is {list(lengths)}; give different numbers of tokens, each 1 or more.")
        if self.at not in lengths:
            raise UserError(f"at is {self.at}; it must be one of the lengths ({', '.join(map(str, lengths))}).")
        if self.processes > self.blocks:
            raise UserError(
                f"{self.processes} processes for {self.blocks} blocks; each process needs a block of its own."
            )
        self.check_tail()
        Sampler(temperature=self.temperature)
        longest = Workload((), self.new_tokens, max(self.all_lengths))
        passages.check_context(checkpoint.load_config(self.model), longest)

    def check_tail(self) -> None:
        for part in self.tail:
            if len(part) != 2 or not all(type(n) is int for n in part) or part[0] < 1 or part[1] < 0:
                raise UserError(f"tail has {list(part)}; write [LENGTH, REQUESTS], such as [50, 200].")
        if len(dict(self.tail)) != len(self.tail):
            raise UserError(f"tail is {list(map(list, self.tail))}; name each length once.")
        if self.tail and not self.tail_subjects:
            raise UserError("tail has requests but no subjects; name some tail_subjects, or leave it empty.")
        for name in self.tail_subjects:
            if name not in self.subjects:
                raise UserError(f"tail_subjects names {name!r}, which is not measured.{near(name, self.subjects)}")

    def measure(self, runner: Runner) -> tuple[list[Start], dict]:
        from llama_lab import peers

        loaded, gaps = checkpoint.load(self.model), peers.missing(self.peers, self.model)
        here = self.without(gaps)
        works = here.workloads(loaded)
        for n in here.all_lengths:
            if here.starting(n):
                here.cold_starts(runner, loaded, n, works[COLD, n])
        runner.run(here.without(runner.missing).answers(works))
        return runner.rows, dict(
            baseline=self.placements[0],
            missing=gaps + runner.missing,
            floor=floor(loaded.config, self.all_lengths),
            text="English" if loaded.tokenizer else "random ids",
        )

    def workloads(self, loaded: Checkpoint) -> Works:
        """The passages of each run and length, each asked once, those of a tail in turn; those of the warm-up are never
        timed."""
        counts = [(WARM_UP, n, SPARE) for n in self.all_lengths] + [(WARM, n, self.blocks) for n in self.lengths]
        counts += [(COLD, n, self.starts) for n in self.all_lengths if self.starting(n)]
        counts += [(TAIL, n, min(requests, POOL)) for n, requests in self.tail]
        drawn = iter(passages.passages(loaded, [n for _, n, count in counts for _ in range(count)], self.seed))
        return {
            (run, n): Workload(tuple(next(drawn) for _ in range(count)), self.new_tokens, n, seed=self.seed)
            for run, n, count in counts
        }

    def shaped(self, work: Workload, subject: str) -> Shaped:
        """The workload in the shape that a subject's policy gives it; a peer gets it without padding and does as it
        likes."""
        policy = POLICIES.get(subject.removesuffix(AGAIN).rpartition(" ")[2])
        longest = max(self.all_lengths)
        length, room = policy.shape(work.length, longest, work.new_tokens) if policy else (work.length, work.slots)
        return Shaped(work.prompts, work.new_tokens, length, seed=work.seed, room=room)

    def cold_starts(self, runner: Runner, loaded: Checkpoint, n: int, work: Workload) -> None:
        """`starts` first requests at one length of each subject that is to make them there, each in a process of its
        own, in seeded random order."""
        reference, known = Reference(loaded, self.shaped(work, REFERENCE)), {}
        names = self.starting(n)
        for i, (block, order, name) in enumerate(blocks(names, self.starts, self.seed, COLD, n)):
            run = f"{COLD} {name}" if n == self.at else f"{COLD} {name} at {n}"
            if name in {gap["name"] for gap in runner.missing} or runner.has(run, block):
                continue
            known.setdefault(block, reference.tokens(block).tolist())
            what = f"first request of a fresh process: {name}, {n} tokens"
            runner.progress(what, i, self.starts * len(names))
            asked = dict(subject=name, order=order, greedy=known[block])
            try:
                runner.child(Point(run, block, self.first_request, 1, asked, workload=work))
            except UserError as error:
                if name not in self.peers:
                    raise
                runner.journal.note(missing=dict(name=name, reason=str(error), remedy=""))

    def rounds(self) -> list[list[Round]]:
        """What each process measures, in order: first those of the blocks, then those of the tails.

        Blocks of a tail are numbered through all its lengths, so that no two processes have one in common.
        """
        shares = np.array_split(range(self.blocks), self.processes)
        processes = [[(WARM, b, self.subjects, self.lengths) for b in share.tolist()] for share in shares]
        first = 0
        for n, requests in self.tail:
            for share in np.array_split(range(first, first + requests), -(-requests // PART)) if requests else ():
                processes.append([(TAIL, b, self.tail_subjects, (n,)) for b in share.tolist()])
            first += requests
        return processes

    def answers(self, works: Works) -> list[Point]:
        """The warm requests and the tails, each process with its share."""
        points = []
        for rounds in self.rounds():
            run, block, names, lengths = rounds[-1]
            asked = [(*key, asdict(work)) for key, work in works.items() if key[1] in lengths]
            rows = (len(names) + (run == WARM)) * len(lengths)
            share = dict(rounds=rounds, asked=asked)
            points.append(Point(run, block, self.interleaved, rows, share, f"{run} requests"))
        return points

    # What the children run

    def build(self, lab: Lab, loaded: Checkpoint, names: Sequence[str], block: int, engines: dict) -> list[Subject]:
        """Subjects by name; policies of one placement share its engine and so its programs, which `engines` then holds
        by placement. A peer that cannot be built is reported as missing."""
        from llama_lab.peers import PEERS

        made, sampler = {}, Sampler(temperature=self.temperature) if self.temperature else None
        for name in names:
            placement, _, policy = name.rpartition(" ")
            if policy in POLICIES:
                if placement not in made:
                    made[placement], engines[placement] = bound(loaded, placement)
                made[name] = replace(made[placement], name=name)
            else:
                made |= {subject.name: subject for subject in lab.peer(loaded, name, block)}
        samples = {name: name not in PEERS or PEERS[name].samples for name in made}
        return [replace(made[n], sampler=sampler if samples[n] else None) for n in names if n in made]

    def interleaved(self, lab: Lab, rounds: list, asked: list) -> None:
        """Warm-up of every subject at every length, then the rounds: in each all lengths, at each length all subjects,
        in random order."""
        works = {(run, n): Workload.from_json(work) for run, n, work in asked}
        loaded, engines = lab.load(), {}
        wanted = {n for *_, lengths in rounds for n in lengths}
        names = [name for name in self.subjects if any(name in names for _, _, names, _ in rounds)]
        subjects = self.build(lab, loaded, names, rounds[0][1], engines)
        self.warm_up(lab, subjects, {n: works[WARM_UP, n] for n in self.all_lengths if n in wanted})
        references, probe = self.references(loaded, works, engines), roofline.Probe()
        for i, (run, block, names, lengths) in enumerate(rounds):
            lab.progress(f"{run} requests, block {block + 1}", i, len(rounds))
            if run != TAIL or not i % PROBED:
                bandwidth = probe.bandwidth()
            present = [subject for subject in subjects if subject.name in names]
            for subject, n, order in self.drawn(present, lengths, run, block):
                work, where = works[run, n], dict(run=run, block=block, order=order, phase="warm")
                shape = self.shaped(work, subject.name)
                record, tokens = lab.trial(subject, shape, block % len(work.prompts), **where)
                judged = references[run, n].judge(record, tokens, subject.sampler)
                lab.keep(Start(**{**judged.model_dump(), "bandwidth_gbps": bandwidth}))
        lab.notes["gflops"] = roofline.flops()

    def drawn(
        self, subjects: Sequence[Subject], lengths: Sequence[int], run: str, block: int
    ) -> Iterator[tuple[Subject, int, int]]:
        """(subject, length, place in the block): lengths in seeded random order, at each the subjects in one; in `warm`
        the baseline twice."""
        rng, order = random.Random(f"{self.seed} {run} {block}"), 0
        twins = [replace(s, name=s.name + AGAIN) for s in subjects if run == WARM and s.name == self.placements[0]]
        for n in rng.sample(lengths, len(lengths)):
            for subject in rng.sample([*subjects, *twins], len(subjects) + len(twins)):
                yield subject, n, order
                order += 1

    def warm_up(self, lab: Lab, subjects: Sequence[Subject], works: dict[int, Workload]) -> None:
        """Each subject at each length until its guard is silent; a placement's shape once, whichever policies share
        it."""
        done = set()
        for i, subject in enumerate(subjects):
            lab.progress(f"warm-up of {subject.name}", i, len(subjects))
            for n, work in works.items():
                work = self.shaped(work, subject.name)
                is_ours = subject.backend == "jax"
                shape = (subject.placement, work.length, work.slots) if is_ours else (subject.name, n)
                if shape not in done:
                    protocol.warm_up(subject, work)
                done.add(shape)

    def references(self, loaded: Checkpoint, works: Works, engines: dict) -> dict[tuple[str, int], Reference]:
        """A reference for each (run, length), at bucketed shapes; all on one engine, that of the subjects' `step` where
        there is one."""
        made = {key: Reference(loaded, self.shaped(work, REFERENCE)) for key, work in works.items()}
        shared = next(iter(made.values())).engines
        if "step" in engines:
            shared[engines["step"].params.embeddings.weight.dtype.name, "none"] = engines["step"]
        for reference in made.values():
            reference.engines = shared
        return made

    def first_request(self, lab: Lab, subject: str, order: int, greedy: list) -> None:
        """The first request of this process. `load_ns` is weights and building; the part of compiling before the first
        token is its own."""
        loaded = available.load_alone(lab, subject) if subject in self.peers else lab.load()
        began = time.perf_counter_ns()
        built = self.build(lab, loaded, [subject], lab.block, {})
        if not built:
            return
        load_ns, first = lab.load_ns + time.perf_counter_ns() - began, {}
        work, counter = self.shaped(lab.workload, subject), built[0].counter  # which forbids no compiling
        with scripting.clocked(built[0]) as spent:
            with counter() as guard:
                noted = noting(built[0].run, guard, first, time.monotonic_ns())
                asked = replace(built[0], run=noted, guard=counter)
                record, tokens = lab.trial(asked, work, lab.block, phase="cold", order=order)
            peak = environment.peak_rss()
            first |= scripting.until_optimised(built[0], work, lab.block, spent)
        first.pop("to_first_ns", None)  # a start's, which is not asked for here
        reference = Reference(loaded, work)
        reference.expect(lab.block, greedy)
        record = reference.judge(as_first(record), tokens, built[0].sampler)
        lab.keep(Start(**{**record.model_dump(), "load_ns": load_ns, "peak_rss_bytes": peak, **first}))


def floor(config: ModelConfig, lengths: Sequence[int]) -> dict:
    """What the limit of a model is computed from, for a meta file: operations of prompts of these lengths, parameters,
    those read."""
    return dict(
        prefill_flops={str(n): roofline.prefill_flops(config, n) for n in lengths},
        parameters=config.num_parameters,
        weights_read=config.weights_read_per_token,
    )
