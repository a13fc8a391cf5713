"""Two texts under each arithmetic: perplexity by hand, distances and their quotients, and the children that read, on a
small model."""

import numpy as np
import pytest

from llama_jax import checkpoint
from llama_jax.plumbing.errors import UserError
from llama_lab.bench import available, protocol, quality, record
from llama_lab.bench.journal import Journal
from llama_lab.experiments.fewer_bits import reading
from llama_lab.experiments.fewer_bits.reading import ALL, CODE, PROSE, Reading

TINY = (
    "random:smollm2-135m,num_hidden_layers=2,hidden_size=64,intermediate_size=128,num_attention_heads=4,num_key_value_heads=2,"
    "head_dim=16,vocab_size=97"
)
FAR = {
    "float32": (0.0, 0.0),
    "loop": (0.0, 0.0),
    "loop+gemv": (0.003, 0.0),
    "loop+fused": (0.003, 0.0),
    "llamacpp": (0.003, 0.001),
    "llamacpp+q4_0": (0.3, 0.2),
    "torch-int8": (1.0, 0.9),
}


def readings(subjects=tuple(FAR), windows=3, size=64):
    """Prose at perplexity e², code at e, both e^more in a subject that foresees worse; noise common to all subjects."""
    made = []
    for subject in subjects:
        kl, more = FAR[subject]
        backend = available.backend_of(subject) if subject != "float32" else "jax"
        for text, level in ((PROSE, 2.0), (CODE, 1.0)):
            for i in range(windows):
                noise = np.random.default_rng([i, len(text)]).uniform(0.5, 1.5, size)
                made.append(
                    Reading(
                        run="r",
                        block=0,
                        order=i,
                        process=1,
                        seed=0,
                        phase="read",
                        valid=True,
                        subject=subject,
                        backend=backend,
                        model="m",
                        weights_hash="w",
                        first=i * size,
                        text=text,
                        text_sha256="t",
                        kl_pnat=quality.pnat(kl * noise),
                        agree=[int(kl < 0.002 or k % 16 > 0) for k in range(size)],
                        nll_pnat=quality.pnat(level * noise + more),
                    )
                )
    return made


def test_likelihood_by_hand_and_as_torch_computes_it():
    logits = np.log([[0.5, 0.25, 0.25], [0.1, 0.2, 0.7]])
    assert reading.likelihood(logits, [1, 2]) == pytest.approx([-np.log(0.25), -np.log(0.7)])
    torch = pytest.importorskip("torch")
    logits = np.random.default_rng(0).normal(0, 5, (20, 50)).astype(np.float32)
    following = np.random.default_rng(1).integers(0, 50, 20)
    known = torch.nn.functional.cross_entropy(
        torch.tensor(logits, dtype=torch.float64), torch.tensor(following), reduction="none"
    )
    assert reading.likelihood(logits, following.tolist()) == pytest.approx(known.numpy())


def test_the_texts_are_long_enough_of_two_kinds_and_each_position_has_a_successor(packaged):
    found = reading.texts(packaged, 1024)
    assert {name: len(ids) for name, ids in found.items()} == {PROSE: 1025, CODE: 1025}
    assert all(word in packaged.tokenizer.decode(found[CODE]) for word in ("import ", "def ", "return "))
    assert found[PROSE] != found[CODE]
    with pytest.raises(UserError, match="quality_tokens is 10000000; the text 'manual' has"):
        reading.texts(packaged, 10_000_000)
    random = reading.texts(checkpoint.load(TINY), 50)
    assert [len(ids) for ids in random.values()] == [51, 51]
    assert random[PROSE] != random[CODE]


def test_rows_come_back_from_a_table(tmp_path):
    made = readings()
    assert record.read(record.write(tmp_path / "t.csv", made, Reading), kind=Reading)[0] == made


def test_the_table_has_each_text_and_both():
    at = {(e["subject"], e["text"]): e for e in reading.table(readings())}
    assert {text for _, text in at} == {PROSE, CODE, ALL}
    far = at["llamacpp+q4_0", PROSE]
    assert far["kl"] == pytest.approx(0.3, rel=0.1)
    assert far["kl_low"] < far["kl"] < far["kl_high"]
    assert far["top1"] == pytest.approx(15 / 16)
    assert far["tokens"] == 192
    prose, code, both = (at["float32", text]["ppl"] for text in (PROSE, CODE, ALL))
    assert np.log(prose) == pytest.approx(2.0, rel=0.1)
    assert both == pytest.approx(np.sqrt(prose * code))
    assert at["float32", ALL]["ppl_low"] < both < at["float32", ALL]["ppl_high"]
    assert at["torch-int8", PROSE]["ppl"] == pytest.approx(prose * np.exp(0.9))
    assert at["float32", ALL]["kl"] == 0


def test_quotients_pair_the_positions():
    rows = readings()
    found = reading.over(rows, "loop+fused", "llamacpp", "kl")
    # the noise is common, so it cancels
    assert (found.value, found.low, found.high) == pytest.approx((1, 1, 1), abs=1e-6)
    assert reading.over(rows, "llamacpp+q4_0", "llamacpp", "kl").value == pytest.approx(100)
    found = reading.over(rows, "loop+fused", "llamacpp", "ppl")
    assert found.value == pytest.approx(np.exp(-0.001))
    assert reading.over(rows, "torch-int8", "loop", "top1").value == pytest.approx(15 / 16)
    assert found.n == 384
    for missing in ("ollama", "loop+bf16"):
        assert reading.over(rows, missing, "llamacpp", "kl").n == 0
    partly = [r for r in rows if r.subject != "llamacpp" or r.first]
    assert reading.over(partly, "loop+fused", "llamacpp", "kl").n == 0  # other positions are no pairs


def test_a_quotient_of_noisy_distances_has_a_wide_interval():
    rows, rng = readings(("loop+fused", "llamacpp")), np.random.default_rng(0)
    noisy = [r.model_copy(update=dict(kl_pnat=quality.pnat(rng.exponential(0.003, len(r.agree))))) for r in rows]
    found = reading.over(noisy, "loop+fused", "llamacpp", "kl")
    assert 1.1 < found.high / found.low < 2
    assert found.low < found.value < found.high


def asked(*placements, **changes):
    fields = dict(model=TINY, seed=0, quality_tokens=50, window=20, placements=placements, peers=[])
    return reading.Readings(**fields | changes)


@pytest.mark.parametrize(
    ("words", "changes"),
    [
        ("No such placement: 'lop'", dict(placements=["lop"])),
        ("tokens is 0", dict(quality_tokens=0)),
        ("window is 0", dict(window=0)),
        ("more than the model's context of 8192", dict(window=9000)),
    ],
)
def test_mistakes_are_named_before_anything_runs(words, changes):
    with pytest.raises(UserError, match=words):
        asked(**changes).record()


@pytest.mark.slow
def test_really_read(tmp_path, monkeypatch):
    """The control exactly zero, bfloat16 and int8 further, every position of both texts once; a gap for what reads
    files."""
    monkeypatch.setattr(protocol.tempfile, "gettempdir", lambda: str(tmp_path))
    journal = Journal(kind=Reading)
    experiment = asked("loop", "loop+bf16", peers=["torch-int8", "llamacpp+q4_0"])
    made, meta = experiment.record(journal)
    at = {(e["subject"], e["text"]): e for e in reading.table(made)}
    assert {name for name, _ in at} == {"float32", "loop", "loop+bf16", "torch-int8"}
    assert all(e["tokens"] == (100 if text == ALL else 50) and e["valid"] for (_, text), e in at.items())
    assert at["float32", ALL]["kl"] == at["loop", ALL]["kl"] == 0
    assert at["float32", ALL]["kl"] < at["loop+bf16", ALL]["kl"] < at["torch-int8", ALL]["kl"]
    assert at["float32", ALL]["ppl"] == pytest.approx(97, rel=0.2)  # a random model foresees nothing
    assert [gap["name"] for gap in meta["missing"]] == ["llamacpp+q4_0"]
    assert experiment.record(journal)[0] == made  # nothing anew
