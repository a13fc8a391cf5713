"""What is written: bit-exact shards in an open format, commits that read back the same, and nothing half after a death
at any point."""

import errno
import itertools
import json
import os
import re
import signal
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

import llama_lab.activations
from llama_jax.plumbing.errors import UserError
from llama_lab.activations import moments, records, store
from llama_lab.activations.folder import open_folder
from llama_lab.activations.moments import Moments
from llama_lab.activations.spec import ActivationSpec
from llama_lab.activations.verification import verify
from tests.activations import stores
from tests.activations.stores import content, read_all, same_bits, says
from tests.conftest import python


@pytest.mark.parametrize("rows", [0, 1, 12])
def test_a_unit_is_read_back_as_it_was_written(rows, folder):
    tensors, about, found = stores.unit(1234, rows)
    commit = store.write_unit(folder, 1234, tensors, about, found)
    assert folder.names() == ["units/001/001234.json", "units/001/001234.safetensors"]
    back = read_all(folder, "units/001/001234.safetensors")
    assert back.keys() == tensors.keys()
    assert all(same_bits(back[name], tensors[name]) for name in tensors)
    again = records.read_commit(folder, 1234)
    assert store.Commit(**store.plain(again)) == commit == store.commits(folder)[1234]
    assert (commit.rows, commit.first, commit.examples, commit.tokens) == (rows, 3702, 3, rows + 2)
    assert commit.bytes == folder.size("units/001/001234.safetensors")
    for site, one in found.items():
        assert again.moments[site].count == one.count
        assert same_bits(again.moments[site].mean, np.asarray(one.mean))
        assert same_bits(again.moments[site].m2, np.asarray(one.m2))


def unpacked(values):
    return records.unpacked(records.Numbers(**values))


def test_moments_keep_every_digit_and_what_is_not_finite():
    odd = np.array([0.1, 1 / 3, np.nextafter(1, 2), -0.0, 5e-324, 1.7976931348623157e308, np.nan, np.inf, -np.inf])
    back = unpacked(json.loads(records.as_json(records.packed(Moments(3, odd, odd[::-1])))))
    assert same_bits(back.mean, odd)
    assert same_bits(back.m2, odd[::-1])


def test_tensors_and_moments_that_do_not_belong_together_are_refused(folder):
    tensors, about, found = stores.unit(0, 4)
    for wrong in ({**tensors, "k:0": tensors["q:1"]}, {name: t for name, t in tensors.items() if name != "token"}):
        with pytest.raises((ValueError, KeyError)):
            store.write_unit(folder, 0, wrong, about, found)
    assert folder.names() == []


def test_a_spec_is_known_from_the_fingerprint():
    spec = ActivationSpec("q:1 resid_post:0,3 logits", (0, -1), "float16")
    shapes = {"resid_post:0": (4,), "q:1": (2, 3), "resid_post:3": (4,), "logits": (5,)}
    back = store.spec_of({"spec": json.loads(json.dumps(store.describe(spec, shapes)))})
    assert back == ActivationSpec((("resid_post", 0), ("q", 1), ("resid_post", 3), "logits"), (0, -1), "float16")


def test_a_folder_is_claimed_once_and_resumed_by_the_same_run_only(folder):
    mine = stores.fingerprint() | {"config": dict.fromkeys("abc", 1)}
    store.claim(folder, mine, resume=False)
    assert store.read_run(folder) == mine
    store.claim(folder, mine, resume=True)
    with says("already holds this run. Leave out --no-resume"):
        store.claim(folder, mine, resume=False)
    before = folder.read("run.json")
    other = stores.fingerprint("float32") | {"model": {"name": "tiny", "weights_hash": "cd" * 32}, "new": 1}
    del other["unit"]
    with pytest.raises(UserError) as caught:
        store.claim(folder, other | {"config": mine["config"]}, resume=True)
    line = str(caught.value)
    for difference in (
        'spec.dtype is "bfloat16" there, "float32" here',
        "new is absent there, 1 here",
        "unit is 3 there, absent here",
        "model.weights_hash",
    ):
        assert difference in line
    assert "model.name" not in line
    assert "ab" * 32 not in line  # shortened
    with says("and 3 more"):
        store.claim(folder, other | {"config": dict.fromkeys("abc", 2)}, resume=True)
    assert folder.read("run.json") == before


def test_units_of_an_unknown_run_are_left_alone(folder):
    store.write_unit(folder, 0, *stores.unit(0, 2))
    with says("no run.json"):
        store.claim(folder, stores.fingerprint(), resume=True)
    folder.write("run.json", b"{half")
    with says("run.json is not JSON"):
        store.claim(folder, stores.fingerprint(), resume=True)


def test_a_run_that_is_removed_while_it_is_claimed_is_one_line(folder, monkeypatch):
    create = folder.create
    monkeypatch.setattr(folder, "create", lambda *given: (create(*given), folder.remove("run.json")))
    with says("run.json is missing. Bring it back"):
        store.claim(folder, stores.fingerprint(), resume=True)


def test_the_whole_is_what_its_units_are(tmp_path):
    columns = stores.write(tmp_path)
    whole = json.loads((tmp_path / "complete.json").read_bytes())
    shards_found = sorted(tmp_path.rglob("*.safetensors"))
    assert (whole["units"], whole["examples"], whole["rows"]) == (5, 15, sum(stores.ROWS))
    assert whole["bytes"] == sum(path.stat().st_size for path in shards_found)
    for site in stores.SHAPES:
        expected = moments.of(columns[site], None if site == "logits" else 0)
        found = unpacked(whole["moments"][site])
        assert found.count == expected.count
        np.testing.assert_allclose(found.mean, expected.mean, rtol=1e-12)
        np.testing.assert_allclose(found.m2, expected.m2, rtol=1e-12)
    index = pq.read_table(tmp_path / "index.parquet").to_pydict()
    assert index["file"] == [str(path.relative_to(tmp_path)) for path in shards_found]
    assert index["rows"] == list(stores.ROWS)
    assert index["first_row"] == [0, 7, 7, 19, 24]


def test_two_runs_are_equal_in_every_byte_whatever_the_order_and_how_often_they_are_finished(tmp_path):
    stores.write(tmp_path / "a")
    stores.write(tmp_path / "b", finish=False, skip=(0, 2))
    stores.write(tmp_path / "b", skip=(1, 3))
    before, folder = content(tmp_path / "a"), open_folder(tmp_path / "a")
    assert content(tmp_path / "b") == before
    store.finish(folder, 5)
    folder.remove("index.parquet")
    store.rebuild_index(folder)
    assert content(tmp_path / "a") == before


def test_what_is_not_whole_cannot_be_finished(tmp_path):
    stores.write(tmp_path, finish=False, skip=(2,))
    folder = open_folder(tmp_path)
    for units in (5, None):
        with says("unit 2 is not committed"):
            store.finish(folder, units)
    store.write_unit(folder, 2, *stores.unit(2, stores.ROWS[2]))
    with says("holds unit 3, but the source has 3 units"):
        store.finish(folder, 3)
    tensors, about, found = stores.unit(2, stores.ROWS[2])
    store.write_unit(folder, 2, tensors, about | {"first": 7}, found)
    with says("000002.json begins at example 7; 6 should follow"):
        store.finish(folder)
    assert not (tmp_path / "complete.json").exists()


def test_a_commit_without_its_whole_shard_does_not_count(tmp_path):
    stores.write(tmp_path, finish=False)
    folder = open_folder(tmp_path)
    os.truncate(tmp_path / "units/000/000002.safetensors", 100)
    os.remove(tmp_path / "units/000/000003.safetensors")
    assert list(store.commits(folder)) == [0, 1, 4]


WRONG = [  # what is done to a commit's fields, and what is said
    (lambda c: c.pop("sha256"), "has no sha256"),
    (lambda c: c.update(rows="7"), "rows is '7'"),
    (lambda c: c.update(rows=-1), "rows is -1"),
    (lambda c: c.update(rows=True), "rows is True"),
    (lambda c: c.update(unit=1), "commit of unit 1"),
    (lambda c: c.update(rows=1 << 62), "rows is 4611686018427387904; input should be less than"),
    (lambda c: c.update(rows=10**9), "1,000,000,000 rows do not fit in"),
    (lambda c: c.update(moments=[]), "moments is []"),
    (lambda c: c["moments"]["q:1"].update(mean=[1]), "mean and m2 do not belong together"),
    (lambda c: c["moments"]["q:1"].update(mean=["x"]), "['x']; input should be a valid number"),
    (lambda c: c["moments"]["q:1"].update(mean=None), "moments.q:1.mean"),
    (lambda c: c["moments"]["q:1"].update(mean=10**400), "moments.q:1.mean"),
]


def test_a_damaged_commit_is_one_line(tmp_path):
    stores.write(tmp_path, finish=False)
    path = tmp_path / "units/000/000000.json"
    sound = path.read_bytes()
    for change, words in WRONG:
        values = json.loads(sound)
        values.pop("record_sha256")
        change(values)
        path.write_bytes(records.sealed(values))
        with says(str(path), words):
            records.read_commit(open_folder(tmp_path), 0)


def test_a_full_disk_is_one_line_and_leaves_what_is_committed_valid(tmp_path, monkeypatch):
    stores.write(tmp_path, rows=stores.ROWS[:3], finish=False)
    folder = open_folder(tmp_path)
    for failing in (1, 2, 3):  # the shard, its folder, the commit
        calls = itertools.count(1)

        def full(handle, fsync=os.fsync, failing=failing, calls=calls):
            if next(calls) == failing:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            fsync(handle)

        with monkeypatch.context() as patched:
            patched.setattr(os, "fsync", full)
            with pytest.raises(UserError, match="No space left on device"):
                store.write_unit(folder, 3, *stores.unit(3, stores.ROWS[3]))
        assert list(store.commits(folder)) == [0, 1, 2]
        assert {p.file for p in verify(tmp_path)} <= {"complete.json", "units/000/000003.safetensors"}
    stores.write(tmp_path)
    assert verify(tmp_path) == []


DYING = """
import json, os, signal, sys
from tests.activations import stores

def child(out, at, before):
    count, died = 0, lambda: os.kill(os.getpid(), signal.SIGKILL)
    def dies_at(call):
        def counted(*arguments):
            nonlocal count
            count += 1
            count == at and before and died()
            call(*arguments)
            count == at and died()
        return counted
    os.fsync, os.replace = dies_at(os.fsync), dies_at(os.replace)
    stores.write(out, rows=(3, 2))
    return count

def forked(out, at, before):
    pid = os.fork()
    if pid == 0:
        os._exit(child(out, at, before))
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

root = sys.argv[1]
calls = forked(f"{root}/whole", -1, True)
ends = {f"{at}-{before}": forked(f"{root}/{at}-{before}", at, before)
        for at in range(1, calls + 1) for before in (True, False)}
print(json.dumps([calls, ends]))
"""


@pytest.mark.slow
def test_killed_at_each_stage_nothing_is_half_there(tmp_path):
    """A process that writes a store kills itself before, or after, each fsync and each rename."""
    calls, ends = json.loads(python(DYING, tmp_path, limit=300)[0])
    assert calls >= 7 * 3  # run.json, two shards, two commits, index, complete: content, name, folder
    assert set(ends.values()) == {-signal.SIGKILL}
    whole = open_folder(tmp_path / "whole")
    expected = {name: whole.read(name) for name in whole.names()}
    swept = 0
    for stage in ends:
        folder = open_folder(tmp_path / stage)
        for name in folder.names():  # what has its name has its content
            assert folder.read(name) == expected[name], (name, stage)
        for unit in records.committed(folder.names()):
            assert store.shard_name(unit) in folder.names()
        swept += len(folder.sweep())
        assert not list((tmp_path / stage).rglob(".*"))
        stores.write(tmp_path / stage, rows=(3, 2))
        assert {name: folder.read(name) for name in folder.names()} == expected
    assert swept


def test_there_is_no_pickle(tmp_path):
    """Neither in the store nor in what writes it."""
    stores.write(tmp_path)
    for path in filter(Path.is_file, tmp_path.rglob("*")):
        start = path.read_bytes()[:2]
        assert start[:1] != b"\x80" and start not in (b"(d", b"(l", b"]q", b"}q", b"PK"), path  # noqa: PT018
        if path.suffix == ".safetensors":
            assert path.read_bytes()[8:9] == b"{"
    for source in Path(llama_lab.activations.__file__).parent.glob("*.py"):
        assert not re.search(r"\b(c?pickle|dill|joblib|shelve|allow_pickle|torch\.save)\b", source.read_text()), source
