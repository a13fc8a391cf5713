"""The line that says how far a model is loaded, in real processes: on a terminal, elsewhere, and not if unwanted."""

import contextlib
import itertools
import math
import os
import pty
import re
import subprocess
import sys

import pytest

from llama_jax import checkpoint
from llama_jax.plumbing import progress
from tests.conftest import TINY

AT_ONCE = (
    "from llama_jax.plumbing import progress; progress.AFTER_S = 0.0\nfrom llama_lab import __main__ as m; m.main()"
)
GENERATE = ("generate", "--token-ids", "1,2", "--model", TINY, "-n", "2", "--ignore-eos", "--no-keep")


def command(*arguments):
    return [sys.executable, "-c", AT_ONCE, *arguments]


def on_a_terminal(stream, *arguments):
    """(exit code, what is on the screen) of a process one of whose outputs is a terminal."""
    ours, theirs = pty.openpty()
    outputs = dict(stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) | {stream: theirs}
    with subprocess.Popen(command(*arguments), stdin=subprocess.DEVNULL, **outputs) as child:
        os.close(theirs)
        shown = b""
        with contextlib.suppress(OSError):  # the terminal's other end is closed
            while part := os.read(ours, 1 << 16):
                shown += part
    os.close(ours)
    return child.returncode, shown.decode()


@pytest.mark.parametrize(("before", "said"), [((), 1), (("--quiet",), 0)])
def test_a_file_gets_one_plain_line_unless_nobody_wants_it(before, said):
    done = subprocess.run(command(*before, *GENERATE, "--json"), stdin=subprocess.DEVNULL, capture_output=True)
    lines = done.stderr.decode().splitlines()
    assert done.returncode == 0
    assert len(lines) == said
    assert all(line.startswith("loading: ") and "MB" in line for line in lines)


def test_a_terminal_gets_a_line_that_changes_and_goes():
    code, shown = on_a_terminal("stderr", *GENERATE)
    assert code == 0
    first, *others = shown.split("\r")
    assert first == ""
    assert others[0].startswith("loading: ")
    assert "\n" not in shown
    assert others[-1] == ""
    assert others[-2].isspace()
    for before, after in itertools.pairwise(others[:-1]):  # nothing of a longer line stays
        assert len(after) >= len(before.rstrip())


@pytest.mark.slow
def test_an_answer_ends_with_what_it_took_and_a_rate_without_its_compiling():
    code, shown = on_a_terminal("stdout", "generate", "Count to nine.", "-n", "12", "--ignore-eos", "--no-keep")
    last = " ".join(shown[shown.rindex("12 tokens") :].split())
    assert code == 0
    parts = r"\(import [\d.]+ m?s, load [\d.]+ m?s, compile [\d.]+ m?s, prompt [\d.]+ m?s\)"
    line = rf"12 tokens · first after [\d.]+ m?s {parts} · then [\d.]+ tok/s \(without compile [\d.]+ m?s[,)]"
    assert re.match(line, bare(last))


def bare(text):
    """Without what colours it."""
    return re.sub("\x1b\\[[0-9;?]*[A-Za-z] ?", "", text)


def test_all_bytes_are_told_in_rising_order_and_the_innermost_listener_hears():
    outer, heard = [], []
    with progress.heard(lambda *told: outer.append(told)), progress.heard(lambda *told: heard.append(told)):
        checkpoint.load_params(TINY)
        checkpoint.load_params(TINY, "q8_0")
    for total in dict.fromkeys(total for _, total in heard):
        done = [part for part, whole in heard if whole == total]
        assert (done[0], done[-1]) == (0, total)
        assert done == sorted(done)
        assert len(done) > 10
    assert len({total for _, total in heard}) == 2
    assert outer == []
    checkpoint.load_params(TINY)  # nobody listens


def test_what_loads_soon_is_not_told_and_what_does_not_tells_the_rest(monkeypatch):
    said, once, times = [], [], [0.0, 1.9, 2.0, 2.1, 3.1, 4.0]
    now = iter([time for time in times for _ in range(2)])
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(now))
    several, single = progress.lines(said.append, every_s=1.0), progress.lines(once.append, math.inf)
    for done in (0, 1e8, 2e8, 3e8, 5e8, 8e8):
        several(done, 8e8)
        single(done, 8e8)
    first = "loading: 200 of 800 MB, about 6 s left"
    assert said == [first, "loading: 500 of 800 MB, about 2 s left", "loading: all 800 MB after 4 s"]
    assert once == [first]
