"""Where `jax.jit` goes: the call tree, assembled from the leaves up and wrapped exactly where a placement says.

This is the only module of the model that knows jit exists. `placement.py` lists the names.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from types import ModuleType

import jax
import jax.numpy as jnp
from jax.experimental import io_callback
from jax.experimental.compilation_cache import compilation_cache

from llama_jax import embeddings, head, kvc, layer, model, norm, rope, sampling
from llama_jax.config import ModelConfig
from llama_jax.decoding import drafts, lookup, smaller, steps
from llama_jax.decoding.steps import Bounds, Carry, Steps, is_stop
from llama_jax.kvc import KVCache
from llama_jax.placement import Placement
from llama_jax.plumbing import paths
from llama_jax.plumbing.errors import UserError
from llama_jax.plumbing.threads import Receiver
from llama_jax.plumbing.values import shown
from llama_jax.quantise import is_quantised
from llama_jax.sampling import Sampler, TracedSampler
from llama_jax.taps import untapped

CACHE_ARGUMENT = {  # function: the argument that `donate` gives away
    "decode": "carry",
    "extend": "carry",
    "step": "carry",
    "transform": "cache",
    "layer": "entry",
    "attend": "entry",
}


@dataclass(frozen=True)
class Programs:
    """The functions a host loop calls; the same five under every placement.

    token: int32 [B], the newest of each row. ids: int32 [B T]. carry: `decoding.steps.Carry`.

    prefill(model, ids, pad [B], seeds [B], sampler, slots=S) → (token, carry): a new cache with the prompt in it.
    extend(model, ids, carry, sampler) → (token, carry): T more tokens of prompt into a cache.
    step(model, token, carry, sampler) → (token, carry): one token.
    decode(model, token, carry, sampler, bounds, request=number) → (tokens [n B], made, token, carry): several tokens a
        call, of which the first `made` count. None unless the placement jits `decode` or drafts. `bounds` is an
        argument under until="stop" and drafts only, `request` under host="callback" only: `receiver` gives the number.
    logits(model, ids, cache) → (float32 [B T V], cache): every position, for evaluation; never jitted here.
    """

    prefill: Callable
    extend: Callable
    step: Callable
    decode: Callable | None
    logits: Callable
    receiver: Receiver | None = None  # host="callback": where decode sends each token while it runs


def assemble(
    config: ModelConfig, placement: Placement, wrap: Callable | None = None, draft: ModelConfig | None = None
) -> Programs:
    """Build the tree bottom-up, wrapping exactly the names in `placement.jit`. draft: of the model that drafts, where
    the placement names one; the programs then take `smaller.Both` as their model.

    Prefill and extend are steps over T tokens: they are jitted where `step`, or the `decode` around it, is. wrap: what
    wraps them, `compiled`, or for those who want to see the calls something around it.
    """
    if placement.compile == "persistent":
        use_persistent_cache()

    def place(name: str, function: Callable, jitted_with: tuple[str, ...] = (), **options) -> Callable:
        wanted = set(jitted_with or (name,)) & set(placement.jit)
        return (wrap or compiled)(name, function, placement, **options) if wanted else function

    whole = ("step", "decode")
    transform, logits = tree(config, placement, place)
    sample = place("sample", sampling.next_token)
    plain = steps_module(placement).steps(config, placement, transform, sample, logits)
    steps_made = plain
    if placement.drafts:
        least, proposer = None if placement.until else placement.tokens_per_call, lookup.Lookup()
        if draft is not None:
            plain, proposer = smaller.of_target(plain), smaller.Smaller(*unplaced(draft, placement))
        steps_made = drafts.Drafts(plain, sample, proposer, placement.depths, least)
    receiver = Receiver() if placement.host == "callback" else None
    send = partial(io_callback, receiver, jax.ShapeDtypeStruct((), bool), ordered=True) if receiver else None
    decode = decoder(placement, steps_made, send)
    called = "decode" if placement.jits_decode else "step"
    return Programs(
        prefill=place("prefill", steps_made.prefill, whole, static_argnames="slots"),
        extend=place("extend", steps_made.extend, whole),
        step=place("step", steps_made.step, whole),
        decode=place(called, decode) if placement.jits_decode or placement.drafts else None,
        logits=plain.logits,
        receiver=receiver,
    )


def verifier(config: ModelConfig, placement: Placement) -> Callable:
    """`steps.Steps.verify` of a placement as one jitted program of its own, which overwrites the cache it is given."""
    steps_made, _ = unplaced(config, placement)
    return jax.jit(steps_made.verify, donate_argnames="cache")


@cache
def scorer(config: ModelConfig, placement: Placement, most: int) -> Callable:
    """score(model, ids int32 [B T], following int32 [B T], cache) → (`sampling.Scores` [B T …], cache), jitted: T
    tokens into the cache, which is overwritten, and log probabilities of the token that follows each, and of the `most`
    most likely ones in its place. The logits stay inside."""
    steps_made, _ = unplaced(config, placement)

    def score(params, ids, following, cache):
        logits, cache = steps_made.logits(params, ids, cache)
        found = sampling.scored(logits.reshape(-1, logits.shape[-1]), following.reshape(-1), most)
        return jax.tree.map(lambda part: part.reshape(*ids.shape, *part.shape[1:]), found), cache

    return jax.jit(score, donate_argnames="cache")


def unplaced(config: ModelConfig, placement: Placement) -> tuple[Steps, Callable]:
    """(steps of a model as this placement computes them, jit nowhere; params, pad, slots → an empty cache)."""
    transform, logits = tree(config, placement, lambda name, function: function)
    made = steps_module(placement).steps(config, placement, transform, sampling.next_token, logits)
    return made, partial(new_cache, config=config, placement=placement)


@dataclass(frozen=True)
class SlotPrograms:
    """`kernels.fused_slots` as jitted programs. Each of them overwrites the slots that it is given.

    create(count, room) → slots; enter(slots, …) → slots;
    read(model, slots, ids [1 T], number, allowed [1 V], last) → (token [1], scores, slots);
    score(model, slots, ids [1 T], following [1 T], number, most) → (scores [1 T], slots);
    step(model, slots, numbers [R], live [R], allowed [R V]) → (tokens [n R], scores, slots), n the placement's tokens a
        call. allowed: bool, or left out where all tokens are; n is 1 where it is given.
    """

    create: Callable
    enter: Callable
    read: Callable
    score: Callable
    step: Callable


def slots(config: ModelConfig, placement: Placement) -> SlotPrograms:
    """Programs for sequences that stand at different positions of one cache. For placements with the fused kernel."""
    from llama_jax.kernels import fused, fused_slots  # here: without kernels their compiler is not needed

    run = partial(fused.rows, config=config)
    return SlotPrograms(
        create=partial(fused_slots.create, config),
        enter=jax.jit(fused_slots.enter, donate_argnames="slots"),
        read=jax.jit(partial(fused_slots.read, run=run), static_argnames="last", donate_argnames="slots"),
        score=jax.jit(partial(fused_slots.score, run=run), static_argnames="most", donate_argnames="slots"),
        step=jax.jit(partial(fused_slots.step, run=run, tokens=placement.tokens_per_call), donate_argnames="slots"),
    )


def tree(
    config: ModelConfig, placement: Placement, place: Callable, tap: Callable = untapped
) -> tuple[Callable, Callable]:
    """(transform, logits of every position), each node of the tree passed through place(name, function).

    tap(name, value) → value: called at the points that `taps` lists.
    """
    normalise = place("norm", norm.normaliser(config))
    block = layer.assembled(config, normalise, kvc.APPEND[placement.cache], place, tap)
    ropes, kinds = rope.of_layers(config)
    scale = config.embedding_scale
    parts = model.Parts(
        ropes=ropes,
        policy=placement.cache,
        embed=place("embed", embeddings.embed if scale == 1 else partial(embeddings.embed, scale=scale)),
        layers=partial(model.LAYERS[placement.layers], layer=block, kinds=kinds),
        head=place("head", partial(head.head, norm=normalise)),
    )
    return place("transform", partial(model.transform, parts=parts)), partial(model.transform, parts=parts, every=True)


def steps_module(placement: Placement) -> ModuleType:
    """The module that makes this placement's steps, its cache and its layers' layout: XLA's, or the kernel's."""
    if placement.kernels != "fused":
        return steps
    from llama_jax.kernels import fused_steps  # here: without kernels their compiler is not needed

    return fused_steps


def new_cache(params: model.Model, pad, slots: int, config: ModelConfig, placement: Placement) -> KVCache:
    """An empty cache of `slots` positions in the placement's layout. pad: int32 [B]."""
    return steps_module(placement).new_cache(params, pad, slots, config, placement)


def decoder(placement: Placement, steps_made: Steps | drafts.Drafts, send: Callable | None) -> Callable:
    """The function that `Programs.decode` describes, before jit. send(request, token [B]) → bool, whether the reader
    has left; None where tokens leave the program only at its end."""
    if placement.drafts:
        return partial(drafts.decode, drafts=steps_made, send=send and partial(in_turn, send=send))
    if placement.until:
        return partial(until_stop, step=steps_made.step, send=send)
    return partial(chunk, step=steps_made.step, tokens_per_call=placement.tokens_per_call, send=send)


def in_turn(request, block, made, *, send: Callable):
    """Send the first `made` of the tokens [n B], one after the other; whether the reader has left."""
    return jax.lax.fori_loop(0, made, lambda i, gone: gone | send(request, block[i]), jnp.bool_(False))


def chunk(
    params, token, carry: Carry, sampler, *, request=None, step: Callable, tokens_per_call: int, send: Callable | None
):
    """`tokens_per_call` steps as one `lax.scan`: tokens still stream, dispatch is paid once a chunk."""

    def body(state, _):
        token, carry = step(params, *state, sampler)
        if send:
            send(request, token)
        return (token, carry), token

    (token, carry), tokens = jax.lax.scan(body, (token, carry), None, length=tokens_per_call)
    return tokens, jnp.int32(tokens_per_call), token, carry


def until_stop(
    params, token, carry: Carry, sampler, bounds: Bounds, *, request=None, step: Callable, send: Callable | None
):
    """Steps as one `lax.while_loop`, until every row has met a stop token, `limit` tokens are made, or the reader has
    left."""

    def unfinished(state):
        made, done, *_ = state
        return (made < bounds.limit) & ~jnp.all(done)

    def body(state):
        made, done, tokens, token, carry = state
        token, carry = step(params, token, carry, sampler)
        tokens = jax.lax.dynamic_update_slice(tokens, token[None], (made, 0))
        gone = send(request, token) if send else None
        done = done | is_stop(token, bounds.stop)
        return made + 1, done if gone is None else done | gone, tokens, token, carry

    start = (jnp.int32(0), is_stop(token, bounds.stop), bounds.out, token, carry)
    made, _, tokens, token, carry = jax.lax.while_loop(unfinished, body, start)
    return tokens, made, token, carry


def compiled(name: str, function: Callable, placement: Placement, **options) -> Callable:
    """`jax.jit(function)` under a readable name. Its cache is donated, and it is compiled ahead of time, where the
    placement says so."""
    function = partial(function)  # an object of our own: naming it renames nobody else's
    function.__name__ = function.__qualname__ = name
    inner = {"extend": "step", "prefill": "step"}.get(name, name)
    called_by_host = inner in placement.outermost or (inner == "step" and placement.jits_decode)
    if placement.donate and called_by_host and name in CACHE_ARGUMENT:
        options["donate_argnames"] = CACHE_ARGUMENT[name]
    program = jax.jit(function, **options)
    return AheadOfTime(program, options.get("static_argnames")) if placement.compile == "aot" else program


class AheadOfTime:
    """A jitted function called only through `lower().compile()` executables, one a shape.

    A new shape is an explicit compilation here, never a silent retrace inside jit. Within another program's trace it
    is the plain jitted function, since an executable cannot be inlined. static: the argument, passed by name, that is
    part of the program.
    """

    def __init__(self, program: Callable, static: str | None = None):
        self.program, self.static = program, static
        self.executables: dict = {}

    def lower(self, *args, **named):
        return self.program.lower(*args, **named)

    def __call__(self, *args, **named):
        leaves, tree = jax.tree.flatten((args[1:], named))  # the first argument is mostly weights, always the same
        leaves += [args[0]] if hasattr(args[0], "shape") else []
        if any(isinstance(leaf, jax.core.Tracer) for leaf in leaves):
            return self.program(*args, **named)
        key = (tree, *((x.shape, x.dtype) if hasattr(x, "shape") else x for x in leaves))
        if key not in self.executables:
            self.executables[key] = self.made(args, named)
        return self.executables[key](*args, **{name: value for name, value in named.items() if name != self.static})

    def made(self, args: tuple, named: dict) -> jax.stages.Compiled:
        """The executable for arguments of these shapes."""
        return self.program.lower(*args, **named).compile()


def use_persistent_cache() -> None:
    """Let XLA keep compiled programs on disk between processes. Process-wide: it then serves every placement.

    The folder is `JAX_COMPILATION_CACHE_DIR` where that is set (the user then guards it), else the user's cache folder.
    Raises UserError where others may write into the user's cache folder: JAX runs what lies there.
    """
    if not jax.config.jax_compilation_cache_dir:
        jax.config.update("jax_compilation_cache_dir", str(paths.private("xla")))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    compilation_cache.reset_cache()


def prepare(params: model.Model, placement: Placement) -> model.Model:
    """The weights as this placement runs them: in its dtype or quantised form, with its product, in its layer layout.

    Raises UserError where these weights cannot be brought into that form (`model.quantised`).
    """
    if placement.weights in ("f32", "bf16"):
        params = model.cast(params, {"f32": jnp.float32, "bf16": jnp.bfloat16}[placement.weights])
    elif placement.weights != "loaded":
        params = model.quantised(params, placement.weights)
    elif placement.kernels != "none" and not is_quantised(params.embeddings.weight):
        params = model.quantised(params, "q8_0")
    if placement.kernels != "none":
        from llama_jax.kernels import gemv  # here: it needs libraries that may be missing

        params = model.multiplied_by(params, gemv.product)
    return steps_module(placement).arranged(params, placement)


def settings(sampler: Sampler, placement: Placement) -> Sampler | TracedSampler:
    """Sampling settings as this placement takes them: part of the program, or arguments to it.

    Raises UserError for a value that is no Sampler.
    """
    if not hasattr(sampler, "traced"):  # not isinstance: a class reloaded in a notebook is another class by that name
        raise UserError(f"sampler is {shown(sampler)}; it must be a llama_jax.Sampler.")
    return sampler.traced() if placement.sampling == "traced" else sampler
