"""What the README says of results is what one run of trials says, and a gap where it says nothing."""

import re

import pytest

from llama_lab.bench import AGAIN, record
from llama_lab.bench.statistics import Ratio
from llama_lab.reporting import overview, readme
from llama_lab.reporting.machines import Machine
from llama_lab.sharing import contribution
from tests.bench.test_record import trial

ENVIRONMENT = {"cpu": "C", "cores": 2, "ram_bytes": 2**34, "packages": {"jax": "1"}, "python": "3"}
PACE = {
    "eager": 80,
    "layer": 40,
    "step": 10,
    "loop": 9.5,
    "step+fused": 2.5,
    "loop+fused": 2,
    "llamacpp": 4,
}  # ms a token
SECTION = dict(name="03-jit-placement", number="03", question="Where?", finding="It is so.", figures=[])


def trials(names=tuple(PACE), noise=0.0, **changes):
    """Six blocks in each of two processes, the baseline twice in each."""
    twice = [*names, "step" + AGAIN] if "step" in names else names
    pace = {**PACE, "step" + AGAIN: PACE["step"]}
    return [
        trial(name, block, [k * pace[name] * (1 + 0.001 * block + noise * (-1) ** (block + at)) for k in range(1, 5)],
              run="main", process=process, sampling="greedy", **changes)
        for process in range(2) for block in range(6) for at, name in enumerate(twice)
    ]  # fmt: skip


def run(names=tuple(PACE), section=SECTION, noise=0.0):
    meta = dict(environment=ENVIRONMENT, created="2026-01-01T00:00:00Z", baseline="step")
    return readme.Run(section, overview.Path("data/03-jit-placement.csv"), meta, trials(names, noise))


def cells(table):
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()]


def test_the_claim_is_five_ratios_of_one_run():
    said = readme.claim([run()])
    assert said.startswith("Jitting one token is 8.00 times [8.00, 8.00] as fast as jitting nothing. ")
    assert "Jitting the whole answer adds little to jitting one token: 1.05 times [1.05, 1.05]. " in said
    assert "is 4.75 times [4.75, 4.75] as fast as the same loop on float32 weights. " in said
    assert " It is 2.00 times [2.00, 2.00] as fast as llama.cpp on the same file. " in said
    assert said.endswith("as llama.cpp does here, it is 1.60 times [1.60, 1.60] as fast as llama.cpp.")


def test_what_one_run_lacks_comes_from_another_which_is_named():
    ladder = run(("eager", "layer", "step", "loop"))
    engines = run(("loop", "loop+fused", "llamacpp"), dict(SECTION, number="10"))
    said = readme.claim([ladder, engines])
    assert said.count("(notebook 10's run)") == 2
    assert readme.claim([ladder]).count(".") - readme.claim([ladder]).count(". ") < said.count(".")
    assert "llama.cpp" not in readme.claim([ladder])


@pytest.mark.parametrize(
    ("ratio", "words"),
    [
        (Ratio(1.0, 0.99, 1.01, 6), "a is as fast as b, within 2 %"),
        (Ratio(1.3, 0.9, 1.9, 6), "whether a is faster than b these trials do not decide"),
        (Ratio(5.0, 2.0, 12.0, 6), "a is faster than b"),  # wider than two
        (Ratio(0.5, 0.4, 0.6, 6), "a is 0.50 times [0.40, 0.60] as fast as b"),
        (Ratio(12.4, 12.1, 13.0, 6), "a is 12.4 times [12.1, 13.0] as fast as b"),
    ],
)
def test_a_number_stands_only_where_trials_decide(ratio, words):
    assert readme.compared("a", "b", ratio) == words


def test_rows_and_gaps_where_the_run_lacks_one():
    head, _, *rows = cells(readme.table(run()))
    assert [row[0] for row in rows] == [f"`{name}`" for name in readme.SUBJECTS]
    assert head[-2:] == ["times `step`'s [95 %]", "of the limit"]
    found = {row[0]: row[3:] for row in rows}
    assert found["`step`"][1] == "1"
    assert found["`loop+fused`"][1] == "5.00 [5.00, 5.00]"
    assert re.fullmatch(r"49\d\.\d \[49\d\.\d, 49\d\.\d\]", found["`loop+fused`"][0])
    gaps = {row[0] for row in cells(readme.table(run(("eager", "step", "loop"))))[2:] if row[3] == "not in this run"}
    assert gaps == {"`layer`", "`step+fused`", "`loop+fused`", "`llamacpp`"}


def test_a_ratio_that_is_not_decided_says_so():
    rows = {row[0]: row for row in cells(readme.table(run(noise=0.2)))}
    assert rows["`loop`"][-2].endswith((", unstable", ", inconclusive"))


def test_the_machine_stands_once_with_n_and_what_is_missing():
    said = readme.about(run(("step", "loop")))
    assert said.startswith("Medians of 12 answers of 4 + 4 tokens (prompt + answer) by m in 2 processes")
    assert "`step` against itself 1.00 [1.00, 1.00]" in said
    assert "Not in it: `eager`, `layer`, `step+fused`, `loop+fused` and `llamacpp`." in said
    assert said.endswith("Measured 2026-01-01 on C, 2 cores, 16 GiB · jax 1, Python 3.")


def test_a_control_that_differs_says_so_once():
    noisy = readme.about(run(("step",), noise=0.2))
    (control,) = re.findall(r"against itself [\d.]+ \[[^]]*\]([^(;]*)", noisy)
    assert control.strip(" ,") in ("faster", "slower", "unstable")
    assert "control" not in noisy


def test_the_run_with_most_rows_comes_first(tmp_path):
    behind = []
    for name, names in (("01-a", ("step", "loop")), ("05-b", ("eager", "step", "loop")), ("04-c", ("loop",))):
        path = record.write(tmp_path / f"{name}.csv", trials(names), environment=ENVIRONMENT, baseline="step")
        behind.append((dict(SECTION, name=name, number=name[:2]), path, overview.about(path)))
    assert [found.section["number"] for found in readme.runs(behind)] == ["05", "01"]
    assert readme.runs(behind)[0].known == ["eager", "step", "loop"]


def test_drawn_answers_and_first_tokens_are_no_rows(tmp_path):
    rows = trials(("step", "loop"))
    drawn = [t.model_copy(update=dict(sampling="temperature 0.6")) for t in rows]
    first = [t.model_copy(update=dict(new_tokens=1, token_times_ns=[10**6])) for t in rows]
    for name, made in (("01-drawn", drawn), ("02-first", first)):
        path = record.write(tmp_path / f"{name}.csv", made, environment=ENVIRONMENT)
        assert readme.runs([(SECTION, path, overview.about(path))]) == []


def test_a_notebooks_text_is_linked_where_there_is_one(tmp_path):
    assert readme.page(SECTION, tmp_path) == "docs/index.html#n03"
    text = tmp_path / "docs" / "notebooks" / "03-jit-placement.md"
    text.parent.mkdir(parents=True)
    text.write_text("# Where?")
    assert readme.page(SECTION, tmp_path) == "docs/notebooks/03-jit-placement.md"


def test_the_block_shows_one_picture_and_how_findings_begin(tmp_path):
    figures = [dict(name="03-a", caption="Rates."), dict(name="03-b", caption="More.")]
    found = [
        dict(SECTION, figures=figures),
        dict(SECTION, name="08-fewer-bits", number="08", question="Bits?", finding="It is 2x. And much more."),
        dict(SECTION, name="77-made", number="77", question="Else?", finding="Nothing."),
    ]
    text = readme.block(found, [run()], tmp_path)
    assert text.count("![") == 1
    assert "![Rates.](figures/03-a.svg)" in text
    assert "- [Bits?](docs/index.html#n08) It is 2x.\n" in text
    assert text.endswith("Asked as well: [Where?](docs/index.html#n03) · [Else?](docs/index.html#n77)")
    assert "- [Where?]" not in text  # the claim has said how it begins
    assert "It is 2x. (one process)\n" in readme.block(found, [], tmp_path, {"08-fewer-bits": " (one process)"})


def test_in_how_many_processes_and_where_a_line_was_measured_stands_behind_it(tmp_path):
    rows = trials(("step", "loop"))
    several = [t.model_copy(update=dict(process=t.block % 3)) for t in rows]
    behind = []
    for name, made in (("01-one", [t.model_copy(update=dict(process=0)) for t in rows]), ("03-three", several)):
        path = record.write(tmp_path / f"{name}.csv", made, environment=ENVIRONMENT)
        behind.append((dict(name=name), path, overview.about(path)))
    behind.append((dict(name="19-load"), path, overview.about(path) | dict(kind="Arrival")))  # not timed in turn
    assert readme.scopes(behind) == {
        "01-one": " (one process on C)", "03-three": " (3 processes on C)", "19-load": " (on C)"
    }  # fmt: skip


def test_only_what_stands_between_the_marks_is_written(tmp_path):
    path = tmp_path / "README.md"
    readme.refresh(tmp_path, [SECTION], [])
    assert not path.exists()
    path.write_text("no marks")
    readme.refresh(tmp_path, [SECTION], [])
    assert path.read_text() == "no marks"
    path.write_text(f"before\n{readme.BEGIN}\nold\n{readme.END}\nafter")
    readme.refresh(tmp_path, [dict(SECTION, name="77-made", number="77")], [])
    expected = "Asked as well: [Where?](docs/index.html#n77)"
    assert path.read_text() == f"before\n{readme.BEGIN}\n{expected}\n{readme.END}\nafter"


def test_the_table_measured_for_it_stands_before_the_notebooks(tmp_path):
    path = tmp_path / "README.md"
    path.write_text(f"{readme.BEGIN}\n{readme.END}")
    for name, pace in ((contribution.HEADLINE, 2.0), ("03-jit-placement", 1.0)):
        rows = [
            t.model_copy(update=dict(token_times_ns=[round(pace * ns) for ns in t.token_times_ns])) for t in trials()
        ]
        record.write(tmp_path / "data" / f"{name}.csv", rows, environment=ENVIRONMENT, baseline="step")
    table = tmp_path / "data" / "03-jit-placement.csv"
    readme.refresh(tmp_path, [SECTION], [(SECTION, table, overview.about(table))])
    said = path.read_text()
    assert f"([trials](data/{contribution.HEADLINE}.csv))" in said
    assert "not in this run" not in said
    assert "notebook" not in said.partition("\n")[0]


def test_the_same_at_other_times_and_on_other_processors_has_its_own_line():
    """A less favourable repetition on the same processor is not left out."""
    here, about = run(), dict(version="1", features=(), baseline="step")
    itself, again = (
        Machine(name=at, environment=ENVIRONMENT, trials=here.trials, measured=at, **about)
        for at in (here.meta["created"], "2026-01-02T00:00:00Z")
    )
    other = Machine(name="other", environment=ENVIRONMENT | dict(cpu="D", kernels="avx2"), trials=here.trials,
                    measured="2026-01-03T00:00:00Z", **about)  # fmt: skip
    said = readme.elsewhere(here, [itself, again, other])
    assert said.startswith("The same run at another time or on another [machine](docs/machines.html), 2026-01-02 on C,")
    assert " 2026-01-02 on C, 2 cores: `step` over" in said
    assert "; 2026-01-03 on D, 2 cores, kernels avx2: `step` over" in said
    assert "`loop+fused` over `llamacpp` 2.00x [2.00, 2.00]" in said
    assert said.count("over `eager`") == 2
    assert readme.elsewhere(here, [itself]) == ""
    few = Machine(name="few", environment=other.environment, trials=run(("eager", "step")).trials,
                  measured=other.measured, **about)  # fmt: skip
    assert "llamacpp" not in readme.elsewhere(here, [few])
