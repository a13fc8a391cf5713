"""llama.cpp with prompt lookup (https://github.com/apoorvumang/prompt-lookup-decoding): the tokens that followed the
same few tokens earlier in the text are the draft, and one `llama_decode` of all drafted tokens shows how many of them
it would choose itself.

llama-cpp-python's `LlamaPromptLookupDecoding` does the same, but reads the whole text again for every draft and has a
fixed draft length. Here an index of n-grams is updated with each token, and the last occurrence wins. The length of a
draft depends on the success of the previous one, because llama.cpp takes longer for more rows: a rejected draft must be
cheap, an accepted one long. Greedy, one row.

The tokens are llama.cpp's own greedy ones except for near-ties: several rows use other products than one, whose sums
are rounded in another order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from llama_jax import checkpoint, generate
from llama_lab import peers
from llama_lab.bench.workload import Subject, Workload
from llama_lab.peers import llamacpp

SIZES = (3, 2)  # tokens of an n-gram, the longest first
SHORTEST, LONGEST = 2, 16  # tokens of a draft
missing = llamacpp.missing
logits = llamacpp.logits


def subject(loaded: checkpoint.Checkpoint, name: str) -> Subject:
    """llama.cpp with drafts as a subject of the protocol. Raises UnavailableError if it cannot read the file."""
    return llamacpp.on_file(loaded, name, lambda path: Lookup(llamacpp.opened(path)))


class Drafts:
    """The text so far, what followed each of its n-grams, and how many tokens to draft next."""

    def __init__(self, ids: Sequence[int]):
        self.ids, self.length = [], SHORTEST
        self.after: dict[tuple[int, ...], int] = {}
        for token in ids:
            self.add(token)

    def add(self, token: int) -> None:
        """One more token; the n-grams that end before it are followed by it."""
        for size in SIZES:
            if len(self.ids) >= size:
                self.after[tuple(self.ids[-size:])] = len(self.ids)
        self.ids.append(int(token))

    def next(self, most: int) -> list[int]:
        """What followed the last n-gram earlier, at most so many tokens; none where it is new."""
        for size in SIZES:
            if (at := self.after.get(tuple(self.ids[-size:]))) is not None:
                return self.ids[at : at + min(self.length, most)]
        return []

    def learn(self, drafted: int, accepted: int) -> None:
        """Twice as many after a draft that was right throughout, half as many after another."""
        if drafted:
            self.length = min(2 * self.length, LONGEST) if accepted == drafted else max(self.length // 2, SHORTEST)


class Lookup(llamacpp.Bare):
    """As `Bare`, with a draft before each call."""

    def __init__(self, model: llamacpp.Model):
        super().__init__(model, lambda *sizes: llamacpp.Context(*sizes, every=True))

    def run(self, ids: Sequence[int], work: Workload) -> Iterator[np.ndarray]:
        """Blocks [n 1] of greedy tokens, as many as a call has brought. Raises RuntimeError for more than one row."""
        peers.check_one_row(work, "llama.cpp with drafts")
        context = self.room(generate.bucket(len(ids) + work.new_tokens + LONGEST), 1)
        context.clear()
        made = llamacpp.prefill(context, ids)
        text = Drafts([*ids, *made])
        yield made[None]
        left = work.new_tokens - 1
        while left:
            made = step(context, text, left)
            left -= len(made)
            yield np.array(made, np.int32)[:, None]


def step(context: llamacpp.Context, text: Drafts, left: int) -> list[int]:
    """The next tokens, one or more and at most `left`, by one call; what it rejects is forgotten by cache and text."""
    draft, start = text.next(left - 1), len(text.ids) - 1
    rows = [text.ids[-1], *draft]
    context.decode([(token, start + i, 0, True) for i, token in enumerate(rows)])
    best = [int(context.logits(i).argmax()) for i in range(len(rows))]
    accepted = next((i for i, token in enumerate(draft) if token != best[i]), len(draft))
    if accepted < len(draft):
        context.forget(start + accepted + 1)
    made = best[: accepted + 1]
    for token in made:
        text.add(token)
    text.learn(len(draft), accepted)
    return made
