"""What others published: each figure names its source and its standing, and what we computed follows from rows that are
there."""

import re
from collections.abc import Callable
from dataclasses import fields

import numpy as np
import pytest

from llama_lab.bench import published
from llama_lab.bench.published import figure_of

LENGTHS = (10, 50, 100, 150, 200, 250, 300, 350, 400, 500)  # the document stops at 400


def rows_of(kind: str, case: str) -> list[float]:
    """The rows of a published table of time to first token, the cold one first."""
    known = set(published.table()["quantity"])
    names = [f"{kind} at {n} tokens, {case}" for n in LENGTHS]
    return [figure_of("ttft", name) for name in names if name in known]


def without_cold(quantity: str) -> float:
    kind, case = re.fullmatch("(.*) without the cold row, (.*)", quantity).groups()
    return np.mean(rows_of(kind, case)[1:])


def faster(by: Callable[[str], float]) -> float:
    """Plain over hybrid."""
    return by("plain (repository)") / by("CUDA graph + TorchScript (repository)")


RULES = {  # what a computed quantity begins with → how it is computed
    "mean without the cold row, ": without_cold,
    "P99 without the cold row, ": without_cold,
    "mean of the rows, ": lambda quantity: np.mean(rows_of("mean", quantity.split(", ")[1])),
    "speed-up of the averages": lambda _: faster(lambda case: figure_of("ttft", f"mean, {case}")),
    "speed-up without the cold row": lambda _: faster(lambda case: np.mean(rows_of("mean", case)[1:])),
    "two warm batches": lambda _: (
        3 * figure_of("extraction", "mean of three batches") - figure_of("extraction", "first batch")
    ),
}


def test_every_figure_names_one_source_and_its_standing():
    table = published.table()
    assert list(table.columns) == [field.name for field in fields(published.Published)]
    assert not table.duplicated(["claim", "quantity"]).any()
    assert set(table["standing"]) == set(published.STANDINGS)
    assert table["source"].str.fullmatch(r"[\w./-]+\.(md|ipynb), .+ \([\w.-]+/[\w.-]+\)").all()
    assert np.isfinite(table["value"]).all()


def test_what_we_computed_follows_from_rows_that_are_there():
    table = published.table()
    computed = table[table["standing"] == "computed"]
    for quantity, value in zip(computed["quantity"], computed["value"], strict=True):
        (rule,) = [rule for start, rule in RULES.items() if quantity.startswith(start)]
        half = 0.5 * 10.0 ** -len(str(value).split(".")[1])  # a unit in the last place that is given
        assert abs(rule(quantity) - value) <= half * (1 + 1e-9), quantity


def test_the_documents_averages_are_of_its_rows_and_the_repositorys_are_not():
    for kind in ("mean", "P99"):
        assert np.mean(rows_of(kind, "JIT-only")) == pytest.approx(figure_of("ttft", f"{kind}, JIT-only"), abs=0.005)
    for case in ("plain", "JIT-only", "CUDA graph + TorchScript"):
        name = f"{case} (repository)"
        assert abs(np.mean(rows_of("mean", name)) - figure_of("ttft", f"mean, {name}")) > 0.01
    assert figure_of("ttft", "requests of a cold loop") == published.COLD_LOOP


def test_figures_are_found_by_name_with_where_they_stand():
    found = published.of("kv-cache", "speed-up, long warm-up")
    assert (found.value, found.unit, found.standing) == (16.32, "x", "document")
    assert published.standing("throughput", "Ollama", "llama-jax") == "repository"
    assert published.standing("ttft", "mean, JIT-only", "mean without the cold row, JIT-only") == "document, computed"
    assert [end.value for end in published.ends("extraction", "jit of the extraction")] == [5, 10]
    assert [end.value for end in published.ends("extraction", "fixed batches")] == [2]
    for read in (published.of, published.figure_of, published.standing, published.ends):
        with pytest.raises(KeyError):
            read("ttft", "nothing")
