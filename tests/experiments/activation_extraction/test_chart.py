"""Charts of extraction say what the rows say, and are drawn in style."""

import pytest
from matplotlib.text import Text

from llama_lab.experiments.activation_extraction import chart, probing
from llama_lab.experiments.activation_extraction.rungs import BASE, DISK, FORWARD, PRODUCT
from tests.experiments.activation_extraction.test_table import made, measured
from tests.figures.drawn import assert_drawn, assert_in_style


def words(figure) -> str:
    """Every text in a figure: titles, ticks and legends too."""
    return " ".join(text.get_text() for text in figure.findobj(Text))


def probed(layers: int = 4) -> list[dict]:
    about = dict(property=probing.ENDS, tokens=900, examples=60, share=0.6, folds=[0.6] * 5)
    control = dict(control=0.5, control_low=0.47, control_high=0.53)
    areas = [0.6 + 0.05 * i for i in range(layers)]
    return [
        dict(layer=i, site=f"resid_post:{i}", auc=auc, low=auc - 0.05, high=auc + 0.05, **about, **control)
        for i, auc in enumerate(areas)
    ]


STAGES = [dict(forward=40.0, extraction=-1.0, copy=2.0, Python=1.0, disk=3.0)]
CHARTS = {
    "limits": lambda: chart.extraction_limits(measured()),
    "probe": lambda: chart.extraction_probe(probed()),
    "budget": lambda: chart.extraction_budget(STAGES),
}
BASELESS = [r for r in measured() if not r.subject.startswith(BASE)]
LITTLE = {
    "limits of one block": lambda: chart.extraction_limits(measured(1)),
    "limits without a denominator": lambda: chart.extraction_limits(BASELESS),
    "no probe": lambda: chart.extraction_probe([]),
    "no budget": lambda: chart.extraction_budget([]),
}


@pytest.mark.slow
@pytest.mark.parametrize("draw", CHARTS.values(), ids=CHARTS)
def test_each_chart_is_drawn_in_style(tmp_path, draw):
    assert_drawn(draw(), tmp_path)


@pytest.mark.parametrize("draw", LITTLE.values(), ids=LITTLE)
def test_each_chart_is_drawn_where_there_is_little(draw):
    assert_in_style(draw())


def test_the_limits_say_the_share_in_pairs():
    drawn = words(CHARTS["limits"]())
    title = "of the rate of the forward pass alone: slower"
    far = "10,0", "tokens/s, beyond this axis →"
    for text in (title, "94% [9", "of the forward pass alone,\nmean of 8 pairs", "ceiling: disk only", *far):
        assert text in drawn, text


def test_where_the_slower_ceiling_is_not_one_in_each_block_it_has_no_name():
    rates = {(PRODUCT, 0): 10, (FORWARD, 0): 9, (DISK, 0): 1, (PRODUCT, 1): 10, (FORWARD, 1): 11, (DISK, 1): 12}
    rows = [made(name, block, wall_ns=s * 10**9) for (name, block), s in rates.items()]
    assert "the rate of the slower ceiling: whether it is slower is undecided" in words(
        chart.extraction_limits(rows)
    ).replace("\n", " ")


def test_the_probe_names_its_property_and_its_control():
    drawn = words(CHARTS["probe"]()).replace("\n", " ")
    for text in (
        probing.ENDS,
        "shuffled labels: 0.50 in all layers",
        "900 tokens of 60 examples",
        "60% of the tokens with the property",
        "about as well as in its best layer",
    ):
        assert text in drawn, text
    assert "best after layer 3: 0.750 [0.700, 0.800]" in probing.in_words(probed())
