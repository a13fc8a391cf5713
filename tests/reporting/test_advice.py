"""Recommendations from made-up trials whose answer is known by hand, and the same in lines."""

import math
from dataclasses import replace

import pytest

from llama_jax.plumbing.errors import UserError
from llama_lab.bench import environment
from llama_lab.reporting import advice
from llama_lab.reporting.advice import Wish
from tests.bench.test_record import trial

WISH = Wish(prompt_tokens=4, new_tokens=11)
WARM, SEVEN, MANY = replace(WISH, warm=True), replace(WISH, requests=7), replace(WISH, requests=50)


def times(first, gap, n=11, at_once=False):
    """Milliseconds of n tokens' arrivals."""
    return [first, *([first + gap * (n - 1)] * (n - 1) if at_once else [first + gap * i for i in range(1, n)])]


def subject(
    name, start, gap, first=100, blocks=8, processes=2, starts=3, peak=500, at_once=False, run="main", **changes
):
    """Trials of a placement that takes `start` ms to start, `first` to a first token and `gap` a token more; `peak`
    megabytes."""
    for b in range(blocks):
        slower = 1 + 0.004 * (b % 3)
        made = times(first * slower, gap * slower, at_once=at_once)
        yield trial(name, b, made, run=run, process=b % processes, **changes)
    for s in range(starts):
        cold = dict(
            phase="cold", process=50 + s, compiled=2, backend_ns=int(start * 1e6 / 2), peak_rss_bytes=peak * 10**6
        )
        yield trial(name, s, [start + t for t in times(first, gap, at_once=at_once)], run=run, **cold, **changes)


def tables(*subjects):
    return [("made", [t for s in subjects for t in s])]


QUICK_START, QUICK_TOKENS = ("ops", 1000, 90), ("loop", 5000, 40)  # a request: 1.0 s and 0.5 s


def both(**more):
    return tables(subject(*QUICK_START), subject(*QUICK_TOKENS, **more))


@pytest.mark.parametrize(("requests", "best"), [(1, "ops"), (7, "ops"), (9, "loop"), (1000, "loop")])
def test_the_answer_turns_where_the_sums_say(requests, best):
    advised = advice.advise(both(), replace(WISH, requests=requests))
    assert advised["placement"] == best
    assert advised["runner_up"]["break_even_requests"] == pytest.approx(8, rel=0.02)
    expected = {"ops": 1 + requests * 1.0, "loop": 5 + requests * 0.5}
    assert advised["seconds"] == pytest.approx(expected[best], rel=0.02)
    assert [r["name"] for r in advised["ranking"]] == sorted(expected, key=expected.get)
    assert advised["runner_up"]["seconds"] == pytest.approx(max(expected.values()), rel=0.02)


def test_the_runner_up_is_compared_side_by_side():
    advised = advice.advise(both(), WARM)
    assert (advised["placement"], advised["start_seconds"]) == ("loop", 0)
    second = advised["runner_up"]
    assert second["ratio"]["value"] == pytest.approx(2, rel=0.01)
    assert second["ratio"]["low"] > 1.9
    assert second["verdict"] == "slower"
    assert second["break_even_requests"] is None
    quick, slow = sorted(advice.candidates(both(), WISH), key=lambda candidate: candidate.request)
    assert [advice.beside(*pair, WARM, 0)["verdict"] for pair in ((quick, slow), (slow, quick))] == ["faster", "slower"]
    apart = advice.advise([("one", list(subject(*QUICK_START))), ("two", list(subject(*QUICK_TOKENS)))], WARM)
    assert (apart["runner_up"]["ratio"], apart["runner_up"]["verdict"]) == (None, "not measured side by side")
    assert advice.advise(tables(subject(*QUICK_START)), WISH)["runner_up"] is None
    tie = advice.advise(tables(subject("step", 1000, 90), subject("step+donate", 1000, 90)), WISH)
    assert tie["runner_up"]["verdict"].startswith("equal")


def test_what_is_wished_rules_placements_out():
    slow = [*subject("chunk8", 3000, 60, dtype="bfloat16"), *subject("loop", 2000, 40, at_once=True, peak=900)]
    trials = [("made", [*slow, *subject("step", 4000, 50, peak=700)])]

    def best(**changes):
        return advice.advise(trials, replace(MANY, **changes))

    assert best()["placement"] == "loop"
    assert best(streaming=True)["placement"] == "step"
    assert best(streaming=True)["refused"] == [dict(name="loop", reason="tokens would come every 0.4 s")]
    assert best(memory=600 * 10**6)["placement"] == "chunk8"
    assert best(memory=800 * 10**6, exact=True)["placement"] == "step"
    assert dict(wish="tokens are wanted as they come", then="step") in best()["changes"]
    assert not [c for c in best()["changes"] if c["then"] == "loop"]
    for wish, words in (
        (dict(memory=10**6), r"No recorded placement does what you wish \(.*chunk8: it took 500 MB.*--measure"),
        (dict(memory=600 * 10**6, exact=True, streaming=True), r"chunk8: .*float32's; loop: .*; step: it took 700 MB"),
    ):
        with pytest.raises(UserError, match=words):
            best(**wish)
    with pytest.raises(UserError, match="there are no warm trials of placements"):
        advice.advise([("made", [])], WISH)


def test_a_placement_whose_start_was_never_timed_is_for_those_that_run_already():
    trials = tables(subject("loop", 1000, 40, starts=0), subject("step", 1000, 50))
    assert advice.advise(trials, WISH)["placement"] == "step"
    assert advice.advise(trials, WISH)["refused"][0]["reason"] == "no cold start of it was recorded"
    assert advice.advise(trials, WARM)["placement"] == "loop"
    assert advice.refusal(advice.candidates(trials, WISH)[0], replace(WISH, memory=1)) == "its memory was not recorded"


def test_thin_evidence_says_why():
    assert advice.advise(both(), MANY)["thin"] == []
    doubts = advice.advise(both(blocks=3, processes=1, starts=1), replace(MANY, new_tokens=44))["thin"]
    for words, doubt in zip(("3 times", "1 cold start of loop", "one process", "4.0 times"), doubts, strict=True):
        assert words in doubt
    assert advice.advise(both(), MANY, ["another machine"])["thin"] == ["another machine"]


def test_sizes_scale_and_the_nearest_run_is_taken():
    (step,) = advice.candidates(tables(subject("step", 1000, 50)), replace(WISH, prompt_tokens=8, new_tokens=21))
    assert step.request == pytest.approx(0.2 + 20 * 0.05, rel=0.01)
    for prompt, run in ((4, "context 15"), (300, "context 400")):
        near = subject("step", 1000, 50, run="context 15")
        far = subject("step", 1000, 80, run="context 400", prompt_tokens=389)
        (step,) = advice.candidates(tables(near, far), replace(WISH, prompt_tokens=prompt))
        assert step.where == f"made ({run})"


def test_several_prompt_lengths_cost_programs():
    wish = replace(WISH, prompt_tokens=200, lengths=20)
    assert advice.buckets(wish) == 9  # 16, 24, 32, 48, 64, 96, 128, 192, 256
    assert advice.buckets(replace(wish, lengths=2)) == 2
    assert advice.buckets(replace(wish, prompt_tokens=3)) == 1
    (step,) = advice.candidates(tables(subject("step", 1000, 50)), wish)
    assert step.program == pytest.approx(0.25)  # two programs in half a second
    assert step.before(wish) == pytest.approx(1.0 + 8 * 0.25, rel=0.05)
    assert step.before(replace(wish, warm=True)) == 0


@pytest.mark.parametrize(
    "other",
    [
        [*subject("loop", 10, 1, valid=False)],
        [*subject("llamacpp", 10, 1, backend="llama.cpp")],
        [*subject("loop", 10, 1, batch=2)],
        [*subject("step (again)", 1000, 50, starts=0)],
        [*subject("loop, sampled", 1, 1)],
    ],
    ids=["void", "a peer", "a batch", "the control", "sampled"],
)
def test_what_is_no_evidence_of_a_placement_is_left_out(other):
    assert [c.name for c in advice.candidates(tables(subject("step", 1000, 50), other), WISH)] == ["step"]


@pytest.mark.parametrize("name", ["prompt_tokens", "new_tokens", "requests", "lengths"])
def test_a_wish_for_nothing_is_refused(name):
    with pytest.raises(UserError, match=f"{name.replace('_', '-')} is 0; it must be 1 or more"):
        replace(WISH, **{name: 0})


def test_a_single_placement_that_never_turns_has_no_break_even():
    better = advice.candidates(tables(subject("step", 1000, 50), subject("ops", 2000, 90)), WISH)
    assert advice.break_even(*better, WISH) is None
    assert math.isfinite(advice.break_even(*advice.candidates(both(), WISH), WISH))


def recorded(**changes):
    """The tables of `both` with a meta file of this machine, or of another."""
    ((name, trials),) = both()
    return [(name, trials, dict(environment={**environment.capture(), **changes}))]


def test_the_lines_say_who_by_what_and_from_when_on_another():
    advised = advice.consult(recorded(), "m", SEVEN)
    lines = advice.lines(advised, SEVEN)
    assert lines[0].startswith(f"ops: {advised['seconds']:.2f} s, a start of 1.00 s and each request 1.00 s")
    assert lines[1] == "by 8 trials, 2 processes, 3 cold starts: made (main)"
    assert lines[2].startswith("next: loop, 8.5")
    turn = int(advised["runner_up"]["break_even_requests"])
    assert lines[3].startswith(f"up to {turn} requests a start ops")
    assert lines[3].endswith("beyond that loop")
    assert "if the process runs already: loop" in lines
    assert not [line for line in lines if line.startswith("thin: ")]
    lines = advice.lines(advice.consult(recorded(), "m", WARM), WARM)
    assert lines[0].startswith("loop: ")
    assert not [line for line in lines if "a start" in line and not line.startswith("if ")]  # it runs already


def test_another_machine_is_a_doubt():
    lines = advice.lines(advice.consult(recorded(cpu="abacus"), "m", SEVEN), SEVEN)
    assert [line for line in lines if line.startswith("thin: it was measured on another machine (abacus")]


def test_a_model_of_which_nothing_is_recorded_is_named():
    with pytest.raises(UserError, match=r"Nothing was recorded of n \(but of m\)"):
        advice.consult(recorded(), "n", SEVEN)


def test_the_recorded_tables_are_those_of_notebooks_that_say_so():
    assert [name for name, _, _ in advice.recorded()] == ["03-jit-placement", "08-fewer-bits"]
