"""The linear probe: it reads what is there, nothing of shuffled labels, and each token's label is its own."""

import numpy as np
import pytest

from llama_lab.experiments.activation_extraction import probing

EXAMPLES = np.repeat(np.arange(30), 12)


def drawn(strength: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """(features [n 16], truth [n]): one direction tells the truth, the more clearly the stronger."""
    rng = np.random.default_rng(seed)
    truth = rng.random(len(EXAMPLES)) < 0.4
    features = rng.normal(size=(len(EXAMPLES), 16)) + strength * truth[:, None] * rng.normal(size=16)
    return features.astype(np.float32), truth


def test_the_probe_reads_what_is_there_and_nothing_of_shuffled_labels():
    found = [probing.one_layer(*drawn(strength), EXAMPLES) for strength in (0, 0.3, 3)]
    assert found[0]["control_low"] < found[0]["auc"] < found[0]["control_high"] + 0.05
    assert found[0]["auc"] < found[1]["auc"] < found[2]["auc"]
    assert found[2]["low"] > 0.95
    assert found[1]["low"] > found[1]["control_high"]
    for one in found:
        assert one["control_low"] < 0.5 < one["control_high"]
        assert one["low"] <= one["auc"] <= one["high"]
        assert len(one["folds"]) == probing.FOLDS
        assert one["auc"] == pytest.approx(np.mean(one["folds"]))


def test_no_example_is_on_both_sides():
    """Features that name the example and nothing else: a probe that had seen it would know its label."""
    truth = (EXAMPLES * 7919 % 30) < 15  # one label an example
    features = np.eye(30)[EXAMPLES] * 10
    assert probing.one_layer(features, truth, EXAMPLES)["auc"] < 0.7
    leaked = probing.auc(probing.ridge(features, truth[:, None], features)[:, 0], truth)
    assert leaked == 1


def test_auc_counts_pairs():
    scores, truth = np.array([1, 2, 2, 3, 0.5]), np.array([False, True, False, True, True])
    pairs = [(s > o) + 0.5 * (s == o) for s in scores[truth] for o in scores[~truth]]
    assert probing.auc(scores, truth) == pytest.approx(np.mean(pairs))
    assert np.isnan(probing.auc(scores, np.ones(5, bool)))


def test_labels_of_random_ids_are_of_the_token_before():
    tokens, examples = np.array([5, 90, 10, 11, 80, 3]), np.array([0, 0, 0, 1, 1, 1])
    truth, known = probing.labels(tokens, examples, None, 97)
    assert known.tolist() == [False, True, True, False, True, True]
    assert truth[known].tolist() == [True, False, True, False]


def test_a_word_ends_where_the_next_token_begins_another(packaged):
    ids = packaged.tokenizer.encode("The unbelievable antidisestablishmentarianism, again", special=False)
    texts = [packaged.tokenizer.decode([i]) for i in ids]
    truth, known = probing.labels(np.array(ids), np.zeros(len(ids), int), packaged.tokenizer, 49152)
    assert known.tolist() == [False] + [True] * (len(ids) - 2) + [False]
    following = [not text[:1].isalnum() for text in texts[1:]]
    assert truth[:-1].tolist() == following
    assert True in following[1:]
    assert False in following[1:]


def test_what_is_too_little_is_no_probe():
    class Store(dict):
        pass

    tokens = np.array([1, 2, 3])
    store = Store(token=tokens, example=np.zeros(3, int))
    assert probing.by_layer(store, None, 97, 2) == []
    assert probing.in_words([]) == "not measured"
    assert probing.of({"processes": [{"watch": {}}]}) == []
    assert probing.of({"processes": [{"watch": {}}, {"probe": [1]}]}) == [1]
