"""A JupyterLab server of its own, started as `make lab` starts it, over a copy of what a clone holds; and a notebook in
its page."""

import contextlib
import json
import os
import shlex
import shutil
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

from llama_jax.plumbing import paths

CLONED = ("llama_jax", "notebooks", "data", "figures", ".jupyter")
PAGE = "notebooks/00-start-here.ipynb"
PROMPT = ".jp-CodeCell .jp-InputArea .jp-InputPrompt"
TROUBLE = "application/vnd.jupyter.stderr"  # as which JupyterLab draws standard error and tracebacks alike


def command(options: str, home: Path) -> str:
    """The command that `make lab` runs, over the notebooks in `home`."""
    said = subprocess.run(
        ["make", "-n", "-s", "-o", ".venv/.ready", "lab", f"LAB={options}", f"CURDIR={home}"],
        cwd=paths.ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    assert PAGE in said
    return said.replace("\\\n", " ").replace(
        ".venv/bin/jupyter", shlex.quote(str(Path(sys.executable).with_name("jupyter")))
    )


class Server:
    """url, token: where it answers. home: the copy that it works in."""

    def __init__(self, folder: Path):
        self.home, self.runtime = folder / "clone", folder / "runtime"
        for name in CLONED:
            shutil.copytree(
                paths.ROOT / name, self.home / name, ignore=shutil.ignore_patterns("__pycache__", ".ipynb_checkpoints")
            )
        own = {f"JUPYTER_{kind}_DIR": str(folder / kind.lower()) for kind in ("CONFIG", "DATA", "RUNTIME")}
        own |= {f"JUPYTERLAB_{kind}_DIR": str(folder / kind.lower()) for kind in ("SETTINGS", "WORKSPACES")}
        own |= {"IPYTHONDIR": str(folder / "ipython"), "PYTHONPATH": str(self.home), "PYTHONDONTWRITEBYTECODE": "1"}
        root = " --allow-root" * (os.geteuid() == 0)
        self.log = folder / "lab.log"
        with open(self.log, "w") as log:
            line = "exec env " + command(f"--no-browser --port=0 --port-retries=0{root}", self.home)
            self.process = subprocess.Popen(
                ["bash", "-c", line], cwd=self.home, env={**os.environ, **own}, stdout=log, stderr=log
            )
        self.url, self.token = self.wait()

    def wait(self) -> tuple[str, str]:
        """Where it answers, once it does."""
        until = time.monotonic() + 120
        while time.monotonic() < until and self.process.poll() is None:
            for file in self.runtime.glob("jpserver-*.json"):
                with contextlib.suppress(OSError, ValueError, KeyError):
                    about = json.loads(file.read_text())
                    urllib.request.urlopen(f"{about['url']}api/status?token={about['token']}", timeout=10).close()
                    return about["url"], about["token"]
            time.sleep(0.2)
        raise AssertionError(f"JupyterLab does not answer: {self.log.read_text()[-2000:]}")

    def ask(self, path: str, method: str = "GET"):
        request = urllib.request.Request(
            f"{self.url}api/{path}", method=method, headers={"Authorization": f"token {self.token}"}
        )
        with urllib.request.urlopen(request, timeout=30) as reply:
            return json.loads(reply.read() or "null")

    def end_kernels(self) -> None:
        for session in self.ask("sessions"):
            self.ask(f"sessions/{session['id']}", "DELETE")

    def stop(self) -> None:
        with contextlib.suppress(OSError):
            self.end_kernels()
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()


class Notebook:
    """One notebook in a page of its own."""

    def __init__(self, server: Server, browser, name: str):
        self.name, self.page = name, browser.new_page(viewport={"width": 1400, "height": 1000})
        self.page.goto(f"{server.url}lab/tree/{name}.ipynb?reset&token={server.token}")
        self.page.wait_for_selector(".jp-NotebookPanel:visible .jp-CodeCell", timeout=90_000)
        self.page.wait_for_selector("text=/Python 3.*\\| Idle/", timeout=90_000)

    def run_all(self) -> None:
        """Run → Run All Cells, as a person does it."""
        self.page.click("li.lm-MenuBar-item:has-text('Run')")
        self.page.click("li.lm-Menu-item:has-text('Run All Cells')")

    def wait_until_busy(self) -> None:
        """Progress is on the page: a cell that runs or waits has a star, the status bar says Busy."""
        self.page.wait_for_selector(".jp-InputPrompt:text-is('[*]:')", timeout=30_000)
        self.page.wait_for_selector("text=/Python 3.*\\| Busy/", timeout=30_000)

    def wait_until_done(self, seconds: float) -> None:
        """No cell runs or waits any more, be it that one has failed."""
        self.page.wait_for_function(
            "all => ![...document.querySelectorAll(all)].some(p => p.textContent == '[*]:')",
            arg=PROMPT,
            timeout=seconds * 1000,
        )
        self.page.wait_for_selector("text=/Python 3.*\\| Idle/", timeout=30_000)

    def has_run(self) -> list[bool]:
        """Of each code cell, whether it has a number: those after a failed one have none."""
        return self.page.eval_on_selector_all(PROMPT, "all => all.map(p => /^\\[\\d+\\]:$/.test(p.textContent))")

    def outputs(self, kind: str) -> list[str]:
        """Texts of the outputs of a kind."""
        return self.page.eval_on_selector_all(
            f'.jp-OutputArea-output[data-mime-type="{kind}"]', "all => all.map(e => e.textContent)"
        )

    def pictures(self) -> list[int]:
        """Natural widths of the pictures in outputs; 0 is one that is not drawn."""
        self.page.wait_for_function(
            "[...document.querySelectorAll('.jp-OutputArea-output img')].every(i => i.complete)", timeout=30_000
        )
        return self.page.eval_on_selector_all(".jp-OutputArea-output img", "all => all.map(i => i.naturalWidth)")

    def close(self) -> None:
        self.page.close(run_before_unload=False)
