"""Masks: in the program and by the host they make the same tokens, whatever else is void with its reason; what they
leave of the rate."""

import json

import numpy as np
import pytest

from llama_jax import checkpoint, config
from llama_jax.plumbing.errors import UserError
from llama_lab.bench.lab import Lab
from llama_lab.bench.statistics import Ratio
from llama_lab.experiments.jit_placement import masks, masks_table
from tests.bench import labs
from tests.bench.test_record import trial
from tests.conftest import build
from tests.experiments.conftest import TINY
from tests.figures import drawn

ASKED = masks.Masks(
    model=TINY, mask_placements=("step", "loop"), mask_peers=(), mask_texts=1, mask_tokens=16, mask_processes=1, seed=0
)


@pytest.fixture(scope="module")
def loaded():
    tokenizer = checkpoint.find(checkpoint.DEFAULT).tokenizer()
    cfg = config.tiny(vocab_size=49152, max_position_embeddings=512)
    return checkpoint.Checkpoint("tiny", cfg, build(cfg), tokenizer, "0" * 64, "random:tiny", "float32")


@pytest.fixture(scope="module")
def compiled(loaded):
    return masks.compiled(loaded)


@pytest.fixture
def measured(loaded, compiled, monkeypatch):
    """Rows by subject, and the note, of one process under the placements."""
    monkeypatch.setattr(Lab, "load", lambda _: loaded)
    monkeypatch.setattr(masks, "compiled", lambda _: compiled)

    def run():
        rows, notes = labs.run(ASKED.answering, TINY, "masks", names=ASKED.mask_placements)
        return {row["subject"]: row for row in rows}, notes[-1]

    return run


@pytest.mark.usefixtures("compiling")
def test_every_way_makes_the_same_tokens_and_another_schema_compiles_nothing(measured):
    rows, note = measured()
    ways = ["", masks.TABLE, masks.OTHER]
    assert {*rows} == {name + way for name in ("step", "loop") for way in ways} | {"step" + masks.HOST}
    assert [row["reason"] for row in rows.values() if not row["valid"]] == []
    assert len({row["tokens_sha256"] for name, row in rows.items() if masks.TABLE in name}) == 1
    assert rows["loop" + masks.OTHER]["tokens_sha256"] != rows["loop" + masks.TABLE]["tokens_sha256"]
    assert all(answer["text"].startswith("{") for answer in note["answers"])
    assert note["grammar"][0].keys() == {"first_s", "next_s", "states", "classes", "bytes", "table_us", "library_us"}


def test_tokens_of_another_grammar_are_void(measured, monkeypatch):
    asked = masks.subjects
    monkeypatch.setattr(masks, "subjects", lambda lab, c, name, one, other: asked(lab, c, name, other, one))
    rows, _ = measured()
    assert {name for name, row in rows.items() if row["valid"]} == {"step", "loop"}
    assert rows["loop" + masks.TABLE]["reason"].startswith("wrong: token ")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (masks.ANSWER, ""),
        (masks.ANSWER[:-1], "wrong: no JSON"),
        (masks.ANSWER.replace("concert", "opera"), "wrong: not of the schema: 'opera'"),
        ('{"title": "no more"}', "wrong: not of the schema: 'category' is a required"),
    ],
)
def test_a_finished_answer_of_a_peer_is_held_to_the_schema(loaded, compiled, text, reason):
    work = masks.workload(loaded, 1, 200, 0)
    judge = masks.Judge(loaded, work, compiled[0], masks.SCHEMA)
    ids = loaded.tokenizer.encode(text, special=False)
    ended = np.array([*ids, loaded.tokenizer.stop[0]])[:, None]
    for tokens in (ended, ended[:-1]):  # some servers do not send the token that ends it
        record = judge.judge(trial(backend="ollama"), tokens)
        assert (record.valid, record.reason[: len(reason)]) == (not reason, reason)
    unfinished = np.resize(ended[:-1], (200, 1))
    assert judge.judge(trial(backend="ollama"), unfinished).valid


def test_both_schemas_make_tables_of_one_shape(compiled):
    one, other = (grammar.table for grammar in compiled[:2])
    assert one.next.shape == other.next.shape
    assert not np.array_equal(one.next, other.next)
    assert masks.mistake(masks.ANSWER, masks.ANOTHER)
    assert set(json.loads(masks.ANSWER)) == set(masks.SCHEMA["properties"])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (dict(mask_placements=("lop",)), "No such placement"),
        (dict(mask_peers=("torch",)), "'torch' takes no schema"),
        (dict(mask_processes=0), "mask_processes is 0"),
        (dict(mask_tokens=1), "mask_tokens must be 2 or more"),
        (dict(mask_texts=9), "mask_texts 3 or less"),
    ],
)
def test_mistakes_are_named(changes, words):
    with pytest.raises(UserError, match=words):
        masks.Masks(**vars(ASKED) | changes).check()


def test_a_model_without_a_tokenizer_is_a_gap():
    rows, meta = ASKED.record()
    assert rows == []
    assert "no tokenizer" in meta["missing"][0]["reason"]


def made(**gaps):
    """Rows of two processes; gaps: ms between tokens by subject, `HOST` and `TABLE` as in `masks`."""
    return [
        trial(name, block, (gap, 2 * gap + 0.01 * block, 3 * gap), process=block, prompt=prompt)
        for block in range(3)
        for prompt in range(2)
        for name, gap in gaps.items()
    ]


def test_the_table_the_finding_and_the_chart_pair_masked_with_free(tmp_path):
    gaps = {"step": 10, "step" + masks.TABLE: 10.1, "step" + masks.HOST: 20, "ollama": 5, "ollama" + masks.TABLE: 10}
    rows = made(**gaps)
    rows = [
        t.model_copy(update=dict(valid=False, reason="wrong: no JSON")) if "ollama," in t.subject else t for t in rows
    ]
    entries = masks_table.table(rows)
    assert [(e["subject"], e["where"], e["n"], e["void"]) for e in entries] == [
        ("step", "host", 6, 0), ("step", "program", 6, 0), ("ollama", "its own", 0, 6)
    ]  # fmt: skip
    assert [e["ratio"].value for e in entries[:2]] == pytest.approx([0.5, 10 / 10.1])
    claim = masks_table.claim(rows)
    assert (
        str(claim) == "step with the mask in the program decodes 1.98 times as fast as with the mask made by the host."
    )
    gap = dict(name="openvino", reason="It is not here.", remedy="Install it.")
    figure = masks_table.kept(entries, [gap])
    words = drawn.words(figure)
    assert all(part in words for part in ("0.50x", "no valid pair: wrong: no JSON", "no openvino: It is not here."))
    drawn.assert_drawn(figure, tmp_path)


@pytest.mark.parametrize("name", ["step", "loop"])
def test_nothing_is_claimed_without_both_masks(name):
    assert "No valid answers" in str(masks_table.claim(made(**{name: 10, name + masks.TABLE: 11})))


def test_the_figure_says_who_is_shown_to_lose():
    alike = {"step" + way: 10 for way in ("", masks.TABLE, masks.HOST)}
    rows = made(**alike, **{"ollama": 10, "ollama" + masks.TABLE: 20})
    said = masks_table.slowed(masks_table.table(rows))
    assert said == (
        "Forcing JSON slows Ollama to 0.50x; with a mask in the program and a mask by the host the cost is below 2%"
    )
    by_host = made(**alike | {"step" + masks.HOST: 20})
    slow = "Forcing JSON slows step masked by the host to 0.50x; with a mask in the program the cost is below 2%"
    assert masks_table.slowed(masks_table.table(by_host)) == slow
    open_ = dict(subject="step", where="program", n=10, ratio=Ratio(0.95, 0.74, 1.23, 10))
    none = "Forcing JSON is not shown to slow any subject; with a mask in the program the cost is undecided"
    assert masks_table.slowed([open_]) == none
    lost = [open_ | dict(ratio=Ratio(value, 0.4, 0.8, 10)) for value in (0.6, 0.5, 0.7, 0.6)]
    own = lost[0] | dict(subject="ollama", where="its own")
    many = "Forcing JSON slows 4 of 5 with a mask in the program to as little as 0.50x and Ollama to 0.60x"
    assert masks_table.slowed([*lost, open_, own]) == many
    assert (
        masks_table.slowed([lost[1], own])
        == "Forcing JSON slows step masked in the program to 0.50x and Ollama to 0.60x"
    )
    assert masks_table.slowed([]).startswith("No valid answers")


def test_a_loss_has_its_interval_and_what_none_shows_is_bounded():
    def entry(subject, where, *ratio):
        return dict(subject=subject, where=where, n=10, ratio=Ratio(*ratio, 10))

    program, host = masks_table.left(
        [
            entry("loop", "program", 0.99, 0.9, 1.1),
            entry("step", "program", 0.95, 0.74, 1.2),
            entry("step", "host", 0.93, 0.88, 0.98),
            entry("step+fused", "host", 0.8, 0.65, 1.02),
        ]
    )
    assert program.endswith("(2 subjects); no loss is shown, but the interval of step allows up to 26%")
    assert host.endswith("a loss is shown for step (7% [2%, 12%]); the interval of step+fused allows up to 35%")


def test_what_each_kind_of_mask_leaves_is_said_and_the_figure_keeps_the_foremost_rows():
    gaps = {name + way: 10 for name in ("chunk8", "loop", "mine", "other") for way in ("", masks.TABLE)}
    gaps |= {"step" + way: 10 for way in ("", masks.TABLE)} | {"step" + masks.HOST: 20}
    gaps |= {name + way: 40 if way else 10 for name in masks.GRAMMARS for way in ("", masks.TABLE)}
    entries = masks_table.table(made(**gaps))
    program, host, own = masks_table.left(entries)
    assert program == "mask in the program: 100% of the free rate (5 subjects); no loss is shown"
    assert host == "mask by the host: 50% of the free rate (1 subject); a loss is shown for step (50% [50%, 50%])"
    assert own.endswith("a loss is shown for Ollama (75% [75%, 75%]) and llama.cpp+generate (75% [75%, 75%])")
    kept = [(e["subject"], e["where"]) for e in masks_table.foremost(entries)]
    assert kept == [
        ("chunk8", "program"), ("loop", "program"), ("mine", "program"), ("step", "host"), ("step", "program"),
        ("ollama", "its own"), ("llamacpp+generate", "its own"),
    ]  # fmt: skip
    assert masks_table.PYTHONS.split(":")[1] in drawn.words(masks_table.kept(entries))


@pytest.mark.slow
def test_a_real_model_and_llamacpp_follow_the_schema():
    pytest.importorskip("llama_cpp")
    changes = dict(model=checkpoint.DEFAULT, mask_placements=("step+fused",), mask_peers=("llamacpp+generate",))
    rows, meta = masks.Masks(**vars(ASKED) | changes | dict(mask_tokens=192)).record()
    assert [t.reason for t in rows if not t.valid] == []
    assert len(rows) == 6
    assert {a["name"] for a in meta["answers"] if a["finished"]} >= {"llamacpp+generate" + masks.TABLE}
