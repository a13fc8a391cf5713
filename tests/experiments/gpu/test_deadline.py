"""Against the clock: how much time is left, and what a thing is expected to cost."""

import pytest

from llama_lab.experiments.gpu.deadline import Budget, Costs


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


def test_a_budget_counts_from_when_it_was_made():
    clock = Clock()
    budget = Budget(60, clock)
    clock.now += 45
    assert budget.spent == 45
    assert budget.left() == 15
    assert budget.left(0.5) == -15


def test_costs_are_guessed_by_the_longest_prefix_until_one_was_seen():
    costs = Costs({"torch": 1.0, "torch-compile": 3.0}, 0.5)
    assert costs.expected("torch-compile+reduce-overhead", 10) == 30
    assert costs.expected("step", 10) == 5
    costs.learn("torch", 10, 2)
    assert costs.expected("torch", 30) == pytest.approx(6)
    assert costs.expected("torch-cudagraph", 10) == 10  # another subject's cost is not its own
