"""What made-up requests say, by hand."""

import pytest

from llama_lab.bench.frames import show
from llama_lab.bench.statistics import Summary
from llama_lab.experiments.what_serving_needs import finding, table
from tests.experiments.what_serving_needs.made import META, NOTES, campaign, request, voided


def test_a_loads_numbers():
    (e,) = table.loads([request(order=i, first_ms=100 + i) for i in range(10)])
    assert (e["n"], e["refused"], e["void"]) == (10, 0, 0)
    assert (e["first"].n, e["first"].median) == (10, pytest.approx(104.5))
    assert e["gaps"] == 40
    assert e["gap"] == dict(p50=pytest.approx(20), p99=None)
    # the last is due at 10 s, and its last piece comes after 109 ms and 4 gaps of 20 ms
    assert e["tokens_s"] == pytest.approx(50 / 10.189)
    assert e["offered"] == pytest.approx(50 / 10)
    assert e["padding"] == pytest.approx(1 - 20 / 32)
    assert (e["programs"], e["warm_s"], e["late"]) == (None, None, 0.001)
    paddings = {}
    for server in ("step+donate", "step+fused"):
        (e,) = table.loads([request(server=server, prompt_tokens=37)])
        paddings[server] = e["padding"]
    assert paddings == {"step+donate": pytest.approx(1 - 37 / 48), "step+fused": pytest.approx(1 - 37 / 64)}


def test_a_percentile_that_the_sample_holds_is_given():
    (e,) = table.loads([request(order=i, first_ms=i, pieces=11) for i in range(100)])
    assert e["gap"]["p99"] == pytest.approx(20)


def test_refused_requests_are_no_first_tokens_and_void_ones_are_not_counted():
    rows = [request(order=0), request(order=1, pieces=0), *voided([request(order=2, first_ms=9e9)])]
    (e,) = table.loads(rows)
    assert (e["n"], e["refused"], e["void"]) == (3, 1, 1)
    assert (e["first"].n, e["first"].median, e["gaps"]) == (1, 100, 4)
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
    assert {e["padding"] for e in rising["ollama"]} == {None}
    assert [e["slots"] for e in table.by_slots(entries, META)] == [1, 4, 8, 4]  # the second has its own alone
    frame = show([e for loads in rising.values() for e in loads], table.RISING)
    assert frame.loc[("step+donate", "4"), "refused"] == 2
    assert frame.loc[("ollama", "1"), "gap P99 ms"] == "needs n ≥ 1,000"


def test_the_servers_are_compared_at_the_best_rate_of_ours_and_it_is_said_what_was_measured():
    said = finding.answer(
        {
            "step": [load("step", 1.0, 9.0, 10.0), load("step", 4.0, 39.0, 40.0)],
            "ollama": [load("ollama", 1.0, 9.5, 10.0, "ollama"), load("ollama", 4.0, 8.0, 40.0, "ollama", refused=2)],
        },
        "Shapes cost much",
    )
    assert ". Shapes cost much. Asked" in said
    served = "`llama-jax serve` (`step`) delivers 39, Ollama 8 (2 of its 9 refused)."
    assert f" Asked for 40 tokens/s (4.5 requests/s), {served}" in said
    assert said.endswith(" Asked for 10 (1.5 requests/s), it delivers 9 and Ollama 10.")
    alone = {"step": [load("step", 4.0, 39.0, 40.0)], "ollama": [load("ollama", 4.0, 8.0, 40.0, "ollama")]}
    said = str(finding.claim(alone))
    assert said == "Asked for 40 tokens/s (4.5 requests/s), `llama-jax serve` (`step`) delivers 39, Ollama 8."
    behind = finding.claim(
        {"step": [load("step", 4.0, 20.0, 40.0)], "ollama": [load("ollama", 1.0, 9.0, 10.0, "ollama")]}
    )
    assert str(behind) == "Under load `llama-jax serve` (`step`) makes at most 20 tokens/s, Ollama 9."
    assert str(finding.claim({"ollama": [load("ollama", 1.0, 9.0, 10.0, "ollama")]})).startswith("Under load Ollama")


def load(server, rate, tokens_s, offered, backend="jax", refused=0):
    """Of nine requests, which arrive a little faster than was set."""
    return dict(
        server=server,
        rate=rate,
        arrived=rate + 0.5,
        n=9,
        tokens_s=tokens_s,
        offered=offered,
        backend=backend,
        refused=refused,
        void=0,
        first=Summary(3, *[1] * 4),
    )


def test_what_more_slots_do_and_who_keeps_up_is_said_by_the_data():
    rows = [request(rate=1.0, order=i, slots=k, first_ms=100 + 50 / k) for k in (1, 8) for i in range(12)]
    (said,) = finding.with_slots(table.loads(rows))
    assert said.startswith(
        "step+donate with 1 and 8 slots: median first token 150 and 106 ms; median gap 20.0 and 20.0 ms;"
    )
    assert "P99" not in said  # there are too few gaps
    assert said.endswith("0.1 answers under way on average with 8")
    rising = {
        "ollama": [load("ollama", 1.0, 9.5, 10.0), load("ollama", 2.0, 9.0, 20.0)],
        "step": [load("step", 2.0, 20.0, 20.0)],
    }
    assert finding.keeping_up(rising) == [
        "Ollama falls behind at 2.5 requests/s",
        "step keeps up at 2.5 requests/s, the highest rate asked of it",
    ]


def test_a_server_falls_behind_where_it_stays_behind():
    def loads(*shares, refused=0):
        given = dict(offered=1.0, refused=refused)
        return [dict(rate=i, arrived=2.0 ** (i - 1), tokens_s=share) | given for i, share in enumerate(shares, start=1)]

    assert finding.falls_behind(loads(1.0, 0.89, 0.98, 0.4)) == 8
    assert finding.falls_behind(loads(1.0, 0.89, 0.98)) is None
    assert finding.falls_behind(loads(0.5, 0.4)) == 1
    assert finding.falls_behind(loads(1.0, refused=1)) == 1
