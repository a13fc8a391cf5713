"""What the README says of results is what one run of trials says, and a gap where it says nothing."""

import re
from dataclasses import replace
from functools import partial
from pathlib import Path

from markupsafe import escape

from llama_lab.bench import AGAIN, record
from llama_lab.bench.provenance import UNKNOWN
from llama_lab.bench.statistics import Ratio
from llama_lab.experiments.compiled_kernels import sizes
from llama_lab.experiments.host_loop.clock import HostTrial
from llama_lab.experiments.what_serving_needs import table
from llama_lab.experiments.what_serving_needs.finding import briefly
from llama_lab.experiments.what_serving_needs.measure import Request
from llama_lab.reporting import gains, readme, repeats
from llama_lab.reporting.machines import Machine
from llama_lab.reporting.overview import Recorded, Setting
from llama_lab.reporting.rivals import Case
from llama_lab.sharing import contribution
from tests.bench.test_record import trial
from tests.experiments.what_serving_needs.made import NOTES, P, campaign

ENVIRONMENT = {"cpu": "C", "cores": 2, "ram_bytes": 2**34, "packages": {"jax": "1"}, "python": "3"}
PACE = {  # ms a token
    "eager": 80, "layer": 40, "step": 10, "loop": 9.5, "step+fused": 2.5, "loop+fused": 2, "llamacpp": 4
}  # fmt: skip
SECTION = dict(name="02-jit-placement", number="02", question="Where?", finding="It is so.", figures=[])


def here(section):
    return f"n{section['number']}"


def trials(names=tuple(PACE), noise=0.0):
    """Six blocks in each of two processes, the baseline twice in each."""
    twice = [*names, "step" + AGAIN] if "step" in names else names
    pace = {**PACE, "step" + AGAIN: PACE["step"]}
    return [
        trial(name, block, [k * pace[name] * (1 + 0.001 * block + noise * (-1) ** (block + at)) for k in range(1, 5)],
              run="main", process=process, sampling="greedy")
        for process in range(2) for block in range(6) for at, name in enumerate(twice)
    ]  # fmt: skip


def engines():
    """Six blocks of two placements and two other runtimes."""
    pace = {"loop": ("jax", 8), "loop+fused": ("jax", 2), "ik-llamacpp": ("ik_llama.cpp", 3), "ollama": ("ollama", 6)}
    return [
        trial(name, block, [k * ms * (1 + 0.001 * block) for k in range(1, 5)], run="main", backend=backend,
              model="tiny", sampling="greedy")
        for block in range(6) for name, (backend, ms) in pace.items()
    ]  # fmt: skip


def told(path, section, meta):
    """A table whose meta is known without its file."""
    table = Recorded(Path(path), section)
    vars(table)["meta"] = meta
    return table


def run(names=tuple(PACE), section=SECTION, noise=0.0):
    meta = dict(environment=ENVIRONMENT, created="2026-01-01T00:00:00Z", baseline="step")
    return Setting(told("data/02-jit-placement.csv", section, meta), "", "m", False, trials(names, noise))


def recorded(folder, name, rows, **meta):
    """A table of rows that are written into a folder."""
    path = record.write(folder / f"{name}.csv", rows, type(rows[0]), environment=ENVIRONMENT, baseline="step")
    return told(path, dict(SECTION, name=name, number=name[:2]), record.read_meta(path) | meta)


def test_the_machine_stands_once_with_n_the_control_and_what_is_missing():
    quiet, noisy = readme.about(run(("step", "loop"))), readme.about(run(("step",), noise=0.2))
    assert quiet.startswith("Each rate is the median of 12 answers in 2 processes ")
    assert "`step` against itself, the A/A control: 1.00 [1.00, 1.00]. " in quiet
    assert "Not in it: `eager`, `layer`, `step+fused`, `loop+fused` and `llamacpp`." in quiet
    assert "Measured 2026-01-01 on C, 2 cores, 16 GiB · jax 1, Python 3 (" in quiet
    assert re.search(r"`step` against itself, the A/A control: [\d.]+ \[[^]]*\], .+ \(pairs scatter by \d+%\)", noisy)
    probed = run(("step", "loop"))
    probed.table.meta["bandwidth_gbps"] = dict(main=dict(min=0.5, median=0.8, max=1.0, n=4))
    assert " The limit is the fastest bandwidth probe, 1 GB/s (median 1). " in readme.about(probed)


def test_the_block_shows_one_picture():
    figures = [dict(name="03-a", caption="Rates."), dict(name="03-b", caption="More.")]
    block = readme.claimed([dict(SECTION, figures=figures)], [run()], here)
    assert re.findall(r'<img src="(.*?)".* alt="(.*?)">', block) == [("figures/03-a.svg", "Rates.")]
    assert readme.claimed([SECTION], [], here) == ""


def test_only_what_stands_between_the_marks_is_written(tmp_path):
    path = tmp_path / "README.md"
    readme.refresh(tmp_path, [SECTION], [])
    assert not path.exists()
    begin, end = readme.ANSWER
    for text in ("no marks", f"{begin}, and no end"):
        path.write_text(text)
        readme.refresh(tmp_path, [SECTION], [])
        assert path.read_text() == text
    below, rest = readme.BESIDE
    path.write_text(f"before\n{begin}\nold\n{end}\nbetween\n{below}\nold\n{rest}\nafter")
    figure = dict(name="03-a", caption="Rates.")
    readme.refresh(tmp_path, [dict(SECTION, figures=[figure])], [])
    written = path.read_text().splitlines()
    assert [*written[:2], *written[-6:]] == ["before", begin, end, "between", below, "", rest, "after"]
    assert 'src="figures/03-a.svg"' in written[2]
    assert [line.count("|") for line in written[4:-6]] == [5] * (2 + len(gains.PLACES))
    statistics = tmp_path / "docs" / "statistics.md"
    statistics.parent.mkdir()
    statistics.write_text("\n".join(readme.ABOUT))
    known = {"llamacpp": dict(backend="llama.cpp", dtype="q4_1")}
    rows = [row.model_copy(update=dict(model="tiny") | known.get(row.subject, {})) for row in trials()]
    contest = recorded(tmp_path / "contest", "09-ollama", rows)
    readme.refresh(tmp_path, [SECTION], [contest])
    assert "[notebook 09](docs/index.html#n09)" in path.read_text()
    recorded(tmp_path / "data", contribution.HEADLINE, trials())  # measured for it: it stands before the notebooks'
    readme.refresh(tmp_path, [SECTION], [recorded(tmp_path / "data", "02-jit-placement", trials(("step", "loop")))])
    assert f"([trials](../data/{contribution.HEADLINE}.csv))" in statistics.read_text()
    assert "Not in it:" not in statistics.read_text()


def test_llama_cpp_stands_beside_the_kernel_and_beside_the_loop_without_it():
    said = readme.distances(run(), [], [], "m")
    assert "is 2.00 [2.00, 2.00] times as fast as llama.cpp. Without the kernel, `loop` on float32 weights " in said
    assert readme.beside([run()], [], here, []) == said
    assert readme.distances(run(("step", "loop", "loop+fused")), [], [], "m") == ""
    assert readme.beside([], [], here, []) == ""


def test_a_separate_run_of_the_same_model_has_ollama(tmp_path):
    changes = {"llamacpp": dict(subject="ollama", backend="ollama", dtype="q4_1")}
    rows = [row.model_copy(update=dict(model="tiny") | changes.get(row.subject, {})) for row in trials()]
    contest, alone = recorded(tmp_path, "09-ollama", rows), readme.distances(replace(run(), model="tiny"), [], [], "m")
    said = readme.distances(replace(run(), model="tiny"), [contest], [], "m")
    own, kernelless = alone.split(" Without the kernel")
    other = f" In a separate run ({UNKNOWN}) it is 2.00 [2.00, 2.00] times as fast as Ollama, the fastest other runtime"
    kernelless = kernelless.removesuffix(".") + " in the first figure's run, and in notebook 09"
    beside = f"{kernelless} at 0.42 [0.42, 0.42] times Ollama's rate."
    assert said == f"{own}{other} there. Without the kernel{beside}"
    assert readme.distances(run(), [contest], [], "m") == readme.distances(run(), [], [], "m")


def machine(measured, rows, name="m", **environment):
    return Machine(dict(machine=name, measured=measured, environment=ENVIRONMENT | environment), rows)


def slower(factor):
    """Trials in which the kernel takes so many times as long."""
    return [
        row.model_copy(update=dict(token_times_ns=[int(factor * ns) for ns in row.token_times_ns]))
        if row.subject == readme.BEST
        else row
        for row in trials()
    ]


def test_the_build_of_llama_cpp_is_named(monkeypatch, tmp_path):
    packages = {readme.LLAMA_CPP_PACKAGE: "0.3", "jax": "1"}
    timed = run()
    vars(timed.table)["meta"] = timed.table.meta | dict(environment=ENVIRONMENT | dict(packages=packages))
    said = (
        "llama.cpp (llama-cpp-python 0.3) is [called as llama-bench calls it, plus an arg-max](peers.md), with as many"
    )
    assert f"{said} threads as ours, and runs at " in readme.about(timed)
    monkeypatch.setattr(readme.llama_bench, "TABLE", tmp_path / "none.csv")
    assert readme.about(timed).count("with as many threads as ours. ") == 1


def test_other_runs_are_a_line_each_from_the_least_to_the_most():
    known = [machine("2026-01-02", slower(0.8), "far", cpu="D"), machine("2026-01-03", slower(1.6), "near")]
    other = run(section=dict(SECTION, page="notebooks/02.html"))
    found = repeats.repeats(run(), [other], known)
    assert [repeat.where for repeat in found] == ["near", "far"]  # a copy of the run itself is not another run
    turns = [turn for row in trials() for turn in (row, row.model_copy(update=dict(prompt=1)))]
    settings = [Setting(other.table, name, "m", False, rows) for name, rows in (("long", trials()), ("chat", turns))]
    found = repeats.repeats(run(), settings, known)
    rows = repeats.table(found).rows
    assert [row[-2].words for row in rows] == ["1.25", "2.00", "2.50"]
    assert {row[-1] for row in rows} == {None}  # ik_llama.cpp did not run
    assert str(rows[1][0]) == "[02-jit-placement · long](notebooks/02.md)"
    assert escape(rows[1][0]) == '<a href="notebooks/02.html">02-jit-placement · long</a>'
    assert rows[2][:3] == ("far", "D", "2026-01-02")
    assert rows[2][4:7] == ("4 + 4", "12 in 2", "623")


def test_the_same_in_other_runs_is_told_from_the_least_to_the_most():
    """A less favourable repetition on the same processor is not left out."""
    itself = machine(run().table.meta["created"], trials())
    found = [itself, machine("2026-01-02", slower(1.6), "a"),
             machine("2026-01-03", slower(0.8), "b", cpu="D", kernels="avx2")]  # fmt: skip

    def line(known):
        return repeats.ranging(repeats.repeats(run(), [run()], known), "2 times", repeats.MACHINES)

    said = " run and 1.25 to 2.50 times in [2 other runs](docs/machines.md#other-runs) (cause of the spread "
    assert said in line(found)
    wide = [  # in one of two processes the kernel takes a ninth of the time
        row.model_copy(update=dict(token_times_ns=[ns // 9 for ns in row.token_times_ns]))
        if row.subject == readme.BEST and row.process
        else row
        for row in trials()
    ]
    assert ", faster in 2 of 3, undecided in 1 (" in line([*found, machine("2026-01-04", wide)])
    alone = line([machine("2026-01-03", trials(("eager", "step")))])
    assert line([itself]) == alone == "2 times as fast as llama.cpp"


def test_the_answer_says_what_jit_gains_before_the_kernel_and_is_bold_first():
    said = readme.answer([run()], [], here)
    about = "Measured with m, 4 + 4 tokens (prompt + greedy answer), on C, "
    parts = (about, "`loop`, the whole answer in one program, is ", "<br>`loop+fused`, whose ", "<br>On m's ")
    assert re.match(r"\*\*Put one `jax.jit` .*\*\* " + ".*".join(map(re.escape, parts)), said)
    assert (
        "`loop+fused` is 2.00 times as fast as llama.cpp; `loop`, on float32 weights, is 0.42 times as fast as" in said
    )
    assert said.endswith(readme.READ)
    again = repeats.repeats(run(), [], [machine("2026-01-02", slower(1.6)), machine("2026-01-03", slower(0.8), "n")])
    spread = "as fast as llama.cpp (1.25 to 2.50 in [2 other runs](docs/machines.md#other-runs)); `loop`,"
    assert spread in readme.answer([run()], [], here, again)
    ladder, engines = run(("eager", "step")), run(("loop", "loop+fused", "llamacpp"), dict(SECTION, number="09"))
    assert "(notebook 09).<br>" in readme.answer([ladder, engines], [], here)
    assert readme.answer([run(("eager", "step"))], [], here).count("**") == 2
    assert readme.answer([], [], here) == ""


def test_the_lead_over_llama_cpp_has_its_range_over_other_runs():
    again = repeats.repeats(run(), [], [machine("2026-01-02", slower(1.6)), machine("2026-01-03", slower(0.8), "n")])
    said = (
        "2 times as fast as llama.cpp in the first figure's run and 1.25 to 2.50 times in [2 other runs](m#other-runs) "
    )
    assert repeats.ranging(again, "2 times", "m").startswith(f"{said}(cause of")
    assert repeats.far_apart(again)
    assert not repeats.far_apart([again[0]] * 2)
    assert "cause" not in repeats.ranging([again[0]] * 2, "2 times", "m")
    assert " run and 1.25 times in [another run](m#other-runs)" in repeats.ranging(again[:1], "2 times", "m")


def test_the_place_of_a_server_says_what_was_found_under_load_and_where(tmp_path):
    path = record.write(tmp_path / f"{readme.SERVED}.csv", campaign(), Request, environment=ENVIRONMENT)
    meta = dict(environment=ENVIRONMENT, processes=NOTES, parameters=P)
    under_load, link = told(path, dict(SECTION, number="10"), meta), "[notebook 10](n10)"
    said = briefly(table.rising(table.loads(campaign(), NOTES), meta))
    assert readme.serving([under_load], here) == f"{said}. One run each, on C ({link})"
    assert readme.serving([under_load], here, here="C") == f"{said}. One run each ({link})"
    assert readme.serving([run().table], here) == ""


def test_the_loop_in_the_smallest_model_is_told_beside_the_headlines(tmp_path):
    spent = dict.fromkeys(("calls", "dispatch_ns", "fetch_ns", "text_ns", "cpu_ns", "reader_cpu_ns", "wall_ns"), 1)
    changes = spent | dict(run="strategies random:a", model="random:a", weights_read=107_000)
    rows = [HostTrial(**row.model_dump() | changes) for row in trials(("step", "loop"))]
    found = recorded(tmp_path, readme.SIZES, rows)
    said = "On [a model of 0.1M random weights](n12), `loop` is only 1.05 times as fast as `step`."
    assert readme.smallest(run(), [found], here) == said
    assert f" tokens/s). {said}" in readme.answer([run()], [found], here)
    slow = dict(spent, fetch_ns=9, run="strategies m", weights_read=10**8)
    own = [HostTrial(**row.model_dump() | slow | dict(model=run().model)) for row in trials(("step", "loop"))]
    both, named = recorded(tmp_path / "both", readme.SIZES, [*rows, *own]), run()
    named = replace(named, rows=[row.model_copy(update=dict(model=run().model)) for row in named.rows])
    assert "weights](n12), where launching programs takes a larger part of" in readme.smallest(named, [both], here)
    assert readme.smallest(run(), [], here) == ""


def test_fewer_instructions_are_told_apart_from_the_files_as_they_run():
    def cases(*ratios, what=sizes.DECODE):
        made = [
            Case(
                dict(
                    what=what,
                    tokens=4,
                    file=f"m{limit}",
                    name="k",
                    ratio=Ratio(r, 0.9 * r, 1.1 * r, 9, 1 if r == 3 else 5),
                ),
                frozenset("o"),
                run().table,
            )
            for r, limit in ratios
        ]
        for case in made:
            case.entry["first"] = run().rows[0]
        return made

    prompts = partial(cases, what=sizes.PREFILL)
    own, fewer = [(2.0, ""), (3.0, "")], [(0.5, "/avx2")]
    said = readme.on_files([*cases(*own, *fewer), *prompts((4.0, ""), *fewer, (0.4, "/avx2"))])
    first = (
        "`k` writes answers at 2.00 to 3.00 times and reads prompts at 4.00 times the rate of o (faster in all 3 cases)"
    )
    limited = (
        " With our kernels, but not the others', limited to AVX2 (1 of the files; not a test of a processor with AVX2"
        " alone) it is slower in writing answers of 4 "
    )
    slower = "tokens (0.50 times the rate) and reading prompts of 4 tokens (0.40 to 0.50 times the rate)."
    assert said == f"On 1 file (0 to unknown size of weights; 1 on C), {first}.{limited}{slower}"
    assert "limited" not in readme.on_files(cases(*own, (4.0, "/avx2")))
    alone = readme.on_files(cases(*fewer))
    assert alone.startswith("On 1 file (")
    assert ", with only our kernels limited to AVX2, `k` writes " in alone


def test_the_loop_without_the_kernel_is_beside_the_fastest_way_to_run_pytorch():
    torch = {"llamacpp": "torch-compile", "eager": "torch"}
    rows = [
        row.model_copy(update=dict(backend="torch", subject=torch[row.subject])) if row.subject in torch else row
        for row in trials()
    ]
    said = "0.42 [0.42, 0.42] times that of torch.compile, the fastest of 2 ways to run PyTorch"
    assert readme.beside_torch(replace(run(), rows=rows)) == [said]
    assert readme.beside_torch(run()) == []


def test_the_lead_on_a_larger_file_has_its_rival_and_processor(tmp_path):
    larger = recorded(tmp_path, "09-ollama-files", engines())
    ((of, said),) = readme.elsewhere([larger], run())
    assert of.table is larger
    ratios = "1.50 [1.50, 1.50] times ik_llama.cpp's rate and 3.00 [3.00, 3.00] times Ollama's rate"
    assert said == f"On tiny (float32, unknown size), on C, `loop+fused` writes answers at {ratios}."
    assert readme.elsewhere([larger], replace(run(), model="tiny")) == []
