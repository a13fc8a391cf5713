"""What the rows of an extraction say, on made-up rows: ratios, gains, ceilings, scaling, and the sentence."""

import numpy as np
import pytest

from llama_lab.bench import AGAIN
from llama_lab.experiments.activation_extraction import finding, rungs
from llama_lab.experiments.activation_extraction import table as extraction_table
from llama_lab.experiments.activation_extraction.passes import LADDER, SECOND, STAGES, Extraction
from llama_lab.experiments.activation_extraction.rungs import BASE, COPIES, CUT, DISK, FIRST, FORWARD, PRODUCT

SECONDS = {
    rungs.EAGER: 9, rungs.UNJITTED: 24.0, COPIES: 8.0, rungs.STACKED: 4.4, BASE: 4.0, rungs.SPREAD: 3.6, FIRST: 1.5,
    rungs.FIXED: 2.0, rungs.SCANNED: 2.2, rungs.VMAPPED: 2.0, rungs.PACKED: 1.0, rungs.ASYNC: 1.0, PRODUCT: 0.9,
    rungs.TORCH: 3.0, CUT: 1.3, FORWARD: 0.85, DISK: 0.1,
}  # fmt: skip


def made(name=BASE, block=0, scale=1.0, **changes) -> Extraction:
    wall = round(SECONDS[name.removesuffix(AGAIN)] * 1e9 * scale)
    base = dict(
        run=LADDER, block=block, order=0, process=1, seed=0, phase="warm", subject=name, backend="jax", model="m",
        weights_hash="w", dtype="float32", kept="bfloat16", sites=2, depth=2, batch=4, length=128, unit=10, examples=40,
        tokens=1000, batches=10, slots=2000, rows=1000, bytes=10**6, wall_ns=wall, trace_ns=0, lower_ns=0, backend_ns=0,
        lowered=0, compiled=0, valid=True, error=1e-6,
    )  # fmt: skip
    return Extraction(**{**base, **changes})


def measured(blocks=8, scaling=(1, 2)) -> list[Extraction]:
    """Every rung in its place, with noise of half a per cent; one first pass each."""
    noise = np.random.default_rng(0)
    first = dict(phase="cold", backend_ns=2 * 10**9)
    rows = [made(name, compiled=10 if name in (BASE, rungs.SPREAD, FIRST) else 1, **first) for name in SECONDS]
    for block in range(blocks):
        rows += [made(name, block, 1 + noise.normal(0, 0.005)) for name in [*SECONDS, BASE + AGAIN]]
    for block in range(3):
        for n in scaling:
            scale, own = (1 + noise.normal(0, 0.005)) * {1: 1, 2: 0.8}[n], dict(workers=n, process=10 + n)
            rows.append(made(PRODUCT, block, scale, run=f"scaling {n}", **own))
    return rows


def test_ratios_are_to_n1_and_steps_to_the_rung_before():
    rows = measured()
    table = {e["subject"]: e for e in extraction_table.table(rows)}
    assert list(table) == [name for name in rungs.SUBJECTS if name != rungs.PINNED]
    assert table[PRODUCT]["ratio"].value == pytest.approx(4 / 0.9, rel=0.02)
    assert (table[BASE]["programs"], table[BASE]["compile_s"]) == (10, 2)
    gains = extraction_table.gains(rows)
    for name, before in rungs.ADDED_TO.items():
        if name != rungs.PINNED:
            assert gains[name].value == pytest.approx(SECONDS[before] / SECONDS[name], rel=0.02)
    assert rungs.PINNED not in gains
    judged = {e["addition"]: e["verdict"] for e in extraction_table.additions(rows)}
    found = [judged[name] for name in (rungs.FIXED, rungs.ASYNC, rungs.PACKED, "A/A control")]
    assert found == ["slower", "equal within 2%", "faster", "control"]
    assert extraction_table.like_for_like(rows).value == pytest.approx(1.5 / 0.9, rel=0.02)
    assert {n: round(r.value, 1) for n, r in extraction_table.rivals(rows).items()} == {rungs.TORCH: 3.3, CUT: 1.4}
    *_, control = extraction_table.additions(rows)
    assert control["ratio"].verdict == "equal within 2%"


def test_the_slower_ceiling_counts_block_by_block():
    overlap = extraction_table.overlap(measured())
    assert (overlap.value, overlap.n) == (pytest.approx(0.85 / 0.9, rel=0.02), 8)
    seconds = {(FORWARD, 0): 1, (DISK, 0): 2, (FORWARD, 1): 4, (DISK, 1): 1, (FORWARD, 2): 1}
    seconds |= {(PRODUCT, 0): 4, (PRODUCT, 1): 8, (PRODUCT, 2): 1}
    rows = [made(name, block, wall_ns=s * 10**9) for (name, block), s in seconds.items()]
    overlap = extraction_table.overlap(rows)
    assert (overlap.value, overlap.n) == (pytest.approx(0.5), 2)


def test_the_finding_names_the_parts_of_its_factor_each_pair_and_what_is_not_tested():
    said = finding.extraction(measured(2))
    assert said.count("; `extract`: ") == 3
    assert ". The rate of `extract` is " in said
    assert "; the first version, same layers: 0.8" in said
    assert " the rate of transformers without its upper layers, slower, n = 2; packing into one shape: 1.5" in said
    assert "text is 50% under `extract`, 50% under the first version and 50% under transformers;" in said
    assert " reaches 95% [95%, 95%] of its slower ceiling, `forward only`, n = 2" in said
    assert "not tested" not in said
    seconds = {(PRODUCT, 0): 10, (FORWARD, 0): 9, (DISK, 0): 1, (PRODUCT, 1): 10, (FORWARD, 1): 11, (DISK, 1): 1}
    said = finding.near_the_ceiling([made(name, block, wall_ns=s * 10**9) for (name, block), s in seconds.items()])
    assert said.startswith("`extract` reaches 99% [")
    assert said.endswith(" of its slower ceiling, `forward only`, n = 2; that ceiling itself spreads by 22%")
    seconds |= {(DISK, 1): 12}
    said = finding.near_the_ceiling([made(name, block, wall_ns=s * 10**9) for (name, block), s in seconds.items()])
    assert " of its slower ceiling, n = 2;" in said  # not the same one in each block
    said = finding.untested([row for row in measured(2) if row.subject != rungs.UNJITTED])
    assert "(`N0 eager copy by copy`) was not measured" in said
    assert said.endswith("so its total (4x to 7x; 10x to 20x) is not tested")


def test_void_passes_count_nowhere_and_are_named():
    rows = [
        r.model_copy(update=dict(valid=False, reason="wrong: resid_post:0")) if r.subject == CUT else r
        for r in measured()
    ]
    entry = next(e for e in extraction_table.table(rows) if e["subject"] == CUT)
    assert (entry["rate"].n, entry["void"], entry["reasons"]) == (0, 8, ["wrong: resid_post:0"])
    assert extraction_table.rivals(rows)[CUT].n == 0


def test_scaling_is_paired_by_block():
    one, two = extraction_table.scaled(measured())
    assert (one["workers"], two["workers"], two["rate"].n) == (1, 2, 3)
    assert two["ratio"].value == pytest.approx(1.25, rel=0.03)
    assert extraction_table.scaled([]) == []


def test_a_second_model_has_a_table_of_its_own():
    rows = [made(name, run=run, model="other") for run in (SECOND, LADDER) for name in (FIRST, BASE)]
    assert [e["subject"] for e in extraction_table.table([*rows, made(DISK)], run=SECOND)] == [BASE, FIRST]
    assert finding.of_second(rows) == ""


def test_what_extract_gains_on_a_second_model_stands_beside_the_ladder():
    other = [row.model_copy(update=dict(run=SECOND)) for row in measured(3) if row.run == LADDER]
    slow = [r.model_copy(update=dict(wall_ns=2 * r.wall_ns)) if r.subject == FIRST else r for r in other]
    over_first, over_torch = finding.of_second([*measured(3), *slow]).split("; ")
    assert over_first.startswith("`extract` over the first version, same layers: more, 3.3")
    assert over_first.endswith(" on the ladder")
    assert over_torch.startswith("over transformers without its upper layers: no difference shown, 1.4")


def test_the_budget_is_in_a_note():
    spent = [dict.fromkeys(STAGES, 1.0)]
    assert extraction_table.budget(dict(processes=[dict(probe=[]), dict(budget=spent)])) == spent
    assert extraction_table.budget(dict(processes=[])) == extraction_table.budget({}) == []


def test_what_could_be_hidden_of_a_batch():
    spent = [dict(zip(STAGES, (60.0, 4.0, 20.0, 6.0, 10.0), strict=True))] * 3
    assert extraction_table.hidden(spent) == (
        "One after the other the stages take 100 ms. Without the copy a batch would be 1.25 times as fast; a pipeline"
        " that hid everything but the longest stage (forward, 60 ms) could gain 1.67 times."
    )
    assert extraction_table.hidden([]) == "The budget of a batch is not recorded."
