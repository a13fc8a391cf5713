"""Which shard a process is of: what each scheduler sets, and one line for what makes no sense."""

import pytest

from llama_lab.activations import jobs
from tests.activations.stores import says


def slurm(index, count, first=None, step=None, **more):
    """An array's variables."""
    values = dict(ID=index, COUNT=count, MIN=first, STEP=step)
    return {f"SLURM_ARRAY_TASK_{name}": str(n) for name, n in values.items() if n is not None} | more


SAID = {
    "a SLURM array": (slurm(3, 16), (3, 16)),
    "one that begins at 1": (slurm(16, 16, 1, 1), (15, 16)),
    "one with steps": (slurm(13, 4, 5, 4), (2, 4)),
    "an array of one": (slurm(7, 1, 7, 1), (0, 1)),
    "srun's tasks": (dict(SLURM_PROCID="5", SLURM_STEP_NUM_TASKS="8", SLURM_NTASKS="9"), (5, 8)),
    "srun in an array": (slurm(2, 3, SLURM_PROCID="1", SLURM_STEP_NUM_TASKS="4"), (9, 12)),
    "an array's batch script": (slurm(2, 3, SLURM_PROCID="0", SLURM_NTASKS="4"), (2, 3)),
    "Kubernetes": (dict(JOB_COMPLETION_INDEX="0", JOB_COMPLETIONS="2"), (0, 2)),
    "AWS Batch": (dict(AWS_BATCH_JOB_ARRAY_INDEX="9", AWS_BATCH_JOB_ARRAY_SIZE="10"), (9, 10)),
    "Cloud Run": (dict(CLOUD_RUN_TASK_INDEX="1", CLOUD_RUN_TASK_COUNT="2"), (1, 2)),
    "Google Batch": (dict(BATCH_TASK_INDEX="1", BATCH_TASK_COUNT="2"), (1, 2)),
    "Open MPI": (dict(OMPI_COMM_WORLD_RANK="1", OMPI_COMM_WORLD_SIZE="2"), (1, 2)),
    "MPICH": (dict(PMI_RANK="1", PMI_SIZE="2"), (1, 2)),
}
WRONG = {
    "nobody": ({}, "auto finds no scheduler here"),
    "no count": (dict(JOB_COMPLETION_INDEX="0"), "needs JOB_COMPLETIONS as well"),
    "no number": (dict(JOB_COMPLETION_INDEX="x", JOB_COMPLETIONS="2"), "JOB_COMPLETION_INDEX is 'x'"),
    "negative": (dict(JOB_COMPLETION_INDEX="-1", JOB_COMPLETIONS="2"), "JOB_COMPLETION_INDEX is '-1'"),
    "other digits": (dict(JOB_COMPLETION_INDEX="٣", JOB_COMPLETIONS="9"), "JOB_COMPLETION_INDEX is"),
    "empty": (dict(JOB_COMPLETION_INDEX="0", JOB_COMPLETIONS=""), "JOB_COMPLETIONS is ''"),
    "beyond": (
        dict(JOB_COMPLETION_INDEX="2", JOB_COMPLETIONS="2"),
        "JOB_COMPLETION_INDEX is 2, but JOB_COMPLETIONS is 2",
    ),
    "none of them": (dict(JOB_COMPLETION_INDEX="0", JOB_COMPLETIONS="0"), "but JOB_COMPLETIONS is 0"),
    "a gap": (slurm(7, 3, 1, 1), "SLURM_ARRAY_TASK_ID is 7, but SLURM_ARRAY_TASK_COUNT is 3 from 1 on by 1"),
    "between steps": (slurm(6, 4, 5, 4), "from 5 on by 4"),
    "below the first": (slurm(0, 4, 1), "SLURM_ARRAY_TASK_ID is 0"),
    "a rank of nobody knows how many": (dict(SLURM_PROCID="0", SLURM_NTASKS="4"), "but not of how many"),
}


@pytest.mark.parametrize("name", SAID)
def test_auto_is_what_the_scheduler_says(name):
    environment, shard = SAID[name]
    found, whence = jobs.parse("auto", {"HOME": "/", **environment})
    assert found == shard
    assert next(iter(environment)) in whence


def test_what_makes_no_sense_is_one_line():
    for environment, words in WRONG.values():
        with says(words):
            jobs.parse("auto", environment)
    for text in ("", "3", "3/", "/3", "a/b", "-1/4", "1/4/2", "1.0/4", "1 /4", "٣/٩", "4/4", "0/0", "5/4", "0/9999999"):
        with says("--shard is "):
            jobs.parse(text, {})
    assert jobs.parse("3/16", {}) == ((3, 16), "--shard")


@pytest.mark.parametrize(("first", "step", "count"), [(0, 1, 5), (1, 1, 5), (3, 7, 4)])
def test_all_tasks_together_are_each_shard_once(first, step, count):
    tasks = [slurm(first + step * i, count, first, step) for i in range(count)]
    assert [jobs.parse("auto", task)[0] for task in tasks] == [(i, count) for i in range(count)]
