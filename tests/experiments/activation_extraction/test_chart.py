"""Charts of extraction say what the rows say, and are drawn in style."""

import pytest
from matplotlib.text import Text

from llama_lab.experiments.activation_extraction import chart, probing
from llama_lab.experiments.activation_extraction.rungs import BASE, CUT, PINNED
from tests.experiments.activation_extraction.test_table import measured
from tests.figures.drawn import assert_drawn

GAPS = [dict(name=PINNED, reason="no GPU here", remedy="")]


def words(figure) -> str:
    """Every text in a figure: titles, ticks and legends too."""
    return " ".join(text.get_text() for text in figure.findobj(Text))


def probed(layers: int = 4) -> list[dict]:
    return [
        dict(
            layer=i,
            site=f"resid_post:{i}",
            property=probing.ENDS,
            tokens=900,
            examples=60,
            share=0.6,
            auc=0.6 + 0.05 * i,
            low=0.55 + 0.05 * i,
            high=0.65 + 0.05 * i,
            folds=[0.6] * 5,
            control=0.5,
            control_low=0.47,
            control_high=0.53,
        )
        for i in range(layers)
    ]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ladder", "limits", "probe", "budget", "no budget"])
def test_each_chart_is_drawn_in_style(tmp_path, name):
    draw = {
        "ladder": lambda: chart.extraction_ladder(measured(), GAPS),
        "limits": lambda: chart.extraction_limits(measured()),
        "probe": lambda: chart.extraction_probe(probed()),
        "budget": lambda: chart.extraction_budget(
            [dict(forward=40.0, extraction=-1.0, copy=2.0, Python=1.0, disk=3.0)]
        ),
        "no budget": lambda: chart.extraction_budget([]),
    }[name]
    assert_drawn(draw(), tmp_path)


def test_the_ladder_says_programs_gains_and_gaps():
    drawn = words(chart.extraction_ladder(measured(), GAPS))
    for text in (
        "10 programs in 2.0 s",
        "1 program in 2.0 s",
        "no GPU here",
        "gains nothing: ",
        "loses: 0.7",
        "(a straw man; fewer examples)",
        "(the denominator)",
        "ceiling: disk only",
        "pinned host memory",
    ):
        assert text in drawn, text
    void = [
        r.model_copy(update=dict(valid=False, reason="wrong: resid_post:0")) if r.subject == CUT else r
        for r in measured()
    ]
    assert "no valid pass: wrong: resid_post:0" in words(chart.extraction_ladder(void))


def test_a_ladder_without_its_denominator_or_with_one_block_is_drawn():
    for rows in (measured(1), [r for r in measured() if not r.subject.startswith(BASE)]):
        chart.extraction_ladder(rows, GAPS)
        chart.extraction_limits(rows)


def test_the_limits_say_the_share_and_what_processes_gain():
    drawn = words(chart.extraction_limits(measured()))
    for text in ("`extract` reaches 9", "of the slower ceiling", "(n = 3)", "1.2"):
        assert text in drawn, text
    assert "not measured" in words(chart.extraction_limits(measured(scaling=())))


def test_the_probe_names_its_property_and_its_control():
    drawn = words(chart.extraction_probe(probed()))
    for text in (probing.ENDS, "shuffled labels", "900 tokens of 60 examples", "60% of them with the property"):
        assert text in drawn, text
    assert "no linear probe" in words(chart.extraction_probe([]))
    assert "best after layer 3: 0.750 [0.700, 0.800]" in probing.in_words(probed())
