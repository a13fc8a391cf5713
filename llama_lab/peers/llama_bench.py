"""llama-bench, llama.cpp's own benchmark, built like its server (`make llama-bench`), beside the peer `llamacpp`:
whether the peer is as fast under our protocol as llama.cpp measures itself."""

from __future__ import annotations

import csv
import io
import json
import statistics
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

from llama_jax import checkpoint
from llama_jax.plumbing import files, paths
from llama_jax.plumbing.errors import UserError
from llama_lab.bench import environment, wording
from llama_lab.bench.process import allowed_cores
from llama_lab.bench.statistics import Ratio, ratio
from llama_lab.peers import llama_server, native

NAME = "llama-bench"
BUILT = native.Built(
    NAME, llama_server.BUILT.version, "llama.cpp's benchmark", llama_server.TOOLS,
    partial(llama_server.compiled, target=NAME),
)  # fmt: skip
TABLE = paths.ROOT / "data" / f"{NAME}.csv"
PAIRS, REPEATED = 10, 5  # processes of each kind, and answers of each process
PROMPT, TOKENS = 37, 17  # as many as the headline's
COLUMNS = ("day", "processor", "llama.cpp", "model", "prompt", "tokens", "pair", "first", NAME, "llamacpp")


def own(file: Path) -> float:
    """Tokens/s that llama-bench reports in a process of its own, the median. Raises UserError if it fails or is not
    built."""
    threads = str(len(allowed_cores()))
    asked = ["-p", "0", "-d", str(PROMPT), "-n", str(TOKENS), "-r", str(REPEATED), "-t", threads, "-o", "json"]
    return statistics.median(said([str(BUILT.required()), "-m", str(file), *asked])[0]["samples_ts"])


def peer(model: str) -> float:
    """Tokens/s of the peer `llamacpp` in `llama-jax bench`, beside a placement, the median. Raises UserError if it
    fails."""
    asked = ["--model", model, "--placements", "step", "--peers", "llamacpp", "--blocks", str(REPEATED), "--json"]
    asked += ["--prompt-tokens", str(PROMPT), "--new-tokens", str(TOKENS)]
    subjects = said([sys.executable, "-m", "llama_lab", "bench", *asked])["subjects"]
    return next(s["tokens_per_second"]["median"] for s in subjects if s["name"] == "llamacpp")


def said(command: list[str]):
    """The JSON at the end of what a command prints. Raises UserError if it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise UserError(f"{Path(command[0]).name} failed: {(done.stderr or done.stdout).strip()[-300:]}")
    text = done.stdout.strip()
    return json.loads(text if text.startswith("[") else text.splitlines()[-1])


def measure(model: str, path: Path) -> Ratio:
    """Pairs of both, by turns first, kept as the table `path`; the peer's rate over llama-bench's. Raises UserError."""
    file, about = checkpoint.gguf_file(model), environment.capture()
    same = (time.strftime("%Y-%m-%d"), wording.processor(about), BUILT.version, model, PROMPT, TOKENS)
    rows = []
    for pair in range(PAIRS):
        kinds = {NAME: partial(own, file), "llamacpp": partial(peer, model)}
        order = [*kinds][:: -1 if pair % 2 else 1]
        rates = {name: kinds[name]() for name in order}
        rows.append((*same, pair, order[0], *(f"{rates[name]:.2f}" for name in kinds)))
        print(f"pair {pair + 1} of {PAIRS}: {', '.join(f'{name} {rate:.0f} tokens/s' for name, rate in rates.items())}")
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([COLUMNS, *rows])
    files.write(path, text.getvalue())
    return of_table(path)


def of_table(path: Path) -> Ratio:
    """The peer's rate over llama-bench's, of the pairs of a table."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    return ratio(*([float(row[name]) for row in rows] for name in ("llamacpp", NAME)))


def sentence(path: Path) -> str:
    """What a table says, for docs/peers.md."""
    with path.open(encoding="utf-8", newline="") as file:
        first, *rest = csv.DictReader(file)
    return (
        f"Under `llama-jax bench` the peer `llamacpp` decodes at {beside(path)} times the rate that llama-bench itself"
        f" reports ({len(rest) + 1} pairs of processes; {first['model']}, {first['tokens']} tokens after"
        f" {first['prompt']}, {first['processor']}, llama-cpp-python {first['llama.cpp']}, {first['day']};"
        f" `data/{path.name}`)."
    )


def beside(path: Path) -> str:
    """`0.99 [0.97, 1.01]`: the peer's rate over llama-bench's."""
    found = of_table(path)
    return f"{found.value:.2f} {wording.interval(found)}"


if __name__ == "__main__":
    native.make(f"{NAME} of llama-cpp-python {BUILT.version}", BUILT)
    try:
        for name in sys.argv[1:]:  # a model to compare both on
            measure(name, TABLE)
            print(sentence(TABLE))
    except UserError as error:
        sys.exit(f"error: {error}")
