"""What an extracted store is for, in small: a linear probe that reads a property of a token from its activations, layer
by layer.

The property is one that a token does not have by itself: whether a word ends here, that is whether the *next* token
begins a new one. A model that predicts text should come to know it, more clearly with each layer. Of random weights
without a tokenizer it is whether the token *before* has the lower half of all ids: there is nothing to learn beyond
what attention carries over at random.

The probe is ridge regression on standardised features, fitted on some examples and read on others (folds of whole
examples, so that no text is on both sides), beside what the same probe makes of shuffled labels, which must be nothing.
Intervals are Student's t over the folds; as these share most of what they are fitted on, and tokens recur, they are
somewhat too narrow. Alain & Bengio 2016, "Understanding intermediate layers using linear classifier probes",
https://arxiv.org/abs/1610.01644; the shuffled control after Hewitt & Liang 2019, https://arxiv.org/abs/1909.03368.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from llama_jax.tokenizer import Tokenizer
from llama_lab.activations.spec import Site
from llama_lab.bench import intervals
from llama_lab.bench.wording import interval

FOLDS = 5
SHRINKAGE = 0.1  # the ridge's, as a share of the number of tokens it is fitted on
SHUFFLES = 20
ENDS, BEFORE = "a word ends here", "the token before has an id in the lower half"
# what is extracted for it: the embedding, and the stream after every layer
SITES = (("resid_pre", 0), ("resid_post", "all"))
FEWEST = 2  # tokens of either kind without which there is nothing to rank


def labels(
    tokens: np.ndarray, examples: np.ndarray, tokenizer: Tokenizer | None, vocabulary: int
) -> tuple[np.ndarray, np.ndarray]:
    """(label bool [n], known bool [n]) of each row; rows lie in the order of examples and positions.

    Not known: the first token of an example, in which models keep enormous values that say nothing of it, and for
    `ENDS` the last.
    """
    first = np.r_[True, examples[1:] != examples[:-1]]
    if tokenizer is None:
        return np.r_[False, tokens[:-1] < vocabulary // 2], ~first
    return np.r_[begins_word(tokens, tokenizer)[1:], False], ~first & ~np.r_[first[1:], True]


def begins_word(tokens: np.ndarray, tokenizer: Tokenizer) -> np.ndarray:
    """Whether a token begins with white space or has no letter or digit, so that the word before it is over: bool
    [n]."""
    kinds, inverse = np.unique(tokens, return_inverse=True)
    texts = [tokenizer.decode([int(token)]) for token in kinds]
    return np.array([not text[:1].isalnum() for text in texts])[inverse]


def auc(scores: np.ndarray, truth: np.ndarray) -> float:
    """Area under the ROC curve of scores [n] against truth bool [n]: the chance that a true one is scored above a false
    one.

    Ties count half; NaN if all are of one kind.
    """
    from scipy import stats

    ranks = stats.rankdata(scores)
    true, false = int(truth.sum()), int((~truth).sum())
    return float((ranks[truth].sum() - true * (true + 1) / 2) / (true * false)) if true and false else float("nan")


def ridge(features: np.ndarray, truth: np.ndarray, read: np.ndarray) -> np.ndarray:
    """Scores [m k] of the rows `read` [m D] by ridges fitted on features [n D] and k targets bool [n k]; scaled by the
    fitted rows."""
    middle, scale = features.mean(axis=0), features.std(axis=0) + 1e-6
    x, y = (features - middle) / scale, truth - truth.mean(axis=0)
    weights = np.linalg.solve(x.T @ x + SHRINKAGE * len(x) * np.eye(x.shape[1]), x.T @ y)
    return (read - middle) / scale @ weights


def one_layer(features: np.ndarray, truth: np.ndarray, examples: np.ndarray, seed: int = 0) -> dict:
    """{auc, low, high, folds, control, control_low, control_high} of one site's values [n D].

    auc: mean of the folds', each fitted on the others. control: the same of shuffled labels, mean of SHUFFLES; its ends
    hold 95% of them.
    """
    rng = np.random.default_rng(seed)
    kinds, member = np.unique(examples, return_inverse=True)
    folds = rng.permutation(len(kinds))[member] % FOLDS
    targets = np.stack([truth, *(rng.permutation(truth) for _ in range(SHUFFLES))], axis=1)
    wide, areas = np.asarray(features, np.float64), np.empty((FOLDS, targets.shape[1]))
    for fold in range(FOLDS):
        inside = folds == fold
        scores = ridge(wide[~inside], targets[~inside], wide[inside])
        areas[fold] = [auc(scores[:, k], targets[inside, k]) for k in range(targets.shape[1])]
    real = areas[np.isfinite(areas[:, 0]), 0]
    low, high = np.clip(intervals.mean_interval([intervals.gather(real, None)], seed), 0, 1).tolist()
    null = np.nanmean(areas[:, 1:], axis=0)
    control_low, control_high = np.nanpercentile(null, [2.5, 97.5])
    return dict(auc=float(real.mean()), low=low, high=high, folds=real.tolist(), control=float(np.nanmean(null)),
                control_low=float(control_low), control_high=float(control_high))  # fmt: skip


def by_layer(store, tokenizer: Tokenizer | None, vocabulary: int, depth: int, seed: int = 0) -> list[dict]:
    """One entry per layer, the embedding first as layer 0: {layer, site, property, tokens, examples, share, auc, …},
    see `one_layer`.

    share: of the tokens that have the property. Nothing where hardly any token, or hardly any without it, is left.
    """
    tokens, examples = (store[name][:] for name in ("token", "example"))
    truth, known = labels(tokens, examples, tokenizer, vocabulary)
    truth, examples = truth[known], examples[known]
    about = dict(property=BEFORE if tokenizer is None else ENDS, tokens=len(truth), examples=len(np.unique(examples)))
    if min(truth.sum(), (~truth).sum()) < FEWEST or about["examples"] < FOLDS:
        return []
    about |= dict(share=float(truth.mean()))
    names = [Site("resid_pre", 0), *(Site("resid_post", layer) for layer in range(depth))]
    return [
        dict(layer=i, site=str(site), **about, **one_layer(store[str(site)][:][known], truth, examples, seed))
        for i, site in enumerate(names)
    ]


def of(meta: dict) -> list[dict]:
    """What `by_layer` found, from a table's meta; nothing where it was not asked for."""
    return next((note["probe"] for note in meta.get("processes", ()) if note.get("probe")), [])


def in_words(entries: Sequence[dict]) -> str:
    """What a reader should take home: from which layer on it is read as well as anywhere (the first within the interval
    of the best), beside the embedding and the control."""
    if not entries:
        return "not measured"
    top, first = max(entries, key=lambda e: e["auc"]), entries[0]
    early = next(e for e in entries if e["auc"] >= top["low"])
    return (
        f"“{top['property']}” is read as well as anywhere from layer {early['layer']} on (best after layer"
        f" {top['layer']}: {top['auc']:.3f} {interval(top, '.3f')}); at the embedding {first['auc']:.3f}"
        f" {interval(first, '.3f')}; shuffled labels"
        f" {top['control']:.3f}; n = {top['tokens']} tokens of {top['examples']} examples"
    )
