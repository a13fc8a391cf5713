"""The sentence of the kernels' notebook."""

import pytest

from llama_lab.bench import AGAIN
from llama_lab.experiments.compiled_kernels import finding, rows, scaling, where
from llama_lab.experiments.time_to_first_token import same_file
from tests.experiments.compiled_kernels.test_chart import ANSWERS, rows_of_scaling
from tests.experiments.compiled_kernels.test_rows import passes
from tests.experiments.compiled_kernels.test_where import FAR, MODEL, SHORT
from tests.experiments.fewer_bits.race import LENGTHS, firsts


@pytest.mark.parametrize(
    ("slower", "words"),
    [
        ({}, "comes sooner at 10 and 100 prompt tokens"),
        ({("step+fused", 100): 1.6}, "comes sooner at 10, later at 100 prompt tokens"),
        ({("step+fused", 10): 20 / 18}, "comes sooner at 100, undecided at 10 prompt tokens"),
        # the baseline's second run is 1.5 times its first: so may be what is between the others
        ({("step" + AGAIN, n): 1.5 for n in LENGTHS}, "comes undecided at 10 and 100 prompt tokens"),
    ],
)
def test_whose_first_token_is_sooner(slower, words):
    said = "beside the soonest of llamacpp and llamacpp+generate the first token of step+fused"
    assert finding.sooner(same_file.races(firsts(slower=slower))) == [f"{said} {words}"]


def test_one_peer_is_called_by_its_name():
    alone = same_file.races(firsts(("step", "step+fused", "llamacpp")))
    assert finding.sooner(alone) == [
        "beside llamacpp the first token of step+fused comes sooner at 10 and 100 prompt tokens"
    ]


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
        "step+fused makes the first token before llamacpp and llamacpp+generate at 2 of 2 prompt lengths. Beside the"
        " soonest of llamacpp and llamacpp+generate the first token of step+fused comes sooner at 10 and 100 prompt"
        " tokens; a token of "
    )
    assert f"takes {parts[0]['total']:.1f} ms (layers " in said
    assert (
        "; from context 256 to 4096 loop keeps 67% of its rate and loop+fused 78% (medians of n = 3 answers); ollama"
        " was not measured here." in said
    )
    assert finding.compiled_kernels([], [], {}) == "Nothing was measured."


def test_a_part_that_noise_hides_has_no_share_and_parts_may_be_more_than_the_whole():
    entry = dict(name="step+fused", total=4.0, layers=2.0, layers_low=1.0, layers_high=3.0, attention=0.5)
    entry |= dict(attention_low=-0.1, attention_high=1.1, head=2.0, head_low=1.6, head_high=2.4)
    entry |= dict(rest=-0.5, rest_low=-0.8, rest_high=-0.2)
    words = "a token of step+fused takes 4.0 ms (layers 50% [25%, 75%], head 50% [40%, 60%], each by what its absence"
    assert finding.taken_apart([entry]) == [
        f"{words} saves; noise hides attention; together they are more than the token)"
    ]
    (said,) = finding.taken_apart([entry | dict(attention_low=0.1, rest_high=0.1)])
    assert "attention 12% [2%, 28%]" in said
    assert said.endswith("saves; noise hides rest)")


def test_what_rows_cost_is_said_of_the_most_rows_at_the_shortest_context():
    made = passes() + passes(context=1024, costs={1: 1.0, 8: 4.0}) + passes("llamacpp", {1: 1, 8: 2.6})
    assert finding.together(rows.table(made)) == [
        "8 tokens of a sequence in one pass take loop+fused 2.00x [2.00, 2.00] and llamacpp 2.60x [2.60, 2.60] as long"
        " as one"
    ]
    assert finding.together([]) == finding.together(rows.table(passes(costs={1: 1.0}))) == []
