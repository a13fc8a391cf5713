"""The sentence of the kernels' notebook."""

import pytest

from llama_jax.bench import AGAIN
from llama_jax.experiments.compiled_kernels import finding, rows, scaling, where
from llama_jax.experiments.time_to_first_token import same_file
from tests.experiments.compiled_kernels.test_chart import ANSWERS, rows_of_scaling
from tests.experiments.compiled_kernels.test_rows import passes
from tests.experiments.compiled_kernels.test_where import FAR, MODEL, SHORT
from tests.experiments.fewer_bits.race import LENGTHS, firsts


@pytest.mark.parametrize(
    ("slower", "words"),
    [
        ({}, "comes before llama.cpp's at 10 and 100 prompt tokens"),
        ({("step+fused", 100): 1.6}, "comes before llama.cpp's at 10, after llama.cpp's at 100 prompt tokens"),
        ({("step+fused", 10): 20 / 18}, "comes before llama.cpp's at 100, undecided at 10 prompt tokens"),
        # the baseline's second run is 1.5 times its first: so may be what is between the others
        ({("step" + AGAIN, n): 1.5 for n in LENGTHS}, "comes undecided at 10 and 100 prompt tokens"),
    ],
)
def test_whose_first_token_is_sooner(slower, words):
    assert finding.sooner(same_file.races(firsts(slower=slower))) == [f"the first token of step+fused {words}"]


def test_nobody_to_race_against_is_no_race():
    for names in (("step", "step+fused"), ("step", "llamacpp")):
        assert finding.sooner(same_file.races(firsts(names))) == []


def test_the_sentence():
    parts = where.table(ANSWERS, MODEL, SHORT, FAR)
    said = finding.compiled_kernels(
        same_file.races(firsts()),
        parts,
        scaling.axis_of(rows_of_scaling(), "context"),
        missing=[dict(name="ollama"), dict(name="ollama")],
    )
    assert said.startswith(
        "step+fused makes the first token before llama.cpp at 2 of 2 prompt lengths. The first token of step+fused"
        " comes before llama.cpp's at 10 and 100 prompt tokens; a token of "
    )
    assert f"takes {parts[0]['total']:.1f} ms (layers " in said
    assert (
        "; from context 256 to 4096 loop keeps 67% of its rate and loop+fused 78%; ollama was not measured here."
        in said
    )
    assert finding.compiled_kernels([], [], {}) == "Nothing was measured."


def test_what_rows_cost_is_said_of_the_most_rows_at_the_shortest_context():
    made = passes() + passes(context=1024, costs={1: 1.0, 8: 4.0}) + passes("llamacpp", {1: 1, 8: 2.6})
    assert finding.together(rows.table(made)) == [
        "8 tokens of a sequence in one pass take loop+fused 2.00x [2.00, 2.00] and llamacpp 2.60x [2.60, 2.60] as long"
        " as one"
    ]
    assert finding.together([]) == finding.together(rows.table(passes(costs={1: 1.0}))) == []
