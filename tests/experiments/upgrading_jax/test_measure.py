"""The same decode under several releases: what each must compute, what is recorded, and what is said of it."""

import json
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from llama_jax import checkpoint, generate
from llama_jax.checkpoint import random
from llama_jax.placement import parse
from llama_jax.plumbing import runtime, xla_flags
from llama_jax.plumbing.errors import UserError
from llama_lab import figures
from llama_lab.bench import environment
from llama_lab.experiments.upgrading_jax import chart, child, environments, measure, table
from tests.bench.test_record import trial
from tests.conftest import relative_error
from tests.experiments.conftest import TINY

OPTIONS = dict(processes=1, blocks=1, prompt_tokens=8, new_tokens=5, seed=0)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("weights")
    child.save(checkpoint.find(TINY), folder, "tiny")
    return folder


def test_weights_pass_through_plain_files(saved):
    before, after = checkpoint.load(TINY), child.opened(saved)
    assert (after.name, after.config, after.weights_hash) == ("tiny", before.config, before.weights_hash)
    assert jax.tree.all(jax.tree.map(np.array_equal, before.params, after.params))


@pytest.mark.parametrize("tied", [True, False])
def test_the_float64_decoder_is_an_independent_second(tied):
    config = random.open_preset(TINY).config
    config = type(config)(**{**vars(config), "tie_word_embeddings": tied})
    source = random.open_random(config, 3)
    weights = {
        name: np.asarray(tensor.read()) * (1 if len(tensor.shape) == 1 else 8)
        for name, tensor in source.tensors.items()
    }
    tensors = {name: type(t)(t.shape, lambda value=weights[name]: value) for name, t in source.tensors.items()}
    params = child.tensors.assemble(type(source)("", config, tensors, source.tokenizer, source.hash), "float32")
    ids = np.random.default_rng(0).integers(0, 97, 11).tolist()
    ours = np.asarray(generate.logits(generate.bind(config, params, parse("step")), ids))
    assert relative_error(ours, child.oracle(weights, config, ids)) < 1e-5
    name = "model.layers.1.mlp.up_proj.weight"
    spoilt = weights | {name: weights[name] * 1.01}
    assert relative_error(ours, child.oracle(spoilt, config, ids)) > child.CLOSE


def test_facts_of_this_release(saved, monkeypatch):
    monkeypatch.setattr(child, "UPDATES", 500)
    found = child.facts(str(saved), ["step", "loop"], 0)
    assert set(found["oracle"]) == {"step", "loop"}
    assert max(found["oracle"].values()) < child.CLOSE
    assert found["updates"] > 0
    assert runtime.complaint({k: v for k, v in found["checks"].items() if not runtime.named(k).fatal}) == ""


def test_tokens_are_judged_until_a_near_tie():
    logits = np.zeros((4, 5))
    logits[np.arange(4), [1, 2, 3, 4]] = 1.0
    logits[2, 0] = 1.0 - 1e-5
    known = dict(tokens0=np.array([1, 2, 3, 4]), logits0=logits)
    assert child.judged(np.array([1, 2, 3, 4]), known, 0) == (True, "")
    assert child.judged(np.array([1, 2, 0, 0]), known, 0) == (True, "near-tie at token 2")
    passed, reason = child.judged(np.array([1, 0, 3, 4]), known, 0)
    assert not passed
    assert reason.startswith("wrong: token 1 is 0")
    assert not child.judged(np.array([1, 2, 3]), known, 0)[0]


def asking(*releases, **options):
    return measure.Upgrading(TINY, releases, **OPTIONS, **options)


def dying(release, python):
    """Every release is this Python, but for one whose process dies and one that cannot be installed."""
    if release == "9.9.9":
        raise environments.GapError("No matching distribution found for jax==9.9.9")
    return Path("/bin/false") if release == "8.8.8" else Path(sys.executable)


@pytest.mark.slow
def test_releases_are_measured_interrupted_and_gone_on_with(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # a lock of its own: something may be measured here
    monkeypatch.setattr(environments, "interpreter", lambda: (sys.executable, environment.version("jax")))
    locked, began = environment.version("jax"), []
    wanted = asking(locked, "0.0.1", "8.8.8", "9.9.9", small=TINY)

    def stop(what, done, total):
        began.append(what)
        if sum(words.startswith("jax ") for words in began) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        measure.obtain("measure", tmp_path, wanted, stop, dying)
    (journal,) = (tmp_path / "out" / "journal").glob("18-*.jsonl")
    kept = [line for line in map(json.loads, journal.read_text().splitlines()) if "token_times_ns" in line]
    trials, meta = measure.obtain("measure", tmp_path, wanted, lambda *_: None, dying)
    assert kept
    assert not journal.exists()
    assert [line["token_times_ns"] for line in kept] == [t.token_times_ns for t in trials[: len(kept)]]
    assert table.releases(meta) == [locked, "0.0.1"]
    assert {gap["name"] for gap in meta["missing"]} == {"8.8.8", "9.9.9"}
    for release in table.releases(meta):
        for name in measure.PLACEMENTS:
            assert len(table.decodes(trials, release, name)) == 1
            assert all(t.valid and not t.reason for t in table.decodes(trials, release, name))
            assert table.compile_seconds(trials, release, name) > 0
        assert table.cache_hits(trials, release)[0] > 0
        assert table.cache_hits(trials, release)[1] == 0
        for n in measure.FIRST_TOKENS:
            assert len(table.first_tokens(trials, release, n)) == 1
    again, about = measure.obtain("recorded", tmp_path, wanted)
    assert (len(again), about["facts"]) == (len(trials), meta["facts"])
    frame = table.by_release(again, about)
    assert frame.loc["9.9.9", table.FAULTS].startswith("could not be had: No matching distribution")
    assert "8.8.8" in frame.index
    paths = figures.save(chart.releases(again, about), "15-x", "15", about, {}, "alt", tmp_path)
    assert paths["svg"].is_file()


RATES = {"0.1.0": 10.0, "0.2.0": 20.0, "0.3.0": 15.0}


def made(**facts):
    """Trials of three releases, three rounds each; `step` decodes at `RATES`; meta as it is recorded."""
    rows = [
        trial(name, r, [10, 10 + 1e3 / rate, 10 + 2e3 / rate], run=f"decode {release}", process=3 * r + i)
        for r in range(3)
        for i, (release, rate) in enumerate(RATES.items())
        for name in ("step", "loop")
    ]
    right = dict(checks={one.name: runtime.RIGHT for one in runtime.CHECKS}, oracle={"step": 1e-7}, updates=1.0)
    here = environment.capture()
    here["packages"] = here["packages"] | {"jax": "0.3.0"}
    return rows, dict(
        parameters=dict(releases=[*RATES, "0.4.0"], placements=["step", "loop"], processes=3, python="3.12.1"),
        facts={name: right | facts.get(name.replace(".", "_"), {}) for name in RATES}, sizes={}, environment=here,
        missing=[dict(name="0.4.0", reason="no wheel", remedy="")], created="2026-01-01", sha256="",
    )  # fmt: skip


def test_rates_and_ratios_in_pairs_of_a_round():
    trials, meta = made()
    trials.append(trial("step", 3, [1, 2, 3], run="decode 0.2.0", valid=False, prompt_tokens=8))
    ratio = table.ratio(trials, "step", "0.2.0", "0.1.0")
    assert (ratio.value, ratio.n) == (pytest.approx(2), 3)
    assert table.by_release(trials, meta).loc["0.2.0", "step tok/s"] == 20.0


def test_what_a_release_computes_wrongly_is_named():
    faulty, avoided = (next(one for one in runtime.CHECKS if bool(one.avoided) == kind) for kind in (False, True))
    checks = {one.name: runtime.RIGHT for one in runtime.CHECKS}
    _, meta = made(
        **{
            "0_1_0": dict(checks=checks | {faulty.name: "crashes: exit code -11"}),
            "0_2_0": dict(checks=checks | {avoided.name: "wrong: 1 instead of 2, 1 of 2 values"}),
            "0_3_0": dict(oracle={"step": 1e-7, "loop": 1e-2, "eager": float("inf")}, updates=4.1),
        }
    )
    trials = [*made()[0], trial("loop", 3, [1, 2], run="decode 0.2.0", valid=False, reason="wrong: token 1 is 2")]
    assert table.wrong(trials, meta, "0.1.0") == [f"{faulty.issue} crashes"]
    assert table.wrong(trials, meta, "0.2.0") == ["loop: other tokens"]
    assert table.wrong(trials, meta, "0.3.0") == ["loop: not NumPy's logits", "eager: not NumPy's logits"]
    assert table.agreement(trials, meta) == (
        "Logits agree with NumPy's under all releases but 0.3.0; tokens with the locked release's under all releases"
        " but 0.2.0."
    )
    assert table.agreement(*made()).count("under every release") == 2
    frame = table.broken(meta)
    assert frame.loc[faulty.name, "0.1.0"] == "crashes"
    assert frame.loc[avoided.name, "0.2.0"] == "wrong"
    said = table.finding(trials, meta)
    assert f"rong values or crashes under 0.1.0 ({faulty.issue} crashes)" in said
    assert said.endswith("copy the whole array under 0.3.0.")


@pytest.mark.parametrize(("flags", "name"), [(xla_flags.SETTING, "0.2.0+flag"), ("", "0.2.0")])
def test_the_set_up_of_a_table_is_its_release_and_whether_the_flag_was_set(flags, name):
    env = dict(packages=dict(jax="0.2.0"), settings=dict(XLA_FLAGS=flags))
    assert table.set_up(dict(environment=env)) == name


def test_the_figure_marks_what_is_wrong_and_what_is_missing(monkeypatch):
    faulty = next(one for one in runtime.CHECKS if not one.avoided)
    wrong = dict(checks={faulty.name: "wrong: 1 instead of 2, 1 of 2 values"})
    trials, meta = made(**{"0_2_0": wrong})
    (axes,) = chart.releases(trials, meta).axes
    labels = {tick.get_text(): tick.get_color() for tick in axes.get_xticklabels()}
    assert labels["0.2.0"] == chart.LIMIT_COLOUR
    assert labels["0.1.0"] != chart.LIMIT_COLOUR
    joined = [line.get_ydata() for line in axes.lines if line.get_linestyle() == "-" and len(line.get_xdata()) == 3]
    assert [np.isnan(rates).tolist() for rates in joined] == [[False, True, False]] * 2  # none to what is wrong
    crosses = [line for line in axes.lines if line.get_marker() == "x" and len(line.get_xdata())]
    assert {tuple(line.get_xdata()) for line in crosses} == {(1.0,)}
    assert "not measured" in {text.get_text() for text in axes.texts}
    title = " ".join(chart.releases(*made()).get_suptitle().split())
    assert title == "Under step, JAX 0.1.0 makes 10.0 tokens/s, the 2 others 15.0 to 20.0"
    monkeypatch.setitem(RATES, "0.3.1", 16)
    title = " ".join(chart.releases(*made(**{"0_2_0": wrong})).get_suptitle().split())
    assert title == "Under step, JAX 0.1.0 makes 10.0 tokens/s, the 2 others that pass every check 15.0 to 16.0"


def test_nothing_recorded_is_said(tmp_path, monkeypatch):
    monkeypatch.setattr(measure.paths, "ROOT", tmp_path)
    assert measure.obtain("recorded", tmp_path, asking()) == ([], None)
    assert measure.obtain("measure", tmp_path, asking()) == ([], None)  # no release was named
    assert "nothing can be said" in table.finding([], None)
    with pytest.raises(UserError, match="must be recorded or measure"):
        measure.obtain("somewhere", tmp_path, asking())
    with pytest.raises(UserError, match="not a release of JAX"):
        measure.obtain("measure", tmp_path, asking("latest"))


def test_no_release_at_all_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr(environments, "interpreter", lambda: (sys.executable, "3.12.1"))
    with pytest.raises(UserError, match="can be installed here: No matching distribution"):
        measure.obtain("measure", tmp_path, asking("9.9.9"), make=dying)


def test_another_jaxlib_is_not_given_our_flag(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--a=1 --xla_cpu_experimental_ynn_fusion_type=-reduce")
    monkeypatch.setattr(environments, "interpreter", lambda: (sys.executable, "3.12.1"))
    made = measure.Releases.made(["1.0.0", "9.9.9", "1.0.0+flag"], lambda *_: None, dying)
    assert [gap["name"] for gap in made.gaps] == ["9.9.9"]
    flags = {release: interpreter.settings["XLA_FLAGS"] for release, interpreter in made.there.items()}
    assert flags == {"1.0.0": "--a=1", "1.0.0+flag": "--a=1 --xla_cpu_experimental_ynn_fusion_type=-reduce"}


@pytest.mark.parametrize(
    ("outcomes", "came"), [("rwr", "No repaired fault came back"), ("wrw", "Came back after a repair: ")]
)
def test_a_fault_that_comes_back_is_told_and_the_flag_is_no_release(outcomes, came):
    names, check = ["0.1", "0.2", "0.3"], runtime.CHECKS[0].name
    facts = {
        name: dict(checks={check: runtime.RIGHT if o == "r" else "wrong: 1"})
        for name, o in zip(names, outcomes, strict=True)
    }
    facts["0.3+flag"] = dict(checks={check: "wrong: 1"})
    said = table.repaired(dict(parameters=dict(releases=[*facts]), facts=facts))
    assert said.startswith(came)
    fewest = "has the fewest: 0" if outcomes == "rwr" else "has 1; the fewest are 0, under 0.2"
    more = "0.2 has 1, 0.1 0" if outcomes == "rwr" else "0.3 has 1, 0.2 0"
    assert said.endswith(f"The newest, 0.3, {fewest}. A newer release can have more: {more}.")
