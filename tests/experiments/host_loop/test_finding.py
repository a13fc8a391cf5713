"""What the sentences on the host say of made-up numbers."""

from types import SimpleNamespace as Made

from llama_lab.bench.statistics import Ratio, Verdict
from llama_lab.experiments.host_loop import finding
from llama_lab.experiments.host_loop.flax_twin import MODELS
from llama_lab.experiments.host_loop.measure import SIZES


def line(name, ratio, **more):
    value, low, high = ratio
    ratio = dict(value=value, low=low, high=high, verdict=Verdict.FASTER if low > 1 else Verdict.UNDECIDED)
    return dict(name=name, valid_trials=6, ratio_to_baseline=ratio, fetch_us=20.0, cores=1.1) | more


def test_the_host_matters_most_where_its_strategies_gain_most():
    small, large = (
        dict(
            model=f"random:{w}",
            weights=w,
            dispatch=Made(median=d),
            wait=Made(median=9.0),
            ratios=dict(loop=Ratio(v, v - 0.01, v + 0.01, 9)),
        )
        for w, d, v in ((1e5, 9.0, 3.0), (4e8, 1.0, 1.5))
    )
    claim = "The host spends 50% of launch-plus-wait time launching at 0.1M parameters, 10% at 400M."
    assert str(finding.claim([small, large])) == claim
    between = small | dict(model="m", weights=1.345e8)
    assert ", 50% at 134M, 10% at 9000M." in str(finding.claim([large, small, between, large | dict(weights=9e9)]))
    lines = [line(name, ratio) for name, ratio in (("chunk8", (1.5, 1.4, 1.6)), ("loop", (1.7, 1.5, 1.9)))]
    assert (
        finding.gain(lines, "m")
        == "on m loop has 1.70x [1.50, 1.90] the rate of step, and none of the 2 strategies is shown to lead"
    )
    lines.append(line("step+queue", (0.7, 0.6, 0.8)))
    said = finding.answer([small, large], [("m", lines)])
    assert said.startswith(f"{claim} How often the host is asked matters most in small models; on m loop leads")
    assert "loop leads all but chunk8 among the 3 of 8 strategies measured, at" in said
    assert said.endswith("at 1.70x [1.50, 1.90] the rate of step.")
    near = [line(name, (1.5, 1.4, 1.6)) for name in ("chunk8", "step+async", "step+async4", "step+async8")]
    said = finding.gain([*near, *lines[1:]], "m")
    assert said == "on m loop has 1.70x [1.50, 1.90] the rate of step, and none of the 6 strategies is shown to lead"
    assert "matters most" not in finding.answer([small | dict(ratios={}), large], [])
    assert finding.starting([small, large]) == (
        "Launching step's program is 50% of a token's launch-plus-wait time with 0.1 M weights, 10% with 400 M"
    )


def test_an_interval_that_rounding_would_end_at_1_has_a_digit_more():
    assert finding.unrounded(dict(value=0.968, low=0.941, high=0.996)) == "0.968x [0.941, 0.996]"
    assert finding.unrounded(dict(value=1.5, low=1.4, high=1.6)) == "1.50x [1.40, 1.60]"


def test_what_waits_and_who_keeps_cores_busy_is_said():
    step = line("step", (1, 1, 1), fetch_us=54.0, cores=1.3)
    lines = [step, line("step+queue", (1, 0.9, 1.1), cores=1.4), line("loop", (3, 2, 4))]
    assert finding.waiting(lines, "m") == "m: a token waits 54 µs under step, 20 µs under loop"
    assert "no valid answers" in finding.waiting(lines[:1], "m")
    assert finding.cores(lines, "m") == (
        "m: 1.30 to 1.40 cores busy under step and its variants,"
        " 1.10 to 1.10 cores busy under chunk8, loop and their callbacks"
    )


def test_the_figures_title_names_who_leads():
    slow = [line("loop", (1.0, 0.9, 1.1))]
    assert finding.title([("a", [line("loop", (3, 2, 4))]), ("b", slow)]) == (
        "On a loop reaches 3.00 times the rate of step; on b no strategy is shown to be faster than step"
    )


def test_the_title_of_busy_cores_names_each_model_and_who_delivers_in_blocks():
    step, loop = line("step", (1, 1, 1), cores=1.3), line("loop", (3, 2, 4), cores=1.04)
    panels = [("a", (), [step, loop]), ("b", (), [step | dict(cores=1.7), line("other", (1, 1, 1))])]
    assert finding.load(panels, {"step", "loop"}, 2, ["loop"]) == (
        "1.0 to 1.3 of 2 cores are busy with a, 1.7 with b; tokens arrive in blocks under loop"
    )
    assert finding.load(panels[:1], {"step"}, 2, []) == "1.3 of 2 cores are busy with a"
    assert finding.load([("a", (), [step | dict(valid_trials=0)])], {"step"}, 2, []) == "No strategy has valid answers"


def test_a_random_model_reads_as_one_in_a_figure():
    assert finding.named(SIZES["1M"]) == "1M random weights"
    assert finding.named("smollm2-135m-instruct") == "smollm2-135m-instruct"


def test_a_model_of_other_sizes_is_named_by_them():
    row = Made(model=MODELS["2 layers"], layers=2, width=64)
    assert finding.sized(row) == "the 2-layer model of width 64"
    assert finding.sized(Made(model="smollm2-135m-instruct", layers=30, width=576)) == "smollm2-135m-instruct"
