"""What the tables of docs/files.md say of a key that is refused."""

import pytest

from llama_jax.checkpoint import keys as readers
from llama_lab.reporting import keys


def refused(*only) -> readers.Verdict:
    return readers.Verdict(readers.REFUSED, only=only)


@pytest.mark.parametrize(
    ("verdict", "words"),
    [
        (refused(None), "refused unless absent"),
        (refused("=head_dim"), "refused unless equal to head_dim"),
        (refused(1, 1.0, None), "refused unless 1"),
        (refused("silu", "swish"), 'refused unless "silu" or "swish"'),
        (readers.Verdict(readers.REFUSED, only=readers.NOTHING), "refused unless 0, false or absent"),
    ],
)
def test_a_refused_key_says_what_it_may_be(verdict, words):
    assert keys.said(verdict) == words


def test_of_many_names_a_cell_shows_the_number_which_unfolds():
    assert keys.lines(["a", "b"]) == "`a`, `b`"
    assert keys.lines([str(n) for n in range(41)]).startswith("<details><summary>41 names</summary>`0`, `1`")
