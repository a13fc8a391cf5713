"""The conversation that is held with everyone: its questions, the answers that stand in its history, its turns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from llama_jax import chat as template
from llama_jax import generate
from llama_jax.checkpoint import Checkpoint
from llama_lab.bench import passages, protocol
from llama_lab.bench.lab import Lab
from llama_lab.bench.workload import Subject, Workload, encoder, shuffled

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


def conversation(loaded: Checkpoint, turns: int, new_tokens: int, seed: int = 0, opening: str = "") -> Workload:
    """The prompts of a conversation's turns, each the whole history and the next question; random ids where there is no
    tokenizer. opening: what is said first of all.

    Its `length` is the longest one's: for one turn use `turn`.
    """
    if loaded.tokenizer is None:
        ids = passages.random_prompts(loaded.config.vocab_size, FIRST_IDS + MORE_IDS * (turns - 1), seed, 1)[0]
        texts = tuple(ids[: FIRST_IDS + MORE_IDS * i] for i in range(turns))
    else:
        said, texts = [{"role": "system", "content": opening + SYSTEM}], ()
        for question, answer in TALK[:turns]:
            texts += (template.render(loaded.tokenizer, [*said, *template.ask(question)]),)
            said += [*template.ask(question), {"role": "assistant", "content": answer}]
    longest = max(len(encoder(loaded)(text)) for text in texts)
    return Workload(texts, new_tokens, generate.bucket(longest), seed=seed)


def turn(work: Workload, number: int, encode: Callable) -> Workload:
    """One turn of a conversation as a workload of its own, padded no further than its own bucket."""
    prompt = work.prompts[number]
    return replace(work, prompts=(prompt,), length=generate.bucket(len(encode(prompt))))


def ask(
    lab: Lab, subjects: Sequence[Subject], reference: protocol.Reference, bandwidth: float, chat: int, number: int
) -> None:
    """One turn, the reference's, asked of all subjects in seeded random order and judged as all trials are. A chat
    below 0 warms up, and is not kept."""
    work = reference.workload
    drawn = shuffled(subjects, work.seed, chat, number)
    for order, who in enumerate(drawn):
        lab.announce()
        place = dict(block=chat, order=number * len(drawn) + order, phase="warm")
        record, tokens = lab.trial(who, work, 0, **place)
        if chat >= 0:
            lab.keep(reference.judge(record, tokens), prompt=number, bandwidth_gbps=bandwidth)
