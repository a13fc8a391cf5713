"""What every figure is held to, wherever a test of an experiment draws one: a title that is a finding and fits, and one
colour a subject."""

import matplotlib.pyplot as plt
import pytest

from tests.figures import drawn

TINY = (
    "random:smollm2-135m,num_hidden_layers=2,hidden_size=64,intermediate_size=128,num_attention_heads=4,num_key_value_heads=2,"
    "head_dim=16,vocab_size=97"
)


@pytest.fixture(autouse=True)
def figures_that_say_what_they_show():
    """Each figure that a test draws is looked at."""
    plt.close("all")
    yield
    for number in plt.get_fignums():
        drawn.assert_in_style(plt.figure(number))
    plt.close("all")
