"""What becomes of each option of JAX and of each variable: none is forgotten, and each is treated as the table says."""

import json
import os

import jax
import pytest

from llama_jax.plumbing import settings
from llama_lab.bench import environment, options, process
from tests.conftest import python

TABLES = (settings.COMPUTING, settings.MEASURING, options.RECORDED, *map(dict.fromkeys, options.HARMLESS.values()))


@pytest.fixture(scope="module")
def usual():
    """The options of this JAX with their values in a process in which nobody has set any."""
    code = "import json\nfrom llama_jax.plumbing import settings\nprint(json.dumps(settings.values()))"
    return json.loads(python(code, clean=True)[0])


def test_every_option_of_jax_is_in_the_table_once(usual):
    assert [name for name in usual if options.fate(name) == "unknown"] == []
    for name in usual:
        places = [table for table in TABLES if name in table]
        assert len(places) == 1 or places == [settings.COMPUTING, settings.MEASURING], name


def test_nothing_is_refused_or_recorded_where_nobody_has_set_anything(usual):
    assert {name: usual.get(name, value) for name, value in options.RECORDED.items()} == options.RECORDED
    for table in (settings.COMPUTING, settings.MEASURING):
        for name, (good, why) in table.items():
            assert usual.get(name, good[0]) in good, name
            assert why


def test_an_option_of_another_release_is_named_and_not_refused(monkeypatch):
    found = settings.values() | {"jax_new_thing": "7"}
    monkeypatch.setattr(settings, "values", lambda: found)
    settings.check(measuring=True)
    assert options.fate("jax_new_thing") == "unknown"
    assert any("is unknown: jax_new_thing" in line for line in options.remarks())


def test_what_a_program_sets_is_recorded_too():
    before = jax.config.jax_default_matmul_precision
    assert "jax_default_matmul_precision" not in environment.settings()
    jax.config.update("jax_default_matmul_precision", "float32")
    try:
        assert environment.settings()["jax_default_matmul_precision"] == "float32"
    finally:
        jax.config.update("jax_default_matmul_precision", before)


@pytest.mark.parametrize("name", options.VARIABLES)
def test_a_measuring_process_gets_what_the_table_says(monkeypatch, name):
    monkeypatch.setenv(name, "odd")
    given, recorded = process.clean_environment(2), environment.settings()
    fate = options.VARIABLES[name]
    if fate == options.HANDED_ON:
        assert (given[name], recorded[name]) == ("odd", "odd")
    elif fate == options.LEFT_OUT:
        assert name not in given
    else:
        assert given.get(name) != "odd"


def test_every_variable_that_is_handed_on_to_be_measured_is_in_the_table(monkeypatch):
    for name in [*process.KEEP, *options.OTHERS_OF_JAX]:
        monkeypatch.delenv(name, raising=False)
    about_places = process.KEEP - set(options.VARIABLES) - {"LLAMA_JAX_KEEP_XLA_FLAGS"}
    assert all("JAX_" not in name or name == "LLAMA_JAX_CACHE" for name in about_places)


def test_a_variable_that_looks_like_an_option_and_is_none_is_named(monkeypatch):
    monkeypatch.setenv("JAX_DISABLE_JITS", "1")
    monkeypatch.setenv("JAX_PROCESS_ID", "0")
    said = [line for line in options.remarks() if "not an option of this JAX" in line and "JITS" in line]
    assert len(said) == 1
    assert not any("JAX_PROCESS_ID" in line for line in options.remarks())


def test_the_instruction_set_that_is_asked_for_is_the_measuring_processes(monkeypatch):
    from llama_jax.kernels import isa

    monkeypatch.setenv(isa.VARIABLE, "portable")
    done = process.start(f"{__name__}:instruction_set", {})
    assert done.result == {"isa": "portable"}


def instruction_set(say):
    from llama_jax.kernels import isa

    assert os.environ[isa.VARIABLE]
    return {"isa": isa.target().isa}
