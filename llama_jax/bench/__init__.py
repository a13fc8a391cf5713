"""Measurement: guard, gate, protocol, phases, statistics, records, environment, roofline.

A module is imported when it is first asked for: a measuring process, or a machine that has little installed, need not wait for
or have what the others need.
"""

import importlib

SCHEMA = 2  # version of the records
MODULES = (
    "causes",
    "checklist",
    "comparison",
    "compiling",
    "costs",
    "counsel",
    "deadline",
    "environment",
    "export",
    "extraction",
    "findings",
    "flaxtwin",
    "gate",
    "gpu",
    "gpudata",
    "gpudevice",
    "gpujudge",
    "gpusuite",
    "guard",
    "hostclock",
    "hostloop",
    "job",
    "journal",
    "memory",
    "own",
    "passages",
    "phases",
    "precision",
    "process",
    "protocol",
    "quality",
    "recompilation",
    "record",
    "roofline",
    "selftest",
    "shapes",
    "simulation",
    "standings",
    "starts",
    "statistics",
    "suite",
    "summary",
    "ttft",
    "ttft_plan",
    "ttft_table",
    "versus",
    "workload",
    "xlacases",
    "xlacpu",
)
NAMES = {  # name here: the module it comes from
    "Guard": "guard",
    "Plan": "phases",
    "Reference": "protocol",
    "Subject": "workload",
    "TorchCounter": "guard",
    "TorchGuard": "guard",
    "Trial": "record",
    "Workload": "workload",
    "compare": "comparison",
    "measure": "protocol",
    "profile": "profiling",
    "subject": "protocol",
}

__all__ = [*MODULES, *NAMES]


def __getattr__(name: str):
    if name in MODULES:
        return importlib.import_module(f"{__name__}.{name}")
    if name in NAMES:
        return getattr(importlib.import_module(f"{__name__}.{NAMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
