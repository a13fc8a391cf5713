"""Kernels on a machine that is taken away: a core less, other processes on every core, readers who leave. No hang, and
never another token.

`python -m tests.kernels.test_disturbed` writes how much longer an answer then takes: `data/disturbed.csv`.
"""

import csv
import json
import os
import subprocess
import sys
import time

import pytest

import llama_jax as ll
from llama_jax import checkpoint
from llama_jax.plumbing import paths

FILE, REPEATS = paths.ROOT / "data" / "disturbed.csv", 9
MODEL = "random:smollm2-135m,num_hidden_layers=2,vocab_size=512"
LIMIT = 560  # seconds, after which a hang is one; other tests may compute beside it
PROMPTS, NEW = [[5, 9, 33, 60, 2] * 8, [7, 7, 3]], 16
SUBJECTS = ("loop+fused", "chunk8+fused", "step+gemv", "loop+fused+lookup")
BUSY = "while True: pass"


def pinned(cores: set[int]) -> None:
    """All threads of this process on these cores alone: XLA's, which are there already, among them."""
    for thread in os.listdir("/proc/self/task"):
        os.sched_setaffinity(int(thread), cores)


def outcomes(model: str, repeats: int = 1) -> dict:
    """Subject → circumstance → [tokens, median seconds, most]."""
    loaded, every = ll.load(model), os.sched_getaffinity(0)
    engines = {name: ll.build(loaded, name) for name in SUBJECTS}

    def asked(name: str) -> list:
        taken = []
        for _ in range(repeats):
            began = time.perf_counter()
            tokens = [answer.token_ids for answer in ll.answer(engines[name], PROMPTS, NEW)]
            taken.append(time.perf_counter() - began)
        return [tokens, sorted(taken)[repeats // 2], max(taken)]

    def all_of(circumstance: str) -> None:
        for name in SUBJECTS:
            by_name[name][circumstance] = asked(name)

    by_name: dict[str, dict] = {name: {} for name in SUBJECTS}
    all_of("warm-up")
    all_of("undisturbed")
    others = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in every]
    try:
        all_of("a busy process on every core")
    finally:
        for other in others:
            other.kill()
            other.wait()
    pinned({min(every)})
    all_of("one core")
    pinned(every)
    for engine in engines.values():  # readers who leave after the first block
        stream = ll.generate.stream(engine, PROMPTS, NEW)
        next(stream)
        stream.close()
    all_of("after readers who left")
    return by_name


@pytest.mark.slow
def test_no_token_changes_and_nothing_hangs():
    done = subprocess.run(
        [sys.executable, "-m", "tests.kernels.test_disturbed", MODEL],
        capture_output=True, text=True, timeout=LIMIT, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    for name, circumstances in json.loads(done.stdout).items():
        expected = circumstances["undisturbed"][0]
        assert [len(tokens) for tokens in expected] == [NEW, NEW]
        for circumstance, (tokens, *_) in circumstances.items():
            assert tokens == expected, (name, circumstance)


def main() -> None:
    if len(sys.argv) > 1:
        print(json.dumps(outcomes(sys.argv[1])))
        return
    with FILE.open("w", newline="") as file:
        out = csv.writer(file, lineterminator="\n")
        out.writerow(("placement", "circumstance", "median_ms", "most_ms", "times as long"))
        for name, circumstances in outcomes(checkpoint.DEFAULT, REPEATS).items():
            usual = circumstances["undisturbed"][1]
            for circumstance, (_, median, most) in list(circumstances.items())[1:]:
                out.writerow((name, circumstance, f"{1e3 * median:.1f}", f"{1e3 * most:.1f}", f"{median / usual:.2f}"))


if __name__ == "__main__":
    main()
