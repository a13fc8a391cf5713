"""What made-up requests say, by hand; and the sentence."""

from types import SimpleNamespace

import pytest

from llama_lab.bench.frames import show
from llama_lab.experiments.what_serving_needs import finding, table
from tests.experiments.what_serving_needs.made import META, NOTES, campaign, request, voided


def by(entries):
    return {(e["server"], e["slots"], e["shapes"], e["rate"]): e for e in entries}


def test_a_loads_numbers():
    (e,) = table.loads([request(order=i, first_ms=100 + i) for i in range(10)])
    assert (e["n"], e["answered"], e["refused"], e["void"]) == (10, 10, 0, 0)
    assert (e["first"].n, e["first"].median) == (10, pytest.approx(104.5))
    assert e["tail"] == dict(p90=None, p95=None, p99=None)
    assert e["tail_note"].startswith("p90 needs 100 and p95 needs 200 and p99 needs 1,000 values, there are 10")
    assert e["gaps"] == 40
    assert e["gap"] == dict(p50=pytest.approx(20), p99=None)
    assert e["gap_note"] == "p99 needs 1,000 values, there are 40"
    # the last is due at 10 s, and its last piece comes after 109 ms and 4 gaps of 20 ms
    assert e["tokens_s"] == pytest.approx(50 / 10.189)
    assert e["offered"] == pytest.approx(50 / 10)
    assert e["padding"] == pytest.approx(1 - 20 / 32)
    assert (e["programs"], e["warm_s"], e["late"]) == (None, None, 0.001)


def test_a_percentile_that_the_sample_holds_is_given():
    (e,) = table.loads([request(order=i, first_ms=i, pieces=11) for i in range(100)])
    assert e["tail"]["p90"] == pytest.approx(89.1)
    assert e["tail"]["p95"] is None
    assert e["gap"]["p99"] == pytest.approx(20)
    assert table.tail_of([e]) == 90
    assert table.tail_of([]) is None


def test_refused_requests_are_no_first_tokens_and_void_ones_are_not_counted():
    rows = [request(order=0), request(order=1, pieces=0), *voided([request(order=2, first_ms=9e9)])]
    (e,) = table.loads(rows)
    assert (e["n"], e["answered"], e["refused"], e["void"]) == (3, 1, 1, 1)
    assert e["first"].median == 100
    (nobody,) = table.loads([request(pieces=0)])
    assert nobody["first"].n == nobody["gaps"] == 0
    assert nobody["padding"] is None


def test_loads_find_their_places():
    entries = table.loads(campaign(), NOTES)
    rising = table.rising(entries, META)
    assert list(rising) == ["step+donate", "step+fused", "ollama"]
    assert all([e["rate"] for e in loads] == [1.0, 4.0] for loads in rising.values())
    shapes = table.by_shapes(entries, META)
    assert [(e["server"], e["shapes"], e["programs"], e["compiled"]) for e in shapes] == [
        (server, *rest)
        for server in ("step+donate", "step+fused")
        for rest in (("one", 4, 0), ("buckets", 8, 0), ("exact", 2, 7))
    ]
    assert [e["padding"] for e in shapes[:3]] == [pytest.approx(1 - 20 / 256), pytest.approx(1 - 20 / 32), 0]
    assert by(entries)["ollama", 4, "buckets", 1.0]["padding"] is None
    assert [e["slots"] for e in table.by_slots(entries, META)] == [1, 4, 8, 4]  # the second has its own alone
    frame = show(entries, table.COLUMNS)
    assert frame.loc[("step+donate", 4, "buckets", 4.0), "refused"] == 2
    assert frame.loc[("ollama", 4, "buckets", 1.0), "first P99"] == "needs n ≥ 1,000"


@pytest.mark.parametrize(
    ("made", "does"),
    [(99.0, "step makes 99 tokens/s, about all that was asked for"), (60.0, "step serves 60 tokens/s at most")],
)
def test_who_makes_what_is_asked_for_might_make_more(made, does):
    load = dict(first=SimpleNamespace(n=3), server="step", backend="jax", tokens_s=made, offered=100.0)
    other = load | dict(server="ollama", backend="ollama", tokens_s=40.0)
    said = finding.claim(dict(step=[load], ollama=[other]))
    assert said == f"As requests become more frequent, {does}; ollama makes at most 40."


def test_the_sentence():
    said = finding.serving(table.loads(campaign(), NOTES), META)
    assert said.startswith("As requests become more frequent, step+")
    assert " Under load step+donate makes up to " in said
    assert " tokens/s (first token, P50: 106 ms at 1/s and 1004 ms at 4/s, with 2 of 12 refused), step+fused " in said
    assert " and ollama makes up to " in said
    assert (
        "step+fused at 1/s: with one shape 92% is padding, the first token (P50) comes after 150 ms and 0 programs"
        " compile in service, with few shapes 38% is padding, the first token (P50) comes after 56 ms and 0 programs"
        " compile in service and with exact lengths 0% is padding, the first token (P50) comes after 400 ms and 7"
        " programs compile in service; " in said
    )
    assert "; from 1 to 8 slots of step+donate the first token changes (150 ms and 106 ms), " in said
    assert "; 12 of 12 answers that generate made again alone are the same; " in said
    assert said.endswith("; llama.cpp's server was not measured here.")
    assert finding.serving([], META | dict(missing=[])) == "Nothing was measured."


@pytest.mark.parametrize(
    ("reason", "valid", "words"),
    [
        ("near-tie at token 3", True, "1 of 2 answers that generate made again alone are the same, 1 parts at a near"),
        ("wrong: token 3 is 5", False, "1 of 2 answers that generate made again alone are the same, 1 is wrong"),
    ],
)
def test_answers_that_parted_are_said(reason, valid, words):
    rows = [request(gated=True), request(order=1, gated=True, valid=valid, reason=reason)]
    assert words in finding.serving(table.loads(rows), META)
