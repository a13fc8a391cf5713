"""Measurement: guard, gate, protocol, phases, statistics, records, environment, roofline."""

from llama_jax.bench import (
    causes,
    checklist,
    compiling,
    costs,
    environment,
    export,
    findings,
    flaxtwin,
    gate,
    guard,
    hostclock,
    hostloop,
    job,
    journal,
    memory,
    phases,
    process,
    protocol,
    recompilation,
    record,
    roofline,
    selftest,
    shapes,
    simulation,
    starts,
    statistics,
    suite,
    summary,
)
from llama_jax.bench.compare import compare
from llama_jax.bench.guard import Guard, TorchGuard
from llama_jax.bench.phases import Plan
from llama_jax.bench.profiling import profile
from llama_jax.bench.protocol import Reference, Subject, Workload, measure, subject
from llama_jax.bench.record import Trial

__all__ = ["Guard", "Plan", "Reference", "Subject", "TorchGuard", "Trial", "Workload", "causes", "checklist", "compare", "compiling",
           "costs", "environment", "export", "findings", "flaxtwin", "gate", "guard", "hostclock", "hostloop", "job", "journal",
           "measure", "memory", "phases", "process", "profile", "protocol", "recompilation", "record", "roofline", "selftest", "shapes",
           "simulation", "starts", "statistics", "subject", "suite", "summary"]  # fmt: skip
