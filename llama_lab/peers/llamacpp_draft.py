"""llama.cpp with a draft model: a smaller one proposes tokens, and one `llama_decode` of all of them shows how many the
larger one would choose.

The rules are those of llama.cpp's own programs (`common/speculative.cpp`, its defaults): drafting continues while the
smaller model is sure of the next token, up to `MOST`; its keys and values are kept as far as the text is the same. They
are written down here because llama-cpp-python's class for drafts passes the whole text each time and keeps nothing.
Greedy, one row; the tokens are llama.cpp's own except for near-ties, as with `llamacpp+lookup`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from llama_jax import checkpoint, generate
from llama_lab import peers
from llama_lab.bench.workload import Subject, Workload
from llama_lab.peers import llamacpp

DRAFTS = {"qwen2.5-coder-1.5b": "qwen2.5-coder-0.5b"}  # model: the one that drafts for it
MOST, SURE = 16, 0.75  # drafts per pass; how likely the next one must be to the smaller model
MODEL = peers.Latest()  # the smaller model opened last
logits = llamacpp.logits


def missing(name: str, model: str) -> tuple[str, str] | None:
    """As llama.cpp; and the model that drafts must be here too."""
    if gap := llamacpp.missing(name, model):
        return gap
    if (draft := drafter(model)) is None:
        return f"No model is named that drafts for {model}.", f"Compare on one of {', '.join(DRAFTS)}."
    return llamacpp.no_file(draft)


def drafter(model: str) -> str | None:
    """The model that drafts for one that is named, or whose file is called so; None if none is known."""
    return DRAFTS.get(Path(checkpoint.canonical(model)).name.removesuffix(".gguf"))


def subject(loaded: checkpoint.Checkpoint, name: str) -> Subject:
    """llama.cpp with a draft model as a subject of the protocol. Raises UnavailableError if it cannot read a
    file."""
    if gap := missing(name, loaded.name):
        raise peers.UnavailableError(*gap)
    draft = checkpoint.gguf_file(drafter(loaded.name))
    return llamacpp.on_file(loaded, name, lambda path: Drafted(llamacpp.opened(path), smaller(draft)))


def smaller(path: Path) -> llamacpp.Model:
    """A file as the model that drafts; the one opened last is kept. Raises UnavailableError."""
    llama = llamacpp.library()
    known = str(path), path.stat().st_mtime_ns
    return MODEL.get(known, lambda: llamacpp.Model(llama, path, llama.llama_model_free))


class Drafter:
    """A smaller model that has read a part of a text."""

    def __init__(self, context: llamacpp.Context):
        self.context, self.read = context, []
        context.clear()

    def next(self, text: Sequence[int], most: int) -> list[int]:
        """Up to `most` tokens that would go on, as long as it is sure of them."""
        known = next((i for i, (a, b) in enumerate(zip(self.read, text, strict=False)) if a != b), len(self.read))
        known = min(known, len(text) - 1)  # the last one is read again where it is known, for what follows it
        self.context.forget(known)
        del self.read[known:]
        at, drafts = self.feed(text[known:]), []
        while len(drafts) < most:
            values = self.context.logits(at)
            best = int(values.argmax())
            if 1 / np.exp(values - values[best]).sum() < SURE:
                break
            drafts.append(best)
            if len(drafts) < most:
                at = self.feed([best])
        return drafts

    def feed(self, tokens: Sequence[int]) -> int:
        """Read some more; the place of the last one in the call that read it."""
        for start in range(0, len(tokens), llamacpp.BATCH):
            piece = tokens[start : start + llamacpp.BATCH]
            last, first = start + len(piece) == len(tokens), len(self.read)
            self.context.decode([(t, first + i, 0, last and i == len(piece) - 1) for i, t in enumerate(piece)])
            self.read += piece
        return len(piece) - 1


class Drafted(llamacpp.Bare):
    """As `Bare`, with a draft before each call."""

    def __init__(self, model: llamacpp.Model, draft: llamacpp.Model):
        super().__init__(model, lambda *sizes: llamacpp.Context(*sizes, every=True), "llama.cpp with a draft model")
        self.draft = llamacpp.Bare(draft)
        if draft.vocabulary != model.vocabulary:
            raise peers.UnavailableError(
                f"The draft model has {draft.vocabulary} tokens, the model {model.vocabulary}.",
                "Name one that has the same.",
            )

    def run(self, ids: Sequence[int], work: Workload) -> Iterator[np.ndarray]:
        """Blocks [n 1] of greedy tokens, as many as a call has brought. Raises RuntimeError for more than one row."""
        peers.check_one_row(work, self.single)
        slots = generate.bucket(len(ids) + work.new_tokens + MOST)
        context, drafter = self.room(slots, 1), Drafter(self.draft.room(slots, 1))
        context.clear()
        made = llamacpp.prefill(context, ids).tolist()
        text = [*map(int, ids), *made]
        yield np.array(made, np.int32)[:, None]
        left = work.new_tokens - 1
        while left:
            made = step(context, text, drafter.next(text, min(MOST, left - 1)))
            text += made
            left -= len(made)
            yield np.array(made, np.int32)[:, None]


def step(context: llamacpp.Context, text: Sequence[int], draft: Sequence[int]) -> list[int]:
    """The next tokens, one or more, by one call; what it rejects is forgotten by the cache."""
    start, rows = len(text) - 1, [text[-1], *draft]
    context.decode([(token, start + i, 0, True) for i, token in enumerate(rows)])
    best = [int(context.logits(i).argmax()) for i in range(len(rows))]
    accepted = next((i for i, token in enumerate(draft) if token != best[i]), len(draft))
    if accepted < len(draft):
        context.forget(start + accepted + 1)
    return best[: accepted + 1]
