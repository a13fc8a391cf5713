"""One notebook executed by papermill, in a separate process that reports its current cell."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from llama_lab.bench import parent
from llama_lab.bench.progress import VARIABLE as PROGRESS
from llama_lab.reporting.remaining import every

EVERY_S = 10.0  # between two lines about one long cell
CELL_S = 7200  # for one cell; the whole has its own limit


def run(spec: dict, name: str, progress: Callable[[str], None], limit: float, children: list[subprocess.Popen]) -> str:
    """Execute a notebook in a child process, which is added to `children`; returns why it did not end well, or nothing.

    spec: `source`, `executed` (two paths) and `parameters`. limit: seconds.
    """
    began, expired, last = time.time(), threading.Event(), ""

    def tell(line: str) -> None:
        progress(f"{name}: {line} ({time.time() - began:.0f} s)")

    def look() -> None:  # at the line that a long cell last wrote
        nonlocal last
        line = Path(announced.name).read_text().strip()
        if line and line != last:
            last = line
            tell(line)

    # files: nobody need read them at once
    with tempfile.TemporaryFile("w+") as complaints, tempfile.NamedTemporaryFile("r") as announced:
        child = subprocess.Popen(
            [sys.executable, "-m", "llama_lab.reporting.execution", json.dumps(spec), str(os.getpid())],
            stdout=subprocess.PIPE,
            stderr=complaints,
            text=True,
            start_new_session=True,
            env={**os.environ, "TQDM_DISABLE": "1", PROGRESS: announced.name},
        )
        children.append(child)
        late = threading.Timer(limit, lambda: (expired.set(), stop(child)))
        late.start()
        try:
            with every(EVERY_S, look):
                for line in child.stdout:
                    tell(line.rstrip())
                code = child.wait()
        finally:
            late.cancel()
            stop(child)
        complaints.seek(0)
        complaint = complaints.read().strip().splitlines()[-1:]
    if expired.is_set():
        return f"stopped after {limit:.0f} s"
    return (complaint[0] if complaint else f"exit code {code}") if code else ""


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


def execute(spec: dict) -> None:
    """The child: papermill, with each cell's first line printed as it starts. Exits with one line on a failed cell."""
    import papermill
    from papermill.engines import NBClientEngine, papermill_engines
    from papermill.exceptions import PapermillExecutionError

    from llama_lab.reporting.ipynb import label

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
            execution_timeout=CELL_S,
            coalesce_streams=True,
            extra_arguments=["--IPKernelApp.log_level=ERROR"],
        )
    except PapermillExecutionError as error:
        sys.exit(f"cell {error.cell_index + 1} failed: {error.ename}: {' '.join(error.evalue.split())}")


if __name__ == "__main__":
    parent.follow(int(sys.argv[2]))
    execute(json.loads(sys.argv[1]))
