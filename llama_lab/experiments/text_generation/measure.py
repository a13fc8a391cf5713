"""One answer under several placements, with and without a cache, and texts that were made along the way."""

from __future__ import annotations

from dataclasses import dataclass

from llama_jax import chat, checkpoint, generate, prompts
from llama_jax.checkpoint import Checkpoint
from llama_jax.placement import parse
from llama_jax.sampling import Sampler
from llama_lab.bench import passages, run
from llama_lab.bench.experiment import Experiment, Runner
from llama_lab.bench.record import Trial

SUBJECTS = {
    "eager": "no jit (eager)",
    "step+nocache": "jitted step, no KV cache",
    "step": "jitted step",
    "chunk8": "8 tokens a call (chunk8)",
    "loop": "whole answer in one call (loop)",
}
CACHED, UNCACHED = "step", "step+nocache"


@dataclass(frozen=True)
class TextGeneration(Experiment):
    """`answers` of each subject, and texts of `sample_tokens` tokens by their settings."""

    model: str
    seed: int
    new_tokens: int
    answers: int
    sample_tokens: int
    temperature: float

    def measure(self, runner: Runner) -> tuple[list[Trial], dict]:
        loaded, questions = checkpoint.load(self.model), prompts.load(self.answers)
        work = passages.science(loaded, questions, self.new_tokens, self.seed)
        plan = run.Plan.of(self.model, SUBJECTS, work, CACHED, blocks=self.answers)
        trials = run.collect(plan, runner.journal, runner.progress)
        texts = samples(loaded, prompts.load(1)[0], self.sample_tokens, self.temperature, self.seed)
        return trials, dict(weights_hash=loaded.weights_hash, questions=questions, samples=texts)


def samples(loaded: Checkpoint, question: str, count: int, temperature: float, seed: int) -> dict[str, str]:
    """Texts of up to `count` tokens by how they were made: greedily, drawn twice, and as a chat's second turn; none
    without a tokenizer."""
    if loaded.tokenizer is None:
        return {}
    engine, tokenizer = generate.build(loaded, parse("step")), loaded.tokenizer

    def text(turns, **options) -> str:
        ids = chat.encode(tokenizer, turns)
        return tokenizer.decode(generate.answer(engine, [ids], count, stop=tokenizer.stop, **options)[0].token_ids)

    asked, warm = chat.ask(question), Sampler(temperature=temperature, top_p=0.9)
    found = {"greedy": text(asked)}
    for s in (seed, seed + 1):
        found[f"temperature {temperature}, seed {s}"] = text(asked, sampler=warm, seeds=s)
    again = {"role": "user", "content": "Say that in one sentence."}
    found["second turn of a chat"] = text([*asked, {"role": "assistant", "content": found["greedy"]}, again])
    return found
