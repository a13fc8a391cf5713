"""What trials of first tokens say, from made-up ones whose answers are known."""

import numpy as np
import pytest

from llama_jax import config
from llama_lab.bench import roofline
from llama_lab.bench.cold import Start
from llama_lab.bench.frames import show
from llama_lab.experiments.time_to_first_token import finding, first_requests, side_by_side, table
from llama_lab.experiments.time_to_first_token.measure import floor
from tests.bench.test_record import trial

TIMES = {  # ms to the first token: subject → (fixed, per token)
    "step exact": (20, 1.0),
    "step fixed": (120, 0.0),
    "torch": (30, 1.2),
    "torch-script": (31, 1.2),
    "llamacpp": (10, 2.0),
}
BACKENDS = {"torch": "torch", "torch-script": "torch", "llamacpp": "llama.cpp"}
LENGTHS, AT = (10, 50, 100), 50


def request(subject, n, block, run="warm", ms=None, **changes):
    fixed, slope = TIMES[subject.removesuffix(" (again)")]
    ms = (fixed + slope * n) * (1 + 0.001 * block) if ms is None else ms
    own = dict(
        backend=BACKENDS.get(subject, "jax"), prompt_tokens=n, run=run, weights_bytes=4 * 10**6, process=1 + block % 2
    )
    return Start(**{**trial(subject, block, (ms, ms + 5)).model_dump(), **own, **changes})


def everything(blocks=6, tail=0):
    made = [request(name, n, b) for name in (*TIMES, "step exact (again)") for n in LENGTHS for b in range(blocks)]
    made += [request("torch", AT, b, "tail") for b in range(tail)]
    first = dict(
        phase="cold",
        first_trace_ns=10**8,
        first_lower_ns=10**8,
        first_backend_ns=8 * 10**8,
        load_ns=2 * 10**9,
        peak_rss_bytes=10**9,
    )
    made += [request("step exact", AT, b, "cold step exact", 1500 + b, **first) for b in range(3)]
    return made + [request("torch", AT, 0, "cold torch", 140, phase="cold", load_ns=10**9)]


def changed(trials, subject, n, block=None, **update):
    """The trials, with one subject's warm ones at one length as they are said to be."""
    return [
        t.model_copy(update=update)
        if (t.subject, t.prompt_tokens, t.phase) == (subject, n, "warm") and block in (None, t.block)
        else t
        for t in trials
    ]


def entry(trials, subject, n):
    return next(e for e in table.table(trials) if (e["subject"], e["tokens"]) == (subject, n))


def test_an_entry_has_the_statistics_of_its_own_length_and_never_a_p99_that_cannot_be():
    found = entry(everything(), "torch", 50)
    values = 90 * (1 + 0.001 * np.arange(6))
    assert (found["n"], found["void"]) == (6, 0)
    for key, value in (
        ("mean", values.mean()),
        ("sd", values.std(ddof=1)),
        ("min", 90),
        ("max", values[-1]),
        ("p50", np.median(values)),
    ):
        assert found[key] == pytest.approx(value), key
    assert found["low"] <= found["p50"] <= found["high"]
    assert found["p99"] is None
    assert show([found], table.COLUMNS).loc[(50, "torch"), "P99"] == "needs n ≥ 1,000"
    many = [t for t in everything(tail=1000) if t.run == "tail"]
    found = entry(many, "torch", AT)
    assert found["n"] == 1000
    assert found["p99"] == pytest.approx(np.percentile([table.first_ms(t) for t in many], 99))
    assert show([found], table.COLUMNS).loc[(AT, "torch"), "P99"] == f"{found['p99']:.1f}"


def test_void_and_cold_requests_are_in_no_statistic():
    spoilt = changed(everything(), "torch", 50, 2, valid=False, reason="wrong: token 0 is 1, the reference has 2")
    found = entry(spoilt, "torch", 50)
    assert (found["n"], found["void"]) == (5, 1)
    assert found["reasons"] == ["wrong: token 0 is 1, the reference has 2"]
    assert found["max"] < 140  # the cold one
    nothing = entry(changed(everything(), "torch", 50, valid=False), "torch", 50)
    assert nothing["n"] == 0
    assert np.isnan(nothing["mean"])


def test_ratios_pair_the_same_passage_and_have_the_best_placement_of_each_length_below():
    found = {(r["tokens"], r["peer"]): r for r in table.ratios(everything())}
    assert found[10, "torch"]["ratio"].value == pytest.approx(42 / 30)
    assert found[10, "llamacpp"]["ratio"].value == pytest.approx(30 / 30)
    assert found[100, "llamacpp"]["ratio"].value == pytest.approx(210 / 120)
    assert {r["best"] for key, r in found.items()} == {"step exact"}
    assert found[10, "torch"]["ratio"].n == 6
    assert found[10, "torch"]["ratio"].verdict == "faster"
    assert found[10, "llamacpp"]["ratio"].verdict == "equal within 2%"
    long = [
        *everything(),
        *(request("step fixed", 400, b) for b in range(6)),
        *(request("step exact", 400, b) for b in range(6)),
    ]
    assert table.best(long, table.placements(long), [400]) == "step fixed"
    assert table.best(everything(), ["torch", "torch-script"], [10]) == "torch"


def test_a_block_without_its_pair_is_in_no_ratio_and_a_noisy_control_takes_the_verdict_away():
    assert table.sooner(changed(everything(), "torch", 50, 2, valid=False), "step exact", "torch", 50).n == 5
    noisy = [t for t in everything() if not t.subject.endswith("(again)")]
    noisy += [request("step exact (again)", 50, b, ms=105 * (1 + 0.001 * b)) for b in range(6)]
    assert table.sooner(noisy, "step exact", "torch", 50).verdict == "undecided"


def test_what_is_highlighted_is_the_best_of_each_kind():
    assert table.highlighted(everything()) == ["step exact", "torch"]
    bits = [t.model_copy(update=dict(dtype="q4_0")) if t.subject == "llamacpp" else t for t in everything()]
    assert table.highlighted(bits) == ["step exact", "torch", "llamacpp"]
    incomplete = changed(bits, "torch", 100, valid=False)
    assert table.highlighted(incomplete) == ["step exact", "torch-script", "llamacpp"]


def on_blocks():
    """`everything`, llama.cpp on the file's own blocks and re-quantised, a placement on the same blocks as the first,
    and PyTorch in int8."""
    made = [t.model_copy(update=dict(dtype="q4_1", quantisation="gguf-q4_1")) if t.subject == "llamacpp" else t
            for t in everything()]  # fmt: skip
    shapes = {
        "step+fused exact": (5, 0.5, dict(backend="jax", quantisation="gguf+fused")),
        "llamacpp+q4_0": (6, 1.0, dict(backend="llama.cpp", dtype="q4_0", quantisation="gguf-q4_0")),
        "torch-int8": (4, 0.4, dict(backend="torch", dtype="int8", quantisation="int8")),
    }
    for name, (fixed, slope, known) in shapes.items():
        times = [(n, b, (fixed + slope * n) * (1 + 0.001 * b)) for n in LENGTHS for b in range(6)]
        made += [request("torch", n, b, ms=ms).model_copy(update=known | dict(subject=name)) for n, b, ms in times]
    return made


def test_a_peer_is_judged_against_the_best_placement_on_its_own_kind_of_weights():
    trials = on_blocks()
    assert table.weights(trials)["step+fused exact"] == "q4_1"
    best = {r["peer"]: r["best"] for r in table.ratios(trials)}
    assert best["torch"] == "step exact"
    assert best["llamacpp"] == best["llamacpp+q4_0"] == best["torch-int8"] == "step+fused exact"
    assert table.highlighted(trials) == ["step+fused exact", "step exact", "torch", "llamacpp", "torch-int8"]
    said = finding.claim(trials, table.ratios(trials)).sentence
    assert "float32 and in q4_1" in said
    assert "PyTorch-int8 is earlier at 3 lengths" in said
    assert "without our kernels" not in said
    first = [t for t in trials if t.subject != "torch-int8"]
    assert finding.first_token(first).startswith(
        "`step+fused` is first at all 3 prompt lengths; in float32 `step` at all 3."
    )


def test_a_length_of_a_tail_alone_takes_nothing_from_the_others():
    trials = [*everything(), *(request(name, 400, b, "tail") for name in ("step exact", "torch") for b in range(3))]
    assert table.lengths(trials) == [10, 50, 100, 400]
    assert table.shared_lengths(trials) == [10, 50, 100]
    assert {e["subject"] for e in table.table(trials) if e["tokens"] == 400} == {"step exact", "torch"}
    assert table.highlighted(trials) == table.highlighted(everything())
    assert [(r["peer"], r["ratio"].n) for r in table.ratios(trials) if r["tokens"] == 400] == [("torch", 3)]
    assert finding.first_token(trials) == finding.first_token(everything())


def test_requests_of_a_tail_are_beside_those_of_all_subjects_nowhere():
    late = [request(name, n, b, "tail", 900) for name in ("step exact", "torch") for n in (50, 400) for b in range(9)]
    trials = [*everything(), *late]
    assert side_by_side.interleaved(trials) == side_by_side.interleaved(everything())
    for said in (side_by_side.entries, finding.first_token, finding.at_shared, finding.first_of_all, side_by_side.late):
        assert said(trials) == said(everything())
    race = finding.first_of_all(everything())[1]
    assert finding.beside(trials, race) == finding.beside(everything(), race)
    limit = ("step exact", {50: 10.0})
    assert side_by_side.near_limit(trials, *limit) == side_by_side.near_limit(everything(), *limit)
    assert first_requests.cold(trials, AT) == first_requests.cold(everything(), AT)


def test_tails_are_of_those_with_a_p95_somewhere_at_all_lengths_of_their_tail():
    few = [request(name, 10, b, "tail") for name in ("torch", "step exact") for b in range(3)]
    found = side_by_side.tails([*everything(tail=200), *few])
    assert [(e["subject"], e["tokens"], e["n"]) for e in found] == [("torch", 10, 3), ("torch", 50, 200)]
    assert [e["p95"] is None for e in found] == [True, False]
    said = table.tails_words(found).split("; ")
    assert ["P95" in words for words in said] == [False, True]
    assert all(words.startswith("torch at ") and "P50" in words and "n = " in words for words in said)
    assert side_by_side.tails(everything(tail=199)) == []


def test_the_limit_is_the_bytes_of_a_short_prompt_and_the_arithmetic_of_a_long_one():
    cfg = config.tiny()
    about = floor(cfg, LENGTHS)
    share = cfg.weights_read_per_token / cfg.num_parameters
    assert table.reading_ms(everything(), "torch", about) == pytest.approx(4 * share)  # 4 MB at 1 GB/s
    gflops = roofline.prefill_flops(cfg, 50) / (8 * share) / 1e6  # at 50 tokens the arithmetic takes twice the reading
    found = table.limits(everything(), "torch", about, gflops)
    assert found[10] == pytest.approx(4 * share)
    assert found[50] == pytest.approx(8 * share)
    assert found[100] > 2 * found[50] * 0.99


def test_what_was_not_measured_is_named_with_its_reason():
    gaps = [
        dict(name="torch-cudagraph", reason="There is no CUDA device.", remedy=""),
        dict(name="ollama", reason="No server.", remedy=""),
    ]
    found = table.unmeasured(everything(), gaps)
    assert found["torch-cudagraph"] == "There is no CUDA device."
    assert found["ollama"] == "No server."
    assert found["torch-compile"] == "not asked for in this run"
    assert not {"torch", "torch-script", "llamacpp", "flax-nnx"} & set(found)


def test_scripting_is_judged_against_the_same_loop_without():
    slower = {"torch-script": 1.25, "torch-compile": 0.5, "torch+static": 1.0}
    made = [
        request("torch", n, b, ms=factor * (30 + n + 0.01 * b)).model_copy(update=dict(subject=name))
        for name, factor in slower.items()
        for n in LENGTHS
        for b in range(6)
    ]
    found = table.scripting(made)
    assert [(e["what"], e["tokens"]) for e in found] == [
        (what, n) for what in ("the dynamic operations scripted", "everything compiled") for n in LENGTHS
    ]
    assert [round(e["ratio"].value, 2) for e in found] == [0.8] * 3 + [2.0] * 3


# First requests of fresh processes ------------------------------------------------------------------------------------


def test_a_cold_request_comes_apart_into_its_parts():
    step, torch = first_requests.cold(everything(), AT)
    assert (step["subject"], step["n"], step["tokens"]) == ("step exact", 3, AT)
    assert step["compile_ms"] == pytest.approx(1000)
    assert (
        step["compile_ms"] + step["once_ms"] + step["usual_ms"] == pytest.approx(step["median"]) == pytest.approx(1501)
    )
    assert step["usual_ms"] == step["warm_ms"]
    assert (step["load_s"], step["peak_rss_bytes"]) == (2, 10**9)
    assert torch["compile_ms"] == 0
    assert torch["once_ms"] == pytest.approx(140 - torch["warm_ms"])


def test_the_parts_of_a_cold_request_that_was_quicker_than_warm_ones_still_add_up():
    slow = [t for t in changed(everything(), "torch", AT, token_times_ns=[10**9, 2 * 10**9]) if t.subject == "torch"]
    (found,) = first_requests.cold(slow, AT)
    assert (found["warm_ms"], found["median"], found["usual_ms"], found["once_ms"]) == (1000, 140, 140, 0)


def test_one_cold_request_lifts_a_mean_above_every_warm_one():
    step, torch = first_requests.mixing(everything(), AT)
    # process by process
    assert step["mixed"] == pytest.approx(np.mean([1501, *(70 * (1 + 0.001 * np.array([0, 2, 4, 1])))]))
    assert step["mixed"] > step["largest"] > step["warm"]
    assert (step["n"], torch["n"]) == (6, 6)
    assert first_requests.mixing(everything(blocks=3), AT) == []
    assert show([], first_requests.MIXED).empty
    assert first_requests.mixing(everything(tail=50), AT)[1] == torch  # a loop of five has none of a tail's hundreds


def test_the_published_means_lie_above_their_p99():
    original = first_requests.as_published().loc["JIT-only (document)"]
    assert original["mean / P99"] == pytest.approx(76.04 / 59.25, abs=0.01)
    assert original["mean without the cold row (computed)"] == 63.2  # of the same table, not of the repository's
    assert original["mean / mean without"] == pytest.approx(76.04 / 63.2, abs=0.01)


def test_first_requests_are_shown_without_the_parts_that_nobody_has_apart():
    frame = first_requests.cold_table(first_requests.cold(everything(), AT))
    assert frame.index.tolist() == [(AT, "step exact"), (AT, "torch")]
    assert frame["cold s"].tolist() == [1.501, 0.14]
    assert "compile s" in frame
    assert "script s" not in frame


def scripting(name, ms, block=0, calls=(30, 21, 1, 2), **changes):
    """A first request of a subject that scripts; times in ms."""
    own = dict(phase="cold", load_ns=10**9, backend="torch", script_ns=18 * 10**6, freeze_ns=0)
    own |= dict(first_trace_ns=0, first_lower_ns=0, first_backend_ns=18 * 10**6)
    own |= dict(script_calls_ns=[call * 10**6 for call in calls], **changes)
    return request("torch-script", AT, block, f"cold {name}", ms, **own).model_copy(update=dict(subject=name))


def test_scripting_and_the_first_run_are_parts_of_their_own():
    made = [*everything(), scripting("torch-script", 160), scripting("torch-script", 170, 1)]
    found = {e["subject"]: e for e in first_requests.cold(made, AT)}["torch-script"]
    assert (found["compile_ms"], found["script_ms"], found["freeze_ms"], found["profiled_ms"]) == (0, 18, 0, 29)
    assert found["next_ms"] == 20  # the second request's, which is no part of the first
    assert 18 + 29 + found["once_ms"] + found["usual_ms"] == pytest.approx(found["median"]) == pytest.approx(165)
    frozen = first_requests.cold([scripting("torch-script+frozen", 160, freeze_ns=2 * 10**6)], AT)[0]
    assert (frozen["script_ms"], frozen["freeze_ms"]) == (18, 2)


def test_what_dynamo_compiles_is_compiling_and_a_warm_functions_calls_prepare_nothing():
    compiled = scripting("torch-compile", 160, calls=(), first_backend_ns=40 * 10**6, script_ns=0)
    (found,) = first_requests.cold([compiled], AT)
    assert (found["compile_ms"], found["script_ms"], found["profiled_ms"], found["next_ms"]) == (40, 0, 0, 0)
    (found,) = first_requests.cold([scripting("torch-script", 160, calls=(1, 1, 2, 3))], AT)
    assert (found["profiled_ms"], found["next_ms"]) == (0, 0)
    (found,) = first_requests.cold([scripting("torch-script", 160, calls=(9, 9))], AT)  # ended before it was optimised
    assert (found["profiled_ms"], found["next_ms"]) == (0, 0)


def test_what_older_rows_do_not_tell_apart_is_said():
    scripted = scripting("torch-script", 160)
    compiled = scripting("torch-compile", 160, calls=(), script_ns=0)
    found = first_requests.cold([*everything(), scripted, compiled], AT)
    frame = first_requests.cold_table(found)  # `torch` is of an older row
    parts = {"torch": "not measured apart", "torch-script": "0.000", "torch-compile": "0.018", "step exact": "1.000"}
    assert {name: frame.loc[(AT, name), "compile s"] for name in parts} == parts


def test_what_scripting_prepares_is_other_once_and_has_a_table_of_its_own():
    found = first_requests.cold([*everything(), scripting("torch-script", 160)], AT)
    warm = table.middle(everything(), "torch-script", AT)
    frame = first_requests.cold_table(found)
    assert frame.loc[(AT, "torch-script"), "other, once s"] == pytest.approx((160 - warm) / 1e3, abs=1e-3)
    own = show(first_requests.scripted(found), first_requests.SCRIPTS)
    assert own.index.tolist() == ["torch-script"]
    assert own.loc["torch-script"].tolist() == pytest.approx([18, 0, 29, 160 - warm - 18 - 29, 20], abs=0.1)
    assert "script s" not in frame


def test_a_figure_of_cold_starts_has_no_variants_on_the_same_weights():
    first = dict(phase="cold", load_ns=10**9)
    peers = {"torch": "float32", "torch+static": "float32", "torch+int8": "int8", "openvino+x": "float32"}
    asked = [request("torch", AT, 0, "cold", 314, **first), *(request("torch", AT, b) for b in range(2))]
    made = [t.model_copy(update=dict(subject=name, dtype=kind)) for name, kind in peers.items() for t in asked]
    cold = first_requests.cold(made, AT)
    assert len(cold) == 4
    assert {e["subject"] for e in first_requests.plainest(cold, made)} == {"torch", "torch+int8", "openvino+x"}
    assert first_requests.over_warm(cold[:1]).endswith(" 3.5")  # 314 ms over 90 ms
