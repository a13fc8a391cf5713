"""docs/xla-cpu.md: each of its scripts prints what stands below it, and it tells the findings that are measured."""

import os
import re
import subprocess
import sys

import jaxlib
import pytest

from llama_jax.plumbing import paths, xla_flags
from llama_lab.experiments.xla_cpu import cases
from tests.conftest import fusing_as_shipped

TEXT = (paths.ROOT / "docs" / "xla-cpu.md").read_text(encoding="utf-8")
PAGE = 4096
SECTIONS = re.findall(r"^## \d+\. (.+?)\n(.*?)(?=^## )", TEXT, re.M | re.S)


def blocks(section, kind):
    return re.findall(rf"```{kind}\n(.*?)```", section, re.S)


def test_the_document_has_each_finding_once_in_order():
    named = [re.search(r"^In data and figure: \*(.+)\*\.$", section, re.M)[1] for _, section in SECTIONS]
    assert named == [f.name for f in cases.FINDINGS]
    for _, section in SECTIONS:
        assert len(blocks(section, "python")) == len(blocks(section, "text")) == 1
        for part in ("Observed.", "Expected.", "Why it matters."):
            assert section.count(f"**{part}**") == 1


@pytest.mark.parametrize(("title", "section"), SECTIONS, ids=[f.name for f in cases.FINDINGS])
def test_each_script_prints_what_stands_below_it(title, section):
    (script,), (expected,) = blocks(section, "python"), blocks(section, "text")
    shipped = xla_flags.shipped()  # who copies the script has no flag of ours
    as_shipped = os.environ | shipped | dict(XLA_FLAGS=fusing_as_shipped(shipped["XLA_FLAGS"]))
    done = subprocess.run([sys.executable, "-c", script], env=as_shipped, capture_output=True, text=True, check=True)
    assert done.stdout == expected, (
        f"jaxlib {jaxlib.__version__} compiles this otherwise than docs/xla-cpu.md says of {version()}: where"
        " it is mended, say so there"
    )


@pytest.mark.parametrize(("title", "section"), SECTIONS, ids=[f.name for f in cases.FINDINGS])
def test_each_script_stands_for_itself(title, section):
    (script,) = blocks(section, "python")
    assert set(re.findall(r"^(?:import|from) (\w+)", script, re.M)) <= {"re", "jax"}
    assert len(script.splitlines()) <= 30


def version():
    return re.search(r"Versions: jax and jaxlib ([\d.]+)\.", TEXT)[1]


def test_the_numbers_in_the_text_are_those_of_the_shapes():
    text = " ".join(TEXT.split())
    shapes = f"D {cases.D}, feed-forward {cases.F:,}, vocabulary {cases.V:,}, {cases.K} key heads of {cases.H}"
    assert shapes in text
    assert f"{round(4 * cases.V * cases.D / PAGE / 1000)} thousand faults" in text
    assert f"{cases.LONG:,} on (the same {4 * cases.LONG // 1024} KiB)" in text
