"""The headline: what is measured, what is said of it, and that the published machine stands beside."""

import tempfile

import numpy as np

from llama_lab.bench import AGAIN, summary
from llama_lab.bench.journal import Journal
from llama_lab.experiments.headline import chart, measure
from tests.bench.test_record import trial
from tests.experiments.conftest import TINY
from tests.figures.drawn import assert_drawn, words

MS = {"eager": 200, "step": 40, "step" + AGAIN: 40, "loop": 36, "loop+fused": 10, "llamacpp": 20}


def trials(**slower):
    rng = np.random.default_rng(0)
    return [
        trial(name, block, [100 + ms * (1 + rng.random() / 100) * i for i in range(9)], process=1 + block % 2)
        for name, ms in (MS | slower).items()
        for block in range(8)
    ]


def entries(data):
    return summary.table(data, "step", [name for name in MS if not name.endswith(AGAIN)])


def test_what_is_measured_and_what_is_missing(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # a lock of its own: something may be measured here
    monkeypatch.setattr(measure, "PLACEMENTS", ("step", "loop"))
    said = []
    amount = measure.Amount(blocks=1, processes=1, new_tokens=3, model=TINY)
    found, about = amount.record(Journal(), lambda what, done, total: said.append(total))
    assert {t.subject for t in found} == {"step", "step (again)", "loop"}
    assert all(t.valid for t in found), [t.reason for t in found]
    assert (about["baseline"], about["subjects"]) == ("step", ["step", "loop"])
    assert [gap["name"] for gap in about["missing"]] == ["llamacpp"]
    assert set(said) == {3}


def test_the_detail_has_intervals_and_the_control():
    said = chart.finding(trials())
    for pair in ("loop+fused over loop: 3.6", "loop+fused over llamacpp: 2.0", "step (again) over step: 1.00x ["):
        assert pair in said
    assert "tokens/s: eager 5.0" in said
    wrong = [
        t.model_copy(update=dict(valid=False, reason="wrong: token 1")) if t.subject == "loop+fused" else t
        for t in trials()
    ]
    assert chart.finding(wrong).endswith("loop+fused made other tokens than the reference.")


def test_the_published_machine_stands_beside(tmp_path):
    data, there = trials(), entries(trials(loop=18))
    here = entries(data)
    assert "loop 27." in chart.beside(here, there)
    assert "55." in chart.beside(here, there)
    assert chart.beside(here, []) == ""
    for published in ((), there):
        figure = chart.rates(data, here, published)
        text = words(figure)
        assert "27.6" in text or "27.5" in text
        assert "step\nover eager:\n5.00 [" in text
        assert ("diamond" in text) == bool(published)
        assert_drawn(figure, tmp_path)


def test_a_row_says_what_it_reads_and_has_its_own_limit():
    reads = {"loop+fused": dict(quantisation="gguf+fused"), "llamacpp": dict(backend="llama.cpp", dtype="q4_1")}
    data = [t.model_copy(update=reads.get(t.subject, {})) for t in trials()]
    for here, file in ((data, "q4_1"), ([t for t in data if t.subject != "llamacpp"], "quantised")):
        table = [e for e in entries(here) if e["tokens_per_second"]["n"]]
        figure = chart.rates(here, table)
        said = [text.get_text() for text in figure.axes[0].texts]
        assert said.count("bandwidth limit") == 2
        assert {"float32 weights", f"{file} file", "tokens/s", "of limit"} <= {*said}
        assert any("over llama.cpp:" in text for text in said) == (file == "q4_1")
        names = [label.get_text().split("\n")[0] for label in figure.axes[0].get_yticklabels()]
        assert names[-2:] == (["llama.cpp", "loop+fused"] if file == "q4_1" else ["loop", "loop+fused"])
    bare = [t.model_copy(update=dict(bandwidth_gbps=None)) for t in data]
    assert "limit" not in words(chart.rates(bare, entries(bare)))
