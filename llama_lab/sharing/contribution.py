"""A machine's headline as one file for a pull request: trials, their meta, doctor's output, digests.

The file is a table of JSON lines, as `record.read` reads them. Only the fields named here go into it, and `scrub`
removes names, places and addresses from their text.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

from llama_jax import checkpoint
from llama_jax.plumbing import paths
from llama_jax.plumbing.errors import UserError
from llama_lab import doctor, machine
from llama_lab.bench import record
from llama_lab.bench.record import Trial
from llama_lab.bench.seal import sealed, sealed_row
from llama_lab.experiments.headline.measure import NAME as HEADLINE
from llama_lab.sharing import scrub

FOLDER = paths.ROOT / "data" / "machines"
UNRELEASED = "+unreleased"
ENVIRONMENT = ("cpu", "cores", "affinity", "load", "ram_bytes", "limits", "blas", "governor", "devices", "gpus",
               "kernels", "runtime", "os", "python", "packages", "git", "gflops", "watch")  # fmt: skip
SETTINGS = ("XLA_FLAGS", "JAX_PLATFORMS", "JAX_ENABLE_X64", "LLAMA_JAX_ISA", "OMP_NUM_THREADS", "MKL_NUM_THREADS",
            "OPENBLAS_NUM_THREADS", "OMP_PROC_BIND", "TF_CPP_MIN_LOG_LEVEL")  # whose values are shown  # fmt: skip
PARAMETERS = ("model", "seed", "blocks", "processes", "new_tokens", "prompts", "placements", "peers", "baseline")
EXAMINED = ("machine", "packages", "devices", "jax computes", "kernels", "peers", "bandwidth_gbps", "advice")
FREE = ("reason", "cause")  # fields of a row that hold text of a machine's own
VOCABULARY = ("cpu", "devices", "packages", "python", "kernels", "runtime", "git")  # not the owner's words


@dataclass(frozen=True)
class Contribution:
    """about: the meta of the file. rows: its lines. text: the file."""

    about: dict
    rows: tuple[str, ...]

    @property
    def path(self) -> Path:
        return FOLDER / f"{self.about['machine']}-{self.about['version']}.jsonl"

    @property
    def text(self) -> str:
        return "".join(line + "\n" for line in (json.dumps({"meta": self.about}, sort_keys=True), *self.rows))


def version(packages: dict) -> str:
    """The package's version in an environment; `0.1.0+unreleased` where the list of changes has more than it."""
    changes = (paths.ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    first = next(line.removeprefix("## ").strip() for line in changes.splitlines() if line.startswith("## "))
    return f"{packages.get('llama-jax')}{UNRELEASED if first == 'Unreleased' else ''}"


def digest_of(rows: tuple[str, ...]) -> str:
    return hashlib.sha256("".join(line + "\n" for line in rows).encode()).hexdigest()


def build(folder: Path, examined: dict | None = None, features: tuple[str, ...] | None = None) -> Contribution:
    """What the headline in FOLDER/data contributes. examined, features: doctor's output and the processor's features,
    asked of this machine by default.

    Raises UserError if there is no headline, where it is another machine's, or of another model.
    """
    trials, meta = record.read(Path(folder) / "data" / f"{HEADLINE}.csv", as_probed=True)
    environment = meta["environment"]
    if (own := machine.name_of(environment)) != (here := machine.name()) and examined is None:
        raise UserError(f"{folder} was measured on {own}, and this is {here}: contribute it there.")
    if strange := sorted({t.model for t in trials} - {checkpoint.DEFAULT}):
        raise UserError(f"The headline is of {strange[0]}; every machine measures {checkpoint.DEFAULT}: measure again.")
    nameless = [t.model_copy(update={name: scrub.value(getattr(t, name)) for name in FREE}) for t in trials]
    rows = tuple(sealed_row(json.loads(t.model_dump_json())) for t in nameless)
    about = record.describe(
        kind=Trial.__name__,
        measured=meta["created"],
        machine=own,
        version=version(environment["packages"]),
        environment=shown(environment),
        features=list(processor() if features is None else features),
        parameters={k: v for k, v in meta["parameters"].items() if k in PARAMETERS},
        baseline=meta.get("baseline", "step"),
        missing=scrub.value(meta.get("missing", [])),
        doctor=examination(doctor.examine() if examined is None else examined),
        rows=len(rows),
        rows_sha256=digest_of(rows),
    )
    return Contribution(sealed(about), rows)


def shown(environment: dict) -> dict:
    """The published part of an environment. For settings that are not known to be harmless, only that they are set."""
    kept = {k: v if k in VOCABULARY else scrub.value(v) for k, v in environment.items() if k in ENVIRONMENT}
    settings = {k: v if k in SETTINGS else "set" for k, v in environment.get("settings", {}).items()}
    return {**kept, "settings": scrub.value(settings)}


def examination(examined: dict) -> dict:
    """Doctor's output without the paths of weights and programs."""
    kept = {k: v if k in ("packages", "devices") else scrub.value(v) for k, v in examined.items() if k in EXAMINED}
    return {**kept, "machine": {**kept.get("machine", {}), "cpu": examined.get("machine", {}).get("cpu")}}


def processor() -> tuple[str, ...]:
    """Features of this processor that decide the kernels, in LLVM's names; none without kernels."""
    try:
        import llvmlite.binding as llvm

        from llama_jax.kernels import isa
    except ImportError:
        return ()
    here = llvm.get_host_cpu_features()
    decisive = {name for alternatives in isa.NEEDS.values() for needed in alternatives for name in needed}
    return tuple(sorted(name for name in decisive if here.get(name)))
