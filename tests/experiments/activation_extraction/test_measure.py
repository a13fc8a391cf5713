"""The ladder of extraction: what cannot be measured is named first, every rung writes the same activations, and the
gate finds those that do not."""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest

from llama_jax import config
from llama_jax.checkpoint import Checkpoint
from llama_jax.plumbing.errors import UserError
from llama_lab.activations import ActivationSpec, ActivationStore
from llama_lab.bench import AGAIN
from llama_lab.experiments.activation_extraction import probing, rungs, workers
from llama_lab.experiments.activation_extraction import table as extraction_table
from llama_lab.experiments.activation_extraction.measure import Extractions
from llama_lab.experiments.activation_extraction.passes import LADDER, LIMIT, Passes, Reference, beyond_rounding
from llama_lab.experiments.activation_extraction.pipeline import Setting, examples_of, pipeline, read
from llama_lab.experiments.activation_extraction.rungs import BASE, FIRST, FIXED, PACKED, PRODUCT, Rung
from tests.conftest import among_the_fast, build

pytestmark = pytest.mark.usefixtures("compiling")

DEPTH, LENGTH = 5, 16
TINY = (
    f"random:smollm2-135m,num_hidden_layers={DEPTH},hidden_size=32,intermediate_size=64,num_attention_heads=2,num_key_value_heads=1,"
    "head_dim=16,vocab_size=97"
)
WHO = dict(run=LADDER, block=0, order=0, process=1, seed=0, phase="warm")
COLD = WHO | dict(phase="cold")


def small(family: str = "llama", dtype: str = "bfloat16") -> Setting:
    made = config.tiny(family, num_hidden_layers=DEPTH)
    return Setting(Checkpoint("random:tiny", made, build(made), None, "w", "random:", "float32"), 2, LENGTH, 3, dtype)


@pytest.fixture(scope="module")
def setting():
    return small()


@pytest.fixture(scope="module")
def asked(setting):
    return examples_of(setting.loaded, 5, LENGTH)


@pytest.fixture(scope="module")
def reference(setting, asked):
    return Reference(setting.loaded, asked[:2])


@pytest.fixture(scope="module")
def dispatch(setting):
    """N1's jit of the first quarter, compiled once for all faults."""
    return rungs.in_jax(setting, spec().resolve(setting.loaded.config), True)


@pytest.fixture
def passes(setting, asked, reference, tmp_path):
    return Passes(setting, asked, 2, tmp_path, reference)


# The plan -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (dict(batch=0), "batch is 0"),
        (dict(length=1), "length is 1"),
        (dict(length=10**6), "is 1000000"),
        (dict(eager=50), "eager is 50"),
        (dict(dtype="int8"), "dtype is 'int8'"),
        (dict(blocks=0), "blocks is 0"),
        (dict(scaling=(1, 0)), "is 0"),
        (dict(probe=3), "probe is 3"),
        (dict(subjects=("packin",)), "Did you mean .*'packing'"),
        (dict(model=f"{TINY},num_hidden_layers=1".replace(f"num_hidden_layers={DEPTH},", "")), "one layer"),
    ],
)
def test_plans_that_cannot_be(changes, words):
    with pytest.raises(UserError, match=words):
        Extractions(**dict(model=TINY) | changes).check()
    Extractions(model=TINY).check()


def test_examples_are_seeded_and_fit(packaged):
    texts = examples_of(packaged, 30, 48)
    lengths = [len(packaged.tokenizer.encode(text)) for text in texts]
    assert 2 <= min(lengths) < max(lengths) <= 48
    assert texts == examples_of(packaged, 30, 48) != examples_of(packaged, 30, 48, seed=1)
    with pytest.raises(UserError, match="3000 examples are asked for"):
        examples_of(packaged, 3000, 48)
    loaded = small().loaded
    ids = examples_of(loaded, 200, LENGTH)
    assert 2 == min(map(len, ids)) < max(map(len, ids)) == LENGTH
    assert max(map(max, ids)) < loaded.config.vocab_size


# The rungs ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    among_the_fast(
        (FIRST, PACKED, PRODUCT, rungs.CUT),
        [name for name in rungs.SUBJECTS if name not in (rungs.FORWARD, rungs.PINNED)],
    ),
)
def test_every_rung_writes_what_the_model_gives(passes, name):
    rung, first = passes.first(name, **COLD)
    assert first.valid, first.reason
    assert first.error <= LIMIT
    count = 2 if name == rungs.EAGER else 5
    assert first.examples == count
    assert first.rows == first.tokens == sum(map(len, passes.ids[:count]))
    assert first.sites == (DEPTH if name in rungs.EVERY else 2)
    assert first.depth == (DEPTH if name in (*rungs.EVERY, rungs.SPREAD, rungs.TORCH) else 2)
    warm = passes.timed(rung, name, **WHO)
    assert warm.valid, warm.reason
    assert (warm.compiled, warm.lowered) == (0, 0)
    assert warm.wall_ns > 0
    assert warm.tg > 0


def test_a_fixed_shape_compiles_once_padding_to_the_longest_for_every_shape_and_packing_pads_less(passes):
    padded, fixed, packed = (passes.first(name, **COLD)[1] for name in (FIRST, FIXED, PACKED))
    shapes = {
        b.ids.shape for at in range(0, 5, 3) for b in rungs.padded(spec(), 2)(0, at, passes.ids[at : at + 3]).batches
    }
    assert padded.compiled == len(shapes) > 1
    assert fixed.compiled == 1
    assert fixed.slots >= padded.slots
    assert padded.tokens == fixed.tokens
    assert packed.fill > fixed.fill
    assert packed.batches < fixed.batches


def test_results_left_on_pinned_host_memory_are_the_same(passes):
    """Where there is no GPU the memory is the processor's own; values and program must still be right."""
    _, row = passes.first(rungs.PINNED, **COLD)
    assert row.valid, row.reason
    assert (row.compiled, row.rows) == (2, row.tokens)  # the extractor's own, and the same with its results elsewhere


def test_the_forward_ceiling_writes_nothing_and_the_disk_computes_nothing(passes, tmp_path):
    forward = passes.first(rungs.FORWARD, **COLD)[1]
    assert (forward.valid, forward.rows, forward.bytes, forward.error) == (True, 0, 0, None)
    disk = rungs.build(rungs.DISK, passes.setting, passes.examples)
    disk.run([], tmp_path / "a")  # whatever it is given: what it writes was made before
    assert ActivationStore.open(tmp_path / "a").rows == sum(map(len, passes.ids))


@pytest.mark.parametrize(
    ("family", "dtype", "name"),
    among_the_fast(
        [("llama", "float16", rungs.TORCH), ("llama", "float32", PACKED)],
        [
            ("llama", "float16", rungs.TORCH),
            ("llama", "float32", PACKED),
            *((family, "bfloat16", name) for family in ("gpt2", "qwen2") for name in (PRODUCT, rungs.CUT)),
        ],
    ),
)
def test_other_families_and_types(family, dtype, name, tmp_path):
    own = small(family, dtype)
    asked = examples_of(own.loaded, 4, LENGTH)
    _, row = Passes(own, asked, 4, tmp_path, Reference(own.loaded, asked)).first(name, **COLD)
    assert row.valid, row.reason
    assert row.kept == dtype


def test_quarters():
    assert rungs.quarter(30) == tuple(range(8))
    assert rungs.quarter(30, spread=True) == (1, 5, 9, 13, 17, 21, 25, 29)
    assert rungs.quarter(2) == (0,)
    assert rungs.quarter(2, spread=True) == (1,)
    with pytest.raises(UserError, match="No such way of extracting: 'pack'"):
        rungs.build("pack", None, [])


def test_where_there_is_no_gpu_pinned_memory_is_a_gap():
    gaps = {gap["name"]: gap["reason"] for gap in rungs.missing(TINY)}
    assert gaps.get(rungs.PINNED) == "no GPU here"
    assert BASE not in gaps


# The gate -------------------------------------------------------------------------------------------------------------


def spec(layers=(0, 1)) -> ActivationSpec:
    return ActivationSpec((("resid_post", layers),))


def spoilt(setting, dispatch, change) -> Rung:
    """N1 of the first quarter with a fault in what it reads back."""
    sites, plan = spec().resolve(setting.loaded.config), rungs.padded(spec(), 2)

    def fetch(batch, found):
        return change(batch, *read(batch, found))

    return Rung(FIRST, sites, pipeline(setting, spec(), plan, dispatch, fetch), plan)


def swapped(batch, values, moments):
    return {"resid_post:0": values["resid_post:1"], "resid_post:1": values["resid_post:0"]}, moments


def shifted(batch, values, moments):
    return {site: np.roll(value, 1, axis=0) for site, value in values.items()}, moments


def one_token_off(batch, values, moments):
    values = {site: value.copy() for site, value in values.items()}
    values["resid_post:1"][-1] *= 1.01
    return values, moments


@pytest.mark.parametrize(
    ("fault", "words"), [(swapped, "resid_post:"), (shifted, "resid_post:"), (one_token_off, "resid_post:1 is")]
)
def test_a_rung_with_other_values_has_no_time(passes, setting, dispatch, fault, words):
    row = passes.timed(spoilt(setting, dispatch, fault), FIRST, **WHO)
    assert not row.valid
    assert f"wrong: {words}" in row.reason
    assert row.error > LIMIT
    assert extraction_table.table([row])[0]["rate"].n == 0


def test_a_rung_without_a_mask_between_packed_neighbours_is_caught(passes, setting, dispatch):
    """Everything in a row as one context: right in shape, wrong in every row but the first segment's."""
    rung = rungs.build(PACKED, setting, passes.examples)
    blind = lambda batch: dispatch(replace(batch, segments=np.minimum(batch.segments, 1)))  # noqa: E731
    run = pipeline(setting, spec(), rung.plan, blind, read)
    row = passes.timed(replace(rung, run=run), PACKED, **COLD)
    assert "wrong: resid_post" in row.reason


def test_rows_beside_the_wrong_tokens_are_caught(passes, setting, reference, tmp_path):
    rung = rungs.build(PACKED, setting, passes.examples)
    rung.run(passes.examples, tmp_path / "store")
    assert reference.judge(tmp_path / "store", rung.sites, passes.ids)["reason"] == ""
    other = [list(ids) for ids in passes.ids]
    other[-1][0] = (other[-1][0] + 1) % 97
    assert "wrong: the tokens" in reference.judge(tmp_path / "store", rung.sites, other)["reason"]
    absent = spec((4,)).resolve(setting.loaded.config)
    for out, sites in ((tmp_path / "none", rung.sites), (tmp_path / "store", absent)):
        assert "wrong: no store that can be read" in reference.judge(out, sites, passes.ids)["reason"]


def test_a_pass_that_compiles_is_void(passes, setting):
    rung = rungs.build(FIRST, setting, passes.examples)  # compiles in its first pass, which nobody made
    row = passes.timed(rung, FIRST, **WHO)
    assert not row.valid
    assert "compiled in the timed region" in row.reason
    assert row.compiled > 0
    assert passes.timed(rung, FIRST, **WHO).valid


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16, jnp.float32])
def test_rounding_is_forgiven_and_nothing_else(dtype):
    wide = np.random.default_rng(0).normal(size=(50, 64)).astype(np.float32)
    wide[:, 0] *= 1000  # one feature that outweighs all others
    kept = wide.astype(dtype)
    assert beyond_rounding(kept, wide).max() < 1e-7
    off = wide.copy()
    off[7, 0] *= 1.02
    assert np.flatnonzero(beyond_rounding(off.astype(dtype), wide) > LIMIT).tolist() == [7]
    assert (beyond_rounding(np.roll(kept, 1, axis=0), wide) > LIMIT).all()


# Really measured ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_really_measured(tmp_path, monkeypatch):
    """A ladder of a few rungs in a process of its own, the probe, and two processes by command; the rows come back."""
    monkeypatch.setattr("llama_jax.plumbing.paths.tempfile.gettempdir", lambda: str(tmp_path))
    subjects = (BASE, PRODUCT, rungs.FORWARD, rungs.DISK)
    plan = Extractions(model=TINY, batch=2, length=LENGTH, unit=3, examples=7, eager=2, blocks=2, starts=1, probe=10,
                       subjects=subjects)  # fmt: skip
    rows, meta = plan.obtain("measure", "77-extraction", tmp_path)
    assert all(r.valid for r in rows), [r.reason for r in rows]
    warm = [(r.block, r.subject) for r in rows if r.run == LADDER and r.phase == "warm"]
    assert sorted(warm) == sorted((b, name) for b in range(2) for name in (*plan.subjects, BASE + AGAIN))
    assert [r.workers for r in rows if r.run.startswith("scaling")] in ([1, 2], [2, 1])
    assert len({r.tokens for r in rows if r.run == LADDER}) == 1
    assert probing.of(meta)
    assert not list((tmp_path / "out").rglob("*.safetensors"))


def test_a_command_that_fails_or_compiles_late_is_a_void_row(tmp_path, passes):
    report, why, _ = workers.extracted(passes.examples, tmp_path, dict(model="random:nothing", sites="q:0"), 60)
    assert report == {}
    assert "nothing" in why
    where = WHO | dict(run="scaling 2")
    row = passes.by_command(2, report, why, tmp_path / "store", **where)
    assert (row.valid, row.workers, row.reason) == (False, 2, why)
    assert extraction_table.scaled([row]) == []
    rungs.build(PACKED, passes.setting, passes.examples).run(passes.examples, tmp_path / "store")
    for compiled, reason in ((2, ""), (3, "compiled 3 programs in 2 processes")):
        row = passes.by_command(2, dict(compilations=compiled, seconds=2.0), "", tmp_path / "store", **where)
        assert (row.valid, row.reason, row.compiled, row.wall_ns) == (not reason, reason, compiled, 2 * 10**9)
