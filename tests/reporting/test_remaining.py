"""How long the rest takes, in words."""

import threading

import pytest

from llama_lab.bench import progress
from llama_lab.reporting import remaining
from llama_lab.reporting.remaining import Remaining

STEPS = {"the headline": 240.0, "20 notebooks": 180.0, "the report": 10.0}


@pytest.mark.parametrize(
    ("expected", "spent", "share", "left"),
    [(240, 60, 0.0, 180), (240, 300, 0.0, 0), (240, 100, 0.5, 100), (240, 60, 0.1, 180), (10, 90, 0.9, 10)],
)
def test_a_step_is_told_by_its_own_pace_once_there_is_one(expected, spent, share, left):
    assert remaining.rest(expected, spent, share) == pytest.approx(left)


def test_the_line_says_what_is_done_and_what_is_left_by_itself():
    heard = threading.Event()
    with Remaining(STEPS, lambda line: heard.set(), every_s=0.01).spoken() as rest:
        assert heard.wait(30)
    rest.progress("block 3: loop", 30, 60)
    words = "2 min: the headline (block 3: loop); about 5 min left, then 20 notebooks, the report"
    assert rest.line(rest.start + 120) == words
    rest.begin("the report")
    assert rest.line().endswith("the report; about 1 min left")
    assert not [t for t in threading.enumerate() if t.name.endswith("(repeat)")]


def test_plain_lines_come_one_at_a_time():
    lines, each = [], []
    for into, every_s in ((lines, 1000), (each, 0)):
        tell = progress.lines(into.append, every_s=every_s)
        for done in range(3):
            tell("cold start of step", done, 12)
    assert len(lines) == 1
    assert lines[0].startswith("cold start of step (0 of 12 done after 0 s")
    assert "s left" in each[2]
