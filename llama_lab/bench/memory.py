"""Memory in three views: what the configuration predicts, what XLA says of its programs, and how many arrays are
alive."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import jax
import jax.extend.backend
import numpy as np

from llama_jax.config import ModelConfig

if TYPE_CHECKING:
    from llama_lab.bench.record import Trial

PREFILL = ("prefill", "extend")  # programs that run a prompt, never a single new token


def predicted(
    config: ModelConfig, weight_itemsize: float, cache_itemsize: float, batch: int, slots: int, policy: str = "fixed"
) -> dict:
    """{weights_bytes, kv_bytes}: all parameters, and the keys and values of every slot of every row.

    A tied embedding counts once. policy: of the KV cache; "none" keeps no keys, "growing" is taken at its full length.
    """
    positions = 0 if policy == "none" else batch * slots
    return dict(
        weights_bytes=round(config.num_parameters * weight_itemsize),
        kv_bytes=round(positions * config.kv_bytes_per_position(cache_itemsize)),
    )


@dataclass(frozen=True)
class Program:
    """A compiled program's buffers in bytes, as XLA says. alias: outputs that overwrite a donated argument."""

    name: str  # the jitted function's
    argument_bytes: int
    output_bytes: int
    temp_bytes: int
    alias_bytes: int
    code_bytes: int  # 0 on CPU, which does not say

    @property
    def need_bytes(self) -> int:
        """What must be there while it runs; XLA's own `peak_memory_in_bytes` leaves the temporaries out on CPU."""
        return self.argument_bytes + self.output_bytes + self.temp_bytes - self.alias_bytes


def executables() -> list:
    """Every executable alive in this process; one lives as long as its jitted function."""
    return jax.extend.backend.get_backend().live_executables()


def name_of(executable) -> str:
    """The jitted function's name: `step` of the module `jit_step`."""
    return executable.hlo_modules()[0].name.removeprefix("jit_")


def analyse(executable) -> Program | None:
    """An executable's sizes; None if this backend does not tell."""
    try:
        sizes = executable.get_compiled_memory_stats()
    except (jax.errors.JaxRuntimeError, NotImplementedError):
        return None
    kinds = ("argument", "output", "temp", "alias", "generated_code")
    return Program(name_of(executable), *(getattr(sizes, f"{kind}_size_in_bytes") for kind in kinds))


def programs() -> list[Program]:
    """All programs alive in this process whose sizes can be read, other subjects' and JAX's own included."""
    return [program for executable in executables() if (program := analyse(executable))]


def decode_program(programs: Iterable[Program], outermost_names: Collection[str]) -> Program | None:
    """The program on the decode path that needs most memory; None when there is none.

    outermost_names: `placement.outermost`. Give it the programs of a process that ran this placement alone. Below
    `step` a prompt goes through the same functions, and the program that needs most may be the prompt's; a growing
    cache has one per length.
    """
    wanted = set(outermost_names) - set(PREFILL)
    return max((p for p in programs if p.name in wanted), key=lambda p: p.need_bytes, default=None)


def live_buffers() -> int:
    """Arrays alive on this process's devices."""
    return len(jax.live_arrays())


def device_peak() -> int | None:
    """Most bytes that were ever in use on the first device; None if it does not count, as on CPU."""
    return (jax.devices()[0].memory_stats() or {}).get("peak_bytes_in_use")


def leak(trials: Sequence[Trial]) -> int | None:
    """Arrays that one subject's trials left behind: 0 when their number is stable, None when no process has two trials.

    In each process, in the order given: the median alive after the last third of the trials (at least one) less that
    after the first third, but no more than the trials themselves added, since other subjects in the process may leak
    too. The largest of all processes.
    """
    known = [t for t in trials if t.live_buffers_after is not None]
    growth = []
    for process in {t.process for t in known}:
        group = [t for t in known if t.process == process]
        after, third = [t.live_buffers_after for t in group], max(1, len(group) // 3)
        added = [t.live_buffers_after - t.live_buffers_before for t in group if t.live_buffers_before is not None]
        grown = np.median(after[-third:]) - np.median(after[:third])
        if len(group) > 1:
            growth.append(max(0, round(min(grown, sum(added)) if added else grown)))
    return max(growth, default=None)
