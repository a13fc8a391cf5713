"""The distance of distributions, on hand-computed cases and by its properties; and the children that measure it, on a
small model."""

import numpy as np
import pytest

from llama_jax.plumbing.errors import UserError
from llama_lab.bench import available, quality
from llama_lab.bench.frames import show
from llama_lab.bench.journal import Journal
from llama_lab.bench.quality import Window
from tests.bench import labs
from tests.conftest import TINY, python


def random_logits(t=50, v=40, seed=0, scale=4.0):
    return np.random.default_rng(seed).normal(0, scale, (t, v)).astype(np.float32)


def window(subject, kl, agree, index=0, **changes):
    base = dict(run="quality", block=0, order=index, process=1, seed=0, phase="read", valid=True, subject=subject,
                backend=available.backend_of(subject), model="m", weights_hash="w", first=index * 64,
                kl_pnat=[round(x * 1e12) for x in kl], agree=agree, text_sha256="t")  # fmt: skip
    return Window(**{**base, **changes})


def rows(subjects=("float32", "bfloat16", "torch", "llamacpp", "ollama"), windows=4, size=64):
    """bfloat16 0.002 nats away, llama.cpp 0.02 and wrong at every eighth token; Ollama without a distribution, every
    16th unknown."""
    far = {"float32": 0, "bfloat16": 0.002, "torch": 1e-9, "llamacpp": 0.02, "ollama": None}
    made = []
    for subject in subjects:
        for i in range(windows):
            noise = np.random.default_rng(i).uniform(0.5, 1.5, size)
            kl = [] if far[subject] is None else (far[subject] * noise).tolist()
            agree = [int(k % 8 > 0) if subject in ("llamacpp", "ollama") else 1 for k in range(size)]
            if subject == "ollama":
                agree = [-1 if k % 16 == 1 else a for k, a in enumerate(agree)]
            made.append(window(subject, kl, agree, i))
    return made


def test_by_hand():
    found = quality.against(np.log([[0.5, 0.5], [0.25, 0.75]]), np.log([[0.9, 0.1], [0.75, 0.25]]))
    assert found["kl"] == pytest.approx([0.5 * np.log(0.5 / 0.9) + 0.5 * np.log(0.5 / 0.1), 0.5 * np.log(3)])
    assert found["agree"].tolist() == [True, False]
    # no overflow
    assert quality.against(np.array([[0.0, 0.0]]), np.array([[0.0, 800.0]]))["kl"] == pytest.approx([400 - np.log(2)])


@pytest.mark.parametrize("seed", range(5))
def test_zero_for_equal_never_negative_and_blind_to_a_constant(seed):
    a, b = random_logits(seed=seed), random_logits(seed=seed + 100)
    assert quality.against(a, a)["kl"].max() == 0
    assert quality.against(a, a)["agree"].all()
    found, shifted = quality.against(a, b), quality.against(a + 7, b + np.arange(len(b), dtype=np.float32)[:, None])
    assert (found["kl"] > 0).all()
    assert shifted["kl"] == pytest.approx(found["kl"], rel=1e-4)
    assert (shifted["agree"] == found["agree"]).all()
    nearly = quality.against(a, a * np.float32(1 + 1e-7))
    assert (nearly["kl"] >= 0).all()


def test_it_is_what_torch_computes():
    torch = pytest.importorskip("torch")
    a, b = random_logits(), random_logits(seed=1)
    logs = [torch.log_softmax(torch.tensor(x, dtype=torch.float64), -1) for x in (a, b)]
    expected = torch.nn.functional.kl_div(logs[1], logs[0], reduction="none", log_target=True).sum(-1)
    assert quality.against(a, b)["kl"] == pytest.approx(expected.numpy())


def broken():
    logits = random_logits()
    logits[7, 3] = np.nan
    return logits


@pytest.mark.parametrize(
    ("reference", "other", "words"),
    [
        (random_logits(), random_logits(v=39), r"\(50, 39\) cannot be compared with \(50, 40\)"),
        (random_logits()[0], random_logits()[0], "must be \\[tokens, vocabulary\\]"),
        (random_logits(), broken(), "other logits are not all finite: first at position 7"),
    ],
)
def test_logits_that_cannot_be_compared_are_named(reference, other, words):
    with pytest.raises(UserError, match=words):
        quality.against(reference, other)


def test_shuffled_logits_are_another_model():
    a = random_logits()
    shuffled = a[:, np.random.default_rng(0).permutation(a.shape[1])]
    moved = np.roll(a, 1, axis=0)  # the right model, one token late
    noisy = a + np.random.default_rng(1).normal(0, 0.05, a.shape)
    for name in quality.ARITHMETICS:
        for wrong in (shuffled, moved):
            found = quality.compare(name, a, wrong)
            assert not found["valid"]
            assert "another model" in found["reason"]
        assert quality.compare(name, a, a)["valid"]
    assert quality.compare("llamacpp", a, noisy)["valid"]
    assert not quality.compare("torch", a, noisy)["valid"]  # rounding does not go so far
    assert quality.compare("torch", a, noisy, rounded=True)["valid"]  # but that of weights does


def test_what_rounds_coarsely_may_be_further_away_and_no_other_may():
    a = random_logits()
    noisy = a + np.random.default_rng(1).normal(0, 1.0, a.shape)
    assert 0.1 < quality.against(a, noisy)["kl"].mean() < 4
    coarse = {"llamacpp+q4_0", "ik-llamacpp+q4_0", "openvino+q4_0", "torch-int8", "q4_0", "int8", "loop+q4_0+fused",
              "step+int8"}  # fmt: skip
    names = {*quality.ARITHMETICS, *coarse, "loop+fused", "step+kvint8"}
    assert {name for name in names if quality.compare(name, a, noisy)["valid"]} == coarse


def test_best_tokens_alone_are_compared_where_they_are_known():
    a = random_logits()
    best = a.argmax(-1)
    best[3], best[5] = -1, (best[5] + 1) % a.shape[1]
    found = quality.compare("ollama", a, best)
    assert (found["kl_pnat"], found["valid"]) == ([], True)
    assert [k for k, same in enumerate(found["agree"]) if same != 1] == [3, 5]
    assert (found["agree"][3], found["agree"][5]) == (-1, 0)
    assert not quality.compare("ollama", a, np.roll(best, 1))["valid"]


def test_the_table_says_what_the_windows_say():
    table = {e["subject"]: e for e in quality.table(rows())}
    assert list(table) == ["float32", "bfloat16", "torch", "llamacpp", "ollama"]
    assert (table["float32"]["kl"], table["float32"]["top1"]) == (0, 1)
    far = table["llamacpp"]
    assert far["kl"] == pytest.approx(0.02, rel=0.05)
    assert far["kl_low"] < far["kl"] < far["kl_high"] <= far["worst"]
    assert (far["top1"], far["tokens"]) == (7 / 8, 256)
    assert (table["ollama"]["kl"], table["ollama"]["tokens"]) == (None, 240)
    assert table["ollama"]["top1"] == pytest.approx(208 / 240)
    wrong = window("llamacpp", [5.0], [0], valid=False, reason="another model: mean KL 5 nats, at most 0.1 expected")
    assert "NO: another model" in show(quality.table([wrong]), quality.COLUMNS)["same model"].iloc[0]


@pytest.mark.parametrize(
    ("trial", "expected"),
    [
        (("jax", "float32"), "float32"),
        (("jax", "bfloat16"), "bfloat16"),
        (("jax", "float32", "kv-int8"), "kv-int8"),
        (("jax", "float32", "gguf"), "gguf"),
        (("jax", "float32", "q8_0+fused"), "fused"),
        (("jax", "float32", "gguf+gemv"), "gemv"),
        (("jax", "float32", "q4_0+gemv"), "q4_0+gemv"),
        (("jax", "float32", "gguf+kv-int8"), "gguf+kv-int8"),
        (("torch", "float32"), "torch"),
        (("llama.cpp", "q4_1", "gguf-q4_1"), "llamacpp"),
        (("ollama", "q4_1", "gguf-q4_1"), "ollama"),
        (("llama.cpp", "q4_0", "gguf-q4_0", "llamacpp+q4_0"), "llamacpp+q4_0"),
        (("torch", "int8", "int8-dynamic", "torch-int8"), "torch-int8"),
        (("llama.cpp", "q4_1", "gguf-q4_1", "llamacpp+generate"), "llamacpp"),
    ],
)
def test_every_trial_has_an_arithmetic(trial, expected):
    assert quality.arithmetic(*trial) == expected


def asked(*arithmetics, **changes):
    fields = dict(model=TINY, seed=0, quality_tokens=50, window=20, arithmetics=arithmetics)
    return quality.Quality(**fields | changes)


@pytest.mark.parametrize(
    ("words", "changes"),
    [
        ("No such arithmetic: 'bfloat61'. Did you mean .*bfloat16", dict(arithmetics=["bfloat61"])),
        ("tokens is 0", dict(quality_tokens=0)),
        ("window is 0", dict(window=0)),
        ("more than the model's context of 8192", dict(window=9000)),
    ],
)
def test_mistakes_are_named_before_anything_runs(words, changes):
    with pytest.raises(UserError, match=words):
        asked(**changes).record()


def test_a_peer_that_cannot_run_costs_no_process():
    journal = Journal(kind=Window)
    rows, meta = asked("llamacpp", "ollama").record(journal)
    assert rows == []
    assert [gap["name"] for gap in meta["missing"]] == ["llamacpp", "ollama"]
    assert all(gap["reason"] and gap["remedy"] for gap in meta["missing"])
    assert all("watch" not in note for note in journal.notes)


@pytest.mark.parametrize(("tokens", "size"), [(1024, 256), (1000, 256), (1300, 512), (5, 8)])
def test_windows_cover_every_position_once(tokens, size, monkeypatch):
    text, pieces = list(range(tokens + 1)), []
    monkeypatch.setattr(quality.passages, "english", lambda *_: text)
    monkeypatch.setattr(
        quality, "reader", lambda loaded, name: lambda piece: pieces.append(piece) or np.zeros((len(piece), 3))
    )
    experiment = asked("float32", quality_tokens=tokens, window=size)
    rows, _ = labs.run(experiment.reading, TINY, names=experiment.arithmetics)
    assert pieces[::2] == pieces[1::2]  # the reference reads what the subject reads
    assert [i for piece in pieces[::2] for i in piece] == text[:tokens]
    assert {len(piece) for piece in pieces[:-2]} <= {size}
    assert [row["first"] for row in rows] == list(range(0, tokens, size))


def test_really_read():
    """The control exactly zero, rounding small, int8 and bfloat16 further; every position once."""
    experiment = asked("float32", "bfloat16", "kv-int8", "torch", "llamacpp", quality_tokens=40)  # windows of one shape
    rows, notes = labs.run(experiment.reading, TINY, names=experiment.arithmetics)
    made = [Window(**row) for row in rows]
    assert [(t.first, len(t.agree)) for t in made if t.subject == "float32"] == [(0, 20), (20, 20)]
    table = {e["subject"]: e for e in quality.table(made)}
    assert list(table) == ["float32", "bfloat16", "kv-int8", "torch"]
    assert all(e["tokens"] == 40 and e["valid"] for e in table.values())
    assert (table["float32"]["kl"], table["float32"]["worst"], table["float32"]["top1"]) == (0, 0, 1)
    assert 0 <= table["torch"]["kl"] < 1e-10
    assert min(table["kv-int8"]["kl"], table["bfloat16"]["kl"]) > table["torch"]["kl"]
    assert [note["missing"]["name"] for note in notes if "missing" in note] == ["llamacpp"]


def test_a_text_that_is_shorter_is_read_to_its_end(monkeypatch):
    monkeypatch.setattr(quality.passages, "english", lambda *_: list(range(30)))
    rows, _ = labs.run(asked("float32").reading, TINY, names=["float32"])
    assert [(row["first"], len(row["agree"])) for row in rows] == [(0, 20), (20, 10)]


def test_a_process_whose_memory_is_measured_holds_none_of_what_compares_distributions():
    code = "import sys\nfrom llama_lab.bench import footprints\nfrom llama_lab.experiments.fewer_bits import reading\n"
    assert python(f"{code}print('scipy.special' in sys.modules)")[0] == "False"


@pytest.mark.slow
def test_processes_of_their_own_leave_their_rows_in_the_journal(own_lock):
    experiment, journal = asked("float32", "kv-int8"), Journal(kind=Window)
    made, _ = experiment.record(journal)
    assert len(made) == 6
    assert experiment.record(journal)[0] == made  # nothing anew


@pytest.mark.slow
def test_llama_cpp_reads_the_same_model(packaged, own_lock):
    pytest.importorskip("llama_cpp")
    made = asked("llamacpp", model=packaged.name, quality_tokens=64, window=32).record()[0]
    entry = quality.table(made)[0]
    assert all(r.valid for r in made)
    assert 0 < entry["kl"] < quality.SAME_MODEL
    assert entry["top1"] > 0.8
