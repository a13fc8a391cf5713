"""Every field that clients send is read, refused by name where it would change the answer, or known to change none. The
lists are OpenAI's and Ollama's own clients', and those that vLLM, SGLang, llama.cpp and OpenRouter document."""

import asyncio
import json
import typing

import ollama._types as ollamas
import pytest
from openai.types import completion_create_params as completions
from openai.types.chat import completion_create_params as chats

from llama_jax.plumbing import paths
from llama_lab.serve import fields, ollama, openai, structure
from tests.serve.conftest import NAME


def named(names):
    return set(names.split())


OPENAI_CHAT = set(typing.get_type_hints(chats.CompletionCreateParamsBase)) | {"stream"}
OPENAI_COMPLETION = set(typing.get_type_hints(completions.CompletionCreateParamsBase)) | {"stream"}
VLLM = named(  # https://docs.vllm.ai/en/latest/serving/openai_compatible_server.html
    "best_of use_beam_search top_k min_p repetition_penalty length_penalty stop_token_ids include_stop_str_in_output"
    " ignore_eos min_tokens skip_special_tokens spaces_between_special_tokens truncate_prompt_tokens prompt_logprobs"
    " allowed_token_ids bad_words echo add_special_tokens mm_processor_kwargs media_io_kwargs guided_json guided_regex"
    " guided_choice guided_grammar structural_tag guided_decoding_backend guided_whitespace_pattern structured_outputs"
    " priority request_id logits_processors return_tokens_as_token_ids return_token_ids cache_salt"
    " kv_transfer_params vllm_xargs logprob_token_ids thinking_token_budget repetition_detection"
)
VLLM_CHAT = named(
    "include_reasoning add_generation_prompt continue_final_message documents chat_template chat_template_kwargs"
)
OPENROUTER = named("provider models route transforms usage session_id trace include_reasoning reasoning")
SGLANG = named(  # https://docs.sglang.ai/basic_usage/sampling_params.html
    "regex ebnf json_schema stop_regex no_stop_trim min_new_tokens max_new_tokens lora_path custom_logit_processor"
    " separate_reasoning stream_reasoning return_hidden_states rid"
)
LLAMACPP = named(  # https://github.com/ggml-org/llama.cpp/blob/master/tools/server/README.md
    "temperature dynatemp_range dynatemp_exponent top_k top_p min_p n_predict n_indent n_keep n_cmpl n_cache_reuse"
    " stream stop typical_p repeat_penalty repeat_last_n presence_penalty frequency_penalty dry_multiplier dry_base"
    " dry_allowed_length dry_penalty_last_n dry_sequence_breakers xtc_probability xtc_threshold mirostat mirostat_tau"
    " mirostat_eta grammar json_schema seed ignore_eos logit_bias n_probs min_keep t_max_predict_ms id_slot"
    " cache_prompt return_tokens samplers timings_per_token return_progress sse_ping_interval post_sampling_probs"
    " response_fields lora chat_template_kwargs reasoning_format thinking_forced_open parse_tool_calls"
)
OLLAMA = set(ollamas.GenerateRequest.model_fields) | set(ollamas.ChatRequest.model_fields)
OLLAMA |= {"truncate", "shift", "_debug_render_only"}  # of its API alone
OPTIONS = set(ollamas.Options.model_fields)
ASKED = [
    (openai.Chat, OPENAI_CHAT | OPENROUTER | VLLM | VLLM_CHAT | SGLANG | LLAMACPP),
    (openai.Completion, OPENAI_COMPLETION | VLLM | SGLANG | LLAMACPP),
    (ollama.Chat, OLLAMA - {"prompt", "system", "raw", "context"}),
    (ollama.Generate, OLLAMA - {"messages"}),
    (ollama.Options, OPTIONS),
]
V1S = set(structure.Asked.model_fields)
HI = [dict(role="user", content="Hi")]
V1 = {
    "/v1/chat/completions": dict(model=NAME, messages=HI, max_tokens=2, temperature=0),
    "/v1/completions": dict(model=NAME, prompt="Hi", max_tokens=2, temperature=0),
}


@pytest.mark.parametrize(("model", "names"), ASKED, ids=[model.__name__ for model, _ in ASKED])
def test_every_known_field_is_read_refused_or_harmless(model, names):
    read = set(model.model_fields)
    assert names <= read | fields.REFUSED.keys() | fields.HARMLESS
    assert not fields.REFUSED.keys() & fields.HARMLESS
    others = {"think", "options", "keep_alive", "num_predict", "format"} if model.__module__ == ollama.__name__ else V1S
    others = others | ({"echo"} if model is openai.Completion else set())
    assert not read & (fields.REFUSED.keys() | fields.HARMLESS) - others  # which are read by one API alone


def ask(client, path, body):
    return asyncio.run(client.send("POST", path, body))


@pytest.mark.parametrize("path", V1)
def test_what_would_change_the_answer_is_refused_by_its_name_or_asks_for_nothing(client, path):
    for name in fields.REFUSED.keys() - V1S - ({"echo"} if path == "/v1/completions" else set()):
        nothing = fields.REFUSED[name]
        refused = ask(client, path, V1[path] | {name: {"asks": "for something"}})
        assert refused.status_code == 400, name
        assert (name in fields.TOOLS) == ("does not support tools" in refused.text)
        assert name in fields.TOOLS or f"{name} is not supported" in refused.text
        if nothing:
            assert ask(client, path, V1[path] | {name: nothing[-1]}).status_code == 200, name


@pytest.mark.parametrize("path", V1)
def test_what_is_passed_over_changes_nothing(client, path):
    plain = ask(client, path, V1[path]).json()["choices"]
    assert ask(client, path, V1[path] | dict.fromkeys(fields.HARMLESS, 3)).json()["choices"] == plain


@pytest.mark.parametrize("within", [(), ("options",)])
def test_ollamas_api_refuses_what_it_knows_and_passes_over_what_nobody_does(client, within):
    for name, value in dict(mirostat=2, logit_bias={"1": 2}, grammar="x").items():
        field = {name: value} if not within else dict(options={name: value})
        refused = ask(client, "/api/generate", dict(model=NAME, prompt="Hi") | field)
        assert f"{'.'.join([*within, name])} is not supported" in refused.json()["error"]
    unheard = dict(unheard=1, num_thread=2)
    body = dict(model=NAME, prompt="Hi", options=dict(num_predict=1) | unheard) | unheard
    assert ask(client, "/api/generate", body).status_code == 200


@pytest.mark.parametrize(("value", "same"), [(1, True), (1.0, True), (True, False), ("1", False), (2, False)])
def test_one_is_no_truth(value, same):
    assert fields.is_among(value, (1,)) == same


def written(value):
    return f"`{json.dumps(value)}`"


def listed(names):
    return ", ".join(f"`{name}`" for name in sorted(names))


def tables():
    """What becomes of each field, for docs/serving-fields.md: of those that an API reads, and of the others."""
    v1, ours = ({name for model in models for name in model.model_fields}
                for models in ((openai.Chat, openai.Completion), (ollama.Chat, ollama.Generate)))  # fmt: skip
    inside = set(ollama.Options.model_fields)
    yield "\n".join([
        "| a field | under `/v1` | under Ollama's API |",
        "|---|---|---|",
        f"| is read | {listed(v1)} | {listed(ours)}; in `options` {listed(inside)} |",
        f"| is refused, though the other reads it | {listed(fields.REFUSED.keys() & (ours | inside) - v1)}"
        f" | {listed(fields.REFUSED.keys() & v1 - ours - inside)} |",
    ])  # fmt: skip
    others = {name: values for name, values in fields.REFUSED.items() if name not in v1 | ours | inside}
    few = {name: values for name, values in others.items() if values is not fields.NOTHING}
    unless = [f"`{name}` ({' or '.join(map(written, values)) or 'always'})" for name, values in sorted(few.items())]
    yield "\n".join([
        "| what becomes of them | fields |",
        "|---|---|",
        f"| refused, unless false, 0 or empty | {listed(others.keys() - few.keys())} |",
        f"| refused, unless they have the value beside them | {', '.join(unless)} |",
        f"| ignored | {listed(fields.HARMLESS - v1 - ours - inside)} |",
    ])  # fmt: skip


def test_the_tables_of_fields_are_the_documents():
    text = (paths.ROOT / "docs" / "serving-fields.md").read_text(encoding="utf-8")
    assert [table for table in tables() if table not in text] == []
