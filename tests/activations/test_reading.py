"""A store reads as one long array would, sliced in any way, without copying what lies in one shard."""

import functools
import tracemalloc

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from llama_jax.plumbing.errors import UserError
from llama_lab.activations import ActivationStore, moments, store
from llama_lab.activations.folder import LocalFolder, open_folder
from tests.activations import stores
from tests.activations.stores import same_bits, says

NAMES = (*stores.SHAPES, "token", "example", "segment", "position")
N = sum(stores.ROWS)


@pytest.fixture(scope="module", params=["local", "memory"])
def written(request, tmp_path_factory):
    out = tmp_path_factory.mktemp("store")
    where = out if request.param == "local" else f"memory://{out.name}"
    return where, stores.write(where)


@pytest.fixture
def opened(written):
    return ActivationStore.open(written[0]), written[1]


def test_what_it_says_of_itself(opened):
    found, columns = opened
    assert found.sites == tuple(stores.SHAPES)
    assert (found.rows, len(found), found.units, found.examples) == (N, N, 5, 15)
    assert found.complete
    assert found.run == stores.fingerprint()
    assert found.spec.dtype == "bfloat16"
    assert "not finished" not in repr(found)
    assert {name: (len(found[name]), found[name].shape, found[name].dtype) for name in NAMES} == {
        name: (N, value.shape, value.dtype) for name, value in columns.items()
    }
    assert same_bits(found.site("q", 1)[:], found["q:1"][:])


ROW = st.integers(-N, N - 1)
BOUND = st.none() | st.integers(-N - 3, N + 3)
KEYS = st.one_of(
    ROW,
    st.builds(slice, BOUND, BOUND, st.none() | st.integers(-5, 5).filter(bool)),
    st.lists(ROW, max_size=40).map(functools.partial(np.array, dtype=np.int64)),
    st.builds(lambda a, n: np.arange(a, min(a + n, N)), st.integers(0, N - 1), st.integers(0, N)),
    st.lists(st.booleans(), min_size=N, max_size=N).map(np.array),
)


@settings(deadline=None, max_examples=200)
@given(st.data())
def test_a_column_is_sliced_like_an_array(written, data):
    found, columns = ActivationStore.open(written[0]), written[1]
    key, name = data.draw(KEYS), data.draw(st.sampled_from(NAMES))
    assert same_bits(found[name][key], columns[name][key])


def test_a_column_is_an_array_and_what_follows_a_comma_slices_the_rows(opened):
    found, columns = opened
    for key in ((3, 1), (slice(2, 20), slice(0, 2)), (slice(None), 1, slice(1, 3)), ([4, 1], 0), (-1, ..., 2)):
        assert same_bits(found["q:1"][key], columns["q:1"][key])
    assert same_bits(np.stack(list(found["resid_post:0"])), columns["resid_post:0"])
    assert same_bits(np.asarray(found["token"]), columns["token"])
    assert (jnp.asarray(found["q:1"][:5]).dtype, found["q:1"][:5].dtype) == (jnp.bfloat16, ml_dtypes.bfloat16)


def test_bfloat16_becomes_pytorch_s(opened):
    """As the docstring of `Column` says."""
    values = opened[0]["q:1"][:9]
    taken = torch.from_numpy(values.copy().view(np.int16)).view(torch.bfloat16)
    assert taken.float().numpy().tolist() == values.astype(np.float32).tolist()


def test_a_slice_of_one_shard_is_a_view_of_the_file(tmp_path):
    stores.write(tmp_path, rows=(200, 100))
    found = ActivationStore.open(tmp_path)

    def mapped(array):
        while array is not None and not isinstance(array, np.memmap):
            array = array.base if isinstance(array, np.ndarray) else None
        return array is not None

    for name in NAMES:
        assert mapped(found[name][10:150])
        assert mapped(found[name][np.arange(205, 250)])
        assert not mapped(found[name][150:250])
        with pytest.raises(ValueError, match="read-only"):
            found[name][10:150][0] = 0


def test_what_is_not_there_is_one_line(opened):
    store_ = opened[0]
    for key in (N, -N - 1, [0, N], np.zeros(3, bool), np.zeros((2, 2), int), [0.5], "a"):
        with pytest.raises(UserError, match=rf"token.*({N}|whole numbers)"):
            store_["token"][key]
    for ask, words in (
        (lambda: store_["resid_post:1"], "Did you mean 'resid_post:0'"),
        (lambda: store_.mean("token"), "logits"),
        (lambda: store_.rows_where(tokens=3), "Did you mean 'token'"),
        (lambda: store_.batches("q:2"), "Did you mean 'q:1'"),
        (lambda: store_.batches("q:1", size=0), "at least 1"),
        (lambda: store_.batches("q:1", mix=0), "at least 1"),
        (lambda: store_.rows_of(-1), "no example -1 in"),
        (lambda: store_.rows_of(15), "holds 15"),
    ):
        with says(words):
            ask()


def test_rows_of_examples(opened):
    found, columns = opened
    for example in range(found.examples):
        rows = found.rows_of(example)
        assert rows.tolist() == np.flatnonzero(columns["example"] == example).tolist()
        assert found.rows_of(example=example).dtype == np.int64
        one = found.example(example)
        assert all(same_bits(one[name], columns[name][rows]) for name in NAMES)
    assert found.rows_of([6, 0, 4]).tolist() == [*found.rows_of(6), *found.rows_of(0), *found.rows_of(4)]


def test_rows_by_what_they_are(opened):
    found, columns = opened
    token = int(columns["token"][3])
    assert found.rows_where(token=token).tolist() == np.flatnonzero(columns["token"] == token).tolist()
    expected = np.flatnonzero(
        np.isin(columns["token"], range(40)) & (columns["position"] == 0) & (columns["segment"] == 0)
    )
    assert found.rows_where(token=range(40), position=0, segment=[0, 1]).tolist() == expected.tolist()
    assert found.rows_where(token=-1).tolist() == []
    assert found.rows_where().tolist() == list(range(N))


@pytest.mark.parametrize("size", [1, 4, 7, N, 100])
def test_batches_in_stored_order(size, opened):
    found, columns = opened
    batches = list(found.batches(["q:1", "logits"], size))
    assert [len(b["token"]) for b in batches] == [min(size, N - start) for start in range(0, N, size)]
    for name in ("q:1", "logits", "token", "example", "segment", "position"):
        assert same_bits(np.concatenate([b[name] for b in batches]), columns[name])
    assert set(batches[0]) == {"q:1", "logits", "token", "example", "segment", "position"}
    assert set(next(found.batches())) == set(NAMES)


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 30), st.integers(1, 6), st.integers(0, 5))
def test_shuffled_batches_have_every_row_once(written, size, mix, seed):
    found, columns = ActivationStore.open(written[0]), written[1]
    batches = list(found.batches(None, size, shuffle=True, seed=seed, mix=mix))
    assert [len(b["token"]) for b in batches] == [min(size, N - start) for start in range(0, N, size)]
    together = {name: np.concatenate([b[name] for b in batches]) for name in NAMES}
    key = ("example", "segment", "position")
    back = np.lexsort([together[name] for name in reversed(key)])
    expected = np.lexsort([columns[name] for name in reversed(key)])
    for name in NAMES:
        assert same_bits(together[name][back], columns[name][expected])


def test_the_seed_decides_the_order(tmp_path):
    stores.write(tmp_path, rows=(50,) * 12)
    found = ActivationStore.open(tmp_path)

    def order(**options):
        return np.concatenate(
            [b["example"] * 100 + b["position"] for b in found.batches("q:1", 64, **options)]
        ).tolist()

    assert order(shuffle=True, seed=1) == order(shuffle=True, seed=1)
    assert len({tuple(order(shuffle=True, seed=seed)) for seed in range(3)} | {tuple(order())}) == 4
    first = next(found.batches("q:1", 64, shuffle=True, mix=8))
    assert len(np.unique(first["example"] // stores.EXAMPLES)) >= 6  # rows of many units meet
    narrow = next(found.batches("q:1", 50, shuffle=True, mix=1))
    assert len(np.unique(narrow["example"] // stores.EXAMPLES)) == 1


def test_shuffling_holds_no_more_than_the_mixed_units(tmp_path):
    stores.write(tmp_path, rows=(4000,) * 24, dtype="float32")
    found = ActivationStore.open(tmp_path)
    unit = found["q:1"][:4000].nbytes + 20 * 4000

    def peak(mix):
        tracemalloc.start()
        for _ in found.batches("q:1", 500, shuffle=True, mix=mix):
            pass
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return most

    assert peak(2) < 6 * unit
    assert peak(24) > 20 * unit  # the measure sees what it should


def test_means_come_from_the_commits_alone(tmp_path):
    columns = stores.write(tmp_path)
    for shard in tmp_path.rglob("*.safetensors"):
        shard.write_bytes(b"\0" * shard.stat().st_size)
    found = ActivationStore.open(tmp_path)
    for site in stores.SHAPES:
        expected = moments.of(columns[site], None if site == "logits" else 0)
        np.testing.assert_allclose(found.mean(site), expected.mean, rtol=1e-12)
        np.testing.assert_allclose(found.std(site), expected.std, rtol=1e-12)
    with pytest.raises(UserError, match=r"00000\d\.safetensors"):
        found["q:1"][:]


def test_an_unfinished_store_is_read_and_says_so(tmp_path):
    columns = stores.write(tmp_path, finish=False, skip=(2,))
    found = ActivationStore.open(tmp_path)
    assert not found.complete
    assert "not finished" in repr(found)
    assert same_bits(found["q:1"][:], columns["q:1"])
    assert found.rows_of(9).tolist() == np.flatnonzero(columns["example"] == 9).tolist()
    np.testing.assert_allclose(found.mean("q:1"), columns["q:1"].astype(float).mean(0), rtol=1e-12)
    with pytest.raises(UserError, match="no example 7 .*not committed yet"):
        found.rows_of(7)


@pytest.mark.parametrize("rows", [(), (0, 0)])
def test_a_store_without_rows(rows, tmp_path):
    stores_written = tmp_path
    folder = open_folder(tmp_path)
    store.claim(folder, stores.fingerprint(), resume=False)
    for number, n in enumerate(rows):
        store.write_unit(folder, number, *stores.unit(number, n))
    store.finish(folder)
    found = ActivationStore.open(stores_written)
    assert found.complete
    assert found["q:1"][:].shape == (0, 2, 3)
    assert found["token"][[]].shape == (0,)
    assert list(found.batches("q:1")) == list(found.batches("q:1", shuffle=True)) == [] or rows
    assert sum(len(b["token"]) for b in found.batches("q:1", shuffle=True)) == 0
    assert found.verify() == []
    with says("no rows"):
        found.mean("q:1")


def test_the_index_spares_the_commits_and_is_not_believed_against_them(tmp_path, monkeypatch):
    columns = stores.write(tmp_path)
    reads, read = [], LocalFolder.read
    monkeypatch.setattr(
        LocalFolder, "read", lambda self, name, *limit: (reads.append(name), read(self, name, *limit))[1]
    )

    def check():
        reads.clear()
        found = ActivationStore.open(tmp_path)
        assert found.complete
        assert same_bits(found["q:1"][:], columns["q:1"])
        return [name for name in reads if name.startswith("units/") and name.endswith(".json")]

    assert check() == []
    other = tmp_path / "other"
    stores.write(other, rows=(7, 0, 12, 4, 2))
    (tmp_path / "index.parquet").write_bytes((other / "index.parquet").read_bytes())
    assert len(check()) == 5
    (tmp_path / "index.parquet").write_bytes(b"PAR1 no")
    assert len(check()) == 5
    (tmp_path / "index.parquet").unlink()
    assert len(check()) == 5


SPEC = b'{"spec": {"sites": %s, "positions": "all", "dtype": "%s"}}'
DAMAGED = [
    ("run.json", b"{", "is not JSON"),
    ("run.json", b"[]", "it holds"),
    ("run.json", b"[" * 100_000, "is not JSON: recursion limit"),
    ("run.json", b'{"model": 1}', "has no spec"),
    ("run.json", SPEC % (b'{"q:1": [1]}', b"int8"), "spec.dtype"),
    ("run.json", SPEC % (b'{"p:1": [1]}', b"float16"), "No such site: 'p'"),
    ("run.json", SPEC % (b'{"q:1": [2147483648, 2]}', b"bfloat16"), "a row has at most 2,147,483,648 values"),
    ("run.json", SPEC % (b'["q:1"]', b"bfloat16"), "spec.sites is"),
    ("run.json", SPEC % (b'{"q:1": [-1]}', b"bfloat16"), "spec.sites.q:1.0 is -1"),
    ("complete.json", b"{}", "has no units"),
    ("complete.json", b'{"units": 1e30}', "units is 1e"),
    ("complete.json", b'{"units": 5, "record_sha256": "0"}', "its seal does not fit"),
    ("complete.json", b"\xff", "not JSON"),
]


def test_what_is_no_store_or_damaged_is_one_line(tmp_path):
    for out in (tmp_path, tmp_path / "none", f"memory://{tmp_path.name}-none"):
        with says("no activations in", "no run.json"):
            ActivationStore.open(out)
    stores.write(tmp_path)
    for name, content, words in DAMAGED:
        sound = (tmp_path / name).read_bytes()
        (tmp_path / name).write_bytes(content)
        with says(name, words):
            ActivationStore.open(tmp_path)
        (tmp_path / name).write_bytes(sound)


def test_shards_of_another_run_are_not_read(tmp_path):
    stores.write(tmp_path / "a")
    stores.write(tmp_path / "b", dtype="float16")
    (tmp_path / "a/units/000/000000.safetensors").write_bytes(
        (tmp_path / "b/units/000/000000.safetensors").read_bytes()
    )
    found = ActivationStore.open(tmp_path / "a")
    with pytest.raises(UserError, match=r"000000\.safetensors is not this run's: logits is float16"):
        found["q:1"][:3]
    (tmp_path / "a/units/000/000000.safetensors").unlink()
    with pytest.raises(UserError, match=r"000000\.safetensors is missing"):
        ActivationStore.open(tmp_path / "a")["q:1"][:3]
