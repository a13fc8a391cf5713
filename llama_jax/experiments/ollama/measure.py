"""How far from the peers: placements, PyTorch, llama.cpp and Ollama on the same weights, asked the same, in interleaved
blocks.

Three measurements, one `run` name each in the table:

main    answers to science questions: decode rate, prefill rate, time to first token
memory  one answer in a process that holds nothing but its subject: peak resident memory (`phase` cold)
chat    the turns of one conversation, each with all that was said before: seconds a turn. `prompt` is the turn
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from llama_jax import checkpoint, generate
from llama_jax.bench import available, passages, phases, protocol, roofline, summary
from llama_jax.bench import run as suite
from llama_jax.bench.available import built
from llama_jax.bench.footprints import file_bytes, memory
from llama_jax.bench.job import Job, check, opened, watched, whole
from llama_jax.bench.journal import Journal
from llama_jax.bench.order import shuffled
from llama_jax.bench.phases import Plan
from llama_jax.bench.record import Trial
from llama_jax.bench.standings import MAIN
from llama_jax.bench.workload import Workload, encoder
from llama_jax.checkpoint import Checkpoint
from llama_jax.errors import UserError, near
from llama_jax.placement import parse
from llama_jax.text import chat as template
from llama_jax.text import prompts

CHAT = "chat"
SYSTEM = "You answer questions about science for a curious reader."
TALK = (  # what was asked, and the answer that stands in the history whoever is asked, so that all read the same tokens
    (
        "Why is the sky blue?",
        "Sunlight holds all colours. Molecules of air scatter short waves far more than long ones, so blue"
        " light reaches us from every"
        " direction of the sky while red light passes nearly straight through.",
    ),
    (
        "And why is it red in the evening?",
        "In the evening the light crosses much more air before it reaches you. By then most of the blue has"
        " been scattered out of the"
        " beam, and what is left, and lights the clouds from below, is orange and red.",
    ),
    (
        "Would it look the same on Mars?",
        "No. The air of Mars is thin and full of fine dust. The dust absorbs blue and scatters red light"
        " widely, so that the day sky is"
        " butterscotch. Close to the setting sun, where dust scatters forward, the sky turns blue.",
    ),
    (
        "How do we know what the air of a distant planet is made of?",
        "When a planet passes in front of its star, a little starlight goes through its air. Each gas absorbs"
        " at wavelengths of its own,"
        " so lines that appear in the spectrum only during the passage name the gases, and their depth says"
        " how much there is.",
    ),
    ("Which gas would make you think of life there?", ""),
)
FIRST_IDS, MORE_IDS = 40, 70  # lengths of the turns for a model without a tokenizer


@dataclass(frozen=True)
class Contest:
    """What is measured against what. The first placement is the baseline, which runs twice in each block.

    rivals: the subjects of `memory` and `chat`, out of placements and peers. prompts, turns: of the science questions
    and of `TALK`.
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
    starts: int = 1
    seed: int = 0

    def check(self) -> None:
        """Raises UserError for what does not exist or cannot be, before anything is loaded."""
        from llama_jax import peers

        peers.check(self.peers)
        names = [parse(name).name for name in self.placements] + list(self.peers)
        if not self.placements:
            raise UserError("No placement is named; name one or more.")
        available.check_baseline(names[0])
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
    gaps += phases.missing(journal)
    rest = whole([t for t in journal.trials if t.run != MAIN])
    subjects = [name for name in (*placements, *others) if name not in {gap["name"] for gap in gaps}]
    length = int(np.median([t.prompt_tokens for t in main if t.token_times_ns]))
    return phases.judge_starts(main + [t for t in rest if t.run != CHAT]) + [t for t in rest if t.run == CHAT], dict(
        weights_hash=loaded.weights_hash,
        baseline=plan.baseline,
        subjects=subjects,
        missing=gaps,
        file_bytes=file_bytes(loaded),
        prefill=dict(tokens=length, flops=roofline.prefill_flops(loaded.config, length)),
        history=[len(encoder(loaded)(prompt)) for prompt in turns.prompts],
    )


def conversation(loaded: Checkpoint, turns: int, new_tokens: int, seed: int = 0) -> Workload:
    """The prompts of a conversation's turns, each the whole history and the next question; random ids where there is no
    tokenizer.

    Its `length` is the longest one's: for one turn use `turn`.
    """
    if loaded.tokenizer is None:
        ids = passages.random_prompts(loaded.config.vocab_size, FIRST_IDS + MORE_IDS * (turns - 1), seed, 1)[0]
        texts = tuple(ids[: FIRST_IDS + MORE_IDS * i] for i in range(turns))
    else:
        said, texts = [{"role": "system", "content": SYSTEM}], ()
        for question, answer in TALK[:turns]:
            texts += (template.render(loaded.tokenizer, [*said, *template.ask(question)]),)
            said += [*template.ask(question), {"role": "assistant", "content": answer}]
    longest = max(len(encoder(loaded)(text)) for text in texts)
    return Workload(texts, new_tokens, generate.bucket(longest), seed=seed)


def turn(work: Workload, number: int, encode: Callable) -> Workload:
    """One turn of a conversation as a workload of its own, padded no further than its own bucket."""
    prompt = work.prompts[number]
    return replace(work, prompts=(prompt,), length=generate.bucket(len(encode(prompt))))


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
                drawn = shuffled(subjects, workload.seed, chat, k)
                for order, who in enumerate(drawn):
                    say("starting", {})
                    place = identity | dict(block=chat, order=k * len(drawn) + order, phase="warm")
                    record, tokens = protocol.trial(who, work, 0, **place)
                    judged = references[k].judge(record, tokens)
                    say("trial", judged.model_copy(update=dict(prompt=k, bandwidth_gbps=bandwidth)).model_dump())
    return {}
