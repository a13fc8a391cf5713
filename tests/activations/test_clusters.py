"""The files of docs/clusters: each parsed as its reader parses it, then run, as far as a machine alone can."""

import os
import re
import shlex
import subprocess
import sys

import jsonschema
import pytest
import typer
import yaml

from llama_jax.plumbing import paths
from llama_lab import cli
from llama_lab.activations import jobs
from tests.activations.runs import COMMAND, content

FOLDER = paths.ROOT / "docs" / "clusters"
SCRIPTS = sorted(FOLDER.glob("*.sh"))


def fields(required, **optional):
    """An object with these fields and no others."""
    return dict(type="object", properties=required | optional, required=list(required), additionalProperties=False)


def array(items):
    return dict(type="array", items=items, minItems=1)


TEXT, COUNT = dict(type="string"), dict(type="integer", minimum=1)
SIZES = dict(type="object", additionalProperties=dict(type="string", pattern=r"^\d+(\.\d+)?(m|[KMGT]i?)?$"))
CONTAINER = fields(
    dict(name=TEXT, image=TEXT, command=array(TEXT), args=array(TEXT), env=array(fields(dict(name=TEXT, value=TEXT)))),
    resources=fields(dict(requests=SIZES), limits=SIZES),
    volumeMounts=array(fields(dict(name=TEXT, mountPath=TEXT))),
)
POD = fields(
    dict(restartPolicy=dict(enum=["Never", "OnFailure"]), containers=array(CONTAINER)),
    volumes=array(fields(dict(name=TEXT, persistentVolumeClaim=fields(dict(claimName=TEXT))))),
)
JOB = fields(
    dict(completionMode=dict(const="Indexed"), completions=COUNT, template=fields(dict(spec=POD))),
    parallelism=COUNT,
    backoffLimitPerIndex=COUNT,
)
CLAIM = fields(dict(accessModes=array(dict(enum=["ReadWriteMany"])), resources=fields(dict(requests=SIZES))))
# the part of Kubernetes' own schemas (batch/v1 and v1, strictly) that such a file may use
MANIFESTS = {
    kind: fields(dict(apiVersion=dict(const=version), kind=TEXT, metadata=fields(dict(name=TEXT)), spec=spec))
    for kind, version, spec in (("Job", "batch/v1", JOB), ("PersistentVolumeClaim", "v1", CLAIM))
}


def parsed(words):
    """The options of a `llama-jax extract` line, as the command would take them."""
    verb = typer.main.get_command(cli.program()).commands["extract"]
    return verb.make_context("extract", list(words)).params


def manifests():
    return list(yaml.safe_load_all((FOLDER / "kubernetes.yaml").read_text()))


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_a_script_is_a_script(path):
    assert os.access(path, os.X_OK)
    assert path.read_text().startswith("#!/bin/bash\n")
    assert "set -euo pipefail" in path.read_text()
    assert subprocess.run(["bash", "-n", path], capture_output=True, text=True).stderr == ""


def test_the_directives_come_before_the_first_command_and_are_slurms():
    """sbatch reads no directive after the first line that is no comment."""
    head = (FOLDER / "slurm.sh").read_text().partition("\nset ")[0]
    assert all(line.startswith("#") for line in head.splitlines())
    given = dict(re.findall(r"^#SBATCH --([a-z-]+)=?(\S*)", head, re.M))
    assert given.keys() <= {"job-name", "array", "ntasks", "cpus-per-task", "mem", "time", "requeue", "output"}
    assert given["ntasks"] == "1"  # a task of the array is one process
    first, last = map(int, given["array"].split("-"))
    assert (first, given["requeue"]) == (0, "")
    assert last > 0


@pytest.mark.parametrize("manifest", manifests(), ids=lambda manifest: manifest["kind"])
def test_a_manifest_is_what_kubernetes_takes(manifest):
    jsonschema.validate(manifest, MANIFESTS[manifest["kind"]])


@pytest.mark.parametrize("change", [{"completions": "eight"}, {"parallel": 8}], ids=str)
def test_a_mistake_in_a_manifest_is_found(change):
    job = manifests()[1]
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(job | {"spec": job["spec"] | change}, MANIFESTS["Job"])


def test_each_pod_of_the_job_is_a_shard_of_its_own():
    claim, job = manifests()
    spec, pod = job["spec"], job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert (spec["completionMode"], pod["restartPolicy"]) == ("Indexed", "Never")  # as backoffLimitPerIndex asks for
    environment = {entry["name"]: entry["value"] for entry in container["env"]}
    assert environment == {"JOB_COMPLETIONS": str(spec["completions"])}
    indices = [environment | {"JOB_COMPLETION_INDEX": str(index)} for index in range(spec["completions"])]
    assert [jobs.parse("auto", one)[0] for one in indices] == [(i, spec["completions"]) for i in range(len(indices))]
    (mount,), (volume,) = container["volumeMounts"], pod["volumes"]
    assert mount["name"] == volume["name"]
    assert volume["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
    assert container["command"] == ["llama-jax", "extract"]
    options = parsed(container["args"])
    assert options["shard"] == "auto"
    assert options["out"].startswith(mount["mountPath"] + "/")


def lines(name):
    """The command lines that a file's comments give for itself."""
    return [
        shlex.split(line) for line in re.findall(rf"^# +(?:sbatch )?{name} (.*)$", (FOLDER / name).read_text(), re.M)
    ]


@pytest.mark.parametrize("words", [*lines("slurm.sh"), lines("ray.sh")[2][2:]], ids=" ".join)
def test_what_a_script_passes_on_is_taken(words):
    assert parsed(words)["out"].startswith("/scratch/")


@pytest.mark.slow
def test_the_tasks_of_an_array_write_what_one_process_writes(source, unbroken, tmp_path):
    """In any order, one of them twice, numbered as SLURM numbers them."""
    out = tmp_path / "out"
    words = [*COMMAND[1:], "--source", str(source), "--unit", "4", "--out", str(out)]
    home = os.path.dirname(sys.executable)
    for index in (2, 0, 2, 1):
        task = dict(SLURM_ARRAY_TASK_ID=str(5 + 3 * index), SLURM_ARRAY_TASK_COUNT="3", SLURM_ARRAY_TASK_MIN="5")
        environment = {**os.environ, "PATH": f"{home}:{os.environ['PATH']}", "SLURM_ARRAY_TASK_STEP": "3", **task}
        done = subprocess.run(
            ["bash", FOLDER / "slurm.sh", *words], capture_output=True, text=True, env=environment, timeout=120
        )
        assert done.returncode == 0, done.stderr
    assert content(out) == content(unbroken)
