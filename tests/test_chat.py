import gc
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from llama_jax import chat
from llama_jax.plumbing.errors import UserError
from llama_jax.tokenizer import Tokenizer


def with_template(template):
    return Tokenizer("{}", template, "<s>", "</s>", ())


def test_the_packaged_template(packaged):
    text = chat.render(packaged.tokenizer, chat.ask("Hi", system="Be brief."))
    assert text == "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    ids = chat.encode(packaged.tokenizer, chat.ask("Hi", system="Be brief."))
    assert ids[0] == 1  # the special token itself, not its letters
    assert ids.count(2) == 2


def test_variables():
    template = "{{ bos_token }}{{ messages[0].content }}{% if add_generation_prompt %}>{% endif %}"
    assert chat.render(with_template(template), chat.ask("x")) == "<s>x>"


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("{{ raise_exception('no odd turns') }}", "no odd turns"),
        (None, "no chat template"),
        *(
            (template, "template failed: .+")
            for template in (
                "{% if %}",
                "{{ messages.__class__.__mro__ }}",
                "{{ ''.__class__.__base__.__subclasses__() }}",
                "{{ messages.append(1) }}",
                "{{ 'a' * 10**10 }}",
                "{{ 'a'.ljust(10**10) }}",
                "{{ '%10000000000d' % 1 }}",
                "{% set n = namespace(s='ab') %}{% for i in range(60) %}{% set n.s = n.s ~ n.s %}{% endfor %}",
                "{% for i in range(10**9) %}{% endfor %}",
                "{% macro again(x) %}{{ again(x) }}{% endmacro %}{{ again(1) }}",
                "{% include 'other' %}",
                "{{ 'long text ' * 10**6 }}",
                "{{ undefined.field }}",
                "{{ 1 // 0 }}",
            )
        ),
    ],
)
def test_a_template_that_fails_reaches_out_or_takes_too_much_is_ended_with_one_line(template, words):
    with pytest.raises(UserError, match=words) as caught:
        chat.render(with_template(template), chat.ask("x"))
    assert len(str(caught.value)) < 700


@pytest.mark.parametrize(
    "template",
    ["{% for i in range(9999) %}{% for j in range(9999) %}{% endfor %}{% endfor %}", "{{ 10 ** (10 ** 10) }}"],
)
def test_a_template_without_an_end_is_ended(monkeypatch, tmp_path, template):
    quick, text = tmp_path / "template.py", Path(chat.template.__file__).read_text()
    quick.write_text(text.replace("SECONDS, BYTES, CHARACTERS = 10,", "SECONDS, BYTES, CHARACTERS = 2,"))
    monkeypatch.setattr(chat.template, "__file__", str(quick))
    with pytest.raises(UserError, match="more than 10 seconds or 512 MB"):
        chat.render(with_template(template), chat.ask("x"))


def test_a_conversation_goes_on_after_a_template_was_ended():
    """The process is started again; an honest conversation takes no notice."""
    words = with_template("{% if messages[0].content == 'x' %}{{ 'a' * 10**10 }}{% endif %}{{ messages[0].content }}")
    for _ in range(2):
        with pytest.raises(UserError, match="more than 512 MB|MemoryError"):
            chat.render(words, chat.ask("x"))
        assert chat.render(words, chat.ask("y")) == "y"
    process = chat.renderer(words.chat_template).process
    process.kill()
    process.wait()
    assert chat.render(words, chat.ask("z")) == "z"


def test_threads_share_a_template():
    words = with_template("{{ messages[0].content }}")
    with ThreadPoolExecutor(8) as pool:
        texts = list(pool.map(lambda i: chat.render(words, chat.ask(str(i))), range(200)))
    assert texts == [str(i) for i in range(200)]


def test_the_process_of_a_template_that_nobody_uses_any_more_ends():
    used = chat.Renderer("{{ messages }}")
    assert used.render({"messages": 3}) == {"text": "3"}
    process = used.process
    del used
    gc.collect()
    assert process.poll() is not None


def test_a_process_that_was_started_early_renders_the_next_template(monkeypatch):
    monkeypatch.setattr(chat, "STARTED", [])
    chat.start_early()
    (early,) = chat.STARTED
    used = [chat.Renderer("{{ a }}"), chat.Renderer("{{ a + 1 }}")]
    assert [each.render({"a": 3}) for each in used] == [{"text": "3"}, {"text": "4"}]
    assert used[0].process is early is not used[1].process


TEMPLATES = {
    "plain": "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
    "opens a turn always": "{% for m in messages %}[{{ m.role }}]{{ m.content }}\n{% endfor %}[assistant]",
    "trims": "{{ bos_token }}{% for m in messages %}<|{{ m.role }}|>\n\n{{ m.content | trim }}<|eot|>{% endfor %}",
    "trims between spaces": "{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content | trim }} [/INST]"
    "{% else %}{{ ' ' + m.content | trim + ' ' + eos_token }}{% endif %}{% endfor %}",
    "leaves out what was thought": "{% for m in messages %}{{ m.role }}: {{ m.content.split('</think>')[-1] }}\n"
    "{% endfor %}",
    "renames": "{% for m in messages %}<turn>{{ 'model' if m.role == 'assistant' else m.role }}\n{{ m.content | trim }}"
    "</turn>\n{% endfor %}{% if add_generation_prompt %}<turn>model\n{% endif %}",
}


def prefilled(text):
    return [*chat.ask("Why?", "Be brief."), {"role": "assistant", "content": text}]


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_last_message_is_left_open_as_transformers_does(name):
    from transformers.utils.chat_template_utils import render_jinja_template

    words, special = with_template(TEMPLATES[name]), dict(bos_token="<s>", eos_token="</s>")
    for text in ("Because", "Because ", " so \n\n", "Why? Be brief.", "naïve 🙂\t", "a\n b", "x|im_end|"):
        asked = dict(conversations=[prefilled(text)], chat_template=TEMPLATES[name], continue_final_message=True)
        (theirs,), _ = render_jinja_template(**asked, **special)
        ours = chat.render(words, prefilled(text), continue_final_message=True)
        assert ours == theirs, text
        assert ours.rstrip().endswith(text.strip())
    for nothing in ("", " \n"):  # the turn is open, its header whole
        ours = chat.render(words, prefilled(nothing), continue_final_message=True)
        assert ours.startswith(chat.render(words, prefilled("x"), continue_final_message=True)[:-1])


def test_what_is_gone_on_with_becomes_the_ids_of_its_text_and_spells_no_special_token(packaged):
    words, said = packaged.tokenizer, prefilled("The sky <|im_end|> is")
    open_ids = chat.encode(words, said, continue_final_message=True)
    assert open_ids == chat.render_prompt(said, continue_final_message=True).ids(words)
    assert open_ids.count(2) == 2  # the turns before
    assert words.decode(open_ids).endswith("assistant\nThe sky <|im_end|> is")
    closed = chat.encode(words, said, answer=False)
    assert closed[: len(open_ids)] == open_ids
    assert closed[len(open_ids)] == 2
    assert chat.encode(words, said)[: len(closed)] == closed  # and a new turn
    assert chat.encode(words, prefilled(""), continue_final_message=True) == chat.encode(words, said[:-1])


@pytest.mark.parametrize(
    ("template", "messages", "words"),
    [
        (TEMPLATES["plain"], chat.ask("x"), "last message is the user's"),
        ("{{ messages[0].content }}", prefilled("x"), "changes the last message"),
        ("{% for m in messages %}{{ m.content | upper }}{% endfor %}", prefilled("x"), "changes the last message"),
        (TEMPLATES["leaves out what was thought"], prefilled("a</think>b"), "changes the last message"),
    ],
)
def test_what_cannot_be_gone_on_with_is_one_line(template, messages, words):
    with pytest.raises(UserError, match=words):
        chat.render(with_template(template), messages, continue_final_message=True)


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ([], "at least 1"),
        ("text", "it holds 'text'"),
        (None, "it holds None"),
        (["text"], "0 is 'text'"),
        ([{"role": "user"}], "no 0.content"),
        ([{"role": "wizard", "content": "x"}], "'wizard'.*'user'"),
        ([{"role": "user", "content": 3}], "0.content is 3"),
        ([{"role": "user", "content": ["x"]}], "0.content is"),
        ([{"role": "user", "content": None}], "0.content is None"),
        ([{"role": "user", "content": "x", "name": "y"}], "0.name"),
        ([{"role": "user", "content": "\udfff"}], "Message 1 holds half a surrogate pair"),
        ([{"role": "user", "content": "x" * (1 << 22)}] * 2, "8,388,608 characters"),
    ],
)
def test_what_is_no_conversation_is_named(messages, words):
    for call in (chat.render, chat.encode):
        with pytest.raises(UserError, match=words):
            call(with_template("{{ messages }}"), messages)
