"""Other runtimes beside the kernel: a line each, rates before costs, and no line of what was not measured."""

import re

from llama_jax.plumbing import paths
from llama_lab.bench import summary
from llama_lab.reporting import rivals, scorecard
from llama_lab.reporting.overview import Recorded
from tests.bench.test_record import trial
from tests.reporting.test_readme import ENVIRONMENT, engines, recorded
from tests.reporting.test_rivals import rows


def stem(table):
    return table.path.stem


def test_the_strongest_of_all_runtimes_and_ollama_stand_beside_our_fastest(tmp_path):
    made = engines()
    for watch, busy in (({}, ""), (dict(others_cpu=0.5), ", busy machine")):
        contest = recorded(tmp_path, rivals.CONTEST, made, environment=ENVIRONMENT | dict(watch=watch))
        (row,) = scorecard.table([contest], stem).rows
        assert row == (
            "writing answers, tiny",
            "1.50 [1.50, 1.50] times ik_llama.cpp's rate and 3.00 [3.00, 3.00] times Ollama's rate",
            "ik_llama.cpp, faster here than Ollama",
            f"float32, unknown size, `loop+fused`, C{busy}, {rivals.CONTEST}",
        )


def test_rates_on_every_file_are_a_line_per_task_and_limit(tmp_path):
    pace = {"loop+fused": 5, "llamacpp": 4.5}
    made = [*rows("a", {"loop+fused": 2, "llamacpp": 4}), *rows("b", pace)]
    made += rows("n", pace, tokens=1, prompt=400, tokenize_ns=0)
    fewer = [*rows("b/avx2", pace), *rows("b/avx2", pace, tokens=1, prompt=100, tokenize_ns=0)]
    table = recorded(tmp_path, rivals.FILES[1], [*made, *fewer])
    answers, prompts, *limited = scorecard.table([table], stem).rows
    found = [case for case in rivals.cases([table]) if not case.limited]
    assert answers == (
        "writing answers (64 tokens of prompt and answer): 2 files",
        rivals.ranging(found),
        "llama.cpp",
        f"100 to 100 MB; `loop+fused`; 2 on C, {rivals.FILES[1]}",
    )
    assert (prompts[0], prompts[-1]) == (
        "reading prompts (400 tokens): 1 file",
        f"100 to 100 MB; `loop+fused`; 1 on C, {rivals.FILES[1]}",
    )
    tasks = ("writing answers (64 tokens of prompt and answer)", "reading prompts (100 tokens)")
    assert [line[0] for line in limited] == [f"{task}: 1 file, only our kernels limited to AVX2" for task in tasks]
    assert all(re.match(r"0.90 .* in 0 of 1 ", line[1]) for line in limited)


def test_what_is_published_says_what_is_lost():
    names = (*rivals.FILES, scorecard.COMMANDS, rivals.CONTEST, f"{rivals.CONTEST}-files", f"{rivals.CONTEST}-quality")
    behind = [Recorded(paths.ROOT / "data" / f"{name}.csv", {}) for name in names]
    assert scorecard.table([], str).rows == []
    lines = scorecard.table(behind, stem).rows
    assert [row[-1].rpartition(", ")[2] for row in lines] == [
        *[rivals.FILES[0]] * 2, *[rivals.FILES[1]] * 2, rivals.CONTEST, f"{rivals.CONTEST}-files", scorecard.COMMANDS,
        f"{rivals.CONTEST}-quality",
    ]  # fmt: skip
    assert all(re.search(r"\d", row[1]) for row in lines)
    for run, line in zip(rivals.contests(behind), lines[4:6], strict=True):
        rates = {t.subject: [u.tg for u in summary.warm(run.rows, t.subject)] for t in run.rows if t.backend != "jax"}
        best = max((name for name in rates if rates[name]), key=lambda name: summary.median(rates[name]))
        assert line[2].startswith(f"{scorecard.named_well(best)},")


def test_a_runtime_is_faster_than_those_alone_that_it_is_shown_to_be_faster_than(tmp_path):
    pace = {
        "loop+fused": ("jax", 2),
        "ik-llamacpp": ("ik_llama.cpp", 3),
        "ollama": ("ollama", 6),
        "llamacpp": ("llama.cpp", 3),
    }
    made = [
        trial(name, block, [k * (ms + (name == "llamacpp") * (0.5 * (-1) ** block + 0.1)) for k in range(1, 5)],
              run="main", backend=backend, model="tiny", sampling="greedy")
        for block in range(8) for name, (backend, ms) in pace.items()
    ]  # fmt: skip
    (row,) = scorecard.table([recorded(tmp_path, rivals.CONTEST, made)], stem).rows
    assert row[2] == "ik_llama.cpp and llama.cpp: undecided which is fastest; ik_llama.cpp is faster here than Ollama"
