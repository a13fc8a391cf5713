"""The pipeline: what it writes, that it goes on byte for byte where it was stopped, and how it speaks of what goes
wrong."""

import copy
import json
import random
import signal
import threading
import time
from dataclasses import replace
from queue import SimpleQueue
from types import SimpleNamespace
from unittest.mock import Mock

import jax
import numpy as np
import pytest

from llama_jax import checkpoint
from llama_jax.plumbing.errors import UserError
from llama_lab.activations import (
    ActivationSpec,
    ActivationStore,
    Extractor,
    extract,
    extraction,
    finish,
    pending,
    store,
)
from llama_lab.activations.folder import LocalFolder, open_folder
from llama_lab.cli.extract import line
from tests.activations import runs
from tests.activations.stores import content, says
from tests.conftest import TINY

pytestmark = pytest.mark.usefixtures("compiling")

MODEL = TINY.replace("num_hidden_layers=2", "num_hidden_layers=3")
SITES = (("resid_post", (0, 1)), ("q", 1))
SHAPE = (2, 16)
UNIT = 3


DRAW = random.Random(0)
EXAMPLES = [[DRAW.randrange(97) for _ in range(DRAW.randrange(0, 40))] for _ in range(20)]


@pytest.fixture(scope="module")
def loaded():
    return checkpoint.load(MODEL)


@pytest.fixture(scope="module")
def extractor(loaded):
    return Extractor(loaded, ActivationSpec(SITES), SHAPE)


@pytest.fixture(scope="module")
def unbroken(extractor, tmp_path_factory):
    """A store made in one go."""
    out = tmp_path_factory.mktemp("unbroken")
    extract(extractor, Stream(), out, unit=UNIT)
    return content(out)


class Stream:
    """A source that may break off in the middle, the way a broken disk would."""

    def __init__(self, until=None, examples=EXAMPLES):
        self.until, self.examples = until, examples

    def __iter__(self):
        yield from self.examples[: self.until]
        if self.until is not None:
            raise UserError("the source broke off")


def test_the_store_holds_what_the_extractor_gives(extractor, tmp_path):
    report = extract(extractor, Stream(), tmp_path, unit=UNIT)
    parts = [extractor(EXAMPLES[i : i + UNIT]) for i in range(0, len(EXAMPLES), UNIT)]  # packed the same way
    for i, part in enumerate(parts):
        part["example"] = part["example"] + i * UNIT
    expected = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    found = ActivationStore.open(tmp_path)
    for name in ("resid_post:0", "resid_post:1", "q:1"):
        assert np.array_equal(np.asarray(found[name][:]).view(np.uint16), expected[name].view(np.uint16)), name
        wide = expected[name].astype(np.float64)
        assert np.allclose(found.mean(name), wide.mean(0), atol=1e-5)
        assert np.allclose(found.std(name), wide.std(0), atol=1e-5)
    for column in ("token", "example", "segment", "position"):
        assert np.array_equal(np.asarray(found[column][:]), expected[column]), column
    assert list(expected["token"]) == [i for ids in EXAMPLES for i in ids]
    assert report.rows == report.tokens == len(expected["token"])
    assert (report.units, report.written, report.compilations, report.complete) == (7, 7, 1, True)
    other = copy.copy(extractor)
    other.checkpoint = replace(extractor.checkpoint, name=str(tmp_path / "model.gguf"))
    fingerprint = json.dumps(extraction.fingerprint(other, extraction.open_source(EXAMPLES).about, UNIT))
    assert str(tmp_path) not in fingerprint  # nor any other folder
    assert "model.gguf" in fingerprint
    assert report.bytes == sum(path.stat().st_size for path in tmp_path.rglob("*.safetensors"))
    assert not found.verify()


@pytest.mark.parametrize(("depth", "writers"), [(0, 0), (np.int64(1), 0), (3, np.uint8(1)), (2, 4)])
def test_depth_and_writers_change_nothing(depth, writers, extractor, unbroken, tmp_path):
    shard = (np.int64(0), np.int32(1))
    extract(extractor, Stream(), tmp_path, depth=depth, writers=writers, unit=np.int64(UNIT), shard=shard)
    assert content(tmp_path) == unbroken


def test_in_flight_is_bounded(extractor, tmp_path, monkeypatch):
    flying, most = set(), []

    def dispatch(batch, original=extractor.dispatch):
        flying.add(id(batch))
        most.append(len(flying))
        return original(batch)

    def kept(batch, value, original=extractor.kept):
        flying.discard(id(batch))
        return original(batch, value)

    monkeypatch.setattr(extractor, "dispatch", dispatch)
    monkeypatch.setattr(extractor, "kept", kept)
    extract(extractor, Stream(), tmp_path, depth=2, unit=UNIT)
    assert len(most) > 6
    assert max(most) == 3  # two in flight and the one that was just started


@pytest.mark.parametrize("position", ["last", (0, -1)])
def test_some_positions_only(position, loaded, tmp_path):
    extractor = Extractor(loaded, ActivationSpec(SITES, position), SHAPE)
    report = extract(extractor, Stream(), tmp_path, unit=UNIT)
    wanted = [[ids[-1]] if position == "last" else [ids[0], ids[-1]][: len(ids)] for ids in EXAMPLES if ids]
    found = ActivationStore.open(tmp_path)
    assert list(found["token"][:]) == [token for tokens in wanted for token in tokens]
    assert report.rows < report.tokens
    assert report.compilations == 1


def test_a_trace_says_how_long_the_device_was_idle(extractor, unbroken, tmp_path):
    report = extract(extractor, Stream(), tmp_path / "out", unit=UNIT, trace=tmp_path / "trace.json.gz")
    assert 0 < report.device_idle < 1
    assert report.compilations == 1
    assert content(tmp_path / "out") == unbroken


def test_progress_ends_with_the_report(extractor, tmp_path):
    with says("broke off"):
        extract(extractor, Stream(2 * UNIT), tmp_path, unit=UNIT)
    told = []
    report = extract(extractor, Stream(), tmp_path, unit=UNIT, progress=told.append)
    assert told[0][:4] == (0, 0, 0, 0)
    assert [p.units for p in told] == list(range(6))
    assert {p.before for p in told} == {2 * UNIT}
    assert told[-1].before + told[-1].examples == len(EXAMPLES)
    assert told[-1].tokens == report.tokens
    assert told[-1].total is None  # of a source that is read in order
    assert line(told[-1]._replace(total=len(EXAMPLES))).endswith("100%, 0:00:00 left")
    half = told[-1]._replace(examples=5, before=5, seconds=10.0, total=20)
    assert line(half).endswith("50%, 0:00:20 left")
    assert "left" not in line(half._replace(total=None))


# Resume ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 4, 11])
def test_a_source_that_breaks_off_is_gone_on_with(count, extractor, unbroken, tmp_path):
    with says("broke off"):
        extract(extractor, Stream(count), tmp_path, unit=UNIT)
    assert not ActivationStore.open(tmp_path).complete
    written = extract(extractor, Stream(), tmp_path, unit=UNIT)
    assert written.written == 7 - len([n for n in range(7) if (n + 1) * UNIT <= count])
    assert content(tmp_path) == unbroken


def test_a_finished_run_is_left_as_it_is(extractor, unbroken, tmp_path):
    extract(extractor, Stream(), tmp_path, unit=UNIT, shard=(1, 4))  # by a worker that died
    extract(extractor, Stream(), tmp_path, unit=UNIT)
    again = extract(extractor, Stream(), tmp_path, unit=UNIT)
    assert (again.written, again.tokens, again.units) == (0, 0, 7)
    assert content(tmp_path) == unbroken


@pytest.mark.parametrize("count", [2, 4])
def test_shares_of_any_number_of_processes_make_one_store(count, extractor, unbroken, tmp_path):
    reports = [extract(extractor, Stream(), tmp_path, unit=UNIT, shard=(i, count)) for i in range(count)]
    assert [r.complete for r in reports] == [False] * (count - 1) + [True]
    assert sum(r.written for r in reports) == 7
    assert content(tmp_path) == unbroken


# Units that an engine hands out ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def listed(extractor, tmp_path_factory):
    """A store of the examples as a list, made in one go: its units can be done alone."""
    out = tmp_path_factory.mktemp("listed")
    extract(extractor, EXAMPLES, out, unit=UNIT)
    return content(out)


def test_units_in_any_order_one_by_one_or_several_are_one_store(extractor, listed, tmp_path):
    begun = extract(extractor, EXAMPLES, tmp_path, unit=UNIT, units=[])
    assert (begun.units, begun.written, begun.complete) == (0, 0, False)
    assert pending(tmp_path) == list(range(7))
    for numbers in ([5], [2, 0], [5, 2], (np.int64(6), 1)):
        report = extract(extractor, EXAMPLES, tmp_path, unit=UNIT, units=numbers)
        assert report.units == len(numbers)
        assert not finish(tmp_path)
    assert report.written == 2
    assert pending(tmp_path) == [3, 4]
    assert extract(extractor, EXAMPLES, tmp_path, unit=UNIT, units=iter([3, 4])).compilations == 1
    assert finish(tmp_path)
    assert content(tmp_path) == listed
    for index in (2, 0, 1):  # and so are shards
        report = extract(extractor, EXAMPLES, tmp_path / "shards", unit=UNIT, shard=(index, 3))
        assert report.complete == (index == 1)
    assert content(tmp_path / "shards") == listed


def test_what_is_handed_out_is_committed_while_the_next_is_waited_for(extractor, listed, tmp_path):
    """An engine that hands out a unit only once the one before it is committed: nothing waits for a full pipeline."""
    committed = SimpleQueue()

    def one_at_a_time():
        for number in range(7):
            yield number
            assert committed.get(timeout=60) == number

    told = []

    def progress(done):
        told.append(done)
        if done.unit is not None:
            committed.put(done.unit)

    extract(extractor, EXAMPLES, tmp_path, depth=4, unit=UNIT, units=one_at_a_time(), progress=progress)
    assert [done.unit for done in told] == [None, *range(7)]
    assert finish(tmp_path)
    assert content(tmp_path) == listed
    told.clear()
    extract(extractor, EXAMPLES, tmp_path, unit=UNIT, units=[4, 4], progress=told.append)
    assert [(done.unit, done.units) for done in told] == [(None, 0), (4, 0), (4, 0)]  # said all the same


def test_an_error_does_not_wait_for_an_engine_that_hands_out_no_more(extractor, tmp_path, monkeypatch):
    over = threading.Event()

    def waits():
        yield 0
        over.wait()

    monkeypatch.setattr(store, "write_unit", Mock(side_effect=UserError("No space left on the device")))
    for writers, units in ((0, range(7)), (2, range(7)), (0, waits())):
        with says("No space left"):
            extract(extractor, EXAMPLES, tmp_path, writers=writers, unit=UNIT, units=units)
    over.set()


def test_a_call_for_one_unit_reads_no_other_commit(extractor, tmp_path, monkeypatch):
    extract(extractor, EXAMPLES, tmp_path, unit=UNIT, units=range(6))
    asked = []

    def read(folder, name, *rest, original=LocalFolder.read):
        asked.append(name)
        return original(folder, name, *rest)

    monkeypatch.setattr(LocalFolder, "read", read)
    monkeypatch.setattr(LocalFolder, "sizes", None)  # nor a listing
    source = extraction.open_source(EXAMPLES)
    extract(extractor, source, tmp_path, unit=UNIT, units=[6])
    assert set(asked) <= {"run.json", "plan.json", "units/000/000006.json"}


def test_what_somebody_else_commits_meanwhile_is_passed_over(extractor, listed, tmp_path):
    """Another process does units 4 and 5 while this one is at its first."""
    other = []

    def progress(done):
        if done.unit is None:
            other.append(extract(extractor, EXAMPLES, tmp_path, unit=UNIT, units=[5, 6]))

    report = extract(extractor, EXAMPLES, tmp_path, unit=UNIT, progress=progress)
    assert (report.units, report.written, other[0].written, report.complete) == (7, 5, 2, True)
    assert content(tmp_path) == listed


def test_another_run_in_the_folder_is_refused(extractor, loaded, tmp_path):
    extract(extractor, Stream(), tmp_path, unit=UNIT)
    before = content(tmp_path)
    for change, field in (
        (dict(spec=ActivationSpec(SITES, dtype="float32")), "spec.dtype"),
        (dict(spec=ActivationSpec((("resid_post", 0),))), "spec.sites"),
        (dict(batch=(2, 8)), "batch"),
        (dict(pack=False), "pack"),
        (dict(checkpoint=checkpoint.load(MODEL + ":1")), "model.weights_hash"),
        ({}, "unit"),
    ):
        different = Extractor(**dict(checkpoint=loaded, spec=ActivationSpec(SITES), batch=SHAPE) | change)
        with says(field):
            extract(different, Stream(), tmp_path, unit=UNIT if change else 4)
        assert content(tmp_path) == before


def test_an_object_store_gets_the_same_bytes_by_several_writers_and_what_was_stopped_goes_on(
    extractor, unbroken, bucket, tmp_path
):
    out = f"{bucket}/{tmp_path.name}"
    with says("the source broke off"):
        extract(extractor, Stream(until=8), out, unit=UNIT, writers=4)
    folder = open_folder(out)
    assert {"run.json", "units/000/000001.json"} <= set(folder.names())
    report = extract(extractor, Stream(), out, unit=UNIT, writers=4)
    assert 0 < report.written < report.units == 7
    assert {name: folder.read(name) for name in folder.names()} == unbroken
    with says("already holds this run"):
        extract(extractor, Stream(), out, unit=UNIT, resume=False)
    with says("Cannot write s3://no-such-bucket/run/run.json: "):
        extract(extractor, Stream(), "s3://no-such-bucket/run", unit=UNIT)


def test_without_resume_any_run_is_refused_and_a_changed_source_always(extractor, tmp_path):
    with says("broke off"):
        extract(extractor, Stream(8), tmp_path, unit=UNIT)
    with says("resume"):
        extract(extractor, Stream(), tmp_path, unit=UNIT, resume=False)
    changed = [EXAMPLES[0], [1, 2, 3], *EXAMPLES[2:]]
    with says("source has changed: examples 0 to 2"):
        extract(extractor, Stream(examples=changed), tmp_path, unit=UNIT)


# What goes wrong ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("writers", [0, 2])
def test_an_error_of_a_writer_reaches_the_caller_and_spares_what_is_committed(
    writers, extractor, unbroken, tmp_path, monkeypatch
):
    def write_unit(folder, number, *rest, original=store.write_unit):
        if number == 3:
            raise UserError("No space left on the device")
        return original(folder, number, *rest)

    with monkeypatch.context() as patched:
        patched.setattr(store, "write_unit", write_unit)
        with says("No space left"):
            extract(extractor, Stream(), tmp_path, writers=writers, unit=UNIT)
    left = store.commits(open_folder(tmp_path))
    assert 3 not in left
    assert left
    assert [p.reason for p in ActivationStore.open(tmp_path).verify() if "damaged" in p.reason] == []
    extract(extractor, Stream(), tmp_path, unit=UNIT)
    assert content(tmp_path) == unbroken


def test_values_that_the_dtype_cannot_hold_are_refused(loaded, tmp_path):
    embeddings = replace(loaded.params.embeddings, weight=loaded.params.embeddings.weight * 1e9)
    huge = replace(loaded, params=replace(loaded.params, embeddings=embeddings))
    extractor = Extractor(huge, ActivationSpec((("resid_pre", 0),), dtype="float16"), SHAPE)
    with pytest.raises(UserError, match=r"resid_pre:0 .* float16 cannot hold"):
        extract(extractor, Stream(), tmp_path)


def test_out_of_memory_is_one_line(extractor, tmp_path, monkeypatch):
    error = jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 1 bytes.")
    with monkeypatch.context() as patched, says("Out of memory at a batch of 2 x 16"):
        patched.setattr(extractor, "dispatch", Mock(side_effect=error))
        extract(extractor, Stream(), tmp_path / "device")
    monkeypatch.setattr(extraction.psutil, "virtual_memory", lambda: SimpleNamespace(available=10))
    with says("3 batches of 2 x 16 in flight take"):
        extract(extractor, Stream(), tmp_path / "out", depth=2)
    assert not (tmp_path / "out").exists()
    monkeypatch.setattr(extraction, "check_room", lambda *_: None)
    with says("No room for", "rows of unit 0"):
        extract(extractor, Stream(), tmp_path / "out")
    assert not (tmp_path / "out" / "units").exists()


WRONG = [
    *({name: value} for name in ("depth", "writers", "unit", "shard") for value in (-1, 2**62, 1.0, "1", True)),
    *({name: None} for name in ("depth", "writers", "unit", "resume")),
    *(dict(shard=shard) for shard in ((0, 0), (2, 2), (-1, 2), (0, 1, 2), (0.0, 1), ("0", "1"), (0, None), [])),
    *(dict(shard=shard) for shard in ({0: 1, 3: 2}, {0, 3}, np.array([0, 3]))),
    *(dict(unit=0), dict(resume="yes")),
]


def test_what_cannot_be_asked_for_is_one_line_and_writes_nothing(extractor, tmp_path):
    for wrong in WRONG:
        with says(next(iter(wrong))):
            extract(extractor, Stream(), tmp_path / "out", **wrong)
    with says("can be read in order only"):
        extract(extractor, Stream(), tmp_path / "out", unit=UNIT, units=[0])
    assert not (tmp_path / "out").exists()
    for out in ("", "a\0b", "\ud800", 5, None, b"out"):
        with says("does not name a folder"):
            extract(extractor, Stream(), out)
    for unit in (7, -1, "1", 1.0, True):
        with pytest.raises(UserError, match=r"There is no unit|A unit is"):
            extract(extractor, EXAMPLES, tmp_path / "units", unit=UNIT, units=[unit])


def test_a_program_compiled_in_the_run_is_counted(extractor, tmp_path, monkeypatch):
    def dispatch(batch, original=extractor.dispatch):
        jax.jit(lambda x: x + 1)(np.float32(1))  # a new function each time: compiled anew
        return original(batch)

    monkeypatch.setattr(extractor, "dispatch", dispatch)
    assert extract(extractor, Stream(), tmp_path, unit=UNIT).compilations > 5


# Real processes -------------------------------------------------------------------------------------------------------

CHILD = """
import os, signal, sys, time
from llama_jax import checkpoint
from llama_lab.activations import ActivationSpec, Extractor, extract
from tests.activations.test_extraction import MODEL, SHAPE, SITES, UNIT, Stream

at, calls = int(sys.argv[2]), 0

def deadly(function):
    def call(*arguments, **options):
        global calls
        calls += 1
        if calls == at:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*arguments, **options)
    return call

extractor = Extractor(checkpoint.load(MODEL), ActivationSpec(SITES), SHAPE)
os.fsync, os.replace = deadly(os.fsync), deadly(os.replace)
print("ready", flush=True)
start = time.perf_counter()
extract(extractor, Stream(), sys.argv[1], unit=UNIT)
print(calls, time.perf_counter() - start, flush=True)
"""


def child(out, at=0):
    return runs.spawn("-c", CHILD, out, at)


@pytest.mark.slow
def test_killed_at_each_stage_of_writing_it_goes_on_byte_for_byte(unbroken, extractor, tmp_path):
    """fsync and rename of the first files (run.json, a shard, its commit) and of the last (complete.json, the
    index)."""
    calls = int(child(tmp_path / "whole").communicate()[0].split()[1])
    for at in (1, 2, 3, 5, 7, 8, 9, calls - 3, calls - 2):
        out = tmp_path / str(at)
        process = child(out, at)
        process.communicate()
        # two writers may both make a new folder sure, so runs differ by a call, and the last kills may find all done
        late = at > calls - 4
        assert late or process.returncode == -signal.SIGKILL
        assert late or content(out) != unbroken
        assert extract(extractor, Stream(), out, unit=UNIT).complete
        assert content(out) == unbroken, f"killed at call {at} of {calls}"


@pytest.mark.slow
def test_killed_at_random_moments_it_goes_on_byte_for_byte(unbroken, tmp_path):
    seconds = float(child(tmp_path / "whole").communicate()[0].split()[2])
    draw, out, killed = random.Random(0), tmp_path / "out", 0
    for _ in range(6):
        process = child(out)
        assert process.stdout.readline().strip() == "ready"
        time.sleep(draw.uniform(0, seconds / 2))
        process.kill()
        process.communicate()
        killed += process.returncode == -signal.SIGKILL
    last = runs.finished(child(out))
    assert last.returncode == 0, last.err
    assert killed >= 3  # the later ones may have found nothing left to do
    assert content(out) == unbroken


MEMORY = """
import json, random, resource, sys
from llama_jax import checkpoint
from llama_lab.activations import ActivationSpec, Extractor, extract
from tests.activations.test_extraction import MODEL

rng = random.Random(0)
extractor = Extractor(checkpoint.load(MODEL), ActivationSpec((("resid_post", "all"), ("q", "all")), dtype="float32"),
                      (8, 64))
examples = lambda count: ([rng.randrange(97) for _ in range(60)] for _ in range(count))
extract(extractor, examples(400), sys.argv[1] + "/first", unit=50)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
report = extract(extractor, examples(4000), sys.argv[1] + "/second", unit=50)
print(json.dumps([before, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, report.bytes]))
"""


@pytest.mark.slow
def test_memory_does_not_grow_with_the_source(tmp_path):
    before, after, size = json.loads(runs.finished(runs.spawn("-c", MEMORY, tmp_path)).out.splitlines()[-1])
    assert size > 300e6  # what would have to be held
    assert (after - before) * 1024 < 0.1 * size


# The command line -----------------------------------------------------------------------------------------------------


def test_extract_and_verify_by_command(call, document, tmp_path):
    texts = tmp_path / "examples.jsonl"
    texts.write_text("".join(json.dumps({"text": ids}) + "\n" for ids in EXAMPLES))
    line = f"extract --model {MODEL} --sites resid_post:0,1 --sites q:1 --batch 2 --length 16 --unit 3 --json".split()
    arguments = [*line, "--source", texts, "--out", tmp_path / "out"]
    report, _ = document(*arguments)
    assert {"out", "units", "rows", "bytes", "compilations", "seconds", "tokens_per_second"} <= set(report)
    assert (report["units"], report["rows"], report["compilations"]) == (7, sum(map(len, EXAMPLES)), 1)
    code, _, err = call(*arguments, "--no-resume")
    assert code == 2
    assert "already holds this run" in err
    assert document(*arguments)[0]["written"] == 0
    sound, _ = document("verify", tmp_path / "out", "--json")
    assert sound == {"ok": True, "units": 7, "rows": report["rows"], "problems": []}
    shard = next((tmp_path / "out").rglob("000002.safetensors"))
    damaged = bytearray(shard.read_bytes())
    damaged[-5] ^= 1
    shard.write_bytes(damaged)
    code, out, err = call("verify", tmp_path / "out", "--json")
    found = json.loads(out.splitlines()[-1])
    assert code == 1
    assert not found["ok"]
    assert [p["file"] for p in found["problems"]] == ["units/000/000002.safetensors"]
    assert "000002.safetensors" in err
