"""The command line where the machine is against it: outputs closed or full, no home, odd locales, signals.
Real processes, because the interpreter's start and end are part of it."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from unittest.mock import Mock

import pytest

from llama_jax.plumbing import files, paths
from llama_jax.plumbing.errors import UserError
from llama_lab import __main__ as program
from llama_lab import interruption
from tests.conftest import among_the_fast

PROGRAM = (sys.executable, "-m", "llama_lab")
VERBS = {"quick": ("placements",), "json": ("placements", "--json"), "help": ("bench", "--help")}
ASCII = {"LC_ALL": "C", "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


def shell(line, *arguments, buffered=True, **env):
    """A line of bash in which "$@" is the program with its arguments."""
    clean = {k: v for k, v in os.environ.items() if k != "PYTHONUNBUFFERED"} | env
    clean |= {} if buffered else {"PYTHONUNBUFFERED": "1"}
    return subprocess.run(
        ["bash", "-c", line, "bash", *PROGRAM, *arguments], capture_output=True, env=clean, stdin=subprocess.DEVNULL
    )


CLOSED, FULL, SMALL = '"$@" >&-', '"$@" >/dev/full', 'ulimit -f 0; "$@" >"$(mktemp)"'
REFUSING = {CLOSED: "Bad file descriptor", FULL: "No space left on device", SMALL: "File too large"}


@pytest.mark.parametrize(
    ("verb", "line"),
    among_the_fast(
        [("quick", CLOSED), ("quick", FULL), ("json", SMALL), ("help", FULL)],
        [(verb, line) for verb in VERBS for line in REFUSING],
    ),
)
def test_an_output_that_takes_nothing_is_one_line(verb, line):
    words = f"Standard output: {REFUSING[line]}"
    done = shell(line, *VERBS[verb])
    assert (done.returncode, done.stdout, done.stderr.decode()) == (2, b"", f"error: {words}.\n")


def test_an_unbuffered_output_is_no_other_and_a_closed_input_is_one_line():
    done = shell('"$@" >/dev/full', "placements", buffered=False)
    assert (done.returncode, done.stderr) == (2, b"error: No space left on device.\n")
    done = shell('"$@" <&-', "generate", "-")
    assert (done.returncode, done.stderr) == (2, b"error: Standard input is closed; give the prompt as an argument.\n")


@pytest.mark.slow
@pytest.mark.parametrize(("arguments", "code"), [(("models",), 0), (("--quiet", "models", "--json"), 0), (("x",), 2)])
@pytest.mark.parametrize("line", ['"$@" 2>&-', '"$@" 2>/dev/full'])
def test_where_nobody_hears_complaints_the_result_and_the_exit_code_stay(line, arguments, code):
    done, usual = shell(line, *arguments), shell('"$@"', *arguments)
    assert (done.returncode, done.stdout) == (usual.returncode, usual.stdout) == (code, usual.stdout)
    assert done.stderr == b""


def test_with_all_closed_no_file_gets_the_number_of_a_stream(tmp_path):
    """A table written while standard output is closed would otherwise have the program's output in it."""
    code = (
        "import os, sys; from llama_lab import __main__ as m; m.open_closed(); os.chdir(sys.argv[1])\n"
        "table = open('x', 'w'); open('number', 'w').write(str(table.fileno())); print('lost')"
    )
    subprocess.run(["bash", "-c", '"$@" >&- 2>&- <&-', "bash", sys.executable, "-c", code, tmp_path])
    assert int((tmp_path / "number").read_text()) > 2
    assert (tmp_path / "x").read_text() == ""


ENVIRONMENTS = {
    "ascii": ASCII,
    "no width": {"COLUMNS": "0", "TERM": "dumb"},
    "wider than memory": {"COLUMNS": "9" * 12, "LINES": "9" * 5_000, "TERM": "nosuch"},
    "widths that are none": {"COLUMNS": "-1", "TERMINAL_WIDTH": "x"},
    "home of nobody": {"HOME": "/nowhere", "XDG_CACHE_HOME": "", "LLAMA_JAX_CACHE": ""},
    "cache that cannot be": {"LLAMA_JAX_CACHE": "/proc/cache"},
    "temporary folder that is none": {"TMPDIR": "/nowhere"},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_an_odd_environment_changes_nothing(name):
    for verb in ("json", "help"):
        done = shell('"$@"', *VERBS[verb], **ENVIRONMENTS[name])
        assert (done.returncode, done.stderr) == (0, b"")
    assert len(done.stdout) < 100_000
    assert shell('"$@"', *VERBS["json"], **ENVIRONMENTS[name]).stdout == shell('"$@"', *VERBS["json"]).stdout


def test_a_result_is_ascii_whatever_is_in_it(capsys):
    from llama_lab.cli.common import emit

    document = {"é": "\udcff \u2028 👋", "nothing": float("nan")}
    emit(document)
    said = capsys.readouterr().out
    assert said.isascii()
    assert json.loads(said) == document | {"nothing": None}


@pytest.mark.parametrize(
    ("argument", "env", "words"),
    [(b"caf\xe9", {}, "'caf\\udce9' is not text in utf-8"), ("é".encode(), ASCII, "is not text in ascii")],
)
def test_an_argument_that_is_no_text_is_one_line(call, argument, env, words):
    done = subprocess.run(
        [*PROGRAM, "generate", argument], capture_output=True, env={**os.environ, **env}, stdin=subprocess.DEVNULL
    )
    assert (done.returncode, done.stdout, done.stderr.count(b"\n")) == (2, b"", 1)
    assert words in done.stderr.decode()
    assert "PYTHONUTF8=1" in done.stderr.decode()
    for half in ("a\0b", "\ud800"):
        code, out, err = call("generate", half)
        assert (code, out, err.count("\n"), "is not text" in err) == (2, "", 1, True)


@pytest.mark.parametrize(
    ("content", "words"),
    [(b"caf\xe9", "is not UTF-8"), (b"", "The prompt is empty"), (b"a" * (16 << 20) + b"bc", "more than 16,777,216")],
)
def test_standard_input_is_a_text_of_some_length(content, words):
    done = subprocess.run([*PROGRAM, "generate", "-"], input=content, capture_output=True)
    assert (done.returncode, done.stdout, done.stderr.count(b"\n")) == (2, b"", 1)
    assert words in done.stderr.decode()


@pytest.mark.parametrize(
    ("sign", "times", "code"), [("INT", 1, 130), ("INT", 3, 130), ("TERM", 1, -15), ("TERM", 2, -15), ("HUP", 1, -1)]
)
def test_signals_end_a_verb_with_a_line_at_most(sign, times, code):
    """One that waits for its prompt."""
    child = started("generate", "-", ready="text.read_input")
    for _ in range(times):
        child.send_signal(signal.Signals[f"SIG{sign}"])
    assert child.communicate(timeout=60) == ("", f"{interruption.LINE}\n" if sign == "INT" else "")
    assert child.returncode == code


def started(*arguments, ready="", setup="", **variables):
    """The program with these arguments, as soon as it can hear signals. ready: the function that it then calls."""
    lines = [
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)",  # a background is started deaf to it
        "signal.signal(signal.SIGHUP, signal.SIG_DFL)",  # and one under nohup to this
        "from llama_lab import __main__ as m, interruption; from llama_lab.cli import text",
        *setup.splitlines(),
        f"real = {ready or 'm.attempted'}",
        f"{ready or 'm.attempted'} = lambda *given: [print(1, flush=True), real(*given)][1]",
        "m.main()",
    ]
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    command = [sys.executable, "-c", "\n".join(lines), *arguments]
    child = subprocess.Popen(command, text=True, env=os.environ | variables, **pipes)
    assert child.stdout.readline() == "1\n"
    return child


SWALLOWED = """
import time
def swallowing():
    while True:
        try: time.sleep(60)
        except BaseException: pass
text.read_input = swallowing
"""
CONVERTED = """
import time
def converting():
    try: time.sleep(60)
    except BaseException: raise RuntimeError("INTERNAL: a callback failed") from None
text.read_input = converting
"""
IGNORED = """
import time
class Closing:
    def __del__(self): time.sleep(60)
def ignoring():
    Closing()
    return "a prompt that nobody answers any more" if interruption.STATE.seen else ""
text.read_input = ignoring
"""
IN_C = """
import ctypes
def deaf(): ctypes.CDLL(None).sleep(60) or ctypes.CDLL(None).sleep(60)
text.read_input = deaf
"""


@pytest.mark.parametrize("setup", [SWALLOWED, CONVERTED, IGNORED, IN_C], ids=["swallowed", "converted", "ignored", "C"])
def test_an_interruption_that_python_does_not_carry_out_is_one_all_the_same(setup):
    patient = "interruption.STATE.grace = 0.5; interruption.at_once = lambda: None"
    child = started("generate", "-", setup=patient + setup, ready="text.read_input")
    time.sleep(0.2)  # it is within
    child.send_signal(signal.SIGINT)
    assert child.communicate(timeout=30) == ("", f"{interruption.LINE}\n")
    assert child.returncode == 130


def test_a_process_that_leaves_calls_what_it_promised_and_waits_for_nobody():
    """A thread that never ends, and what was written before."""
    setup = """
import threading, time
interruption.at_end(print, "ended")
threading.Thread(target=time.sleep, args=(600,)).start()
def reading():
    print("written", end="; ")
    raise BrokenPipeError
text.read_input = reading
"""
    child = started("generate", "-", setup=setup)
    assert child.communicate(timeout=30) == ("written; ended\n", "")
    assert child.returncode == 1


HALF_WRITTEN = """
import sys, time
from llama_jax.plumbing import files
def writing():
    with files.replacing(files.Path(sys.argv[-1])) as staged:
        staged.write_text("half")
        print(2, flush=True)
        time.sleep(60)
text.read_input = writing
"""


@pytest.mark.parametrize("order", ["", "interruption.at_once = lambda: None"], ids=["at once", "in order"])
def test_a_file_that_is_half_written_goes(tmp_path, order):
    child = started("generate", "-", "--model", tmp_path / "x", setup=HALF_WRITTEN + order)
    assert child.stdout.readline() == "2\n"
    child.send_signal(signal.SIGINT)
    assert child.communicate(timeout=30) == ("", f"{interruption.LINE}\n")
    assert list(tmp_path.iterdir()) == []


STORY = ("generate", "Tell me a long story.", "--max-new-tokens", "600", "--ignore-eos")


@pytest.mark.slow
@pytest.mark.parametrize("placement", ["step", "step+queue", "loop+callback"])
@pytest.mark.parametrize("seed", range(3))
def test_an_interruption_at_any_moment_is_one_line(placement, seed):
    """While it imports, loads, compiles or answers: never a crash, and never a word more."""
    moments = random.Random(f"{placement} {seed}")
    child = started(*STORY, "--placement", placement)
    time.sleep(moments.uniform(0, 15))
    for _ in range(moments.choice([1, 1, 2])):
        child.send_signal(signal.SIGINT)
        time.sleep(moments.uniform(0, 0.3))
    _, err = child.communicate(timeout=60)
    said = [line for line in err.splitlines() if not line.startswith("loading: ")]
    assert (child.returncode, said) == (130, [interruption.LINE])


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (OSError(28, "No space left on device", "x" * 5_000), "xxx': No space left on device."),
        (FileNotFoundError(2, "No usable temporary directory found"), "error: No usable temporary directory found."),
        (type("Abort", (RuntimeError,), {})(), "ended too early"),
        (MemoryError(), "not enough memory"),
        (RuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 9 bytes."), "not enough memory"),
    ],
)
def test_what_the_machine_refuses_is_one_line_and_what_is_our_mistake_is_not(capsys, error, words):
    assert program.complain(error) == 2
    said = capsys.readouterr().err
    assert words in said
    assert (said.count("\n"), len(said) < 1_010) == (1, True)
    program.say("begin\n" + "x" * 10_000 + " the remedy")
    said = capsys.readouterr().err
    assert (said[:7], said[-12:], len(said) < 1_010) == ("begin x", " the remedy\n", True)
    with pytest.raises(ZeroDivisionError):
        program.complain(ZeroDivisionError("ours"))


def test_a_user_without_a_home_is_one_line(monkeypatch):
    for name in ("LLAMA_JAX_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(paths.Path, "home", Mock(side_effect=RuntimeError("Could not determine home directory.")))
    with pytest.raises(UserError, match="no home folder; set HOME, or LLAMA_JAX_CACHE"):
        paths.cache("x")


@pytest.mark.parametrize("what", ["folder", "fifo", "long", "nul", "half"])
def test_only_a_file_is_written_and_only_to_a_file(tmp_path, what):
    path = tmp_path / {"long": "a" * 300, "nul": "a\0b"}.get(what, "x")
    if what == "folder":
        path.mkdir()
    if what == "fifo":
        os.mkfifo(path)
    before = list(tmp_path.iterdir())
    with pytest.raises(UserError, match="Cannot write "):
        files.write(path, "\ud800" if what == "half" else "content")
    assert list(tmp_path.iterdir()) == before


@pytest.mark.parametrize("option", ["--out", "--journal"])
def test_bench_knows_before_it_measures_that_it_cannot_write(call, tmp_path, option):
    for name, make in (("a.csv", os.mkdir), ("b.csv", os.mkfifo)):
        make(tmp_path / name)
        code, out, err = call("bench", option, tmp_path / name)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert f"{name}': it exists and is not a regular file" in err


RANGES = {
    "bench": ("blocks", "processes", "batch", "prompt-tokens", "new-tokens", "limit", "seed", "threads"),
    "advise": ("prompt-tokens", "new-tokens", "requests", "lengths", "memory-mb", "seed"),
    "generate": ("max-new-tokens", "temperature", "top-k", "top-p", "min-p", "repetition-penalty", "seed"),
    "extract": ("limit", "batch", "length", "generate", "unit", "depth", "writers", "row-limit", "processes"),
}


@pytest.mark.parametrize(("verb", "option"), [(verb, option) for verb in RANGES for option in RANGES[verb]])
def test_every_number_has_a_range(call, verb, option):
    given = {"generate": ["--token-ids", "1"], "extract": ["--sites", "ln_final", "--out", "x"]}.get(verb, [])
    for value in ("-1", "nan", "inf", "1e400", "1e31", "9" * 5_000, "", "x"):
        code, out, err = call(verb, *given, f"--{option}={value}")
        assert (code, out, err.count("\n")) == (2, "", 1), (value, err)
        assert option.replace("-", "_") in err.replace("-", "_"), (value, err)
