import jax
import jax.numpy as jnp
import numpy as np
import pytest

from llama_jax import generate, sampling
from llama_jax.sampling import Draw, Sampler
from llama_lab.bench import gate
from llama_lab.experiments.fewer_bits import reading
from tests.conftest import among_the_fast

REFERENCE = np.array([5, 6, 7, 8])


def never():
    raise AssertionError("asked for only where tokens differ")


def test_equal_tokens_pass():
    assert gate.compare(REFERENCE, REFERENCE, never) == gate.Verdict(True)
    assert not gate.compare(REFERENCE[:3], REFERENCE, never).passed


def far(tokens, *distances):
    """Logits under which each token is so far from the best."""
    found = np.full((len(tokens), 10), -100.0)
    found[:, 0], found[np.arange(len(tokens)), tokens] = 0, -np.array(distances)
    return lambda: found


@pytest.mark.parametrize(
    ("distance", "passed", "reason"),
    [
        (9e-4, True, "near-tie at token 2"),
        (2e-3, False, "wrong: token 2 is 9, the reference has 7"),
        (np.nan, False, "wrong: token 2 is 9, the reference has 7"),
    ],
)
@pytest.mark.parametrize("turned", [False, True])
def test_a_difference_passes_only_at_a_near_tie(distance, passed, reason, turned):
    tokens = np.array([5, 6, 9, 1])
    logits = far(tokens, 9.0, 9.0, distance, 0.0)()
    logits[2, 7] = -1e-4
    if turned:  # the reference's token is the one that its logits do not bear out
        logits[2, [7, 9]] = logits[2, [9, 7]]
    assert gate.compare(tokens, REFERENCE, lambda: logits) == gate.Verdict(passed, reason)


@pytest.mark.parametrize(("distance", "passed"), [(0.9, True), (1.1, False), (np.inf, False), (np.nan, False)])
def test_after_a_near_tie_the_text_must_still_be_one_of_the_references(distance, passed):
    tokens = np.array([5, 9, 3, 1])
    logits = far(tokens, 0.0, 1e-4, 0.0, distance)()
    logits[1, 6] = 0.0
    far_away = "wrong: after a near-tie at token 1, token 3 is 1, far from the reference's best"
    reason = "near-tie at token 1" if passed else far_away
    assert gate.compare(tokens, REFERENCE, lambda: logits) == gate.Verdict(passed, reason)


def test_how_far_behind_the_best():
    logits = np.array([[0.0, 3.0, 1.0], [2.0, 1.0, 0.0], [1.0, 1.0, 0.5], [0.0, 1.0, 2.0]])
    assert gate.behind(logits, np.array([1, 1, 0, 2])).tolist() == [0, 1, 0, 0]
    assert gate.behind(logits, np.array([2, 3, -1, 0])).tolist() == [2, np.inf, np.inf, 2]


PROMPT = [3, 4, 5]
SAMPLERS = [Sampler(temperature=0.6, top_k=50, top_p=0.9), Sampler(temperature=1.5),
            Sampler(temperature=0.8, min_p=0.05, repetition_penalty=1.3), Sampler(repetition_penalty=1.5)]  # fmt: skip


def text(n, size=200, seed=0):
    """Logits [n V] of a text whose every token depends on nothing."""
    return np.random.default_rng(seed).normal(0, 3, (n, size)).astype(np.float32)


def drawn(logits, sampler, seed, prompt=PROMPT):
    """The tokens [n] that the sampler makes of them, one after the other."""
    seen = jnp.zeros((1, logits.shape[1]), bool).at[0, jnp.array(prompt)].set(True)
    draw, made = Draw(jax.vmap(jax.random.key)(jnp.array([seed])), jnp.zeros((), jnp.int32), seen), []
    for row in logits:
        token, draw = sampling.next_token(row[None], draw, sampler)
        draw = Draw(draw.keys, draw.index, draw.seen.at[0, token[0]].set(True))
        made.append(int(token[0]))
    return np.array(made)


@pytest.mark.parametrize("sampler", SAMPLERS, ids=str)
def test_a_drawn_token_is_the_best_once_the_draws_noise_is_added(sampler):
    logits = text(12)
    tokens = drawn(logits, sampler, seed=7)
    assert gate.behind_drawn(logits, tokens, sampler, 7, PROMPT).max() == 0
    assert gate.behind_drawn(logits, (tokens + 1) % 200, sampler, 7, PROMPT).min() > gate.NEAR_TIE
    if sampler.temperature:
        assert gate.behind_drawn(logits, tokens, sampler, 8, PROMPT).max() > gate.NEAR_TIE  # another seed's noise


def test_a_sampled_difference_passes_only_at_a_near_tie_of_the_noisy_logits():
    sampler, logits = Sampler(temperature=0.6, top_k=50), text(4)
    reference = drawn(logits, sampler, 7)
    noisy = np.asarray(gate.softened(logits, reference, sampler, PROMPT)) + np.stack(
        [jax.random.gumbel(jax.random.fold_in(jax.random.key(7), i), (200,)) for i in range(4)]
    )
    best, second = np.argsort(noisy[2])[::-1][:2]
    for distance, passed in ((5e-4, True), (5e-3, False)):
        moved = logits.copy()
        moved[2, second] += (noisy[2, best] - noisy[2, second]) * 0.6 - distance
        tokens = reference.copy()
        tokens[2] = second

        def behind(known, row):
            return gate.behind_drawn(known, row, sampler, 7, PROMPT)

        assert gate.compare(tokens, reference, lambda moved=moved: moved, distance=behind).passed == passed


def test_at_the_edge_of_a_filter_both_sides_are_right():
    logits = np.full((1, 10), -50.0, np.float32)
    logits[0, :3] = 5.0, 1.0, 1.0 - 1e-5
    sampler, tokens = Sampler(temperature=1.0, top_k=2), np.array([[0], [1], [2], [3]])
    found = [gate.behind_drawn(logits, t, sampler, 0, PROMPT)[0] for t in tokens]
    assert np.isfinite(found[:3]).all()  # whether 1 or 2 is the second best, rounding may decide
    assert np.isinf(found[3])
    assert np.isinf(gate.behind_drawn(logits, np.array([10]), sampler, 0, PROMPT))


@pytest.mark.parametrize("sampler", among_the_fast(SAMPLERS[:1], SAMPLERS[:3]), ids=str)
def test_another_generators_tokens_are_likely_ones(sampler):
    logits = text(60)
    for seed in range(4):
        verdict = gate.likely(drawn(logits, sampler, seed), 60, lambda: logits, sampler, PROMPT)
        assert verdict.passed, verdict.reason


OTHERS = [(Sampler(), "surprise"), (Sampler(temperature=0.2), "surprise"), (Sampler(temperature=4.0), "leaves out"),
          (Sampler(temperature=4.0, top_k=50), "surprise")]  # fmt: skip


@pytest.mark.parametrize(("other", "reason"), OTHERS, ids=str)
def test_tokens_of_another_sampler_are_not(other, reason):
    logits, sampler = text(60), Sampler(temperature=1.0, top_k=50)
    verdict = gate.likely(drawn(logits, other, 1), 60, lambda: logits, sampler, PROMPT)
    assert not verdict.passed
    assert reason in verdict.reason
    assert verdict.reason.startswith("wrong: ")


@pytest.mark.parametrize(
    ("rest", "passed"), [(1e-2, True), (2.5e-3, True), (1e-4, True), (1e-9, False), (1e-12, False)]
)
def test_a_rare_token_is_rare_and_not_wrong(rest, passed):
    """One of two tokens is drawn with the probability `rest`: far from the mean in deviations, and that often met."""
    logits, sampler = np.full((2, 10), -60.0, np.float32), Sampler(temperature=1.0)
    logits[:, 0], logits[0, 1], logits[1, 2] = 0.0, np.log(rest), -1.0
    assert gate.likely(np.array([0, 0]), 2, lambda: logits, sampler, PROMPT).passed
    assert gate.likely(np.array([1, 0]), 2, lambda: logits, sampler, PROMPT).passed == passed


@pytest.mark.parametrize("side", [1, -1])
def test_so_much_surprise_is_no_more_probable_than_the_bound_says(side):
    random = np.random.default_rng(3)
    p = random.dirichlet(np.full(12, 0.3), 4)
    mine = -np.log(np.maximum(p, 1e-300))
    drawn_mine = np.array([[random.choice(mine[i], p=p[i]) for i in range(4)] for _ in range(4000)]).sum(1)
    middle = (p * mine).sum()
    for far in (0.5, 1.0, 2.0, 3.0):
        at = middle + side * far
        often = (side * (drawn_mine - at) >= 0).mean()
        assert often <= gate.chance(p, mine, at) + 0.02
    assert gate.chance(p, mine, middle + side * 40) < 1e-6


def test_too_few_tokens_or_none_of_the_vocabulary_are_not_likely():
    logits, sampler = text(5), Sampler(temperature=1.0)
    tokens = drawn(logits, sampler, 1)
    assert "4 tokens, 5 were asked for" in gate.likely(tokens[:4], 5, lambda: logits[:4], sampler, PROMPT).reason
    tokens[3] = 200
    assert "token 3 is 200" in gate.likely(tokens, 5, lambda: logits, sampler, PROMPT).reason


@pytest.mark.slow
def test_kernels_under_another_jit_stay_within_what_the_gate_allows(packaged):
    """The same products, other fusions around them: some best tokens differ, and of a hundred positions hardly one by
    than half of what the gate allows."""
    one, other = (generate.build(packaged, name) for name in ("step+gemv", "layer+gemv"))
    distances = []
    for ids in reading.texts(packaged, 256).values():
        best = np.asarray(generate.logits(other, ids)).argmax(-1)
        distances.append(gate.behind(generate.logits(one, ids), best))
    found = np.concatenate(distances)
    assert np.count_nonzero(found) > 1
    assert found.max() > gate.NEAR_TIE
    assert np.quantile(found, 0.99) <= gate.FLIP / 2
    assert found.max() <= gate.FLIP
