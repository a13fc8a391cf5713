"""What sampling adds, paired in blocks, in words and in a chart; what another temperature compiles; the
original's two pipelines."""

import pytest

from llama_jax import checkpoint
from llama_jax.placement import Placement, parse
from llama_jax.plumbing.errors import UserError
from llama_jax.sampling import Sampler
from llama_lab.bench import SAMPLED, summary
from llama_lab.bench.statistics import Ratio
from llama_lab.bench.workload import Workload
from llama_lab.experiments.jit_placement import chart, measure
from tests.bench.test_record import trial
from tests.figures import drawn

SETTINGS = "temperature 0.6, top-k 50"


def trials(added):
    """Ten tokens a second greedily; sampled so many milliseconds a token more."""
    made = []
    for block in range(8):
        for name, more in added.items():
            for subject, gap in ((name, 100), (name + SAMPLED, 100 + more + 0.1 * (block % 3))):
                made.append(trial(subject, block, (gap, 2 * gap, 3 * gap)))
    return made


def test_the_cost_is_paired_in_milliseconds_a_token():
    eager, step = measure.costs(trials({"eager": 20, "step": 1}), ["eager", "step", "loop"])
    assert (eager.name, step.name) == ("eager", "step")  # loop was not measured
    assert eager.added.median == pytest.approx(20.1, abs=0.2)
    assert step.added.median == pytest.approx(1.1, abs=0.2)
    assert len(step.points) == 8
    assert eager.ratio.value == pytest.approx(100 / 120.1, rel=0.01)


def test_a_void_trial_takes_its_pair_with_it():
    made = [
        t.model_copy(update=dict(valid=False)) if t.subject == "step" + SAMPLED and t.block < 3 else t
        for t in trials({"step": 1})
    ]
    assert len(measure.costs(made, ["step"])[0].points) == 5


def test_the_chart_names_what_is_added(tmp_path):
    found = measure.costs(trials({"eager": 20, "step": 1}), ["eager", "step"])
    figure = chart.sampling(found, SETTINGS)
    assert SETTINGS in drawn.words(figure)
    assert "+20" in drawn.words(figure)
    assert "not shown to be less" in chart.overlapped(found)  # 20 ms under eager, 1 under step
    cheap = measure.costs(trials({"eager": 1, "step": 20}), ["eager", "step"])
    assert "less than under any jitted placement" in chart.overlapped(cheap)
    assert chart.overlapped(cheap[1:]) == ""
    said = chart.sampling_words(found, SETTINGS)
    assert said.startswith("sampling adds ")
    assert " ms without jit (" in said
    assert said.endswith("as chance alone makes 2 or more in less than 1% of such runs)")
    drawn.assert_drawn(figure, tmp_path)


def test_the_title_claims_a_cost_only_where_its_interval_holds_no_zero():
    def title(costs):
        return chart.sampling_title(measure.costs(trials(costs), list(costs)))

    assert title({"eager": 20, "step": 3}).startswith("Sampling adds")
    assert title({"step": -0.2, "loop": -0.2}) == "Sampling is not shown to add time to a token"
    assert chart.sampling_title([]).endswith("was not measured")
    assert title({"step": -0.1, "loop": 3}) == title({"step": -0.2, "loop": -0.2})  # one of two may be chance
    assert "token, except under chunk8 (3" in title({"step": -0.1, "chunk8": 3, "loop": 3})


def test_how_often_chance_leaves_out_0_is_said():
    assert chart.by_chance(1, 8) == pytest.approx(1 - 0.95**8)
    assert chart.by_chance(2, 2) == pytest.approx(0.05**2)
    costs = measure.costs(trials({"eager": 20, "step": 3}), ["eager", "step"])
    both = (
        "of 2 placements eager and step show a difference, as chance alone makes 2 or more in less than 1% of such runs"
    )
    assert chart.chance_words(costs) == both
    one = measure.costs(trials({"step": -0.1, "loop": 3}), ["step", "loop"])
    only = "of 2 placements only loop shows a difference, as chance alone makes 1 or more in 10% of such runs"
    assert chart.chance_words(one) == only
    assert chart.chance_words(costs[:1]).startswith(
        "of 1 placement eager shows a difference, as chance alone makes 1 or "
    )
    figure = chart.sampling(one, SETTINGS)
    assert "token; only loop's interval excludes 0, perhaps by chance" in drawn.words(figure)
    assert "+3.10 ms" in next(t.get_text() for t in figure.axes[0].texts if "\nexcludes 0, perhaps" in t.get_text())
    assert "perhaps" not in drawn.words(chart.sampling(costs, SETTINGS))
    single = measure.costs([t for t in trials({"step": 3}) if t.block == 0], ["step"])  # a pair has no interval
    assert chart.chance_words(single) == "the interval of step holds 0"
    level = measure.costs(trials({"step": -0.1}), ["step"])
    assert chart.chance_words(level) == "the interval of step holds 0"


def test_what_undecided_pairs_leave_open_is_said():
    assert chart.allowed(Ratio(0.945, 0.881, 1.013, 20)).endswith("anything from 12% slower to 1% faster")
    assert chart.allowed(Ratio(0.9, 0.85, 0.95, 20)) == ""


def test_jitting_single_operations_stands_beside_one_program_a_token():
    gaps = {"eager": 100, "ops": 40, "step": 20, "loop": 20}
    made = [
        trial(name, block, (gap, 2 * gap + 0.1 * block, 3 * gap)) for block in range(8) for name, gap in gaps.items()
    ]
    table = summary.table(made, "step", list(gaps))
    said = chart.claim(made, table)
    assert str(said).endswith("is 5.00 times as fast as no jit; jitting single operations (`ops`) already gives 2.50.")
    assert len(str(said).split()) <= 20
    whole = chart.answer(made, table, "and more")
    assert whole.startswith(
        "One program a token (`step`) is 5.00 [5.00, 5.00] times as fast as no jit, `ops` 2.50 [2.5"
    )
    assert whole.endswith(". These ratios are means of n = 8 pairs; and more.")
    assert len(whole.split(". ")[0].split()) <= 20
    alone = [t for t in made if t.subject not in ("ops", "step")]
    assert chart.answer(alone, summary.table(alone, "eager", ["eager", "loop"])).startswith("No pair of valid trials")
    figure = drawn.words(chart.throughput(made, table))
    assert "of step, n = 8\n2.50x" in figure
    assert "baseline, n = 8\n5.00x" in figure


@pytest.fixture(scope="module")
def loaded(tiny):
    return checkpoint.Checkpoint("tiny", *tiny, None, "hash", "random:tiny", "float32")


@pytest.mark.usefixtures("compiling")
def test_another_temperature_compiles_the_sampler_or_more_or_nothing(loaded):
    work = Workload(((1, 2, 3),), new_tokens=3, length=4)
    sampler = Sampler(0.617, 47, 0.93)  # of no other test, whose programs this process would still have
    found = measure.new_settings(loaded, work, ("step", "split", "step+traced"), sampler)
    programs = {e["name"]: e["programs"] for e in found}
    assert programs == {"step": 2, "split": 1, "step+traced": 0}  # step: prompt and token
    assert {e["name"]: e["seconds"] > 0 for e in found}["step"]


def test_pipelines_are_compared_by_sampled_answers_of_the_same_questions(tmp_path):
    made = trials({"step": 10, "split": 20})
    answers = chart.answers(made)
    assert answers.groupby("pipeline").size().to_dict() == dict.fromkeys(measure.PIPELINES.values(), 8)
    ratio = summary.paired_ratio(made, "split" + SAMPLED, "step" + SAMPLED)
    first, second = (answers[answers.pipeline == label]["tokens/s"].mean() for label in measure.PIPELINES.values())
    assert second / first == pytest.approx(ratio.value, rel=0.01)
    said = "A sampler jitted apart (split) is slower than one program per token (step): 0.9"
    assert chart.comparison(ratio).startswith(said)
    undecided = (
        "Whether a sampler jitted apart (split) is slower than one program per token (step) is undecided: 0.945x"
    )
    assert chart.comparison(Ratio(0.945, 0.881, 1.013, 20)).startswith(undecided)
    figure = chart.pipelines(answers, ratio)
    assert "8 questions" in drawn.words(figure)
    assert next(t.get_text() for t in figure.axes[0].get_yticklabels()).startswith("step (pipeline 1):")
    drawn.assert_drawn(figure, tmp_path)


def test_what_is_built_names_the_most_programs_and_the_baseline():
    costs = {"eager": (3.91, 152), "layer": (1.51, 44), "step": (2.52, 2), "chunk8": (4.4, 3), "loop": (2.8, 2)}
    said = "For its first answer eager builds 152 programs in 3.9 s; step builds 2 in 2.5 s"
    assert chart.built(costs) == said
    assert chart.built({"loop": (0.04, 2), "mine": (1.0, 3)}).endswith(
        "mine builds 3 programs in 1.0 s; loop builds 2 in 0.04 s"
    )
    assert chart.built({"step": (1.0, 1)}) == "For its first answer step builds 1 program in 1.0 s"


PARAMETERS = dict(
    placements=["step", "jit:attend.head"], model="tiny", seed=0, blocks=1, processes=1, new_tokens=2, prompts=1,
    temperature=0.6, top_k=50, top_p=0.9, cold_processes=0,
)  # fmt: skip


def test_placements_are_names_or_placements_of_ones_own():
    mine = Placement("mine", jit=("ffn",))
    chosen = PARAMETERS | dict(placements=["step+scan", mine])
    experiment = measure.JitPlacement.from_parameters(chosen)
    assert experiment.subjects == [parse("step+scan"), mine]
    assert experiment.parameters["placements"] == ["step+scan", "mine"]
    with pytest.raises(UserError, match=r"No such placement: 'stepp'\. Did you mean 'step'"):
        measure.JitPlacement.from_parameters(PARAMETERS | dict(placements=["stepp"])).parameters  # noqa: B018


@pytest.mark.slow
@pytest.mark.parametrize("name", ["throughput", "latency", "compilation"])
def test_each_chart_is_drawn_in_style(tmp_path, name):
    data = drawn.trials()
    table = summary.table(data, "step")
    draw = {
        "throughput": lambda: chart.throughput(data, table),
        "latency": lambda: chart.latency(data, table),
        "compilation": lambda: chart.compilation(data, ["eager", "step", "loop"]),
    }[name]
    drawn.assert_drawn(draw(), tmp_path)


def test_a_subject_without_a_valid_trial_says_so_in_the_figure():
    wrong = dict(valid=False, reason="wrong: token 0")
    data = [t.model_copy(update=wrong) if t.subject == "loop" else t for t in drawn.trials()]
    figure = chart.throughput(data, summary.table(data, "step"))
    assert any("no valid trial" in text.get_text() for text in figure.axes[0].texts)
