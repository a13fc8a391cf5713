"""Two texts under each arithmetic: perplexity by hand, distances and their quotients, and the children that read, on a
small model."""

import numpy as np
import pytest

from llama_jax import checkpoint
from llama_jax.plumbing.errors import UserError
from llama_lab.bench import available, quality, record
from llama_lab.bench.journal import Journal
from llama_lab.experiments.fewer_bits import reading
from llama_lab.experiments.fewer_bits.reading import ALL, CODE, PROSE, Reading
from tests.experiments.conftest import TINY

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
    common = dict(run="r", block=0, process=1, seed=0, phase="read", valid=True, model="m", weights_hash="w")
    made = []
    for subject in subjects:
        (kl, more), backend = FAR[subject], "jax" if subject == "float32" else available.backend_of(subject)
        for text, level in ((PROSE, 2.0), (CODE, 1.0)):
            for i in range(windows):
                noise = np.random.default_rng([i, len(text)]).uniform(0.5, 1.5, size)
                agree = [int(kl < 0.002 or k % 16 > 0) for k in range(size)]
                about = dict(subject=subject, backend=backend, text=text, text_sha256="t", first=i * size, order=i)
                nats = dict(kl_pnat=quality.pnat(kl * noise), nll_pnat=quality.pnat(level * noise + more))
                made.append(Reading(**common, **about, **nats, agree=agree))
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


def asked(*placements, **changes):
    fields = dict(model=TINY, seed=0, quality_tokens=50, window=20, placements=placements, peers=[])
    return reading.Readings(**fields | changes)


@pytest.mark.slow
def test_really_read(tmp_path, monkeypatch):
    """The control exactly zero, bfloat16 and int8 further, every position of both texts once; a gap for what reads
    files."""
    monkeypatch.setattr("llama_jax.plumbing.paths.tempfile.gettempdir", lambda: str(tmp_path))
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
