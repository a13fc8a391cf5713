"""The command line, in processes of its own: hostile arguments, closed and full outputs, no home."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

from hypothesis import strategies as st

from llama_jax.plumbing.errors import UserError

ROOT = Path(__file__).resolve().parents[2]
PROCESS_S = 100  # of a command line, which may compile


class EndedError(Exception):
    """A process of its own came to an end that is no UserError."""

    def __init__(self, outcome: str, message: str):
        self.outcome, self.message = outcome, message


SIZES = "hidden_size=32,intermediate_size=32,vocab_size=64,num_attention_heads=1,num_key_value_heads=1"
TINY = f"random:smollm2-135m,num_hidden_layers=1,{SIZES}"
WORDS = (
    "x", "-1", "0", "1.5", "nan", "inf", "--", "-", ",", "é", ".", "../..", "/", "/nowhere/a/b", "/dev/full",
    "/dev/null/x", "~nosuchuser/a", "1e400", "None", "", "\n", "9" * 30, str(2**31), str(2**63), "\udcff", "a" * 5_000,
    "[" * 5_000, "step,,loop", "random:gpt2,num_hidden_layers=999999999",
)  # fmt: skip
COMMANDS = [
    shlex.split(line)
    for line in (
        f"generate --model {TINY} --token-ids 1,2,3 -n 4 --placement step --temperature 0 --top-k 0 --top-p 1 --min-p 0"
        " --repetition-penalty 1 --seed 0 --dtype float32 --json",
        "placements --json",
        "models --json",
        "--version",
        "--help",
        "bench --help",
        "compare BASE/tables/table.csv BASE/tables/table.jsonl --json",
        "verify BASE/store --json",
        "advise --data BASE/tables/table.csv --prompt-tokens 8 --new-tokens 3 --requests 1 --seed 0",
        "report --out-dir out",
        "extract --model BASE/hf --sites ln_final --out out --source BASE/texts.jsonl --length 16 --batch 2 --unit 4"
        " --positions all --keep bfloat16",
    )
]
BENCH = ("--model", "--placements", "--peers", "--baseline", "--threads", "--limit", "--suite", "--journal", "--out")
STREAMS = {  # how a line is run, and in what environment beside the usual
    "normal": ("", {}),
    "closed": (">&-", {}),
    "all closed": (">&- 2>&- <&-", {}),
    "full": (">/dev/full", {}),
    "full for errors": ("2>/dev/full", {}),
    "pipe": ("| true; exit ${PIPESTATUS[0]}", {}),
    "no room": (">out.txt", {}),
    "ascii": ("", {"LC_ALL": "C", "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}),
    "home": ("", {"HOME": "/nowhere", "XDG_CACHE_HOME": ""}),
    "cache": ("", {"LLAMA_JAX_CACHE": "/proc/cache"}),
    "temporary": ("", {"TMPDIR": "/nowhere"}),
    "narrow": ("", {"COLUMNS": "0", "TERM": "dumb", "LINES": "-1"}),
    "wide": ("", {"COLUMNS": "9" * 12, "TERMINAL_WIDTH": "x", "TERM": "nosuch"}),
}


@st.composite
def commands(draw):
    """(arguments, how the standard streams and the environment are)."""
    if draw(st.integers(0, 5)) == 0:
        start = ["bench", "--placements", "nosuch", "--model", TINY]
        return [*start, draw(st.sampled_from(BENCH)), draw(st.sampled_from(WORDS))], "normal"
    arguments = list(draw(st.sampled_from(COMMANDS)))
    if draw(st.integers(0, 3)):
        at = draw(st.integers(0, len(arguments)))
        arguments[at : at + draw(st.integers(0, 1))] = [draw(st.sampled_from(WORDS))]
    return arguments, draw(st.sampled_from(["normal"] * 4 + list(STREAMS)))


def command(example, base: Path, folder: Path) -> str:
    arguments, streams = example
    arguments = [a.replace("BASE", str(base)) for a in arguments]
    after, more = STREAMS[streams]
    env = {k: v for k, v in os.environ.items() if k != "LLAMA_JAX_CACHE"}
    env |= {"PYTHONPATH": str(ROOT), "COLUMNS": "80"} | more
    line = [os.fsencode(a) for a in (sys.executable, "-m", "llama_lab", *arguments)]
    if any(b"\0" in part for part in line):
        return "no argument can hold it"
    limit = "ulimit -f 0; " if streams == "no room" else ""
    try:
        done = subprocess.run(
            ["bash", "-c", f'{limit}"$@" {after}', "bash", *line],
            env=env, cwd=folder, capture_output=True, timeout=PROCESS_S, stdin=subprocess.DEVNULL, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise EndedError("hang", f"{arguments} {streams}") from None
    errors = done.stderr.decode(errors="replace").strip()
    if "Traceback" in errors or "Exception ignored" in errors:
        raise EndedError("traceback", errors[-900:])
    if done.returncode < 0 or (done.returncode > 128 and done.returncode != 141):
        raise EndedError("abort", f"exit code {done.returncode}: {errors[-300:]}")
    if done.returncode == 2 and "2>" not in after:
        raise UserError(errors.splitlines()[-1] if errors else "")
    if done.returncode not in (0, 1, 2):
        raise EndedError("traceback", f"an exit code that is not documented: {done.returncode}: {errors[-300:]}")
    return f"exit code {done.returncode}"
