"""Traces of what JAX does, as files for ui.perfetto.dev: taking one, keeping it, and reading its events."""

from __future__ import annotations

import contextlib
import gzip
import json
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path

import jax

from llama_jax.plumbing import files
from llama_jax.plumbing.errors import UserError


@contextlib.contextmanager
def traced(folder: str) -> Iterator[None]:
    """Everything within, Python's own calls left out, goes into a trace. Raises UserError while another is taken."""
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0
    try:
        jax.profiler.start_trace(folder, create_perfetto_trace=True, profiler_options=options)
    except RuntimeError as error:
        raise UserError(f"No trace can be taken: {error}") from None
    try:
        yield
    finally:
        jax.profiler.stop_trace()


def taken(folder: str) -> bytes:
    """The trace that `traced` left in a folder: gzipped JSON in the Trace Event Format."""
    (path,) = Path(folder).rglob("perfetto_trace.json.gz")
    return path.read_bytes()


@contextlib.contextmanager
def recorded(path: Path) -> Iterator[None]:
    """Everything within goes into a file (.json.gz), written when it ends well. Raises UserError if it cannot be."""
    path = Path(path)
    if path.is_dir():
        raise UserError(f"{path} is a folder; a trace is a file, such as {path / 'trace.json.gz'}.")
    with files.explained(path):  # a mistake shows before the work
        path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as place:
        with traced(place):
            yield
        files.write(path, taken(place))


def events(trace: bytes | str | Path) -> list[dict]:
    """The events of a trace, given as its bytes or its file, gzipped or plain. Raises UserError for anything else.

    Format: https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU (Trace Event Format).
    """
    name = "This" if isinstance(trace, bytes) else str(trace)
    try:
        content = trace if isinstance(trace, bytes) else Path(trace).read_bytes()
        return json.loads(gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content)["traceEvents"]
    except (ValueError, TypeError, KeyError, EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UserError(f"{name} is not a trace: it should be JSON with traceEvents, gzipped or not.") from error
    except OSError as error:
        raise UserError(f"Cannot read {name}: {error.strerror or error}.") from error
