"""Fixed shapes in PyTorch: a KV cache of S slots written in place, and the calls on it.

The cache fills transformers' `Cache` interface. Unlike its `StaticCache`, all layers share one slot counter, and a
prompt attends among its own keys instead of over S slots. Attention is `scaled_dot_product_attention` through
transformers' attention interface: for one token, query heads of a group are rows of one product, so that keys need not
be repeated.
"""

from __future__ import annotations

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface
from transformers.cache_utils import Cache, StaticLayer

from llama_lab.peers import torch_model

ATTENTION = "llama_jax"


def attend(module, query, key, value, attention_mask, scaling=None, **_):
    """Attention of T tokens [B H T h] over keys [B K S h]: (mixed [B T H h], None). No mask means causal, as for a
    whole prompt."""
    b, heads, t, size = query.shape
    groups = heads // key.shape[1]
    if t == 1:
        packed = query.reshape(b, key.shape[1], groups, size)
        mixed = scaled_dot_product_attention(packed, key, value, attn_mask=attention_mask, scale=scaling).reshape(
            b, heads, 1, size
        )
    else:
        key, value = (x.repeat_interleave(groups, dim=1) if groups > 1 else x for x in (key, value))
        mixed = scaled_dot_product_attention(
            query, key, value, attn_mask=attention_mask, is_causal=attention_mask is None, scale=scaling
        )
    return mixed.transpose(1, 2).contiguous(), None


AttentionInterface.register(ATTENTION, attend)


def fixed(module: torch.nn.Module) -> torch.nn.Module:
    """The module on the same weights with the attention above: a mask is used as it is given, none means causal."""
    return torch_model.twin(module, ATTENTION)


class Layer(StaticLayer):
    """A layer's keys and values [B K S h]. A prompt is written from slot 0, a token where `slot` says."""

    def __init__(self, keys, values, slot):
        super().__init__(max_cache_len=keys.shape[2])
        self.keys, self.values, self.slot, self.is_initialized = keys, values, slot, True

    def update(self, key_states, value_states, *args, **kwargs):
        if (t := key_states.shape[2]) > 1:
            self.keys[:, :, :t] = key_states
            self.values[:, :, :t] = value_states
            return key_states, value_states
        self.keys.index_copy_(2, self.slot, key_states)
        self.values.index_copy_(2, self.slot, value_states)
        return self.keys, self.values


class Slots(Cache):
    """The cache of a request: layers, and the slot of the next token, int64 [1]."""

    def __init__(self, module: torch.nn.Module, batch: int, slots: int):
        config, weight = module.config, module.get_input_embeddings().weight
        heads = getattr(config, "num_key_value_heads", config.num_attention_heads)
        size = getattr(config, "head_dim", config.hidden_size // config.num_attention_heads)
        shape, options = (batch, heads, slots, size), dict(dtype=weight.dtype, device=weight.device)
        self.slot = torch.zeros(1, dtype=torch.int64, device=weight.device)
        self.columns = torch.arange(slots, device=weight.device)
        layers = [
            Layer(torch.zeros(shape, **options), torch.zeros(shape, **options), self.slot)
            for _ in range(config.num_hidden_layers)
        ]
        super().__init__(layers=layers)

    def restart(self) -> None:
        """For a new request. What stands in the slots stays: a mask hides it until it is overwritten."""
        self.slot.zero_()


def greedy(logits: torch.Tensor) -> torch.Tensor:
    """[B 1 V] → the best token, [B 1]."""
    return logits[:, -1].float().argmax(-1, keepdim=True)


def prompt_logits(module, ids: torch.Tensor, cache: Cache | None, last: torch.Tensor | None = None) -> torch.Tensor:
    """Logits [B 1 V] after a prompt [B T]; the cache, if any, holds it then.

    last: index [1] of the prompt's last token where padding follows it. No token sees a later one, so padding changes
    nothing; its keys stand in slots that a mask hides until they are overwritten.
    """
    end = module.config.max_position_embeddings - 1  # padding may reach beyond a table of positions
    positions = torch.arange(ids.shape[1], device=ids.device).clamp(max=end)[None]
    return module(
        ids,
        position_ids=positions,
        past_key_values=cache,
        use_cache=cache is not None,
        logits_to_keep=1 if last is None else last,
    ).logits


def prefill_logits(module, cache: Slots, ids: torch.Tensor, last: torch.Tensor | None = None) -> torch.Tensor:
    """As `prompt_logits` into the slots of a cache that was restarted."""
    if ids.shape[1] == 1:
        return step_logits(module, cache, ids)
    logits = prompt_logits(module, ids, cache, last)
    cache.slot.copy_(torch.full_like(cache.slot, ids.shape[1]) if last is None else last + 1)
    return logits


def step_logits(module, cache: Slots, token: torch.Tensor) -> torch.Tensor:
    """Logits [B 1 V] after one more token [B 1]."""
    mask = (cache.columns <= cache.slot)[None, None, None]
    logits = module(
        token, position_ids=cache.slot[None], attention_mask=mask, past_key_values=cache, use_cache=True
    ).logits
    cache.slot.add_(1)
    return logits


def step(module, cache: Slots, token: torch.Tensor) -> torch.Tensor:
    """The greedy token [B 1] after one more token [B 1]."""
    return greedy(step_logits(module, cache, token))


def whole_logits(module, text: torch.Tensor, length: torch.Tensor) -> torch.Tensor:
    """Logits [B 1 V] after the first `length` [1] tokens of a text [B S], without a cache."""
    return prompt_logits(module, text, None, length - 1)


def append(text: torch.Tensor, length: torch.Tensor, token: torch.Tensor) -> None:
    """One more token [B 1] at the end of a text [B S] of `length` [1] tokens, in place."""
    text.index_copy_(1, length, token)
    length.add_(1)


def whole_step(module, text: torch.Tensor, length: torch.Tensor) -> torch.Tensor:
    """The greedy token [B 1] after a text, which then ends with it."""
    token = greedy(whole_logits(module, text, length))
    append(text, length, token)
    return token
