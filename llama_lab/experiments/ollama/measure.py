"""The distance from the peers: placements, PyTorch, llama.cpp and Ollama on the same weights and prompts, in
interleaved blocks.

Four measurements, one `run` name each in the table:

main    answers to science questions: decode rate, prefill rate, time to first token
memory  one answer in a process that holds nothing but its subject: peak resident memory (`phase` cold)
chat    the turns of one conversation, each with the whole history: seconds per turn. `prompt` is the turn
kept    the same for servers that may keep the history
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from llama_jax import checkpoint, prompts
from llama_jax.placement import parse
from llama_jax.plumbing.errors import UserError, near
from llama_lab.bench import available, footprints, passages, phases, protocol, roofline, summary
from llama_lab.bench import run as suite
from llama_lab.bench.experiment import Experiment, Point, Runner, Seed, check_counts
from llama_lab.bench.lab import Lab
from llama_lab.bench.phases import Plan
from llama_lab.bench.record import Trial
from llama_lab.bench.standings import MAIN
from llama_lab.bench.workload import Workload, encoder
from llama_lab.experiments.ollama import turns
from llama_lab.experiments.ollama.turns import KEPT, TALK
from llama_lab.serve import stepper

CHAT = "chat"
TALKS = (CHAT, KEPT)


@dataclass(frozen=True)
class Contest(Experiment):
    """What is measured against what. The first placement is the baseline, which runs twice in each block.

    rivals: the subjects of `memory` and `chat`, out of placements and peers. prompts, turns: of the science questions
    and of `TALK`. served: servers that may keep the history, placements of ours or Ollama.
    chats: conversations with each rival. starts: processes per rival for `memory`.
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
    served: tuple[str, ...]
    starts: int
    seed: Seed

    @property
    def also(self) -> object:
        return TALK

    def check(self) -> None:
        from llama_lab import peers

        peers.check(self.peers)
        names = [parse(name).name for name in self.placements] + list(self.peers)
        if not self.placements:
            raise UserError("No placement is named; name one or more.")
        available.check_baseline(names[0])
        for name in self.served:
            if name != turns.OLLAMA:
                stepper.check(parse(name))
        for name in self.rivals:
            if name not in names:
                raise UserError(f"The rival {name!r} is not among placements and peers.{near(name, names)}")
        counts = ("prompts", "blocks", "processes", "turns", "chats", "starts")
        check_counts(**{name: getattr(self, name) for name in counts})
        if min(self.new_tokens, self.turn_tokens) < 2:
            raise UserError("new_tokens and turn_tokens must be 2 or more; a rate needs two tokens.")
        if self.turns > len(TALK):
            raise UserError(f"{self.turns} turns asked for; the conversation has {len(TALK)}.")

    def measure(self, runner: Runner) -> tuple[list[Trial], dict]:
        here, loaded = runner.present((*self.placements, *self.peers)), checkpoint.load(self.model)
        work = passages.science(loaded, prompts.load(self.prompts), self.new_tokens, self.seed)
        talk = turns.conversation(loaded, self.turns, self.turn_tokens, self.seed)
        passages.check_context(loaded.config, talk)
        plan = Plan.of(self.model, here, work, blocks=self.blocks, processes=self.processes)
        main = suite.collect(plan, runner.journal, runner.progress)
        # one that failed here would fail, or end the process, there
        able = [name for name in self.rivals if summary.warm(main, name)]
        runner.run(footprints.points(able, self.starts, work))
        runner.run(self.talks(runner, able, talk, is_text=loaded.tokenizer is not None))
        absent = {gap["name"] for gap in runner.missing}
        rest = [t for t in runner.rows if t.run != MAIN]
        alone, talked = ([t for t in rest if (t.run in TALKS) is wanted] for wanted in (False, True))
        length = int(np.median([t.prompt_tokens for t in main if t.token_times_ns]))
        return phases.judge_starts(main + alone) + talked, dict(
            weights_hash=loaded.weights_hash,
            baseline=plan.baseline,
            subjects=[name for name in here if name not in absent],
            missing=runner.missing,
            file_bytes=footprints.file_bytes(loaded),
            prefill=dict(tokens=length, flops=roofline.prefill_flops(loaded.config, length)),
            history=[len(encoder(loaded)(prompt)) for prompt in talk.prompts],
        )

    def talks(self, runner: Runner, able: Sequence[str], talk: Workload, is_text: bool) -> list[Point]:
        """The conversations: with subjects in one process, and with servers that may keep the history, which is known
        by its text."""
        points, last = [], self.chats - 1
        if able:
            rows = len(able) * self.turns
            asked = dict(names=list(able))
            points.append(Point(CHAT, last, self.conversations, rows, asked, "conversations", workload=talk))
        if served := runner.present(self.served) if is_text else []:
            asked = dict(names=served, chats=self.chats, turns=self.turns, new_tokens=self.turn_tokens, seed=self.seed)
            rows = self.chats * self.turns * len(served)
            points.append(Point(KEPT, last, turns.conversations, rows, asked, "conversations with servers"))
        return points

    def conversations(self, lab: Lab, names: Sequence[str]) -> None:
        """Every turn of every conversation, all subjects in random order within a turn; judged as all trials are."""
        loaded = lab.load()
        works = [turns.turn(lab.workload, k, encoder(loaded)) for k in range(len(lab.workload.prompts))]
        references, probe = [protocol.Reference(loaded, work) for work in works], roofline.Probe()
        subjects = available.built(lab, loaded, names)
        for who in subjects:
            for work in works:
                protocol.warm_up(who, work, lab.announce)
        for chat in range(self.chats):
            bandwidth = probe.bandwidth()
            for k, reference in enumerate(references):
                turns.ask(lab, subjects, reference, bandwidth, chat, k)
