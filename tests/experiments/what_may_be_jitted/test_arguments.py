"""What is said of a placement's arguments is what jit does with them."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import pytest

from llama_jax.placement import LADDER, parse
from llama_jax.plumbing import paths
from llama_lab.experiments.what_may_be_jitted import arguments
from llama_lab.experiments.what_may_be_jitted.arguments import Jitted
from llama_lab.reporting import document, report


def by_name(placement):
    return {function.name: function for function in arguments.jitted(parse(placement))}


@pytest.mark.parametrize("name", [*LADDER, "jit:rope.sample", "step+scan+growing", "chunk4+lookup", "loop+donate+aot"])
def test_every_function_that_a_placement_jits_is_there(name):
    placement = parse(name)
    whole = {"step", "decode"} & set(placement.jit)
    steps = {"prefill", "extend"} | ({"step"} if not placement.drafts else set())  # drafts make no single step
    assert set(by_name(name)) == set(placement.jit) | (steps if whole else set())


def test_what_is_static_and_what_is_given_away():
    step = by_name("step")["step"]
    assert (step.traced, step.static, step.donated) == (("params", "token", "carry"), ("sampler",), ())
    assert by_name("step")["prefill"].static == ("sampler", "slots")
    assert by_name("step+traced")["prefill"].static == ("slots",)
    assert "sampler" in by_name("step+traced")["step"].traced
    given = [by_name(name) for name in ("step+donate", "split+donate", "layer+donate", "ops+donate", "loop+donate+aot")]
    donated = [{name: one.donated for name, one in functions.items() if one.donated} for functions in given]
    assert donated == [
        {"extend": ("carry",), "step": ("carry",)},
        {"transform": ("cache",)},
        {"layer": ("entry",)},
        {"attend": ("entry",)},
        {"extend": ("carry",), "step": ("carry",), "decode": ("carry",)},
    ]


@pytest.mark.parametrize("options", [dict(static_argnames="by"), {}])
def test_a_static_argument_is_found_however_it_became_one(options):
    """Named to jit, or without an array in it: either way a program each, which jit's own count says."""
    function = lambda x, *, by: x  # noqa: E731
    program = jax.jit(function, **options)
    values = [2, 3] if options else [(), (None,)]
    for value in values:
        seen = arguments.as_called("f", function, program, (jnp.ones(3),), dict(by=value))
        assert (seen.traced, seen.static) == (("x",), ("by",))
        program(jnp.ones(3), by=value)
    assert program._cache_size() == len(values)


@pytest.mark.parametrize("field", ["static", "donated"])
def test_an_argument_without_a_reason_is_named(field):
    plain = Jitted("step", ("params", "token"), (), ())
    assert arguments.because(plain) == arguments.PLAIN
    with pytest.raises(LookupError, match=f"'temperature' of 'step' is {field}"):
        arguments.because(replace(plain, **{field: ("temperature",)}))


def test_a_function_has_one_row_that_says_where_placements_differ():
    rows = {row[0]: row[1:] for row in arguments.by_function(["step", "step+donate", "step+traced"])}
    assert list(rows) == ["`prefill`", "`extend`", "`step`"]
    assert rows["`step`"] == (
        "`step` `step+donate` `step+traced`",
        "`params` `token` `carry` `sampler` (under `step+traced`)",
        "`sampler` (not under `step+traced`)",
        "`carry` (under `step+donate`)",
    )


def test_every_reason_is_given_for_an_argument():
    functions = [one for name in arguments.PLACEMENTS for one in arguments.jitted(parse(name))]
    assert {name for one in functions for name in one.static} == set(arguments.STATIC)
    assert {name for one in functions for name in one.donated} == set(arguments.DONATED)


def test_the_document_has_the_table_of_the_programs(tmp_path):
    """As `llama-jax report` writes it, which writes nothing where no document asks for it."""
    text = (paths.ROOT / "docs" / "placements.md").read_text(encoding="utf-8")
    begin, end = report.ARGUMENTS
    assert f"{begin}\n{report.argument_table()}\n{end}" in text
    copy = tmp_path / "placements.md"
    document.put(copy, begin, end, report.argument_table)
    assert not copy.exists()
    copy.write_text(f"before\n{begin}\nold\n{end}\nafter\n")
    document.put(copy, begin, end, lambda: "| new |")
    assert copy.read_text() == f"before\n{begin}\n| new |\n{end}\nafter\n"
