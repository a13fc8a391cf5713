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
    assert "adds little to compiling one token" in claim
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


def test_the_machine_stands_once_with_n_the_control_and_what_is_missing():
    quiet, noisy = readme.about(run(("step", "loop"))), readme.about(run(("step",), noise=0.2))
    assert quiet.startswith("Medians of 12 answers of 4 + 4 tokens (prompt + answer) by m in 2 processes")
    assert "A/A control 1.00 [1.00, 1.00] (" in quiet
    assert "Not in it: `eager`, `layer`, `step+fused`, `loop+fused` and `llamacpp`." in quiet
    assert quiet.endswith("Measured 2026-01-01 on C, 2 cores, 16 GiB · jax 1, Python 3.")
    assert re.search(r"A/A control [\d.]+ \[[^]]*\], .+ \(pairs scatter by \d+ %\)", noisy)


def test_the_run_with_most_rows_comes_first_without_drawn_answers_and_first_tokens(tmp_path):
    names = {"01-a": ("step", "loop"), "05-b": ("eager", "step", "loop"), "04-c": ("loop",)}
    behind = [recorded(tmp_path, name, trials(subjects)) for name, subjects in names.items()]
    for name, changes in (("06", dict(sampling="temperature 0.6")), ("07", dict(new_tokens=1, token_times_ns=[10**6]))):
        behind.append(recorded(tmp_path, name, [t.model_copy(update=changes) for t in trials(("step", "loop"))]))
    assert [run.table.section["number"] for run in readme.runs(behind)] == ["05", "01"]
    assert readme.known(readme.runs(behind)[0]) == ["eager", "step", "loop"]


def test_the_block_shows_one_picture(tmp_path):
    figures = [dict(name="03-a", caption="Rates."), dict(name="03-b", caption="More.")]
    block = readme.block([dict(SECTION, figures=figures)], [run()], tmp_path)
    assert re.findall(r"!\[.*\)", block) == ["![Rates.](figures/03-a.svg)"]
    assert readme.block([SECTION], [], tmp_path) == ""


def test_the_strongest_rivals_least_and_most_favourable_ratios_are_told(tmp_path):
    """On each file the fastest of our placements, beside the fastest of the others."""
    pace = {  # ms a token on each file
        "a": {"step+fused": 3, "loop+fused": 2, "llamacpp": 4, "openvino": 8}, "b": {"loop+fused": 5, "llamacpp": 4.5}
    }  # fmt: skip
    rows = [
        trial(name, block, [k * ms * (1 + 0.001 * block) for k in range(1, 9)], run=file,
              backend="jax" if "+" in name else name, prompt_tokens=56)
        for file, engines in pace.items() for block in range(6) for name, ms in engines.items()
    ]  # fmt: skip
    text = readme.rivals([recorded(tmp_path, readme.RIVALS[0], rows)], tmp_path)
    assert "0.90 times [0.90, 0.90] (llamacpp, `b` after 64 tokens, C)" in text
    assert "2.00 times [2.00, 2.00] (llamacpp, `a` after 64 tokens, C)" in text
    assert readme.rivals([recorded(tmp_path, "03-jit-placement", rows)], tmp_path) == ""


def test_only_what_stands_between_the_marks_is_written(tmp_path):
    path = tmp_path / "README.md"
    readme.refresh(tmp_path, [SECTION], [])
    assert not path.exists()
    for text in ("no marks", f"{readme.BEGIN}, and no end"):
        path.write_text(text)
        readme.refresh(tmp_path, [SECTION], [])
        assert path.read_text() == text
    path.write_text(f"before\n{readme.BEGIN}\nold\n{readme.END}\nafter")
    figure = dict(name="03-a", caption="Rates.")
    readme.refresh(tmp_path, [dict(SECTION, figures=[figure])], [])
    assert path.read_text() == f"before\n{readme.BEGIN}\n![Rates.](figures/03-a.svg)\n{readme.END}\nafter"
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
    assert text.endswith("2.00 times [2.00, 2.00] on C and 2.00 times [2.00, 2.00] on D.")
    assert readme.elsewhere(run(), [itself]) == ""
    assert readme.elsewhere(run(), [machine("2026-01-03T00:00:00Z", ("eager", "step"))]) == ""
