"""Journals of several machines become one table, and only of the same thing."""

import json

import pytest

from llama_jax.plumbing.errors import UserError
from llama_lab.bench import SCHEMA, record, summary
from llama_lab.bench.journal import Journal
from llama_lab.sharing import merging
from tests.sharing import made

PARAMETERS = dict(model="smollm2-135m-instruct", prompt_tokens=4, new_tokens=4, batch=1, seed=0, baseline="step")


def plan(**changes):
    asked = dict(parameters=PARAMETERS, packages={"jax": "0.10.2"}, source="abc", cpu="A B", settings={}, affinity=[0])
    return {**asked, **changes}


def journal(path, trials=None, cpu="A B", **changes):
    environment = {**made.ENVIRONMENT, "cpu": cpu}
    written = Journal(path, plan(cpu=cpu, **changes), environment=environment)
    for trial in made.rows() if trials is None else trials:
        written.append(trial)
    written.note(process=1, watch={})
    return path


def test_two_machines_stay_apart_in_one_table(tmp_path):
    here, there = journal(tmp_path / "a.jsonl"), journal(tmp_path / "b.jsonl", made.rows(machine=2.0), cpu="C")
    runs = merging.merge([here, there], tmp_path / "both.csv")
    assert [run.machine for run in runs] == [made.MACHINE, "c-avx2-2-cores"]
    trials, about = record.read(tmp_path / "both.csv")
    assert len(trials) == 72
    assert {t.run: t.bandwidth_gbps for t in trials} == {
        f"main · {made.MACHINE}": 20.0,
        "main · c-avx2-2-cores": 40.0,  # the limit of each is its own machine's
    }
    assert about["machines"][f"main · {made.MACHINE}"]["cpu"] == "A B"
    assert about["environment"]["python"] == "3.11.7"
    assert "cpu" not in about["environment"]
    theirs = [t for t in trials if t.run.endswith("c-avx2-2-cores")]
    assert summary.paired_ratio(theirs, "loop", "step").value == pytest.approx(23 / 20, rel=1e-3)


def test_two_runs_of_one_machine_are_told_apart(tmp_path):
    files = [journal(tmp_path / f"{n}.jsonl", made.rows(machine=1 + n / 100)) for n in range(3)]
    merging.merge(files, tmp_path / "all.parquet")
    names = {t.run for t in record.read(tmp_path / "all.parquet")[0]}
    assert names == {f"main · {made.MACHINE}{again}" for again in ("", " (2)", " (3)")}


OTHERS = {  # what the refusal says → what was asked for there, and what is in its rows
    "model is smollm2-135m-instruct in .* and x in": (dict(parameters={**PARAMETERS, "model": "x"}), {}),
    "new_tokens is 4 in .* and 9 in": (dict(parameters={**PARAMETERS, "new_tokens": 9}), {}),
    "weights is w in .* and v in": ({}, dict(weights_hash="v")),
    "version of jax is 0.10.2 in .* and 0.11.0 in": (dict(packages={"jax": "0.11.0"}), {}),
    "the package's own code is abc in .* and xyz in": (dict(source="xyz"), {}),
    "tokens of eager, prompt 0 is t in .* and u in": ({}, dict(tokens_sha256="u")),
}


def refused(files, tmp_path, said):
    with pytest.raises(UserError, match=said):
        merging.merge(files, tmp_path / "both.csv")
    assert not (tmp_path / "both.csv").exists()


@pytest.mark.parametrize("said", OTHERS)
def test_another_thing_is_refused_by_what_differs(tmp_path, said):
    asked, rows = OTHERS[said]
    here = journal(tmp_path / "a.jsonl")
    there = journal(tmp_path / "b.jsonl", made.rows(machine=2.0, **rows), cpu="C", **asked)
    refused([here, there], tmp_path, f"cannot be merged: {said}")


def foreign(lines):
    about = json.loads(lines[0])["meta"]
    del about["meta_sha256"]
    return [json.dumps({"meta": record.sealed({**about, "schema_version": SCHEMA - 1})}) + "\n", *lines[1:]]


DAMAGE = {
    "torn": (lambda lines: [*lines[:-1], lines[-1][:20]], "is incomplete: its last row is cut off"),
    "edited": (lambda lines: [lines[0], lines[1].replace("5000000", "4000000"), *lines[2:]], "line 2 changed since"),
    "foreign schema": (foreign, "has schema 1, this version reads 2"),
    "two journals after each other": (lambda lines: [*lines, *lines], "line 39 changed since"),
    "a row twice": (lambda lines: [*lines, lines[1]], "it mixes runs: eager occurs twice"),
    "no trial": (lambda lines: lines[:1], "holds no trial"),
    "not a journal": (lambda lines: ["hello\n"], "line 1 does not say"),
}


@pytest.mark.parametrize(("change", "said"), DAMAGE.values(), ids=DAMAGE)
def test_what_is_not_whole_is_refused(tmp_path, change, said):
    here, there = journal(tmp_path / "a.jsonl"), journal(tmp_path / "b.jsonl", made.rows(machine=2.0), cpu="C")
    there.write_text("".join(change(there.read_text().splitlines(keepends=True))))
    refused([here, there], tmp_path, said)


def test_rows_of_another_run_one_file_twice_one_alone_a_table_and_no_file_are_refused(tmp_path):
    here = journal(tmp_path / "a.jsonl")
    mixed = journal(tmp_path / "b.jsonl", [*made.rows(), *made.rows(run="x")])
    table = record.write(tmp_path / "t.jsonl", made.rows(machine=2.0), environment={})
    refused([here, mixed], tmp_path, "b.jsonl cannot be merged: it mixes runs: run is main and x")
    refused([here], tmp_path, "two journals or more")
    refused([here, here], tmp_path, "hold the same run")
    refused([here, table], tmp_path, "is not a journal of")
    refused([here, tmp_path / "no.jsonl"], tmp_path, "There is no file")
