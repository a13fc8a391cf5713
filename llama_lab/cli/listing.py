"""The verbs `models`, `placements` and `doctor`."""

from __future__ import annotations

from typing import Annotated

import typer

from llama_lab.cli.common import Json, app, emit


@app.command(epilog="Example: `llama-jax models`")
def models(json_: Json = False) -> None:
    """List the models known by name."""
    from llama_jax import checkpoint

    known = checkpoint.models()
    if json_:
        emit({"models": [{"name": k, "description": v} for k, v in known.items()]})
        return
    for name, description in known.items():
        print(f"{name:24} {description}")
    print("A path to a .gguf file or a Hugging Face folder, or a hub id (owner/name), works too.")


@app.command(epilog="Example: `llama-jax placements`")
def placements(json_: Json = False) -> None:
    """List the placements and the switches that cross with them."""
    from llama_jax.placement import DESCRIPTIONS, JIT_PREFIX, LADDER, MODIFIERS, SWITCHES, TREE

    if json_:
        known = [{"name": p.name, "jit": list(p.jit), "description": DESCRIPTIONS[p.name]} for p in LADDER.values()]
        emit(
            {"placements": known, "modifiers": sorted(MODIFIERS), "switches": {k: list(v) for k, v in SWITCHES.items()}}
        )
        return
    for p in LADDER.values():
        print(f"{p.name:12} {DESCRIPTIONS[p.name]:72} jit={', '.join(p.jit) or 'nothing'}")
    print(
        f"\nAppend to any of them: {', '.join('+' + m for m in MODIFIERS)} (such as step+scan+donate);"
        " chunk16 is a chunk of 16, +async8 keeps 8 calls in flight,"
        " +lookup4 proposes 4 drafts a pass."
    )
    print(
        f"Your own: {JIT_PREFIX} and what is jitted, with dots, such as {JIT_PREFIX}attend.head+donate;"
        f" of {', '.join(TREE)}."
    )
    print(
        "Weights: +bf16, +gguf (the file's own blocks), +q8_0, +q4_0, +q4_1, +int8 (quantised here). Kernels:"
        " +gemv multiplies by blocks,"
        " +fused makes a token in one call, each on the file's own blocks or q8_0 where no weights are named."
    )


@app.command(epilog="Example: `llama-jax doctor`")
def doctor(
    probe: Annotated[bool, typer.Option(help="Measure the memory bandwidth.")] = True, json_: Json = False
) -> None:
    """Say what is installed, what answers, how fast memory is, and what to do about each gap."""
    from llama_lab import doctor as examination

    found = examination.examine(probe)
    if json_:
        emit(found)
        return
    for title, value in found.items():
        if isinstance(value, dict):
            print(f"{title}:")
            for k, v in value.items():
                if v is not None or title != "kernels":
                    print(f"  {k:18} {'missing' if v is None else v}")
        elif isinstance(value, list):
            print(f"{title}:" + ("" if value else " nothing"))
            for v in value:
                print(f"  {v}")
        else:
            print(f"{title}: {value}")
