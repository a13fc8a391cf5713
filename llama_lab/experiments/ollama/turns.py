"""The same conversation with every subject, and with servers that may keep the history, so that each turn reads only
what is new.

Our server is `llama-jax serve` under a placement, with one slot. Ollama is asked in the same way; both use Ollama's
client, and both use their prompt caches. Each conversation begins with its number, so that no earlier one helps.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from llama_jax import chat as template
from llama_jax import generate
from llama_jax.checkpoint import Checkpoint
from llama_jax.placement import parse
from llama_jax.plumbing.errors import UserError
from llama_lab.bench import parent, passages, protocol, roofline
from llama_lab.bench.lab import Lab
from llama_lab.bench.workload import Subject, Workload, encoder, shuffled
from llama_lab.peers import UnavailableError, native, ollama

KEPT = "kept"
OLLAMA = "ollama"
ENDS_S = 40.0  # after SIGTERM; what runs then has 30 s
ANSWERS = re.compile(r"^(\S+) answers at (http://\S+?):? ")
SYSTEM = "You answer questions about science for a curious reader."
TALK = (  # what was asked, and the answer that stands in the history whoever is asked, so that all read the same tokens
    (
        "Why is the sky blue?",
        "Sunlight holds all colours. Molecules of air scatter short waves far more than long ones, so blue light "
        "reaches us from every direction of the sky while red light passes nearly straight through.",
    ),
    (
        "And why is it red in the evening?",
        "In the evening the light crosses much more air before it reaches you. By then most of the blue has been "
        "scattered out of the beam, and what is left, and lights the clouds from below, is orange and red.",
    ),
    (
        "Would it look the same on Mars?",
        "No. The air of Mars is thin and full of fine dust. The dust absorbs blue and scatters red light widely, so "
        "that the day sky is butterscotch. Close to the setting sun, where dust scatters forward, the sky turns blue.",
    ),
    (
        "How do we know what the air of a distant planet is made of?",
        "When a planet passes in front of its star, a little starlight goes through its air. Each gas absorbs at "
        "wavelengths of its own, so lines that appear in the spectrum only during the passage name the gases, and "
        "their depth says how much there is.",
    ),
    ("Which gas would make you think of life there?", ""),
)
FIRST_IDS, MORE_IDS = 40, 70  # lengths of the turns for a model without a tokenizer


def conversation(loaded: Checkpoint, turns: int, new_tokens: int, seed: int = 0, opening: str = "") -> Workload:
    """The prompts of a conversation's turns, each the whole history and the next question; random ids if there is no
    tokenizer. opening: the first words.

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
    """One turn of a conversation as a separate workload, padded only to its own bucket."""
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


def conversations(lab: Lab, names: Sequence[str], chats: int, turns: int, new_tokens: int, seed: int) -> None:
    """`chats` conversations with each server, interleaved turn by turn in seeded random order; judged as all trials
    are. names: placements of ours, or `ollama`, which is reported as missing where it cannot be asked."""
    with contextlib.ExitStack() as open_until_the_end:
        loaded = lab.load()
        whole = conversation(loaded, turns, new_tokens, seed)
        room = generate.bucket(whole.length + new_tokens + 1)
        subjects, probe = [], roofline.Probe()
        for name in names:
            try:
                subjects.append(open_until_the_end.enter_context(server(loaded, name, room)))
            except UnavailableError as error:
                lab.missing(name, error.reason, error.remedy)
        for chat in range(-1, chats):  # the first one warms up, and is not kept
            work = conversation(loaded, turns, new_tokens, seed, f"Conversation {chat + 2}. ")
            bandwidth = probe.bandwidth()
            for k in range(turns):
                reference = protocol.Reference(loaded, turn(work, k, encoder(loaded)))
                ask(lab, subjects, reference, bandwidth, chat, k)


@contextlib.contextmanager
def server(loaded: Checkpoint, name: str, room: int) -> Iterator[Subject]:
    """A server as a subject which is asked the prompts as they are. room: positions of its context. Raises
    UnavailableError for an Ollama that cannot be asked, UserError where ours does not start."""
    if name == OLLAMA:
        yield replace(ollama.subject(loaded, name), encode=encoder(loaded))
        return
    own = protocol.subject(loaded, parse(name))
    import httpx
    import ollama as package

    with ours(loaded.source, name, room) as (model, url):
        client = package.Client(url, timeout=httpx.Timeout(ollama.SILENCE_S, connect=ollama.LOOK_S))
        there = ollama.Server(client, model, loaded.tokenizer)
        yield replace(own, run=there.run, reported=lambda: there.counts)


@contextlib.contextmanager
def ours(model: str, placement: str, context: int) -> Iterator[tuple[str, str]]:
    """(what it calls the model, its address) of `llama-jax serve`, which ends with this process. Raises UserError where
    it does not start, with its last line."""
    asked = ["serve", "--model", model, "--placement", placement, "--slots", "1", "--context", str(context)]
    command = [sys.executable, "-c", parent.FOLLOWER, str(os.getpid()), sys.executable, "-m", "llama_lab", *asked]
    with native.speaking([*command, "--port", "0"], f"`llama-jax serve` under {placement}", ENDS_S) as line:
        if not (said := ANSWERS.match(line)):
            raise UserError(f"`llama-jax serve` under {placement} did not say where it answers: {line.strip()[-300:]}")
        yield said[1], said[2]
