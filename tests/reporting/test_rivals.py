"""Other runtimes beside ours on every file: the least and the most, files counted once."""

from llama_jax.plumbing import paths
from llama_lab.bench.statistics import Ratio
from llama_lab.reporting import readme, rivals
from llama_lab.reporting.overview import Recorded, Setting
from tests.bench.test_record import trial
from tests.reporting.test_readme import here, recorded, run

PACE = {  # ms a token on each file
    "a": {"step+fused": 3, "loop+fused": 2, "llamacpp": 4, "openvino": 8}, "b": {"loop+fused": 5, "llamacpp": 4.5}
}  # fmt: skip


def rows(file, pace, tokens=8, prompt=56, **changes):
    """Six blocks of a file; only our placements read its own blocks."""
    return [
        trial(name, block, [k * ms * (1 + 0.001 * block) for k in range(1, tokens + 1)], run=file, prompt_tokens=prompt,
              **dict(backend="jax", quantisation="gguf+fused") | dict(weights_hash=file, weights_bytes=10**8) | changes
              if "+" in name
              else dict(backend=name, dtype="q4_0", quantisation="gguf-q4_0", weights_hash=file) | changes)
        for block in range(6) for name, ms in pace.items()
    ]  # fmt: skip


def test_the_least_and_the_most_favourable_case_have_file_and_rival(tmp_path):
    """On each file the fastest of our placements, beside the fastest of the others."""
    table = recorded(tmp_path, rivals.FILES[0], [row for file, pace in PACE.items() for row in rows(file, pace)])
    found = rivals.cases([table])
    low, high = (rivals.least(found, choose) for choose in (min, max))
    for case, ratio, file in ((low, "0.90 [0.90, 0.90] times", "b"), (high, "2.00 [2.00, 2.00] times", "a")):
        assert (rivals.times(case.ratio), case.entry["file"], case.entry["best"]) == (ratio, file, "llamacpp")
    assert (rivals.files(found), rivals.span(found)) == (2, "100 to 100 MB")
    assert rivals.contestants(found) == "the fastest of llama.cpp and, on 1 of the files, OpenVINO"
    assert rivals.cases([recorded(tmp_path, "02-jit-placement", rows("a", PACE["a"]))]) == []


def test_the_readmes_answer_has_the_range_over_every_file_with_the_processors_own_instructions(tmp_path):
    made = [
        row for file, ms in (("a", 4), ("b", 5), ("a/avx2", 1)) for row in rows(file, {"loop+fused": 2, "llamacpp": ms})
    ]
    table = recorded(tmp_path, rivals.FILES[1], made)
    said = (
        "On 2 files (100 to 100 MB; 2 on C), `loop+fused` writes answers at 2.00 to 2.50 times the rate of llama.cpp."
    )
    assert said in readme.answer([run(("eager", "step"))], [table], here)


def test_where_ours_is_not_faster_each_verdict_has_its_number_and_a_single_case_its_ratio():
    faster, slower, open_ = Ratio(2.0, 1.9, 2.1, 6), Ratio(0.5, 0.4, 0.6, 6), Ratio(1.4, 0.8, 2.7, 6)
    assert rivals.often([faster, faster]) == "faster in all 2"
    assert rivals.often([faster], " cases") == "faster in 1 of 1 cases"
    assert (
        rivals.often([faster, slower, slower, open_])
        == "faster in 1 of 4, slower in 2, undecided in 1 (1.40 [0.80, 2.70])"
    )


def test_a_ratio_of_medians_is_told_where_it_lies_outside_the_interval():
    """In two of five blocks the other is four times as slow."""
    for slow, aside in ((4, ""), (16, "2.00 by medians: b ran at 62 to 250 tokens/s")):
        pace = [("a", 2), ("b", 4)], [("a", 2), ("b", slow)]
        trials = [trial(name, k, [ms, 2 * ms], run="main") for k in range(30) for name, ms in pace[k % 5 < 2]]
        run = Setting(Recorded(paths.ROOT / "none.csv", {}), "", "m", False, trials)
        assert rivals.parted(run, "a", "b") == aside


def test_a_file_under_two_sets_of_instructions_is_one_file(tmp_path):
    both = [row for name in ("m/avx2", "m/avx512vnni") for row in rows(name, PACE["b"], weights_hash="w")]
    found = rivals.cases([recorded(tmp_path, rivals.FILES[1], both)])
    assert (len(found), rivals.files(found)) == (2, 1)
    assert {case.limited for case in found} == {"AVX2", "AVX-512 VNNI"}


def test_prompts_are_told_from_the_least_ratio_to_the_most_with_how_often_ours_is_faster(tmp_path):
    made = []
    for file, length, ours in (("m/avx2", 100, 9), ("m", 100, 2), ("n", 400, 3)):
        pace, weights = {"loop+fused": ours, "llamacpp": 4.5}, file[0]
        made += rows(file, pace, tokens=1, prompt=length, tokenize_ns=0, weights_hash=weights)
    found = rivals.cases([recorded(tmp_path, rivals.FILES[1], made)], rivals.sizes.PREFILL)
    said = rivals.ranging(found)
    assert said.startswith("0.50 (one process) to 2.25 (one process) times the rate: ")
    alone = "3 cases in one process each, of which the interval is too narrow"
    assert said.endswith(f": faster in 2 of 3 cases, slower in 1 (0.50 [0.50, 0.50]); {alone}")
    assert rivals.ends(found, rivals.bare) == "0.50 to 2.25"
    assert rivals.ranging(found[:1]).endswith("; 1 case in one process, of which the interval is too narrow")
    assert rivals.processors(found) == "2 on C"
    assert rivals.drawn(found) == ""
    random = [row.model_copy(update=dict(model="random:n")) if row.run == "n" else row for row in made]
    table = recorded(tmp_path, rivals.FILES[1], random)
    assert rivals.drawn(rivals.cases([table], rivals.sizes.PREFILL)) == ", 1 with random weights"


def test_what_is_published_counts_distinct_files():
    found = rivals.cases([Recorded(paths.ROOT / "data" / f"{name}.csv", {}) for name in rivals.FILES])
    assert rivals.files(found) == len({row.weights_hash for row in (case.first for case in found)}) < len(found)


def test_a_runtime_that_ran_on_one_processor_alone_is_told_so(tmp_path):
    a, b = (recorded(tmp_path / name, rivals.FILES[0], rows(name, PACE[name])) for name in PACE)
    found = rivals.cases([a, b])
    assert rivals.contestants(found) == "the fastest of llama.cpp and, on 1 of the files, OpenVINO"
    b.meta["environment"] = b.meta["environment"] | dict(cpu="D")
    assert rivals.contestants(found) == "the fastest of llama.cpp and, on C only, OpenVINO"
