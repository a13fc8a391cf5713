"""Findings about XLA:CPU: what this jaxlib's compiled programs show, the comparison of two programs, and what rows
say."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import jaxlib
import numpy as np
import pytest

from llama_jax.plumbing.errors import UserError
from llama_lab.bench import process, record, statistics
from llama_lab.bench.journal import Journal
from llama_lab.experiments.xla_cpu import cases, chart, measure
from llama_lab.experiments.xla_cpu.cases import FEW, FINDINGS, LONG, TOKENS, D, F, Finding, H, K, L, Program, S, V
from tests.conftest import OLD_EMITTERS, fusing_as_shipped
from tests.figures.drawn import assert_drawn

pytestmark = pytest.mark.usefixtures("compiling")

IDENTITY = dict(run="xla", block=0, process=1, seed=0)
LAYER = 4 * K * (S // 4) * H  # bytes of one layer's cache in the finding about a scan
SHOWN = {  # at least this by the slow program, at most that by the fast one
    "bfloat16 product": (4 * V * D, 8 * V),
    "int8 product": (4 * V * D, 0),
    "transposed rows": (4 * F * LONG, 8 * LONG),
    "conversion once a call": (2 * FEW * TOKENS, 2 * FEW),
    "cache in a scan": (L * LAYER, 1.1 * LAYER),
    "weights in a scan": (2 * 4 * F * D, 16 * F),
    "cache of one row": (2, 0),
    "shared vector": (4 * F * D, 16 * F),
}


NEW_EMITTERS = OLD_EMITTERS.removeprefix("--").partition("=")[0]  # as shipped


def test_each_finding_has_its_bounds():
    assert list(SHOWN) == [f.name for f in FINDINGS]


def evidence(say):
    """What each finding's two programs show in this process."""
    shown = {f.name: [f.evidence(p.compiled(f.shapes()), p.calls) for p in (f.slow, f.fast)] for f in FINDINGS}
    return {name: [float(value) for value in values] for name, values in shown.items()}


@pytest.fixture(scope="module")
def shown():
    """The same in a process that runs JAX as it is shipped."""
    settings = measure.SHIPPED.settings
    settings = settings | dict(XLA_FLAGS=fusing_as_shipped(settings["XLA_FLAGS"]))
    return process.start(f"{__name__}:evidence", {}, interpreter=replace(measure.SHIPPED, settings=settings)).result


@pytest.mark.parametrize("name", SHOWN)
def test_the_compiled_programs_show_what_the_claim_says(name, shown):
    finding, (least, most) = measure.BY_NAME[name], SHOWN[name]
    slow, fast = shown[name]
    mended = (
        f"jaxlib {jaxlib.__version__} compiles {finding.slow.words!r} without it ({finding.unit}: {slow}):"
        " mended since 0.10.2? "
    )
    assert slow >= least, (
        mended + f"Then take {name!r} out of xlacases.FINDINGS and docs/xla-cpu.md, and its cure out of the model."
    )
    assert fast <= most, f"jaxlib {jaxlib.__version__} has made {finding.fast.words!r} worse ({finding.unit}: {fast})"


def test_donated_caches_are_taken_over_in_all_programs():
    """Otherwise a copy would prove nothing."""
    programs = [(f, p) for f in FINDINGS for p in (f.slow, f.fast) if p.donated]
    assert len(programs) == 4
    for finding, program in programs:
        given = program.bring(*finding.shapes())[0] if finding.name == "cache in a scan" else None
        alias = program.compiled(finding.shapes()).memory_analysis().alias_size_in_bytes
        assert alias == (4 * given.size if given is not None else 4 * K * S * H)


PRODUCERS = {
    "rsqrt": lambda x: x * jax.lax.rsqrt((x * x).mean() + 1e-5),
    "exponential": jax.nn.silu,
    "tanh": jnp.tanh,
    "divide": lambda x: 1 / (2 + x),
}


@pytest.mark.parametrize("op", PRODUCERS)
@pytest.mark.parametrize(
    "product", [cases.reduced, lambda x, w: cases.as_vector(x[None], w)[0]], ids=["reduced", "dot"]
)
def test_a_vectors_producer_is_not_computed_again_for_each_row(op, product):
    """What was thought to be a finding and is none: docs/xla-cpu.md, What did not hold."""
    x, w = jax.ShapeDtypeStruct((D,), jnp.float32), jax.ShapeDtypeStruct((F, D), jnp.bfloat16)
    compiled = jax.jit(lambda x, w: product(PRODUCERS[op](x), w)).lower(x, w).compile({NEW_EMITTERS: True})
    made = {n: cases.times(compiled, op, n) for n in (1, D, F * D)}
    assert made[F * D] == 0, (
        f"jaxlib {jaxlib.__version__} computes {op} for each row: it belongs into xlacases.FINDINGS"
    )
    assert made[1] + made[D] == 1
    apart = [
        part for part in cases.computations(compiled.as_text()).values() if any(f" {op}(" in line for line in part)
    ]
    assert not any(f"[{F},{D}]" in line for part in apart for line in part), f"{op} is in one fusion with the product"


def pair(slow, fast, show=cases.temporaries, **options) -> Finding:
    def base(key):
        return jax.random.normal(key, (8, 8)), jnp.ones((8, 8))

    return Finding("pair", "A claim.", base, Program("slow", slow, **options), Program("fast", fast, **options), show)


def test_both_programs_are_timed_as_often_and_checked():
    rows = measure.compare(pair(lambda a, b: a @ b, lambda a, b: jnp.einsum("ij,jk", a, b)), IDENTITY, 6, repeats=4)
    assert [(r.program, r.order, r.valid, len(r.unit_ns)) for r in rows] == [
        ("slow", 6, True, 4),
        ("fast", 7, True, 4),
        ("fast (again)", 8, True, 4),
    ]
    assert all(ns > 0 for r in rows for ns in r.unit_ns)
    assert {r.argument_bytes for r in rows} == {512}


@pytest.mark.parametrize("other", [lambda a, b: a @ b + 1, lambda a, b: a * jnp.nan, lambda a, b: a[0]])
def test_programs_that_compute_other_numbers_make_void_rows(other):
    rows = measure.compare(pair(lambda a, b: a @ b, other), IDENTITY, repeats=1)
    assert [(r.valid, r.reason) for r in rows] == [(False, "wrong: the two programs compute different numbers")] * 3


def test_what_is_fed_comes_back_as_the_next_argument_and_donation_hurts_nobody():
    finding = pair(lambda a, b: (a + 1, a @ b), lambda a, b: (a + 1, a @ b), feeds=True, donated=True, calls=3)
    base = finding.base(jax.random.key(0))
    subject = measure.Subject(finding.slow, base)
    for units in (1, 2):
        results = subject.unit()
        np.testing.assert_allclose(results[0], base[0] + 3 * units)
        np.testing.assert_allclose(results[1], (base[0] + 3 * units - 1) @ base[1], rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", SHOWN)
def test_slow_and_fast_compute_the_same_numbers(name):
    rows = measure.compare(measure.BY_NAME[name], IDENTITY, repeats=1)
    assert [r.valid for r in rows] == [True] * 3, rows[0].reason


HLO = """HloModule m

%inner (p: bf16[4,8]) -> f32[4,8] {
  %p = bf16[4,8]{1,0} parameter(0)
  ROOT %c = f32[4,8]{1,0} convert(%p), metadata={op_name="convert("}
}

%body (t: (s32[], bf16[4,8])) -> (s32[], bf16[4,8]) {
  %f = f32[4,8]{1,0} fusion(%g), kind=kLoop, calls=%inner
  %small = f32[4]{0} convert(%h)
}

ENTRY %main (w: bf16[4,8]) -> f32[4,8] {
  %whole = f32[32]{0} convert(%w)
  %f.1 = f32[4,8]{1,0} fusion(%w), kind=kLoop, calls=%inner
  %l = (s32[], bf16[4,8]) while(%t), condition=%cond, body=%body
}
"""


class Text:
    def __init__(self, text):
        self.text = text

    def as_text(self):
        return self.text


def test_instructions_are_counted_as_often_as_they_run():
    assert list(cases.computations(HLO)) == ["inner", "body", "ENTRY"]
    assert cases.times(Text(HLO), "convert", 32, trips=10) == 2 + 10
    assert cases.times(Text(HLO), "convert", 32) == 3
    assert cases.times(Text(HLO), "convert", 4, trips=10) == 10
    assert cases.times(Text(HLO), "copy", 32) == 0


@pytest.mark.parametrize(("text", "count"), [("copy", 1), ("copy-start", 0)])
def test_only_the_instruction_itself_is_counted(text, count):
    hlo = f"ENTRY %m (p: f32[2]) -> f32[2] {{\n  ROOT %x = f32[1,2]{{1,0}} {text}(%p)\n}}\n"
    assert cases.times(Text(hlo), "copy", 2) == count


def made(finding="int8 product", block=0, slow=10.0, fast=2.0, again=2.0, shown=(100, 0), faults=0, **changes):
    """The three rows of one block; times in ms."""
    fields = dict(IDENTITY, block=block, order=0, process=block + 1, phase="warm", valid=True, finding=finding, calls=1)
    fields |= dict(argument_bytes=1, output_bytes=1, alias_bytes=0, page_faults=faults) | changes
    programs = {"slow": (slow, shown[0]), "fast": (fast, shown[1]), "fast (again)": (again, shown[1])}
    return [
        measure.Compared(**fields, program=name, evidence=seen, temp_bytes=seen,
                         unit_ns=[round(ms * 1e6 * k) for k in (0.9, 1, 5)])
        for name, (ms, seen) in programs.items()
    ]  # fmt: skip


def blocks(n=6, **options):
    return [row for b in range(n) for row in made(block=b, **{"slow": 10 + b / 10, **options})]


def test_the_ratio_is_of_medians_block_by_block():
    (found,) = measure.outcomes(blocks(faults=30))
    assert found.pairs == pytest.approx([(10 + b / 10) / 2 for b in range(6)])
    assert found.ratio.value == pytest.approx(statistics.ratio(found.pairs, [1] * 6).value)
    assert (found.ratio.verdict, found.ratio.n, found.holds, found.wrong) == ("slower", 6, True, 0)
    assert (found.slow, found.fast, found.faults) == (100, 0, (10, 10))


def test_a_restless_control_takes_the_verdict_away():
    (found,) = measure.outcomes([row for b in range(6) for row in made(block=b, slow=2.1, fast=2.0, again=2.6)])
    assert found.ratio.verdict == "undecided"


def test_void_blocks_give_no_time():
    rows = [*blocks(5), *made(block=5, slow=999, valid=False, reason="wrong")]
    (found,) = measure.outcomes(rows)
    assert (found.ratio.n, found.wrong) == (5, 1)
    (found,) = measure.outcomes(made(valid=False, reason="wrong"))
    assert (found.ratio.n, found.wrong, found.pairs) == (0, 1, ())
    assert np.isnan(found.ms).all()


def test_evidence_that_differs_between_processes_is_none():
    assert not measure.outcomes([*made(block=0), *made(block=1, shown=(101, 0))])[0].holds
    assert not measure.outcomes(made(shown=(5, 5)))[0].holds


def test_an_interrupted_block_is_left_out():
    assert measure.outcomes(made()[:2]) == []
    assert measure.outcomes([*made(), *made(block=1)[:1]])[0].ratio.n == 1


def test_the_sentence_says_what_the_rows_say():
    found = measure.outcomes(
        [*blocks(), *blocks(finding="shared vector", shown=(7, 7)), *blocks(finding="cache of one row", slow=2.0)]
    )
    said = measure.sentence(found, "jaxlib 1.2")
    assert said.startswith("2 of 3 findings about XLA:CPU show in the compiled programs of jaxlib 1.2.")
    assert f"int8 product {found[0].ratio.words}" in said
    assert "shared vector" not in said
    assert "Not told apart by time: cache of one row." in said
    assert "none of them costs time" in measure.sentence(measure.outcomes(blocks(slow=2.0)), "jaxlib 1.2")
    assert measure.sentence([], "jaxlib 1.2") == "No finding about XLA:CPU was measured."


def beside(figure):
    return " ".join(text.get_text() for text in figure.axes[0].texts)


def test_the_chart_is_drawn_of_nothing_of_one_block_of_void_ones_and_of_all(tmp_path):
    chart.xla_findings([])
    assert "5.00x" in beside(chart.xla_findings(measure.outcomes(made())))
    void = made(valid=False, reason="wrong: the two programs compute different numbers")
    assert "void: other numbers" in beside(chart.xla_findings(measure.outcomes(void)))
    rows = [*blocks(shown=(113_442_816, 0), faults=3 * 27_697), *blocks(finding="cache of one row", shown=(4, 0))]
    found = measure.outcomes([*rows, *blocks(finding="shared vector", shown=(40_000, 40_000))])
    figure = chart.xla_findings(found)
    assert_drawn(figure, tmp_path)
    assert list(chart.IN_WORDS) == [finding.name for finding in cases.FINDINGS]
    assert "not seen with this jaxlib" in beside(figure)
    said = "Two ways to write one computation in JAX: the slower takes 5.12 times as long in 2 of 3 cases"
    assert figure.get_suptitle().replace("\n", " ") == said
    apart = measure.outcomes([*blocks(), *blocks(finding="cache of one row", fast=0.5, again=0.5)])
    assert chart.xla_findings(apart).get_suptitle().endswith("takes 5.12 to 20.5 times as long")
    labels = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert "int8 product\nslower: row as a matrix\nfaster: row as a vector" in labels
    shown = [line["compiled programs"] for line in chart.spellings(found)]
    for words in ("113 MB against 0", "27,697", "4 against 0"):
        assert any(words in line for line in shown)


def test_narrow_weights_are_set_beside_float32():
    """The fast program of the bfloat16 product has a float32 weight of the same shape."""
    found = measure.outcomes([*blocks(finding="bfloat16 product"), *blocks()])
    whole = found[0].ms[1]
    said = chart.beside_float32(found)
    assert said.startswith(f"float32 product {whole:.3g} ms; bfloat16 product")
    assert "both take longer, although they read fewer bytes" in said
    assert chart.beside_float32(found[:1]) == ""


@pytest.mark.parametrize(
    ("options", "words"),
    [(dict(pair_blocks=0), "blocks is 0"), (dict(pair_blocks=1, names=["int8 prodct"]), "int8 product")],
)
def test_a_wrong_plan_is_refused_before_anything_is_measured(options, words):
    journal = Journal(kind=measure.Compared)
    with pytest.raises(UserError, match=words):
        measure.XlaFindings("random:smollm2-135m", 0, **options).record(journal)
    assert journal.trials == []


def test_measured_in_a_process_of_its_own_once(tmp_path):
    names = ["cache of one row", "shared vector"]
    for _ in range(2):  # the second time nothing is left to do
        journal = Journal(tmp_path / "j.jsonl", dict(plan=1), kind=measure.Compared)
        rows, _ = measure.XlaFindings("random:smollm2-135m", 0, 1, names).record(journal)
        assert sorted({r.finding for r in rows}) == names
        assert len(rows) == len(journal.trials) == 6
        assert {r.process for r in rows} == {1}
        assert all(r.valid and len(r.unit_ns) == measure.REPEATS for r in rows)
    path = record.write(tmp_path / "x.csv", rows, measure.Compared)
    assert record.read(path, kind=measure.Compared)[0] == rows
