"""What the rows of request streams say, on made-up rows."""

import math

import numpy as np
import pytest

from llama_lab.bench import compile_causes, workload
from llama_lab.bench.frames import show
from llama_lab.experiments.shapes_and_recompilation import measure, table
from llama_lab.experiments.shapes_and_recompilation.measure import Served
from tests.bench.test_record import trial

pytestmark = pytest.mark.usefixtures("compiling")

SHAPE = (
    "TRACING CACHE MISS at llama_jax/generate.py:150:27 (decode): for one_step defined at"
    " llama_jax/transforms.py:115 all"
    " previously seen cache keys differ. For the closest previous key: different input types: * at ids,"
    " now i32[1,9] and before"
    " i32[1,5]"
)
NEW = (
    "TRACING CACHE MISS at llama_jax/generate.py:130:19 (prefill): never seen function: first defined at"
    " llama_jax/transforms.py:101"
)


def row(experiment, subject, block=0, order=0, phase="cold", seconds=1.0, programs=0, lost=0.0, **changes):
    """A request of three tokens; `lost` seconds of it went to compiling."""
    known = dict(
        padded_tokens=16,
        rows_asked=1,
        tokens_asked=8,
        prompt_tokens=8,
        run=f"{experiment}: {subject}",
        order=order,
        phase=phase,
        compiled=programs,
        lowered=programs,
        trace_ns=round(lost * 1e8),
        lower_ns=round(lost * 2e8),
        backend_ns=round(lost * 7e8),
        cause="" if not programs else SHAPE if order else NEW,
    )
    made = trial(subject, block, np.linspace(100, 1000 * seconds, 3))
    return Served(**{**made.model_dump(), **known, **changes})


def stream(experiment, subject, programs, processes=2, warm=0.5, each=1.0, **changes):
    """Three requests, of which the k-th compiles programs[k], a program a second, later processes 1 % slower; then the
    same warm."""
    made = []
    for block in range(processes):
        slower = 1 + block / 100
        for i, n in enumerate(programs):
            lost = n * each * slower
            made.append(
                row(
                    experiment,
                    subject,
                    block,
                    i,
                    seconds=(warm + 0.1) * slower + lost,
                    programs=n,
                    lost=lost,
                    **changes,
                )
            )
            made.append(row(experiment, subject, block, i, "warm", seconds=warm * slower, **changes))
    return made


def everything(processes=2):
    compiled = {
        workload.GROWING: (3, 3, 3),
        workload.EXACT: (2, 2, 2),
        workload.BUCKETS: (2, 2, 0),
        workload.POWERS: (2, 1, 0),
        workload.ONE: (2, 0, 0),
    }
    warm = {
        workload.GROWING: 0.7,
        workload.EXACT: 0.5,
        workload.BUCKETS: 0.55,
        workload.POWERS: 0.6,
        workload.ONE: 0.65,
    }
    made = [r for s, n in compiled.items() for r in stream(measure.SHAPES, s, n, processes, warm[s])]
    for experiment in table.SURPRISES:
        bad, cured = measure.SUBJECTS[experiment]
        made += stream(experiment, bad, (2, 0, 2), processes) + stream(experiment, cured, (2, 0, 0), processes)
    return made


def test_an_account_counts_programs_and_seconds_of_the_cold_stream_only():
    a = table.account(everything(), measure.SHAPES, workload.BUCKETS)
    assert (a.requests, a.blocks, a.programs, a.surprises) == (3, (0, 1), 4, 2)
    assert a.lost == pytest.approx((4, 4.04))
    assert a.later == pytest.approx((2, 2.02))
    assert a.total == pytest.approx((3 * 0.65 + 4, (3 * 0.65 + 4) * 1.01))
    assert a.warm == pytest.approx((3 * 0.55, 3 * 0.55 * 1.01))
    assert a.padding == pytest.approx(0.5)
    assert a.rate == pytest.approx(9 / np.median(a.warm))
    assert a.why == "shape: i32[1,9], before i32[1,5]"
    assert (a.wrong, a.void) == (0, 0)
    assert table.account(everything(), measure.SHAPES, workload.ONE).why == ""


def test_dummy_rows_are_padding_and_make_no_tokens():
    rows = stream(measure.LAST, measure.PADDED, (2, 0, 0), batch=4, rows_asked=2, tokens_asked=16)
    a = table.account(rows, measure.LAST, measure.PADDED)
    assert a.padding == pytest.approx(1 - 16 / 64)
    assert a.tokens == 3 * 3 * 2


def test_a_stream_with_wrong_tokens_has_no_time_but_keeps_its_programs():
    rows = everything()
    spoilt = [
        r.model_copy(update=dict(valid=False, reason="wrong: token 0 is 1"))
        if r.subject == workload.ONE and r.order == 1
        else r
        for r in rows
    ]
    found = table.accounts(spoilt, measure.SHAPES)
    one = found[-1]
    assert all(map(math.isnan, one.total + one.warm))
    assert (one.programs, one.wrong, one.void) == (2, 2, 2)
    assert table.fastest(found).subject == workload.POWERS
    assert workload.ONE not in table.all_parts(found)
    assert table.ratios(found)[workload.ONE].n == 0
    none = [r.model_copy(update=dict(valid=False)) for r in rows]
    assert table.fastest(table.accounts(none, measure.SHAPES)) is None


def test_a_warm_request_that_compiles_takes_the_warm_time_away():
    rows = [
        r.model_copy(update=dict(valid=False))
        if (r.subject, r.phase, r.block, r.order) == (workload.ONE, "warm", 0, 2)
        else r
        for r in everything()
    ]
    one = table.account(rows, measure.SHAPES, workload.ONE)
    assert math.isnan(one.warm[0])
    assert math.isfinite(one.warm[1])
    assert one.void == 1


def test_parts_add_up_to_the_total():
    found = table.accounts(everything(3), measure.SHAPES)
    for a in found:
        pieces = table.all_parts(found)[a.subject]
        assert sum(pieces.values()) == pytest.approx(np.median(a.total))
        assert all(value >= 0 for value in pieces.values())
        assert pieces["useful work"] == pytest.approx(1.5 * 1.01)
        assert pieces["padding"] == pytest.approx(np.median(a.warm) - 1.5 * 1.01)
        assert pieces["compiling"] == pytest.approx(np.median(a.lost))


def test_ratios_pair_what_ran_in_the_same_block():
    growing, *_, one = table.accounts(everything(3), measure.SHAPES)
    found = table.ratio(growing, one)
    assert found.value == pytest.approx((3 * 0.8 + 9) / (3 * 0.75 + 2))
    assert (found.low, found.high) == pytest.approx((found.value, found.value))  # the drift is common to both
    assert found.n == 3
    assert table.ratio(growing, one, of="warm").value == pytest.approx(0.7 / 0.65)
    alone = table.accounts(everything(1), measure.SHAPES)
    assert "[" not in table.ratio(alone[0], alone[-1]).words


def test_compiling_more_pays_back_only_where_warm_requests_are_faster():
    growing, precise, *_, one = table.accounts(everything(), measure.SHAPES)
    assert table.repays(precise, one) == pytest.approx(4 / (3 * 0.15), rel=0.02)
    assert table.repays(growing, one) == math.inf
    assert table.repays(one, precise) == 0
    assert "about 9 more times" in table.repays_words(precise, one)
    assert "never paid back" in table.repays_words(growing, one)
    single = table.accounts(everything(1), measure.SHAPES)
    assert "not shown to be faster once warm (takes 0.77x as long, n = 1)" in table.repays_words(single[1], single[-1])
    assert table.repays_words(one, precise) == "loses no more to first calls than exact lengths"


def test_lanes_are_medians_by_request():
    lane = table.by_request(everything(3), workload.POWERS)
    assert [step["programs"] for step in lane] == [2, 1, 0]
    assert [step["seconds"] for step in lane] == pytest.approx([2.02, 1.01, 0])
    assert {step["tokens"] for step in lane} == {8}


def test_tables_for_people():
    rows = everything()
    frame = show(table.accounts(rows, measure.SHAPES), table.COLUMNS)
    assert list(frame.index) == list(workload.POLICIES)
    assert list(frame["programs"]) == [9, 6, 4, 3, 2]
    why = table.cause_frame(rows).set_index(["run", "cause"])
    assert why.loc[(f"{measure.SHAPES}: {workload.GROWING}", "shape"), "requests"] == 4
    assert why.loc[(f"{measure.SHAPES}: {workload.ONE}", compile_causes.FIRST), "requests"] == 2
    assert why["in JAX's words"].str.startswith("(decode): different input types").any()
    assert "2 programs and" in table.cure_words("x", *table.surprises(rows)["reloaded weights"])


def test_draws_are_compared_where_nothing_was_greedy():
    def drawn(subject, order, change, tokens):
        return row(measure.SAMPLING, subject, order=order, change=change, tokens_sha256=tokens)

    rows = [drawn(s, 0, "greedy", s) for s in (measure.STATIC, measure.TRACED)]
    rows += [drawn(s, 1, "temperature 0.7", "same") for s in (measure.STATIC, measure.TRACED)]
    rows += [drawn(s, 2, "temperature 1, top-p 0.9", s) for s in (measure.STATIC, measure.TRACED)]
    assert table.draws_words(rows).startswith("1 of 2 drawn answers")
