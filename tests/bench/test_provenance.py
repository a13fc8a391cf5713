"""Which code a table depends on: found without importing it, and changed by code alone."""

import functools

import pytest

from llama_lab.bench import provenance

MEASURE = '''"""Measures."""
from llama_lab.bench import protocol
from llama_lab.experiments.one import chart, table

TASK = "llama_lab.bench.requests"


def record(journal):
    """All rows."""
    from llama_jax import peers  # here: only who asks for one
    return protocol.run(journal)
'''
PACKAGE = {
    "__init__.py": "",
    "bench/__init__.py": "",
    "bench/protocol.py": "from llama_jax import generate\nfrom llama_lab.bench import record\n",
    "bench/record.py": "from llama_jax import files\n",
    "bench/requests.py": "",
    "experiments/__init__.py": "",
    "experiments/one/__init__.py": "",
    "experiments/one/measure.py": MEASURE,
    "experiments/one/chart.py": "from llama_jax import figures\n",
    "experiments/one/table.py": "",
    "experiments/two/measure.py": "from llama_lab.bench import protocol\n",
    "figures/__init__.py": "",
    "files.py": "",
    "generate.py": "def f():\n    from llama_jax.kernels import fused\n    from llama_jax.decoding.steps import g\n",
    "kernels/__init__.py": "",
    "kernels/fused.py": "x = 1\n",
    "peers/__init__.py": 'PEERS = {"flax": "flax", "llamacpp": "llamacpp"}\n',
    "peers/flax.py": 'HOMES = {"+nnx": "flax_nnx"}\n',
    "peers/flax_nnx.py": "",
    "peers/llamacpp.py": "",
    "steps.py": "def g():\n    return 1\n",
    "unused.py": "",
}
ROOT = ["experiments.one.measure"]


@pytest.fixture
def home(tmp_path, monkeypatch):
    folder = tmp_path / "llama_jax"
    for name, text in PACKAGE.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    monkeypatch.setattr(provenance, "HOME", folder)
    return folder


def meta(*roots):
    return dict(code=provenance.describe(roots or ROOT))


def test_what_is_reached_is_what_a_time_may_depend_on(home):
    known = provenance.sources()
    plain = provenance.reached(ROOT, known)
    assert plain == {"bench", "bench.protocol", "bench.requests", "experiments", "experiments.one",
                     "experiments.one.measure", "generate", "steps"}  # fmt: skip
    assert provenance.reached([*ROOT, "kernels", "peers.flax"], known) - plain == {
        "kernels", "kernels.fused", "peers.flax", "peers.flax_nnx"}  # fmt: skip


@pytest.mark.parametrize(
    ("file", "text", "found"),
    [
        ("generate.py", PACKAGE["generate.py"] + "y = 2\n", ["generate"]),
        ("steps.py", "def g():\n    return 2\n", ["steps"]),
        ("bench/requests.py", "import json\n", ["bench.requests"]),
        ("generate.py", "from llama_jax import unused\n", ["generate", "steps", "unused"]),
        ("steps.py", None, ["steps"]),
    ],
)
def test_a_change_of_code_makes_a_table_stale(home, file, text, found):
    recorded = meta()
    assert (provenance.changed(recorded), provenance.complaint(recorded)) == ([], "")
    (home / file).unlink() if text is None else (home / file).write_text(text)
    assert provenance.changed(recorded) == found
    assert provenance.complaint(recorded) == provenance.OLDER


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("steps.py", '"""Words."""\n\n\ndef g():\n    """More."""\n    # why\n    return (1)\n'),
        ("experiments/one/chart.py", "x = 3\n"),
        ("experiments/one/table.py", "x = 3\n"),
        ("figures/__init__.py", "x = 3\n"),
        ("bench/record.py", "x = 3\n"),
        ("experiments/two/measure.py", "x = 3\n"),
        ("kernels/fused.py", "x = 3\n"),
        ("peers/llamacpp.py", "x = 3\n"),
    ],
)
def test_a_change_of_words_charts_or_what_was_not_used_does_not(home, file, text):
    recorded = meta()
    (home / file).write_text(text)
    assert provenance.changed(recorded) == []


@pytest.mark.parametrize(("file", "root"), [("kernels/fused.py", "kernels"), ("peers/flax_nnx.py", "peers.flax")])
def test_kernels_and_peers_count_where_a_table_names_them(home, file, root):
    recorded = meta(*ROOT, root)
    (home / file).write_text("x = 3\n")
    assert provenance.changed(recorded) == [file.removesuffix(".py").replace("/", ".")]


def test_a_declared_change_makes_nothing_stale_and_the_next_one_does(home):
    def change(text):
        (home / "steps.py").write_text(text)
        return provenance.describe(ROOT)["modules"]["steps"]

    def declare(*changes):
        rows = "".join(f"steps,{before},{after},of an error\n" for before, after in changes)
        (home / provenance.SAME_TIMES).write_text(f"module,before,after,why\n{rows}")

    recorded = meta()
    first = recorded["code"]["modules"]["steps"]
    second, third = change("x = 2\n"), change("x = 3\n")
    declare((first, second))
    assert provenance.changed(recorded) == ["steps"]
    declare((second, third), (first, second))
    assert provenance.changed(recorded) == []
    declare((first, second), (second, first))  # there and back
    assert provenance.changed(recorded) == ["steps"]
    change("x = 2\n")
    assert provenance.changed(recorded) == []
    other = meta()
    change(PACKAGE["steps.py"])
    assert provenance.changed(recorded) == provenance.changed(other) == []
    change("x = 4\n")
    assert provenance.changed(recorded) == ["steps"]


def test_declared_changes_say_of_what_and_why():
    known = provenance.sources()
    for change in provenance.same_times():
        assert change["module"] in known
        assert len(change["before"]) == len(change["after"]) == 12
        assert change["before"] != change["after"]
        assert change["why"]


def test_a_table_that_does_not_say_is_of_unknown_code():
    assert provenance.changed({}) is provenance.changed(dict(code=None)) is None
    assert provenance.complaint({}) == provenance.UNKNOWN


def test_names_of_subjects_lead_to_their_modules():
    assert provenance.named_in(["step", '{"placements": ["loop+q4_1"]}']) == set()
    assert provenance.named_in(['{"peers": ["llamacpp+q4_0", "torch"]}']) == {"peers.llamacpp", "peers.torch"}
    assert provenance.named_in(["loop+fused"]) == provenance.named_in(["[('x+gemv', 1)]"]) == {"kernels"}


def test_a_measuring_function_leads_to_its_modules():
    from llama_lab.experiments.growth import measure
    from llama_lab.experiments.kv_cache import chart  # fmt: skip
    from llama_lab.experiments.kv_cache import measure as other

    def helper(journal):
        return other.record(journal), chart

    found = {"experiments.growth.measure"}
    assert provenance.named_by(lambda journal: measure.record(journal)) == found
    assert provenance.named_by(measure.record) == provenance.named_by(functools.partial(measure.record)) == found
    assert provenance.named_by(lambda journal: helper(journal)) == {"experiments.kv_cache.measure"}
    assert provenance.of(lambda journal: ([], {}), ["step"]) is None


def test_the_real_package_is_read():

    about = provenance.describe(["experiments.jit_placement.measure"])
    assert {"transforms", "model.attention", "bench.protocol", "bench.requests", "generate"} <= set(about["modules"])
    left_out = (
        "figures",
        "reporting",
        "cli",
        "kernels.native",
        "activations",
        "serve",
        "experiments.kv_cache",
        "peers",
    )
    assert [name for name in about["modules"] if name.startswith(left_out)] == []
    kernels = provenance.describe(["experiments.compiled_kernels.rows", "kernels"])
    assert {"kernels.fused", "kernels.native.step", "kernels.packed"} <= set(kernels["modules"])
