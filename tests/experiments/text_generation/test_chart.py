"""The chart of arriving tokens is drawn in style, and what is said of answers and of attention is computed."""

import numpy as np

from llama_lab.experiments.text_generation import chart
from tests.bench.test_record import trial
from tests.figures.drawn import assert_drawn, trials, words


def test_arrivals_are_drawn_in_style(tmp_path):
    assert "<svg" in assert_drawn(chart.arrivals(trials()), tmp_path)


def test_the_finding_says_how_long_answers_and_prompts_are_and_gives_an_interval():
    made = [trial(name, b, (10, 20, last)) for name, last in (("step", 30), ("step+nocache", 90)) for b in range(6)]
    made = [t.model_copy(update=dict(prompt_tokens=35 + t.block)) for t in made]
    finding = chart.finding(made)
    said = (
        "reruns the whole reserved length: 3 tokens take 3.0 times as long. Time of an answer, geometric mean, step+noc"
    )
    assert said in finding
    assert "3.0 times as long by geometric means, 3.0 by medians" in words(chart.arrivals(made))
    assert "3.00x [3.00, 3.00], slower, n = 6;" in finding
    assert "the prompts have 35 to 40 tokens" in finding


def test_what_a_head_looks_at_is_said_in_words():
    shares = np.array([[1, 0, 0, 0], [1, 0, 0, 0], [0.2, 0.8, 0, 0], [0.4, 0, 0.6, 0]])
    said = chart.looked_at(["a", "b", "c", "d"], shares)
    assert said == (
        "'d' looks most at 'c' (60%). On average a token gives 70% to the one before it and 30% to the first."
    )
