"""What a file's matrices become that no kernel reads is said once, before anything is computed."""

import pytest

from llama_jax import checkpoint, engine
from llama_jax.placement import parse
from llama_jax.plumbing.errors import UserError
from llama_lab.bench import record
from tests.checkpoint.test_quantised import write_mixed
from tests.cli.test_cli import bench
from tests.conftest import TINY

TAKE = "generate --token-ids 5,6,7 --ignore-eos -n 4 --json --no-keep"
WORDS = "matrices are stored as F16, for which there is no kernel"


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """(a file with matrices that no kernel reads, one without)."""
    folder = tmp_path_factory.mktemp("mixed")
    write_mixed(folder / "some.gguf", {"ffn_down": "F16"})
    write_mixed(folder / "none.gguf", {})
    return str(folder / "some.gguf"), str(folder / "none.gguf")


@pytest.mark.parametrize(
    ("placement", "dtype", "said"),
    [
        ("step", "float32", False),
        ("step", "gguf", True),
        ("step", "q8_0", False),
        ("step+gguf", "float32", True),
        ("step+q8_0", "float32", False),
        ("step+gemv", "float32", True),
        ("step+gemv", None, True),
        ("step+fused", "gguf", True),
        ("step+fused", "q4_0", False),
        ("step+gemv+q8_0", "float32", False),
    ],
)
def test_only_what_nobody_asked_for_by_name_is_said(files, placement, dtype, said):
    some, none = map(checkpoint.find, files)
    line = engine.requantised(some, parse(placement), dtype)
    assert (WORDS in line) if said else line is None
    assert engine.requantised(none, parse(placement), dtype) is None
    refused = "gguf" in (dtype, parse(placement).weights)  # a model without a block in it has no blocks of its own
    line = engine.requantised(checkpoint.find(TINY), parse(placement), dtype)
    assert (line is not None) == (said and not refused)


def stop(*_, **__):
    raise UserError("That is enough.")


@pytest.mark.parametrize("verb", ["generate", "chat", "serve", "bench", "advise"])
def test_every_verb_that_computes_says_it_first_and_once(call, files, monkeypatch, verb):
    monkeypatch.setattr("llama_lab.cli.text.read_line", stop)
    monkeypatch.setattr("llama_jax.generate.stream", stop)
    monkeypatch.setattr("llama_lab.serve.service.Service", stop)
    monkeypatch.setattr("llama_lab.cli.measure.measured", stop)
    more = {
        "generate": ("Hi", "--no-chat", "--placement", "step+gemv"),
        "chat": ("--placement", "step+gemv"),
        "serve": ("--port", "0", "--placement", "step+gemv"),
        "bench": ("--placements", "step,step+gemv,chunk4+gemv"),
        "advise": ("--measure", "--placements", "step,step+gemv"),
    }[verb]
    for file, count in zip(files, (1, 0), strict=True):
        code, out, err = call(verb, *more, "--model", file)
        assert (code, out) == (2, "")
        assert err.endswith("error: That is enough.\n")
        assert err.count(WORDS) == count
    assert WORDS not in call("--quiet", verb, *more, "--model", files[0])[2]


@pytest.mark.slow
def test_a_benchmark_keeps_it_with_its_environment(document, files, own_lock, tmp_path):
    for file, kept in zip(files, (True, False), strict=True):
        result, err = document(*bench(file, "step,step+gemv"), "--out", tmp_path / "r.csv")
        said = result["environment"]["requantised"]
        assert (WORDS in said) if kept else said is None
        assert err.count(WORDS) == kept
        assert record.read(tmp_path / "r.csv")[1]["environment"]["requantised"] == said


def test_without_a_placement_a_file_is_computed_on_its_own_blocks_where_it_can_be(files, document, monkeypatch):
    """The kernel where there is one, for models that it computes; the step for all others, and for a dtype by name."""
    _, plain = files

    def placed(*words):
        return document(*TAKE.split(), *words)[0]["placement"]

    assert placed("--model", plain) == "step+fused"
    assert placed("--model", plain, "--dtype", "float32") == placed("--model", TINY) == "step"
    assert placed("--model", plain, "--placement", "loop") == "loop"
    monkeypatch.setattr("llama_jax.kernels.missing", lambda: "numba is not installed.")
    assert engine.usual(checkpoint.find(plain)).name == "step"
