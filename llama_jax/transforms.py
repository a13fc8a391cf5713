"""Where `jax.jit` goes: the call tree assembled from the leaves up, wrapped exactly where a placement says.

This is the only module of the model that knows jit exists. See `placement.py` for the names.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import jax
import jax.numpy as jnp
from jax.experimental import io_callback
from jax.experimental.compilation_cache import compilation_cache

from llama_jax import model, paths
from llama_jax.config import ModelConfig
from llama_jax.model import attention, embeddings, ffn, head, kvc, layer, norm, rope, sampling
from llama_jax.model.kvc import Cache
from llama_jax.model.quantize import is_quantised
from llama_jax.model.sampling import Draw, Sampler, TracedSampler
from llama_jax.placement import Placement
from llama_jax.threads import Receiver

CACHE_ARGUMENT = {
    "decode": 2,
    "extend": 2,
    "step": 2,
    "transform": 2,
    "layer": 3,
    "attend": 3,
}  # what `donate` gives away


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Carry:
    """What one token hands to the next, besides itself."""

    cache: Cache
    draw: Draw


@dataclass(frozen=True)
class Programs:
    """The functions a host loop calls; the same five under every placement. `token` is int32 [B], the newest of each
    row.

    prefill(model, ids [B T], pad [B], seeds [B], sampler, slots) → (token, carry): a new cache with the prompt in it.
    extend(model, ids [B T], carry, sampler) → (token, carry): T more tokens of prompt into a cache.
    step(model, token, carry, sampler) → (token, carry)
    decode(model, token, carry, sampler, stop [N], limit, out [n B], request) → (tokens [n B], made, token, carry):
    several
        steps a call; None unless the placement jits `decode`. `limit` and `out` serve until="stop" only, `request`
        (int32, a number that `receiver` gave) host="callback" only.
    logits(model, ids [B T], cache) → (float32 [B T V], cache): every position, for evaluation; never jitted here.
    """

    prefill: Callable
    extend: Callable
    step: Callable
    decode: Callable | None
    logits: Callable
    receiver: Receiver | None = None  # host="callback": where decode sends each token while it runs


def assemble(config: ModelConfig, placement: Placement) -> Programs:
    """Build the tree bottom-up, wrapping exactly the names in `placement.jit`.

    Prefill and extend are steps over T tokens: they are jitted where `step`, or the `decode` around it, is.
    """
    if placement.compile == "persistent":
        use_persistent_cache()

    def place(name: str, function: Callable, of: tuple[str, ...] = (), **options) -> Callable:
        wanted = set(of or (name,)) & set(placement.jit)
        return compiled(name, function, placement, **options) if wanted else function

    whole = ("step", "decode")
    rotary = config.positions == "rope"
    rotate = place("rope", rope.rotate) if rotary else rope.leave
    normalise = place("norm", partial(norm.NORMS[config.norm], eps=config.norm_eps))
    attend = partial(attention.attend, head_dim=config.head_dim, rope=rotate, append=kvc.APPEND[placement.cache])
    block = partial(
        layer.layer, norm=normalise, attend=place("attend", attend), ffn=place("ffn", ffn.FFNS[config.hidden_act])
    )
    parts = dict(
        inverse=rope.frequencies(config) if rotary else None,
        policy=placement.cache,
        embed=place("embed", embeddings.embed),
        layers=partial(model.LAYERS[placement.layers], layer=place("layer", block)),
        head=place("head", partial(head.head, norm=normalise)),
    )
    transform = place("transform", partial(model.transform, **parts))
    sample = place("sample", sampling.next_token)
    onward = partial(advance, transform=transform, sample=sample)
    prefill = partial(first, onward=onward, config=config, placement=placement)
    extend, step = partial(more, onward=onward), partial(one_step, onward=onward)
    logits = partial(model.transform, **parts, every=True)
    if placement.kernels == "fused":
        prefill, extend, step, logits = fused_steps(config, placement, onward, sample)
    receiver = Receiver() if placement.host == "callback" else None
    send = partial(io_callback, receiver, jax.ShapeDtypeStruct((), bool), ordered=True) if receiver else silent
    decode = partial(DECODERS[placement.until], step=step, tokens_per_call=placement.tokens_per_call, send=send)
    return Programs(
        prefill=place("prefill", prefill, whole, static_argnums=5),
        extend=place("extend", extend, whole),
        step=place("step", step, whole),
        decode=place("decode", decode) if placement.jits_decode else None,
        logits=logits,
        receiver=receiver,
    )


def fused_steps(config: ModelConfig, placement: Placement, onward: Callable, sample: Callable) -> tuple[Callable, ...]:
    """(prefill, extend, step, logits) with every single token made by the fused kernel.

    Prompts run as elsewhere, on a cache of their own length; what they leave is then kept as the kernel wants it.
    Raises UserError for a model that it does not compute.
    """
    from llama_jax.kernels import fused  # here: only who asks for kernels needs what compiles them

    fused.check(config)
    transform = partial(fused.transform, config=config, inverse=rope.frequencies(config))
    start = partial(first, onward=onward, config=config, placement=replace(placement, kernels="gemv"))

    def prefill(params, ids, pad, seeds, sampler, slots: int):
        token, carry = start(params, ids, pad, seeds, sampler, ids.shape[1])
        return token, replace(carry, cache=fused.pack(carry.cache, slots))

    def extend(params, ids, carry: Carry, sampler):
        slots = fused.slots(carry.cache)
        token, carry = more(params, ids, replace(carry, cache=fused.unpack(carry.cache)), sampler, onward=onward)
        return token, replace(carry, cache=fused.pack(carry.cache, slots))

    def step(params, token, carry: Carry, sampler):
        draw = replace(
            carry.draw, seen=sampling.mark(carry.draw.seen, token[:, None], carry.cache.length, carry.cache.pad)
        )
        logits, best, cache = transform(params, token, carry.cache)
        chosen, draw = sample(logits, draw, sampler)
        return best if sampling.is_greedy(sampler) else chosen, Carry(cache, draw)

    def logits(params, ids, cache: Cache):
        def body(cache, token):
            found, _, cache = transform(params, token, cache)
            return cache, found

        cache, found = jax.lax.scan(body, cache, ids.T)
        return found.swapaxes(0, 1), cache

    return prefill, extend, step, logits


def advance(params, ids, carry: Carry, sampler, *, transform: Callable, sample: Callable):
    """T tokens in, the next one out."""
    draw = replace(carry.draw, seen=sampling.mark(carry.draw.seen, ids, carry.cache.length, carry.cache.pad))
    logits, cache = transform(params, ids, carry.cache)
    token, draw = sample(logits, draw, sampler)
    return token, Carry(cache, draw)


def first(params, ids, pad, seeds, sampler, slots: int, *, onward: Callable, config: ModelConfig, placement: Placement):
    """An empty cache of `slots` positions, then the prompt."""
    cache = new_cache(params, pad, slots, config, placement)
    remembers = isinstance(sampler, TracedSampler) or sampler.repetition_penalty != 1.0
    seen = jnp.zeros((ids.shape[0], config.vocab_size), bool) if remembers else None
    draw = Draw(jax.vmap(jax.random.key)(seeds), jnp.zeros((), jnp.int32), seen)
    return onward(params, ids, Carry(cache, draw), sampler)


def new_cache(params: model.Model, pad, slots: int, config: ModelConfig, placement: Placement) -> Cache:
    """An empty cache as the placement wants it; in the dtype of the weights where it does not say."""
    dtype = kvc.DTYPES.get(placement.kv, params.embedding.weight.dtype)
    if placement.kernels == "fused":
        from llama_jax.kernels import fused

        return fused.pack(kvc.create(config, placement.cache, pad, 0, dtype), slots)
    return kvc.create(config, placement.cache, pad, slots, dtype, placement.layers == "scan")


def more(params, ids, carry: Carry, sampler, *, onward: Callable):
    """T more tokens of prompt. What is drawn after them is again the answer's first token, whatever was drawn
    before."""
    return onward(params, ids, replace(carry, draw=replace(carry.draw, index=jnp.zeros((), jnp.int32))), sampler)


def one_step(params, token, carry: Carry, sampler, *, onward: Callable):
    """One token in, the next one out."""
    return onward(params, token[:, None], carry, sampler)


def silent(request, token) -> bool:
    """Send no token to the host; a compiled program is the same as if this were not called."""
    return False


def chunk(
    params,
    token,
    carry: Carry,
    sampler,
    stop,
    limit,
    out,
    request=None,
    *,
    step: Callable,
    tokens_per_call: int,
    send: Callable,
):
    """`tokens_per_call` steps as one `lax.scan`: tokens still stream, dispatch is paid once a chunk."""

    def body(state, _):
        token, carry = step(params, *state, sampler)
        send(request, token)
        return (token, carry), token

    (token, carry), tokens = jax.lax.scan(body, (token, carry), None, length=tokens_per_call)
    return tokens, jnp.int32(tokens_per_call), token, carry


def until_stop(
    params,
    token,
    carry: Carry,
    sampler,
    stop,
    limit,
    out,
    request=None,
    *,
    step: Callable,
    tokens_per_call: int,
    send: Callable,
):
    """Steps as one `lax.while_loop` until every row has met a stop token, `limit` tokens are made, or nobody waits for
    more."""

    def unfinished(state):
        made, done, *_ = state
        return (made < limit) & ~jnp.all(done)

    def body(state):
        made, done, tokens, token, carry = state
        token, carry = step(params, token, carry, sampler)
        tokens = jax.lax.dynamic_update_slice(tokens, token[None], (made, 0))
        gone = send(request, token)
        done = done | is_stop(token, stop)
        return made + 1, done if gone is False else done | gone, tokens, token, carry

    start = (jnp.int32(0), is_stop(token, stop), out, token, carry)
    made, _, tokens, token, carry = jax.lax.while_loop(unfinished, body, start)
    return tokens, made, token, carry


DECODERS = {None: chunk, "stop": until_stop}


def is_stop(token, stop):
    """True for the rows [B] whose token is among the stop tokens [N]; -1 never matches."""
    return jnp.any(token[:, None] == stop[None, :], axis=1)


def compiled(name: str, function: Callable, placement: Placement, **options) -> Callable:
    """`jax.jit(function)` under a readable name, its cache donated and itself compiled ahead of time where asked."""
    function = partial(function)  # an object of our own, so that naming it renames nobody else's
    function.__name__ = function.__qualname__ = name
    inner = {"extend": "step", "prefill": "step"}.get(name, name)
    called_by_host = inner in placement.outermost or (inner == "step" and placement.jits_decode)
    if placement.donate and called_by_host and name in CACHE_ARGUMENT:
        options["donate_argnums"] = CACHE_ARGUMENT[name]
    program = jax.jit(function, **options)
    return AheadOfTime(program, options.get("static_argnums")) if placement.compile == "aot" else program


class AheadOfTime:
    """A jitted function called only through `lower().compile()` executables, one a shape.

    A new shape is an explicit compilation here, never a silent retrace inside jit. Within another program's trace it
    is the plain jitted function, since an executable cannot be inlined.
    """

    def __init__(self, program: Callable, static: int | None = None):
        self.program, self.static = program, static
        self.executables: dict = {}

    def lower(self, *args):
        return self.program.lower(*args)

    def __call__(self, *args):
        leaves, tree = jax.tree.flatten(args[1:])  # the first argument is mostly weights, the same all along
        leaves += [args[0]] if hasattr(args[0], "shape") else []
        if any(isinstance(leaf, jax.core.Tracer) for leaf in leaves):
            return self.program(*args)
        key = (tree, *((x.shape, x.dtype) if hasattr(x, "shape") else x for x in leaves))
        if key not in self.executables:
            self.executables[key] = self.program.lower(*args).compile()
        return self.executables[key](*(a for i, a in enumerate(args) if i != self.static))


def use_persistent_cache() -> None:
    """Let XLA keep compiled programs on disk between processes. Process-wide: it then serves every placement.

    In `JAX_COMPILATION_CACHE_DIR` where that is set, else in the user's cache folder.
    """
    if not jax.config.jax_compilation_cache_dir:
        jax.config.update("jax_compilation_cache_dir", str(paths.cache("xla")))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    compilation_cache.reset_cache()


def prepare(params: model.Model, placement: Placement) -> model.Model:
    """The weights as this placement wants them: its dtype or quantised form, who multiplies by them, its layer layout.

    Raises UserError where they cannot be had from these (`model.quantised`).
    """
    if placement.weights in ("f32", "bf16"):
        params = model.cast(params, {"f32": jnp.float32, "bf16": jnp.bfloat16}[placement.weights])
    elif placement.weights != "loaded":
        params = model.quantised(params, placement.weights)
    elif placement.kernels != "none" and not is_quantised(params.embedding.weight):
        params = model.quantised(params, "q8_0")
    if placement.kernels != "none":
        params = model.multiplied_by(params, "gemv")
    if placement.kernels == "fused":
        from llama_jax.kernels import packed

        return replace(params, layers=packed.pack(params.layers))
    return model.stack(params) if placement.layers == "scan" else params


def settings(sampler: Sampler, placement: Placement) -> Sampler | TracedSampler:
    """Sampling settings as this placement wants them: part of the program, or arguments to it."""
    return sampler.traced() if placement.sampling == "traced" else sampler
