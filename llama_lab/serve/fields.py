"""Fields of requests: what both APIs read alike, and what clients send that is not read, be it that it would change the
answer or that it does not.

What one API reads is declared there, in `openai` and `ollama`. A name means the same in every server that has it:
OpenAI's (https://platform.openai.com/docs/api-reference), vLLM's, SGLang's, llama.cpp's and Ollama's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, ValidationError, WrapValidator

from llama_jax.plumbing import boundary
from llama_jax.plumbing.errors import UserError
from llama_jax.sampling import LARGE, Sampler


def said(line: str) -> WrapValidator:
    """Beside a type: what is said of a value that does not fit."""

    def validated(value: Any, read: Callable) -> Any:
        try:
            return read(value)
        except ValidationError:
            raise ValueError(line) from None

    return WrapValidator(validated)


def whole(value: Any) -> Any:
    """A number such as 4.0 is whole too, as clients write it whose language has but one kind of number."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


Whole = Annotated[int, BeforeValidator(whole)]
Role = Annotated[str, AfterValidator(str.lower)]
Ids = Annotated[list[int], Field(max_length=1 << 20, fail_fast=True)]
Texts = Annotated[list[str], Field(max_length=16)]
Stops = Annotated[str | Texts, said("it must be a text, or a list of 16 texts at most")]


class Settings(boundary.Declared):
    """How both APIs are told to sample. A seed of -1 is none, and any other whole number is one, modulo 2**32. stop:
    texts that end an answer. repeat_last_n: how many tokens the penalty counts; 0 for none, -1 for all."""

    temperature: float = 1.0
    top_k: Whole = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repeat_penalty: float = 1.0
    repeat_last_n: Whole = -1
    seed: Whole = -1
    stop: Stops = Field([])

    def sampler(self, context: int) -> Sampler:
        """context: tokens at most. Raises UserError for settings that none has."""
        penalty = self.repeat_penalty if self.repeat_last_n else 1.0
        if penalty != 1 and 0 < self.repeat_last_n < context:
            raise UserError(
                f"repeat_last_n is {self.repeat_last_n}; the penalty of this server counts all tokens: write -1, or 0"
                " for no penalty."
            )
        top_p = self.top_p or 1 / LARGE  # one token is left
        return Sampler(self.temperature, max(self.top_k, 0), top_p, self.min_p, penalty)

    @property
    def stops(self) -> list[str]:
        return [self.stop] if isinstance(self.stop, str) else self.stop


NOTHING = (False, 0, "", [], {})  # values that ask for nothing
TOOLS = ("tools", "tool_choice", "functions", "function_call", "tool_calls", "tool_call_id")
OF_MESSAGES = (*TOOLS, "images", "audio")  # what a message may have beside its text


def named(names: str) -> dict[str, tuple]:
    return dict.fromkeys(names.split(), NOTHING)


REFUSED: dict[str, tuple] = {  # would change the answer where it is not read: name → values that ask for nothing
    **dict.fromkeys(TOOLS, NOTHING),
    **named("echo suffix presence_penalty frequency_penalty logit_bias bad_words allowed_token_ids logits_processors"),
    **named("custom_logit_processor use_beam_search min_tokens min_new_tokens include_stop_str_in_output stop_regex"),
    **named("truncate_prompt_tokens return_tokens_as_token_ids return_hidden_states logprob_token_ids prompt_embeds"),
    **named("format guided_json guided_regex guided_choice guided_grammar structured_outputs structural_tag grammar"),
    **named("regex ebnf chat_template chat_template_kwargs template documents web_search_options options think"),
    **named("reasoning images audio image_data multimodal_data input_prefix input_suffix input_extra n_indent"),
    **named("lora lora_path control_vectors kv_transfer_params vllm_xargs repetition_detection"),
    **named("dynatemp_range xtc_probability dry_multiplier mirostat min_keep n_probs post_sampling_probs"),
    **named("t_max_predict_ms thinking_forced_open enable_thinking _debug_render_only"),
    **dict.fromkeys(("prompt_logprobs", "json_schema", "samplers", "max_new_tokens"), ()),
    **dict.fromkeys(("n", "n_cmpl", "best_of", "typical_p", "tfs_z"), (1,)),
    **dict.fromkeys(("n_predict", "num_predict"), (-1,)),
    "tool_choice": ("none", "auto"),
    "function_call": ("none", "auto", {}),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "reasoning_effort": ("none",),
    "thinking": ({"type": "disabled"},),
    "verbosity": ("medium",),
    "skip_special_tokens": (True,),
}
HARMLESS = frozenset(
    {
        # whose request it is, where it is kept, what it costs
        **named("user metadata store service_tier safety_identifier moderation prompt_cache_key request_id rid"),
        **named("prompt_cache_retention prompt_cache_options priority cache_salt keep_alive session_id chat_id trace"),
        # which model answers, and where, of which there is one
        **named("provider models route transforms"),
        # how the same tokens are computed
        **named("prediction cache_prompt id_slot n_cache_reuse n_keep n_discard num_keep num_ctx num_batch num_gpu"),
        **named("main_gpu numa num_thread low_vram f16_kv use_mmap use_mlock vocab_only logits_all embedding_only"),
        **named("truncate shift"),
        # says nothing but with another field, which is refused or has no effect here
        **named("parallel_tool_calls parse_tool_calls include_reasoning separate_reasoning stream_reasoning"),
        **named("reasoning_format thinking_budget_tokens thinking_token_budget length_penalty no_stop_trim"),
        **named("spaces_between_special_tokens guided_decoding_backend guided_whitespace_pattern grammar_lazy"),
        **named("grammar_triggers mm_processor_kwargs media_io_kwargs width height steps dynatemp_exponent"),
        **named("xtc_threshold dry_base dry_allowed_length dry_penalty_last_n dry_sequence_breakers mirostat_tau"),
        **named("mirostat_eta penalize_newline"),
        # asks for more beside the answer, which is not sent
        **named("return_token_ids return_tokens return_progress timings_per_token response_fields verbose"),
        **named("sse_ping_interval usage"),
    }
)


ANYTHING, NEVER = {}, {"not": {}}  # schemas


def described(known: bool, misplaced: Iterable[str] = ()) -> ConfigDict:
    """The configuration of a model whose other fields `check` looks at, and which says so in its schema. misplaced:
    names that stand elsewhere."""

    def extend(schema: dict) -> None:
        others: dict[str, dict] = {
            name: {"enum": list(values)} if values else NEVER for name, values in REFUSED.items()
        }
        others |= dict.fromkeys(("tools", *HARMLESS), ANYTHING) | dict.fromkeys(misplaced, NEVER)
        schema.update(properties=others | schema["properties"], additionalProperties=known)

    return ConfigDict(extra="allow", json_schema_extra=extend)


def is_among(value: Any, values: tuple) -> bool:
    """Whether a value is one of these; 1 and 1.0 are the same, 1 and true are not."""
    return any(value == each and isinstance(value, bool) == isinstance(each, bool) for each in values)


def check(given: Mapping[str, Any], model: str, within: str = "", known: bool = False) -> None:
    """Raises UserError for a field that is not read and would change the answer, be it that nobody knows it. model:
    who is asked. within: where the fields stand. known: pass over names that are on no list, as Ollama does."""
    for name, value in given.items():
        if name in HARMLESS or (known and name not in REFUSED):
            continue
        if name not in REFUSED:
            raise UserError(f"{within}{name} is no field that this server knows; leave it out.")
        if not is_among(value, REFUSED[name]):
            raise UserError(
                f"{model} does not support tools"
                if name in TOOLS
                else f"{within}{name} is not supported by this server; leave it out."
            )
