"""First tokens by prompt length: mistakes named first, who is compared with whom, and the child on a
small model."""

import math
from collections import Counter

import pytest

from llama_jax import checkpoint, config, kernels
from llama_jax.plumbing.errors import UserError
from llama_lab.bench import AGAIN, roofline
from llama_lab.bench.cold import Start
from llama_lab.bench.frames import show
from llama_lab.bench.journal import Journal
from llama_lab.experiments.time_to_first_token import chart, same_file, table
from llama_lab.experiments.time_to_first_token.measure import FirstTokens, floor
from tests.experiments.fewer_bits.race import LENGTHS, firsts
from tests.figures.drawn import assert_drawn, words

TINY = (
    "random:smollm2-135m,num_hidden_layers=2,hidden_size=64,intermediate_size=128,num_attention_heads=4,num_key_value_heads=2,"
    "head_dim=16,vocab_size=97"
)


def race(*subjects, **changes):
    fields = dict(model=TINY, seed=0, first_subjects=subjects or ["step"], first_lengths=[5], first_blocks=1)
    return same_file.FirstOnFile(**fields | changes)


@pytest.mark.parametrize(
    ("words", "changes"),
    [
        ("No such placement: 'stepp'", dict(first_subjects=["stepp"])),
        ("placements is empty", dict(first_subjects=["llamacpp"])),
        ("named twice", dict(first_subjects=["step", "step"])),
        ("step\\+fused is the baseline", dict(first_subjects=["step+fused", "step"])),
        ("lengths is \\[\\]", dict(first_lengths=[])),
        ("lengths is \\[5, 5\\]", dict(first_lengths=[5, 5])),
        ("blocks is 0", dict(first_blocks=0)),
        ("exceed the model's context of 8192", dict(first_lengths=[9000])),
    ],
)
def test_mistakes_are_named_before_anything_is_loaded(monkeypatch, words, changes):
    monkeypatch.setattr(checkpoint, "load", lambda *_: pytest.fail("loaded"))
    with pytest.raises(UserError, match=words):
        race(**changes).record()


def test_what_cannot_run_here_is_named_and_the_rest_is_asked(monkeypatch):
    asked = []
    monkeypatch.setattr(kernels, "missing", lambda: "None here; leave them out.")
    monkeypatch.setattr(FirstTokens, "answers", lambda plan, works: asked.append((plan, works)) or [])
    rows, meta = race("step", "step+fused", "llamacpp", first_lengths=[5, 20], first_blocks=3).record()
    assert rows == []
    ((plan, works),) = asked
    assert plan.subjects == ("step exact",)
    assert (plan.processes, plan.tail, plan.new_tokens) == (1, (), 1)
    assert {n for _, n in works} == {5, 20}
    assert [gap["name"] for gap in meta["missing"]] == ["step+fused", "llamacpp"]


def test_each_length_is_raced_against_llama_cpps_fastest_mode_of_the_file():
    found = same_file.races(firsts())
    assert [(r["tokens"], r["rival"]) for r in found] == [(n, "llamacpp") for n in LENGTHS]
    for race, expected in zip(found, (18 / 20, 108 / 155), strict=True):
        assert race["ratio"].value == pytest.approx(expected, rel=0.02)
        assert race["ratio"].n == 8
    swapped = same_file.races(firsts(slower={("llamacpp", 10): 2.0}))
    assert [r["rival"] for r in swapped] == ["llamacpp+generate", "llamacpp"]
    assert same_file.over(firsts(), "step", 10)[1].value == pytest.approx(40 / 20, rel=0.02)
    other_file = [
        t.model_copy(update=dict(subject="llamacpp+q4_0")) if t.subject == "llamacpp" else t for t in firsts()
    ]
    assert same_file.over(other_file, "step", 10)[0] == "llamacpp+generate"


def test_a_race_is_with_every_peer_on_the_file_and_the_panel_with_llama_cpps():
    trials = [
        t.model_copy(
            update=dict(subject="ik-llamacpp", backend="ik_llama.cpp", token_times_ns=[t.token_times_ns[0] // 2])
        )
        for t in firsts()
        if t.subject == "llamacpp"
    ]
    found = same_file.races([*firsts(), *trials])
    assert {r["rival"] for r in found} == {"ik-llamacpp"}
    assert found[0]["others"] == ["llamacpp", "llamacpp+generate", "ik-llamacpp"]
    assert found[0]["ratio"].value == pytest.approx(2 * 18 / 20, rel=0.02)
    assert same_file.over([*firsts(), *trials], "step+fused", 10)[1].value == pytest.approx(18 / 20, rel=0.02)


def test_the_table_and_the_limits():
    entries = {(e["tokens"], e["subject"]): e for e in same_file.over_llamacpp(firsts())}
    assert entries[100, "step+fused"]["ratio"].value == pytest.approx(108 / 155, abs=0.02)
    assert len(show(list(entries.values()), same_file.COLUMNS)) == len(entries) == 8
    assert {e["ratio"].n for e in same_file.over_llamacpp(firsts(("step", "step+fused")))} == {0}
    cfg = config.tiny()
    about, share = floor(cfg, LENGTHS), cfg.weights_read_per_token / cfg.num_parameters
    # the arithmetic of 100 tokens takes 100 ms times the share
    gflops = roofline.prefill_flops(cfg, 100) / (100 * share) / 1e6
    found = same_file.limits(firsts(), about, gflops)
    assert found[10] == pytest.approx(max(10 * share, table.arithmetic_ms(about, 10, gflops)))  # 500 MB at 50 GB/s
    assert found[100] == pytest.approx(100 * share)
    assert same_file.reading(firsts(), about)["step+fused"] == pytest.approx(2 * share)  # 100 MB at 50 GB/s
    assert same_file.reading(firsts(("step", "llamacpp")), about) == {}
    assert math.isfinite(same_file.limits(firsts(("step",)), about, gflops)[10])


def draw(trials):
    about = floor(config.tiny(), LENGTHS)
    return chart.first_tokens(trials, same_file.limits(trials, about, 1e-3), same_file.reading(trials, about))


@pytest.mark.slow
@pytest.mark.parametrize("trials", [firsts(), firsts(("step",), 1), firsts(("step", "step+fused"))])
def test_the_chart_is_drawn_in_style(tmp_path, trials):
    assert_drawn(draw(trials), tmp_path)


def test_the_chart_names_who_is_first_and_what_is_not_measured():
    void = [t.model_copy(update=dict(valid=False)) for t in firsts(("step",), 1)]
    assert "No first token counts" in words(draw(void))
    assert "llama.cpp was not measured here" in words(draw(firsts(("step", "step+fused"))))
    figure = draw(firsts())
    said = "At both prompt lengths step+fused's first token is earlier than llama.cpp's and llama.cpp+generate's"
    assert said in words(figure).replace("\n", " ")
    left, right = ({text.get_text() for text in axes.texts} for axes in figure.axes)
    assert {"step", "step+fused", "llama.cpp", "limit of step", "limit of step+fused: its weights read once"} <= left
    loop = [t.model_copy(update=dict(subject="loop", placement="loop")) for t in firsts(("step",))]
    two = draw([*firsts(), *loop])
    assert "float32 limit" in {text.get_text() for text in two.axes[0].texts}  # of both
    assert "llama.cpp+generate" not in left  # the slower of the peers
    assert right == {"step", "step+fused"}


@pytest.mark.slow
def test_really_measured(tmp_path, monkeypatch):
    monkeypatch.setattr("llama_jax.plumbing.paths.tempfile.gettempdir", lambda: str(tmp_path))
    journal = Journal(kind=Start)
    experiment = race("step", "step+fused", "llamacpp", first_lengths=[5, 20], first_blocks=2)
    made, meta = experiment.record(journal)
    assert all(t.valid for t in made), [t.reason for t in made]
    assert Counter((t.subject, t.prompt_tokens) for t in made) == {
        (s, n): 2 for s in ("step", "step" + AGAIN, "step+fused") for n in (5, 20)
    }
    assert {t.quantisation for t in made if t.subject == "step+fused"} == {"q8_0+fused"}
    assert {len(t.token_times_ns) for t in made} == {1}
    assert {t.cache_slots for t in made if t.prompt_tokens == 5} == {5}  # nothing is padded
    assert [gap["name"] for gap in meta["missing"]] == ["llamacpp"]
    assert experiment.record(journal)[0] == made
