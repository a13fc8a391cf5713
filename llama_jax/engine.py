"""An engine: a model bound to a placement, its weights prepared and its programs assembled."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

import jax
import numpy as np

from llama_jax import checkpoint as checkpoints
from llama_jax import kernels, kvc
from llama_jax.checkpoint import Checkpoint, find, own_blocks, read
from llama_jax.checkpoint.source import Source
from llama_jax.config import ModelConfig
from llama_jax.costs import Costs
from llama_jax.decoding.request import PIECE, Request, request
from llama_jax.decoding.smaller import Both
from llama_jax.model import Model
from llama_jax.placement import Placement, parse
from llama_jax.plumbing import settings, threads
from llama_jax.plumbing.errors import UserError
from llama_jax.quantise import FORMS, ROUNDED
from llama_jax.transforms import Programs, assemble, prepare


def fetch(tokens: jax.Array) -> np.ndarray:
    """Tokens [B] or [n B] as a host array [n B] of its own; waits until they are computed."""
    return np.array(tokens).reshape(-1, tokens.shape[-1])


@dataclass(frozen=True)
class Engine:
    """A model under a placement. params: what its programs take; `Both` if another model drafts. draft: the draft
    model's configuration. fetch: brings tokens to the host; a measurement times it. costs: of passes with drafts."""

    config: ModelConfig
    params: Model | Both
    placement: Placement
    programs: Programs
    fetch: Callable[[jax.Array], np.ndarray] = fetch
    draft: ModelConfig | None = None
    costs: Costs = field(default_factory=Costs, compare=False, repr=False)

    @property
    def model(self) -> Model:
        """The weights of the model that answers."""
        return self.params.target if isinstance(self.params, Both) else self.params


def load(model: str | Source, placement: Placement | str, dtype: str | None = None) -> Checkpoint:
    """A model, by name or already open, loaded directly in the form that a placement computes on. dtype: in this form
    instead. Raises UserError as `checkpoint.load`."""
    source = find(model) if isinstance(model, str) else model
    return read(source, dtype or computed_on(source, parse(placement)))


def usual(source: Source) -> Placement:
    """The placement that starts to answer soonest: a step that is one compiled kernel, if the file has quantised
    blocks, the kernel supports the family and this machine can run it; otherwise the jitted step."""
    from llama_jax.kernels import fused  # here: other placements need none of it

    try:
        kernels.check()
        fused.check(source.config)
    except UserError:
        return parse("step")
    return parse("step+fused" if own_blocks(source) == "gguf" else "step")


def computed_on(source: Source, placement: Placement) -> str:
    """The dtype of `checkpoint.load` that a placement computes on: for kernels, unless it names another, the file's own
    blocks."""
    if placement.weights == "loaded":
        return own_blocks(source) if placement.kernels != "none" else "float32"
    return {"f32": "float32", "bf16": "bfloat16"}.get(placement.weights, placement.weights)


def build(checkpoint: Checkpoint, placement: Placement | str = "loop", draft: Checkpoint | None = None) -> Engine:
    """Bind a checkpoint to a placement, given as a value or by name. Nothing is compiled yet. draft: the placement's
    draft model, if it is already loaded; otherwise it is loaded here.

    Raises UserError for an unknown placement, for one that this machine or these weights cannot run, and for a draft
    model that is missing or has another vocabulary.
    """
    placement = parse(placement)
    require_kernels(placement)
    if placement.draft is None:
        if draft is not None:
            raise UserError(f"Placement {placement.name!r} names no draft model; append +draft:{draft.name}.")
        return bind(checkpoint.config, weights(checkpoint, placement), placement)
    draft = draft or drafting(checkpoint, placement)
    check_vocabulary(checkpoint, draft)
    with about_the_draft(placement):
        second = draft.config, weights(draft, placement)
    return bind(checkpoint.config, weights(checkpoint, placement), placement, second)


def bind(
    config: ModelConfig, params: Model, placement: Placement, draft: tuple[ModelConfig, Model] | None = None
) -> Engine:
    """As `build`, from a bare configuration and parameters, which are quantised here if the placement asks for it.
    draft: those of the draft model, if the placement names one.

    Raises UserError if the weights cannot be converted, and if an option of JAX makes the model compute something else
    (`settings.COMPUTING`).
    """
    threads.COMPUTING.begin()
    settings.check()
    require_kernels(placement)
    if (draft is None) != (placement.draft is None):
        raise UserError(
            f"Placement {placement.name!r} {'names a' if draft is None else 'has no'} draft model; use build."
        )
    params = prepare(params, placement)
    if draft is None:
        return Engine(config, params, placement, assemble(config, placement))
    with about_the_draft(placement):
        params = Both(params, prepare(draft[1], placement))
        programs = assemble(config, placement, draft=draft[0])
    return Engine(config, params, placement, programs, draft=draft[0])


def drafting(checkpoint: Checkpoint, placement: Placement) -> Checkpoint:
    """The model that a placement names for drafts, in the form that the placement computes on. Raises UserError."""
    plain = placement.weights == "loaded" and placement.kernels == "none" and checkpoint.dtype not in FORMS
    with about_the_draft(placement):
        source = find(placement.draft)
    check_size(checkpoint, placement.draft, source.config)  # before any weight is read
    with about_the_draft(placement):
        return load(source, placement, checkpoint.dtype if plain else None)


@contextlib.contextmanager
def about_the_draft(placement: Placement) -> Iterator[None]:
    """Errors raised inside are about the draft model, and say so."""
    try:
        yield
    except UserError as error:
        raise UserError(f"The draft model of {placement.name!r}: {error}") from None


def check_size(checkpoint: Checkpoint, name: str, draft: ModelConfig) -> None:
    """Raises UserError for a draft model of more or fewer tokens than the model's."""
    if draft.vocab_size != checkpoint.config.vocab_size:
        raise UserError(
            f"The draft model {name} has a vocabulary of {draft.vocab_size} tokens, {checkpoint.name} of"
            f" {checkpoint.config.vocab_size}; name one of the same family."
        )


def check_vocabulary(checkpoint: Checkpoint, draft: Checkpoint) -> None:
    """Raises UserError for a draft model of other tokens than the model's; one without a tokenizer has as many."""
    check_size(checkpoint, draft.name, draft.config)
    words = [each.tokenizer.backend.get_vocab() for each in (checkpoint, draft) if each.tokenizer]
    if len(words) == 2 and words[0] != words[1]:
        raise UserError(
            f"The draft model {draft.name} has as many tokens as {checkpoint.name}, but not the same; name one of the"
            " same family."
        )


def require_kernels(placement: Placement) -> None:
    """Raises UserError if a placement asks for compiled kernels and this machine has none."""
    if placement.kernels != "none":
        kernels.check()


def form(checkpoint: Checkpoint, placement: Placement) -> str | None:
    """Which of `quantise.FORMS` the weights have under this placement; None if they are not quantised."""
    if placement.weights != "loaded":
        return placement.weights if placement.weights in FORMS else None
    if placement.kernels != "none":
        return checkpoint.blocks
    return checkpoint.dtype if checkpoint.dtype in FORMS else None


def requantised(source: Source, placement: Placement, dtype: str | None = None) -> str | None:
    """One sentence about matrices that this placement converts to other blocks, although neither it nor dtype names
    them; None if there are none."""
    if placement.weights not in ("loaded", "gguf") or dtype in ROUNDED:
        return None
    by_name = "gguf" in (placement.weights, dtype)
    if not by_name and placement.kernels == "none":
        return None
    return None if by_name and own_blocks(source) != "gguf" else checkpoints.requantised(source)  # refused, else told


def weights(checkpoint: Checkpoint, placement: Placement) -> Model:
    """The checkpoint's weights in that form; as they were loaded if there is none."""
    wanted = form(checkpoint, placement)
    return checkpoint.weights(wanted) if wanted else checkpoint.params


def checked_request(engine: Engine, *batch, every: bool = False, **options) -> Request:
    """`decoding.request.request` for this engine, its memory counted. every: logits of all positions are wanted.

    Raises UserError as that does, and in a forked process.
    """
    threads.COMPUTING.check()
    made = request(engine.config, *batch, **options, need=partial(bytes_needed, engine, every))
    if engine.draft and not every:
        longest = int(made.ids.shape[1] - made.pad.min()) + made.new_tokens
        if longest > (most := engine.draft.max_position_embeddings):
            raise UserError(
                f"{longest} tokens exceed the context of the draft model {engine.placement.draft}, {most}; ask for"
                " fewer, or use a placement without it."
            )
    return made


def bytes_needed(engine: Engine, every: bool, rows: int, length: int, slots: int) -> float:
    """Bytes that a request takes at least: the caches, twice where a call does not overwrite them, and the attention
    scores and logits of its largest call, float32."""
    both = [engine.config] if engine.draft is None else [engine.config, engine.draft]
    needs = [of_one(config, engine, every, rows, length, slots) for config in both]
    return sum(kept for kept, _ in needs) + max(used for _, used in needs)


def of_one(config: ModelConfig, engine: Engine, every: bool, rows: int, length: int, slots: int) -> tuple[float, float]:
    """(bytes of a model's cache, of the scores and logits of its largest call); as `bytes_needed`."""
    placement = engine.placement
    uncached = placement.cache == "none"  # every call then runs all positions
    width = length if every else slots if uncached else max(min(length, PIECE), 1 + placement.drafts)
    kept_as = kvc.FUSED if placement.kernels == "fused" else placement.kv
    dtype = kvc.DTYPES.get(kept_as, engine.model.embeddings.weight.dtype)
    position = 0 if uncached else config.kv_bytes_per_position(kvc.itemsize(dtype, config.head_dim))
    rows_of_logits = length if every else 1 + placement.drafts
    scores, logits = config.num_attention_heads * width * slots, config.vocab_size * rows_of_logits
    return rows * (1 if placement.donate else 2) * slots * position, rows * 4 * (scores + logits)
