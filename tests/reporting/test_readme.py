"""What the README says of results is what one run of trials says, and a gap where it says nothing."""

import re
from pathlib import Path

import pytest

from llama_lab.bench import AGAIN, record
from llama_lab.bench.statistics import Ratio
from llama_lab.reporting import readme
from llama_lab.reporting.machines import Machine
from llama_lab.reporting.overview import Recorded, Setting
from llama_lab.sharing import contribution
from tests.bench.test_record import trial

ENVIRONMENT = {"cpu": "C", "cores": 2, "ram_bytes": 2**34, "packages": {"jax": "1"}, "python": "3"}
PACE = {  # ms a token
    "eager": 80, "layer": 40, "step": 10, "loop": 9.5, "step+fused": 2.5, "loop+fused": 2, "llamacpp": 4
}  # fmt: skip
SECTION = dict(name="03-jit-placement", number="03", question="Where?", finding="It is so.", figures=[])


def trials(names=tuple(PACE), noise=0.0):
    """Six blocks in each of two processes, the baseline twice in each."""
    twice = [*names, "step" + AGAIN] if "step" in names else names
    pace = {**PACE, "step" + AGAIN: PACE["step"]}
    return [
        trial(name, block, [k * pace[name] * (1 + 0.001 * block + noise * (-1) ** (block + at)) for k in range(1, 5)],
              run="main", process=process, sampling="greedy")
        for process in range(2) for block in range(6) for at, name in enumerate(twice)
    ]  # fmt: skip


def told(path, section, meta):
    """A table whose meta is known without its file."""
    table = Recorded(Path(path), section)
    vars(table)["meta"] = meta
    return table


def run(names=tuple(PACE), section=SECTION, noise=0.0):
    meta = dict(environment=ENVIRONMENT, created="2026-01-01T00:00:00Z", baseline="step")
    return Setting(told("data/03-jit-placement.csv", section, meta), "", "m", False, trials(names, noise))


def recorded(folder, name, rows, **meta):
    """A table of rows that are written into a folder."""
    path = record.write(folder / f"{name}.csv", rows, environment=ENVIRONMENT, baseline="step")
    return told(path, dict(SECTION, name=name, number=name[:2]), record.read_meta(path) | meta)


def test_the_claim_is_five_ratios_of_one_run_and_what_it_lacks_comes_from_another_which_is_named(tmp_path):
    claim = readme.claim([run()], tmp_path)
    ratios = re.findall(r"([\d.]+) times \[([\d.]+), ([\d.]+)\]", claim)
    assert ratios == [(value,) * 3 for value in ("8.00", "1.05", "4.75", "2.00", "1.60")]
    assert "adds little to jitting one token" in claim
    ladder = run(("eager", "layer", "step", "loop"))
    engines = run(("loop", "loop+fused", "llamacpp"), dict(SECTION, number="10"))
    assert readme.claim([ladder, engines], tmp_path).count("(notebook [10](docs/index.html#n10)'s run)") == 2
    assert "llama.cpp" not in readme.claim([ladder], tmp_path)
    assert readme.claim([], tmp_path) == ""


@pytest.mark.parametrize(
    ("ratio", "words"),
    [
        (Ratio(1.0, 0.99, 1.01, 6), "as fast as b, within 2 %"),
        (Ratio(1.3, 0.9, 1.9, 6), "do not decide"),
        (Ratio(5.0, 2.0, 12.0, 6), "a is faster than b"),  # wider than two
        (Ratio(0.5, 0.4, 0.6, 6), "0.50 times [0.40, 0.60]"),
        (Ratio(12.4, 12.1, 13.0, 6), "12.4 times [12.1, 13.0]"),
    ],
)
def test_a_number_stands_only_where_trials_decide(ratio, words):
    assert words in readme.compared("a", "b", ratio)


def test_rows_gaps_where_the_run_lacks_one_and_what_is_not_decided():
    rows = {row[0]: row[3:] for row in readme.table(run()).rows}
    assert [*rows] == [f"`{name}`" for name in readme.SUBJECTS]
    assert (rows["`step`"][1], rows["`loop+fused`"][1]) == ("1", "5.00 [5.00, 5.00]")
    assert re.fullmatch(r"49\d\.\d \[49\d\.\d, 49\d\.\d\]", rows["`loop+fused`"][0])
    gaps = {row[0] for row in readme.table(run(("eager", "step", "loop"))).rows if row[3] == "not in this run"}
    assert gaps == {"`layer`", "`step+fused`", "`loop+fused`", "`llamacpp`"}
    rows = {row[0]: row for row in readme.table(run(noise=0.2)).rows}
    assert rows["`loop`"][-2].endswith((", unstable", ", inconclusive"))


def test_the_machine_stands_once_with_n_the_control_and_what_is_missing():
    quiet, noisy = readme.about(run(("step", "loop"))), readme.about(run(("step",), noise=0.2))
    assert quiet.startswith("Medians of 12 answers of 4 + 4 tokens (prompt + answer) by m in 2 processes")
    assert "`step` against itself 1.00 [1.00, 1.00] (" in quiet
    assert "Not in it: `eager`, `layer`, `step+fused`, `loop+fused` and `llamacpp`." in quiet
    assert quiet.endswith("Measured 2026-01-01 on C, 2 cores, 16 GiB · jax 1, Python 3.")
    assert re.search(r"against itself [\d.]+ \[[^]]*\], (faster|slower|unstable)", noisy)


def test_the_run_with_most_rows_comes_first_without_drawn_answers_and_first_tokens(tmp_path):
    names = {"01-a": ("step", "loop"), "05-b": ("eager", "step", "loop"), "04-c": ("loop",)}
    behind = [recorded(tmp_path, name, trials(subjects)) for name, subjects in names.items()]
    for name, changes in (("06", dict(sampling="temperature 0.6")), ("07", dict(new_tokens=1, token_times_ns=[10**6]))):
        behind.append(recorded(tmp_path, name, [t.model_copy(update=changes) for t in trials(("step", "loop"))]))
    assert [run.table.section["number"] for run in readme.runs(behind)] == ["05", "01"]
    assert readme.known(readme.runs(behind)[0]) == ["eager", "step", "loop"]


def test_the_block_shows_one_picture_and_how_findings_begin_and_links_to_what_is_there(tmp_path):
    figures = [dict(name="03-a", caption="Rates."), dict(name="03-b", caption="More.")]
    sections = [
        dict(SECTION, figures=figures),
        dict(SECTION, name="08-fewer-bits", number="08", question="Bits?", finding="It is 2x. And much more."),
        dict(SECTION, name="77-made", number="77", question="Else?", finding="Nothing."),
    ]
    text = tmp_path / "docs" / "notebooks" / "77-made.md"
    text.parent.mkdir(parents=True)
    text.write_text("# Else?")
    block = readme.block(sections, [run()], tmp_path, {"08-fewer-bits": " (one process)"})
    assert re.findall(r"!\[.*\)", block) == ["![Rates.](figures/03-a.svg)"]
    assert "- [Bits?](docs/index.html#n08) It is 2x. (one process)\n" in block
    assert block.endswith("Asked as well: [Where?](docs/index.html#n03) · [Else?](docs/notebooks/77-made.md)")
    assert "- [Where?]" not in block  # the claim has said how it begins


def test_in_how_many_processes_and_where_a_line_was_measured_stands_behind_it(tmp_path):
    rows = trials(("step", "loop"))
    one, three = ([t.model_copy(update=dict(process=t.block % many)) for t in rows] for many in (1, 3))
    load = recorded(tmp_path, "19-load", one, kind="Arrival")  # not timed in turn
    assert readme.scopes([recorded(tmp_path, "01-one", one), recorded(tmp_path, "03-three", three), load]) == {
        "01-one": " (one process on C)", "03-three": " (3 processes on C)", "19-load": " (on C)"
    }  # fmt: skip


def test_only_what_stands_between_the_marks_is_written(tmp_path):
    path = tmp_path / "README.md"
    readme.refresh(tmp_path, [SECTION], [])
    assert not path.exists()
    for text in ("no marks", f"{readme.BEGIN}, and no end"):
        path.write_text(text)
        readme.refresh(tmp_path, [SECTION], [])
        assert path.read_text() == text
    path.write_text(f"before\n{readme.BEGIN}\nold\n{readme.END}\nafter")
    readme.refresh(tmp_path, [dict(SECTION, name="77-made", number="77")], [])
    expected = "Asked as well: [Where?](docs/index.html#n77)"
    assert path.read_text() == f"before\n{readme.BEGIN}\n{expected}\n{readme.END}\nafter"
    recorded(tmp_path / "data", contribution.HEADLINE, trials())  # measured for it: it stands before the notebooks'
    readme.refresh(tmp_path, [SECTION], [recorded(tmp_path / "data", "03-jit-placement", trials(("step", "loop")))])
    assert f"([trials](data/{contribution.HEADLINE}.csv))" in path.read_text()
    assert "not in this run" not in path.read_text()


def test_the_same_at_other_times_and_on_other_processors_has_its_own_line():
    """A less favourable repetition on the same processor is not left out."""

    def machine(measured, names=tuple(PACE), **environment):
        return Machine(dict(machine="m", measured=measured, environment=ENVIRONMENT | environment), trials(names))

    itself, again = machine(run().table.meta["created"]), machine("2026-01-02T00:00:00Z")
    other = machine("2026-01-03T00:00:00Z", cpu="D", kernels="avx2")
    text = readme.elsewhere(run(), [itself, again, other])
    assert ", 2026-01-02 on C, 2 cores: `step` over" in text
    assert "; 2026-01-03 on D, 2 cores, kernels avx2: `step` over" in text
    assert "`loop+fused` over `llamacpp` 2.00x [2.00, 2.00]" in text
    assert text.count("over `eager`") == 2
    assert readme.elsewhere(run(), [itself]) == ""
    assert "llamacpp" not in readme.elsewhere(run(), [machine("2026-01-03T00:00:00Z", ("eager", "step"))])
