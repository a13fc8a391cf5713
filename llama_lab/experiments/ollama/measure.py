"""How far from the peers: placements, PyTorch, llama.cpp and Ollama on the same weights, asked the same, in interleaved
blocks.

Four measurements, one `run` name each in the table:

main    answers to science questions: decode rate, prefill rate, time to first token
memory  one answer in a process that holds nothing but its subject: peak resident memory (`phase` cold)
chat    the turns of one conversation, each with all that was said before: seconds a turn. `prompt` is the turn
kept    the same of servers that may keep what was said before (`kept`)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from llama_jax import checkpoint, prompts
from llama_jax.placement import parse
from llama_jax.plumbing.errors import UserError, near
from llama_lab.bench import available, passages, phases, protocol, roofline, summary
from llama_lab.bench import run as suite
from llama_lab.bench.available import built
from llama_lab.bench.footprints import file_bytes, memory
from llama_lab.bench.job import Job, check, opened, watched, whole
from llama_lab.bench.journal import Journal
from llama_lab.bench.phases import Plan
from llama_lab.bench.record import Trial
from llama_lab.bench.standings import MAIN
from llama_lab.bench.workload import encoder
from llama_lab.experiments.ollama import kept
from llama_lab.experiments.ollama.turns import TALK, ask, conversation, turn
from llama_lab.serve import stepper

CHAT = "chat"
TALKS = (CHAT, kept.KEPT)


@dataclass(frozen=True)
class Contest:
    """What is measured against what. The first placement is the baseline, which runs twice in each block.

    rivals: the subjects of `memory` and `chat`, out of placements and peers. prompts, turns: of the science questions
    and of `TALK`. served: servers that may keep the history, placements of ours or Ollama.
    chats: conversations with each rival. starts: processes a rival for `memory`.
    """

    model: str
    placements: tuple[str, ...]
    peers: tuple[str, ...]
    rivals: tuple[str, ...]
    prompts: int
    new_tokens: int
    blocks: int
    processes: int
    turns: int
    turn_tokens: int
    chats: int
    served: tuple[str, ...] = ()
    starts: int = 1
    seed: int = 0

    def check(self) -> None:
        """Raises UserError for what does not exist or cannot be, before anything is loaded."""
        from llama_lab import peers

        peers.check(self.peers)
        names = [parse(name).name for name in self.placements] + list(self.peers)
        if not self.placements:
            raise UserError("No placement is named; name one or more.")
        available.check_baseline(names[0])
        for name in self.served:
            if name != kept.OLLAMA:
                stepper.check(parse(name))
        for name in self.rivals:
            if name not in names:
                raise UserError(f"The rival {name!r} is not among placements and peers.{near(name, names)}")
        check(
            prompts=self.prompts,
            blocks=self.blocks,
            processes=self.processes,
            turns=self.turns,
            chats=self.chats,
            starts=self.starts,
        )
        if min(self.new_tokens, self.turn_tokens) < 2:
            raise UserError("new_tokens and turn_tokens must be 2 or more; a rate needs two tokens.")
        if self.turns > len(TALK):
            raise UserError(f"{self.turns} turns asked for; the conversation has {len(TALK)}.")


def run(contest: Contest, journal: Journal) -> tuple[list[Trial], dict]:
    """Everything: (trials, what the meta file should say of them). What cannot run here is named there (`missing`),
    with its remedy."""
    contest.check()
    gaps = available.gaps((*contest.placements, *contest.peers), contest.model)
    absent = {gap["name"] for gap in gaps}
    placements, others = (tuple(n for n in names if n not in absent) for names in (contest.placements, contest.peers))
    loaded = checkpoint.load(contest.model)
    work = passages.science(loaded, prompts.load(contest.prompts), contest.new_tokens, contest.seed)
    turns = conversation(loaded, contest.turns, contest.turn_tokens, contest.seed)
    passages.check_context(loaded.config, turns)
    plan = Plan(
        contest.model,
        tuple(map(parse, placements)),
        work,
        contest.placements[0],
        blocks=contest.blocks,
        processes=contest.processes,
        run=MAIN,
        peers=others,
    )
    main, job = suite.collect(plan, journal), Job(contest.model, work, journal)
    # one that failed here would fail, or end the process, there
    able = [name for name in contest.rivals if summary.warm(main, name)]
    memory(job, able, contest.starts)
    talk(replace(job, workload=turns), able, contest.chats)
    if loaded.tokenizer is not None:  # what a server keeps is known by its text
        keep(job, contest)
    gaps += phases.missing(journal)
    rest = whole([t for t in journal.trials if t.run != MAIN])
    subjects = [name for name in (*placements, *others) if name not in {gap["name"] for gap in gaps}]
    length = int(np.median([t.prompt_tokens for t in main if t.token_times_ns]))
    return phases.judge_starts(main + [t for t in rest if t.run not in TALKS]) + [
        t for t in rest if t.run in TALKS
    ], dict(
        weights_hash=loaded.weights_hash,
        baseline=plan.baseline,
        subjects=subjects,
        missing=gaps,
        file_bytes=file_bytes(loaded),
        prefill=dict(tokens=length, flops=roofline.prefill_flops(loaded.config, length)),
        history=[len(encoder(loaded)(prompt)) for prompt in turns.prompts],
    )


def talk(job: Job, names: Sequence[str], chats: int) -> None:
    """`chats` conversations, the subjects interleaved turn by turn in seeded random order."""
    if names:
        job.progress("conversations", 0, 1)
        job.child(
            CHAT,
            chats - 1,
            f"{__name__}:conversations",
            len(names) * len(job.workload.prompts),
            names=list(names),
            chats=chats,
        )


def keep(job: Job, contest: Contest) -> None:
    """The conversations with servers that may keep the history."""
    names = available.present(job, contest.served)
    if names:
        job.progress("conversations with servers", 0, 1)
        asked = dict(chats=contest.chats, turns=contest.turns, new_tokens=contest.turn_tokens, seed=contest.seed)
        expected = contest.chats * contest.turns * len(names)
        job.child(kept.KEPT, contest.chats - 1, f"{kept.__name__}:conversations", expected, names=names, **asked)


# What the children run ------------------------------------------------------------------------------------------------


def conversations(say: Callable, job: dict, identity: dict, names: Sequence[str], chats: int) -> dict:
    """Every turn of every conversation, all subjects in random order within a turn; judged as all trials are."""
    with watched(say):
        loaded, _, workload, _ = opened(job)
        works = [turn(workload, k, encoder(loaded)) for k in range(len(workload.prompts))]
        references, probe, subjects = (
            [protocol.Reference(loaded, w) for w in works],
            roofline.Probe(),
            built(say, loaded, names),
        )
        for who in subjects:
            for work in works:
                protocol.warm_up(who, work, lambda: say("starting", {}))
        for chat in range(chats):
            bandwidth = probe.bandwidth()
            for k, work in enumerate(works):
                ask(say, subjects, work, references[k], identity, bandwidth, chat, k)
    return {}
