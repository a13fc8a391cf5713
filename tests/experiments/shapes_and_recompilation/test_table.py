"""What the rows of request streams say and what charts draw of them, on made-up rows."""

import math
import re
from dataclasses import replace

import numpy as np
import pytest

from llama_lab.bench import compile_causes, workload
from llama_lab.bench.frames import show
from llama_lab.bench.statistics import Ratio
from llama_lab.experiments.shapes_and_recompilation import chart, measure, table
from llama_lab.experiments.shapes_and_recompilation.measure import Served
from tests.bench.test_record import trial
from tests.figures.drawn import assert_drawn, words

pytestmark = pytest.mark.usefixtures("compiling")

SHAPE = (
    "TRACING CACHE MISS at llama_jax/generate.py:150:27 (decode): for one_step defined at llama_jax/transforms.py:115"
    " all previously seen cache keys differ. For the closest previous key: different input types: * at ids, now"
    " i32[1,9] and before i32[1,5]"
)
NEW = (
    "TRACING CACHE MISS at llama_jax/generate.py:130:19 (prefill): never seen function: first defined at"
    " llama_jax/transforms.py:101"
)
POLICIES = {  # programs that each request compiles, and seconds of a warm one
    workload.GROWING: ((3, 3, 3), 0.7),
    workload.EXACT: ((2, 2, 2), 0.5),
    workload.BUCKETS: ((2, 2, 0), 0.55),
    workload.POWERS: ((2, 1, 0), 0.6),
    workload.ONE: ((2, 0, 0), 0.65),
}


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


def stream(experiment, subject, programs, processes=2, warm=0.5, **changes):
    """Three requests, of which the k-th compiles programs[k], a program a second, later processes 1% slower; then the
    same warm."""
    made = []
    for block in range(processes):
        slower = 1 + block / 100
        for i, n in enumerate(programs):
            asked, lost = (experiment, subject, block, i), n * slower
            cold = dict(seconds=(warm + 0.1) * slower + lost, programs=n, lost=lost)
            made += [row(*asked, **cold, **changes), row(*asked, "warm", seconds=warm * slower, **changes)]
    return made


def everything(processes=2):
    made = [r for s, (n, warm) in POLICIES.items() for r in stream(measure.SHAPES, s, n, processes, warm)]
    for experiment in table.SURPRISES:
        bad, cured = measure.SUBJECTS[experiment]
        made += stream(experiment, bad, (2, 0, 2), processes) + stream(experiment, cured, (2, 0, 0), processes)
    return made


def spoilt(where, **changes):
    return [r.model_copy(update=dict(valid=False) | changes) if where(r) else r for r in everything()]


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
    with pytest.raises(KeyError, match=f"{measure.SHAPES}: absent"):
        table.account(everything(), measure.SHAPES, "absent")


def test_dummy_rows_are_padding_and_make_no_tokens():
    rows = stream(measure.LAST, measure.PADDED, (2, 0, 0), batch=4, rows_asked=2, tokens_asked=16)
    a = table.account(rows, measure.LAST, measure.PADDED)
    assert a.padding == pytest.approx(1 - 16 / 64)
    assert a.tokens == 3 * 3 * 2


def test_a_stream_with_wrong_tokens_has_no_time_but_keeps_its_programs():
    rows = spoilt(lambda r: r.subject == workload.ONE and r.order == 1, reason="wrong: token 0 is 1")
    accounts = table.accounts(rows, measure.SHAPES)
    one = accounts[-1]
    assert all(map(math.isnan, one.total + one.warm))
    assert (one.programs, one.wrong, one.void) == (2, 2, 2)
    assert table.fastest(accounts).subject == workload.POWERS
    assert workload.ONE not in table.parts(accounts).keys() | table.warm_parts(accounts).keys()
    assert table.ratios(accounts)[workload.ONE].n == 0
    assert table.repays_words(one, accounts[0]) == "has no time to compare"
    assert "2 requests have wrong tokens: no time" in words(draw("stream_seconds", rows))
    assert table.fastest(table.accounts(spoilt(lambda r: True), measure.SHAPES)) is None


def test_a_warm_request_that_compiles_takes_the_warm_time_away():
    rows = spoilt(lambda r: (r.subject, r.phase, r.block, r.order) == (workload.ONE, "warm", 0, 2))
    one = table.account(rows, measure.SHAPES, workload.ONE)
    assert math.isnan(one.warm[0])
    assert math.isfinite(one.warm[1])
    assert one.void == 1


def test_parts_add_up_to_the_total():
    accounts = table.accounts(everything(3), measure.SHAPES)
    for a in accounts:
        pieces = table.parts(accounts)[a.subject]
        assert sum(pieces.values()) == pytest.approx(np.median(a.total))
        assert all(value >= 0 for value in pieces.values())
        assert pieces["work"] == pytest.approx(np.median(a.warm))
        assert pieces["compiling"] == pytest.approx(np.median(a.lost))


def test_what_is_warm_is_split_by_the_median_of_exact_lengths():
    accounts = table.accounts(everything(3), measure.SHAPES)
    warm = table.warm_parts(accounts)
    for a in accounts:
        assert warm[a.subject]["useful work"] == pytest.approx(1.5 * 1.01)
        assert sum(warm[a.subject].values()) == pytest.approx(np.median(a.warm))
    assert warm[workload.ONE]["padding"] == pytest.approx(0.45 * 1.01)
    assert warm[workload.GROWING].keys() == {"useful work", "copying"}  # it pads nothing
    legend = draw("stream_seconds", everything(3)).legends[0]
    assert {"extra time over exact lengths", "extra time of copying"} <= {
        text.get_text() for text in legend.get_texts()
    }


def test_cures_are_named_in_their_rows():
    named = [label.get_text() for label in draw("surprises", everything()).axes[0].get_yticklabels()]
    assert [name.startswith("cure: ") for name in named] == [False, True] * 3


def test_predictions_are_answered_in_words():
    accounts = table.accounts(everything(3), measure.SHAPES)
    said = table.answer_words(accounts)
    assert said.startswith("No: the padding of one shape costs 0.45 s, the compilations of exact lengths 6.1 s.")
    assert said.endswith("Once warm, a growing cache takes longest, 40% longer than exact lengths.")
    dear = [replace(a, lost=(0.1,) * 3) if a.subject == workload.EXACT else a for a in accounts]
    assert table.answer_words(dear).startswith("Yes: ")
    assert table.answer_words([replace(a, warm=(math.nan,)) for a in accounts]) == ""
    pays = table.paying(accounts)
    assert "can pay: exact lengths, the package's buckets and powers of two; not shown for a growing cache." in pays
    assert table.paying(accounts[-1:]) == ""


def test_the_medians_stand_beside_the_mean_of_ratios():
    accounts = table.accounts(everything(3), measure.SHAPES)
    said = str(table.claim(accounts))
    assert said.startswith(
        "A new server is fastest with one shape; a growing cache takes 2.68 times as long: 9 programs"
    )
    assert len(said.split()) <= 20
    assert "11.5 and 4.3 s, give 2.68" in table.medians_words(accounts)
    assert table.medians_words(accounts[:1]) == ""


def test_ratios_pair_what_ran_in_the_same_block():
    growing, *_, one = table.accounts(everything(3), measure.SHAPES)
    ratio = table.ratio(growing, one)
    assert ratio.value == pytest.approx((3 * 0.8 + 9) / (3 * 0.75 + 2))
    assert (ratio.low, ratio.high) == pytest.approx((ratio.value, ratio.value))  # the drift is common to both
    assert (ratio.n, ratio.times) == (3, True)
    assert table.ratio(growing, one, of="warm").value == pytest.approx(0.7 / 0.65)


def test_compiling_more_pays_back_only_where_warm_requests_are_faster():
    growing, precise, *_, one = table.accounts(everything(), measure.SHAPES)
    assert "about 8 repeats (warm 0." in table.repays_words(precise, one)
    assert "never paid back" in table.repays_words(growing, one)
    single = table.accounts(everything(1), measure.SHAPES)
    assert "not shown to be faster once warm (takes 0.77x as long, n = 1)" in table.repays_words(single[1], single[-1])
    assert table.repays_words(one, precise) == "loses no more to first calls than exact lengths"


def test_what_other_programs_took_is_said_with_the_worst_process():
    rows = [r.model_copy(update=dict(process=8 if r.run.startswith(measure.COMMITTED) else 7)) for r in everything()]
    notes = [dict(process=process, watch=dict(others_cpu=share)) for process, share in ((7, 0.01), (8, 0.22))]
    said = (
        "other programs used at most 22% of the CPU, in one of 2 processes (reloaded weights); in the others at most 1%"
    )
    assert table.watched_words(rows, notes) == said
    assert table.watched_words(rows, [dict(process=1, watch=dict(others_cpu="unknown"))]) == ""


def test_tables_for_people():
    rows = everything(3)
    lane = table.by_request(rows, workload.POWERS)
    assert [(step["programs"], step["tokens"]) for step in lane] == [(2, 8), (1, 8), (0, 8)]
    assert [step["seconds"] for step in lane] == pytest.approx([2.02, 1.01, 0])
    frame = show(table.accounts(rows, measure.SHAPES), table.COLUMNS)
    assert list(frame.index) == list(workload.POLICIES)
    assert list(frame["programs"]) == [9, 6, 4, 3, 2]
    why = table.cause_frame(rows).set_index(["run", "cause"])
    assert why.loc[(f"{measure.SHAPES}: {workload.GROWING}", "shape"), "requests, all processes"] == 6
    assert why.loc[(f"{measure.SHAPES}: {workload.ONE}", compile_causes.FIRST), "requests, all processes"] == 3
    assert why["in JAX's words"].str.startswith("(decode): different input types").any()
    cured = table.cure_words("x", *table.surprises(rows)["reloaded weights"])
    assert "2 programs and" in cured
    assert "once warm" in cured
    assert "once warm" not in table.cure_words("x", *table.surprises(everything(2))["reloaded weights"])


def test_draws_are_compared_where_nothing_was_greedy():
    asked = {"greedy": ("a", "b"), "temperature 0.7": ("same", "same"), "temperature 1, top-p 0.9": ("c", "d")}
    rows = [
        row(measure.SAMPLING, subject, order=order, change=change, tokens_sha256=tokens)
        for order, (change, both) in enumerate(asked.items())
        for subject, tokens in zip((measure.STATIC, measure.TRACED), both, strict=True)
    ]
    assert table.draws_words(rows).startswith("1 of 2 drawn answers")


def draw(name, rows):
    policies = table.accounts(rows, measure.SHAPES)
    if name == "compilations":
        return chart.compilations({a.subject: table.by_request(rows, a.subject) for a in policies}, policies)
    if name == "stream_seconds":
        return chart.stream_seconds(policies, table.ratios(policies))
    return chart.surprises(table.surprises(rows))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["compilations", "stream_seconds", "surprises"])
@pytest.mark.parametrize("processes", [1, 3])
def test_each_chart_is_drawn_in_style(tmp_path, name, processes):
    assert_drawn(draw(name, everything(processes)), tmp_path)


def test_a_title_has_what_the_fastest_takes_once_warm_and_whether_that_is_decided(monkeypatch):
    accounts = table.accounts(everything(3), measure.SHAPES)
    said = chart.once_warm(accounts)
    assert said == "Fresh, one shape serves 3 requests in 4.3 s, exact lengths in 7.9; warm, in 656 and 505 ms each"
    assert len(said.split()) <= 20
    monkeypatch.setattr(table, "ratio", lambda *_, **__: Ratio(1.1, 0.9, 1.3, 3))
    assert chart.once_warm(accounts) == f"{said} (undecided)"
    monkeypatch.setattr(table, "ratio", lambda *_, **__: Ratio(1.0, 0.99, 1.01, 3))
    assert chart.once_warm(accounts) == f"{said} (level)"
    accounts[0] = replace(accounts[0], warm=(0.1,) * 3)  # a growing cache is the fastest now
    assert chart.once_warm(accounts) == f"{said} (level)"
    wrong = [replace(a, total=(math.nan,) * 3) if a.subject == "exact lengths" else a for a in accounts]
    assert chart.once_warm(wrong).startswith(
        "Fresh, one shape serves 3 requests in 4.3 s; warm, in 656 and 505 ms each (exact lengths)"
    )
    accounts[-1] = replace(accounts[-1], warm=(math.nan,) * 3)
    assert chart.once_warm(accounts).endswith("; warm, exact lengths in 505 ms each")


def test_a_title_has_what_the_fewest_and_the_most_programs_cost():
    title = draw("compilations", everything(3)).get_suptitle().replace("\n", " ")
    assert re.fullmatch(r"Over 3 requests one shape costs [\d.]+ s of compiling, a growing cache [\d.]+ s", title), (
        title
    )


def test_bars_reach_the_total_and_name_the_fastest():
    rows = everything(3)
    figure = draw("stream_seconds", rows)
    for text in ("4.3 s · fastest", "· 2.68x [2.68, 2.68]", "656 ms, 50% padding", "n = 3"):
        assert text in words(figure)
    policies, axes = {a.subject: a for a in table.accounts(rows, measure.SHAPES)}, figure.axes[0]
    for label, height in zip(axes.get_yticklabels(), axes.get_yticks(), strict=True):
        mine = [bar for bar in axes.patches if abs(bar.get_y() + bar.get_height() / 2 - height) < 1e-9]
        reached = max(bar.get_x() + bar.get_width() for bar in mine)
        assert reached == pytest.approx(sorted(policies[label.get_text()].total)[1])
