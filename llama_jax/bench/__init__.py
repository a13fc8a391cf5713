"""Measurement: guard, gate, protocol, statistics, records, environment, roofline."""

from llama_jax.bench import cold, environment, findings, gate, guard, protocol, record, roofline, statistics, suite, summary
from llama_jax.bench.guard import Guard
from llama_jax.bench.protocol import Reference, Subject, Workload, measure, subject
from llama_jax.bench.record import Trial

__all__ = ["Guard", "Reference", "Subject", "Trial", "Workload", "cold", "environment", "findings", "gate", "guard", "measure", "protocol",
           "record", "roofline", "statistics", "subject", "suite", "summary"]  # fmt: skip
