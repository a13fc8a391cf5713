import pytest

from llama_jax.errors import UserError
from llama_jax.text import chat
from llama_jax.text.tokenizer import Tokenizer


def with_template(template):
    return Tokenizer("{}", template, "<s>", "</s>", ())


def test_the_packaged_template(packaged):
    text = chat.render(packaged.tokenizer, chat.ask("Hi", system="Be brief."))
    assert text == "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    ids = chat.encode(packaged.tokenizer, chat.ask("Hi", system="Be brief."))
    assert ids[0] == 1  # the special token itself, not its letters
    assert ids.count(2) == 2


def test_variables_and_refusals():
    found = chat.render(
        with_template("{{ bos_token }}{{ messages[0].content }}{% if add_generation_prompt %}>{% endif %}"),
        chat.ask("x"),
    )
    assert found == "<s>x>"
    with pytest.raises(UserError, match="no odd turns"):
        chat.render(with_template("{{ raise_exception('no odd turns') }}"), chat.ask("x"))
    with pytest.raises(UserError, match="no chat template"):
        chat.render(with_template(None), chat.ask("x"))
    with pytest.raises(UserError, match="template failed"):
        chat.render(with_template("{% if %}"), chat.ask("x"))


@pytest.mark.parametrize(
    "template",
    ["{{ messages.__class__.__mro__ }}", "{{ ''.__class__.__base__.__subclasses__() }}", "{{ messages.append(1) }}"],
)
def test_the_template_cannot_reach_out_of_its_sandbox(template):
    with pytest.raises(UserError, match="template failed"):
        chat.render(with_template(template), chat.ask("x"))
