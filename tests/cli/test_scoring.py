"""`llama-jax score`: what `ll.score` says, from files and standard input."""

import csv
import json
import math
import subprocess
import sys

import pytest

import llama_jax as ll
from tests.cli.test_cli import SMALL, last_json

TEXTS = ["5 6 7 8", "9 10"]


def expected(*arguments):
    return ll.score(ll.build(ll.load(SMALL), "step"), *arguments)


def test_a_table_json_and_a_row_a_token(call, tmp_path):
    file, out = tmp_path / "texts.txt", tmp_path / "tokens.csv"
    file.write_bytes(b"5 6 7 8\r\n\r\n9 10\n")
    found, line = expected([[5, 6, 7, 8], [9, 10]]), ("score", file, "--model", SMALL, "--csv", out)
    said = last_json(call(*line, "--json")[1])
    assert [entry["log_likelihood"] for entry in said["texts"]] == pytest.approx([one.total for one in found], rel=1e-5)
    assert (said["tokens"], said["placement"]) == (4, "step")
    assert said["perplexity"] == pytest.approx(math.exp(-sum(one.total for one in found) / 4), rel=1e-5)
    rows = list(csv.DictReader(out.open()))
    assert [(row["text"], row["id"]) for row in rows] == [("0", "6"), ("0", "7"), ("0", "8"), ("1", "10")]
    assert sum(float(row["logprob"]) for row in rows) == pytest.approx(said["log_likelihood"], rel=1e-5)
    code, table, _ = call(*line)
    assert (code, table.count("\n")) == (0, 4)
    assert f"{said['texts'][0]['log_likelihood']:,.2f}" in table


def test_continuations_from_standard_input():
    lines = [dict(context="5 6", continuation=" 7 8"), dict(text="9 10")]
    done = subprocess.run(
        [sys.executable, "-m", "llama_lab", "score", "-", "--model", SMALL, "--json"],
        input="\n".join(map(json.dumps, lines)), capture_output=True, text=True, check=True,
    )  # fmt: skip
    found = expected([[7, 8], [9, 10]], [[5, 6], []])
    told = [entry["log_likelihood"] for entry in last_json(done.stdout)["texts"]]
    assert told == pytest.approx([one.total for one in found], rel=1e-4)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"\n \n", "has no text to score"),
        (b'{"text": "1 2"}\nplain', "line 2 is not JSON"),
        (b'{"text": "1 2", "context": "3"}', "line 1: it holds"),
        (b'{"context": "1 2"}', "it must have text, or context and continuation"),
        (b'{"txt": "1 2"}', "txt"),
        (b"\xff", "is not UTF-8"),
        (b"5", "Text 0 has no token to score"),
        (None, "No such file"),
    ],
)
def test_what_is_no_text_is_one_line(call, tmp_path, content, words):
    file = tmp_path / "texts.txt"
    if content is not None:
        file.write_bytes(content)
    code, out, err = call("score", file, "--model", SMALL)
    assert (code, out) == (2, "")
    assert words in err
    assert err.count("\n") == 1
