"""What the harness itself adds to a decode."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np

from llama_jax import checkpoint
from llama_jax.placement import parse
from llama_lab.bench import protocol, statistics
from llama_lab.bench.workload import Workload


def cost(loaded: checkpoint.Checkpoint, workload: Workload, pairs: int) -> dict:
    """What guard, time stamps and record add to a decode, found in two ways in one run.

    ratio: whole answers with the harness over the same stream read to its end without it, in interleaved pairs. Its
    interval holds the machine's noise too. own_us_per_token: the harness around a subject that answers at once, so that
    nothing else is in the time; share_at_60: that over the 1/60 s which a token takes at 60 tokens/s.
    """
    real = protocol.subject(loaded, parse("step"))
    at_once = dict(run=lambda ids, work: iter(np.zeros((work.new_tokens, 1, work.batch), np.int32)))
    instant, where = replace(real, **at_once, encode=lambda prompt: [1]), dict(run="", block=0, order=0, process=0)

    def bare(prompt: int) -> float:
        start = time.perf_counter()
        for _ in real.run(real.encode(workload.prompts[prompt]), workload):
            pass
        return time.perf_counter() - start

    def harnessed(prompt: int, subject: protocol.Subject = real) -> float:
        start = time.perf_counter()
        protocol.trial(subject, workload, prompt, **where, phase="warm")
        return time.perf_counter() - start

    sides, seconds, own = (harnessed, bare), {harnessed: [], bare: []}, []
    with protocol.alone():
        for i in range(-2, pairs):  # the first two rounds compile and warm up
            for side in sides if i % 2 else sides[::-1]:
                taken = side(i % len(workload.prompts))
                if i >= 0:
                    seconds[side].append(taken)
            own.append(harnessed(i % len(workload.prompts), instant) / workload.new_tokens)
    ratio = statistics.ratio(seconds[harnessed], seconds[bare], workload.seed)
    return dict(
        **{key: getattr(ratio, key) for key in ("value", "low", "high", "n")},
        own_us_per_token=float(np.median(own[2:]) * 1e6),
        share_at_60=float(np.median(own[2:]) * 60),
        placement="step",
        new_tokens=workload.new_tokens,
        harness_s=seconds[harnessed],
        bare_s=seconds[bare],
    )
