"""Which instruction set the kernels are compiled for: the best that this processor has, or the one `LLAMA_JAX_ISA`
names."""

from __future__ import annotations

import os
from dataclasses import dataclass

import llvmlite.binding as llvm

from llama_jax.plumbing.errors import UserError, near

VARIABLE = "LLAMA_JAX_ISA"


@dataclass(frozen=True)
class Target:
    """isa: which code is generated. cpu, features: what LLVM may use for it, in LLVM's names. more: whether it is only
    the fused step of families with features beyond Llama and Qwen2."""

    isa: str
    cpu: str
    features: str
    more: bool = False


AVX2 = ("avx2", "f16c", "fma", "bmi", "bmi2", "lzcnt", "movbe", "popcnt")  # all that LLVM uses of a Haswell
NEEDS = {  # instruction set: what a processor must have for it, any one of the lists; best first
    "avx512vnni": (("avx512vnni", "avx512bw", "avx512vl", "avx512f", "f16c", "fma"),),
    "avx2vnni": (("avxvnni", *AVX2), ("avx512vnni", "avx512vl", *AVX2)),
    "avx2": (AVX2,),
    "portable": ((),),
}
DESCRIPTIONS = {
    "avx512vnni": "AVX-512 with VNNI: 64 products of bytes an instruction",
    "avx2vnni": "AVX2 with VNNI: 32 products of bytes an instruction",
    "avx2": "AVX2: 32 products of bytes in three instructions",
    "portable": "whatever LLVM makes of plain vectors for this processor",
}


def supported(isa: str, features: dict[str, bool]) -> tuple[str, ...] | None:
    """The features by which a processor can run this code; None if it cannot."""
    return next((need for need in NEEDS[isa] if all(features.get(name) for name in need)), None)


def target(features: dict[str, bool] | None = None, cpu: str | None = None, wanted: str | None = None) -> Target:
    """The target for this process. features, cpu, wanted: by default the processor's and the environment variable's.

    Raises UserError for an instruction set that does not exist or that the processor does not have.
    """
    features = dict(llvm.get_host_cpu_features()) if features is None else features
    cpu = llvm.get_host_cpu_name() if cpu is None else cpu
    wanted = os.environ.get(VARIABLE, "") if wanted is None else wanted
    if wanted and wanted not in NEEDS:
        raise UserError(f"{VARIABLE} is {wanted!r}; it must be one of {', '.join(NEEDS)}.{near(wanted, NEEDS)}")
    if wanted and supported(wanted, features) is None:
        missing = [name for name in NEEDS[wanted][0] if not features.get(name)]
        raise UserError(
            f"{VARIABLE} is {wanted!r}, but this processor lacks {', '.join(missing)}; unset it or choose another."
        )
    isa = wanted or next(name for name in NEEDS if supported(name, features) is not None)
    if isa == "avx512vnni" or (isa == "portable" and not wanted):
        return Target(isa, cpu, ",".join(f"{'+' if there else '-'}{name}" for name, there in sorted(features.items())))
    if isa == "portable":  # forced: as on a processor of which nothing is known
        return Target(isa, "generic", "")
    return Target(isa, "haswell", ",".join(f"+{name}" for name in supported(isa, features) or ()))
