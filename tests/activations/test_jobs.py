"""Which shard a process is of: what each scheduler sets, and one line for what makes no sense."""

import re

import pytest

from llama_jax.plumbing.errors import UserError
from llama_lab.activations import jobs

SAID = {
    "a SLURM array": (dict(SLURM_ARRAY_TASK_ID="3", SLURM_ARRAY_TASK_COUNT="16"), (3, 16)),
    "one that begins at 1": (
        dict(
            SLURM_ARRAY_TASK_ID="16", SLURM_ARRAY_TASK_COUNT="16", SLURM_ARRAY_TASK_MIN="1", SLURM_ARRAY_TASK_STEP="1"
        ),
        (15, 16),
    ),
    "one with steps": (
        dict(SLURM_ARRAY_TASK_ID="13", SLURM_ARRAY_TASK_COUNT="4", SLURM_ARRAY_TASK_MIN="5", SLURM_ARRAY_TASK_STEP="4"),
        (2, 4),
    ),
    "an array of one": (
        dict(SLURM_ARRAY_TASK_ID="7", SLURM_ARRAY_TASK_COUNT="1", SLURM_ARRAY_TASK_MIN="7", SLURM_ARRAY_TASK_STEP="1"),
        (0, 1),
    ),
    "srun's tasks": (dict(SLURM_PROCID="5", SLURM_STEP_NUM_TASKS="8", SLURM_NTASKS="9"), (5, 8)),
    "srun in an array": (
        dict(SLURM_ARRAY_TASK_ID="2", SLURM_ARRAY_TASK_COUNT="3", SLURM_PROCID="1", SLURM_STEP_NUM_TASKS="4"),
        (9, 12),
    ),
    "an array's batch script": (
        dict(SLURM_ARRAY_TASK_ID="2", SLURM_ARRAY_TASK_COUNT="3", SLURM_PROCID="0", SLURM_NTASKS="4"),
        (2, 3),
    ),
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
    "a gap": (
        dict(SLURM_ARRAY_TASK_ID="7", SLURM_ARRAY_TASK_COUNT="3", SLURM_ARRAY_TASK_MIN="1", SLURM_ARRAY_TASK_STEP="1"),
        "SLURM_ARRAY_TASK_ID is 7, but SLURM_ARRAY_TASK_COUNT is 3 from 1 on by 1",
    ),
    "between steps": (
        dict(SLURM_ARRAY_TASK_ID="6", SLURM_ARRAY_TASK_COUNT="4", SLURM_ARRAY_TASK_MIN="5", SLURM_ARRAY_TASK_STEP="4"),
        "from 5 on by 4",
    ),
    "below the first": (
        dict(SLURM_ARRAY_TASK_ID="0", SLURM_ARRAY_TASK_COUNT="4", SLURM_ARRAY_TASK_MIN="1"),
        "SLURM_ARRAY_TASK_ID is 0",
    ),
    "a rank of nobody knows how many": (dict(SLURM_PROCID="0", SLURM_NTASKS="4"), "but not of how many"),
}


@pytest.mark.parametrize("name", SAID)
def test_auto_is_what_the_scheduler_says(name):
    environment, shard = SAID[name]
    found, whence = jobs.parse("auto", {"HOME": "/", **environment})
    assert found == shard
    assert next(iter(environment)) in whence


@pytest.mark.parametrize("name", WRONG)
def test_what_makes_no_sense_is_one_line(name):
    environment, words = WRONG[name]
    with pytest.raises(UserError, match=re.escape(words)) as caught:
        jobs.parse("auto", environment)
    assert "\n" not in str(caught.value)


def test_all_tasks_together_are_each_shard_once():
    for first, step, count in ((0, 1, 5), (1, 1, 5), (3, 7, 4)):
        found = [
            jobs.parse(
                "auto",
                dict(
                    SLURM_ARRAY_TASK_ID=str(first + step * i),
                    SLURM_ARRAY_TASK_COUNT=str(count),
                    SLURM_ARRAY_TASK_MIN=str(first),
                    SLURM_ARRAY_TASK_STEP=str(step),
                ),
            )[0]
            for i in range(count)
        ]
        assert found == [(i, count) for i in range(count)]


def test_a_shard_is_index_and_count():
    assert jobs.parse("3/16", {}) == ((3, 16), "--shard")
    for text in ("", "3", "3/", "/3", "a/b", "-1/4", "1/4/2", "1.0/4", "1 /4", "٣/٩", "4/4", "0/0", "5/4", "0/9999999"):
        with pytest.raises(UserError, match="^--shard is "):
            jobs.parse(text, {})
