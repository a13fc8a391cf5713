"""Every kind of damage is found, and named by its file; a sound store has no problem."""

import contextlib
import hashlib
import json
import os
import shutil

import numpy as np
import pytest

from llama_jax.plumbing.errors import UserError
from llama_lab.activations import ActivationStore, moments, plan, records, shards, store, verification, verify
from llama_lab.activations.folder import open_folder, temporary
from llama_lab.activations.sources import open_source
from llama_lab.activations.verification import Problem
from tests.activations import stores
from tests.activations.stores import says
from tests.fuzz import hostile

SHARD, COMMIT = "units/000/000002.safetensors", "units/000/000002.json"


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    out = tmp_path_factory.mktemp("sound")
    stores.write(out)
    return out


@pytest.fixture
def out(sound, tmp_path):
    return shutil.copytree(sound, tmp_path / "out")


def edit(out, name, **changes):
    """Other fields in a JSON file, its seal made right again."""
    values = json.loads((out / name).read_bytes()) | changes
    values.pop("record_sha256", None)
    (out / name).write_bytes(records.sealed(values))


def recommit(out, content):
    """Another shard, with a commit that fits its bytes: what only a look inside can find."""
    (out / SHARD).write_bytes(content)
    edit(out, COMMIT, bytes=len(content), sha256=hashlib.sha256(content).hexdigest())


def tensors(**changes):
    return stores.unit(2, stores.ROWS[2])[0] | changes


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_a_sound_store_has_no_problem(dtype, tmp_path):
    for where in (tmp_path, f"memory://{tmp_path.name}"):
        stores.write(where, dtype=dtype)
        assert verify(where) == ActivationStore.open(where).verify() == []
    found = verification.check(open_folder(tmp_path))
    assert (found.units, found.rows) == (5, sum(stores.ROWS))


def test_any_flipped_bit_is_found_by_name(out):
    """More than a hundred: in each file the first and the last byte, and some at random."""
    rng = np.random.default_rng(0)
    for path in sorted(out.rglob("*.*")):
        name, content = str(path.relative_to(out)), path.read_bytes()
        for at in (0, 9, len(content) - 1, *rng.integers(0, len(content), 8)):
            damaged = bytearray(content)
            damaged[at] ^= 1 << int(rng.integers(0, 8))
            path.write_bytes(damaged)
            problems = verify(out)
            assert name in {p.file for p in problems}, (name, at, problems)
            if name.endswith(".safetensors"):
                assert [p.file for p in problems] == [name]
        path.write_bytes(content)


def test_a_flipped_bit_is_found_before_the_run_has_finished(tmp_path):
    stores.write(tmp_path, finish=False)
    content = (tmp_path / "run.json").read_bytes()
    at = content.index(b"weights_hash") + 18
    (tmp_path / "run.json").write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
    assert [p.file for p in verify(tmp_path)] == ["run.json", "complete.json"]


@pytest.mark.parametrize("kind", ["empty", "cut", "rubbish", "folder", "fifo", "swapped", "loop", "long"])
def test_a_file_that_is_another_thing_is_named(kind, sound, tmp_path):
    """Each file of a store in turn; a store that cannot be opened says so in one line."""
    for path in sorted(sound.rglob("*.*")):
        out, name = shutil.copytree(sound, tmp_path / path.name), path.relative_to(sound)
        content = (out / name).read_bytes()
        swapped = (sound / "units/000/000001.safetensors").read_bytes() + b" "
        damaged = dict(empty=b"", cut=content[: len(content) // 2], rubbish=content + b"rubbish", swapped=swapped)
        hostile.put(out / name, damaged.get(kind, kind))
        if kind == "long":
            os.truncate(out / name, 1 << 40)  # a hole: it takes no room, and is not read
        assert str(name) in {p.file for p in verify(out)}
        with contextlib.suppress(UserError):
            ActivationStore.open(out)["q:1"][:]


def test_a_unit_that_is_far_from_the_others_is_one_line(tmp_path):
    stores.write(tmp_path, finish=False)
    store.write_unit(open_folder(tmp_path), 10**12, *stores.unit(10**12, 1))
    assert [p.file for p in verify(tmp_path)] == ["units/000/000005.json", "complete.json"]
    assert "999,999,999,994 more" in verify(tmp_path)[0].reason


def test_a_store_of_an_earlier_version_is_read_and_told_apart(out):
    """Before seals: run.json and complete.json end without one, and the index has no digest."""
    run = json.loads((out / "run.json").read_bytes())
    whole = json.loads((out / "complete.json").read_bytes())
    (out / "run.json").write_bytes(records.as_json({k: v for k, v in run.items() if k != "record_sha256"}, indent=2))
    whole["run_sha256"] = hashlib.sha256((out / "run.json").read_bytes()).hexdigest()
    (out / "complete.json").write_bytes(
        records.as_json({k: v for k, v in whole.items() if k not in ("record_sha256", "index_sha256")})
    )
    opened = ActivationStore.open(out)
    assert opened.complete
    assert len(opened["q:1"][:]) == opened.rows == sum(stores.ROWS)
    found = {p.file: p.reason for p in opened.verify()}
    assert found.keys() == {"run.json", "complete.json", "index.parquet"}
    assert all("an earlier version wrote it" in reason for reason in found.values())
    store.rebuild_index(open_folder(out))
    assert [p.file for p in verify(out)] == ["run.json"]


def put(name, content):
    """Damage: a file of that name with that content."""

    def damage(out):
        (out / name).parent.mkdir(exist_ok=True)
        (out / name).write_bytes(content)

    return damage


def remove(*names):
    return lambda out: [(out / name).unlink() for name in names]


def changed(change):
    """Damage: a shard that is whole, with a commit that fits its bytes, but not the run's."""
    return lambda out: recommit(out, b"".join(shards.serialise(change(tensors()))))


def summed(change):
    """Damage: other moments in a commit."""
    return lambda out: edit(out, COMMIT, moments=change(json.loads((out / COMMIT).read_bytes())["moments"]))


def scaled(site, field):
    def change(found):
        value = np.array(found[site][field]) * 1.01 + (field == "count")
        return found | {site: found[site] | {field: int(value) if field == "count" else value.tolist()}}

    return summed(change)


def totals(**fields):
    return lambda out: edit(out, "complete.json", **fields)


LEFT, LAST, WHOLE = temporary("units/000/000005.safetensors"), "units/000/000004.json", "complete.json"
ODD = ("units/000/notes.txt", "units/001/000002.json", "units/2.safetensors", "units/000/2.json")
SHARDS = {  # what is done to a unit's tensors, and what is said of its shard
    "q:1 is float32 [12, 2, 3], where the run and the commit say bfloat16": (
        lambda t: t | {"q:1": t["q:1"].astype(np.float32)}
    ),
    "q:1 is bfloat16 [12, 6]": lambda t: t | {"q:1": t["q:1"].reshape(12, 6)},
    "[11]": lambda t: {name: value[:-1] for name, value in t.items()},
    "q:1 is absent": lambda t: {name: value for name, value in t.items() if name != "q:1"},
    "k:0 is bfloat16 [12, 2, 3], where the run and the commit say absent": lambda t: t | {"k:0": t["q:1"]},
    "token is int64": lambda t: t | {"token": t["token"].astype(np.int64)},
    "row 1 does not come after": lambda t: {name: value[::-1] for name, value in t.items()},
    "row 11 does not come after": lambda t: {name: value[[*range(11), 10]] for name, value in t.items()},
    "the commit has 3 from 6 on": lambda t: t | {"example": t["example"] + 3},
    "negative token": lambda t: t | {"token": t["token"] - 200},
}
RECORDS = {  # what is put in the place of a commit, and what is said of it
    b"{": "not JSON",
    b"[]": "it holds []",
    b'{"unit": 2}': "has no record_sha256",
    b'{"unit": 2, "record_sha256": "' + b"0" * 64 + b'"}': "its seal does not fit",
    records.sealed({"unit": 2}): "has no first (7 more such)",
    b"": "JSON",
}
DAMAGES = [  # what is done to a store, and what is said of which file; where that is one file, of no other
    (lambda out: os.truncate(out / SHARD, 200), {SHARD: "truncated: 200 bytes"}),
    (lambda out: put(SHARD, (out / SHARD).read_bytes() + b"x")(out), {SHARD: "too long"}),
    (remove(SHARD), {SHARD: "missing, although its unit is committed"}),
    (
        remove(COMMIT),
        {SHARD: f"has no commit: {COMMIT} is missing", COMMIT: "missing, although later units", WHOLE: "units"},
    ),
    (
        remove(LAST, "units/000/000004.safetensors"),
        {LAST: "missing, although complete.json counts 5 units", WHOLE: "units"},
    ),
    (
        lambda out: shutil.copy(out / "units/000/000003.json", out / COMMIT),
        {COMMIT: "commit of unit 3", WHOLE: "units"},
    ),
    (lambda out: recommit(out, b"\x10" + b"\0" * 1000), {SHARD: "header", WHOLE: ""}),
    (
        changed(lambda t: t | {"q:1": t["q:1"] + 1}),
        {COMMIT: "its moments of q:1 are not those of the values", WHOLE: ""},
    ),
    (
        lambda out: edit(out, COMMIT, first=5),
        {
            SHARD: "the commit has 3 from 5 on",
            COMMIT: "begins at example 5; 6 should follow",
            "units/000/000003.json": "begins at example 9; 8 should follow",
            WHOLE: "",
        },
    ),
    (lambda out: edit(out, "run.json", model={"name": "other"}), {"run.json": "changed since the run finished"}),
    (put("run.json", b"{}"), {"run.json": "has no spec"}),
    (put("run.json", b"x"), {"run.json": "not JSON"}),
    (remove("run.json"), {"run.json": "missing"}),
    (put(WHOLE, b"{"), {WHOLE: "not JSON"}),
    (put(LEFT, b"half"), {LEFT: "a temporary file"}),
    *((put(name, b"{}"), {name: "not a file of a store"}) for name in ODD),
    *((put(COMMIT, content), {COMMIT: words, WHOLE: ""}) for content, words in RECORDS.items()),
    *((changed(change), {SHARD: words, WHOLE: ""}) for words, change in SHARDS.items()),
    *(
        (scaled(site, field), {COMMIT: f"its moments of {site} are not those of the values", WHOLE: ""})
        for site in stores.SHAPES
        for field in ("mean", "m2", "count")
    ),
    (summed(lambda m: {"q:1": m["q:1"]}), {COMMIT: "it has moments of q:1, not of the run's sites", WHOLE: ""}),
    (
        summed(lambda m: m | {"q:1": m["resid_post:0"]}),
        {COMMIT: "its moments of q:1 are [4], its values [2, 3]", WHOLE: ""},
    ),
    *((totals(**{name: 1}), {WHOLE: f"contradicts the commits: {name}"}) for name in ("examples", "rows", "bytes")),
    (totals(tokens=1), {WHOLE: "contradicts the commits: tokens"}),
    (totals(commits_sha256="0" * 64), {WHOLE: "contradicts the commits: commits_sha256"}),
    (totals(moments={}), {WHOLE: "contradicts the commits: moments"}),
    *((totals(units=n), {"units/000/000005.json": "complete.json counts", WHOLE: "units"}) for n in (6, 10**18)),
]


@pytest.mark.parametrize("number", range(len(DAMAGES)))
def test_damage_is_named_by_its_file(number, out):
    damage, expected = DAMAGES[number]
    damage(out)
    problems = verify(out)
    assert len(problems) <= 10  # however many units are counted
    files = [problem.file for problem in problems]
    assert len(expected) > 1 or files == [*expected], problems
    assert {*files} <= {*expected, "index.parquet"}, problems  # the index contradicts what a damaged commit says
    for file, words in expected.items():
        assert any(p.file == file and words in p.reason for p in problems), problems
    assert not any(str(out) in problem.reason for problem in problems)
    open_folder(out).sweep()
    assert expected.keys() != {LEFT} or verify(out) == []


def test_a_gap_in_an_unfinished_run(tmp_path):
    stores.write(tmp_path, finish=False, skip=(1,))
    assert [p.file for p in verify(tmp_path)] == ["units/000/000001.json", "complete.json"]
    assert "has not finished" in verify(tmp_path)[1].reason
    stores.write(tmp_path, finish=False)
    assert verify(tmp_path) == [Problem("complete.json", "missing: the run has not finished; resume it")]


@pytest.mark.parametrize("offset", [0, 1e4])
@pytest.mark.parametrize("scale", [1e-30, 1e-3, 1, 1e15])
def test_moments_summed_in_float32_are_near_enough(scale, offset):
    values = (scale * (np.random.default_rng(0).normal(size=(5000, 8)) + offset)).astype(np.float32)
    exact = moments.of(values)
    mean = values.mean(0)  # in float32
    summed = moments.Moments(5000, mean.astype(float), ((values - mean) ** 2).sum(0).astype(float))
    assert verification.same(summed, exact)
    further = moments.Moments(5000, exact.mean + 0.01 * exact.std, exact.m2)
    assert not verification.same(further, exact) or offset or scale < 1e-20
    assert not verification.same(moments.Moments(4999, exact.mean, exact.m2), exact)


def test_large_shards_are_read_in_pieces(out, monkeypatch):
    monkeypatch.setattr(verification, "PIECE", 100)
    assert verify(out) == []


def vouched(out):
    """complete.json with the digest of the index as it is."""
    edit(out, "complete.json", index_sha256=hashlib.sha256((out / "index.parquet").read_bytes()).hexdigest())


def test_an_index_that_contradicts_the_commits(out, tmp_path):
    stores.write(tmp_path / "other", rows=(7, 0, 12, 4, 2))
    shutil.copy(tmp_path / "other" / "index.parquet", out)
    [problem] = verify(out)
    assert (problem.file, problem.reason[:7]) == ("index.parquet", "changed")
    vouched(out)
    [problem] = verify(out)
    assert (problem.file, problem.reason[:11]) == ("index.parquet", "contradicts")
    (out / "index.parquet").write_bytes(b"PAR1")
    vouched(out)
    assert "no parquet file" in verify(out)[0].reason
    (out / "index.parquet").unlink()
    assert "missing" in verify(out)[0].reason
    store.rebuild_index(open_folder(out))
    assert verify(out) == []


def test_no_store_is_one_line(tmp_path):
    for where in (tmp_path, tmp_path / "none"):
        with says("no activations in"):
            verify(where)


def test_a_plan_is_part_of_the_store(tmp_path):
    """Every flipped bit, another plan and none at all are found, in a finished run and in one that is not."""
    (tmp_path / "a.jsonl").write_text("".join(f'"text {i}"\n' for i in range(14)))
    source, out = open_source(tmp_path / "a.jsonl"), tmp_path / "out"
    plan.begin(open_folder(out), source, 3, lambda about: stores.fingerprint() | {"source": about}, True)
    path = out / "plan.json"
    sound = path.read_bytes()
    stores.write(out, claim=False, finish=False)
    for finished in (False, True):
        if finished:
            store.finish(open_folder(out))
            assert verify(out) == []
        for at in range(0, len(sound), 37):
            path.write_bytes(sound[:at] + bytes([sound[at] ^ 1]) + sound[at + 1 :])
            assert "plan.json" in {problem.file for problem in verify(out)}, at
        path.unlink()
        assert ("plan.json" in {problem.file for problem in verify(out)}) == finished
        other = {name: value for name, value in json.loads(sound).items() if name != records.SEALED}
        path.write_bytes(records.sealed(other | {"examples": 13}))
        assert not finished or {problem.file for problem in verify(out)} == {"plan.json"}
        path.write_bytes(sound)
