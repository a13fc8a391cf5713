"""A process's shard according to its scheduler: one task of an array, one pod of a job, one rank of either.

Sources: https://slurm.schedmd.com/sbatch.html and srun.html, output environment variables;
https://kubernetes.io/docs/concepts/workloads/controllers/job/#completion-mode;
https://docs.aws.amazon.com/batch/latest/userguide/job_env_vars.html;
https://cloud.google.com/run/docs/container-contract#jobs-env-vars
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import NamedTuple

from llama_jax.plumbing.boundary import shown
from llama_jax.plumbing.errors import UserError

LARGEST = 10**6  # processes


class Variables(NamedTuple):
    """Names in the environment: of a process's number, of how many there are, of the first number and their step."""

    index: str
    count: str
    first: str = ""
    step: str = ""


SLURM = "SLURM_ARRAY_TASK"
TASKS = (
    Variables(f"{SLURM}_ID", f"{SLURM}_COUNT", first=f"{SLURM}_MIN", step=f"{SLURM}_STEP"),
    Variables("JOB_COMPLETION_INDEX", "JOB_COMPLETIONS"),  # Kubernetes has no name for the count: the manifest sets it
    Variables("AWS_BATCH_JOB_ARRAY_INDEX", "AWS_BATCH_JOB_ARRAY_SIZE"),
    Variables("CLOUD_RUN_TASK_INDEX", "CLOUD_RUN_TASK_COUNT"),
    Variables("BATCH_TASK_INDEX", "BATCH_TASK_COUNT"),  # Google Batch
)
RANKS = (  # of a task that starts several processes
    Variables("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
    Variables("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    Variables("PMI_RANK", "PMI_SIZE"),
)


def parse(text: str, environment: Mapping[str, str] = os.environ) -> tuple[tuple[int, int], str]:
    """((index, count), whence) of `--shard`: `3/16`, or `auto`. Raises UserError for anything else, and where the
    scheduler's variables are missing or contradict each other."""
    if text == "auto":
        return detected(environment)
    if not (match := re.fullmatch(r"(\d{1,7})/(\d{1,7})", text, re.ASCII)):
        raise UserError(f"--shard is {shown(text)}; write INDEX/COUNT, such as 0/16, or auto.")
    index, count = int(match[1]), int(match[2])
    if not 0 <= index < count <= LARGEST:
        raise UserError(f"--shard is {text}; the index goes from 0 on and below the count, of at most {LARGEST:,}.")
    return (index, count), "--shard"


def detected(environment: Mapping[str, str]) -> tuple[tuple[int, int], str]:
    """The shard in the schedulers' variables: of a task, of a rank, or of a rank within a task."""
    present = [next((v for v in kind if v.index in environment), None) for kind in (TASKS, RANKS)]
    if present == [None, None]:
        raise UserError(
            "--shard auto finds no scheduler here (SLURM, Kubernetes, AWS Batch, Cloud Run, Google Batch, MPI); say"
            " which shard this is, such as --shard 0/16."
        )
    # srun gives every process a number, and a step of a single one is no division
    index, count, names = 0, 1, []
    for variables in filter(None, present):
        if variables in RANKS and variables.count not in environment:
            continue
        inner, size = place(variables, environment)
        index, count = index * size + inner, count * size
        names.append(variables.index)
    if not names:
        raise UserError("--shard auto finds a rank here, but not of how many; say which shard this is, such as 0/16.")
    return (index, count), " and ".join(names)


def place(variables: Variables, environment: Mapping[str, str]) -> tuple[int, int]:
    """(index from 0, count) of one scheduler. Raises UserError if its variables make no sense."""
    index, count = number(variables.index, environment), number(variables.count, environment)
    first = number(variables.first, environment) if variables.first in environment else 0
    step = number(variables.step, environment) if variables.step in environment else 1
    steps, rest = divmod(index - first, step or 1)
    if rest or not 0 <= steps < count:
        by = f" from {first} on by {step}" if variables.first else " from 0 on"
        raise UserError(
            f"{variables.index} is {index}, but {variables.count} is {count}{by}: number the tasks without a gap, or"
            " say which shard this is, such as --shard 0/16."
        )
    return steps, count


def number(name: str, environment: Mapping[str, str]) -> int:
    if name not in environment:
        raise UserError(f"--shard auto needs {name} as well: set it to the number of processes, or give --shard 0/16.")
    if not re.fullmatch(r"\d{1,7}", environment[name], re.ASCII):
        raise UserError(f"{name} is {shown(environment[name])}, which is not a task number.")
    return int(environment[name])
