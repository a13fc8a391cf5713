"""Two runs beside each other: a true change is found, a faster machine is none, and what differs is named."""

import json

import numpy as np
import pytest

from llama_jax.plumbing.errors import UserError
from llama_lab.bench import AGAIN, record
from llama_lab.reporting.comparison import compare, lines
from tests.bench.test_record import trial

MACHINE = {"cpu": "A", "cores": 2, "affinity": [0, 1], "ram_bytes": 2**30, "devices": ["cpu:cpu"]}
SOFTWARE = {"packages": {"jax": "0.10.2"}, "python": "3.11.7", "git": {"commit": "aaaa", "dirty": False}, "load": [1.0]}


def measured(
    path, seed=0, rates=(("step", 20), ("loop", 30)), machine=1.0, environment=None, meta=None, processes=8, **changes
):
    """A table of a run of 16 blocks: the subjects' rates in tokens/s, the baseline `step` twice, times the machine's
    speed."""
    rng, trials = np.random.default_rng(seed), []
    for block in range(16):
        speed = machine * np.exp(rng.normal(0, 0.02))
        for name, rate in [*rates, ("step" + AGAIN, dict(rates).get("step", 20))]:
            gap = 1e3 / (rate * speed * np.exp(rng.normal(0, 0.005)))
            facts = dict(process=block * processes // 16, bandwidth_gbps=10 * machine, prompt=block % 2)
            trials.append(trial(name, block, [5 + i * gap for i in range(4)], **{**facts, **changes}))
    about = {"environment": {**MACHINE, **SOFTWARE, **(environment or {})}, "baseline": "step", **(meta or {})}
    return record.write(path, trials, **about)


def named(result, name):
    return next(s for s in result["subjects"] if s["name"] == name)


@pytest.fixture
def old(tmp_path):
    return measured(tmp_path / "old.csv")


def test_a_true_change_is_found(old, tmp_path):
    result = compare(old, measured(tmp_path / "new.jsonl", 1, rates=(("step", 20), ("loop", 33))))
    loop, step = named(result, "loop"), named(result, "step")
    assert loop["rate"]["value"] == pytest.approx(1.1, abs=0.03)
    assert loop["rate"]["verdict"] == loop["to_baseline"]["verdict"] == "faster"
    assert loop["to_baseline"]["low"] < 1.1 < loop["to_baseline"]["high"]
    assert [loop["to_baseline"][key] for key in ("n_old", "n_new", "processes")] == [16, 16, 8]
    assert step["rate"]["verdict"] != "faster"
    assert step["to_baseline"] is None  # it is the baseline
    assert [s["name"] for s in result["subjects"]] == ["step", "loop"]  # the twin is a control, not a subject
    assert (result["differences"], result["changed"]) == ([], [])
    json.dumps(result)


def test_a_faster_machine_is_not_a_faster_program(old, tmp_path):
    result = compare(old, measured(tmp_path / "new.csv", 1, machine=1.2))
    assert named(result, "loop")["rate"]["verdict"] == "faster"
    assert named(result, "loop")["to_baseline"]["verdict"] == "equal within 2%"
    assert result["bandwidth_gbps"] == {"old": 10, "new": 12, "ratio": pytest.approx(1.2)}
    assert any("x 1.200" in line and "bandwidth" in line for line in lines(result))


def test_processes_are_resampled_as_wholes(tmp_path):
    narrow = compare(*(measured(tmp_path / f"one{n}.csv", n, processes=1) for n in range(2)))
    assert named(narrow, "loop")["rate"]["processes"] == 1
    assert any("one process" in line for line in lines(narrow))


def test_a_block_is_paired_with_both_runs_of_the_baseline(tmp_path):
    """Exact rates: the baseline runs at 20 and 80 in each block, so its pairs are over 40; a void second run leaves
    20."""

    def table(name, loop, void=None):
        rates = {"step": 20, "step" + AGAIN: 80, "loop": loop}
        trials = [trial(s, b, [0, 1e3 / rate], valid=(s, b) != void) for s, rate in rates.items() for b in range(3)]
        return record.write(tmp_path / name, trials, environment=MACHINE, baseline="step")

    first = table("a.csv", 120)
    same, void = (compare(first, table(*made)) for made in (("b.csv", 240), ("c.csv", 120, ("step" + AGAIN, 1))))
    assert named(same, "loop")["to_baseline"]["value"] == pytest.approx(2)
    assert named(void, "loop")["to_baseline"]["value"] == pytest.approx(2 ** (1 / 3))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (dict(environment={"cpu": "B"}), "cpu was A, is B"),
        (dict(environment={"cores": 4}), "cores was 2, is 4"),
        (dict(environment={"affinity": [0]}), "affinity"),
        (dict(environment={"ram_bytes": 2**31}), "ram bytes"),
        (dict(environment={"devices": ["gpu:H200"]}), "devices"),
        (dict(model="other"), "model of step was m, is other"),
        (dict(weights_hash="v"), "weights hash of step"),
        (dict(dtype="bfloat16"), "dtype of step"),
        (dict(prompt_tokens=5), "workload of step was 4 \\+ 4 tokens, batch 1, is 5 \\+ 4"),
        (dict(new_tokens=9), "workload of step"),
        (dict(batch=2), "workload of step"),
        (dict(tokens_sha256="u"), "tokens of step, prompt 0"),
    ],
)
def test_what_cannot_be_compared_is_refused_unless_asked_for(old, tmp_path, changes, words):
    new = measured(tmp_path / "new.csv", 1, **changes)
    with pytest.raises(UserError, match=f"{words}.*--anyway"):
        compare(old, new)
    assert any(line.startswith("differs: ") for line in lines(compare(old, new, anyway=True)))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (dict(valid=False), "share no subject"),
        (dict(phase="cold"), "none in the second"),
        (dict(prompt=7), "same prompt"),
    ],
)
def test_nothing_in_common_is_one_line(old, tmp_path, changes, words):
    with pytest.raises(UserError, match=words):
        compare(old, measured(tmp_path / "new.csv", **changes))


def test_other_libraries_are_what_one_compares_for_and_subjects_of_one_table_only_are_listed(old, tmp_path):
    software = {"packages": {"jax": "0.11.0"}, "git": {"commit": "bbbb", "dirty": False}, "load": [9.0]}
    rates = (("step", 20), ("chunk8", 25))
    result = compare(old, measured(tmp_path / "new.csv", 1, rates=rates, environment=software))
    assert result["changed"] == ["jax was 0.10.2, is 0.11.0", "git commit was aaaa, is bbbb"]
    assert "changed: jax was 0.10.2, is 0.11.0" in lines(result)
    assert (result["only_old"], result["only_new"]) == (["loop"], ["chunk8"])
    assert any(line.startswith("only in") and line.endswith("chunk8") for line in lines(result))


def test_the_baseline_is_the_metas_or_has_a_twin(old, tmp_path):
    unnamed = dict(meta={"baseline": None})
    assert named(compare(old, measured(tmp_path / "new.csv", 1, **unnamed)), "loop")["to_baseline"] is not None
    first, second = (measured(tmp_path / f"{n}.csv", n, (("loop", 30), ("chunk8", 20)), **unnamed) for n in range(2))
    trials, meta = record.read(first)
    record.write(first, [t for t in trials if AGAIN not in t.subject], environment=meta["environment"])
    assert named(compare(first, second), "loop")["to_baseline"] is None


def test_a_run_is_compared_with_its_own_name(tmp_path):
    """A table may hold several runs of a subject, with other work in each."""
    tables = []
    for n in range(2):
        trials = []
        for run, tokens in (("short", 4), ("long", 9)):
            trials += record.read(measured(tmp_path / f"{run}{n}.csv", n, run=run, prompt_tokens=tokens))[0]
        tables.append(record.write(tmp_path / f"both{n}.csv", trials, environment=MACHINE, baseline="step"))
    result = compare(*tables)
    assert [s["name"] for s in result["subjects"]] == ["short: step", "short: loop", "long: step", "long: loop"]
    assert named(result, "long: loop")["to_baseline"]["n_new"] == 16
    assert named(result, "long: step")["to_baseline"] is None


def test_corrupt_lines_are_left_out_on_request(old, tmp_path):
    new = measured(tmp_path / "new.jsonl", 1)
    new.write_text(new.read_text() + "{torn\n")
    with pytest.raises(UserError, match="skip"):
        compare(old, new)
    assert compare(old, new, skip_corrupt=True)["subjects"]
