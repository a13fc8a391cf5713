"""What each place of `jit` gains is what one run of trials says, and nothing where none was timed."""

import re

import pytest

from llama_lab.bench.statistics import Ratio
from llama_lab.reporting import gains
from llama_lab.reporting.overview import Setting
from tests.reporting.test_readme import SECTION, machine, recorded, run, slower, trials


def test_the_claim_is_three_ratios_of_one_run_and_what_it_lacks_comes_from_another_which_is_named():
    said = [*gains.sentences([run()]).values()]
    assert [re.search(r"([\d.]+) times", sentence)[1] for sentence in said] == ["8.00", "1.05", "4.75"]
    assert "(12.5 → 99.8 tokens/s)" in said[0]
    assert "is only 1.05 times as fast as " in said[1]
    assert said[2].endswith(
        " in float32 (105 → 499 tokens/s, reading 100% of the bytes, at 50% of the memory-bandwidth limit)."
    )
    ladder = run(("eager", "layer", "step", "loop"))
    engines = run(("loop", "loop+fused", "llamacpp"), dict(SECTION, number="09"))
    assert ["(notebook 09)" in sentence for sentence in gains.sentences([ladder, engines]).values()] == [
        False, False, True
    ]  # fmt: skip
    assert len(gains.sentences([ladder])) == 2
    assert gains.sentences([]) == {}
    assert said[0].startswith("Put one `jax.jit` around the step that makes a token (`step`): greedy decoding is 8.00")
    slow = [
        t.model_copy(update=dict(token_times_ns=[9 * ns for ns in t.token_times_ns])) if t.process else t
        for t in trials(("step",))
    ]
    mixed = [*trials(("eager",)), *(t for t in slow if t.subject == "step")]
    (undecided,) = gains.sentences([Setting(run().table, "", "m", False, mixed)]).values()
    assert undecided.startswith("Whether greedy decoding ")


def test_a_number_has_no_interval_only_where_that_is_narrow_and_the_trials_decide():
    assert gains.briefly(Ratio(1.5, 1.4, 1.6, 6)) == "1.50 times"
    assert gains.briefly(Ratio(1.1, 0.9, 1.3, 6)) == "1.10 [0.90, 1.30] times (undecided)"
    assert gains.briefly(Ratio(5.0, 2.0, 12.0, 6)) == "5.00 [2.00, 12.0] times"


def test_each_place_has_its_gain_with_its_range_over_other_machines_of_the_same_model():
    def cells(measured, others=()):
        return [row[3:] for row in gains.places(measured, others, "m", "under load").rows]

    known = [machine("2026-01-02", slower(1.6)), machine("2026-01-03", slower(0.5))]
    step, loop, chunk, fused, loaded = cells([run()], known)
    assert step == ("8.00 [8.00, 8.00] vs no `jit`", "8.00")
    assert loop == ("1.05 [1.05, 1.05] vs `step`", "1.05")
    assert (chunk, loaded) == (("", ""), ("under load", "–"))
    assert fused == ("4.75 [4.75, 4.75] `loop+fused` vs `loop`", "2.97 to 9.50")
    few = [known[0], machine("2026-01-03", trials(("step", "loop")))]
    assert cells([run()], few)[-2][1] == "2.97"  # the other has no kernel
    other = [t.model_copy(update=dict(model="n")) for t in trials()]
    assert len(cells([run()], [machine("2026-01-03", other)])[0]) == 1
    engines = run(("loop", "loop+fused"), dict(SECTION, number="09"))
    assert cells([run(("eager", "step")), engines])[-2][0].endswith("vs `loop` (notebook 09)")
    assert [row[3:] for row in gains.places([], page="m").rows] == [("",)] * len(gains.PLACES)
    own = machine(run().table.meta["created"], trials())
    assert len(cells([run()], [own])[0]) == 1  # the run itself
    noisy = run(("step", "loop"), noise=0.2)
    assert re.search(r"vs `step` \(pairs scatter by \d+%\)", cells([noisy])[1][0])
    heads = [gains.places([run()], some, "m").heads[4:] for some in ([], known[:1], known)]
    assert heads == [(), ("same benchmark on [another machine](m)",), ("same benchmark on [2 machines](m)",)]


@pytest.mark.parametrize(
    ("ratio", "words"),
    [
        (Ratio(1.0, 0.99, 1.01, 6), "as fast as b, within 2%"),
        (Ratio(1.3, 0.9, 1.9, 6), "do not decide"),
        (Ratio(5.0, 2.0, 12.0, 6), "a is faster than b"),  # wider than two
        (Ratio(0.5, 0.4, 0.6, 6), "a is 0.50 times as fast as b"),
        (Ratio(12.4, 12.1, 13.0, 6), "a is 12.4 times as fast as b"),
    ],
)
def test_a_number_stands_only_where_trials_decide(ratio, words):
    assert words in gains.compared("a", "b", ratio)


def test_the_run_with_most_rows_comes_first_without_drawn_answers_and_first_tokens(tmp_path):
    names = {"04-a": ("step", "loop"), "05-b": ("eager", "step", "loop"), "07-c": ("loop",)}
    behind = [recorded(tmp_path, name, trials(subjects)) for name, subjects in names.items()]
    for name, changes in (("06", dict(sampling="temperature 0.6")), ("07", dict(new_tokens=1, token_times_ns=[10**6]))):
        behind.append(recorded(tmp_path, name, [t.model_copy(update=changes) for t in trials(("step", "loop"))]))
    assert [run.table.section["number"] for run in gains.runs(behind)] == ["05", "04"]
    assert gains.known(gains.runs(behind)[0]) == ["eager", "step", "loop"]
