"""Traces as files: taken one at a time, written when all went well, read back whatever their packing."""

import gzip
import json

import jax
import pytest

from llama_jax.plumbing.errors import UserError
from llama_lab.bench import tracing

pytestmark = pytest.mark.usefixtures("compiling")

EVENTS = [{"ph": "X", "name": "dot", "pid": 1, "tid": 1, "ts": 0.0, "dur": 1.5}, {}]
CONTENT = gzip.compress(json.dumps({"traceEvents": EVENTS}).encode(), mtime=0)


def test_a_trace_is_bytes_or_a_file_gzipped_or_plain(tmp_path):
    (tmp_path / "a.json.gz").write_bytes(CONTENT)
    (tmp_path / "a.json").write_bytes(gzip.decompress(CONTENT))
    for trace in (CONTENT, gzip.decompress(CONTENT), tmp_path / "a.json.gz", str(tmp_path / "a.json")):
        assert tracing.events(trace) == EVENTS


BROKEN = [b"", b"no JSON", b"[]", b"{}", b"5", gzip.compress(b"{", mtime=0), CONTENT[:-9],
          CONTENT[:2] + b"\xff" + CONTENT[3:], b"\xff\xfe"]  # fmt: skip


@pytest.mark.parametrize("broken", BROKEN)
def test_what_is_no_trace_is_one_line(tmp_path, broken):
    (tmp_path / "t.json.gz").write_bytes(broken)
    with pytest.raises(UserError, match=r"^This is not a trace: [^\n]+$"):
        tracing.events(broken)
    with pytest.raises(UserError, match=r"t\.json\.gz is not a trace"):
        tracing.events(tmp_path / "t.json.gz")
    with pytest.raises(UserError, match="Cannot read .*none: No such file"):
        tracing.events(tmp_path / "none")


def test_what_happens_within_is_recorded_and_an_error_records_nothing(tmp_path):
    path = tmp_path / "deep" / "trace.json.gz"
    with pytest.raises(ZeroDivisionError), tracing.recorded(path):
        raise ZeroDivisionError
    assert list(path.parent.iterdir()) == []
    second = tracing.traced(str(tmp_path))
    with tracing.recorded(path), jax.profiler.TraceAnnotation("within"), pytest.raises(UserError, match="No trace can"):
        second.__enter__()
    assert [e.get("name") for e in tracing.events(path)].count("within") == 1
    (tmp_path / "file").write_text("")
    wrong = {tmp_path / "file" / "t.json.gz": "Cannot write", tmp_path: "is a folder; a trace is a file"}
    for place, words in wrong.items():
        with pytest.raises(UserError, match=words), tracing.recorded(place):
            pytest.fail("it ran")
