"""What real clients get from `llama-jax serve`, as a table: `python -m tests.clients.matrix` writes data/clients.csv.

Each script of `python/` and `js/` tries one client in a process of its own, with the packages that `make clients`
installs; `tried` says how it tells what came of it.
"""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from llama_jax.plumbing import paths
from tests.serve.test_process import NAME, start

HERE, INSTALLED = Path(__file__).parent, paths.ROOT / ".venv-clients"
FILE = paths.ROOT / "data" / "clients.csv"
SCRIPTS = [*sorted((HERE / "python").glob("[a-z]*.py")), *sorted((HERE / "js").glob("[!t]*.mjs"))]
HEADS = ("client", "version", "feature", "outcome", "words")
SERVER = ("--placement", "step+fused", "--slots", "2")
SCHEMA = dict(
    type="object",
    properties=dict(sky=dict(enum=["blue", "grey"]), rain=dict(type="boolean")),
    required=["sky", "rain"],
)
HI = re.escape("Hello! How can I assist you today?")  # what this model says to Hi, greedily
JSON = r'\{\s*"sky":\s*"(blue|grey)",\s*"rain":\s*(true|false)\s*\}'
WORKS = dict(
    chat=HI,
    stream=f"{HI}|{JSON}",
    list=f"{NAME}(:latest)?",
    structured_output=JSON,
    likelihood=r"-\d+\.\d+ (True|False)",
)  # what comes back
NOT_READ = "is not supported by this server|does not support thinking"
REFUSED = dict(tools="does not support tools", another_model="not found", refused_field=NOT_READ)  # what an error says


def missing(script: Path) -> str:
    """What a script needs and is not here; "" where it can run."""
    if script.suffix == ".mjs" and not shutil.which("node"):
        return "node is not installed"
    needed = INSTALLED / ("js/node_modules" if script.suffix == ".mjs" else "bin/python")
    return "" if needed.exists() else "`make clients` adds the clients"


def tried(script: Path, url: str) -> list[dict]:
    """Rows of the table: what the clients of a script got. Raises RuntimeError where the script itself fails."""
    if script.suffix == ".mjs":
        command = ["node", script, url, NAME, json.dumps(SCHEMA)]
    else:
        command = [INSTALLED / "bin" / "python", "-m", f"tests.clients.python.{script.stem}", url, NAME]
    with tempfile.TemporaryDirectory() as home:  # none of the user's own settings
        clean = dict(PATH=os.environ["PATH"], HOME=home, LITELLM_LOCAL_MODEL_COST_MAP="True")
        done = subprocess.run(command, cwd=paths.ROOT, env=clean, capture_output=True, text=True, timeout=300)
    if done.returncode:
        raise RuntimeError(f"{script.name}: {done.stderr[-2000:]}")
    return [row for line in done.stdout.splitlines() for row in rows(json.loads(line))]


def rows(told: dict) -> Iterator[dict]:
    """The rows of one client, which has told what it got."""
    for feature, (raised, words) in told["features"].items():
        if raised:
            outcome = "refused" if re.search(REFUSED.get(feature, NOT_READ), words) else "fails"
        else:
            outcome = "works" if re.fullmatch(WORKS.get(feature, "(?!)"), words) else "fails"
        said = " ".join(words.split())[:200] if outcome != "works" else ""
        yield dict(zip(HEADS, (told["client"], told["version"], feature, outcome, said), strict=True))


def recorded() -> list[dict]:
    with FILE.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def main() -> None:
    """Raises RuntimeError where a client is not installed: a table without it would look whole."""
    for script in SCRIPTS:
        if reason := missing(script):
            raise RuntimeError(f"{script.name}: {reason}")
    process, url = start(*SERVER)
    try:
        found = [row for script in SCRIPTS for row in tried(script, url)]
    finally:
        process.terminate()
        process.wait(60)
    with FILE.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, HEADS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(found)


if __name__ == "__main__":
    main()
