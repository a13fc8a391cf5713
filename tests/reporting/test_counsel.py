"""Advice in lines, by the trials of one model."""

import pytest

from llama_jax.bench import environment
from llama_jax.errors import UserError
from llama_jax.reporting import counsel
from llama_jax.reporting.advice import Wish
from tests.reporting.test_advice import QUICK_START, QUICK_TOKENS, subject

WISH = Wish(prompt_tokens=4, new_tokens=11, requests=7)


def tables(**meta):
    """Two placements of a model whose answers are known: one starts quickly, one answers quickly."""
    return [("made", [t for s in (QUICK_START, QUICK_TOKENS) for t in subject(*s)], meta)]


def here(**changes):
    return {**environment.capture(), **changes}


def test_the_lines_say_who_by_what_and_from_when_on_another():
    found = counsel.consult(tables(environment=here()), "m", WISH)
    lines = counsel.told(found, WISH)
    assert lines[0].startswith(f"ops: {found['seconds']:.2f} s, a start of 1.00 s and each request 1.00 s")
    assert lines[1] == "by 8 trials, 2 processes, 3 cold starts: made (main)"
    assert lines[2].startswith("next: loop, 8.5")
    assert (
        lines[3] == f"up to {int(found['runner_up']['break_even_requests'])} requests a start ops is ahead of the two,"
        " beyond that loop"
    )
    assert "if the process runs already: loop" in lines
    assert not [line for line in lines if line.startswith("thin: ")]


def test_a_warm_process_has_no_start():
    warm = Wish(prompt_tokens=4, new_tokens=11, warm=True)
    lines = counsel.told(counsel.consult(tables(environment=here()), "m", warm), warm)
    assert lines[0].startswith("loop: ")
    assert "a start of" not in lines[0]
    assert not [line for line in lines if line.startswith("up to")]


def test_another_machine_is_a_doubt():
    lines = counsel.told(counsel.consult(tables(environment=here(cpu="abacus")), "m", WISH), WISH)
    assert [line for line in lines if line.startswith("thin: it was measured on another machine (abacus")]


def test_a_model_of_which_nothing_is_recorded_is_named():
    with pytest.raises(UserError, match=r"Nothing was recorded of n \(but of m\)"):
        counsel.consult(tables(environment=here()), "n", WISH)


def test_the_recorded_tables_are_those_of_two_notebooks():
    assert [name for name, _, _ in counsel.recorded()] == list(counsel.RECORDED)
