"""The same subject in several tables."""

from llama_jax import checkpoint
from llama_lab.bench import record
from llama_lab.experiments.honest_measurement import across
from tests.bench.test_record import trial


def table(home, name, ms, cpu="one", kernels="avx512vnni", **changes):
    rows = [trial("loop", block, (10, 10 + ms), model=checkpoint.DEFAULT, **changes) for block in range(3)]
    record.write(home / f"{name}.csv", rows, environment=dict(cpu=cpu, kernels=kernels, os="Linux-6.18-x-x86_64-glibc"))


def test_a_pair_is_compared_in_another_table(tmp_path):
    rows = [trial(name, b, (10, 10 + ms + b)) for name, ms in (("loop", 20), ("step", 40)) for b in range(6)]
    record.write(tmp_path / "16-x.csv", rows)
    said = across.pair("loop", "step", "16-x", tmp_path)
    assert said.startswith("16-x: loop over step 1.8")
    assert said.endswith("faster")
    assert ", n = 6 pairs in " in said
    assert across.pair("loop", "eager", "16-x", tmp_path) == across.pair("loop", "step", "17-y", tmp_path) == ""


def test_answers_that_should_be_alike_are_gathered(tmp_path):
    table(tmp_path, "03-x", 20)
    table(tmp_path, "08-y", 25)
    for name, changes in {
        "04-batch": dict(batch=2),
        "05-void": dict(valid=False),
        "06-cold": dict(phase="cold"),
        "07-long": dict(prompt_tokens=400),
        "15-other-release": dict(run="decode 0.4.38"),
        "16-drawn": dict(sampling="temperature 1"),
        "17-threads": dict(run="threads 1 loop"),
        "17-later-turn": dict(run="chat"),
        "18-other-processor": dict(cpu="another"),
        "19-fewer-instructions": dict(kernels="avx2"),  # of a processor with the same name
    }.items():
        table(tmp_path, name, 90, **changes)
    (tmp_path / "09-none.csv").write_text("x\n")
    found = across.gather(tmp_path)
    assert {name: round(rates[0]) for name, rates in found["loop"].items()} == {"03-x": 50, "08-y": 40}
    assert across.finding(found) == (
        "Compare within a run: between tables, the rate of loop differs 1.25-fold."
        " Medians differ: loop 1.25-fold (40.0 to 50.0 tokens/s)."
    )
    frame = across.described(found, tmp_path)
    assert list(frame.columns) == ["recorded", "system", "GB/s", *across.SUBJECTS]
    assert frame.loc["08-y", "loop"] == 40
    assert (frame.loc["08-y", "step"], frame.loc["08-y", "GB/s"]) == ("–", 1.0)  # no table has the first
    assert frame.loc["08-y", "system"] == "6.18-x"
    assert across.finding(across.gather(tmp_path, ["step"])) == "No subject stands in two tables."
