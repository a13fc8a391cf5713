"""Any generator as a subject: a plain function from a prompt to its tokens, timed by the protocol as placements are."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import takewhile
from typing import TYPE_CHECKING

import numpy as np

from llama_jax import chat as conversations
from llama_jax import checkpoint, generate, sampling
from llama_jax.checkpoint import Checkpoint
from llama_jax.placement import LADDER, Placement, parse
from llama_jax.plumbing.errors import UserError
from llama_jax.plumbing.values import LARGEST, listed, shown, whole
from llama_jax.render import ids_of
from llama_jax.sampling import Sampler
from llama_lab.bench import AGAIN, gate, passages, protocol
from llama_lab.bench.gate import Verdict, wrong
from llama_lab.bench.rows import UNCHECKED
from llama_lab.bench.workload import Subject, Workload

if TYPE_CHECKING:
    from llama_jax.tokenizer import Tokenizer
    from llama_lab.bench.record import Trial

Generator = Callable[[str], Iterator]
FUNCTION = "function"  # the backend of its rows: what it runs on is its own affair
AT_ONCE_NS = 10_000  # a token: no model is as quick, so they were made before the first was given
AS_TEXT = -1  # in the place of an id where a token came as text
MODEL_FIELDS = ("model", "weights_hash", "dtype")  # of a Trial: unknown without a model
UNFINISHED = "\ufffd"  # what a tokenizer reads from a character of which bytes are missing


class Asked(list):
    """Token ids of a prompt. question: the prompt as a generator is asked it."""

    def __init__(self, ids: Sequence[int], question: str | Sequence[int]):
        super().__init__(ids)
        self.question = question


@dataclass(frozen=True)
class Function:
    """A named generator. said: its last answer if that was text, one piece per token."""

    name: str
    generator: Generator
    said: list[str] = field(default_factory=list)

    def blocks(self, question: str | Sequence[int], most: int) -> Iterator[np.ndarray]:
        """Its answer as blocks of ids [n 1], at most this many tokens. Raises UserError for anything but a token, and
        if it does not return an iterator."""
        made, left = self.generator(question), most
        if not isinstance(made, Iterator):
            raise UserError(
                f"{self.name!r} gives back {shown(made)}; it must yield its tokens one by one, as text or as ids."
            )
        self.said.clear()
        with contextlib.closing(made) if hasattr(made, "close") else contextlib.nullcontext():
            for token in made:
                if left < most and isinstance(token, str) != bool(self.said):
                    raise UserError(f"{self.name!r} yields text and ids in one answer; it must be one of them.")
                if isinstance(token, str):
                    self.said.append(token)
                block = [AS_TEXT] if isinstance(token, str) else self.ids(token)[:left]
                left -= len(block)
                yield np.array(block, np.int32)[:, None]
                if not left:
                    return

    def ids(self, token: object) -> list[int]:
        try:
            return ids_of(token)
        except UserError as error:
            raise UserError(f"{self.name!r} yields what cannot be timed: {error}") from None

    def first(self, question: str | Sequence[int], most: int) -> int:
        """How many tokens its answer has: a first one, which is not timed. Raises UserError if it makes none."""
        try:
            count = sum(map(len, self.blocks(question, most)))
        except UserError:
            raise
        except Exception as error:  # the caller's own function: its kind and its words are what helps
            what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
            raise UserError(f"{self.name!r} fails on {shown(question)}: {what[:300]}") from error
        if not count:
            raise UserError(f"{self.name!r} yields nothing on {shown(question)}; it must yield a token or more.")
        return count

    def subject(self, identity: dict, asked: dict[str | tuple[int, ...], Asked]) -> Subject:
        def run(ids: Asked, workload: Workload) -> Iterator[np.ndarray]:
            return self.blocks(ids.question, workload.new_tokens)

        return Subject(self.name, FUNCTION, FUNCTION, run, asked.__getitem__, identity)


class Judge(gate.Reference):
    """The gate for generators. Their arithmetic is unknown, so their tokens are compared with those of `step`.

    A generator may end where the model ends, with its stop token or without. Text is compared with the decoded
    reference tokens. Output that cannot be compared is marked so: sampled text, and any output without a model. Tokens
    that all arrive at once have no rate, and the trial is void.
    """

    def __init__(self, loaded: Checkpoint | None, workload: Workload, functions: Sequence[Function]):
        super().__init__(loaded, workload)
        self.functions = {each.name: each for each in functions}

    def said(self, record: Trial) -> list[str]:
        known = self.functions.get(record.subject.removesuffix(AGAIN))
        return known.said if known else []

    def judge(self, record: Trial, tokens: np.ndarray, sampler: Sampler | None = None) -> Trial:
        judged = super().judge(record, tokens, sampler)
        if record.backend != FUNCTION or not record.token_times_ns:
            return judged
        changed, times = {}, record.token_times_ns
        if text := "".join(self.said(record)):  # its tokens have no ids
            changed |= dict(tokens_sha256=hashlib.sha256(text.encode()).hexdigest())
        if len(times) > 1 and times[-1] - times[0] < AT_ONCE_NS * (len(times) - 1):
            told = f"failed: its {len(times)} tokens came at once; it must yield each as soon as it is made"
            changed |= dict(valid=False, reason="; ".join(filter(None, (judged.reason, told))))
        return judged.model_copy(update=changed)

    def verdict(self, record: Trial, row: int, tokens: np.ndarray, sampler: Sampler) -> Verdict:
        if record.backend != FUNCTION:
            return super().verdict(record, row, tokens, sampler)
        if self.checkpoint is None:
            return unchecked("no model was named")
        said, words, kind = self.said(record), self.checkpoint.tokenizer, (record.dtype, record.quantisation)
        stop, logits = words.stop if words else (), partial(self.logits, record.prompt, tokens, *kind)
        if sampling.is_greedy(sampler):
            expected = as_long(self.tokens(record.prompt, *kind), len(tokens), stop)
            if not said:
                return gate.compare(tokens, expected, logits, gate.near_tie(record.quantisation))
            return spelled(said, expected, words) if words else unchecked("the model has no tokenizer to read them by")
        if said:
            return unchecked("it is text, and sampled")
        count = len(tokens) if tokens[-1] in stop else self.workload.new_tokens
        return gate.likely(tokens, count, logits, sampler, self.encode(self.workload.prompts[record.prompt]))


def unchecked(why: str) -> Verdict:
    return Verdict(True, f"{UNCHECKED}: {why}")


def as_long(reference: np.ndarray, count: int, stop: Sequence[int]) -> np.ndarray:
    """The reference's tokens [n] up to `count` if it stops there itself, with its stop token or before it."""
    ended = 0 < count < len(reference) and np.isin(reference[count - 1 : count + 1], list(stop)).any()
    return reference[:count] if ended else reference


def spelled(said: Sequence[str], reference: np.ndarray, tokenizer: Tokenizer) -> Verdict:
    """Whether the pieces of a text, one per token, are the reference's tokens [n] decoded, together or one by one, with
    or without special tokens. Near-ties cannot be seen in text."""
    if len(said) != len(reference):
        return wrong(f"{len(said)} pieces of text, the reference has {len(reference)} tokens")
    ids, made, readings = reference.tolist(), "".join(said).rstrip(UNFINISHED), []
    for skip in (True, False):
        read = partial(tokenizer.backend.decode, skip_special_tokens=skip)
        readings += [text.rstrip(UNFINISHED) for text in (read(ids), "".join(read([i]) for i in ids))]
    if made in readings:
        return Verdict(True)
    pairs = [zip(made, reading, strict=False) for reading in readings]
    shared = max(sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], both)) for both in pairs)
    return wrong(f"its text is not the reference's from character {shared} on; ids would tell whether that is a tie")


def questions(
    loaded: Checkpoint | None, prompts: Sequence[str | Sequence[int]], chat: bool | None
) -> dict[str | tuple[int, ...], Asked]:
    """What placements are asked (the rendered chat, or ids) → the generator's prompt, each prompt once."""
    asked, words = {}, loaded and loaded.tokenizer
    if not len(prompts := listed(prompts, "prompts", "texts, or lists of token ids")):
        raise UserError("prompts is empty; give one or more.")
    if chat and not (words and words.chat_template):
        raise UserError("This model has no chat template; give chat=False.")
    for prompt in prompts:
        if not isinstance(prompt, str):
            ids = listed(prompt, "A prompt", "token ids")
            asked[tuple(ids)] = Asked(ids, prompt)
        elif loaded is None:
            asked[prompt] = Asked((), prompt)
        elif words is None:
            raise UserError("This model has no tokenizer; give each prompt as a list of token ids.")
        elif words.chat_template and chat is not False:
            ids = conversations.encode(words, conversations.ask(prompt))
            asked[conversations.render(words, conversations.ask(prompt))] = Asked(ids, prompt)
        else:
            ids = words.encode(prompt)
            asked[tuple(ids)] = Asked(ids, prompt)
    return asked


def named(given: str | Placement | tuple[str, Generator]) -> Function | Placement:
    """A placement, or a named generator. Raises UserError for anything else."""
    if not isinstance(given, tuple):
        return parse(given)
    if len(given) != 2 or not callable(given[1]):
        raise UserError(f"{shown(given)} is not a named generator; write (name, function).")
    return Function(*given)


def check_names(names: Sequence[str]) -> None:
    """Raises UserError for an invalid name, or one that two subjects share."""
    for name in names:
        if not isinstance(name, str) or not name.strip() or name.endswith(AGAIN):
            raise UserError(f"name is {shown(name)}; it must be text, not empty and not ending in {AGAIN.strip()!r}.")
        if names.count(name) > 1:
            raise UserError(f"Two subjects are called {name!r}; give each a name of its own.")


def run(
    name: str,
    generator: Generator,
    prompts: Sequence[str | Sequence[int]],
    new_tokens: int | None = None,
    *,
    model: str | Checkpoint | None = checkpoint.DEFAULT,
    beside: Sequence[str | Placement | tuple[str, Generator]] = (),
    sampler: Sampler = generate.GREEDY,
    chat: bool | None = None,
) -> list[Trial]:
    """Trials of a plain function that takes a prompt and yields its tokens, and of the subjects in `beside`.

    generator: is called with each prompt as it is given here, and yields text, one piece per token, or ids. Each prompt
    is a block, in which every subject answers once, in random order: `summary.table(trials, baseline)` pairs them. The
    first of `beside` is the baseline, and runs twice in a block; alone, the generator is its own baseline.

        def mine(question):  # Iterator[str], or ids
            ...
        trials = llama_lab.run("mine", mine, questions, beside=["step"])
        summary.table(trials, "step")

    new_tokens: of each answer; by default as many as the generator gives for the first prompt. model: a name for
    `load`, or a loaded checkpoint: the tokens must be those of its `step` placement. With None, for a generator of
    another model, nothing is compared, and the row says so. beside: placements, or pairs (name, generator). sampler:
    how the generator samples; greedy tokens must be equal, sampled ones likely. chat: whether text is a question for
    the model's chat template (the default if it has one), or goes to the tokenizer as it is.

    A trial is void like any other: if something was compiled in it, if its tokens are wrong, if it failed; and if all
    its tokens arrived at once. Nothing is drawn during the trials. Raises UserError for a function that fails on the
    first prompt or yields no tokens.
    """
    loaded = checkpoint.load(model) if isinstance(model, str) else model
    if not isinstance(loaded, Checkpoint | None):
        raise UserError(f"model is {shown(model)}; it must be a name, a loaded checkpoint, or None.")
    given = [named(each) for each in (*beside, (name, generator))]
    check_names([each.name for each in given])
    functions = [each for each in given if isinstance(each, Function)]
    if loaded is None and functions != given:
        raise UserError("Placements need a model; name one with model=.")
    asked = questions(loaded, prompts, chat)
    first, longest = next(iter(asked.values())).question, max(1, *map(len, asked.values()))
    room = max(1, loaded.config.max_position_embeddings - longest) if loaded else LARGEST
    most = room if new_tokens is None else whole(new_tokens, "new_tokens", 1)
    *_, count = [each.first(first, most) for each in functions]  # the last is the one that was asked for
    if new_tokens is None and count == most:
        raise UserError(f"{name!r} is still running after {most} tokens; set new_tokens to the number to take.")
    work = Workload(tuple(asked), new_tokens or count, generate.bucket(longest), sampler=sampler)
    if loaded:
        passages.check_context(loaded.config, work)
    identity = protocol.subject(loaded, LADDER["step"]).identity if loaded else dict.fromkeys(MODEL_FIELDS, "")
    subjects = [
        each.subject(identity, asked) if isinstance(each, Function) else protocol.subject(loaded, each)
        for each in given
    ]
    return protocol.measure(subjects, work, len(prompts), Judge(loaded, work, functions), given[0].name)
