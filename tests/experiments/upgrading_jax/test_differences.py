"""How much placements depend on the release, and since when a quantity is another, of made-up trials."""

import pytest

from llama_lab.experiments.upgrading_jax import differences, table
from tests.bench.test_record import trial
from tests.experiments.upgrading_jax.test_measure import made


def test_placements_whose_intervals_overlap_are_not_ranked():
    trials, meta = made()
    first, second, last = differences.dependence(trials, meta)
    assert first == "step: fastest release (0.2.0) over slowest (0.1.0): 2.00x [2.00, 2.00]; without 0.1.0: 1.33x"
    assert second.startswith("loop: ")
    assert last == "The release matters most to step and loop, not decided among them."
    slower = [t.model_copy(update=dict(token_times_ns=[10**7, 9 * 10**7, 17 * 10**7]))
              if (t.subject, t.run) == ("loop", "decode 0.2.0") else t for t in trials]  # fmt: skip
    assert differences.dependence(slower, meta)[-1] == "The release matters most to step."
    meta["parameters"]["placements"] = ["step", "loop", "eager"]
    flat = [t.model_copy(update=dict(subject="eager", token_times_ns=[10**7, 9 * 10**7, 17 * 10**7]))
            for t in trials if t.subject == "step" and t.run.startswith("decode")]  # fmt: skip
    said = differences.dependence([*trials, *flat], meta)[-1]
    assert said == "The release matters less to eager than to step and loop."
    assert differences.dependence([], meta) == []


@pytest.mark.parametrize(
    ("values", "at"),
    [
        ([10, 11, 20, 21, 22], 2),
        ([22, 21, 20, 11, 10], 3),
        ([10, 11, 12, 10, 11], None),
        ([10, 20, 20, 20, 20], None),  # one release on a side is no turn
        ([100, 101, 104, 105], None),  # apart, and close
        ([], None),
    ],
)
def test_a_turn_divides_a_series_in_two_that_do_not_overlap(values, at):
    assert differences.turn(values) == at


def test_turns_name_the_release_and_both_sides():
    rates = {"0.1.0": 5, "0.2.0": 20, "0.3.0": 21, "0.4.0": 30, "0.5.0": 31, "0.5.0+flag": 62}
    trials = [
        trial("step", r, [10, 10 + 1e3 / rate, 10 + 2e3 / rate], run=f"decode {release}", process=r)
        for r in range(3)
        for release, rate in rates.items()
    ]
    _, meta = made()
    right = next(iter(meta["facts"].values()))
    meta |= dict(facts=dict.fromkeys(rates, right), parameters=dict(releases=[*rates], placements=["step"]))
    assert differences.turns(trials, meta) == [
        "step, tokens/s: 20.0 to 21.0 before 0.4.0, 30.0 to 31.0 from 0.4.0 on (0.1.0: 5.0)",
        "Compiling is not shown to have changed; no placement is shown to have lost speed.",
    ]
    quick = trial("step", 9, [10, 10 + 1e3 / 40, 10 + 2e3 / 40], run="decode 0.2.0", process=3)
    (line,) = differences.turns([*trials, quick], meta)  # a bar that reaches the other side
    assert line.startswith("Compiling is not")
    said = differences.of_the_flag(trials, meta)
    assert said == "The flag, decode rate of 0.5.0+flag over 0.5.0: step 2.00x [2.00, 2.00], faster."
    assert differences.of_the_flag(*made()) == "No release was measured with the flag and without it."


def test_what_the_years_changed_is_said_with_what_medians_alone_say():
    change = dict(kind=differences.COMPILE, name="step", since="0.4.0", falls=True, shown=True)
    slower = change | dict(name="step+scan", falls=False)
    lost = change | dict(kind=differences.RATE, name="loop")
    assert differences.over_the_years([change, slower, lost]) == (
        "Compiling became faster under step (from 0.4.0 on), slower under step+scan (from 0.4.0 on);"
        " loop (from 0.4.0 on) lost speed."
    )
    assert differences.over_the_years([lost | dict(shown=False)]).endswith(
        "no placement is shown to have lost speed; by medians alone, loop (from 0.4.0 on) did."
    )


def test_bars_of_few_processes_are_the_range_of_the_answers():
    trials, _ = made()
    quick = trial("step", 9, [10, 20, 30], run="decode 0.1.0", process=0)
    assert table.bar_ends([*trials, quick], "0.1.0", "step") == pytest.approx((10, 100))
    many = [t.model_copy(update=dict(process=i)) for i, t in enumerate([*trials, *trials, quick])]
    rate = table.rate(many, "0.1.0", "step")
    assert table.bar_ends(many, "0.1.0", "step") == (rate.low, rate.high)
