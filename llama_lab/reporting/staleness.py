"""Which recorded tables are older than the code that their times depend on.

A headline is what the first lines of README and report rest on: every table of a notebook whose metadata say
`headline`, and the table that `make figures` measures.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from llama_jax.plumbing import boundary, files, paths
from llama_jax.plumbing.boundary import Declared
from llama_jax.plumbing.errors import UserError
from llama_lab.bench import provenance, record
from llama_lab.bench.seal import sealed
from llama_lab.experiments.headline.measure import NAME
from llama_lab.peers import PEERS
from llama_lab.reporting import evidence, notebooks, overview

EVIDENCE = Path("out") / "evidence.json"
SERVER = "llama_lab.serve."
GATHER = "`llama-jax stale --evidence BEFORE` gathers it, BEFORE the commit from before the refactoring."


@dataclass(frozen=True)
class Table:
    """changed: modules that have changed since it was recorded, none if it is current; None if its meta does not name
    its code."""

    name: str
    headline: bool
    changed: list[str] | None

    @property
    def wrong(self) -> bool:
        """Whether it is a headline that is known to be stale."""
        return self.headline and bool(self.changed)


def tables(home: Path) -> list[Table]:
    """All recorded tables in HOME/data, in their notebooks' reading order."""
    main, names = [NAME, *notebooks.saying("headline")], [NAME, *(source.stem for source in notebooks.sources())]
    known = [(name, path) for name in names for path in overview.tables(home / "data", name)]
    return [Table(path.stem, name in main, provenance.changed(record.read_meta(path))) for name, path in known]


def lines(known: Sequence[Table]) -> list[str]:
    """One line per stale table, one for all those of unknown code, and one with the number of current tables."""
    stale = [
        f"{t.name}{' (headline)' * t.headline}: recorded with older code: {some(t.changed)}" for t in known if t.changed
    ]
    unknown = [t.name for t in known if t.changed is None]
    count = f"recorded before code was hashed, {len(unknown)} of {len(known)} tables: {', '.join(unknown)}"
    current = f"{sum(t.changed == [] for t in known)} of {len(known)} tables are of today's code"
    return [*stale, *[count] * bool(unknown), current]


def some(names: Sequence[str], most: int = 6) -> str:
    rest = len(names) - most
    return ", ".join(names[:most]) + (f" and {rest} more" if rest > 0 else "")


# After a refactoring --------------------------------------------------------------------------------------------------


class Timed(Declared):
    """Seconds now over seconds before, and how far before is from itself, both as ratios."""

    ratio: float
    spread: float


class Evidence(Declared):
    """What `evidence.gather` gives. moved: kernels and other modifiers with other times. by_time: programs with
    kernels that differ. current: the tables that are of the code of before."""

    before: str
    now: str
    moved: list[str]
    programs: int
    differing: list[str]
    by_time: list[str]
    times: dict[str, Timed]
    current: list[str]

    @property
    def failure(self) -> str:
        """What speaks against it, but for what tables of kernels and servers depend on alone; "" if it holds."""
        others = [name for name in self.differing if not name.startswith(evidence.SLOTS)]
        slower = [
            f"{name} takes {t.ratio} of its time (±{t.spread})"
            for name, t in self.times.items()
            if evidence.is_moved(t.ratio, t.spread) and not evidence.KERNELS.search(name)
        ]
        return "; ".join([f"other programs for {some(others)}"] * bool(others) + slower)

    @property
    def serves_otherwise(self) -> bool:
        """Whether a server's programs changed."""
        return any(name.startswith(evidence.SLOTS) for name in (*self.differing, *self.by_time))


def gather(before: str, tell: Callable[[str], None]) -> Evidence:
    """Compare this commit with an earlier one, and keep the result. Raises UserError as `evidence.gather`."""
    gathered = evidence.gather(paths.ROOT, before, tell)
    files.write(paths.ROOT / EVIDENCE, json.dumps(gathered, indent=1) + "\n")
    return boundary.read(Evidence, gathered, str(EVIDENCE))


def changed_since(then: str, now: str) -> list[str]:
    """Files with code of a table that differ between two commits. Raises UserError for an earlier one that is unknown
    here."""
    try:
        changed = evidence.git(paths.ROOT, "diff", "--name-only", then, now, "--", "*.py").splitlines()
    except UserError:
        raise UserError(f"The evidence is for commit {then[:10]}, which is unknown here: {GATHER}") from None
    everyone = dict(peers=[*PEERS])  # a table's parameters name some of them
    tables = [provenance.recorded_now(table, everyone) for table in provenance.declared().tables]
    timed = {name for table in tables for name in table["modules"]}
    module = {name: name.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for name in changed}
    return [name for name in changed if module[name] in timed]


def restamp(home: Path, why: str) -> list[str]:
    """Mark the tables in HOME/data that were current before a refactoring as current again, and return their names.
    Their rows stay; their meta keeps the reason, both commits and the evidence. Tables with a row of something that
    `moved`, a modifier (`+gemv`) or a sampler's setting (`top-k 50`), are left alone.

    Raises UserError without a reason, for a tree with changes, for evidence that is missing, of other code or
    contrary, and for a table whose roots `code.toml` does not declare; then nothing is stamped.
    """
    if not why.strip():
        raise UserError("--restamp needs a reason: what was changed, and why no time can depend on it.")
    now = evidence.clean_commit(paths.ROOT)
    try:
        known = boundary.read(Evidence, boundary.load(paths.ROOT / EVIDENCE), str(EVIDENCE), GATHER)
    except FileNotFoundError:
        raise UserError(f"There is no evidence in {EVIDENCE}: {GATHER}") from None
    if changed := changed_since(known.now, now):
        raise UserError(f"The evidence is for commit {known.now[:10]}; {some(changed)} changed since then: {GATHER}")
    if known.failure:
        raise UserError(
            f"The evidence speaks against it: {known.failure}. Record the tables again, or undo the change."
        )
    kept = known.model_dump(include={"moved", "programs", "by_time", "times"})
    stamp, stamped = dict(why=why.strip(), before=known.before, now=now, evidence=kept), {}
    for name in [table.name for table in tables(home) if table.changed and table.name in known.current]:
        text = (home / "data" / f"{name}.csv").read_text()
        if any(re.search(rf"\+{part}\b|\b{part} [0-9]", text) for part in known.moved):
            continue
        about = record.read_meta(home / "data" / f"{name}.csv")
        code = provenance.recorded_now(name, about["parameters"])
        if code is None:
            raise UserError(f"{name} has no roots in llama_lab/bench/code.toml: declare them there, under [tables].")
        if known.serves_otherwise and any(module.startswith(SERVER) for module in code["modules"]):
            continue
        about["code"] = {**code, "restamped": [*about["code"].get("restamped", ()), stamp]}
        stamped[name] = json.dumps(sealed(about), indent=1, sort_keys=True) + "\n"
    files.write_together({record.meta_path(home / "data" / f"{name}.csv"): text for name, text in stamped.items()})
    return list(stamped)
