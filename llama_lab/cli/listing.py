"""The verbs `models`, `fetch`, `placements` and `doctor`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import asdict

from llama_jax.plumbing.errors import UserError, near
from llama_jax.plumbing.values import shown
from llama_lab.cli import loading, options
from llama_lab.cli.common import show
from llama_lab.cli.options import argument, flag, option, verb

PLAIN_S = 10.0  # seconds between two progress lines without a terminal


@verb("`llama-jax models`")
class Models:
    """List the models that have a name."""

    json: bool = options.as_json()

    def run(self) -> dict:
        from llama_jax import checkpoint

        known = checkpoint.models()
        if not self.json:
            print(*(f"{name:24} {about}" for name, about in known.items()), sep="\n")
            print("A path to a .gguf file or Hugging Face folder, or a hub id (owner/name), works too.")
        return {"models": [{"name": name, "description": about} for name, about in known.items()]}


@verb("`llama-jax placements`")
class Placements:
    """List the placements and the switches that combine with them."""

    json: bool = options.as_json()

    def run(self) -> dict:
        from llama_jax.placement import DESCRIPTIONS, JIT_PREFIX, LADDER, MODIFIERS, SWITCHES, TREE

        if not self.json:
            for p in LADDER.values():
                print(f"{p.name:12} {DESCRIPTIONS[p.name]:72} jit={', '.join(p.jit) or 'nothing'}")
            print(
                f"\nAppend to any of them: {', '.join('+' + m for m in MODIFIERS)} (such as step+scan+donate);"
                " chunk16 is a chunk of 16, +async8 keeps 8 calls in flight, +lookup4 takes up to 4 drafts per pass.\n"
                "+draft:NAME, or +draft4:NAME, comes last: a smaller model of the same vocabulary proposes the drafts,"
                " such as loop+fused+draft:qwen2.5-coder-0.5b.\n"
                f"Your own: {JIT_PREFIX} and function names joined by dots, such as {JIT_PREFIX}attend.head+donate."
                f" The functions are {', '.join(TREE)}.\n"
                "Weights: +bf16, +gguf (the file's own blocks), +q8_0, +q4_0, +q4_1, +int8 (quantised here). Kernels:"
                " +gemv multiplies by blocks, +fused makes a token in one call; both use the file's own blocks, or q8_0"
                " if the file has none and no weights are named."
            )
        known = [{"name": p.name, "jit": list(p.jit), "description": DESCRIPTIONS[p.name]} for p in LADDER.values()]
        switches = {name: list(values) for name, values in SWITCHES.items()}
        return {"placements": known, "modifiers": sorted([*MODIFIERS, "draft:NAME"]), "switches": switches}


@verb("`llama-jax doctor`")
class Doctor:
    """Say what is installed, which servers answer, how fast memory is, and how to fill each gap."""

    probe: bool = option(True, "Measure the memory bandwidth.")
    json: bool = options.as_json()

    def run(self) -> dict:
        from llama_jax.plumbing import settings

        if trouble := settings.trouble():
            settings.forget()
        from llama_lab import doctor

        examined = doctor.examine(self.probe, trouble)
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


@verb("`llama-jax fetch qwen2.5-coder-0.5b`")
class Fetch:
    """Fetch public models by name into the user's cache, from packages of pip's index. Without a name, list them."""

    names: list[str] | None = argument(None, "Models to fetch; without a name all are listed.", metavar="[NAME]...")
    accept_terms: bool = flag("Accept the terms of the models.")
    json: bool = options.as_json()

    def run(self) -> dict:
        from llama_jax.checkpoint import fetched
        from llama_lab import fetching

        asked = list(dict.fromkeys(map(to_fetch, self.names or ())))
        for name in asked or fetched.WEIGHTS:
            show(described(name), self.json)
        for name in asked:
            if not fetched.is_here(name):
                agree(name, fetched.WEIGHTS[name].terms, self.accept_terms)
        for name in asked:
            with loading.shown("fetching", PLAIN_S):
                show([f"{name} is at {fetching.fetch(name)}; its SHA-256 is right."], self.json)
        return {"models": [facts(name) for name in asked or fetched.WEIGHTS]}


def to_fetch(name: str) -> str:
    """The model that a name means, in any spelling. Raises UserError if there is none."""
    from llama_jax import checkpoint

    if (known := checkpoint.alike(name, checkpoint.WEIGHTS)) is None:
        raise UserError(f"There is no {shown(name)} to fetch.{near(name[:120], checkpoint.WEIGHTS)}")
    return known


def described(name: str) -> Iterator[str]:
    """Lines about a model that can be fetched."""
    from llama_jax.checkpoint import fetched

    weights = fetched.WEIGHTS[name]
    about = f"{name:24} {weights.about}: {weights.bytes:,} bytes, {weights.licence}"
    yield f"{about}; {'is here' if fetched.is_here(name) else 'not here'}"
    yield f"{'':24} SHA-256 {weights.sha256}"
    yield f"{'':24} from {weights.package}1 to -part{len(list(weights.parts()))}, version {weights.version}"


def facts(name: str) -> dict:
    """The same for JSON; `path` is None if the model is not here."""
    from llama_jax.checkpoint import fetched

    about, path = asdict(fetched.WEIGHTS[name]), fetched.place(name) if fetched.is_here(name) else None
    kept = ("about", "licence", "terms", "bytes", "sha256")
    return {"name": name, **{key: about[key] for key in kept}, "path": path}


def agree(name: str, terms: str, accepted: bool) -> None:
    """Show the terms of a model and ask for acceptance. Raises UserError if they are not accepted or nobody can
    answer."""
    if not terms:
        return
    if not accepted and not sys.stdin.isatty():
        raise UserError(f"{name} has terms: {terms} Give --accept-terms to accept them.")
    print(terms, file=sys.stderr)
    if not accepted:
        print(f"Do you accept these terms for {name}? [y/N] ", end="", file=sys.stderr, flush=True)
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            raise UserError(f"{name} is not fetched, because its terms were not accepted. Answer y to accept them.")
