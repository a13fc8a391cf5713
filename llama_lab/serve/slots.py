"""The slots of a placement: in turn, or all in one call."""

from __future__ import annotations

from llama_jax.engine import Engine, bytes_needed
from llama_jax.plumbing import memory
from llama_jax.plumbing.errors import UserError
from llama_lab.serve.rows import Rows
from llama_lab.serve.stepper import SIZES, Stepper


def build(engine: Engine, context: int, slots: int, sizes: tuple[int, ...] = SIZES) -> Stepper:
    """The stepper of so many slots. Raises UserError where the model has less context, or the machine less memory."""
    most = engine.config.max_position_embeddings
    if not 2 <= context <= most:
        raise UserError(f"--context is {context}; this model has contexts of 2 to {most} tokens.")
    room = Stepper(engine, context, sizes).room
    needed = slots * bytes_needed(engine, False, 1, max(sizes, default=context), room)
    memory.check(needed, f"{slots} slots of {context} tokens", "ask for fewer slots or a smaller context")
    if engine.placement.kernels == "fused":
        return Rows(engine, context, sizes, slots)
    return Stepper(engine, context, sizes)
