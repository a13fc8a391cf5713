"""The verbs `models`, `placements` and `doctor`."""

from __future__ import annotations

from llama_lab.cli import options
from llama_lab.cli.options import option, verb


@verb("`llama-jax models`")
class Models:
    """List the models known by name."""

    json: bool = options.as_json()

    def run(self) -> dict:
        from llama_jax import checkpoint

        known = checkpoint.models()
        if not self.json:
            print(*(f"{name:24} {about}" for name, about in known.items()), sep="\n")
            print("A path to a .gguf file or a Hugging Face folder, or a hub id (owner/name), works too.")
        return {"models": [{"name": name, "description": about} for name, about in known.items()]}


@verb("`llama-jax placements`")
class Placements:
    """List the placements and the switches that cross with them."""

    json: bool = options.as_json()

    def run(self) -> dict:
        from llama_jax.placement import DESCRIPTIONS, JIT_PREFIX, LADDER, MODIFIERS, SWITCHES, TREE

        if not self.json:
            for p in LADDER.values():
                print(f"{p.name:12} {DESCRIPTIONS[p.name]:72} jit={', '.join(p.jit) or 'nothing'}")
            print(
                f"\nAppend to any of them: {', '.join('+' + m for m in MODIFIERS)} (such as step+scan+donate);"
                " chunk16 is a chunk of 16, +async8 keeps 8 calls in flight, +lookup4 proposes 4 drafts a pass.\n"
                f"Your own: {JIT_PREFIX} and what is jitted, with dots, such as {JIT_PREFIX}attend.head+donate;"
                f" of {', '.join(TREE)}.\n"
                "Weights: +bf16, +gguf (the file's own blocks), +q8_0, +q4_0, +q4_1, +int8 (quantised here). Kernels:"
                " +gemv multiplies by blocks, +fused makes a token in one call, each on the file's own blocks or q8_0"
                " where no weights are named."
            )
        known = [{"name": p.name, "jit": list(p.jit), "description": DESCRIPTIONS[p.name]} for p in LADDER.values()]
        switches = {name: list(values) for name, values in SWITCHES.items()}
        return {"placements": known, "modifiers": sorted(MODIFIERS), "switches": switches}


@verb("`llama-jax doctor`")
class Doctor:
    """Say what is installed, what answers, how fast memory is, and what to do about each gap."""

    probe: bool = option(True, "Measure the memory bandwidth.")
    json: bool = options.as_json()

    def run(self) -> dict:
        from llama_lab import doctor

        examined = doctor.examine(self.probe)
        for title, value in ({} if self.json else examined).items():
            if isinstance(value, dict):
                known = {name: v for name, v in value.items() if v is not None or title != "kernels"}
                lines = [f"{name:18} {'missing' if v is None else v}" for name, v in known.items()]
                print(f"{title}:", *lines, sep="\n  ")
            elif isinstance(value, list):
                print(f"{title}:" + " nothing" * (not value), *value, sep="\n  ")
            else:
                print(f"{title}: {value}")
        return examined
