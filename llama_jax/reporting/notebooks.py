"""The papermill runner: each notebook in a process of its own, parameters checked, artifacts checked, one line of
finding.

A notebook says in its metadata (`llama_jax`) which artifacts it leaves, what the `full` profile changes, with `after`
which other one it is read after where its number does not say so and, with `last`, that it sums up what the others
found; the parameters cell holds the `quick` values. What the report needs to
know of it stands there too: `headline` and `in_readme` of its finding, `advice` of a table that placements are advised
by, `first_tokens` of one made for its first tokens, `no_subjects` where nothing is timed side by side, and in `rows`
the kinds of row of its own, `module:Class` each.
"""

from __future__ import annotations

import ast
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from llama_jax import parent, paths
from llama_jax.bench.progress import VARIABLE as PROGRESS
from llama_jax.errors import UserError, near
from llama_jax.reporting.ipynb import PROFILES, about, read

FOLDER = paths.ROOT / "notebooks"
FAILED = "failed"
EVERY_S = 10.0  # between two lines about one long cell
LIMIT_S = {"quick": 1200, "full": 7200}  # for a whole notebook


@dataclass(frozen=True)
class Result:
    """What became of one notebook."""

    name: str
    ok: bool
    seconds: float
    artifacts: list[str]
    finding: str
    error: str


def sources() -> list[Path]:
    """All notebooks, in the order in which they are read; none outside a clone of the repository."""
    found = sorted(FOLDER.glob("[0-9][0-9]-*.ipynb"))
    for path in found[:]:
        if after := about(path).after:
            found.remove(path)
            found.insert(place(after, found, path), path)
    return found


def place(after: str, found: Sequence[Path], path: Path) -> int:
    """Where in a list comes what is read after that notebook. Raises UserError where it is not there."""
    stems = [one.stem for one in found]
    if after not in stems:
        raise UserError(f"{path.name}: after is {after!r}, which is no notebook.{near(after, stems)}")
    return stems.index(after) + 1


def find(selected: Sequence[str] = ()) -> list[Path]:
    """Notebook sources by number or name ("03", "03-jit-placement"); all of them for none. Raises UserError for an
    unknown one."""
    known = {path.stem: path for path in sources()}
    if not known:
        raise UserError(f"There are no notebooks in {FOLDER}; run from a clone of the repository.")
    if not selected:
        return list(known.values())
    found = []
    for name in selected:
        hits = [path for stem, path in known.items() if stem == name or stem.split("-")[0] == name.zfill(2)]
        if not hits:
            raise UserError(f"No such notebook: {name!r}.{near(name, known)}")
        found += hits
    return list(dict.fromkeys(found))


def saying(key: str) -> dict[str, object]:
    """What notebooks say under a key of their metadata, by name; those that say nothing are left out."""
    return {path.stem: found for path in sources() if (found := getattr(about(path), key))}


def promised(path: Path, out_dir: Path) -> list[str]:
    """The artifacts that a notebook must leave, relative to OUT; none where it draws from a table (`needs`) that nobody
    has recorded."""
    own = about(path)
    due = not own.needs or any((Path(home) / own.needs).is_file() for home in (out_dir, paths.ROOT))
    return list(own.artifacts) if due else []


def defaults(path: Path) -> dict:
    """Parameters and their default values, read from the one cell tagged `parameters`."""
    cells = [c for c in read(path).cells if "parameters" in c.metadata.get("tags", [])]
    if len(cells) != 1:
        raise UserError(f"{path.name}: {len(cells)} cells are tagged 'parameters'; exactly one must be.")
    found = {}
    try:
        for statement in ast.parse(cells[0].source).body:
            if isinstance(statement, ast.AnnAssign) and statement.value is not None:
                found[statement.target.id] = ast.literal_eval(statement.value)
    except (ValueError, SyntaxError, AttributeError, RecursionError, MemoryError) as error:  # what `ast` says of it
        raise UserError(
            f"{path.name}: its cell of parameters cannot be read ({str(error)[:100]}); write NAME: TYPE = VALUE lines."
        ) from None
    return found


def check(path: Path, given: dict[str, object]) -> dict:
    """The given parameters in the types of their defaults. Raises UserError for an unknown or mistyped one."""
    known = defaults(path)
    checked = {}
    for name, value in given.items():
        if name not in known:
            raise UserError(f"{path.stem} has no parameter {name!r}.{near(name, known)}")
        checked[name] = convert(path.stem, name, value, known[name])
    return checked


def convert(notebook: str, name: str, value: object, default: object):
    """`value`, perhaps text from a command line, as the type of `default`."""
    kind = type(default)
    if isinstance(value, str) and kind is not str:
        try:
            value = ast.literal_eval(value)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            pass
    if kind is float and type(value) is int:
        value = float(value)
    if type(value) is not kind:
        raise UserError(
            f"{notebook}: parameter {name} must be {kind.__name__} (its default is {default!r}), not {value!r}."
        )
    return value


def parameters(path: Path, profile: str, given: dict[str, object], source: str, out_dir: Path) -> dict:
    """The complete parameters of a run: the profile's, then the user's, then where from and where to."""
    if profile not in PROFILES:
        raise UserError(f"profile is {profile!r}; it must be {' or '.join(PROFILES)}.")
    chosen = {**about(path).profiles.get(profile, {}), **given}
    chosen.setdefault("source", source)
    chosen.setdefault("out_dir", str(out_dir))
    return check(path, chosen)


def run(
    selected: Sequence[str] = (),
    given: dict[str, object] | None = None,
    source: str = "recorded",
    profile: str = "quick",
    out_dir: Path = paths.ROOT,
    progress: Callable[[str], None] = lambda line: None,
    limit: float | None = None,
) -> list[Result]:
    """Run notebooks one after the other. All parameters are checked before the first starts; a failure does not stop
    the rest.

    A parameter must be known to at least one selected notebook, and goes to those that know it.
    """
    sources, given = find(selected), given or {}
    for name in given:
        if not any(name in defaults(path) for path in sources):
            check(sources[0], {name: given[name]})
    jobs = [
        (path, parameters(path, profile, {k: v for k, v in given.items() if k in defaults(path)}, source, out_dir))
        for path in sources
    ]
    for path, chosen in jobs:
        ignored = sorted(set(given) & set(defaults(path)) - {"source", "out_dir", "seed"})
        if chosen["source"] == "recorded" and ignored:
            raise UserError(
                f"{path.stem}: {ignored[0]} changes what is measured, and recorded data are only redrawn; add"
                " --measure."
            )
    results = []
    jobs.sort(key=lambda job: about(job[0]).last)  # what sums up the others comes after them
    for path, chosen in jobs:
        progress(f"{path.stem}: {chosen['source']}")
        results.append(run_one(path, chosen, out_dir, progress, limit or LIMIT_S[profile]))
    return results


def run_one(path: Path, chosen: dict, out_dir: Path, progress: Callable[[str], None], limit: float) -> Result:
    """One notebook in a child process; the executed copy lies in OUT/out/notebooks, a page made of it in
    OUT/docs/notebooks."""
    executed = Path(out_dir) / "out" / "notebooks" / path.name
    try:
        executed.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"Cannot write to {executed.parent}: {error.strerror}.") from error
    began, error = time.time(), ""
    spec = json.dumps(dict(source=str(path), executed=str(executed), parameters=chosen))
    # files: nobody need read them at once
    with tempfile.TemporaryFile("w+") as complaints, tempfile.NamedTemporaryFile("r") as said:
        told = {"TQDM_DISABLE": "1", PROGRESS: said.name}
        child = subprocess.Popen(
            [sys.executable, "-m", "llama_jax.reporting.notebooks", spec, str(os.getpid())],
            stdout=subprocess.PIPE,
            stderr=complaints,
            text=True,
            start_new_session=True,
            env={**os.environ, **told},
        )
        try:
            with listening(
                Path(said.name), lambda line: progress(f"{path.stem}: {line} ({time.time() - began:.0f} s)")
            ):
                error = follow(child, path.stem, began, limit, progress)
        finally:
            stop(child)
        complaints.seek(0)
        last = complaints.read().strip().splitlines()[-1:]
    error = error if error != FAILED else (last[0] if last else f"exit code {child.returncode}")
    finding = read_finding(executed) if not error else ""
    measured = chosen["source"] == "measure"  # a redraw reads the table, it does not write one
    artifacts = [str(Path(out_dir) / a) for a in promised(path, out_dir) if measured or not a.startswith("data/")]
    if not error and (
        missing := [a for a in artifacts if not Path(a).is_file() or Path(a).stat().st_mtime < began - 1]
    ):
        error = f"it ended without writing {', '.join(missing)}"
    if not error:
        from llama_jax.reporting import pages  # here, because the child needs none of it

        pages.write(executed, out_dir)
    return Result(path.stem, not error, round(time.time() - began, 1), artifacts, finding, error)


def follow(child: subprocess.Popen, name: str, began: float, limit: float, progress: Callable[[str], None]) -> str:
    """Pass the child's progress on until it ends; returns why it did not end well, or nothing."""
    expired = threading.Event()

    def expire() -> None:
        expired.set()
        stop(child)

    late = threading.Timer(limit, expire)
    late.start()
    try:
        for line in child.stdout:
            progress(f"{name}: {line.rstrip()} ({time.time() - began:.0f} s)")
        code = child.wait()
    finally:
        late.cancel()
    if expired.is_set():
        return f"stopped after {limit:.0f} s"
    return FAILED if code else ""


@contextlib.contextmanager
def listening(file: Path, tell: Callable[[str], None]):
    """Every EVERY_S seconds, tell what a long cell last wrote to `file`, where that is new."""
    ended = threading.Event()

    def listen() -> None:
        last = ""
        while not ended.wait(EVERY_S):
            if (line := file.read_text().strip()) and line != last:
                last = line
                tell(line)

    thread = threading.Thread(target=listen, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def stop(child: subprocess.Popen) -> None:
    """End the child and the kernel it started."""
    if child.poll() is not None:
        return
    try:
        family = [psutil.Process(child.pid), *psutil.Process(child.pid).children(recursive=True)]
    except psutil.NoSuchProcess:
        return
    for process in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    child.wait()


def read_finding(executed: Path) -> str:
    """The text that the last code cell printed."""
    cells = [c for c in read(executed).cells if c.cell_type == "code"]
    said = [o.get("text") for o in (cells[-1].get("outputs", []) if cells else []) if o.get("name") == "stdout"]
    return "".join(text for text in said if isinstance(text, str)).strip()


def execute(spec: dict) -> None:
    """The child: papermill, with each cell's first line printed as it starts. Exits with one line on a failed cell."""
    import papermill
    from papermill.engines import NBClientEngine, papermill_engines
    from papermill.exceptions import PapermillExecutionError

    class Spoken(NBClientEngine):
        @classmethod
        def execute_managed_notebook(cls, manager, kernel_name, **options):
            started = manager.cell_start

            def cell_start(cell, cell_index=None, **kwargs):
                if cell.cell_type == "code":
                    print(f"cell {cell_index + 1}/{len(manager.nb.cells)} {label(cell)}", flush=True)
                return started(cell, cell_index, **kwargs)

            manager.cell_start = cell_start
            return super().execute_managed_notebook(manager, kernel_name, **options)

    papermill_engines.register("spoken", Spoken)
    try:
        papermill.execute_notebook(
            spec["source"],
            spec["executed"],
            spec["parameters"],
            engine_name="spoken",
            kernel_name="python3",
            progress_bar=False,
            request_save_on_cell_execute=False,
            log_output=False,
            execution_timeout=LIMIT_S["full"],
            coalesce_streams=True,
            extra_arguments=["--IPKernelApp.log_level=ERROR"],
        )
    except PapermillExecutionError as error:
        sys.exit(f"cell {error.cell_index + 1} failed: {error.ename}: {' '.join(error.evalue.split())}")


def label(cell) -> str:
    """What a cell is about: its first comment or line."""
    tags = {"parameters": "parameters", "injected-parameters": "parameters of this run"}
    first = next((line for line in cell.source.splitlines() if line.strip()), "")
    return next((tags[t] for t in cell.metadata.get("tags", []) if t in tags), first.lstrip("# ").strip()[:70])


def as_json(results: Sequence[Result]) -> dict:
    return {"notebooks": [asdict(r) for r in results]}


if __name__ == "__main__":
    parent.follow(int(sys.argv[2]))
    execute(json.loads(sys.argv[1]))
