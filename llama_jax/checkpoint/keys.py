"""The effect of each key of a GGUF header and of a config.json on a model's numbers: it is read, or it changes nothing,
or it is refused unless its value changes nothing.

Keys that the readers declare as fields are read; the tables here hold the others. `docs/files.md` shows all of them,
and a test walks every key that the `gguf` library, llama.cpp and transformers know.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

READ, HARMLESS, REFUSED = "read", "harmless", "refused"


class Verdict(NamedTuple):
    """what: one of the three words. why: why it changes nothing. only: of a refused key, the values that change
    nothing; a text that begins with "=" names the field of ModelConfig that it must equal. each: a list changes nothing
    where none of its items does."""

    what: str
    why: str = ""
    only: Collection[Any] = ()
    each: bool = False


OFF = (False, None)
NOTHING = (0, 0.0, False, "", "none", [])  # with this a key of a GGUF header says that the model has no such thing
ONE = (1, 1.0)

# GGUF. Keys of the architecture stand without it. ------------------------------------------------------------------

GGUF_HARMLESS = {
    "vocab_size": "the rows of the embedding table are counted",
    "tensor_data_layout": "says where the weights came from; their order is the same in every GGUF file",
    "attention.layer_norm_epsilon": "is another kind of norm's",
    "attention.layer_norm_rms_epsilon": "is another kind of norm's",
    "rope.scaling.original_context_length": "is used by YaRN and LongRoPE, which are refused",
    "rope.scaling.finetuned": "says how the model was trained",
    "general.file_type": "each tensor says its own type",
    "general.sampling.": "how tokens are chosen is said by whoever asks",
    "general.": "describes the file",
    "quantize.": "says how the file was quantised",
    "imatrix.": "says how the file was quantised",
    "tokenizer.rwkv.": "is RWKV's",
    "tokenizer.huggingface.json": "repeats the vocabulary",
    "tokenizer.chat_template": "another template than the default one",
}  # a key that ends with a dot, and tokenizer.chat_template: all keys that begin so
GGUF_ONLY = {
    "general.type": ("model",),
    "general.quantization_version": (2,),  # blocks of version 1 were laid out otherwise
    "attention.causal": (True,),
    "attention.value_length": ("=head_dim",),
    "attention.head_dim": ("=head_dim",),  # which Ollama writes beside key_length
    "rope.dimension_count": ("=head_dim",),
    "embedding_length_out": ("=hidden_size",),
    "rope.scaling.attn_factor": ONE,
    "logit_scale": ONE,
    "residual_scale": ONE,
    "embedding_scale": ONE,
    "attention.output_scale": ONE,
    "attention.temperature_scale": ONE,
}
OTHERS = (
    "adapter.",
    "clip.",
    "diffusion.",
    "xielu.",
)  # keys of files that are no such model, refused like unknown ones

# config.json --------------------------------------------------------------------------------------------------------

TRAINING = "matters in training alone"
OUTPUTS = "says what transformers returns"
CLASSES = "is of a classifier's head"
CHOICE = "how tokens are chosen is said by whoever asks"
HF_HARMLESS = {
    "architectures": "model_type chooses the family",
    "dtype": "whoever loads chooses the type", "torch_dtype": "whoever loads chooses the type",
    "transformers_version": "describes the file", "_name_or_path": "describes the file",
    "name_or_path": "describes the file", "_commit_hash": "describes the file",
    "attention_dropout": TRAINING, "attn_pdrop": TRAINING, "embd_pdrop": TRAINING, "resid_pdrop": TRAINING,
    "initializer_range": TRAINING, "gradient_checkpointing": TRAINING,
    "pretraining_tp": "splits products, whose sums are the same",
    "reorder_and_upcast_attn": "changes rounding alone", "chunk_size_feed_forward": "splits a product by rows",
    "attn_implementation": "changes rounding alone", "experts_implementation": "there are no experts",
    "output_attentions": OUTPUTS, "output_hidden_states": OUTPUTS, "return_dict": OUTPUTS, "output_scores": OUTPUTS,
    "return_dict_in_generate": OUTPUTS, "tie_last_hidden_states": OUTPUTS, "use_cache": "changes speed alone",
    "bos_token_id": "the tokenizer's own is taken", "pad_token_id": "no prompt is padded by this token",
    "id2label": CLASSES, "label2id": CLASSES, "num_labels": CLASSES, "problem_type": CLASSES,
    "summary_activation": CLASSES, "summary_first_dropout": CLASSES, "summary_proj_to_labels": CLASSES,
    "summary_type": CLASSES, "summary_use_proj": CLASSES, "n_ctx": "n_positions says it",
    "sliding_window": "only with use_sliding_window", "max_window_layers": "only with use_sliding_window",
    **dict.fromkeys((
        "assistant_confidence_threshold", "assistant_lookbehind", "bad_words_ids", "begin_suppress_tokens",
        "diversity_penalty", "do_sample", "early_stopping", "encoder_no_repeat_ngram_size",
        "encoder_repetition_penalty", "epsilon_cutoff", "eta_cutoff", "exponential_decay_length_penalty",
        "forced_bos_token_id", "forced_eos_token_id", "length_penalty", "max_length", "min_length",
        "no_repeat_ngram_size", "num_assistant_tokens", "num_assistant_tokens_schedule", "num_beam_groups", "num_beams",
        "num_return_sequences", "remove_invalid_values", "repetition_penalty", "suppress_tokens", "target_lookbehind",
        "temperature", "top_k", "top_p", "typical_p"), CHOICE),
}  # fmt: skip
HF_ONLY = {
    "quantization_config": (None,), "text_config": (None,), "per_layer_config": (None, {}), "pruned_heads": (None, {}),
    "is_encoder_decoder": OFF, "add_cross_attention": OFF, "tie_encoder_decoder": OFF,
    "layer_types": ("full_attention", "attention", None), "partial_rotary_factor": (*ONE, None),
    "use_mrope": OFF, "rope_interleave": OFF, "rope_interleaved": OFF, "rope_local_base_freq": (None,),
    "use_qk_norm": OFF, "qk_layernorm": OFF, "clip_qkv": (None,), "alibi": OFF, "no_rope_layers": (None, []),
    "logit_scale": (*ONE, None), "logits_scaling": (*ONE, None), "embedding_multiplier": (*ONE, None),
    "residual_multiplier": (*ONE, None), "attention_multiplier": (None,), "query_pre_attn_scalar": (None,),
    "attn_logit_softcapping": (None,), "final_logit_softcapping": (None,), "num_experts": (0, None),
    "num_local_experts": (0, None), "attention_chunk_size": (None,), "sliding_window_pattern": (None,),
}  # fmt: skip
LLAMA_ONLY = dict(attention_bias=OFF, mlp_bias=OFF, hidden_act=("silu", "swish"))
HF_ONLY_OF = {
    "llama": LLAMA_ONLY | dict(sliding_window=(None, "=max_position_embeddings")),
    "qwen2": LLAMA_ONLY | dict(use_sliding_window=OFF),
    "qwen3": LLAMA_ONLY | dict(use_sliding_window=OFF),
    "mistral": LLAMA_ONLY,
    "smollm3": LLAMA_ONLY | dict(use_sliding_window=OFF),
    "phi3": LLAMA_ONLY,
    "gemma3": dict(hidden_activation=("gelu_pytorch_tanh",), use_bidirectional_attention=OFF),
    "gpt2": dict(
        activation_function=("gelu_new", "gelu_pytorch_tanh"), scale_attn_weights=(True,),
        scale_attn_by_inverse_layer_idx=OFF, sliding_window=(None,),
        rope_parameters=(None, {}), rope_scaling=(None, {}), rope_theta=(None,),
    ),
}  # fmt: skip


def gguf_verdict(key: str, family: str, read: Collection[str]) -> Verdict:
    """Of a key of a GGUF header of this family. read: the keys that the readers declare, those of the architecture
    without it."""
    name = key.removeprefix(f"{family}.")
    if name in read:
        return Verdict(READ)
    if name in GGUF_ONLY:
        return Verdict(REFUSED, only=GGUF_ONLY[name], each=True)
    if name in GGUF_HARMLESS:
        return Verdict(HARMLESS, GGUF_HARMLESS[name])
    if name == key and not key.startswith(OTHERS):
        begins = (begin for begin in GGUF_HARMLESS if begin.endswith((".", "_template")) and key.startswith(begin))
        return Verdict(HARMLESS, GGUF_HARMLESS.get(max(begins, key=len, default=""), "belongs to no architecture"))
    return Verdict(REFUSED, only=NOTHING, each=True)


def hf_verdict(key: str, family: str, read: Collection[str]) -> Verdict | None:
    """Verdict on a key of a config.json of this family; None for an unknown key, which transformers ignores too."""
    if key in read:
        return Verdict(READ)
    if (only := HF_ONLY_OF[family].get(key, HF_ONLY.get(key))) is not None:
        return Verdict(REFUSED, only=only, each=key == "layer_types")
    return Verdict(HARMLESS, HF_HARMLESS[key]) if key in HF_HARMLESS else None


def changes(value: Any, verdict: Verdict | None, fields: Mapping[str, Any]) -> bool:
    """Whether a key's value would change the numbers but is not read. fields: of the ModelConfig."""
    if verdict is None or verdict.what != REFUSED:
        return False
    if verdict.each and isinstance(value, list):
        return any(changes(item, verdict, fields) for item in value)
    only = [fields.get(each[1:]) if str(each).startswith("=") else each for each in verdict.only]
    return not any(value == each and type(value) is type(each) for each in only)


def allowed(verdict: Verdict) -> str:
    """The values that change nothing, as a line says them; a key may also be left out."""
    if verdict.only is NOTHING:
        return "0, false or nothing"
    values = dict.fromkeys(each for each in verdict.only if each not in (None, [], {}))  # 1 and 1.0 are one
    words = [str(each)[1:] if str(each).startswith("=") else json.dumps(each) for each in values]
    return " or ".join(words) or "nothing"
