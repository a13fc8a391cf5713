"""Recommendations from made-up trials whose answer is known by hand, and the same in lines."""

import os
from dataclasses import replace

import pytest

from llama_jax.plumbing.errors import UserError
from llama_lab.bench import environment
from llama_lab.reporting import advice
from llama_lab.reporting.advice import Wish
from tests.bench.test_record import trial

WISH = Wish(prompt_tokens=4, new_tokens=11)
WARM, MANY = replace(WISH, warm=True), replace(WISH, requests=50)


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


HERE = dict(environment=dict(cpu=environment.cpu_model(), cores=os.cpu_count()))


def table(*subjects, name="made", meta=HERE):
    return name, [t for s in subjects for t in s], meta


def both(**more):
    """A request takes 1.0 s and 0.5 s, a start 1 s and 5 s."""
    return [table(subject("ops", 1000, 90), subject("loop", 5000, 40, **more))]


def advise(tables, wish):
    return advice.consult(tables, "m", wish)


@pytest.mark.parametrize(("requests", "best"), [(1, "ops"), (7, "ops"), (9, "loop"), (1000, "loop")])
def test_the_answer_turns_where_the_sums_say(requests, best):
    advised = advise(both(), replace(WISH, requests=requests))
    assert advised["placement"] == best
    assert advised["runner_up"]["break_even_requests"] == pytest.approx(8, rel=0.02)
    expected = {"ops": 1 + requests * 1.0, "loop": 5 + requests * 0.5}
    assert advised["seconds"] == pytest.approx(expected[best], rel=0.02)
    assert [r["name"] for r in advised["ranking"]] == sorted(expected, key=expected.get)
    assert advised["runner_up"]["seconds"] == pytest.approx(max(expected.values()), rel=0.02)


def test_the_runner_up_is_compared_side_by_side():
    advised = advise(both(), WARM)
    assert (advised["placement"], advised["start_seconds"]) == ("loop", 0)
    second = advised["runner_up"]
    assert second["ratio"]["value"] == pytest.approx(2, rel=0.01)
    assert second["ratio"]["low"] > 1.9
    assert (second["verdict"], second["break_even_requests"]) == ("slower", None)
    quick, slow = sorted(advice.candidates(both(), WARM), key=lambda candidate: candidate.request)
    assert advice.beside(quick, slow)["verdict"] == "faster"
    apart = [table(subject("ops", 1000, 90), name="one"), table(subject("loop", 5000, 40), name="two")]
    second = advise(apart, WARM)["runner_up"]
    assert (second["ratio"], second["verdict"]) == (None, "not measured side by side")
    assert advise([table(subject("ops", 1000, 90))], WISH)["runner_up"] is None
    tie = advise([table(subject("step", 1000, 90), subject("step+donate", 1000, 90))], WISH)["runner_up"]
    assert tie["verdict"].startswith("equal")
    assert tie["break_even_requests"] is None
    better = advise([table(subject("step", 1000, 50), subject("ops", 2000, 90))], WISH)["runner_up"]
    assert better["break_even_requests"] is None  # behind in both


def test_what_is_wished_rules_placements_out():
    slow = [*subject("chunk8", 3000, 60, dtype="bfloat16"), *subject("loop", 2000, 40, at_once=True, peak=900)]
    trials = [table(slow, subject("step", 4000, 50, peak=700))]

    def best(**changes):
        return advise(trials, replace(MANY, **changes))

    assert best()["placement"] == "loop"
    assert best(streaming=True)["placement"] == "step"
    assert best(streaming=True)["refused"] == [dict(name="loop", reason="tokens would arrive every 0.4 s")]
    assert best(memory=600 * 10**6)["placement"] == "chunk8"
    assert best(memory=800 * 10**6, exact=True)["placement"] == "step"
    assert dict(wish="tokens are needed as they are made", then="step") in best()["changes"]
    assert not [c for c in best()["changes"] if c["then"] == "loop"]


COARSE, UNTIMED = subject("loop", 9, 9, dtype="bfloat16"), subject("loop", 9, 9, starts=0)
PEER, OTHER = subject("x", 9, 9, backend="torch"), subject("loop", 9, 9, model="n")
MISTAKES = {
    "too little memory": (both(), dict(memory=10**6), r"your limits \(.*ops: it took 500 MB.*or measure \(--measure"),
    "float32": ([table(COARSE)], dict(exact=True), "loop: its tokens are not float32's"),
    "memory unknown": ([table(UNTIMED)], dict(memory=1), "loop: its memory was not recorded"),
    "no trials of placements": ([table(PEER)], {}, "there are no warm trials of placements"),
    "another model": ([table(OTHER)], {}, r"No data are recorded for m \(recorded: n\)"),
    "nothing": ([table()], {}, r"\(recorded: nothing\); measure it with --measure"),
    **{
        name: (both(), {name: 0}, f"{name.replace('_', '-')} is 0; it must be 1 or more")
        for name in ("prompt_tokens", "new_tokens", "requests", "lengths")
    },
}


@pytest.mark.parametrize(("tables", "wish", "words"), MISTAKES.values(), ids=MISTAKES)
def test_a_wish_that_nothing_fulfils_is_one_line(tables, wish, words):
    with pytest.raises(UserError, match=words):
        advise(tables, replace(WISH, **wish))


def test_a_placement_whose_start_was_never_timed_is_for_those_that_run_already():
    trials = [table(subject("loop", 1000, 40, starts=0), subject("step", 1000, 50))]
    assert advise(trials, WISH)["placement"] == "step"
    assert advise(trials, WISH)["refused"][0]["reason"] == "no cold start of it was recorded"
    assert advise(trials, WARM)["placement"] == "loop"


def test_thin_evidence_says_why():
    assert advise(both(), MANY)["thin"] == []
    doubts = advise(both(blocks=3, processes=1, starts=1), replace(MANY, new_tokens=44))["thin"]
    for words, doubt in zip(
        ("only 3 times", "only 1 cold start of loop", "one process", "4.0 times"), doubts, strict=True
    ):
        assert words in doubt
    (name, trials, _), other = both()[0], dict(environment=dict(cpu="abacus", cores=1))
    elsewhere = advise([(name, trials, other)], MANY)
    assert elsewhere["thin"] == ["it was measured on another machine (abacus, 1 cores)"]
    assert advice.lines(elsewhere, MANY)[-1] == "thin evidence: it was measured on another machine (abacus, 1 cores)"


def test_sizes_scale_and_the_nearest_run_is_taken():
    (step,) = advice.candidates([table(subject("step", 1000, 50))], replace(WISH, prompt_tokens=8, new_tokens=21))
    assert step.request == pytest.approx(0.2 + 20 * 0.05, rel=0.01)
    near = [*subject("step", 1000, 50, run="context 15")]
    far = [*subject("step", 1000, 80, run="context 400", prompt_tokens=389)]
    for prompt, run in ((4, "context 15"), (300, "context 400")):
        (step,) = advice.candidates([table(near, far)], replace(WISH, prompt_tokens=prompt))
        assert step.where == f"made ({run})"


def test_several_prompt_lengths_cost_programs():
    wish = replace(WISH, prompt_tokens=200, lengths=20)
    assert advice.buckets(wish) == 9  # 16, 24, 32, 48, 64, 96, 128, 192, 256
    assert [advice.buckets(replace(wish, **change)) for change in (dict(lengths=2), dict(prompt_tokens=3))] == [2, 1]
    (step,) = advice.candidates([table(subject("step", 1000, 50))], wish)
    assert step.program == pytest.approx(0.25)  # two programs in half a second
    assert step.before == pytest.approx(1.0 + 8 * 0.25, rel=0.05)
    assert replace(step, wish=replace(wish, warm=True)).before == 0


NO_EVIDENCE = {
    "void": subject("loop", 10, 1, valid=False),
    "a peer": subject("llamacpp", 10, 1, backend="llama.cpp"),
    "a batch": subject("loop", 10, 1, batch=2),
    "the control": subject("step (again)", 1000, 50, starts=0),
    "sampled": subject("loop, sampled", 1, 1),
}


@pytest.mark.parametrize("other", NO_EVIDENCE.values(), ids=NO_EVIDENCE)
def test_what_is_no_evidence_of_a_placement_is_left_out(other):
    assert [c.name for c in advice.candidates([table(subject("step", 1000, 50), other)], WISH)] == ["step"]


def test_the_lines_say_who_by_what_and_from_when_on_another():
    seven = replace(WISH, requests=7)
    advised = advise(both(), seven)
    lines = advice.lines(advised, seven)
    turn = int(advised["runner_up"]["break_even_requests"])
    assert lines[0].startswith(f"ops: {advised['seconds']:.2f} s, a start of 1.00 s and each request 1.00 s")
    assert lines[1] == "by 8 trials, 2 processes, 3 cold starts: made (main)"
    assert lines[2].startswith("next: loop, 8.5")
    assert lines[3] == f"of these two, ops takes less time up to {turn} requests a start, loop beyond that"
    open_pair = dict(advised["runner_up"], verdict="undecided")
    assert advice.lines(advised | dict(runner_up=open_pair), seven)[3].endswith(
        "loop beyond that, by the medians alone"
    )
    assert "if the process runs already: loop" in lines
    lines = advice.lines(advise(both(), WARM), WARM)
    assert lines[0].startswith("loop: ")
    assert not [line for line in lines if "a start" in line and not line.startswith("if ")]  # it runs already


def test_the_recorded_tables_are_those_of_notebooks_that_say_so():
    assert [name for name, _, _ in advice.recorded()] == ["02-jit-placement", "06-fewer-bits"]
