"""What rows of compiled kernels say, exact on made-up times; and the charts of them, also where there is little."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.text import Text

from llama_jax import config
from llama_lab import figures
from llama_lab.bench import quality
from llama_lab.bench.frames import show
from llama_lab.bench.statistics import Ratio
from llama_lab.experiments.compiled_kernels import (
    chart,
    commands,
    file_types,
    finding,
    people_files,
    rows,
    scaling,
    sizes,
    where,
)
from llama_lab.experiments.compiled_kernels.rows import BATCH, SEQUENCE, Pass
from llama_lab.experiments.compiled_kernels.where import LONG, NARROW, SHALLOW, WHOLE
from tests.bench.test_record import trial
from tests.figures.drawn import META, assert_drawn, words

MODEL, SHORT, FAR = "random:smollm2-135m", 128, 1024
OF = where.Sizes(layers=30, fewer=10, vocabulary=49152, smaller=6144, short=SHORT, long=FAR)


def paced(name, block, ms, first=50, tokens=11, **changes):
    """An answer whose tokens come so many milliseconds apart."""
    return trial(name, block, [first + ms * k for k in range(tokens)], **changes)


# Where a token's time goes --------------------------------------------------------------------------------------------


def times(layer, row, position, rest, of=OF):
    """ms of each variant for a model whose parts cost so much: a layer, a row of the head, a position in the cache of
    one layer."""

    def token(layers, rows, context):
        return layers * (layer + position * context) + row * rows + rest

    return {
        WHOLE: token(of.layers, of.vocabulary, of.short),
        SHALLOW: token(of.fewer, of.vocabulary, of.short),
        NARROW: token(of.layers, of.smaller, of.short),
        LONG: token(of.layers, of.vocabulary, of.long),
    }


def answers(name="loop", layer=0.1, blocks=6, noise=0.0):
    rng = np.random.default_rng(0)
    return [
        paced(variant, block, ms * (1 + noise * rng.normal()), run=f"where {name}", placement=name)
        for block in range(blocks)
        for variant, ms in times(layer, 2e-5, 1e-5, 0.3).items()
    ]


def parts(trials):
    return where.table(trials, MODEL, SHORT, FAR)


small = st.floats(1e-6, 10)


@given(layer=small, row=st.floats(1e-7, 1e-3), position=st.floats(1e-7, 1e-2), rest=st.floats(-1, 5))
def test_parts_are_found_exactly(layer, row, position, rest):
    found = where.parts(times(layer, row, position, rest), OF)
    assert found["layers"] == pytest.approx(30 * layer, rel=1e-6, abs=1e-6)
    assert found["head"] == pytest.approx(49152 * row, rel=1e-6, abs=1e-6)
    assert found["attention"] == pytest.approx(30 * 1024 * position, rel=1e-6, abs=1e-6)
    assert found["rest"] == pytest.approx(rest, abs=1e-6 * max(1, 30 * layer))


def test_the_sizes_leave_something_to_subtract():
    assert where.sizes(config.PRESETS["smollm2-135m"], SHORT, FAR) == OF
    small = where.sizes(config.tiny(), 24, 64)
    assert (small.fewer, small.smaller) == (1, 64)


def test_parts_add_up_and_say_how_sure_they_are():
    (entry,) = parts(answers(noise=0.01))
    assert sum(entry[part] for part in where.WORDS) == pytest.approx(entry["total"])
    assert entry["n"] == 6
    assert all(entry[f"{part}_low"] < entry[part] < entry[f"{part}_high"] for part in where.WORDS)
    exact = parts(answers())[0]
    assert (exact["layers"], exact["head"], exact["rest"]) == pytest.approx((3.0, 0.98304, 0.3), rel=1e-3)
    made = answers(blocks=3)  # a block without all variants is left out
    broken = [t.model_copy(update=dict(valid=False)) if t.block == 1 and t.subject == NARROW else t for t in made]
    assert parts(broken)[0]["n"] == 2
    assert parts([t for t in made if t.subject != LONG]) == []


# Scaling --------------------------------------------------------------------------------------------------------------


def points(name="loop", rates={"256": 60, "4096": 40, "1024": 50}, axis="context"):  # noqa: B006
    """Three answers of a subject at several sizes."""
    return [
        paced(name, 0, 1e3 / rate * (1 + i / 1000), run=f"{axis} {value} {name}", order=i, weights_bytes=10**8)
        for value, rate in rates.items()
        for i in range(3)
    ]


def test_points_stand_in_the_order_of_their_size_and_void_answers_do_not_count():
    found = scaling.axis_of(points() + points("llamacpp", {"256": 150}), "context")
    assert [(p["value"], p["rate"].n) for p in found["loop"]] == [("256", 3), ("1024", 3), ("4096", 3)]
    assert found["loop"][0]["rate"].median == pytest.approx(60, rel=0.01)
    assert scaling.kept(found["loop"]) == pytest.approx(40 / 60, rel=0.01)
    assert found["loop"][0]["mbu"] == pytest.approx(60 * 1e6 / 1e9, rel=0.01)
    assert scaling.axis_of(points(), "threads") == {}
    void = [t.model_copy(update=dict(valid=False)) if t.run == "context 256 loop" else t for t in points()]
    assert [p["value"] for p in scaling.axis_of(void, "context")["loop"]] == ["1024", "4096"]


# Rows -----------------------------------------------------------------------------------------------------------------


def passes(engine="loop+fused", costs={1: 1.0, 4: 1.2, 8: 2.0}, kind=SEQUENCE, context=64, blocks=3):  # noqa: B006
    """Times of 3 ms a row's pass, times the cost, with the process's own luck."""
    return [
        Pass(run=f"rows {engine}", block=block, order=i, process=block, seed=0, phase="warm", valid=True, engine=engine,
             kind=kind, rows=n, context=context, pass_ns=[int(3e6 * cost * (1 + 0.1 * block) + k) for k in range(5)])
        for block in range(blocks)
        for i, (n, cost) in enumerate(costs.items())
    ]  # fmt: skip


def test_costs_are_ratios_of_one_process():
    found = {(e["kind"], e["rows"]): e for e in rows.table(passes() + passes(costs={8: 2.5}, kind=BATCH))}
    costs = {(SEQUENCE, 4): 1.2, (SEQUENCE, 8): 2.0, (BATCH, 8): 2.5}
    assert {shape: found[shape]["ratio"].value for shape in costs} == pytest.approx(costs, rel=1e-4)
    assert found[SEQUENCE, 1]["ms"].median == pytest.approx(3.3, rel=1e-3)
    assert (found[SEQUENCE, 4]["ratio"].n, found[SEQUENCE, 4]["ms"].n) == (3, 15)
    (alone,) = rows.table(passes(costs={4: 1.2}))
    assert alone["ratio"].n == 0  # nothing to compare it with


# Sizes ----------------------------------------------------------------------------------------------------------------


def on_file(rates, file="small/q4_0", megabytes=100, prompts=None):
    """Answers of several engines on a file in six blocks: of 11 tokens at context 64, and prompts of 50 tokens.

    rates: engine → tokens/s. prompts: engine → tokens/s.
    """
    made, backends = [], dict(llamacpp="llama.cpp", openvino="openvino")
    for block in range(6):
        shaky = 1 + 0.004 * (block % 3)
        for order, (name, rate) in enumerate(rates.items()):
            about = dict(run=file, order=order, backend=backends.get(name, "jax"), bytes_per_token=megabytes * 1e6)
            about |= dict(bandwidth_gbps=40.0, tokenize_ns=0)
            made.append(paced(name, block, 1e3 / rate * shaky * (1.001 if order else 1), **about, prompt_tokens=53))
            if prompts:
                made.append(paced(name, block, 0, 50e3 / prompts[name] * shaky, 1, **about, prompt_tokens=50))
    return made


SIZED = on_file(dict(loop=300, llamacpp=100, openvino=150), prompts=dict(loop=900, llamacpp=1000, openvino=500))


def test_each_is_held_against_the_best_peer_on_its_file_and_shape():
    table = sizes.table(SIZED + on_file(dict(loop=30, llamacpp=20, openvino=10), "large/q4_0", megabytes=1000))
    found = {(e["file"], e["what"], e["tokens"], e["name"]): e for e in table}
    ours = found["small/q4_0", "decode", 64, "loop"]
    assert (ours["best"], ours["ratio"].verdict) == ("openvino", "faster")
    assert ours["ratio"].value == pytest.approx(2, rel=0.01)
    assert ours["mbu"] == pytest.approx(300 * 1e8 / 40e9, rel=0.02)
    prompt = found["small/q4_0", "prefill", 50, "loop"]
    assert (prompt["best"], prompt["ratio"].verdict) == ("llamacpp", "slower")
    assert prompt["rate"].median == pytest.approx(900, rel=0.02)
    assert np.isnan(prompt["mbu"])
    assert found["large/q4_0", "decode", 64, "loop"]["best"] == "llamacpp"
    assert found["small/q4_0", "decode", 64, "openvino"]["ratio"].value == pytest.approx(1)
    assert [e["bytes"] for e in table if e["what"] == "decode"] == [1e8] * 3 + [1e9] * 3


def test_void_answers_do_not_count_and_without_a_peer_there_is_no_ratio():
    made = [
        t.model_copy(update=dict(valid=False, reason="failed")) if t.subject == "openvino" and t.block < 2 else t
        for t in on_file(dict(loop=300, openvino=150))
    ]
    entries = {e["name"]: e for e in sizes.table(made)}
    assert (entries["openvino"]["void"], entries["openvino"]["rate"].n) == (2, 4)
    assert entries["loop"]["ratio"].n == 4
    alone = sizes.table(on_file(dict(loop=300)))
    assert alone[0]["ratio"] is None
    assert sizes.ours(alone) == sizes.table([]) == []


# Types, files, commands -----------------------------------------------------------------------------------------------


def window(kind, subject, nats):
    """A window of 64 positions, so far from the float32 model."""
    kl = [int(quality.PICO * (nats + nats * (i % 7) / 50)) for i in range(64)]
    about = dict(backend="jax" if subject == file_types.MINE else "llama.cpp", model="small", weights_hash="0")
    return quality.Window(
        run=f"{kind} quality", block=0, order=0, process=1, seed=0, phase="read", valid=True, subject=subject, first=0,
        kl_pnat=kl, agree=[1] * 64, text_sha256="0", **about,
    )  # fmt: skip


def test_every_type_that_is_read_has_a_line_with_what_was_measured_of_it():
    timed = on_file({"loop+fused": 300, "loop+gemv": 250, "llamacpp": 200}, "small/q4_k")
    near, far = (window("q4_k", who, nats) for who, nats in ((file_types.MINE, 0.004), (file_types.THEIRS, 0.02)))
    read = [near, far, window("f16", file_types.MINE, 0.004), window("f16", file_types.THEIRS, 1e-6)]
    entries = {e["type"]: e for e in file_types.table(timed, read)}
    assert list(entries) == list(file_types.TYPES)
    known = entries["q4_k"]
    assert (known["name"], known["best"], known["kernel"], known["within"]) == ("loop+fused", "llamacpp", True, True)
    assert known["ratio"].value == pytest.approx(1.5, rel=0.01)
    assert known["other"].median == pytest.approx(200, rel=0.01)
    assert (entries["f16"]["kernel"], entries["f16"]["becomes"], entries["f16"]["within"]) == (False, "q8_0", False)
    assert (entries["q2_k"]["ratio"], entries["q2_k"]["within"], entries["q2_k"]["bytes"]) == (None, None, 84 / 256)
    said = finding.types(list(entries.values()))
    assert "On files of these types we decode faster than llama.cpp in 1 of 1.\n" in said
    assert said.endswith("No larger distance from float32 is shown on 1 of 2.")
    rounded = [*entries.values(), known | dict(kernel=False)]
    assert " in 1 of 1. The ratios of the 1 others compare different bytes: ours read" in finding.types(rounded)
    assert "not recorded yet" in finding.types(file_types.table([], []))
    said = finding.rounded_again(list(entries.values()))
    assert said.startswith("Of types without a kernel our KL is larger on f16 (0.0042 against 1")
    read += [window("q3_k", file_types.MINE, 0.004), window("q3_k", file_types.THEIRS, 0.02)]
    read += [window("mxfp4", who, 0.004) for who in (file_types.MINE, file_types.THEIRS)]
    said = finding.rounded_again(file_types.table(timed, read))
    assert "smaller than llama.cpp's on q3_k (0.0042 against 0.021); not told from it on mxfp4 (" in said
    assert finding.rounded_again(file_types.table([], [])) == ""
    shown = show(entries.values(), file_types.COLUMNS)
    assert list(shown.loc["q4_k", ["own kernel", "within its rounding", "over it"]]) == ["yes", "yes", 1.5]


def test_a_file_has_its_rate_and_its_distance_beside_llama_cpps():
    read = [window(file, who, nats) for file, mine in (("a", 0.004), ("b/q4_0", 0.03))
            for who, nats in ((file_types.MINE, mine), (file_types.THEIRS, 0.01))]  # fmt: skip
    timed = on_file({"loop+fused": 300, "loop+gemv": 330, "llamacpp": 200}, "a/avx2")
    timed += on_file({"loop+fused": 500, "llamacpp": 200}, "a/avx512vnni")
    entries = {e["file"]: e for e in people_files.bits(timed, read)}
    assert {file: e["within"] for file, e in entries.items()} == {"a": True, "b/q4_0": False}
    assert (entries["a"]["name"], entries["b/q4_0"]["name"]) == ("loop+fused", None)
    assert entries["a"]["ratio"].value == pytest.approx(2.5, rel=0.01)
    assert show(entries.values(), people_files.BITS).loc["b/q4_0", "KL"] > 0.02
    assert people_files.bits([], []) == []


def test_our_fastest_on_each_file_is_said():
    made = on_file({"loop+fused": 300, "loop+gemv": 330, "llamacpp": 200}, "small/avx2")
    (line,) = people_files.words(sizes.table(made)).splitlines()
    assert line.startswith("small/avx2 after 64 tokens: loop+gemv 1.65x")
    assert line.endswith("llamacpp")
    assert people_files.words([]).startswith("Not recorded yet")


def given(subject, seconds, phase="warm", tokens=1, block=0, **changes):
    about = dict(run=f"{phase} small", block=block, order=0, process=1, seed=0, phase=phase, valid=True)
    sizes_of = dict(wall_ns=int(seconds * 1e9), peak_rss_bytes=130, file_bytes=100)
    about |= dict(subject=subject, backend="jax", model="small", new_tokens=tokens)
    return commands.Command(**about | sizes_of | changes)


def test_a_command_is_held_against_llama_cpps_of_the_same_phase_and_length():
    made = [
        given(who, s * (1 + block / 100), block=block)
        for who, s in (("step", 3), (commands.PEER, 2))
        for block in range(5)
    ]
    made += [given("step", 60, "cold"), given("step", 5, tokens=32), given("step", 0, valid=False, reason="failed")]
    found = {(e["phase"], e["tokens"], e["name"]): e for e in commands.table(made)}
    warm = found["warm", 1, "step"]
    assert warm["ratio"].value == pytest.approx(1.5)
    assert (warm["s"].n, warm["held"], warm["void"]) == (5, 1.3, 1)
    assert found["cold", 1, "step"]["ratio"] is found["warm", 32, "step"]["ratio"] is None
    assert "small, 1 token, warm: step 3.1 s, llama-completion 2.0 s" in commands.words(commands.table(made))
    assert commands.words([]).startswith("Not recorded yet")


# Charts ---------------------------------------------------------------------------------------------------------------


def drawn_scaling(trials):
    backends = {"loop": "jax", "loop+fused": "jax", "llamacpp": "llama.cpp"}
    return chart.scaling({axis: scaling.axis_of(trials, axis) for axis in scaling.AXES}, backends)


CHARTS = {  # name → (how it is drawn, of which rows)
    "decode": (lambda made: chart.over_best(sizes.table(made), "decode"), SIZED),
    "prefill": (lambda made: chart.over_best(sizes.table(made), "prefill"), SIZED),
    "parts": (
        lambda made: chart.token_parts(parts(made), FAR),
        answers(noise=0.01) + answers("loop+gemv", layer=0.03, noise=0.01),
    ),
    "scaling": (
        drawn_scaling,
        points() + points("loop+fused", {"256": 450, "1024": 350}) + points("llamacpp", {"1": 80, "2": 150}, "threads"),
    ),
    "rows": (
        lambda made: chart.costs(rows.table(made)),
        passes() + passes("llamacpp", {1: 1, 4: 1.6, 8: 2.6}) + passes(costs={8: 2.5}, kind=BATCH),
    ),
}


@pytest.mark.parametrize("name", CHARTS)
@pytest.mark.parametrize("count", [0, 1, pytest.param(None, marks=pytest.mark.slow)])
def test_each_chart_is_drawn_of_nothing_of_little_and_of_all(tmp_path, name, count):
    draw, made = CHARTS[name]
    figure = draw(made[:count])
    assert "nan" not in words(figure)
    if count is None:
        assert_drawn(figure, tmp_path)
    else:
        assert figures.save(figure, "x", "nb", META, {}, "alt", tmp_path)["png"].is_file()


def test_a_part_that_noise_made_negative_is_hidden():
    (entry,) = parts(answers(noise=0.01))
    entry |= dict(head=-0.2, head_low=-0.4, head_high=0.1)
    drawn = [text.get_text() for axes in chart.token_parts([entry], FAR).axes for text in axes.texts]
    assert (drawn[0], drawn[-1]) == (f"{entry['layers']:.1f} ms", "hidden by noise")


def test_lines_and_files_are_named():
    figure = drawn_scaling(CHARTS["scaling"][1])
    assert "loop: 40" in words(figure)
    figure.draw_without_rendering()
    for axes in figure.axes:  # no name reaches into the next panel
        assert all(Text.get_window_extent(text).x1 <= axes.get_window_extent().x1 for text in axes.texts)
    drawn = words(chart.costs(rows.table(CHARTS["rows"][1])))
    assert "loop+fused, context 64" in drawn
    assert "n = 3 processes" in drawn
    large = on_file(dict(loop=30, llamacpp=20, openvino=10), "large/q4_0", 828)
    figure = chart.over_best(sizes.table(large + SIZED), "decode")
    (axes,) = figure.axes
    written = [label.get_text() for label in axes.get_xticklabels()]
    assert written == ["small\nq4_0\n100 MB", "large\nq4_0\n828 MB"]
    assert "Best other runtime: OpenVINO in 1 and llama.cpp in 1 of 2 cases" in words(figure)
    chart.cut_ends(axes, Ratio(1.5, 1.2, 99.0, 6), 0, "red")
    assert [text.get_text() for text in axes.texts[-2:]] == ["", "to 99.00"]
