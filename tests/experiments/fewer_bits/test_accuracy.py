"""Right endings: scored as lm-eval scores them, alike by a placement and by a peer's logits; a wrong key or ending is
counted; what the counts of two subjects can tell."""

import numpy as np
import pytest

from llama_jax import checkpoint, config, generate
from llama_lab.bench import quality
from llama_lab.bench.frames import show
from llama_lab.bench.lab import Lab
from llama_lab.experiments.fewer_bits import accuracy, accuracy_table, reading
from llama_lab.experiments.fewer_bits.accuracy import Accuracy, Choice
from tests.bench import labs
from tests.conftest import build
from tests.experiments.conftest import TINY
from tests.experiments.fewer_bits.test_reading import readings

ASKED = Accuracy(model=TINY, placements=("loop",), peers=())


@pytest.fixture(scope="module")
def loaded():
    tokenizer = checkpoint.find(checkpoint.DEFAULT).tokenizer()
    cfg = config.tiny(vocab_size=49152, max_position_embeddings=512)
    return checkpoint.Checkpoint("tiny", cfg, build(cfg), tokenizer, "0" * 64, "random:tiny", "float32")


@pytest.fixture
def measured(loaded, monkeypatch):
    """(names, items) → the rows that one process leaves, by subject."""
    monkeypatch.setattr(Lab, "load", lambda _: loaded)

    def run(names, items):
        monkeypatch.setattr(accuracy, "items", lambda: items)
        rows, _ = labs.run(ASKED.choosing, TINY, "choosing", names=names)
        return {name: [Choice(**row) for row in rows if row["subject"] == name] for name in names}

    return run


SHORT = accuracy.items()[:4]


def test_an_ending_is_parted_and_scored_as_lm_eval_does(measured, loaded, monkeypatch):
    """Total log-likelihood of the tokens behind the context's, by logits; a peer's are those of its logits."""
    engine = generate.build(loaded, "step")
    logits_of = lambda ids: np.asarray(generate.logits(engine, ids))  # noqa: E731
    monkeypatch.setattr(quality, "reader", lambda *_: logits_of)
    rows = measured(["float32", "loop", "torch"], SHORT)
    for i, item in enumerate(SHORT):
        before = len(loaded.tokenizer.encode(item["context"]))
        wholes = [loaded.tokenizer.encode(item["context"] + " " + ending) for ending in item["endings"]]
        nll = [reading.likelihood(logits_of(ids)[before - 1 : -1], ids[before:]).sum() for ids in wholes]
        for name, found in rows.items():
            assert found[i].item == i
            assert found[i].label == item["label"]
            assert np.array(found[i].nll_pnat) / quality.PICO == pytest.approx(nll, abs=1e-2), name
            assert found[i].chosen == np.argmin(nll)


def test_a_wrong_key_or_ending_changes_the_count(measured):
    def right(items):
        rows = measured(["float32"], items)["float32"]
        return accuracy_table.table(rows, [])[0]["right"], rows

    _, rows = right(SHORT)
    keyed = [item | dict(label=row.chosen) for item, row in zip(SHORT, rows, strict=True)]
    assert right(keyed)[0] == len(SHORT)
    wrong = keyed[0] | dict(label=(keyed[0]["label"] + 1) % len(keyed[0]["endings"]))
    assert right([wrong, *keyed[1:]])[0] == len(SHORT) - 1
    endings = [*keyed[1]["endings"]]
    endings[keyed[1]["label"]] *= 9  # many more tokens, none of them likely
    count, changed = right([keyed[0], keyed[1] | dict(endings=endings), *keyed[2:]])
    assert count == len(SHORT) - 1
    assert [row.nll_pnat == old.nll_pnat for row, old in zip(changed, rows, strict=True)] == [True, False, True, True]


def test_each_item_has_a_right_ending_among_others():
    items = accuracy.items()
    assert len({item["context"] for item in items}) == len(items) == 50
    for item in items:
        assert len(set(item["endings"])) == len(item["endings"]) > 1, item
        assert item["label"] in range(len(item["endings"])), item
        assert item["context"] == item["context"].strip(), item


def choices(name, right, n=50):
    """Rows of a subject that is right at these places, of three endings each."""
    common = dict(run="r", block=0, process=1, seed=0, phase="choose", valid=True, model="m", weights_hash="w")
    common |= dict(subject=name, backend="jax", text_sha256="t", label=1)
    return [Choice(**common, order=i, item=i, nll_pnat=[9, 1 if i in right else 10, 11]) for i in range(n)]


def test_counts_intervals_and_flips_by_hand():
    exact = set(range(45))
    rows = choices("float32", exact) + choices("loop", exact) + choices("loop+fused", (exact - {0, 1}) | {49})
    rows += choices("torch-int8", exact - set(range(12))) + choices("apart", exact - set(range(15)))
    found = accuracy_table.table(rows, reading.table(readings()))
    at = {e["subject"]: e for e in found}
    assert [e["right"] for e in found] == [45, 45, 44, 33, 30]
    assert (at["float32"]["low"], at["float32"]["high"]) == pytest.approx((0.7819, 0.9667), abs=1e-4)  # tables' values
    assert [(e["lost"], e["gained"]) for e in found] == [(0, 0), (0, 0), (2, 1), (12, 0), (15, 0)]
    assert [e["p"] for e in found] == pytest.approx([1, 1, 1, 2 * 0.5**12, 2 * 0.5**15])
    frame = show(found, accuracy_table.COLUMNS)
    assert frame.loc["loop+fused", "KL, nats"] == pytest.approx(0.003, rel=0.1)
    said = " ".join(accuracy_table.words(found, rows))
    assert "45 of n = 50 sentences, 90% [78%, 97%] (guessing: 33%)" in said
    assert "By accuracy they tell 1 of the 4 others from it, apart (60%): float32's interval, 18 points wide," in said
    assert "takes 8 flips or more" in said  # 4 × 2 × 0.5⁸ < 0.05 < 4 × 2 × 0.5⁷
    assert "By flips they tell 2 of the 4 others from it, torch-int8 (12 lost, 0 gained" in said
    alone = [found[0], next(e for e in found if e["subject"] == "apart")]
    assert accuracy_table.words(alone, rows)[1].endswith("18 points wide, overlaps none of theirs.")
    alike = accuracy_table.words(found[:3], rows)[1:]
    assert alike[0].endswith("of the 2 others from it: float32's interval, 18 points wide, overlaps all of theirs.")
    assert alike[1].endswith("none of the 2 others from it, at p < 0.05/2, which takes 7 flips or more, all one way.")


def test_little_is_said_of_little():
    assert accuracy_table.words([], []) == ["No model chose an ending here."]
    rows = choices("float32", {0})
    alone = accuracy_table.table(rows, [])
    assert len(accuracy_table.words(alone, rows)) == 1
    assert show(alone, accuracy_table.COLUMNS)["KL, nats"].isna().all()


def test_a_model_without_a_tokenizer_is_a_gap():
    rows, meta = ASKED.record()
    assert rows == []
    assert "no tokenizer" in meta["missing"][0]["reason"]


@pytest.mark.slow
def test_really_chosen(tmp_path, monkeypatch):
    """By the packaged model, whose float32 finds more than guessing does; the control chooses alike."""
    monkeypatch.setattr("llama_jax.plumbing.paths.tempfile.gettempdir", lambda: str(tmp_path))
    rows, meta = Accuracy(model=checkpoint.DEFAULT, placements=("loop",), peers=()).record()
    found = {e["subject"]: e for e in accuracy_table.table(rows, [])}
    assert meta["missing"] == []
    assert found["float32"]["n"] == 50
    assert found["float32"]["low"] > accuracy_table.guessed(rows)
    assert (found["loop"]["lost"], found["loop"]["gained"]) == (0, 0)
