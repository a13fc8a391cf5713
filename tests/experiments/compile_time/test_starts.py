"""Starts and break-even: what made-up trials say, and the children that make real ones."""

import numpy as np
import pytest

from llama_jax.plumbing.errors import UserError
from llama_lab.bench import phases, process, protocol, record
from llama_lab.bench.cold import Start
from llama_lab.bench.journal import Journal
from llama_lab.bench.record import NAN
from llama_lab.experiments.compile_time import finding, starts, table
from tests.bench.test_record import trial
from tests.experiments.compile_time.test_measure import SMALL, row

pytestmark = pytest.mark.usefixtures("compiling")

COMPILING = {"cold": 2.0, "cached": 0.5, "serialised": 0.1}  # seconds


def start(placement="step", way="cold", block=0, seconds=None, **changes):
    """9 tokens: one second of imports, one of loading, compiling, then 0.1 s to the first token and 0.8 s for the
    others."""
    seconds, read = COMPILING[way] if seconds is None else seconds, way == "serialised"
    inside = 0 if read else seconds
    times = [1e3 * (inside / 2 + 0.1), *(1e3 * (inside + 0.1 + 0.1 * i) for i in range(1, 9))]
    where = dict(run=f"start {placement} {way}", phase=way, process=10 * block + 1, placement=placement)
    base = trial(placement, block, times, **where)
    spent = dict(trace=inside / 10, lower=inside / 10, backend=inside * 0.8)
    own = {f"{stage}_ns": round(1e9 * s) for stage, s in spent.items()}
    own |= {f"first_{stage}_ns": round(1e9 * s / 2) for stage, s in spent.items()}
    own |= dict(imports_ns=10**9, load_ns=10**9, bind_ns=round(seconds * 1e9) if read else 0)
    own |= dict(to_first_ns=round(1e9 * (2 + (seconds if read else inside / 2) + 0.1)))
    return Start(**{**base.model_dump(), **own, **changes})


def warm(placement, seconds_a_token, block=0):
    times = 1e3 * np.linspace(0.1, 0.1 + 8 * seconds_a_token, 9)
    return Start(**trial(placement, block, times, phase="warm", placement=placement, run="warm").model_dump())


def trials(blocks=3):
    """eager starts 1 s earlier than step and needs 0.2 s a token where step needs 0.1; a scan starts as eager does,
    0.15 s a token."""
    others = {"eager": 1.0, "step+scan": 1.0, "loop": 2.5}
    rates = {"eager": 0.2, "step": 0.1, "step (again)": 0.1, "step+scan": 0.15, "loop": 0.09}
    return [
        *(start(way=way, block=b) for b in range(blocks) for way in starts.WAYS),
        *(start(name, "cold", b, seconds) for b in range(blocks) for name, seconds in others.items()),
        *(warm(name, seconds, b) for b in range(4) for name, seconds in rates.items()),
    ]


def test_the_parts_of_a_start_add_up():
    for way, seconds in COMPILING.items():
        found = table.parts(start(way=way))
        assert sum(found.values()) == pytest.approx(start(way=way).to_first_ns / 1e9)
        assert found["prefill and the rest"] == pytest.approx(0.1)
        assert found["read executables"] == pytest.approx(seconds if way == "serialised" else 0)
        assert start(way=way).compile_part == pytest.approx(seconds)


def test_what_a_cache_and_a_file_leave_of_a_cold_start():
    def left(made, way, other):
        return table.start_ratio(made, ("step", way), ("step", other), lambda t: t.compile_part)

    assert left(trials(), "cached", "cold").value == pytest.approx(0.25)
    found = left(trials(), "serialised", "cached")
    assert (found.value, found.n) == (pytest.approx(0.2), 3)
    void = [
        t.model_copy(update=dict(valid=False, reason="not cached")) if t.phase == "cached" and t.block == 1 else t
        for t in trials()
    ]
    assert left(void, "cached", "cold").n == 2


def test_break_even_is_where_the_lines_cross():
    """Step has paid 1 s more when both have made 9 tokens but for the 8 slow ones that are in eager's own start: made
    up equal here."""

    def even(ours, way, other, made=trials()):  # noqa: B008
        return table.break_even(made, (ours, way), (other, "cold"))

    found = even("step", "cold", "eager")
    assert found.tokens == pytest.approx(9 + 1.0 / 0.1)
    assert found.low <= found.tokens <= found.high
    assert (found.n, found.pairs) == (3, 4)
    assert even("step", "serialised", "eager").tokens == 0
    assert even("step+scan", "cold", "step").tokens == table.NEVER
    assert np.isnan(even("layer", "cold", "eager").tokens)
    noisy = [t.model_copy(update=dict(bind_ns=10**8 * t.block)) if t.phase == "cold" else t for t in trials()]
    wide = even("step", "cold", "eager", noisy)
    assert wide.high - wide.low > 5
    assert wide.tokens == pytest.approx(19)
    one = even("step", "cold", "eager", trials(1))
    assert one.tokens == pytest.approx(19)
    assert np.isnan(one.low)


def test_the_finding_begins_with_what_compiling_costs_and_when_it_has_paid():
    said = str(finding.claim(trials()))
    assert said.startswith(
        "Compiling the prompt's program takes 1.0 of the 3.1 s to the first token;"
        " the decode program, 1.0 s afterwards. A cold start of `step` overtakes `eager` after 19 tokens "
    )
    assert len(said.split(". ")[0].split()) <= 20
    assert "Compiling" not in str(finding.claim([]))


def test_two_tables_of_one_model_say_when_they_were_recorded():
    probed = dict(created="2026-11-26T04:58:05Z", bandwidth_gbps=dict(main=dict(min=50, median=54, max=60, n=3)))
    assert table.recorded_words(probed) == "recorded 2026-11-26, median bandwidth probe 54 GB/s"
    assert table.recorded_words(dict(created="2026-11-26T04:58:05Z")) == "recorded 2026-11-26"


def test_the_scanned_rate_stands_beside_the_unrolled_one_at_each_depth():
    slower = dict(token_times_ns=[2 * 10**7 * (i + 1) for i in range(4)])
    rows = [row("step", 2), row("step+scan", 2), row("step", 8), row("step+scan", 8, **slower), row("step", 16)]
    assert table.scanned_rates(rows) == {2: pytest.approx(1), 8: pytest.approx(0.5)}


def test_a_start_gains_nothing_by_weights_that_happened_to_load_faster():
    slow = [t.model_copy(update=dict(load_ns=2 * 10**9, to_first_ns=t.to_first_ns + 10**9)) if t.phase == "cold" else t
            for t in trials()]  # fmt: skip
    assert finding.loading(slow, "step").endswith("took 2.00 s cold, 1.00 s cached and 1.00 s serialised")
    said = finding.as_measured(slow, "step")
    cached, serialised, cold = 1 + 0.25 + 0.1 + 2, 1 + 0.1 + 0.1 + 2, 1 + 1 + 0.1 + 2
    assert said.startswith(f"as measured, with unequal loading times: {(cached - 1) / cold:.0%} [")
    assert said.endswith("serialised, n = 3")
    claimed = str(finding.claim(slow))
    assert f"At equal loading the first token takes {serialised / cold:.0%} [" in claimed
    assert f"(serialised) and {cached / cold:.0%} [" in claimed
    assert finding.as_measured([t for t in slow if t.phase != "cached"], "step") == ""
    assert finding.loading([t for t in slow if t.phase != "cached"], "step") == ""


@pytest.mark.parametrize(
    ("extra", "gain", "tokens"),
    [(1, 0.1, 19), (0, 0.1, 0), (-1, 0.1, 0), (-1, 0, 0), (1, 0, table.NEVER), (1, -0.1, table.NEVER), (NAN, 1, NAN),
     (-1, -0.1, table.NEVER)],
)  # fmt: skip
def test_crossings(extra, gain, tokens):
    assert table.crossing(extra, gain, 9) == pytest.approx(tokens, nan_ok=True)


@pytest.mark.parametrize(
    ("tokens", "low", "high", "words"),
    [
        (0, 0, 0, "at once"),
        (0, 0, 70, "at once [0, 70]"),
        (0, NAN, NAN, "at once"),
        (40, 30, table.NEVER, "40 tokens [30, never]"),
        (table.NEVER, table.NEVER, table.NEVER, "never"),
        (NAN, NAN, NAN, "not measured"),
    ],
)
def test_break_even_in_words_claims_no_more_than_its_interval(tokens, low, high, words):
    assert table.BreakEven(tokens, low, high, 1.0, 0.1, 3, 4).words == words


@pytest.mark.parametrize(
    ("phase", "compiled", "hits", "traced", "words"),
    [
        ("cold", 2, 0, 0, ""),
        ("cold", 0, 2, 0, "not cold"),
        ("cold", 2, 1, 0, "not cold"),
        ("cached", 0, 2, 0, ""),
        ("cached", 1, 2, 0, "not cached: 1"),
        ("cached", 0, 0, 0, "not cached"),
        ("serialised", 0, 0, 0, ""),
        ("serialised", 0, 0, 1, "1 traced, 0 lowered"),
    ],
)
def test_a_start_that_was_another_kind_of_start_says_so(phase, compiled, hits, traced, words):
    record, guard = start().model_copy(update=dict(compiled=compiled, cache_hits=hits)), protocol.Guard()
    for _ in range(traced):
        guard.add("trace", "step", 0.1)
    reason = starts.wrong_start(record, phase, guard)
    assert words in reason
    assert bool(words) == bool(reason)


def test_wrong_tokens_void_a_start():
    bad = start(block=7).model_copy(update=dict(tokens_sha256="other"))
    assert [t.valid for t in phases.judge_starts([*trials(), bad])][-1] is False


def starting(**changes):
    """Every way of `step`, and rates of two placements."""
    ways = [("step", way) for way in starts.WAYS]
    counts = dict(starts=1, new_tokens=4, blocks=2, warm_processes=1)
    placements = ["step", "step+scan+donate"]
    return starts.Starts(**dict(ways=ways, placements=placements, model=SMALL, seed=0) | counts | changes)


@pytest.mark.parametrize(
    ("words", "changes"),
    [
        ("warm.* is not a way to start step", dict(ways=[("step", "warm")])),
        ("starts is 0", dict(starts=0)),
        ("No such placement", dict(ways=[("stepp", "cold")])),
        ("blocks is 0", dict(blocks=0)),
        ("a rate needs 2", dict(new_tokens=1)),
        ("baseline 'step'", dict(placements=["loop"])),
        ("programs of layer cannot be serialised", dict(ways=[("layer", "serialised")])),
    ],
)
def test_what_cannot_be_started_is_one_line(words, changes):
    with pytest.raises(UserError, match=words):
        starting(**changes).record()


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    home = tmp_path_factory.mktemp("starts")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("llama_jax.plumbing.paths.tempfile.gettempdir", lambda: str(home))
        journal = Journal(home / "j.jsonl", kind=Start)
        starting().record(journal)
        yield journal


@pytest.mark.slow
def test_the_three_ways_do_what_they_say(measured):
    found = {t.phase: t for t in phases.judge_starts(measured.trials) if t.to_first_ns is not None}
    assert all(t.valid for t in found.values()), [t.reason for t in found.values()]
    assert found["cold"].compiled >= 2
    assert (found["cached"].compiled, found["cached"].cache_hits >= 2) == (0, True)
    serialised = found["serialised"]
    assert (serialised.trace_ns, serialised.lower_ns, serialised.backend_ns, serialised.lowered) == (0, 0, 0, 0)
    assert serialised.bind_ns > 0
    assert len({t.tokens_sha256 for t in measured.trials}) == 1
    for t in found.values():
        assert all(seconds >= 0 for seconds in table.parts(t).values()), table.parts(t)
        assert 0 <= t.first_backend_ns <= t.backend_ns
        assert t.first_trace_ns <= t.trace_ns
        assert t.to_first_ns >= t.imports_ns + t.load_ns + t.bind_ns + t.first_backend_ns


@pytest.mark.slow
def test_warm_trials_know_the_sizes_of_their_own_program(measured):
    by = {t.subject: t for t in measured.trials if t.phase == "warm"}
    assert set(by) == {"step", "step (again)", "step+scan+donate"}
    assert by["step"].temp_bytes == by["step (again)"].temp_bytes < by["step+scan+donate"].temp_bytes
    assert by["step+scan+donate"].alias_bytes > 0 == by["step"].alias_bytes
    assert all(t.valid and t.to_first_ns is None for t in by.values())


@pytest.mark.slow
def test_measured_again_from_the_journal_nothing_is_run(measured, monkeypatch, tmp_path):
    monkeypatch.setattr(process, "start", lambda *a, **k: pytest.fail("a process was started"))
    again = Journal(measured.path, kind=Start)
    starting().record(again)
    record.write(tmp_path / "x.csv", again.trials, Start)
    assert record.read(tmp_path / "x.csv", kind=Start, as_probed=True)[0] == again.trials
