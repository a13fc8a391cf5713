"""What drafts gain by kind of text, of made-up answers whose ratio is known; and the children on real weights."""

import pytest

from llama_jax import checkpoint
from llama_jax.kernels import isa
from llama_jax.plumbing.errors import UserError
from llama_lab.bench.frames import show
from llama_lab.bench.statistics import Ratio
from llama_lab.experiments.past_one_token_a_pass import by_text, table
from tests.bench.test_record import trial

NAMES = ["loop+fused", "loop+fused+lookup"]
ABOUT = dict(
    placements=NAMES, peers=["llamacpp+draft"], files=[f"{checkpoint.DEFAULT}/portable"], tokens=8, blocks=1,
    processes=1, seed=0,
)  # fmt: skip
KINDS = [kind for kind, _ in by_text.ASKED]
GAINS = dict(open=1.0, code=1.2, copy=2.0, list=0.98, repeating=2.5)


def answers(tokens="same"):
    made = []
    for block in range(4):
        for prompt, kind in enumerate(KINDS):
            for name in NAMES:
                gap = (1 if name == NAMES[0] else 1 / GAINS[kind]) * (5 + prompt) * (1 + 0.001 * (block % 3))
                said = tokens if name == NAMES[1] and kind == "list" else "same"
                about = dict(run="small/avx2", prompt=prompt, tokens_sha256=said, process=block // 2)
                made.append(trial(name, block, [gap * (i + 1) for i in range(21)], **about))
    return made


PASSES = [
    dict(file="small/avx2", subject=NAMES[1], prompt=i, made=[1, 3, 8], depths=[0, 3, 7], costs=[1, 1.1, 1.7, 3.1])
    for i, kind in enumerate(KINDS)
    if kind != "open"
]


def test_each_kind_of_text_has_its_own_ratio():
    meta = dict(parameters=dict(placements=NAMES), passes=PASSES)
    entries = {(e["text"], e["name"]): e for e in by_text.table(answers(), meta)}
    assert {kind for kind, _ in entries} == set(GAINS)
    for kind, gain in GAINS.items():
        assert entries[kind, NAMES[1]]["ratio"].value == pytest.approx(gain, rel=0.01)
        assert entries[kind, NAMES[0]]["ratio"] is None
    copy, opened = entries["copy", NAMES[1]], entries["open", NAMES[1]]
    assert (copy["passes"]["tokens_a_pass"], copy["passes"]["accepted"]) == (4, 0.9)
    assert opened["passes"] is None
    assert {e["equal"] for e in entries.values()} == {None, True}
    assert by_text.table(answers("other"), meta)[KINDS.index("list")]["equal"] is not True
    (line,) = by_text.words(list(entries.values())).splitlines()
    assert line.startswith("small/avx2, loop+fused+lookup: 0.98x")
    assert "(repeating)" in line
    said = table.least(list(entries.values()))
    assert said.startswith("The mean gain is least on list in 1 of 1 rows; at worst 0.98x")
    said = table.rows_by_instructions(list(entries.values()))
    assert said == "A pass of 8 rows costs 3.10 plain steps with avx2, by the file."
    assert table.rows_by_instructions([]) == ""
    shown = show(table.gains(list(entries.values())), table.GAINS).loc[("small/avx2", NAMES[1])]
    assert shown["copy"].startswith("2.00x")
    assert shown["a pass costs"] == "0: 1.00, 1: 1.10, 3: 1.70, 7: 3.10"
    frame = show(entries.values(), by_text.COLUMNS)
    assert frame.loc[("small/avx2", "copy", NAMES[1]), "same tokens"] == "yes"


def test_another_runtime_is_what_the_placement_is_held_against():
    slow, fast = (Ratio(value, value - 0.05, value + 0.05, 6) for value in (0.25, 0.5))
    of_peer = [dict(name="llamacpp", equal=None, ratio=ratio) for ratio in (fast, slow)]
    said = table.beside([dict(name="loop+fused", equal=None, ratio=None), *of_peer])
    assert said == "loop+fused over llama.cpp: 2.00x [1.82, 2.22] to 4.00x [3.33, 5.00]"


def test_a_remedy_of_an_older_table_is_worded_as_today():
    gap = dict(name="llamacpp+draft", reason="No model.", remedy="Compare on one of qwen.")
    assert table.gaps([gap, gap | dict(remedy="Run it.")]) == [
        gap | dict(remedy="Use qwen."),
        gap | dict(remedy="Run it."),
    ]


def test_nothing_recorded_is_said():
    assert by_text.words(by_text.table([], {})).startswith("Not recorded yet")


def test_what_cannot_be_measured_is_refused_or_said_to_be_missing():
    with pytest.raises(UserError, match="the type one of avx512vnni, "):
        by_text.Texts(**ABOUT | dict(files=["x/avx3"])).check()
    with pytest.raises(UserError, match="No such placement"):
        by_text.Texts(**ABOUT | dict(placements=["loup"])).check()
    with pytest.raises(UserError, match="No such peer"):
        by_text.Texts(**ABOUT | dict(peers=["llama"])).check()
    by_text.Texts(**ABOUT | dict(files=["not-fetched/avx2"])).check()


@pytest.mark.slow
def test_it_is_measured(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # a lock of its own: something may be measured here
    monkeypatch.setattr("llama_jax.plumbing.paths.tempfile.tempdir", None)
    name = f"{checkpoint.DEFAULT}/{isa.target().isa}"
    asked = dict(placements=[*NAMES, "loop+fused+draft:not-fetched"], files=[name, "not-fetched/avx2"])
    trials, meta = by_text.Texts(**ABOUT | asked).record()
    assert all(t.valid for t in trials), [t.reason for t in trials]
    assert [gap["name"] for gap in meta["missing"]] == [
        "not-fetched/avx2",
        "llamacpp+draft",
        "loop+fused+draft:not-fetched",
    ]
    entries = by_text.table(trials, meta | dict(parameters=ABOUT))
    assert {(e["text"], e["name"]) for e in entries} == {(kind, name) for kind in GAINS for name in NAMES}
    assert all(e["equal"] and e["passes"] for e in entries if e["ratio"])
