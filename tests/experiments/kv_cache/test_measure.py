import numpy as np
import pytest

from llama_jax import checkpoint, config
from llama_jax.plumbing.errors import UserError
from llama_lab.bench import AGAIN, passages
from llama_lab.bench import run as suite
from llama_lab.bench.statistics import Ratio
from llama_lab.experiments.kv_cache import chart, finding, measure
from tests.bench.test_record import trial
from tests.figures.drawn import assert_drawn, words

SMALL = (
    "random:gpt2,num_hidden_layers=1,hidden_size=64,intermediate_size=128,num_attention_heads=4,num_key_value_heads=4,"
    "head_dim=16,vocab_size=97"
)


def answer(subject, seconds, block, run=measure.FIFTEEN, **changes):
    """An answer of 15 tokens that took so many seconds, the first of them a fifth of it."""
    times = np.linspace(seconds / 5, seconds, 15) * 1e3
    return trial(subject, block, times, run=run, **changes)


def the_case(eager=2.0):
    took = {"step": 0.5, "eager": eager, "step+nocache": 1.0, "eager+nocache": 4.0}
    trials = [answer(name, t * (1 + 0.01 * b), b, process=1 + b % 2) for name, t in took.items() for b in range(6)]
    return trials + [answer("step" + AGAIN, 0.5 * (1 + 0.01 * b), b, process=1 + b % 2) for b in range(6)]


def test_the_published_case_in_ratios():
    case = measure.published_case(the_case())
    assert [case[name].value for name in ("both", "cache_alone", "jit_alone")] == pytest.approx([8, 2, 4])
    assert case["both"].n == 6
    assert case["published"] == {"slow": 1.5, "fast": 24.45, "ratio": 16.32}
    said = "jit without a cache makes 2.00x [2.00, 2.00] as many tokens/s as a cache without jit, n = 6."
    assert finding.larger(the_case()) == f"Jit gains more than the cache: {said}"
    assert finding.larger(the_case(eager=0.8)).startswith("The cache gains more than jit: ")
    assert finding.larger(the_case(eager=1.0)).startswith("Neither is shown to gain more: ")
    assert finding.larger([]).endswith("was not measured.")
    assert np.median(case["rates"]["step"]) == pytest.approx(15 / 0.5 / 1.025, rel=0.01)
    void = [
        t.model_copy(update=dict(valid=False)) if (t.subject, t.block) == ("step+nocache", 0) else t for t in the_case()
    ]
    assert [measure.published_case(void)[name].n for name in ("cache_alone", "both")] == [5, 6]


def test_latencies_are_those_of_one_model_by_context():
    def one(subject, run, context, times=(10, 14, 18)):
        return trial(subject, 0, times, run=f"{run} after {context}", prompt_tokens=context)

    trials = [
        one("step", "a", 32),
        one("step" + AGAIN, "a", 32),
        one("step+nocache", "a", 32, (10, 20, 30)),
        one("step", "b", 32),
        one("step", "a", 64),
    ]
    found = measure.latencies(trials, "a")
    assert found["step"] == {32: [pytest.approx(4)] * 2, 64: [pytest.approx(4)]}
    assert chart.limits(trials, "a", 2) == {32: [pytest.approx(0.5)], 64: [pytest.approx(0.5)]}


def test_a_cache_is_paired_with_both_answers_of_the_step():
    def after(subject, ms, block):
        return trial(subject, block, (10, 10 + ms, 10 + 2 * ms), run="a after 32", prompt_tokens=32)

    trials = [
        after(name, ms, b) for b in (0, 1) for name, ms in (("step", 4), ("step" + AGAIN, 16), ("step+nocache", 32))
    ]
    gain = finding.saving(trials, "a", 32)
    assert (gain.value, gain.n) == (pytest.approx(4), 2)  # 32 ms over the geometric mean of 4 and 16
    assert gain.floor == pytest.approx(np.log(4))
    assert not finding.saving(trials, "a", 64).n


def test_what_a_cache_gains_is_said_with_a_verdict_unless_it_is_faster():
    few, many = finding.by_context({32: Ratio(3.5, 3.4, 3.6, 9), 768: Ratio(1.1, 0.9, 1.3, 9), 9: Ratio(1, 1, 1, 0)})
    assert few.words == "jitted, after 32 tokens: 3.50x [3.40, 3.60] as fast with a cache, n = 9"
    assert many.words == "jitted, after 768 tokens: 1.10x [0.90, 1.30] as fast with a cache, undecided, n = 9"
    scattered = Ratio(1.1, 1.05, 1.2, 9, spread=0.5)
    assert "with a cache, faster (pairs scatter by 65%), n = 9" in finding.by_context({32: scattered})[0].words


def test_the_finding_names_both_gains_on_the_published_case():
    said = finding.kv_cache(the_case(), {}, [], "m")
    assert said.startswith("What a KV cache gains was not measured. A 15-token answer on GPT-2's shapes: 8.00x")
    assert "as fast with cache and jit as with neither, n = 6, where 16.32x was published with one side cold" in said
    assert "2.00x [2.00, 2.00] as fast with cache and jit as with jit alone, n = 6." in said


def test_positions_that_a_token_computes_without_a_cache_are_said():
    trials = [
        trial("step+nocache", 0, [10, 20], run=f"a after {n}", prompt_tokens=n, cache_slots=slots)
        for n, slots in ((768, 1024), (32, 48))
    ]
    assert finding.computed(trials, "a").endswith("empty ones too: 48 after 32 and 1,024 after 768")
    assert finding.computed(trials, "b") == ""


def test_growth_of_a_tokens_time_is_said_with_and_without_a_cache():
    series = {
        "step": {32: [10.0], 64: [15.0]},
        "step+nocache": {32: [30.0], 64: [60.0]},
        "eager+nocache": {32: [60.0], 64: [180.0]},
        "eager": {},
    }
    with_one, without = finding.growth(series)
    assert with_one == "2 times the text takes 1.50 times as long with a cache and jit"
    assert without == "without a cache eager takes 2.0 times as long as jit after 32 tokens, 3.0 times after 64"
    assert finding.growth({name: {} for name in series}) == []


def test_the_claim_names_the_model_in_twenty_words():
    said = str(finding.claim({32: Ratio(3.5, 3.4, 3.6, 9), 768: Ratio(56, 50, 60, 9)}, "smollm2-135m-instruct"))
    assert said.startswith("With a KV cache, jitted decoding of smollm2-135m-instruct is 3.50 times")
    assert len(said.split()) <= 20


def test_weights_in_fewer_bytes_need_not_be_faster():
    assert finding.by_bytes(Ratio(0.97, 0.9, 1.04, 9), "int8", "bfloat16", 0.513) == (
        "int8 has 51% of bfloat16's bytes, but is not shown to be faster: 0.97x [0.90, 1.04], n = 9"
    )
    assert "and is faster" in finding.by_bytes(Ratio(1.5, 1.4, 1.6, 9), "int8", "bfloat16", 0.5)


def test_charts_say_what_was_measured_also_where_little_was(tmp_path):
    assert "8.00 times as fast" in words(chart.published_case(measure.published_case(the_case())))
    work, sizes = measure.attention_work(config.tiny(), 64), measure.cache_bytes(config.tiny(), (16, 64))
    figure = chart.work_and_bytes(work, {"m": sizes})
    assert "An int8 cache slows down this decoder: 0.500x" in finding.sped_up(Ratio(0.5, 0.4, 0.6, 9), "int8")
    assert "Whether a float16 cache" in finding.sped_up(Ratio(0.96, 0.88, 1.06, 9), "float16")
    assert "is undecided: 0.960x [0.880, 1.060]" in finding.sped_up(Ratio(0.96, 0.88, 1.06, 9), "float16")
    assert "from n³ into n² operations; in int8 it takes" in words(figure)
    grown = [t.model_copy(update=dict(run="m after 4", reason="")) for t in the_case()]
    for trials, said in ((grown, "After 4 tokens"), ([], "No context was measured")):
        series = measure.latencies(trials, "m") | dict(limit=chart.limits(trials, "m", 2))
        assert said in words(chart.latency_by_context({"M": series}))
    typed = [answer(name, 1.0, b, run="types", kv_bytes=10**6) for name in measure.TYPES for b in range(3)]
    kept = [dict(kv="f32", tokens=9, kl=0.0, top1=1.0), dict(kv="int8", tokens=9, kl=1e-3, top1=0.9)]
    drawn = chart.types(typed, kept)
    assert "best token\n same 90.0%" in words(drawn)
    assert "None of the smaller caches is shown to decode faster than float32; every smaller cache keeps" in words(
        drawn
    )
    assert "same for 90.0% of tokens or more" in words(drawn)
    assert [tick.get_text() for tick in drawn.axes[0].get_yticklabels()][-1] == "int8\n1 MB"
    slow = [t.model_copy(update=dict(token_times_ns=[3 * x for x in t.token_times_ns])) if "16" in t.subject else t
            for t in typed]  # fmt: skip
    figure_of_slow = chart.types(slow, kept)
    assert "slower" not in figure_of_slow._suptitle.get_text()  # one of three comparisons is no title
    assert "\nslower, n = 3" in words(figure_of_slow)
    for drawn in (figure, chart.types([], [])):
        assert_drawn(drawn, tmp_path)


def kv_cache(**changes):
    counts = dict(seed=0, new_tokens=4, blocks=1, case_blocks=2, type_blocks=1, processes=1, type_context=40)
    return measure.KvCache(**dict(model=SMALL, shapes=SMALL, contexts=[8, 16]) | counts | changes)


@pytest.mark.parametrize(
    ("contexts", "words"),
    [
        ([32, 1022], "context of 1024"),
        ([32], "at least two lengths"),
        ([0, 5], "at least two lengths"),
        (["a", "b"], "at least two lengths"),
    ],
)
def test_plans_are_checked_before_anything_runs(contexts, words):
    with pytest.raises(UserError, match=words):
        kv_cache(contexts=contexts).record()


@pytest.mark.parametrize("family", config.FAMILIES)
@pytest.mark.parametrize(("queries", "keys"), [(1, 64), (1, 1000), (200, 200)])
def test_attention_operations_are_those_that_xla_counts(family, queries, keys):
    cfg = config.tiny(family, head_dim=64)
    counted = measure.counted_attention_flops(cfg, queries, keys)
    assert measure.attention_flops(cfg, queries, keys) == pytest.approx(counted, rel=0.05)  # softmax is the rest


def test_work_adds_up_to_a_square_with_a_cache_and_a_cube_without():
    work = measure.attention_work(config.PRESETS["gpt2"], 1024)
    one = measure.attention_flops(config.PRESETS["gpt2"], 1, 1)
    last = work[-1]
    assert last["length"] == 1024
    assert last["cached"] == one * 1024 * 1025 / 2
    assert last["uncached"] == pytest.approx(one * 1024**3 / 3, rel=2e-3)
    for way in ("cached", "uncached"):
        assert last[f"{way}_counted"] == pytest.approx(last[way], rel=0.05)


def test_the_cache_has_the_bytes_that_were_predicted():
    for cfg in (config.tiny(), config.PRESETS["gpt2"]):
        for e in measure.cache_bytes(cfg, (16, 64), batch=2):
            assert e["predicted"] == e["measured"], e
    by_kind = {e["kv"]: e["measured"] for e in measure.cache_bytes(config.PRESETS["gpt2"], (64,))}
    assert by_kind["f32"] == 2 * by_kind["bf16"]
    assert by_kind["int8"] / by_kind["f32"] == pytest.approx((64 + 4) / (4 * 64))


def test_a_smaller_cache_is_further_from_float32(tiny):
    loaded = checkpoint.Checkpoint("tiny", *tiny, None, "hash", "random:tiny", "float32")
    full, brain, half, eighth = measure.quality(loaded, passages.english(loaded, 70, seed=3))
    assert [e["kv"] for e in (full, brain, half, eighth)] == ["f32", "bf16", "f16", "int8"]
    assert (full["kl"], full["top1"], full["error"]) == (0, 1, 0)
    assert 0 < half["kl"] < brain["kl"] < eighth["kl"] < 0.1
    assert half["error"] < brain["error"] < eighth["error"] < 0.1
    assert full["tokens"] == 64 - measure.PIECE  # whole pieces, the first left out
    with pytest.raises(UserError, match="at least 32"):
        measure.quality(loaded, [1] * 31)


def test_english_is_text_of_the_asked_length(packaged):
    ids = passages.english(packaged, 300)
    assert len(ids) == 300
    assert " the " in packaged.tokenizer.decode(ids)


@pytest.mark.slow
def test_the_case_is_measured_whole_and_gated(tmp_path, monkeypatch):
    monkeypatch.setattr("llama_jax.plumbing.paths.tempfile.gettempdir", lambda: str(tmp_path))
    trials = suite.collect(kv_cache().plans[0])
    assert {t.subject for t in trials} == {*measure.COMBINATIONS, "step" + AGAIN}
    assert all(t.valid and t.new_tokens == measure.NEW and t.prompt_tokens == measure.PROMPT for t in trials), [
        t.reason for t in trials
    ]
    assert measure.published_case(trials)["both"].n == 2
