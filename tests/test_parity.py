"""The packaged model against transformers, which reads the same GGUF file in float32."""

import numpy as np
import pytest
import torch

from llama_jax import chat, generate, prompts
from llama_jax.checkpoint import gguf
from tests.conftest import relative_error, torch_logits

NEW = 64


@pytest.fixture(scope="module")
def reference():
    from transformers import AutoModelForCausalLM

    path = gguf.packaged()
    return AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32).eval()


@pytest.mark.slow("always")
def test_logits_and_64_greedy_tokens_equal_transformers(reference, packaged):
    """Our tokens are transformers' greedy ones: each is the best where transformers is given all tokens before it."""
    texts = [chat.render(packaged.tokenizer, chat.ask(q)) for q in prompts.load(8)] + [
        "Once upon a time",
        "def fibonacci(n):",
    ]
    engine = generate.build(packaged, "loop")
    prompt_ids = [packaged.tokenizer.encode(text, special=False, allow_special_tokens=True) for text in texts]
    answers = [list(answer.token_ids) for answer in generate.answer(engine, prompt_ids, NEW)]
    assert list(generate.answer(engine, prompt_ids[:1], NEW)[0].token_ids) == answers[0]
    for text, ids, ours in zip(texts, prompt_ids, answers, strict=True):
        same_length = (ids * 8)[:32]  # one shape to compile for all prompts
        best = torch_logits(reference, ids + ours).argmax(-1).tolist()
        assert relative_error(generate.logits(engine, same_length), torch_logits(reference, same_length)) <= 1e-4
        assert len(ours) == NEW
        assert ours == best[len(ids) - 1 : -1], text


@pytest.mark.slow
def test_the_tokenizer_equals_transformers(packaged):
    from transformers import AutoTokenizer

    path = gguf.packaged()
    theirs = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    for text in (
        "Why is the sky blue?",
        "  two  spaces\n\ttab",
        "1234567.89",
        "naïve café 東京 🙂",
        "<|im_start|>user\nhi<|im_end|>",
        "don't",
    ):
        assert packaged.tokenizer.encode(text, allow_special_tokens=True) == theirs.encode(text), text
    messages = [*chat.ask("Hi"), {"role": "assistant", "content": "Hello."}, *chat.ask("Bye")]
    rendered = theirs.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert chat.render(packaged.tokenizer, messages) == rendered


@pytest.mark.slow
def test_real_logits_are_finite_and_sharp(packaged):
    """A cheap sign of life for real weights: a well-known continuation is the best one."""
    engine = generate.build(packaged, "step")
    ids = packaged.tokenizer.encode("The capital of France is")
    best = int(np.argmax(np.asarray(generate.logits(engine, ids))[-1]))
    assert packaged.tokenizer.decode([best]).strip() == "Paris"
