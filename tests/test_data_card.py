"""`data/README.md` names every table, every column and every word that tells rows apart; its example works."""

import csv
import re
import sys

import pytest

from llama_jax.plumbing import paths

DATA = paths.ROOT / "data"
CARD = (DATA / "README.md").read_text(encoding="utf-8")
TABLES = sorted(DATA.glob("*.csv"))
TELLING = ("phase", "kind", "situation", "outcome", "standing", "program", "followed", "protocol")  # columns
FREE = ("model", "server", "subject")  # a run may begin with what these columns say


def spans(text):
    """What stands in backticks, spaces made one; blocks of code left out."""
    text = re.sub(r"```.*?```", "", text, flags=re.S)
    return {" ".join(span.split()) for span in re.findall(r"`([^`]+)`", text)}


def rows_of(path):
    csv.field_size_limit(sys.maxsize)
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def undefined(rows, card):
    """Columns of a table, and values of telling columns, that a card does not name; runs by their first word."""
    named = spans(card)
    heads = {span.split()[0].rstrip(":") for span in named}
    values = {row[column] for column in TELLING if column in rows[0] for row in rows}
    of_kind = {
        row["run"].split()[0].rstrip(":,")
        for row in rows
        if row.get("run") and not any(row.get(column) and row["run"].startswith(row[column]) for column in FREE)
    }
    columns = {column.strip("`") for column in rows[0]}
    return sorted((columns | values) - named - {""}) + sorted(of_kind - heads)


@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.name)
def test_every_table_column_and_kind_of_row_is_described(path):
    assert path.name in spans(CARD)
    rows = rows_of(path)
    if "quality" in path.stem:  # whose runs are files, types and arithmetics
        rows = [row | dict(run="") for row in rows]
    assert undefined(rows, CARD) == []


KINDS = r"(int8|i?q\d_\w+|bf16|f16|f32|mxfp4)"  # what KIND stands for


@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.name)
def test_every_quantisation_of_a_table_is_described(path):
    found = {row.get("quantisation", "") for row in rows_of(path)} - {""}
    forms = {re.sub(f"^(gguf-|kv-|){KINDS}(\\+|$)", r"\1KIND\3", value) for value in found}
    assert forms - {"int8-dynamic"} <= spans(CARD), forms
    assert "int8-dynamic" in spans(CARD)


def test_what_a_card_does_not_describe_is_found():
    rows = [dict(run="kept", phase="read", model="m", a=""), dict(run="m/x", phase="warm", model="m", a="")]
    assert undefined(rows, "`run` `phase` `model` `warm`") == ["a", "read", "kept"]
    assert undefined(rows, "`run` `phase` `model`: `warm`, `a`, `kept 1`\n`read`") == []


def test_every_table_of_the_card_is_there_or_said_to_be_missing():
    named = {span for span in spans(CARD) if re.fullmatch(r"[\w.-]+\.csv", span)}
    assert named - {path.name for path in TABLES} == {"19-gpu.csv"}


def test_every_table_of_a_notebook_but_one_has_a_meta_file():
    lacking = {path.name for path in TABLES if path.name[:2].isdigit() and not path.with_suffix(".meta.json").exists()}
    assert lacking == {"13-honest-measurement-simulation.csv"}


def test_the_cards_example_works(monkeypatch):
    code = re.findall(r"```python\n(.*?)```", CARD, re.S)
    assert len(code) == 1
    monkeypatch.chdir(paths.ROOT)
    names: dict = {}
    exec(code[0], names)
    assert names["rows"][0].tg > 0
    assert names["meta"]["environment"]["cpu"]
