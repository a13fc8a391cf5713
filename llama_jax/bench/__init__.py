"""Measurement: guard, gate, protocol, phases, statistics, records, environment, roofline."""

from llama_jax.bench import (
    checklist,
    compiling,
    costs,
    environment,
    export,
    findings,
    gate,
    guard,
    job,
    journal,
    memory,
    phases,
    process,
    protocol,
    record,
    roofline,
    selftest,
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

__all__ = ["Guard", "Plan", "Reference", "Subject", "TorchGuard", "Trial", "Workload", "checklist", "compare", "compiling",
           "costs", "environment", "export", "findings", "gate", "guard", "job", "journal", "measure", "memory", "phases", "process",
           "profile", "protocol", "record", "roofline",
           "selftest", "simulation", "starts", "statistics", "subject", "suite", "summary"]  # fmt: skip
