"""One's own placement, and the subjects that must be caught: each is caught, a right one passes, and each check can
fail."""

import json
import re
from dataclasses import asdict, replace

import jax
import jax.numpy as jnp
import nbformat
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import llama_jax as ll
import llama_lab
from llama_jax import generate, transforms
from llama_jax.checkpoint import Checkpoint
from llama_jax.placement import LADDER, TREE, Placement, parse
from llama_jax.plumbing.errors import UserError
from llama_jax.tokenizer import Numbers
from llama_lab.bench import AGAIN, protocol, record, roofline, summary
from llama_lab.bench.frames import show
from llama_lab.bench.guard import Region
from llama_lab.bench.journal import Journal
from llama_lab.bench.protocol import Reference
from llama_lab.bench.workload import Workload
from llama_lab.experiments.your_own_placement import chart, measure
from llama_lab.experiments.your_own_placement.measure import ANEW, GATE, GUARD, INTERVAL, NESTED, SHORT
from llama_lab.reporting import notebooks
from tests.bench.test_record import trial
from tests.experiments.conftest import TINY
from tests.figures.drawn import assert_drawn, words

MINE = Placement("mine", jit=("attend", "head"))
WORK = Workload(((3, 5, 7, 11), (13, 17, 19, 23)), 5, 16)
WRONG, COMPILED = "wrong: token 3 is 7, the reference has 5", "compiled in the timed region: 5 programs (<lambda>)"


@pytest.fixture(scope="module")
def loaded(tiny):
    cfg, params = tiny
    return Checkpoint("tiny", cfg, params, None, "", "random:", "float32")


@pytest.fixture(scope="module")
def measured(loaded, compiling):
    """Two interleaved blocks of `step`, one's own and the specimens, in this process."""
    subjects = measure.built(loaded, [LADDER["step"], Placement("mine", jit=("transform", "sample"))])
    caller = protocol.Caller(explain=True, locked=True)
    return protocol.measure(subjects, WORK, 2, Reference(loaded, WORK), measure.BASELINE, caller)


def of(trials, name):
    return [t for t in trials if t.subject == name]


def test_a_right_one_passes(measured):
    assert [t.reason for t in of(measured, "mine")] == ["", ""]
    assert all(t.valid for t in of(measured, "mine"))


def test_the_wrong_one_is_refused_and_has_no_time(measured):
    assert all("wrong: token" in t.reason for t in of(measured, SHORT))
    # it ran, and only its tokens speak against it
    assert all(t.token_times_ns and not t.compiled for t in of(measured, SHORT))
    entry = next(e for e in measure.table(measured, ["step", "mine"]) if e["name"] == SHORT)
    assert (entry["tokens_per_second"]["n"], entry["valid_trials"], measure.fate(entry).caught) == (0, 0, GATE)


def test_without_the_gate_the_wrong_one_would_have_a_time(loaded, compiling):
    short = measure.a_layer_short(loaded, None)
    protocol.warm_up(short, WORK)
    seen, tokens = protocol.trial(short, WORK, 0, run="r", block=0, order=0, process=0, phase="warm")
    assert seen.valid
    assert not Reference(loaded, WORK).judge(seen, tokens).valid


def test_what_compiles_is_void_and_says_why(measured):
    found = of(measured, ANEW)
    assert [t.valid for t in found] == [False, False]
    # nothing of its tokens
    assert all(t.reason == f"compiled in the timed region: {WORK.new_tokens} programs (<lambda>)" for t in found)
    assert {t.tokens_sha256 for t in found} == {t.tokens_sha256 for t in of(measured, "step")}
    assert all("never seen function: <lambda>" in t.cause for t in found)
    entry = next(e for e in measure.table(measured, ["step", "mine"]) if e["name"] == ANEW)
    assert (entry["tokens_per_second"]["n"], measure.fate(entry).caught) == (0, GUARD)


def test_without_the_guard_what_compiles_would_have_a_time(loaded, compiling):
    class Deaf(Region):
        def __enter__(self):
            return self

        def __exit__(self, *exception):
            return None

    step = protocol.subject(loaded, LADDER["step"])
    protocol.warm_up(step, WORK)
    anew = replace(measure.compiles_anew(loaded, step), guard=Deaf)
    assert protocol.trial(anew, WORK, 0, run="r", block=0, order=0, process=0, phase="warm")[0].valid


def test_the_close_one_is_the_same_program(loaded):
    """A jit inside a jit is inlined: what differs between the two compiled programs are names."""

    def operations(placement):
        engine = generate.build(loaded, placement)
        batch, sampler = (
            generate.request(engine.config, [[3, 5, 7]], 4),
            transforms.settings(generate.GREEDY, placement),
        )
        token, carry = jax.eval_shape(lambda ids: generate.prefill(engine, replace(batch, ids=ids)), batch.ids)
        text = engine.programs.step.lower(engine.params, token, carry, sampler).compile().as_text()
        return sorted(re.findall(r"= (\S+ [\w-]+)\(", text))  # shape and operation of each instruction

    assert operations(NESTED) == operations(LADDER["step"])
    assert operations(NESTED) != operations(parse("step+scan"))


def answers(name, rate, blocks=8, spread=0.0, **changes):
    """Valid answers of a rate, tokens/s; spread: how far they alternate around it."""
    gaps = [1e3 / rate * (1 + spread * (-1) ** block) for block in range(blocks)]
    return [trial(name, b, [100 + i * gap for i in range(5)], process=1, **changes) for b, gap in enumerate(gaps)]


def made(mine=10.0, nested=20.2, spread=0.04, blocks=8):
    """A ladder of known rates: `step` 20 tokens/s without noise."""
    trials = [*answers("step", 20, blocks), *answers("step" + AGAIN, 20, blocks), *answers("mine", mine, blocks)]
    trials += answers(NESTED.name, nested, blocks, spread=spread)
    trials += answers(SHORT, 40, blocks, valid=False, reason=WRONG)
    return trials + answers(ANEW, 15, blocks, valid=False, reason=COMPILED, cause="traced anew")


def fates(trials):
    return {f.name: f for f in map(measure.fate, measure.table(trials, ["step", "mine", NESTED.name]))}


def test_each_is_caught_by_whom_it_should_be():
    found = fates(made())
    assert {name: f.caught for name, f in found.items()} == {
        "step": "", "step (again)": "", "mine": "", NESTED.name: INTERVAL, SHORT: GATE, ANEW: GUARD,
    }  # fmt: skip
    assert found["mine"].why == "0.50x [0.50, 0.50] of step, n = 8: slower"
    assert found[SHORT].why == WRONG.removeprefix("wrong: ")
    assert found[ANEW].why == COMPILED
    assert re.fullmatch(
        r"1\.01x \[.*\] of step, n = 8: undecided, about \d+ more blocks would show a difference, if there is one",
        found[NESTED.name].why,
    )


def test_what_the_data_decide_is_not_caught():
    assert fates(made(spread=0.005))[NESTED.name].why.endswith("equal within 2%")
    assert fates(made(nested=30))[NESTED.name].why.endswith("faster")
    assert not fates(made(nested=30))[NESTED.name].caught
    assert "undecided (pairs scatter by" in fates(made(spread=0.3))[NESTED.name].why


@pytest.mark.parametrize(
    ("reason", "caught", "why"),
    [
        (WRONG, GATE, WRONG.removeprefix("wrong: ")),
        ("failed: ValueError: no", measure.FAILED, "failed: ValueError: no"),
    ],
)
def test_ones_own_is_caught_by_the_same_rules(reason, caught, why):
    void = dict(valid=False, reason=reason)
    trials = [t.model_copy(update=void) if t.subject == "mine" else t for t in made()]
    assert fates(trials)["mine"] == measure.Fate("mine", caught, why)


def test_right_by_chance_is_not_right():
    """Other tokens for one prompt: no answer of that subject has a time."""
    void = dict(valid=False, reason=WRONG)
    trials = [t.model_copy(update=void) if (t.subject, t.block) == ("mine", 3) else t for t in made()]
    entry = next(e for e in measure.table(trials, ["step", "mine"]) if e["name"] == "mine")
    assert (entry["valid_trials"], entry["tokens_per_second"]["n"]) == (0, 0)
    assert measure.fate(entry) == measure.Fate("mine", GATE, WRONG.removeprefix("wrong: "))
    assert summary.entry(trials, "mine", "step")["valid_trials"] == 7  # the plain table would keep seven


def test_the_sentence_and_the_tables_are_computed():
    table = measure.table(made(), ["step", "mine", NESTED.name])
    frame = show(measure.specimens(table), measure.COLUMNS)
    assert [*frame["caught by"]] == [GATE, GUARD, INTERVAL]
    assert [*frame["void"]] == [8, 8, 0]
    ladder = measure.ladder_frame(table)["verdict"]
    assert (ladder["mine"], ladder[SHORT], ladder[ANEW]) == ("slower", "none: the gate", "none: the guard")


def test_the_figure_marks_ones_own_and_lists_what_was_refused(tmp_path):
    trials = measure.strict(made())
    figure = chart.own_ladder(
        trials, measure.table(trials, ["step", "mine", NESTED.name]), Placement("mine", jit=("attend", "ffn"))
    )
    for text in (
        "Your placement “mine” (jit around attend and ffn) decodes at 0.50x [0.50, 0.50] of step's rate; 2 of 2 ",
        "no time: its tokens are wrong",
        "no time: it compiled while timed",
        "no verdict: same program as step",
        "below: a copy of step, and faulty ones",
        "10.0 tok/s · 0.50x [0.50, 0.50]: slower",
        "baseline, n = 8",
    ):
        assert text in words(figure)
    labels = {label.get_text(): label.get_fontweight() for label in figure.axes[0].get_yticklabels()}
    assert [name for name, weight in labels.items() if weight == "bold"] == ["mine\njit: attend, ffn"]
    assert [*labels][:2] == ["step", "step (again)"]  # the fastest first
    assert_drawn(figure, tmp_path)


def test_a_copy_of_the_baseline_is_not_caught_and_its_row_has_no_advice():
    table = measure.table(made(), ["step", "mine", NESTED.name])
    said = chart.finding(table, "mine", "a line")
    assert said.startswith(
        "A placement is one line; 2 of 2 faulty programs are refused; a copy of step is not called different."
    )
    assert "more blocks" not in said
    frame = show(measure.specimens(table), chart.COLUMNS)
    assert frame.loc[NESTED.name, "reason"].endswith("of step, n = 8: undecided")
    assert frame.loc[ANEW, "reason"] == COMPILED
    decided = measure.table(made(nested=30), ["step", "mine", NESTED.name])
    assert "a copy of step gets a verdict" in chart.finding(decided, "mine", "a line")


def test_void_answers_have_the_rates_that_they_would_have_had():
    trials = measure.strict(made())
    found = chart.with_voided(trials, measure.table(trials, ["step", "mine", NESTED.name]))
    assert [(e["name"], round(e["rate"]), e["counts"]) for e in found] == [
        (SHORT, 40, False), (NESTED.name, 20, True), ("step", 20, True), (ANEW, 15, False),
    ]  # fmt: skip


def own(mine, ladder):
    return measure.OwnPlacement(mine, TINY, seed=0, ladder=ladder, prompts=2, blocks=1, processes=1, new_tokens=4)


@given(st.lists(st.sampled_from(sorted(TREE)), unique=True), st.sampled_from(["fixed", "none"]), st.booleans())
def test_the_line_makes_the_placement_and_json_brings_it_back(jit, cache, aot):
    p = Placement("mine", jit=tuple(jit), cache=cache, compile="aot" if aot and jit else "lazy")
    assert eval(measure.line(p), {"Placement": Placement}) == p
    meta = dict(placement=json.loads(json.dumps(asdict(p))))
    assert measure.as_recorded(p, meta) == p
    other = replace(p, jit=("rope",) if p.jit != ("rope",) else ("norm",), compile="lazy")
    with pytest.raises(UserError, match='source = "measure"'):
        measure.as_recorded(other, meta)


@pytest.mark.slow
def test_measuring_goes_through_children_and_goes_on_where_it_stopped(tmp_path):
    """Placements cross as data, specimens by name; nothing that is measured is measured again."""
    journal = Journal(tmp_path / "j.jsonl", {})
    experiment = own(MINE, ["step"])
    experiment.record(journal)
    assert {t.subject for t in journal.trials} == {"step", "step" + AGAIN, "mine", NESTED.name, SHORT, ANEW}
    assert {t.subject for t in journal.trials if t.placement == "mine"} == {"mine"}
    anew = of(journal.trials, ANEW)[0]
    assert not anew.valid
    assert "never seen function: <lambda>" in anew.cause
    assert not re.search(r" id=\d|(?<!\w)/", anew.cause)  # no object's number, no machine's path
    processes = len(journal.notes)
    experiment.record(journal)
    assert len(journal.notes) == processes
    path = record.write(tmp_path / "t.csv", journal.trials)
    assert record.read(path)[0] == journal.trials
    assert all(np.isfinite(t.tg) for t in journal.trials)


def test_the_notebooks_own_loop_makes_the_tokens_of_step_and_can_be_watched(tmp_path, monkeypatch):
    """Its cells are live, so that no page shows what they say."""
    monkeypatch.setattr("llama_jax.plumbing.paths.tempfile.gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(roofline, "PROBE_BYTES", 1 << 22)
    (path,) = notebooks.find(("16",))
    cells = {cell.id: cell.source for cell in nbformat.read(path, as_version=4).cells}
    names = dict(jax=jax, jnp=jnp, np=np, ll=ll, run=llama_lab.run, own=measure, summary=summary, Numbers=Numbers)
    names |= dict(small=ll.load(TINY))
    exec(cells["own-loop"], names)
    assert all(t.valid for t in names["timed"]), names["rows"]
    assert {*names["rows"].index} == {"step", "step" + AGAIN, "by NumPy"}
    exec(cells["own-loop-view"], names)
    assert names["view"].view.tokens == 16
