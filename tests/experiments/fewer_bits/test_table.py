"""What the rows of a contest say: lines of the table, and charts that are drawn in style and name what is missing."""

import json
import re
from functools import partial
from types import SimpleNamespace as Made

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from llama_jax.plumbing import paths
from llama_lab import figures
from llama_lab.bench import standings
from llama_lab.bench.frames import show
from llama_lab.bench.statistics import Ratio
from llama_lab.experiments.fewer_bits import chart, reading, table
from llama_lab.experiments.fewer_bits.reading import ALL, PROSE
from llama_lab.figures import marks
from tests.experiments.fewer_bits.race import MISSING, NAMES, entries_of, race
from tests.figures.drawn import META, assert_drawn, words

NOTEBOOK = "notebooks/06-fewer-bits.ipynb"


def test_an_entry_joins_rate_bandwidth_memory_and_quality():
    at = {e["name"]: e for e in entries_of(race())[256]}
    fused = at["loop+fused"]
    assert fused["decode"].median == pytest.approx(450, rel=0.02)
    assert fused["mbu"].median == pytest.approx(0.9, rel=0.02)  # 450 tokens/s of 100 MB at 50 GB/s
    assert fused["peak"] == [380e6, 381e6, 382e6]
    assert fused["distance"][ALL]["kl"] == pytest.approx(0.003, rel=0.1)
    assert fused["distance"][PROSE]["text"] == PROSE
    assert at["loop"]["distance"][ALL]["kl"] == 0
    assert at["llamacpp+q4_0"]["distance"][ALL]["kl"] == pytest.approx(0.3, rel=0.1)  # its own, not that of the file
    assert {e["decode"].n for e in at.values()} == {8}  # of one context
    assert entries_of(race())[1024][0]["decode"].median == pytest.approx(50, rel=0.02)


def test_who_is_compared_with_whom():
    found = entries_of(race())[256]
    assert table.rival(found, same_file=True)["name"] == "llamacpp"
    assert table.rival(found, same_file=False)["name"] == "llamacpp+q4_0"
    assert standings.fastest(found)["name"] == "loop+fused"
    assert reading.read_as("llamacpp+generate") == "llamacpp"


def test_what_is_fastest_of_a_models_types():
    def entry(file, rate, lead, megabytes):
        about = dict(rate=Made(median=rate), ratio=Ratio(lead, lead - 0.1, lead + 0.1, 5))
        return dict(file=file, bytes=megabytes * 1e6, **about)

    unread = dict(file="c", rate=None, ratio=None)
    made = [entry("a", 20, 1.5, 99), entry("a/q4_0", 30, 2, 90), entry("b", 5, 1.2, 80), entry("b/q8_0", 7, 1.3, 150)]
    lines = table.larger([*made, unread]).splitlines()
    assert lines[0].startswith("a: 30.0 tokens/s as q4_0, 20.0 tokens/s as published; over the best other runtime 2.00")
    assert len(lines) == 3
    assert lines[2].startswith("The type with the fewest bytes decodes fastest on 1 of 2 models; the lead depends")
    assert lines[2].endswith("on 1 of 2 models.")
    assert table.larger([unread]) == ""


def test_the_finding_says_that_all_have_the_same_weights():
    said = table.gained(entries_of(race())[256])
    assert re.match(
        r"On the same q4_1 weights loop\+fused makes 4\d\d tokens/s \(\d\d.\d% of float32 arithmetic's", said
    )
    assert re.search(r" arithmetic's top tokens\), llama.cpp 1\d\d \(\d\d.\d%\), float32 60\.$", said)
    assert len(said.split()) <= 20


def test_the_finding_gives_each_ratio_once():
    made = race()
    said = table.fewer_bits(made, entries_of(made))
    assert said.startswith(table.gained(entries_of(made)[256]) + " Decode rate, loop+fused over llama.cpp on the same")
    assert said.count("The fastest placement") == 0
    assert re.search(
        r"top tokens equal to those of float32 arithmetic: \S+% \[.* under loop\+fused and .* under llama.cpp;", said
    )
    unread = table.fewer_bits(made, entries_of(made, read=False))
    assert re.match(r"On the same q4_1 weights loop\+fused makes \d+ tokens/s, llama.cpp \d+, float32 60\. ", unread)


def test_which_end_of_the_roofline_is_nearer_to_the_roof():
    def entry(name, megabytes, share):
        return dict(name=name, bytes=megabytes * 1e6, mbu=Made(n=5, median=share))

    whole, near, far = entry("loop", 500, 0.4), entry("loop+fused", 100, 0.6), entry("llamacpp", 110, 0.2)
    said = table.near_the_roof([whole, near, far, entry("torch-int8", 200, 0.9)])
    assert said == (
        "Neither end is nearer by itself: loop, which reads 500 MB a token, uses 40% of the bandwidth; "
        "of those that read 100 to 110 MB, loop+fused uses 60% and llama.cpp 20%."
    )
    assert table.near_the_roof([whole, near]).startswith("Fewer bytes are nearer: ")
    assert table.near_the_roof([whole, far]).startswith("More bytes are nearer: ")
    assert table.near_the_roof([whole]) == ""


@pytest.mark.usefixtures("compiling")  # a program is asked what it needs
def test_the_notebooks_products_hold_what_it_says_they_hold(capsys):
    """Narrow weights are expanded in a product of rows, and not in one of a vector."""
    cells = {c["id"]: "".join(c["source"]) for c in json.loads((paths.ROOT / NOTEBOOK).read_text())["cells"]}
    run = dict(np=np, jax=jax, jnp=jnp, partial=partial, seed=0)
    for name in ("rounding", "products", "temporaries"):
        exec(cells[name], run)
    found = re.findall(r"(\w+): reads .*temporaries: ([\d,]+) bytes as rows, ([\d,]+) as", capsys.readouterr().out)
    rows, vector = ({name: int(both[i].replace(",", "")) for name, *both in found} for i in (0, 1))
    whole = run["weights"].nbytes
    assert max(rows["float32_product"], *vector.values()) < whole / 10
    assert min(rows["int8_product"], rows["block_product"]) >= whole


def test_the_tables_hold_every_subject():
    made = race()
    frame = show(table.over_llamacpp(entries_of(made)[256], made, 256), table.COLUMNS)
    assert list(frame.index) == NAMES
    assert frame.loc["loop+fused", "over llama.cpp"] == pytest.approx(3.0, rel=0.02)
    assert frame.loc["loop", "KL"] == 0
    without = show(table.over_llamacpp(entries_of(made, read=False)[256], made, 256), table.COLUMNS)
    assert without["KL"].isna().all()


def test_the_probes_are_the_tables_or_the_most_of_its_trials():
    made = race()
    recorded = {"context 256": dict(max=60.0, median=33.0, min=30.0, n=6)}
    assert table.probes(dict(bandwidth_gbps=recorded), made, 256) == recorded["context 256"]
    assert table.probes({}, made, 256)["max"] == table.probes({}, made, 256)["median"] == 50.0


CHARTS = ("quality", "roofline")


def draw(name, made, missing=(), read=True, names=NAMES):
    entries = entries_of(made, names, read=read)
    if name == "quality":
        return chart.quality_and_speed(entries[256], "512 tokens of two texts", missing)
    return chart.roofline(entries, {n: dict(max=50.0 + (n > 256), median=33.0, min=30.0, n=6) for n in entries})


@pytest.mark.slow
@pytest.mark.parametrize("name", CHARTS)
def test_each_chart_is_drawn_in_style(tmp_path, name):
    assert_drawn(draw(name, race()), tmp_path)


@pytest.mark.parametrize("name", CHARTS)
@pytest.mark.parametrize("counts", [True, False], ids=["one placement that nobody read", "nothing counts"])
def test_each_chart_draws_where_there_is_little(tmp_path, name, counts):
    made = race(["loop"], blocks=1)
    if not counts:
        made = [t.model_copy(update=dict(valid=False, reason="wrong: token 0 is 1")) for t in made]
    drawn = draw(name, made, MISSING, read=not counts, names=["loop"])
    assert figures.save(drawn, "x", "nb", META, {}, "alt", tmp_path)["png"].is_file()
    assert "nan" not in words(drawn)


def test_every_subject_is_labelled_with_its_quality_and_a_gap_with_its_remedy():
    figure = draw("quality", race(), MISSING)
    for text in (
        " tok/s, KL 0.0030 ",
        "llama.cpp+q4_0: 239",
        "loop: 60 tok/s",
        "no llamacpp+q8_0: llama-cpp-python is not installed. Run `make peers`.",
        "n = 8",
    ):
        assert text in words(figure), text
    assert "512 tokens of two texts" in figure.axes[0].get_ylabel()


def test_the_title_of_speed_against_quality_compares_the_same_weights():
    title = draw("quality", race()).get_suptitle()
    said = r"^loop\+fused decodes 44\d tokens/s, llama.cpp on the same weights 14\d; their KL from float32 is "
    assert re.search(said, title.replace("\n", " ")), title


def test_it_is_said_where_the_intervals_of_the_distances_overlap():
    def entry(name, backend, rate, kl):
        about = dict(name=name, backend=backend, dtype="gguf" if backend == "jax" else "q4_1", decode=Made(median=rate))
        return about, dict(kl=kl, kl_low=0.9 * kl, kl_high=1.1 * kl)

    mine, theirs = entry("loop+fused", "jax", 368, 0.0035), entry("llamacpp", "llama.cpp", 131, 0.0036)
    said = marks.fastest_and_near([theirs, mine])
    assert said == (
        "loop+fused decodes 368 tokens/s, llama.cpp on the same weights 131; their KL from float32 is not shown to"
        " differ (0.0035 and 0.0036)"
    )
    said = marks.fastest_and_near([mine, entry("openvino", "openvino", 95, 0.25), entry("loop", "jax", 44, 0)])
    assert said == "loop+fused decodes 368 tokens/s, OpenVINO 95; their KL from float32 is 0.0035 and 0.25"
    assert marks.fastest_and_near([entry("loop", "jax", 44, 0)]) == (
        "loop decodes 44 tokens/s; its KL from float32 is 0 to rounding"
    )
