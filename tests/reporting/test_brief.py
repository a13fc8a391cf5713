"""The first two pages: sentences whose numbers are those of the trials, and what is missing is left out."""

import inspect
import re

import pytest

from llama_jax.plumbing import paths
from llama_lab.bench import record, summary
from llama_lab.bench.statistics import Ratio, Verdict
from llama_lab.reporting import brief, gains, machines, readme, repeats, report, rivals, scorecard
from llama_lab.reporting.machines import Machine
from llama_lab.reporting.overview import Recorded, tables
from llama_lab.sharing.contribution import HEADLINE
from tests.reporting.test_readme import PACE, engines, recorded, trials

LLAMACPP = dict(model="tiny", backend="llama.cpp", dtype="q4_1", weights_bytes=96_576_768)
SECTION = dict(name="n", number="99", question="?", finding="", figures=[], page=None)


@pytest.fixture(scope="module")
def behind():
    """Every published table."""
    return [Recorded(path, SECTION) for path in tables(paths.ROOT / "data", "")]


def headline(folder, names=tuple(PACE)):
    """A headline in which `loop+fused` is twice as fast as the rival."""
    rows = [
        row.model_copy(update=LLAMACPP if row.subject == "llamacpp" else dict(model="tiny")) for row in trials(names)
    ]
    return {HEADLINE: recorded(folder, HEADLINE, rows)}


def test_four_pictures_and_few_sentences_say_what_is_published(behind):
    known = report.sections(paths.ROOT)
    drawn = {figure["name"]: figure for section in known for figure in section["figures"]}
    shared = machines.contributed(paths.ROOT / "data" / "machines")[0]
    timed = gains.runs(behind)
    again = repeats.repeats(readme.with_llama_cpp(timed), timed, shared)
    others = scorecard.table(behind, lambda table: table.path.stem)
    asked = brief.questions(behind, drawn, gains.places(timed, shared), others, again)
    assert [entry["figure"] is not None for entry in asked] == [True] * 4
    assert [entry["aside"] for entry in asked] == [True, False, True, True]
    assert all(entry["said"] for entry in asked)
    assert sum(len(entry["said"]) for entry in asked) <= 10  # two pages
    assert [entry["table"] is not None for entry in asked] == [True, True, False, False]
    backends = {"llama.cpp", "ik_llama.cpp", "ik-llamacpp", "openvino", "ollama"}
    for group, said in ((entry["said"], said) for entry in asked for said in entry["said"]):
        assert re.search(r"20\d\d-\d\d-\d\d", said.facts()), said
        if "+fused" in said.text:  # the kernel's speed stands beside another runtime's
            about = "".join(other.text + other.facts() for other in group if other.facts() == said.facts())
            assert any(name in about for name in backends), said


def test_a_placements_sentence_has_the_ratios_of_its_trials_and_the_strongest_rivals_file(tmp_path):
    known = headline(tmp_path)
    said, beside = brief.placed(2, known), brief.rivalled(known, [])
    run = rivals.greedy(known[HEADLINE])
    for told, other, shown in ((said, "loop", " ["), (beside, "llamacpp", " [")):
        assert f"{summary.paired_ratio(run.rows, 'loop+fused', other).value:.2f}{shown}" in told.text
    assert beside.text.startswith("On tiny's q4_1 file (97 MB of weights), `loop+fused` is ")
    assert beside.text.endswith(" `loop` on float32 weights runs at 0.42 [0.42, 0.42] times llama.cpp's rate.")
    assert said.facts() == beside.facts()
    assert said.facts().startswith("tiny · 4 + 4 tokens (prompt + answer), n = 12 · ")
    assert "· C, 2 cores, 16 GiB ·" in said.facts()
    assert "C, 2 cores" not in said.facts("C, 2 cores, 16 GiB")
    assert brief.placed(0, headline(tmp_path / "few", ("step", "loop"))) is None
    alone = brief.placed(1, headline(tmp_path / "few", ("step", "loop")))
    assert "no other runtime ran beside it" in alone.facts()
    assert brief.rivalled(headline(tmp_path / "few", ("step", "loop")), []) is None


def test_the_kernel_in_other_runs_is_told_where_there_are_several(tmp_path):
    known = headline(tmp_path)
    rows = [row.model_copy(update=dict(model="tiny")) for row in trials()]
    about = dict(environment=known[HEADLINE].meta["environment"], measured="2026-01-02")
    again = repeats.repeats(
        rivals.greedy(known[HEADLINE]), [], [Machine(dict(about, machine=name), rows) for name in ("a", "b")]
    )
    several, one = (brief.rivalled(known, found).text for found in (again, again[:1]))
    assert " run and 2.00 times in [2 other runs](machines.html#other-runs)." in several
    assert " run and 2.00 times in [another run](machines.html#other-runs)." in one
    assert brief.rivalled({}, again) is None


def test_another_run_says_whether_its_memory_was_as_in_the_headlines(tmp_path):
    rows = engines()
    known = {"09-ollama": recorded(tmp_path, "09-ollama", rows)}
    said = brief.contested(known)
    assert said.about[0] == "tiny"
    assert "decodes at 1.50 [1.50, 1.50] times ik_llama.cpp's rate and 3.00 [" in said.text
    assert "file of unknown size" in said.text
    assert brief.contested({}) is None
    assert "compare rates within" not in said.text
    for name, most in (("09-ollama", 50.0), (brief.HEADLINE, 75.0)):
        chat = [
            rows[0].model_copy(update=dict(run="chat", bandwidth_gbps=99.0))
        ]  # of another run: it has its own limit
        probed = [row.model_copy(update=dict(bandwidth_gbps=most)) for row in rows]
        known[name] = recorded(tmp_path / "probed", name, [*probed, *chat])
    probes = "median bandwidth probe 50 GB/s, not 75"
    assert (
        f" Memory was slower than in the first figure ({probes}): compare rates within a figure."
        in brief.contested(known).text
    )
    known["09-ollama"].meta["environment"]["watch"] = dict(others_cpu=0.5)
    assert (
        f" The machine was busy, and memory was slower than in the first figure ({probes}): compare "
        in brief.contested(known).text
    )


def test_what_python_and_the_device_do_is_counted_in_the_trace(behind):
    known = {table.path.stem: table for table in behind}
    rows, _ = record.read(known["01-what-may-be-jitted"].path, kind=brief.Traced)
    calls = [len(row.host_starts_ns) for name in brief.PLACEMENTS for row in rows if row.subject == name]
    assert re.findall(r"\d+", brief.calls(known).text)[1::4][:2] == [str(n) for n in calls]


def test_without_tables_nothing_is_said():
    assert brief.questions([], {}) == []
    assert len(brief.questions([], {f"{HEADLINE}-rates": {}})) == 0  # an empty figure is none
    assert [entry["question"] for entry in brief.questions([], {f"{HEADLINE}-rates": dict(name="x")})]


def test_an_open_ratio_says_so():
    assert brief.times(Ratio(1.2, 0.9, 1.6, 6)) == f"1.20 [0.90, 1.60] times ({Verdict.UNDECIDED})"


def test_no_number_is_typed():
    """Digits stand in names of tables and types only, never in a sentence's words."""
    words = [q for q, _, _ in brief.QUESTIONS]
    told = (brief.placed, brief.calls, brief.compiled, brief.contested, brief.cached)
    told += (
        *scorecard.COSTS.values(),
        scorecard.table,
        scorecard.on_every_file,
        scorecard.on_one_file,
        rivals.ranging,
        rivals.often,
        readme.on_files,
    )
    for function in told:
        body = inspect.getsource(function).partition('"""')[2].partition('"""')[2]
        words += [re.sub(r"\{[^}]*\}", "", text) for text in re.findall(r'f"([^"]*)"', body)]
    assert len(words) > 15
    assert [text for text in words if re.search(r"\d", re.sub("float32|top1", "", text))] == []
