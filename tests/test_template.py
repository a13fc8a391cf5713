"""Templates: the text is what transformers makes of the same template and messages, byte by byte."""

from pathlib import Path

import pytest
import tokenizers
from tokenizers import models
from transformers import PreTrainedTokenizerFast

from llama_jax import chat
from llama_jax.checkpoint import header, vocabulary
from llama_jax.plumbing.errors import UserError
from llama_jax.tokenizer import Tokenizer

NAMES = dict(bos_token="<s>", eos_token="</s>", pad_token="<pad>", unk_token="<unk>")
TALK = [
    {"role": "system", "content": " Be <brief> & 'kind'. "},
    {"role": "user", "content": "é\n\"2 < 3\"?  "},
    {"role": "assistant", "content": "\tYes, ü\u2028 "},
    {"role": "user", "content": "</s> {{ x }} {% y %} 東"},
]  # fmt: skip
CONVERSATIONS = {"a question": TALK[1:2], "a conversation": TALK, "an answer": TALK[:3], "without a system": TALK[1:]}

CONSTRUCTS = [
    # names that are always there, and those that are not
    "{% if tools is none %}none{% else %}tools{% endif %}",
    "{% if tools is defined %}1{% endif %}{% if tools %}2{% endif %}{% if documents is not none %}3{% endif %}",
    "{% if not tools is defined %}{% set tools = none %}{% endif %}{{ tools }} {{ documents }}",
    "{{ bos_token }}{{ eos_token }}{{ pad_token }}{{ unk_token }}",
    "{{ sep_token is defined }}{{ cls_token }}{{ mask_token is defined }}{{ enable_thinking is defined }}",
    "{{ add_generation_prompt }}{{ add_generation_prompt is defined }}{{ continue_final_message is defined }}",
    "{{ strftime_now('%d %b %Y') }}{{ strftime_now is defined }}{{ date_string is defined }}",
    "{{ messages }}{{ messages[0].keys() | list }}{{ messages[-1]['content'] }}{{ messages[0].tool_calls is defined }}",
    # filters and their keywords
    "{{ messages | tojson }}{{ messages[0] | tojson(indent=2) }}{{ messages | tojson(2) }}",
    "{{ messages | tojson(ensure_ascii=True) }}{{ messages | tojson(true, 4) }}{{ 1.0 | tojson }}{{ none | tojson }}",
    "{{ {'b': 1, 'a': [true, none]} | tojson(separators=(',', ':'), sort_keys=True) }}",
    "{{ messages | map(attribute='role') | join(',') }}{{ messages | length }}{{ messages[0].content | e }}",
    "{{ messages | selectattr('role', 'equalto', 'user') | list | length }}{{ messages[0].content | trim | upper }}",
    "{{ messages | rejectattr('role', 'in', ['system']) | map(attribute='content') | list }}{{ 'a b' | title }}",
    "{{ messages[0].content.split('2')[-1].lstrip('\n') }}{{ messages[0].content.startswith('é') }}{{ 'x' | indent }}",
    "{{ dict(a=1, b='x') }}{{ dict.fromkeys(['a'], 2) }}{{ {'a': 1}.items() | list }}{{ '%s-%d' % ('a', 3) }}",
    "{{ [3, 1] | sort }}{{ range(3) | list }}{{ 'abc'[::-1] }}{{ 7 // 2 }}{{ 'a' ~ 1 ~ none }}{{ messages | last }}",
    # statements
    "{% generation %}x{% set y = 1 %}{% endgeneration %}{{ y is defined }}",
    "{% for m in messages %}{% generation %}{{ loop.index }}{{ m.content }}{% endgeneration %}\n{% endfor %}",
    "{% set ns = namespace(found=false, n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}"
    "{% if m.role == 'user' %}{% set ns.found = true %}{% break %}{% else %}{% continue %}{% endif %}"
    "{% endfor %}{{ ns.n }}{{ ns.found }}",
    "{% set ns = namespace({'a': 1}, b=2) %}{{ ns.a }}{{ ns.b }}{{ ns.c is defined }}",
    "{% macro say(m, to='x') %}{{ m.role }}>{{ to }}\n{% endmacro %}{% for m in messages %}{{ say(m) }}{% endfor %}",
    "{% for m in messages recursive %}{{ loop.first }}{{ loop.last }}{{ loop.index0 }}{{ loop.previtem is defined }}"
    "{{ loop.cycle('a', 'b') }}{% else %}empty{% endfor %}",
    "  {% if true %}\n    a\n  {% endif %}\n\n  {%- if true -%}  b  {%- endif %}\n{# note #}\nc\n\n",
    "{% set x %}a{{ 1 }}{% endset %}{{ x | length }}{% filter upper %}b{% endfilter %}",
    "{% with z = 2 %}{{ z }}{% endwith %}{{ z is defined }}",
    "{% raw %}{{ x }}{% endraw %}{{ undefined }}{{ undefined | default('d') }}{{ cycler is defined }}",
    # what neither renders
    "{{ raise_exception('no') }}",
    "{% set ns = namespace() %}{% set ns.__class__ = 1 %}{{ ns }}",
    "{{ namespace(_x=1)._x }}",
    "{{ undefined.field }}",
    "{{ undefined | tojson }}",
    "{{ messages.pop() }}",
    "{% generation %}",
    "{% for m in messages %}",
]  # fmt: skip

# What the templates of the families are built of, in few lines each.
FAMILIES = {path.stem: path.read_text() for path in sorted(Path(__file__).with_name("templates").glob("*.jinja"))}


@pytest.fixture(scope="module")
def transformers_says():
    """What transformers makes of (template, messages, answer)."""
    theirs = PreTrainedTokenizerFast(tokenizer_object=tokenizers.Tokenizer(models.BPE()), **NAMES)

    def say(template, messages, answer):
        options = dict(chat_template=template, tokenize=False, add_generation_prompt=answer)
        return theirs.apply_chat_template(messages, **options)

    return say


def ours(template):
    others = tuple(pair for pair in NAMES.items() if pair[0] not in ("bos_token", "eos_token"))
    return Tokenizer("{}", template, NAMES["bos_token"], NAMES["eos_token"], (), others)


def same(says, template, messages, answer):
    try:
        expected = says(template, messages, answer)
    except Exception:
        with pytest.raises(UserError, match="chat template failed"):
            chat.render(ours(template), messages, answer)
    else:
        assert chat.render(ours(template), messages, answer) == expected


@pytest.mark.parametrize("template", CONSTRUCTS)
def test_a_construct_gives_the_bytes_that_transformers_gives(transformers_says, template):
    for messages in CONVERSATIONS.values():
        same(transformers_says, template, messages, True)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("answer", [True, False])
def test_a_familys_template_gives_the_bytes_that_transformers_gives(transformers_says, family, answer):
    for messages in CONVERSATIONS.values():
        same(transformers_says, FAMILIES[family], messages, answer)


def test_so_does_the_packaged_template(packaged, transformers_says):
    template = packaged.tokenizer.chat_template
    for messages in CONVERSATIONS.values():
        expected = transformers_says(template, messages, True)
        assert chat.render(packaged.tokenizer, messages) == expected


@pytest.mark.slow
@pytest.mark.parametrize("name", ["qwen2.5-coder-0.5b", "qwen2.5-coder-1.5b"])
def test_so_does_a_real_files_template(real_model, transformers_says, name):
    path = real_model(name)
    words = vocabulary.from_gguf(header.read(path).metadata, str(path), 1 << 20)
    for messages in CONVERSATIONS.values():
        for answer in (True, False):
            expected = transformers_says(words.chat_template, messages, answer)
            assert chat.render(words, messages, answer) == expected


def test_a_special_token_that_the_model_lacks_is_not_defined():
    words = Tokenizer("{}", "{{ bos_token is defined }} {{ eos_token is defined }}", "", "</s>", ())
    assert chat.render(words, TALK) == "False True"
