"""What a model samples under a schema satisfies it, and what does not would be found."""

import csv

import pytest

import llama_jax as ll
from llama_jax.generate import Answer
from llama_jax.plumbing import paths
from llama_lab.reporting import keys, structured
from tests.grammars import sampled
from tests.grammars.examples import SCHEMAS

FILE = paths.ROOT / "data" / "structured-answers.csv"
SOME = ("enum of escapes", "nested objects", "$ref", "recursive")


@pytest.fixture(scope="module")
def loaded(packaged):
    return sampled.random_model(packaged)


def test_sampled_answers_satisfy_their_schema_or_can_go_on(loaded):
    found = sampled.rows([(loaded, 8)], SOME)
    assert [row["followed"] for row in found] == ["table"] * 3 + ["host"]
    assert not any(row["invalid"] or row["dead"] for row in found), found
    assert sum(row["valid"] for row in found) >= 8


@pytest.mark.parametrize(
    ("schema", "text", "reason", "found"),
    [
        (dict(type="integer"), "12", "stop", "valid"),
        (dict(type="integer"), '"a"', "stop", "invalid"),
        (dict(type="integer"), "1 2", "stop", "invalid"),
        (dict(type="string", format="date"), '"2023-02-29"', "stop", "invalid"),
        (dict(type="string", format="time"), '"10:55:32.8-13:03"', "stop", "valid"),
        (dict(type="string", format="time"), '"24:00:00Z"', "stop", "invalid"),
        (dict(type="integer"), "12", "length", "cut"),
        (dict(type="integer"), "1a", "length", "dead"),
    ],
)
def test_each_verdict_is_reached(loaded, schema, text, reason, found):
    ids = loaded.tokenizer.encode(text, special=False)
    answer = Answer((*ids, *loaded.tokenizer.stop[:1]) if reason == "stop" else tuple(ids), reason)
    assert sampled.verdict(schema, ll.grammar(schema, loaded), answer, loaded.tokenizer) == found


def test_the_recorded_answers_are_a_thousand_and_none_is_wrong():
    with FILE.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["schema"] for row in rows[::2]] == [row["schema"] for row in rows[1::2]] == [*SCHEMAS]
    assert sum(int(row["answers"]) for row in rows) == 1000
    assert not any(int(row["invalid"]) or int(row["dead"]) for row in rows)


def test_the_page_has_the_recorded_numbers():
    begin, end = keys.marks("structured-answers")
    text = (paths.ROOT / "docs" / "structured-answers.md").read_text(encoding="utf-8")
    assert f"{begin}\n{structured.sentences(FILE)}\n{end}" in text


def test_what_is_wrong_is_told(tmp_path):
    """As a number of each kind, and nothing but whole and cut answers counts as right."""
    lines = "schema,model,answers,valid,invalid,cut,dead", "x,m,5,4,0,1,0", "x,n,4,1,1,1,1"
    (tmp_path / "a.csv").write_text("\n".join(lines), encoding="utf-8")
    said = structured.sampled(tmp_path / "a.csv")
    assert "Of 9 answers that m (5) and n (4) sampled at temperature 1 under 1 schemas" in said
    assert "6 ended by themselves. 5 of these" in said
    assert "cut the other 3; 2 of these" in said
    right = {"form: 200": 4, "form, streamed: cut": 2, "hostile form: 400": 3, "answer: 200": 1}
    assert "6 of 10 requests asked for JSON of a schema: 4 got" in structured.soaked(right)
    assert "None of these requests ended in any other way" in structured.soaked(right)
    for wrong in ("form: invalid", "form, streamed: 500", "hostile form: 200"):
        assert "2 of these requests ended in any other way" in structured.soaked(right | {wrong: 2})
