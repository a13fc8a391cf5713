"""Decoding with drafts and without, on tasks that repeat a little, a lot, and almost all of their prompt.

All tasks are asked in the same interleaved blocks: prompt i belongs to task i modulo their number, and so does block i.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from llama_jax import checkpoint, generate
from llama_jax import prompts as science
from llama_jax.checkpoint import Checkpoint
from llama_jax.costs import Costs
from llama_jax.decoding.request import Request
from llama_jax.decoding.steps import Bounds
from llama_jax.generate import Engine
from llama_jax.placement import parse
from llama_lab.bench import available, passages
from llama_lab.bench import run as suite
from llama_lab.bench.experiment import Experiment, Runner, Seed, check_counts
from llama_lab.bench.phases import Plan
from llama_lab.bench.record import Trial
from llama_lab.bench.workload import Workload, encoder

TASKS = ("open", "copy", "edit")
BEGUN = 8  # tokens of the copy that stand in the prompt; of an edit, words after the first place that is another
EARLY = 3  # the part of a passage, one third, in which the word that is replaced must occur
WORD, OTHER = re.compile(r"[A-Za-z]{5,}"), "walnut"  # what is replaced in an edit, and by what


@dataclass(frozen=True)
class PastOneToken(Experiment):
    """All subjects on all tasks. placements: the first is the baseline, which runs twice in each block. each: prompts a
    task. blocks: of each task."""

    model: str
    seed: Seed
    placements: tuple[str, ...]
    peers: tuple[str, ...]
    each: int
    passage_tokens: int
    new_tokens: int
    blocks: int
    processes: int

    def check(self) -> None:
        for name in self.placements:
            parse(name)
        available.check_baseline(self.placements[0])
        check_counts(each=self.each, blocks=self.blocks, processes=self.processes)

    def measure(self, runner: Runner) -> tuple[list[Trial], dict]:
        """The trials, and what the meta says of them: `tasks`, that of each prompt; `passes`, what each placement with
        drafts did on it; `missing`, what could not run."""
        here, loaded = runner.present((*self.placements, *self.peers)), checkpoint.load(self.model)
        work = workload(loaded, self.each, self.passage_tokens, self.new_tokens, self.seed)
        plan = Plan.of(self.model, here, work, blocks=self.blocks * len(TASKS), processes=self.processes)
        return suite.collect(plan, runner.journal, runner.progress), dict(
            weights_hash=loaded.weights_hash,
            baseline=self.placements[0],
            tasks=[TASKS[i % len(TASKS)] for i in range(len(work.prompts))],
            passes=[row for p in plan.placements if p.drafts for row in passes(loaded, p.name, work)],
            missing=runner.missing,
            text="English" if loaded.tokenizer else "random ids",
        )


def workload(loaded: Checkpoint, each: int, passage_tokens: int, new_tokens: int, seed: int) -> Workload:
    """`each` prompts of every task, the tasks in turn: a question, a passage and the beginning of its copy, a passage
    and the beginning of a copy in which a word is another one."""
    pages = passages.passages(loaded, [passage_tokens] * (2 * each), seed)
    if loaded.tokenizer is None:
        asked = passages.random_prompts(loaded.config.vocab_size, passage_tokens, seed, each)
        copies, edits = ([page + page[:BEGUN] for page in some] for some in (pages[:each], pages[each:]))
    else:
        asked = science.as_chat(loaded.tokenizer, science.load(each))
        begun = [loaded.tokenizer.encode(page, special=False)[:BEGUN] for page in pages[:each]]
        copies = [f"{page}\n\n{loaded.tokenizer.decode(ids)}" for page, ids in zip(pages[:each], begun, strict=True)]
        edits = [edit(page) for page in pages[each:]]
    texts = tuple(prompt for task in zip(asked, copies, edits, strict=True) for prompt in task)
    longest = max(len(encoder(loaded)(text)) for text in texts)
    return Workload(texts, new_tokens, generate.bucket(longest), seed=seed)


def edit(page: str) -> str:
    """A passage, and the beginning of it again in which a word is another one everywhere: up to some words after its
    first place. The word is the commonest long one of those that occur early."""
    early = dict.fromkeys(WORD.findall(page[: len(page) // EARLY]))
    if not early:
        return f"{page}\n\n"
    before, _, after = page.replace(max(early, key=page.count), OTHER).partition(OTHER)
    return f"{page}\n\n{before}{OTHER}{' '.join(after.split(' ')[:BEGUN])}"


def passes(loaded: Checkpoint, name: str, work: Workload) -> list[dict]:
    """What a placement with drafts does, a row per prompt: {subject, prompt, made: tokens of each pass, depths: drafts
    of each, costs: of a pass of each of its depths, in plain steps}."""
    whole, rows = generate.build(loaded, name), []
    single = generate.build(loaded, replace(whole.placement, jit=("step",), until=None, tokens_per_call=1))
    for i, prompt in enumerate(work.prompts):
        options = dict(length=work.length, slots=work.slots)
        batch = generate.checked_request(whole, [encoder(loaded)(prompt)], work.new_tokens, **options)
        token, carry = generate.prefill(whole, batch)
        for _ in generate.decode(whole, batch, token, carry):  # what the costs are asked for
            pass
        costs = next(iter(whole.costs.known.values()), np.ones(len(whole.placement.depths))).tolist()
        made, depths = zip(*one_by_one(replace(single, costs=Costs(costs)), batch), strict=True)
        rows.append(dict(subject=name, prompt=i, made=made, depths=depths, costs=costs))
    return rows


def one_by_one(engine: Engine, batch: Request) -> Iterator[tuple[int, int]]:
    """(tokens, drafts) of each pass after the first token of a request. engine: of a placement that makes one a
    call."""
    left, (token, carry) = batch.new_tokens - 1, generate.prefill(engine, batch)
    while left:
        before = np.array(carry.learned.passes)
        bounds = Bounds(batch.stop, np.int32(left))
        bounds, carry = engine.costs.of(engine, batch, token, carry, generate.GREEDY, bounds)
        _, made, token, carry = engine.programs.decode(engine.params, token, carry, generate.GREEDY, bounds)
        yield int(made), engine.placement.depths[int(np.argmax(carry.learned.passes - before))]
        left -= int(made)
