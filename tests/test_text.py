"""Text in, text out: one call."""

from dataclasses import replace

import pytest

import llama_jax as ll
from llama_jax import checkpoint, text
from llama_jax.checkpoint.tensors import assemble
from llama_jax.plumbing.errors import UserError
from llama_jax.tokenizer import Numbers
from llama_lab.bench import Guard
from tests.conftest import TINY

pytestmark = pytest.mark.usefixtures("compiling")


@pytest.fixture(autouse=True)
def _forgotten(monkeypatch):
    monkeypatch.setattr(text, "_held", None)


@pytest.mark.parametrize("placement", ["step", "chunk2"])
def test_the_text_is_that_of_the_tokens_and_the_second_call_compiles_nothing(placement):
    with Guard() as guard:
        made, stats = ll.generate_text("1, 2, 3", 5, model=TINY, placement=placement)
    assert guard.compilations == stats.compilations > 0
    again, warm = ll.generate_text("4 5 6", 5, model=TINY, placement=ll.parse(placement))
    assert (warm.compilations, warm.tokens, warm.chat) == (0, 5, False)
    assert 0 < warm.ttft < warm.seconds
    assert warm.tokens_per_second == pytest.approx(4 / (warm.seconds - warm.ttft))
    assert warm.compiling == 0 < stats.compiling < stats.seconds
    assert stats.tokens_per_second is None or stats.tokens_per_second > 3 / (stats.seconds - stats.ttft)
    engine = ll.build(ll.load(TINY), placement)
    for ids, answer in (([1, 2, 3], made), ([4, 5, 6], again)):
        assert answer == Numbers().decode(ll.answer(engine, [ids], 5)[0].token_ids)


def test_a_question_goes_through_the_chat_template_unless_it_is_plain(speaking):
    question, words = "Why is the sky blue?", speaking.tokenizer
    engine = ll.build(speaking, "step")
    for chat, ids in ((None, ll.chat.encode(words, ll.chat.ask(question))), (False, words.encode(question))):
        made, stats = ll.generate_text(question, 4, model=speaking, chat=chat)
        answer = ll.answer(engine, [ids], 4, words.stop)[0]
        assert made == words.decode(answer.token_ids)
        assert stats.chat == (chat is None)


def test_sampler_and_seed_count(speaking):
    drawn = dict(model=speaking, sampler=ll.Sampler(temperature=1.0), chat=False)
    first, again, other = (ll.generate_text("One", 6, seed=seed, **drawn)[0] for seed in (1, 1, 2))
    assert first == again != other


def test_one_model_is_held_and_another_one_is_another(speaking):
    ll.generate_text("1", 1, model=TINY)
    first = text.held(TINY)
    assert text.held(TINY) is first
    assert text.held(speaking).checkpoint(ll.parse("step")) is speaking
    assert text.held(replace(speaking)).checkpoint(ll.parse("step")) is not speaking
    assert text.held(TINY) is not first


def test_an_answer_that_comes_at_once_has_a_rate_once_nothing_is_compiled_for_it():
    asked = dict(new_tokens=6, model=TINY, placement="loop")
    first, again = (ll.generate_text("1 2 3", **asked)[1] for _ in range(2))
    assert first.tokens_per_second is None
    assert again.tokens_per_second == pytest.approx(5 / (again.seconds - again.ttft))


def test_one_token_has_no_rate():
    assert ll.generate_text("1 2", 1, model=TINY)[1].tokens_per_second is None


@pytest.mark.parametrize(
    ("prompt", "options", "words"),
    [
        ("  ", {}, "must be text, and not empty"),
        (["a"], {}, "must be text"),
        ("1 2", dict(new_tokens=0), "new_tokens is 0"),
        ("1 2", dict(placement="stepp"), "stepp"),
        ("1 2", dict(model=3), "model is 3"),
        ("1 2", dict(model="no-such-model"), "no-such-model"),
        ("1 2", dict(sampler=0.5), "sampler is 0.5"),
        ("1 2", dict(seed=-1), "seed is -1"),
        ("1 2", dict(chat=True), "no chat template"),
        ("Why?", {}, "no tokenizer"),
    ],
)
def test_bad_input_is_one_line(prompt, options, words):
    with pytest.raises(UserError, match=words):
        ll.generate_text(prompt, **{"model": TINY, "new_tokens": 2, **options})


def test_a_model_is_in_memory_in_no_other_form_than_its_placement_computes_on(monkeypatch):
    loaded = []
    monkeypatch.setattr(checkpoint, "assemble", lambda *given: loaded.append(given[1]) or assemble(*given))
    for placement in ("step", "chunk2", "step+q8_0", "chunk2+q8_0", "step+bf16"):
        ll.generate_text("1", 1, model=TINY, placement=placement)
    assert loaded == ["float32", "q8_0", "bfloat16"]
