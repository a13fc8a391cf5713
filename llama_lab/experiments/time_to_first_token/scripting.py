"""What TorchScript takes of a first request, and of those after it until its executor has optimised all it runs."""

from __future__ import annotations

import contextlib
from collections import deque
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from llama_lab.bench.workload import Subject, Workload

if TYPE_CHECKING:
    from llama_lab.peers.torch_script import Spent

# calls of a scripted function that are asked for: one that is profiled, one that is optimised, and two as all the
# later ones are
CALLS = 4


def clocked(subject: Subject) -> AbstractContextManager[Spent | None]:
    """A clock for what TorchScript takes of this process; None for a subject that is not PyTorch's."""
    if subject.backend != "torch":
        return contextlib.nullcontext()
    from llama_lab.peers import torch_script

    return torch_script.clocked()


def until_optimised(subject: Subject, work: Workload, prompt: int, spent: Spent | None) -> dict:
    """The fields of a `Start` that say what TorchScript took. The request is asked again, untimed, until what it
    scripted was called CALLS times; who scripts nothing is not asked."""
    if spent is None:
        return {}
    before = dict(script_ns=spent.script_ns, freeze_ns=spent.freeze_ns)
    for _ in range(CALLS):
        if spent.calls and len(spent.calls_ns) < CALLS:
            deque(subject.run(subject.encode(work.prompts[prompt]), subject.asked(work)), maxlen=0)
    return before | dict(script_calls_ns=spent.calls_ns[:CALLS])
