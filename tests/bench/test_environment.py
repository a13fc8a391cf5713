"""The environment beside a number: containers, GPUs, BLAS, and what else ran, each with a fake that lies."""

import collections
import json
import os
import subprocess
import sys

import jax
import pytest
import threadpoolctl

from llama_lab.bench import environment

V1 = "4:memory:/box\n1:cpu,cpuacct:/box\n0::/\n"
V1_MOUNTS = """31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw
32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu,cpuacct
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory
41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw
"""
V2_MOUNTS = "41 31 0:38 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"


def machine(root, groups, mounts, files):
    """A file tree like a Linux machine's /proc and /sys."""
    for name, text in {"proc/self/cgroup": groups, "proc/self/mountinfo": mounts, **files}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return str(root)


def test_the_environment_is_plain_and_complete():
    found = environment.capture()
    assert json.loads(json.dumps(found)) == found
    assert found["packages"]["jax"] == jax.__version__
    assert found["packages"]["pyarrow"]
    assert found["cores"] >= 1
    assert set(found["limits"]) == {"cpus", "memory_bytes"}
    assert found["git"]["commit"] == "unknown" or len(found["git"]["commit"]) == 40
    assert f"jax {jax.__version__}" in environment.machine_line(found)


def test_the_line_under_a_figure_does_not_change():
    known = {"cpu": "Z80", "cores": 2, "ram_bytes": 24 * 2**30, "packages": {"jax": "0.10.2"}, "python": "3.11.7"}
    line = "Z80, 2 cores, 24 GiB · jax 0.10.2, Python 3.11.7"
    assert environment.machine_line({**known, "watch": {"others_cpu": 0.9}, "gpus": []}) == line
    kernels = known | dict(kernels="avx2")
    assert environment.machine_line(kernels) == line.replace("Z80", "Z80 (AVX2)")
    on_gpus = known | dict(devices=["cuda:H200", "cuda:H200", "cpu:cpu"])
    assert environment.machine_line(on_gpus) == f"H200 · {line}"


def test_settings_are_kept_and_passwords_are_not(monkeypatch):
    kept = ("XLA_FLAGS", "JAX_PLATFORMS_X", "OMP_NUM_THREADS", "NPROC", "TF_XLA_FLAGS")
    for name in (*kept, "TF_TOKEN_app", "TF_VAR_password", "TF_CLI_ARGS"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "/home/somebody")
    # not `capture`, which may be the first to start JAX in this process, with these flags
    found = environment.settings()
    assert found["JAX_COMPILATION_CACHE_DIR"] == "a folder"  # a record is published
    assert {*kept} <= set(found)
    assert not [name for name in found if name.startswith(("TF_TOKEN", "TF_VAR", "TF_CLI"))]


CPU, MEMORY, ALL = "sys/fs/cgroup/cpu/", "sys/fs/cgroup/memory/", "sys/fs/cgroup/"
QUOTA, PERIOD, LIMIT = "cpu.cfs_quota_us", "cpu.cfs_period_us", "memory.limit_in_bytes"
INNER = V1_MOUNTS.replace(" / /sys/fs/cgroup/", " /box /sys/fs/cgroup/")
UNKNOWN = ("unknown", "unknown")


@pytest.mark.parametrize(
    ("groups", "mounts", "files", "expected"),
    [
        (V1, V1_MOUNTS, {f"{CPU}box/{QUOTA}": "150000", f"{CPU}box/{PERIOD}": "100000", f"{MEMORY}box/{LIMIT}": "99"},
         (1.5, 99)),
        (V1, V1_MOUNTS, {f"{CPU}box/{QUOTA}": "-1", f"{CPU}box/{PERIOD}": "100000",
                         f"{MEMORY}box/{LIMIT}": "9223372036854771712"}, (None, None)),
        # in a container the path may be the host's; the files of its own group then lie at the mount
        (V1, V1_MOUNTS, {CPU + QUOTA: "50000", CPU + PERIOD: "100000", MEMORY + LIMIT: "7"}, (0.5, 7)),
        (V1, INNER, {MEMORY + LIMIT: "8", f"{CPU}x": ""}, (None, 8)),
        ("0::/a/b\n", V2_MOUNTS, {f"{ALL}a/b/cpu.max": "max 100000\n", f"{ALL}a/b/memory.max": "max\n"}, (None, None)),
        # the tightest of the groups around the process
        ("0::/a/b\n", V2_MOUNTS, {f"{ALL}a/b/cpu.max": "400000 100000\n", f"{ALL}a/cpu.max": "200000 100000\n",
                                  f"{ALL}a/b/memory.max": "5\n", f"{ALL}a/memory.max": "max\n"}, (2.0, 5)),
        ("0::/a\n", V2_MOUNTS, {f"{ALL}a/cpu.max": "nonsense", f"{ALL}a/memory.max": "many"}, UNKNOWN),
        ("0::/a\n", "", {}, UNKNOWN),
        ("0::/a\n", V2_MOUNTS, {}, UNKNOWN),
        ("", V2_MOUNTS, {f"{ALL}cpu.max": "1 1"}, UNKNOWN),
    ],
)  # fmt: skip
def test_container_limits(tmp_path, groups, mounts, files, expected):
    assert tuple(environment.limits(str(tmp_path / "nothing")).values()) == UNKNOWN
    assert tuple(environment.limits(machine(tmp_path, groups, mounts, files)).values()) == expected


def test_blas_threads_are_those_in_force():
    with threadpoolctl.threadpool_limits(1):
        found = environment.blas_threads()
    assert found
    assert {b["threads"] for b in found} == {1}
    assert set(found[0]) == {"library", "version", "threads"}


LISTED = [{"name": "NVIDIA H200", "driver": "570.1", "memory": "143771 MiB"}]


@pytest.mark.parametrize(
    ("script", "expected"),
    [("echo 'NVIDIA H200, 570.1, 143771 MiB'", LISTED), ("echo 'No devices'", "unknown"), ("exit 9", "unknown"),
     ("true", [])],
)  # fmt: skip
def test_gpus_as_nvidia_smi_says(tmp_path, monkeypatch, script, expected):
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setattr(environment.jax, "devices", list)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert environment.gpus() == expected


def test_a_hanging_nvidia_smi_leaves_what_jax_sees(monkeypatch):
    Device = collections.namedtuple("Device", "platform device_kind")
    monkeypatch.setattr(environment.jax, "devices", lambda: [Device("gpu", "H200"), Device("cpu", "cpu")])
    monkeypatch.setattr(environment.shutil, "which", lambda name: "/bin/nvidia-smi")

    def hang(command, timeout, **options):
        assert timeout <= 10
        raise subprocess.TimeoutExpired(command, timeout)

    monkeypatch.setattr(environment.subprocess, "run", hang)
    assert environment.gpus() == [{"name": "H200", "driver": "unknown", "memory": "unknown"}]
    monkeypatch.setattr(environment.shutil, "which", lambda name: None)
    assert environment.gpus() == [{"name": "H200", "driver": "unknown", "memory": "unknown"}]


def watched(monkeypatch, before, after, own, cores=2, wall=10.0):
    """The result of a Watch over a machine that counts like this."""
    machine, mine, clock = iter((before, after)), iter((1.0, 1.0 + own)), iter((5.0, 5.0 + wall))
    monkeypatch.setattr(environment.psutil, "cpu_times", lambda: next(machine))
    monkeypatch.setattr(environment.psutil, "cpu_count", lambda: cores)
    monkeypatch.setattr(environment, "own_cpu_seconds", lambda: next(mine))
    monkeypatch.setattr(environment.time, "perf_counter", lambda: next(clock))
    monkeypatch.setattr(environment.os, "getloadavg", lambda: (0.5, 0, 0))
    with environment.Watch() as watch:
        pass
    return watch.result


Times = collections.namedtuple("Times", "user nice system idle iowait irq softirq steal")
Mac = collections.namedtuple("Mac", "user nice system idle")


def test_the_watch_sees_others_and_not_oneself(monkeypatch):
    found = watched(monkeypatch, Times(100, 0, 10, 50, 5, 0, 0, 1), Times(108, 1, 13, 54, 6, 0, 0, 3), own=6)
    shares = dict(others_cpu=pytest.approx(0.3), steal=pytest.approx(0.1))
    assert found == dict(load_before=0.5, load_after=0.5, wall_s=10.0, **shares)
    mine = watched(monkeypatch, Times(100, 0, 0, 0, 0, 0, 0, 0), Times(105, 0, 0, 0, 0, 0, 0, 0), own=7)
    assert mine["others_cpu"] == 0.0  # rounding never makes it negative
    nothing = watched(monkeypatch, Times(1, 0, 0, 1, 0, 0, 0, 0), Times(1, 0, 0, 1, 0, 0, 0, 0), own=0, wall=0.0)
    assert nothing["others_cpu"] == 0.0


def test_what_a_machine_does_not_count_is_unknown(monkeypatch):
    sandbox = watched(monkeypatch, Times(*[0] * 8), Times(*[0] * 8), own=3)
    assert (sandbox["others_cpu"], sandbox["steal"]) == ("unknown", "unknown")
    mac = watched(monkeypatch, Mac(0, 0, 0, 9), Mac(4, 0, 0, 9), own=0)
    assert (mac["others_cpu"], mac["steal"]) == (pytest.approx(0.2), "unknown")
    assert environment.busy({"cores": 2, "watch": sandbox}) == ""


def test_the_time_of_children_is_ones_own():
    before = environment.own_cpu_seconds()
    subprocess.run([sys.executable, "-c", "import time\nwhile time.process_time() < 0.4: pass"], check=True)
    assert environment.own_cpu_seconds() - before > 0.35


@pytest.mark.parametrize(
    ("cores", "watch", "phrase"),
    [
        (2, None, ""),
        (2, {}, ""),
        (None, {"load_before": 99}, ""),
        (2, {"others_cpu": 0.1, "steal": 0.05, "load_before": 2.5}, ""),
        (2, {"others_cpu": 0.23, "steal": 0.5, "load_before": 9}, "busy machine: others used 23 % of the CPU"),
        (2, {"others_cpu": 0.0, "steal": 0.07, "load_before": 0}, "busy machine: the hypervisor took 7 % of the CPU"),
        (2, {"steal": "unknown", "load_before": 2.6}, "busy machine: load 2.6 on 2 cores before the start"),
    ],
)
def test_a_busy_machine_is_said_in_one_phrase(cores, watch, phrase):
    assert environment.busy({"cores": cores, "watch": watch}) == phrase


@pytest.mark.parametrize("package", ["llama_jax", "llama_lab"])
def test_the_source_hash_is_the_sources_own(tmp_path, monkeypatch, package):
    monkeypatch.setattr(environment.paths, "ROOT", tmp_path)
    (tmp_path / package / "bench").mkdir(parents=True)
    source = tmp_path / package / "bench" / "a.py"
    source.write_text("x = 1\n")
    first = environment.source_hash()
    assert environment.source_hash() == first
    (tmp_path / package / "notes.txt").write_text("not source")
    assert environment.source_hash() == first
    source.write_text("x = 2\n")
    second = environment.source_hash()
    source.rename(source.with_name("b.py"))
    assert len({first, second, environment.source_hash()}) == 3


def test_unreadable_files_are_unknown(monkeypatch):
    assert environment.read("/no/such/file") == "unknown"
    monkeypatch.setattr(environment, "read", lambda path: "unknown")
    monkeypatch.setattr(environment.platform, "processor", lambda: "")
    assert environment.cpu_model() == "unknown"
    assert environment.peak_rss() > 1 << 20  # getrusage stands in
