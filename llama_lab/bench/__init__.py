"""Measurement: guard, gate, protocol, phases, statistics, records, environment, roofline.

A module is imported on first use, so a measuring process, or a machine with little installed, does not need the
dependencies of the others.
"""

import importlib

AGAIN = " (again)"  # suffix of the baseline's second appearance
SAMPLED = ", sampled"  # suffix of a placement under a plan's sampler
WRONG, DIED = "wrong: ", "its process died: "  # how the reasons of void rows begin; ask `Row.wrong` and `Row.died`

COMPILED = "compiled in the timed region"  # how the guard's begin

SCHEMA = 2  # version of the records
NAMES = {  # name here: the module it comes from
    "Guard": "guard",
    "Plan": "phases",
    "Reference": "gate",
    "Subject": "workload",
    "TorchCounter": "guard",
    "TorchGuard": "guard",
    "Trial": "record",
    "Workload": "workload",
    "measure": "protocol",
    "profile": "profiling",
    "subject": "protocol",
}

__all__ = [*NAMES]


def __getattr__(name: str):
    if name in NAMES:
        return getattr(importlib.import_module(f"{__name__}.{NAMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
