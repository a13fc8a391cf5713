import jax
import jax.numpy as jnp

import llama_jax as ll

loaded = ll.load()  # SmolLM2-135M, a q4_1 file, in float32: config, params (a pytree), tokenizer
config, STOP, SLOTS = loaded.config, loaded.tokenizer.stop[0], 100  # cache SLOTS: the limit on prompt + answer
HEADS, KV_HEADS, DIM = config.num_attention_heads, config.num_key_value_heads, config.head_dim


def norm(x, scale):
    return x * jax.lax.rsqrt(jnp.mean(x * x) + config.norm_eps) * scale.weight


def rotate(heads, position):
    angles = position * config.rope_theta ** (-jnp.arange(0, DIM, 2) / DIM)
    a, b = jnp.split(heads, 2, axis=-1)
    return jnp.concatenate([a * jnp.cos(angles) - b * jnp.sin(angles), b * jnp.cos(angles) + a * jnp.sin(angles)], -1)


def step(model, cache, token, position):  # model: the params; cache: [layers 2 SLOTS KV_HEADS DIM], keys and values
    x = model.embeddings.weight[token]
    for i, layer in enumerate(model.layers):
        heads = (layer.attention.qkv @ norm(x, layer.attention_norm)).reshape(-1, DIM)
        query, key, value = jnp.split(heads, (HEADS, HEADS + KV_HEADS))
        cache = cache.at[i, :, position].set(jnp.stack([rotate(key, position), value]))  # donated: in place
        scores = jnp.einsum("kgd,skd->kgs", rotate(query, position).reshape(KV_HEADS, -1, DIM), cache[i, 0]) / DIM**0.5
        weights = jax.nn.softmax(jnp.where(jnp.arange(SLOTS) <= position, scores, -jnp.inf))
        x += layer.attention.o @ jnp.einsum("kgs,skd->kgd", weights, cache[i, 1]).ravel()
        gate, up = jnp.split(layer.ffn.gate_up @ norm(x, layer.ffn_norm), 2)
        x += layer.ffn.down @ (jax.nn.silu(gate) * up)
    return jnp.argmax(model.vocabulary @ norm(x, model.head.norm)).astype(jnp.int32), cache


def loop(model, cache, token, start):  # the whole answer: no token returns to Python before the last one
    def unfinished(carry):
        tokens, n, _ = carry
        return (start + n < SLOTS) & (tokens[n - 1] != STOP)

    def more(carry):
        tokens, n, cache = carry
        token, cache = step(model, cache, tokens[n - 1], start + n - 1)
        return tokens.at[n].set(token), n + 1, cache

    return jax.lax.while_loop(unfinished, more, (jnp.zeros(SLOTS, jnp.int32).at[0].set(token), 1, cache))


jitted_step, jitted_loop = jax.jit(step, donate_argnums=1), jax.jit(loop, donate_argnums=1)  # caches are not copied
ids = ll.chat.encode(loaded.tokenizer, ll.chat.ask("Why is the sky blue?"))
cache = jnp.zeros((config.num_hidden_layers, 2, SLOTS, KV_HEADS, DIM))
for position, prompt_token in enumerate(jnp.array(ids)):  # prefill; to stream, feed token back the same way
    token, cache = jitted_step(loaded.params, cache, prompt_token, position)  # the last begins the answer
answer, n, _ = jitted_loop(loaded.params, cache, token, len(ids))  # one call per answer
print(loaded.tokenizer.decode(answer[:n]))
