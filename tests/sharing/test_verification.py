"""Each check of a contributed file fires on a file that has only that fault, all digests made anew after it."""

import json

import pytest

from llama_jax.plumbing import runtime
from llama_jax.plumbing.errors import UserError
from llama_lab.bench import AGAIN
from llama_lab.sharing import contribution, verification
from tests.sharing import made


@pytest.mark.parametrize("path", sorted(contribution.FOLDER.glob("*.jsonl")), ids=lambda path: path.name)
def test_what_people_contributed_is_sound(path):
    assert verification.check(path).problems == []


def test_a_whole_file_is_sound(tmp_path):
    found = verification.check(made.contributed(tmp_path))
    assert (found.machine, len(found.trials), found.problems) == (made.MACHINE, 36, [])


def reasons(path):
    return [problem.reason for problem in verification.check(path).problems]


def twin(rows):
    return [row for row in rows if row["subject"] == "step" + AGAIN]


def slowed(rows):
    for row in rows:
        row.update(token_times_ns=[t * 2 for t in row["token_times_ns"]])


WRONG = {"product and sum in float32": "wrong: 1 instead of 2"}
FAULTS = {  # what the check says first → the fault
    "it mixes runs: run is main and other": lambda a, rows: rows[1].update(run="other"),
    "it mixes runs: weights hash is v and w": lambda a, rows: rows[1].update(weights_hash="v"),
    "it mixes runs: step occurs twice in block 0": lambda a, rows: rows.append(rows[1]),
    "it is of x, every machine measures": lambda a, rows: [row.update(model="x") for row in rows],
    "its baseline is loop, not step": lambda a, rows: a.update(baseline="loop"),
    "its subject lop is invalid": lambda a, rows: rows[3].update(subject="lop"),
    "loop, block 0: its tokens are not those": lambda a, rows: rows[3].update(tokens_sha256="u"),
    "it counts though wrong: token 1": lambda a, rows: rows[3].update(reason="wrong: token 1"),
    "its 3 times are not those of 4 tokens": lambda a, rows: rows[3]["token_times_ns"].pop(),
    "its 4 times are not those of 4 tokens": lambda a, rows: rows[3]["token_times_ns"].reverse(),
    "it counts though 1 programs were made in it": lambda a, rows: rows[3].update(compiled=1),
    "it counts though 2 programs were made in it": lambda a, rows: rows[3].update(lowered=2),
    "0 of its blocks have the baseline twice": lambda a, rows: [r.update(subject="loop+scan") for r in twin(rows)],
    "the machine was not quiet, measure again: A/A control 0.50x [0.50, 0.50]": lambda a, rows: slowed(twin(rows)),
    "this JAX computes wrong values (jax #39103)": lambda a, rows: a["environment"]["runtime"].update(WRONG),
    "it shows a place or an address: /home/alice": lambda a, rows: rows[3].update(reason="in /home/alice/x.py"),
    "it shows a place or an address: http://10": lambda a, rows: a["doctor"].update(ollama="at http://10.0.0.7:1"),
    "is not what its environment gives": lambda a, rows: a.update(machine="mine"),
    "has no doctor": lambda a, rows: a.pop("doctor"),
    "cores is 'two'": lambda a, rows: a["environment"].update(cores="two"),
    "environment.runtime is {}": lambda a, rows: a["environment"].update(runtime={}),
    "holds rows of the kind Served": lambda a, rows: a.update(kind="Served"),
    "has schema 1, this version reads 2": lambda a, rows: a.update(schema_version=1),
    "line 5 cannot be read": lambda a, rows: rows[3].update(colour="red"),
}


@pytest.mark.parametrize("said", FAULTS)
def test_a_fault_is_found_by_its_own_check(tmp_path, said):
    path = made.rewritten(made.contributed(tmp_path))
    assert reasons(path) == []  # rewriting alone is no fault
    (first, *_) = every = reasons(made.rewritten(path, FAULTS[said]))
    assert said in first, every
    assert all("\n" not in reason and str(tmp_path) not in reason for reason in every)


def edited(at, change):
    """Lines of which one is another JSON document."""

    def damage(lines):
        row = json.loads(lines[at])
        change(row)
        return [*lines[:at], json.dumps(row) + "\n", *lines[at + 1 :]]

    return damage


DAMAGE = {
    "a row edited": (edited(3, lambda row: row.update(tokenize_ns=1)), "line 4 changed since it was written."),
    "a row without its digest": (edited(2, lambda row: row.pop("row_sha256")), "line 3 changed since it was written"),
    "the meta edited": (lambda lines: [lines[0].replace('"avx2"', '"avx512vnni"'), *lines[1:]], "is not as it was"),
    "torn": (lambda lines: [*lines[:-1], lines[-1][:-40]], "line 37 cannot be read"),
    "torn in its first line": (lambda lines: [lines[0][:50]], "line 1 does not say what the file holds"),
    "a row gone": (lambda lines: lines[:-1], "rows are not the 36 that were written"),
    "a row doubled": (lambda lines: [*lines, lines[1]], "rows are not the 36 that were written"),
    "rows moved": (lambda lines: [lines[0], *lines[:0:-1]], "rows are not the 36 that were written"),
}


@pytest.mark.parametrize(("damage", "words"), DAMAGE.values(), ids=DAMAGE)
def test_what_changed_since_it_was_written_is_noticed(tmp_path, damage, words):
    path = made.contributed(tmp_path)
    path.write_text("".join(damage(path.read_text().splitlines(keepends=True))))
    assert words in reasons(path)[0]


def test_another_name_is_noticed_and_no_file_is_one_line(tmp_path):
    path = made.contributed(tmp_path)
    assert "is not what its environment gives" in reasons(path.rename(tmp_path / "mine.jsonl"))[0]
    with pytest.raises(UserError, match=r"There is no file .*; `llama-jax contribute` writes one"):
        verification.check(tmp_path / "nothing.jsonl")


def test_void_rows_near_ties_a_control_that_spreads_and_what_this_package_does_not_meet_are_no_fault(tmp_path):
    trials = made.rows()

    def change(at, **fields):
        trials[at] = trials[at].model_copy(update=fields)

    change(3, valid=False, reason="wrong: token 1 is 2", tokens_sha256="u")
    change(9, valid=False, reason="compiled in the timed region: 1", compiled=1)
    change(15, reason="near-tie at token 2", tokens_sha256="u")
    for at, factor in ((1, 1.3), (2 + 6, 1.3), (1 + 12, 1.2), (2 + 18, 1.2)):  # the first or the second run of a block
        change(at, token_times_ns=[round(t * factor) for t in trials[at].token_times_ns])
    avoided = next(check for check in runtime.CHECKS if check.avoided)
    environment = {**made.ENVIRONMENT, "runtime": {avoided.name: "wrong: 1 instead of 2"}}
    assert reasons(made.contributed(tmp_path, trials, environment=environment)) == []
