"""Which code a table depends on: declared roots, found without importing them, and changed by code alone."""

import re

import pytest

import llama_jax
from llama_jax.plumbing import paths
from llama_lab import activations, bench
from llama_lab.bench import provenance
from llama_lab.bench.provenance import Declaration

MEASURE = '''"""Measures."""
from llama_lab.bench import protocol
from llama_lab.experiments.one import chart

def record(journal):
    """All rows."""
    from llama_lab import peers  # here: only who asks for one
    return protocol.run(journal)
'''
STEPS = '''"""Steps."""
import json
from llama_jax.errors import UserError

LIMIT: int = 3

class Step:
    """One."""
    size: int
    count: int = 1

def g(x: int) -> int:
    """A step."""
    if x > LIMIT:
        raise UserError(f"{x} is too large.", "Make it smaller.")
    error = UserError("Not this.")
    return x + 1
'''
MODULES = {
    "llama_jax/__init__.py": "",
    "llama_jax/files.py": "",
    "llama_jax/errors.py": "",
    "llama_jax/generate.py": "def f():\n    from llama_jax.kernels import fused\n    from llama_jax.steps import g\n",
    "llama_jax/kernels/__init__.py": "",
    "llama_jax/kernels/fused.py": "x = 1\n",
    "llama_jax/steps.py": STEPS,
    "llama_jax/unused.py": "",
    "llama_lab/__init__.py": "",
    "llama_lab/bench/protocol.py": "from llama_jax import generate\nfrom llama_lab.bench import record\n",
    "llama_lab/bench/record.py": "from llama_jax import files\n",
    "llama_lab/bench/requests.py": "",
    "llama_lab/experiments/one/chart.py": "from llama_lab import figures\n",
    "llama_lab/experiments/one/measure.py": MEASURE,
    "llama_lab/experiments/two/measure.py": "from llama_lab.bench import protocol\n",
    "llama_lab/figures.py": "",
    "llama_lab/peers/__init__.py": "",
    "llama_lab/peers/flax.py": "",
    "llama_lab/peers/flax_nnx.py": "",
    "llama_lab/peers/llamacpp.py": "",
}
RULES = Declaration(
    not_timed=["llama_lab.figures", "llama_lab.bench.record", "llama_jax.errors", "llama_lab.experiments.one.chart"],
    by_declaration=["llama_jax.kernels", "llama_lab.peers"],
    loads={
        "llama_lab.bench.protocol": ["llama_lab.bench.requests"],
        "llama_lab.peers.flax": ["llama_lab.peers.flax_nnx"],
    },
    tables={"77-x": ["llama_lab.experiments.one.measure"]},
)
PLAIN = {"llama_jax", "llama_jax.generate", "llama_jax.steps", "llama_lab", "llama_lab.bench.protocol",
         "llama_lab.bench.requests", "llama_lab.experiments.one.measure"}  # fmt: skip


@pytest.fixture
def home(tmp_path, monkeypatch):
    for name, text in MODULES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(paths, "ROOT", tmp_path)
    monkeypatch.setattr(provenance, "declared", lambda: RULES)
    return tmp_path


def recorded(*more):
    return dict(code=provenance.describe([*RULES.tables["77-x"], *more]))


def test_what_is_reached_is_what_a_time_may_depend_on(home):
    assert set(recorded()["code"]["modules"]) == PLAIN
    assert set(recorded("llama_jax.kernels", "llama_lab.peers.flax")["code"]["modules"]) - PLAIN == {
        "llama_jax.kernels", "llama_jax.kernels.fused", "llama_lab.peers", "llama_lab.peers.flax",
        "llama_lab.peers.flax_nnx"}  # fmt: skip


@pytest.mark.parametrize(
    ("file", "text", "found"),
    [
        ("llama_jax/steps.py", STEPS.replace("x + 1", "x + 2"), ["llama_jax.steps"]),
        ("llama_jax/steps.py", STEPS.replace("LIMIT: int = 3", "LIMIT: int = 4"), ["llama_jax.steps"]),
        ("llama_jax/steps.py", STEPS.replace("    size: int\n", ""), ["llama_jax.steps"]),
        ("llama_jax/steps.py", STEPS.replace("raise UserError", "raise ValueError"), ["llama_jax.steps"]),
        ("llama_jax/steps.py", STEPS.replace("x + 1", '"one"'), ["llama_jax.steps"]),
        ("llama_jax/steps.py", None, ["llama_jax.steps"]),
        ("llama_jax/generate.py", "from llama_jax import unused\n",
         ["llama_jax.generate", "llama_jax.steps", "llama_jax.unused"]),
        ("llama_lab/bench/requests.py", "x = 1\n", ["llama_lab.bench.requests"]),
    ],
)  # fmt: skip
def test_a_change_of_code_makes_a_table_stale(home, file, text, found):
    meta = recorded()
    assert (provenance.changed(meta), provenance.complaint(meta)) == ([], "")
    (home / file).unlink() if text is None else (home / file).write_text(text)
    assert provenance.changed(meta) == found
    assert provenance.complaint(meta) == provenance.OLDER


def reworded(text):
    """The same code: other docstrings, comments, imports, annotations, layout and words of errors."""
    text = text.replace("import json", "import os  # why").replace("x: int) -> int", "x: float) -> float")
    text = text.replace("LIMIT: int = 3", "LIMIT = (3)").replace("size: int", "size: str")
    return re.sub(r'f?"[^"\n]+"(, "[^"\n]+")?(?=\))', '"Other words."', re.sub('"""[^"]+"""', '"""Others."""', text))


WITHOUT_EFFECT = [
    "llama_jax/errors.py", "llama_jax/kernels/fused.py", "llama_lab/bench/record.py",
    "llama_lab/experiments/one/chart.py", "llama_lab/experiments/two/measure.py", "llama_lab/figures.py",
    "llama_lab/peers/llamacpp.py",
]  # fmt: skip


def test_a_change_of_words_charts_or_what_was_not_used_does_not(home):
    meta = recorded()
    for file in WITHOUT_EFFECT:
        (home / file).write_text("x = 3\n")
    assert reworded(STEPS) != STEPS
    (home / "llama_jax/steps.py").write_text(reworded(STEPS))
    assert provenance.changed(meta) == []


def test_a_table_that_does_not_say_is_of_unknown_code():
    assert provenance.changed({}) is provenance.changed(dict(code=None)) is None
    assert provenance.complaint({}) == provenance.UNKNOWN


# What is declared -----------------------------------------------------------------------------------------------------


def test_a_table_is_of_its_experiments_code_and_of_the_peers_that_its_plan_names():
    found = provenance.recorded_now("06-fewer-bits", dict(peers=["llamacpp+q4_0", "torch", "no such"]))
    named = {"llama_lab.peers.llamacpp", "llama_lab.peers.torch"}
    assert set(found["roots"]) == {*provenance.declared().tables["06-fewer-bits"], *named}
    assert provenance.recorded_now("77-x", {}) is None


def test_all_that_is_declared_exists():
    rules, known = provenance.declared(), provenance.sources()
    loaded = [name for names in rules.loads.values() for name in names]
    roots = [root for roots in rules.tables.values() for root in roots]
    for name in (*rules.not_timed, *rules.by_declaration, *rules.loads, *loaded, *roots):
        assert name in known, name


def test_every_recorded_table_is_declared():
    tables = {path.name.removesuffix(".meta.json") for path in (paths.ROOT / "data").glob("[0-9]*.meta.json")}
    assert tables <= set(provenance.declared().tables)


def test_no_import_goes_past_the_search():
    """A name that a package fetches from one of its modules when it is asked for it, or a module that is imported by a
    name made at run time."""
    fetched = {f"llama_lab.bench.{name}" for name in bench.NAMES}
    fetched |= {f"llama_lab.activations.{name}" for name in activations.NAMES}
    fetched |= {f"llama_jax.{name}" for name in llama_jax.HOME}
    known, rules = provenance.sources(), provenance.declared()
    covered = {name for roots in rules.tables.values() for name in provenance.reached(roots, known)}
    covered |= {name for name in known if name.startswith("llama_lab.peers.")}
    for name in covered:
        assert not provenance.read(known[name])[0] & fetched, name
        by_name = re.search(r'import_module\(f"llama_lab|"llama_lab\.bench\.\w+"', known[name].read_text())
        assert not by_name or name in rules.loads, name


def test_the_real_packages_are_read():
    modules = set(provenance.recorded_now("02-jit-placement", {})["modules"])
    assert {"llama_jax.transforms", "llama_jax.attention", "llama_lab.bench.phases"} <= modules
    left_out = ("llama_lab.figures", "llama_jax.kernels", "llama_lab.peers", "llama_lab.experiments.kv_cache")
    assert [name for name in modules if name.startswith(left_out)] == []
    modules = set(provenance.recorded_now("17-growth", {})["modules"])
    assert {"llama_jax.kernels.fused", "llama_jax.kernels.native.step"} <= modules
