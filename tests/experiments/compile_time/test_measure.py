"""Stages and sizes of decode programs: what the rows say, on made-up ones, and the children that measure them."""

import numpy as np
import pytest
from scipy import stats

from llama_jax import checkpoint, generate
from llama_jax.placement import parse
from llama_jax.plumbing.errors import UserError
from llama_lab.bench import process, record
from llama_lab.bench.journal import Journal
from llama_lab.bench.record import NAN
from llama_lab.experiments.compile_time import measure, table
from llama_lab.experiments.compile_time.measure import Compilation
from tests.bench import labs

pytestmark = pytest.mark.usefixtures("compiling")

SHAPE = (
    "random:smollm2-135m,hidden_size=64,intermediate_size=128,num_attention_heads=4,num_key_value_heads=2,head_dim=16,"
    "vocab_size=97"
)
SMALL = f"{SHAPE},num_hidden_layers=2"


def row(placement="step", depth=2, block=0, run="depth", scale=1.0, **changes):
    """Compiling takes 0.1 s and 50 ms a layer, `scale` times over; 100 tokens/s."""
    ns = round((1e8 + 5e7 * depth) * scale)
    place = dict(run=f"{run} {depth} {placement}", block=block, order=0, process=block + 1, seed=0, phase="cold")
    what = dict(placement=placement, model=f"random:{depth}", weights_hash="w", dtype="float32", depth=depth)
    stages = dict(trace_ns=ns // 10, lower_ns=ns // 10, compile_ns=ns - 2 * (ns // 10), first_run_ns=10**7)
    heard = dict(heard_trace_ns=1, heard_lower_ns=1, heard_compile_ns=1)
    sizes = dict(argument_bytes=1, output_bytes=1, temp_bytes=10**6, alias_bytes=0, executable_bytes=1000)
    sizes |= dict(layer_bytes=10**7, kv_bytes=10**6, cache_slots=64, instructions=10 * depth)
    made = dict(token_times_ns=[10**7 * (i + 1) for i in range(4)], tokens_sha256="a", valid=True)
    read = dict(bytes_per_token=1e8 * depth, bandwidth_gbps=30.0)
    return Compilation(**{**place, **what, **stages, **heard, **sizes, **made, **read, **changes})


def sweep():
    return [
        row(name, n, b, scale=1.0 if name == "step" else 0.1)
        for b in range(2)
        for n in (2, 8, 16)
        for name in measure.LAYOUTS
    ]


def slots():
    """Two layers' worth of a sweep over cache lengths, sizes alone."""
    untimed = dict.fromkeys(("trace_ns", "lower_ns", "compile_ns", "first_run_ns")) | dict(token_times_ns=[])
    return [
        row(name, 30, run=f"slots {n}", cache_slots=n, kv_bytes=1000 * n, temp_bytes=1000 * n + 500, phase="sizes",
            **untimed)
        for n in (64, 1024)
        for name in measure.SIZED
    ]  # fmt: skip


def test_seconds_a_layer_are_the_slope_with_students_interval():
    for layout, expected in (("step", 0.05), ("step+scan", 0.005)):
        found = table.per_layer(sweep(), layout)
        assert (found.slope, found.n) == (pytest.approx(expected, rel=1e-6), 6)
        assert found.low <= found.slope <= found.high
    assert table.per_layer(sweep(), "step", "compile_ns").slope == pytest.approx(0.04, rel=1e-6)
    assert np.isnan(table.per_layer([row()], "step").slope)
    x, y = [2, 2, 8, 8, 16], [1.0, 1.2, 2.1, 1.8, 4.0]
    found, same = table.slope(x, y), stats.linregress(x, y)
    assert found.high - found.slope == pytest.approx(stats.t.ppf(0.975, 3) * same.stderr)
    assert table.Slope(0.0451, 0.04, 0.05, 6).words(1) == "45.1 ms [40.0, 50.0]"
    assert table.Slope(-0.0001, NAN, NAN, 2).words() == "0 ms"


def test_void_rows_and_what_an_interrupted_process_left_are_left_out():
    wrong = row("step", 16, 9, valid=False, reason="wrong")
    assert table.per_layer([*sweep(), wrong], "step") == table.per_layer(sweep(), "step")
    again = row("step", 16, 0, process=7)
    assert table.of_run([row("step", 16, 0, process=1, trace_ns=10**12), again], "depth") == [again]


def test_tokens_that_are_not_those_of_step_void_a_row():
    other = [row(), row("step+scan", tokens_sha256="b"), row("step+scan", 8, tokens_sha256="b"), *slots()]
    found = measure.judged(other)
    assert [r.valid for r in found[:3]] == [True, False, True]  # there is no step of depth 8 to compare with
    assert "not those of step" in found[1].reason
    assert all(r.valid for r in found[3:])


def test_a_row_reads_back_as_it_was_written(tmp_path):
    rows = [*sweep(), *slots()]
    assert record.read(record.write(tmp_path / "x.csv", rows, Compilation), kind=Compilation)[0] == rows


def compile_time(**changes):
    counts = dict(depths="2 3", depth_processes=1, placement_processes=1, slots="32 64")
    return measure.CompileTime(**dict(model=SMALL, seed=0, shape=SHAPE) | counts | changes)


@pytest.mark.parametrize(
    ("words", "changes"),
    [
        ("'2 ten'; give two", dict(depths="2 ten")),
        ("two or more different", dict(depths="4 4")),
        ("two or more different", dict(slots="64")),
        ("only random weights", dict(shape="smollm2-135m-instruct")),
        ("depth_processes is 0", dict(depth_processes=0)),
        ("no such size", dict(shape="random:smollm2-135m,hat=3")),
        ("context", dict(slots="64 1000000")),
    ],
)
def test_what_cannot_be_measured_is_one_line(words, changes):
    with pytest.raises(UserError, match=words):
        compile_time(**changes).record()


def test_a_program_is_one_that_decodes_alone():
    assert measure.program_of(parse("loop")) == "decode"
    with pytest.raises(UserError, match="several programs"):
        measure.program_of(parse("layer"))
    assert measure.numbers("16, 2 8", "x") == (2, 8, 16)
    assert measure.of_depth("random:smollm2-135m:3", 5) == "random:smollm2-135m,num_hidden_layers=5:3"


def test_stages_that_overlap_void_their_row(monkeypatch):
    """A `lower` that also compiles is heard, and so is a `trace` that does nothing."""
    decoder = measure.Decoder(generate.build(checkpoint.load(SMALL), "step"), 4)
    program = decoder.engine.programs.step

    class Greedy:
        def trace(self, *args):
            self.args = args
            return self

        def lower(self):
            lowered = program.lower(*self.args)
            lowered.compile()
            return lowered

    monkeypatch.setattr(measure, "program_of", lambda placement: "step")
    object.__setattr__(decoder.engine.programs, "step", Greedy())
    *_, wrong = measure.staged(decoder)
    assert any("stage lower was not apart" in line and "backend 1" in line for line in wrong)
    assert any("stage trace was not apart" in line for line in wrong)


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    home = tmp_path_factory.mktemp("compiling")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("llama_jax.plumbing.paths.tempfile.gettempdir", lambda: str(home))
        for name, value in dict(DEPTH_TOKENS=4, STAGED=(), SIZED=()).items():
            patch.setattr(measure, name, value)
        journal = Journal(home / "j.jsonl", kind=Compilation)
        compile_time().record(journal)
        yield journal


@pytest.mark.slow
def test_the_stages_are_apart_and_jax_says_the_same(measured):
    timed = [r for r in measure.judged(measured.trials) if r.token_times_ns]
    assert len(timed) == 4
    for r in timed:
        assert r.valid, r.reason
        for stage in measure.STAGES:
            ours, theirs = getattr(r, f"{stage}_ns"), getattr(r, f"heard_{stage}_ns")
            assert 0.5 * ours < theirs <= ours, (stage, ours, theirs)  # the clock is outside, so it can only read more
        assert r.token_times_ns == sorted(r.token_times_ns)
        assert r.first_run_ns > 0
    assert len({r.tokens_sha256 for r in timed if r.depth == 3}) == 1
    assert {(r.depth, len(r.token_times_ns)) for r in timed} == {(2, 4), (3, 4)}
    by = {(r.placement, r.depth): r for r in timed}
    assert by["step", 3].instructions > by["step", 2].instructions
    assert by["step+scan", 3].instructions == by["step+scan", 2].instructions


def in_this_process(task, **arguments):
    """The rows that a child's task leaves."""
    run = "slots" if "slots" in arguments else "placement 0"
    return [Compilation(**row) for row in labs.run(task, SMALL, run, **arguments)[0]]


def test_a_loop_around_the_step_hands_over_its_tokens_together():
    for name, calls in (("chunk8", 2), ("loop", 1)):  # nine tokens in two calls, the second one cut short
        (found,) = in_this_process(measure.stages, placement=name, tokens=9, seed=0, order=0)
        assert found.valid, found.reason
        assert (len(found.token_times_ns), len(set(found.token_times_ns))) == (9, calls)


def test_a_scan_copies_what_it_scans():
    rows = in_this_process(measure.of_slots, placements=["step", "step+scan", "step+scan+donate"], slots=[32, 256])
    sizes = {(r.placement, r.cache_slots): r for r in table.of_run(rows, "slots")}
    for n in (32, 256):
        # the whole cache, once more
        assert sizes["step+scan+donate", n].temp_bytes >= sizes["step+scan+donate", n].kv_bytes
        assert sizes["step", n].temp_bytes < sizes["step+scan", n].layer_bytes
        assert sizes["step+scan", n].temp_bytes >= sizes["step+scan", n].layer_bytes
        assert sizes["step+scan+donate", n].alias_bytes >= sizes["step+scan+donate", n].kv_bytes


@pytest.mark.slow
def test_measured_again_from_the_journal_nothing_is_run(measured, monkeypatch):
    monkeypatch.setattr(process, "start", lambda *a, **k: pytest.fail("a process was started"))
    compile_time().record(Journal(measured.path, kind=Compilation))
