"""Plain functions as subjects: their rows pair with those of placements, and what is wrong with one is seen."""

import itertools
import time
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import llama_jax as ll
import llama_lab
from llama_jax.plumbing.errors import UserError
from llama_lab.bench import AGAIN, generators, protocol, roofline, summary
from llama_lab.bench.guard import Guard

PROMPTS = [[1, 2, 3], [4, 5]]
N = 5


@pytest.fixture(autouse=True)
def _quick_probe(monkeypatch, own_lock):
    monkeypatch.setattr(roofline, "PROBE_BYTES", 1 << 22)
    monkeypatch.setattr(protocol, "MAX_WARMUP", 4)


@pytest.fixture(scope="module")
def engine(loaded):
    return ll.build(loaded, "step")


@pytest.fixture(scope="module")
def greedy(engine):
    """prompt → ids, one after the other, as a person would write it around the package."""

    def greedy(prompt):
        for block in ll.stream(engine, [prompt], N):
            yield block[0, 0]

    return greedy


@pytest.fixture(scope="module")
def talking(speaking):
    """question → (ids of the answer, its pieces of text)."""
    engine, words = ll.build(speaking, "step"), speaking.tokenizer

    def talking(question, chat=True, n=N):
        ids = ll.chat.encode(words, ll.chat.ask(question)) if chat else words.encode(question)
        made = ll.answer(engine, [ids], n)[0].token_ids
        return made, [words.decode([i]) for i in made]

    return talking


def slowly(tokens):
    """Tokens as a model would give them."""
    for token in tokens:
        time.sleep(1e-4)
        yield token


def of(trials, name="mine"):
    return [t for t in trials if t.subject == name]


def test_its_rows_pair_with_those_of_a_placement(loaded, greedy):
    trials = llama_lab.run("mine", greedy, PROMPTS * 2, model=loaded, beside=["step", ("again", greedy)])
    assert {t.subject for t in trials} == {"step", "step" + AGAIN, "again", "mine"}
    assert all(t.valid and not t.reason for t in trials)
    assert [(t.block, t.prompt, t.prompt_tokens, t.new_tokens) for t in of(trials)] == [
        (i, i % 2, 3 - i % 2, N) for i in range(4)
    ]
    for prompt in (0, 1):
        assert len({t.tokens_sha256 for t in trials if t.prompt == prompt}) == 1
    ratio = summary.paired_ratio(trials, "mine", "step")
    rows = summary.table(trials, "step", ["step", "mine"])
    assert (ratio.n, ratio.value > 0) == (4, True)
    assert [summary.tokens_word(e) for e in rows] == ["equal"] * 3
    assert {t.weights_hash for t in trials} == {loaded.weights_hash}


def test_alone_it_is_its_own_baseline_and_two_runs_pair_by_prompt(loaded, greedy):
    trials = [t for name in "ab" for t in llama_lab.run(name, greedy, PROMPTS, model=loaded)]
    assert {t.subject for t in trials} == {"a", "b", "a" + AGAIN, "b" + AGAIN}
    assert summary.paired_ratio(trials, "b", "a").n == 2


def test_what_compiles_is_wrong_or_fails_is_void_and_says_so(loaded, greedy):
    answers, runs = itertools.count(1), itertools.count(1)

    def compiling(prompt):
        for token in greedy(prompt):
            yield jax.jit(lambda x: x + 0)(jnp.asarray(token))

    def wrong(prompt):
        for i, token in enumerate(greedy(prompt)):
            yield (int(token) + (i == 3)) % loaded.config.vocab_size

    def short(prompt):
        yield from itertools.islice(greedy(prompt), N - (next(answers) > 1))

    def failing(prompt):
        made, fails = greedy(prompt), next(runs) > 1
        yield next(made)
        if fails:
            raise RuntimeError("out of\nluck")
        yield from made

    for generator, words in (
        (compiling, "compiled in the timed region: "),
        (wrong, "wrong: token 3 is "),
        (short, f"wrong: {N - 1} tokens, the reference has {N}"),
        (failing, "failed: RuntimeError: out of luck"),
    ):
        trials = of(llama_lab.run("mine", generator, PROMPTS, model=loaded))
        assert len(trials) == 2
        assert not any(t.valid for t in trials)
        assert all(t.reason.startswith(words) for t in trials), trials[0].reason


@pytest.mark.parametrize("given", [iter, lambda ids: iter([np.array(ids)])], ids=["one by one", "a block"])
def test_tokens_that_were_made_before_the_first_came_have_no_rate(loaded, engine, given, monkeypatch):
    monkeypatch.setattr(generators, "AT_ONCE_NS", 10**9)  # however busy this machine is
    trials = llama_lab.run("mine", lambda p: given(ll.answer(engine, [p], N)[0].token_ids), PROMPTS, model=loaded)
    assert not any(t.valid for t in trials)
    assert all(t.reason.startswith(f"failed: its {N} tokens came at once") for t in trials)


def test_it_may_be_cut_and_may_end_where_the_model_ends(loaded, engine, greedy):
    assert {t.new_tokens for t in llama_lab.run("mine", greedy, PROMPTS[:1], 3, model=loaded)} == {3}
    free = ll.answer(engine, PROMPTS[:1], 12)[0].token_ids
    stopping = replace(loaded, tokenizer=Stopping((free[4],)))
    count = free.index(free[4]) + 1
    for n in (count, count - 1):  # with its stop token, and without
        trials = llama_lab.run("mine", lambda _, n=n: slowly(free[:n]), PROMPTS[:1], 12, model=stopping)
        assert all(t.valid and t.new_tokens == n for t in trials), trials[0].reason
    trials = llama_lab.run("mine", lambda _: slowly(free[:2]), PROMPTS[:1], 12, model=stopping)
    assert not any(t.valid for t in trials)


class Stopping:
    """No more of a tokenizer than its stop tokens."""

    chat_template = None

    def __init__(self, stop):
        self.stop = stop


@pytest.mark.parametrize("chat", [True, False])
def test_text_is_compared_with_what_the_reference_reads(speaking, talking, chat):
    questions = ["Why is the sky blue?", "What is light?"]
    told = {q: talking(q, chat) for q in questions}
    trials = llama_lab.run("mine", lambda q: slowly(told[q][1]), questions, model=speaking, chat=chat)
    assert all(t.valid and not t.reason and t.new_tokens == N for t in trials), trials[0].reason
    assert len({t.tokens_sha256 for t in trials if t.prompt == 0}) == 1
    assert len({t.tokens_sha256 for t in trials}) == len({"".join(pieces) for _, pieces in told.values()})
    assert all(t.prompt_tokens > 0 for t in trials)
    whole = {q: ["", "", "", "", speaking.tokenizer.decode(ids)] for q, (ids, _) in told.items()}
    assert all(t.valid for t in llama_lab.run("mine", lambda q: slowly(whole[q]), questions, model=speaking, chat=chat))
    other = llama_lab.run("mine", lambda q: slowly([*told[q][1][:-1], "?!"]), questions, model=speaking, chat=chat)
    assert all(t.reason.startswith("wrong: its text is not the reference's from character ") for t in other)
    fewer = llama_lab.run("mine", lambda q: iter(["".join(told[q][1])]), questions, N, model=speaking, chat=chat)
    assert all(t.reason == f"wrong: 1 pieces of text, the reference has {N} tokens" for t in fewer)


def test_sampled_ids_must_be_likely_and_sampled_text_is_not_compared(speaking, talking):
    drawn = ll.Sampler(temperature=0.8)
    ids, pieces = talking("What is light?", n=24)
    asked = dict(prompts=["What is light?"], model=speaking, sampler=drawn)
    certain = llama_lab.run("mine", lambda _: slowly(ids), **asked)  # greedy tokens are too likely to have been drawn
    assert {t.sampling for t in certain} == {"temperature 0.8"}
    assert all(t.reason.startswith("wrong: its text's surprise") for t in certain)
    text = llama_lab.run("mine", lambda _: slowly(pieces), **asked)
    assert all(t.valid and t.reason.endswith("it is text, and sampled") for t in text)
    assert [summary.tokens_word(e) for e in summary.table(text, "mine")] == ["unchecked"] * 2


def test_without_a_model_nothing_is_compared_and_compiling_is_still_seen():
    def compiling(prompt):
        for word in prompt.split():
            jax.jit(lambda x: x + 0)(jnp.zeros(3))
            yield word

    quiet = llama_lab.run("mine", lambda prompt: slowly(prompt.split()), ["one two", "three four"], model=None)
    assert all(t.valid and t.reason.endswith("no model was named") and np.isfinite(t.tg) for t in quiet)
    assert {(t.model, t.prompt_tokens, t.bytes_per_token) for t in quiet} == {("", 0, None)}
    assert not any(t.valid for t in llama_lab.run("mine", compiling, ["one two"], model=None))


@pytest.mark.parametrize(
    ("generator", "words"),
    [
        (lambda prompt: 1 // 0, "'mine' fails on 'one': ZeroDivisionError"),
        (lambda prompt: (1 // 0 for _ in "ab"), "'mine' fails on 'one': ZeroDivisionError"),
        (lambda: iter("ab"), "'mine' fails on 'one': TypeError"),
        (lambda prompt: None, "'mine' gives back None; it must yield"),
        (lambda prompt: "text", "'mine' gives back 'text'; it must yield"),
        (lambda prompt: [1, 2], r"'mine' gives back \[1, 2\]; it must yield"),
        (lambda prompt: iter([]), "'mine' yields nothing on 'one'"),
        (lambda prompt: iter([None]), "'mine' yields what cannot be timed: None is not a token"),
        (lambda prompt: iter([0.5]), "'mine' yields what cannot be timed: 0.5 is not a token"),
        (lambda prompt: iter(["a", 1]), "'mine' yields text and ids"),
        (lambda prompt: iter([1, "a"]), "'mine' yields text and ids"),
        ("text", "not a named generator"),
    ],
)
def test_what_is_no_generator_is_one_line_before_anything_is_timed(generator, words, monkeypatch):
    monkeypatch.setattr("llama_lab.bench.protocol.measure", None)
    with pytest.raises(UserError, match=words):
        llama_lab.run("mine", generator, ["one"], model=None)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (dict(prompts=[]), "prompts is empty"),
        (dict(prompts="one"), "prompts is 'one'"),
        (dict(prompts=[3]), "A prompt is 3"),
        (dict(prompts=["one"]), "no tokenizer"),
        (dict(name=""), "name is ''"),
        (dict(name="mine" + AGAIN), "name is 'mine"),
        (dict(name="step", beside=["step"]), "Two subjects are called 'step'"),
        (dict(beside=["stepp"]), "stepp"),
        (dict(beside=[("a",)]), "not a named generator"),
        (dict(beside=["step"], model=None), "Placements need a model"),
        (dict(model=3), "model is 3"),
        (dict(new_tokens=0), "new_tokens is 0"),
        (dict(new_tokens=4000), "context"),
        (dict(chat=True), "no chat template"),
        (dict(generator=lambda prompt: itertools.count()), "is still running after"),
    ],
)
def test_bad_input_is_one_line(loaded, options, words):
    given = dict(name="mine", generator=lambda prompt: iter([1]), prompts=PROMPTS, model=loaded) | options
    with Guard() as guard, pytest.raises(UserError, match=words):
        llama_lab.run(**given)
    assert not guard.events
