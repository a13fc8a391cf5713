"""The trace of one token, and the operations of a program, on a small model and on made-up events."""

import jax
import jax.numpy as jnp
import pytest

from llama_jax import checkpoint, generate
from llama_jax.plumbing.errors import UserError
from llama_jax.sampling import Sampler
from llama_lab.experiments.what_may_be_jitted import chart, measure
from llama_lab.experiments.what_may_be_jitted.measure import DEVICE, HOST

MODEL = (
    "random:smollm2-135m,num_hidden_layers=2,hidden_size=32,intermediate_size=32,vocab_size=64,num_attention_heads=1,"
    "num_key_value_heads=1"
)


@pytest.fixture(scope="module")
def rows():
    return measure.OneToken(MODEL, 0).record()[0]


def test_a_step_is_one_call_and_eager_is_many(rows):
    eager, step = rows
    assert [name for name, _, _ in step.spans(HOST)] == ["step"]
    assert len(eager.spans(HOST)) > 50
    assert len(eager.spans(DEVICE)) > len(step.spans(DEVICE)) > 0
    assert all(row.valid and 0 < row.busy_ms <= row.total_ns / 1e6 for row in rows)


def test_spans_lie_within_the_token(rows):
    for row in rows:
        starts = [start for lane in (HOST, DEVICE) for _, start, _ in row.spans(lane)]
        assert all(0 <= start <= row.total_ns / 1e6 for start in starts)


def test_the_figure_says_what_was_counted(rows):
    _, step = rows
    titles = [axes.get_title(loc="left") for axes in chart.token(rows).axes]
    assert titles[1] == f"step: 1 call from Python, {len(step.spans(DEVICE))} operations computed"


def span(name, start, length, thread=1, **args):
    return dict(ph="X", pid=0, tid=thread, name=name, ts=start, dur=length, args=args)


def test_lanes_hold_the_outermost_calls_and_the_operations_of_any_thread():
    events = [
        span("PjitFunction(before)", 0, 5),
        span(measure.MARK, 10, 100),
        span("PjitFunction(outer)", 20, 30),
        span("PjitFunction(inner)", 25, 10),
        span("PjitFunction(last)", 60, 5),
        span("PjitFunction(of another thread)", 60, 5, thread=2),
        span("dot.1", 30, 40, thread=2, hlo_op="dot.1"),
        span("dot.2", 40, 20, thread=3, hlo_op="dot.2"),
        span("end: dot.1", 70, 0, thread=2, hlo_op="dot.1"),
        span("waiting", 70, 5, thread=2),
        span("dot.3", 200, 5, thread=2, hlo_op="dot.3"),
    ]
    found = measure.lanes(events)
    assert found["host_names"] == "outer last"
    assert found["host_starts_ns"] == [10_000, 50_000]
    assert found["device_names"] == "dot.1 dot.2"
    assert found["total_ns"] == 100_000
    about = dict(run="", block=0, order=0, process=0, seed=0, phase="warm", valid=True, subject="a", model="m")
    row = measure.Traced(**about, weights_hash="", layers=1, **found)
    assert row.busy_ms == pytest.approx(0.04)  # the second lies within the first


def test_a_wide_pause_of_both_lanes_is_said():
    about = dict(run="", block=0, order=0, process=0, seed=0, phase="warm", valid=True, subject="a", model="m")
    lanes = dict(host_names="x y", host_durations_ns=[10**6] * 2, device_names="z", device_durations_ns=[2 * 10**6])
    lanes |= dict(weights_hash="", layers=1, total_ns=10**7, device_starts_ns=[500_000])
    wide, narrow = (measure.Traced(**about, **lanes, host_starts_ns=[0, second]) for second in (4_000_000, 2_600_000))
    assert chart.pause(wide) == "Under a neither lane has anything from 2.5 to 4.0 ms; the trace does not show why."
    assert chart.pause(narrow) == ""
    assert chart.token([wide])._supxlabel.get_text() == chart.pause(wide)


def test_a_trace_of_something_else_is_refused():
    with pytest.raises(UserError, match="no span 'one token'"):
        measure.lanes([span("PjitFunction(a)", 0, 5)])


def test_operations_of_a_jaxpr_are_counted_within_what_it_calls():
    inner = jax.jit(lambda x: jnp.sin(x) * 2)
    counts = measure.primitives(jax.make_jaxpr(lambda x: inner(x) + jax.lax.cond(x > 0, jnp.cos, jnp.sin, x))(1.0))
    assert counts["sin"] == 2
    assert counts["cos"] == counts["mul"] == counts["add"] == 1


def test_fewer_operations_are_left_when_a_step_is_compiled():
    engine = generate.build(checkpoint.load(MODEL), "step")
    token, carry = generate.prefill(engine, generate.checked_request(engine, [[1, 2, 3]], 4))
    traced = engine.programs.step.trace(engine.params, token, carry, Sampler())
    before, after = measure.primitives(traced.jaxpr), measure.instructions(traced.lower().compile().as_text())
    assert 0 < sum(after.values()) < sum(before.values())
    assert after["fusion"]
    assert "parameter" not in after


def test_the_finding_says_under_what_the_device_is_busy(rows):
    eager, step = (f"{round(row.busy_ms * 1e6 / row.total_ns, 1):.0%}" for row in rows)
    said = chart.finding(rows)
    assert f"; in one trace each, the device is busy about {eager} (eager) and {step} (step) of the time." in said
