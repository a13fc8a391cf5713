"""The machine, the software, the settings, and what else was running: everything needed to repeat a number."""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import resource
import shutil
import subprocess
import time
from importlib import metadata
from pathlib import Path

import jax

from llama_jax import kernels
from llama_jax.plumbing import paths, runtime
from llama_jax.plumbing.settings import start
from llama_lab.bench import options

try:
    import psutil
    import threadpoolctl
except ImportError:  # a machine that has only what the GPU suite needs; what these two tell is "unknown" there
    psutil = threadpoolctl = None

PACKAGES = (
    "jax", "jaxlib", "numpy", "scipy", "torch", "transformers", "gguf", "tokenizers", "numba", "llvmlite", "flax",
    "pyarrow", "pandas", "llama-cpp-python", "ik-llama-cpp-python", "openvino-genai", "ollama", "llama-jax",
)  # fmt: skip
SOURCES = ("llama_jax", "llama_lab", "notebooks", "requirements.txt", "pyproject.toml")
PREFIXES = ("LLAMA_JAX_ISA", "XLA_", "JAX_", "OMP_", "MKL_", "OPENBLAS_", "TF_", "NPROC", "CUDA_VISIBLE_DEVICES",
            "NVIDIA_TF32_OVERRIDE")  # fmt: skip
TERRAFORM = ("TF_CLI_", "TF_TOKEN_", "TF_VAR_")  # not TensorFlow's, and may hold passwords; a record is published
NO_LIMIT = 1 << 60  # cgroup v1 writes a number of this order where memory has no limit
GPU_PLATFORMS = ("gpu", "cuda", "rocm")
BUSY_OTHERS, BUSY_STEAL, BUSY_LOAD = 0.10, 0.05, 1.25  # shares of the CPU time; load a core before the start
INSTRUCTIONS = {"avx512vnni": "AVX-512 VNNI", "avx2vnni": "AVX2 VNNI", "avx2": "AVX2"}  # by the name of kernels


def capture() -> dict:
    """The environment as plain JSON values. What cannot be read is "unknown". Raises UserError if JAX does not start
    in it."""
    start()
    return {
        "cpu": cpu_model(),
        "cores": os.cpu_count(),
        "affinity": sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else "unknown",
        "load": list(os.getloadavg()),
        "ram_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "limits": limits(),
        "blas": blas_threads(),
        "governor": read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        "devices": [f"{d.platform}:{d.device_kind}" for d in jax.devices()],
        "gpus": gpus(),
        "kernels": kernels.status()["isa"] or "none",
        "runtime": runtime.examine(),
        "os": platform.platform(),
        "python": platform.python_version(),
        "packages": {name: version(name) for name in PACKAGES},
        "settings": settings(),
        "git": git_state(),
    }


def cpu_model() -> str:
    for line in read("/proc/cpuinfo").splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor() or "unknown"


def peak_rss() -> int:
    """Peak resident memory of this process in bytes.

    Linux's `ru_maxrss` survives exec and so may be the parent's; VmHWM is this program's own.
    """
    for line in read("/proc/self/status").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    scale = 1 if platform.system() == "Darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * scale


def read(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return "unknown"


def version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def git_state() -> dict:
    """Commit of the source tree and whether code in it differs from that commit (data and figures do not count)."""
    git = ["git", "-C", str(paths.ROOT)]
    try:
        return {"commit": output(*git, "rev-parse", "HEAD").strip(),
                "dirty": bool(output(*git, "status", "--porcelain", "--", *SOURCES).strip())}  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return {"commit": "unknown", "dirty": "unknown"}


def output(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout


def settings() -> dict[str, str]:
    """Environment variables of XLA, JAX and the numeric libraries (for folders only that they are set), and options of
    JAX that something else has changed."""
    known = {k: v for k, v in sorted(os.environ.items()) if k.startswith(PREFIXES) and not k.startswith(TERRAFORM)}
    return {k: "a folder" if k.endswith("_DIR") else v for k, v in known.items()} | options.changed()


def blas_threads() -> list[dict] | str:
    """{library, version, threads} of each BLAS and OpenMP that this process has loaded."""
    if threadpoolctl is None:
        return "unknown"
    return [
        dict(library=pool["internal_api"], version=pool["version"] or "unknown", threads=pool["num_threads"])
        for pool in threadpoolctl.threadpool_info()
    ]


def gpus() -> list[dict] | str:
    """{name, driver, memory} of each GPU: as nvidia-smi lists them, else those JAX sees. "unknown": nvidia-smi is there
    but fails."""
    seen = [dict(name=d.device_kind, driver="unknown", memory="unknown") for d in jax.devices() if d.platform == "gpu"]
    if not (program := shutil.which("nvidia-smi")):
        return seen
    try:
        listed = output(program, "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader")
        rows = [map(str.strip, line.rsplit(",", 2)) for line in listed.splitlines() if line.strip()]
        return [dict(zip(("name", "driver", "memory"), row, strict=True)) for row in rows]
    except (OSError, subprocess.SubprocessError, ValueError):
        return seen or "unknown"


def limits(root: str = "/") -> dict:
    """What the container allows, by cgroup v2 or v1: {cpus, memory_bytes}, each a number, None if it sets no limit,
    or "unknown" where its files do not say. root: the folder in which /proc and /sys are."""
    tightest: dict[str, float | str | None] = {}
    for name, controller, limit in (("cpus", "cpu", cpu_limit), ("memory_bytes", "memory", memory_limit)):
        try:
            around = [limit(folder) for folder in control_groups(controller, Path(root))]
            tightest[name] = min((value for value in around if value is not None), default=None)
        except (OSError, ValueError, LookupError):
            tightest[name] = "unknown"
    return tightest


def control_groups(controller: str, root: Path) -> list[Path]:
    """Folders of this process's control group, innermost first. Raises LookupError if there is none."""
    lines = (root / "proc/self/cgroup").read_text().splitlines()
    own = {names: path for _, names, path in (line.split(":", 2) for line in lines)}
    names = next((names for names in own if controller in names.split(",")), "")  # version 2 names no controllers
    for line in (root / "proc/self/mountinfo").read_text().splitlines():
        mount, _, kind = line.partition(" - ")
        kind, _, options = kind.split(" ", 2)
        if kind == ("cgroup" if names else "cgroup2") and (not names or controller in options.split(",")):
            inside, at = mount.split()[3:5]
            top = root / at.lstrip("/")
            folder = top / own[names].removeprefix(inside.rstrip("/")).lstrip("/")
            around = [each for each in (folder, *folder.parents) if each.is_relative_to(top) and each.is_dir()]
            if around:
                return around
    raise LookupError(controller)


def cpu_limit(folder: Path) -> float | None:
    """CPUs that a control group may use."""
    if (both := folder / "cpu.max").exists():
        quota, period = both.read_text().split()
    elif (folder / "cpu.cfs_quota_us").exists():
        quota, period = ((folder / f"cpu.cfs_{part}_us").read_text().strip() for part in ("quota", "period"))
    else:
        return None
    return None if quota in ("max", "-1") else int(quota) / int(period)


def memory_limit(folder: Path) -> int | None:
    """Bytes that a control group may use."""
    files = [folder / name for name in ("memory.max", "memory.limit_in_bytes") if (folder / name).exists()]
    text = files[0].read_text().strip() if files else "max"
    return None if text == "max" or int(text) >= NO_LIMIT else int(text)


class Watch:
    """`with Watch() as watch: ...`, then `watch.result`: what else the machine did during the block, as plain values.

    {load_before, load_after: 1-minute load averages; others_cpu: share of the machine's CPU time that went to programs
    other than this process and its children, 0 to 1; steal: share the hypervisor took; wall_s}. The system counts in
    steps of 10 ms, so the shares of a region well below a second mean little.
    """

    def __enter__(self) -> Watch:
        self.result: dict = {}
        self.before = os.getloadavg()[0], psutil.cpu_times(), own_cpu_seconds(), time.perf_counter()
        return self

    def __exit__(self, *exception) -> None:
        load, machine_before, own_before, start = self.before
        wall = time.perf_counter() - start
        own = own_cpu_seconds() - own_before
        machine = psutil.cpu_times()
        spent = {kind: value - getattr(machine_before, kind) for kind, value in machine._asdict().items()}
        known = any(machine)  # some sandboxes show a machine that never does anything
        room = max(wall, 1e-9) * (psutil.cpu_count() or 1)
        busy = sum(spent.get(kind, 0.0) for kind in ("user", "nice", "system", "irq", "softirq"))
        self.result = dict(
            load_before=load,
            load_after=os.getloadavg()[0],
            others_cpu=min(1.0, max(0.0, busy - own) / room) if known else "unknown",
            steal=min(1.0, max(0.0, spent["steal"]) / room) if known and "steal" in spent else "unknown",
            wall_s=wall,
        )


def own_cpu_seconds() -> float:
    """CPU time of this process and of its children, those that have ended and were waited for included."""
    total, me = 0.0, psutil.Process()
    for process in (me, *me.children(recursive=True)):
        with contextlib.suppress(psutil.Error):  # it ended in between; its parent's figures hold its time
            total += sum(process.cpu_times()[:4])  # user and system, its own and its ended children's
    return total


def busy(environment: dict) -> str:
    """One phrase if other work may have disturbed a measurement, by `environment["watch"]`; otherwise ""."""
    watch, cores = environment.get("watch") or {}, environment.get("cores")
    values = (watch.get(key) for key in ("others_cpu", "steal", "load_before"))
    others, steal, load = (value if isinstance(value, int | float) else 0 for value in values)
    if others > BUSY_OTHERS:
        return f"busy machine: others used {100 * others:.0f} % of the CPU"
    if steal > BUSY_STEAL:
        return f"busy machine: the hypervisor took {100 * steal:.0f} % of the CPU"
    if isinstance(cores, int) and load > BUSY_LOAD * cores:
        return f"busy machine: load {load:.1f} on {cores} cores before the start"
    return ""


def source_hash() -> str:
    """SHA-256 of both packages' source, every file with its path."""
    digest, home = hashlib.sha256(), paths.ROOT
    for path in sorted(path for package in ("llama_jax", "llama_lab") for path in (home / package).rglob("*.py")):
        digest.update(f"{path.relative_to(home).as_posix()}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()


def processor(environment: dict) -> str:
    """A processor with the instructions that kernels use on it, since processors of one name differ in them."""
    has = INSTRUCTIONS.get(environment.get("kernels"))
    return f"{environment['cpu']} ({has})" if has else environment["cpu"]


def machine_line(environment: dict) -> str:
    """The line under every figure: where the numbers come from. A GPU is named where JAX ran on one."""
    devices = [device.partition(":") for device in environment.get("devices", [])]
    gpus = dict.fromkeys(name for platform, _, name in devices if platform in GPU_PLATFORMS)
    cores = environment["cores"]
    gib = environment["ram_bytes"] / 2**30
    software = f"jax {environment['packages']['jax']}, Python {environment['python']}"
    machine = f"{processor(environment)}, {cores} cores, {gib:.0f} GiB"
    return " · ".join(filter(None, [*gpus, machine, software, runtime.complaint(environment.get("runtime", {}))]))
