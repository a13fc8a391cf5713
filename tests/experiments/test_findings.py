"""Every experiment that has a finding is held to a plain first sentence."""

import pytest

from tests.experiments.findings import FINDINGS, module_of, with_findings


def test_every_finding_is_known():
    assert set(with_findings()) == set(FINDINGS)


@pytest.mark.parametrize("name", FINDINGS)
def test_it_is_looked_at_wherever_a_test_asks_for_it(name):
    assert getattr(module_of(name), FINDINGS[name]).__name__ == "saying"
