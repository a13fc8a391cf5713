"""The runner of notebooks: it checks parameters, executes each in its own process, checks artifacts, and prints one
line of finding.

A notebook's metadata (`llama_jax`) name its artifacts and what the `full` profile changes; the parameter cell holds the
`quick` values. `last` means that it summarises the others, `needs` is a table that it cannot draw without. For the
report: `headline` and `in_readme` for its finding, `advice` for a table that placements are advised by, `first_tokens`
for a table of first tokens, `no_subjects` if nothing is timed side by side, and in `rows` its own kinds of row,
`module:Class` each. Its number is its place in the reading order: the core first, then an appendix.
"""

from __future__ import annotations

import ast
import contextlib
import itertools
import subprocess
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from llama_jax.plumbing import paths, settings
from llama_jax.plumbing.errors import UserError, near
from llama_lab import machine
from llama_lab.bench import notebook, recorded
from llama_lab.reporting import execution
from llama_lab.reporting.ipynb import PROFILES, about, read, read_finding

FOLDER = paths.ROOT / "notebooks"
CORE = "09"  # the number of the core's last
FORMER = 0, 16, 3, 4, 5, 6, 8, 17, 18, 10, 19, 9, 7, 2, 1, 11, 13, 14, 15, 12  # what 00, 01, 02 … were numbered before
AT_ONCE = 3  # notebooks that are drawn side by side
LIMIT_S = {"quick": 1200, "full": 7200}  # for a whole notebook


@dataclass(frozen=True)
class Result:
    """The outcome of one notebook."""

    name: str
    ok: bool
    seconds: float
    artifacts: list[str]
    finding: str
    error: str

    @property
    def line(self) -> str:
        """`02-jit-placement: ok in 12.3 s.`, and what it found or why it failed."""
        return f"{self.name}: {'ok' if self.ok else 'FAILED'} in {self.seconds} s. {self.error or self.finding}"


def sources() -> list[Path]:
    """All notebooks in reading order; none outside a clone of the repository."""
    return sorted(FOLDER.glob("[0-9][0-9]-*.ipynb"))


def is_core(name: str) -> bool:
    """Whether a notebook belongs to the core; the others are its appendix."""
    return name.split("-")[0] <= CORE


def has_data(path: Path, out_dir: Path = paths.ROOT) -> bool:
    """Whether the table that a notebook `needs` was recorded, in OUT or here. Without it, it is not in the path."""
    needs = about(path).needs
    return not needs or any((Path(home) / needs).is_file() for home in (out_dir, paths.ROOT))


def former(name: str) -> str:
    """The name that a notebook had before numbers were the reading order; "" if it had no other."""
    number, _, topic = name.partition("-")
    before = {f"{now:02}": f"{then:02}" for now, then in enumerate(FORMER)}.get(number, number)
    return f"{before}-{topic}" if before != number else ""


def hint(name: str, known: Iterable[str]) -> str:
    """What an unknown name may stand for: a notebook that had it before, else one whose name is near."""
    known = list(known)
    return next((f" It is called {now} now." for now in known if former(now) == name), near(name, known))


def find(selected: Sequence[str] = ()) -> list[Path]:
    """Notebook sources by number or name ("02", "02-jit-placement"); all of them for none. Raises UserError for an
    unknown one."""
    known = {path.stem: path for path in sources()}
    if not known:
        raise UserError(f"There are no notebooks in {FOLDER}; run from a clone of the repository.")
    matches = {name: matching(name, known) for name in selected}
    for name, stems in matches.items():
        if not stems:
            raise UserError(f"No such notebook: {name!r}.{hint(name, known)}")
    chosen = [stem for stems in matches.values() for stem in stems] if selected else known
    return [known[stem] for stem in dict.fromkeys(chosen)]


def matching(name: str, known: Iterable[str]) -> list[str]:
    """Names of the notebooks with a number or name."""
    return [stem for stem in known if stem == name or stem.split("-")[0] == name.zfill(2)]


def saying(key: str) -> dict[str, object]:
    """The values under a key of notebooks' metadata, by name; notebooks without it are left out."""
    return {path.stem: value for path in sources() if (value := getattr(about(path), key))}


def promised(path: Path, out_dir: Path) -> list[str]:
    """The artifacts that a notebook must leave, relative to OUT; none if it draws from a table (`needs`) that was not
    recorded."""
    return list(about(path).artifacts) if has_data(path, out_dir) else []


def defaults(path: Path) -> dict:
    """Parameters and their default values, read from the one cell tagged `parameters`."""
    cells = [c for c in read(path).cells if "parameters" in c.metadata.get("tags", [])]
    if len(cells) != 1:
        raise UserError(f"{path.name}: {len(cells)} cells are tagged 'parameters'; exactly one must be.")
    try:
        return notebook.declared(cells[0].source)
    except notebook.UNREADABLE as error:
        raise UserError(
            f"{path.name}: its parameter cell cannot be read ({str(error)[:100]}); write lines of NAME: TYPE = VALUE."
        ) from None


def check(path: Path, given: dict[str, object]) -> dict:
    """The given parameters in the types of their defaults. Raises UserError for an unknown or mistyped one."""
    known = defaults(path)
    values = {name: convert(value, known.get(name)) for name, value in given.items()}
    notebook.fit(path.stem, values, known)
    return values


def convert(value: object, default: object):
    """`value`, perhaps text from a command line, as the type of `default` where it can be one."""
    if isinstance(value, str) and type(default) is not str:
        with contextlib.suppress(*notebook.UNREADABLE):
            value = ast.literal_eval(value)
    return float(value) if type(default) is float and type(value) is int else value


def parameters(path: Path, profile: str, given: dict[str, object], source: str, out_dir: Path) -> dict:
    """The complete parameters of a run: the profile's if anything is measured, then the user's, then source and
    folder."""
    if profile not in PROFILES:
        raise UserError(f"profile is {profile!r}; it must be {' or '.join(PROFILES)}.")
    chosen = check(path, dict(source=source, out_dir=str(out_dir)) | given)
    if not recorded.is_measured(chosen["source"]):
        if profile != PROFILES[0]:
            raise UserError(f"profile is {profile!r}, which matters only for measuring; add --measure.")
        return chosen
    return check(path, about(path).profiles.get(profile, {})) | chosen


def run(
    selected: Sequence[str] = (),
    given: dict[str, object] | None = None,
    source: str = "recorded",
    profile: str = "quick",
    out_dir: Path | None = None,
    progress: Callable[[str], None] = lambda line: None,
    limit: float | None = None,
) -> list[Result]:
    """Run notebooks: one after the other if anything is measured, in parallel if they are only drawn. All parameters,
    and the environment's settings for JAX, are checked before the first starts; a failure does not stop the rest.

    A parameter must be known to at least one selected notebook, and goes to those that know it. out_dir: folder for
    data, figures and pages; by default `machine.home` of the source.
    """
    given = given or {}
    known = {path: defaults(path) for path in find(selected)}
    out_dir = Path(out_dir or given.get("out_dir") or machine.home(given.get("source", source))).resolve()
    for name in given:
        if not any(name in values for values in known.values()):
            check(next(iter(known)), {name: given[name]})
    jobs = []
    for path, values in known.items():
        mine = {name: value for name, value in given.items() if name in values}
        jobs.append((path, parameters(path, profile, mine, source, out_dir)))
    is_measured = any(chosen["source"] != "recorded" for _, chosen in jobs)
    settings.check_apart(is_measured)
    progress(f"into {out_dir}")
    jobs.sort(key=lambda job: about(job[0]).last)  # what sums up the others comes after them
    execute = partial(run_one, out_dir=out_dir, progress=progress, limit=limit or LIMIT_S[profile])
    if is_measured:
        return [execute(*job) for job in jobs]
    groups = [[*group] for _, group in itertools.groupby(jobs, lambda job: about(job[0]).last)]
    return [result for group in groups for result in side_by_side(execute, group)]


def side_by_side(execute: Callable[..., Result], jobs: Sequence[tuple[Path, dict]]) -> list[Result]:
    """AT_ONCE of these at a time; an interruption stops those that have begun."""
    children: list[subprocess.Popen] = []
    with ThreadPoolExecutor(AT_ONCE) as pool:
        results = [pool.submit(execute, *job, children=children) for job in jobs]
        try:
            return [result.result() for result in results]
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            while not all(result.done() for result in results):
                for child in children:
                    execution.stop(child)
                time.sleep(0.1)
            raise


def written(path: Path, out_dir: Path, measured: bool) -> list[str]:
    """The artifacts of a run in OUT: a redraw reads the tables, it does not write them."""
    return [str(Path(out_dir) / a) for a in promised(path, out_dir) if measured or not a.startswith("data/")]


def run_one(
    path: Path,
    chosen: dict,
    out_dir: Path,
    progress: Callable[[str], None],
    limit: float,
    children: list[subprocess.Popen] | None = None,
) -> Result:
    """One notebook in a child process, which is added to `children`. The executed copy goes to OUT/out/notebooks, its
    page and its Markdown to OUT/docs/notebooks. Nothing is executed where a drawing would be the last one again."""
    from llama_lab.reporting import drawn, pages  # here: those who only look for notebooks draw nothing

    began, executed = time.time(), Path(out_dir) / "out" / "notebooks" / path.name
    measured = recorded.is_measured(chosen["source"])
    reads = "" if measured else drawn.read(path, chosen, out_dir)
    if reads and drawn.is_current(path.stem, reads, out_dir, written(path, out_dir, measured)):
        progress(f"{path.stem}: unchanged")
        return Result(path.stem, True, 0.0, written(path, out_dir, measured), read_finding(executed), "")
    progress(f"{path.stem}: {chosen['source']}")
    try:
        executed.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"Cannot write to {executed.parent}: {error.strerror}.") from error
    spec = dict(source=str(path), executed=str(executed), parameters=chosen)
    error = execution.run(spec, path.stem, progress, limit, [] if children is None else children)
    finding, artifacts = read_finding(executed) if not error else "", written(path, out_dir, measured)
    if not error and (
        missing := [a for a in artifacts if not Path(a).is_file() or Path(a).stat().st_mtime < began - 1]
    ):
        error = f"it ended without writing {', '.join(missing)}"
    if not error:
        pages.write(executed, out_dir)
        if before := former(path.stem):
            pages.lead(before, path.stem, out_dir)
        if not measured:
            drawn.remember(path.stem, reads, out_dir, artifacts)
    return Result(path.stem, not error, round(time.time() - began, 1), artifacts, finding, error)


def as_json(results: Sequence[Result]) -> dict:
    return {"notebooks": [asdict(r) for r in results]}
