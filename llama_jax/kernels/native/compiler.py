"""Compile all entry points into one object file: `python -m llama_jax.kernels.native.compiler`, the object on standard
output.

It is a separate process because Numba's target is fixed at import, and because Numba and LLVM's optimiser then take no
memory from the process that runs the model.
"""

from __future__ import annotations

import os
import sys

import llvmlite.binding as llvm
from numba import types

ALLOWED = {"malloc", "free", "sched_yield", "memset", "memcpy", "memmove"}  # what the object may ask of the C library
ENTRY = """
define i64 @{name}(i64 %argument) {{
  %result = alloca i64
  %status = call i32 @"{function}"(ptr %result, ptr null, i64 %argument)
  %value = load i64, ptr %result
  ret i64 %value
}}
declare i32 @"{function}"(ptr, ptr, i64)
"""


def entries() -> dict:
    from llama_jax.kernels.native import fused
    from llama_jax.kernels.native.vectors import MORE

    if MORE:
        return fused.ENTRIES
    from llama_jax.kernels.native import gemv, pack  # here: Numba compiles what is imported

    return gemv.ENTRIES | fused.ENTRIES | pack.ENTRIES


def module() -> llvm.ModuleRef:
    """All entry points, optimised, in one LLVM module."""
    functions = entries()
    whole = None
    for name, dispatcher in functions.items():
        compiled = dispatcher.overloads[(types.int64,)]
        part = llvm.parse_assembly(compiled.library.get_llvm_str())
        part.link_in(llvm.parse_assembly(ENTRY.format(name=name, function=compiled.fndesc.llvm_func_name)))
        whole = part if whole is None else whole
        if whole is not part:
            whole.link_in(part)
    whole.verify()
    return optimised(whole, set(functions))


def optimised(whole: llvm.ModuleRef, kept: set[str]) -> llvm.ModuleRef:
    """The module with everything that the entry points need inlined, and nothing else."""
    for function in whole.functions:
        if not function.is_declaration and function.name not in kept:
            function.linkage = "internal"
    builder = llvm.create_pass_builder(machine(), llvm.create_pipeline_tuning_options(speed_level=3))
    builder.getModulePassManager().run(whole, builder)
    return whole


def unresolved(whole: llvm.ModuleRef) -> set[str]:
    """Functions that the object would look for elsewhere, beside those it may."""
    return {f.name for f in whole.functions if f.is_declaration and not f.name.startswith("llvm.")} - ALLOWED


def machine() -> llvm.TargetMachine:
    cpu, features = os.environ["NUMBA_CPU_NAME"], os.environ["NUMBA_CPU_FEATURES"]
    return llvm.Target.from_triple(llvm.get_process_triple()).create_target_machine(
        cpu=cpu, features=features, opt=3, reloc="default", codemodel="jitdefault", jit=True
    )


def main() -> None:
    whole = module()
    if names := unresolved(whole):
        sys.exit(f"the kernels would need {', '.join(sorted(names))} of other libraries")
    sys.stdout.buffer.write(machine().emit_object(whole))


if __name__ == "__main__":
    main()
