"""The operations of a program, counted by kind: as traced, and as compiled."""

from __future__ import annotations

from collections import Counter

from jax.extend import core

from llama_lab.bench import profiling

INSTEAD = ("parameter", "constant", "tuple", "get-tuple-element", "bitcast")  # these compute nothing


def traced(jaxpr) -> Counter[str]:
    """Primitives of a (closed) jaxpr, those of the functions that it calls in their place."""
    counts: Counter[str] = Counter()
    for equation in getattr(jaxpr, "jaxpr", jaxpr).eqns:
        inner = list(core.jaxprs_in_params(equation.params))
        if inner:
            for program in inner:
                counts += traced(program)
        else:
            counts[equation.primitive.name] += 1
    return counts


def compiled(text: str) -> Counter[str]:
    """Instructions of an optimised HLO module that are run, a fusion counting as one."""
    kept = (i.operation for i in profiling.instructions(text) if not i.fused)
    return Counter(operation for operation in kept if operation not in INSTEAD)
