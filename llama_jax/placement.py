"""Placements as values: a placement is a set of names at which `jax.jit` is applied, and the switches that combine with
it.

The names are the functions of the model's call tree, which `transforms.assemble` builds:

    decode ⊃ step ⊃ { transform ⊃ { embed, layer ⊃ { norm, attend ⊃ rope, ffn }, head ⊃ norm }, sample }
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from llama_jax import kvc, model, quantise
from llama_jax.plumbing.errors import UserError, near
from llama_jax.plumbing.values import listed, shown, whole

TREE = {  # name: the function that calls it
    "decode": None,
    "step": "decode",
    "transform": "step",
    "sample": "step",
    "embed": "transform",
    "layer": "transform",
    "head": "transform",
    "norm": "layer",
    "attend": "layer",
    "ffn": "layer",
    "rope": "attend",
}
TAKES_CACHE = ("decode", "step", "transform", "layer", "attend")
SWITCHES = {
    "weights": ("loaded", "f32", "bf16", *quantise.FORMS),  # loaded: as the checkpoint was loaded
    "kernels": ("none", "gemv", "fused"),  # gemv: products on quantised blocks; fused: the whole step, in one call
    "layers": tuple(model.LAYERS),
    "cache": kvc.POLICIES,
    "kv": ("loaded", *kvc.DTYPES),  # what keys and values are kept as; loaded: as the weights
    "sampling": ("static", "traced"),
    "compile": ("lazy", "aot", "persistent"),
    "host": ("sync", "async", "queue", "callback"),
}
IN_FLIGHT = 2  # calls that a host running ahead has dispatched and not yet read
MOST_IN_FLIGHT, MOST_PER_CALL, MOST_DRAFTS = 9_999, 999_999, 15
DRAFTS = 7  # that +lookup proposes a pass at most
MODEL_DRAFTS = 4  # that +draft proposes a pass
LONGEST = 200  # characters of a name


def check_name(name: str) -> None:
    """Raises UserError for an invalid placement name: not text, or too long."""
    if not isinstance(name, str) or not 0 < len(name) <= LONGEST:
        raise UserError(f"The placement is {shown(name)}; it must be a name of 1 to {LONGEST} characters.")


@dataclass(frozen=True)
class Placement:
    """A way to run the model: at which names `jax.jit` is applied, and the switches that combine with it.

    jit: names of `TREE`. donate: let the jitted function overwrite its KV cache. tokens_per_call: tokens that one
    call of a jitted `decode` makes (`lax.scan`). until="stop": one call runs to the stop token (`lax.while_loop`).
    weights, kernels, layers, cache, kv, sampling, compile, host: see `SWITCHES`. weights="gguf" are the file's own
    blocks, "q8_0", "q4_0", "q4_1" and "int8" are quantised here; with kernels, "loaded" means the file's own blocks
    if it has them, otherwise q8_0. host="sync" reads each call's tokens before it starts the next; "async" runs
    `in_flight` calls ahead in one thread; "queue" starts calls, fetches and reads in three threads; "callback" sends
    each token from inside the running program. drafts: tokens proposed per pass, from the text so far or by the model
    `draft`, named as for `checkpoint.load`; nothing is loaded here.
    Raises UserError for an unknown name or a set that contradicts itself.
    """

    name: str
    jit: tuple[str, ...] = ()
    donate: bool = False
    tokens_per_call: int = 1
    until: str | None = None
    weights: str = "loaded"
    kernels: str = "none"
    layers: str = "unrolled"
    cache: str = "fixed"
    kv: str = "loaded"
    sampling: str = "static"
    compile: str = "lazy"
    host: str = "sync"
    in_flight: int = IN_FLIGHT
    drafts: int = 0
    draft: str | None = None

    def __post_init__(self):
        check_name(self.name)
        jit = (self.jit,) if isinstance(self.jit, str) else tuple(listed(self.jit, "jit", "names")[: len(TREE) + 1])
        object.__setattr__(self, "jit", jit)
        for name in jit:
            if not isinstance(name, str) or name not in TREE:
                hint = near(name, TREE) if isinstance(name, str) else ""
                raise UserError(f"Placement {self.name!r}: jit names an unknown function {shown(name)}.{hint}")
        if len(set(jit)) < len(jit):
            raise UserError(f"Placement {self.name!r}: jit names a function twice; leave one out.")
        for switch, values in (SWITCHES | dict(until=(None, "stop"), donate=(False, True))).items():
            given = getattr(self, switch)
            if type(given) not in {type(value) for value in values} or given not in values:
                known = ", ".join(map(str, values))
                raise UserError(f"Placement {self.name!r}: {switch}={shown(given)} is not one of {known}.")
        for count, least, most in (
            ("tokens_per_call", 1, MOST_PER_CALL),
            ("in_flight", 1, MOST_IN_FLIGHT),
            ("drafts", 0, MOST_DRAFTS),
        ):
            given = whole(getattr(self, count), f"Placement {self.name!r}: {count}", least, most)
            object.__setattr__(self, count, given)
        if self.draft is not None and not (isinstance(self.draft, str) and 0 < len(self.draft) <= LONGEST):
            raise UserError(f"Placement {self.name!r}: draft is {shown(self.draft)}; it must be the name of a model.")
        for contradiction in _contradictions(self):
            raise UserError(f"Placement {self.name!r}: {contradiction}")

    @property
    def outermost(self) -> frozenset[str]:
        """The listed names that no other listed name contains: the programs the host really calls."""
        return frozenset(name for name in self.jit if not set(ancestors(name)) & set(self.jit))

    @property
    def depths(self) -> tuple[int, ...]:
        """How many drafts a pass may have, rising from 0. Each number is another body of the program. If the body is
        one call of a kernel, passes have 1, 2, 4 or 8 rows; if each draft is a step of a model, any number; otherwise
        none or all."""
        each = (1, 3, 7) if self.draft is None else range(1, self.drafts)
        few = each if self.kernels == "fused" else ()
        return (0, *(depth for depth in few if depth < self.drafts), *([self.drafts] if self.drafts else []))

    @property
    def jits_decode(self) -> bool:
        return "decode" in self.jit


def ancestors(name: str) -> list[str]:
    """The functions around `name`, innermost first."""
    chain = []
    while (name := TREE[name]) is not None:
        chain.append(name)
    return chain


def _contradictions(p: Placement):
    """A sentence for each contradiction: why it cannot work and what to do."""
    decode, growing = "decode" in p.jit, p.cache == "growing"
    whole = {"transform", "step", "decode"} & set(p.jit)
    if not decode and p.tokens_per_call > 1:
        yield "tokens_per_call needs 'decode' in jit: only a jitted decode makes several tokens a call."
    if not decode and p.until is not None:
        yield "until='stop' needs 'decode' in jit: only a jitted decode can find the stop token itself."
    if p.until is not None and p.tokens_per_call > 1:
        yield "until='stop' runs to the end in one call; leave tokens_per_call out."
    if decode and growing:
        yield "a jitted 'decode' needs one cache shape, a growing cache has a new one every token; use cache='fixed'."
    if p.donate and growing:
        yield "a growing cache cannot be donated, its next shape does not fit the old buffer; use cache='fixed'."
    if p.donate and p.cache == "none":
        yield "donate=True has no KV cache to give away with cache='none'; leave donate out."
    if p.kv != "loaded" and p.cache == "none":
        yield f"kv={p.kv!r} has no KV cache to keep with cache='none'; leave one out."
    if p.donate and not set(TAKES_CACHE) & set(p.jit):
        yield f"donate=True needs one of {', '.join(TAKES_CACHE)} in jit: only they take a cache."
    yield from _against_kernels(p)
    yield from _against_drafts(p)
    if p.layers == "scan" and not whole:
        yield "layers='scan' compiles the stack as one loop; put 'transform', 'step' or 'decode' in jit."
    if p.compile != "lazy" and not p.jit:
        yield f"compile={p.compile!r} has nothing to compile; put a name in jit."
    ahead = p.host in ("async", "queue")
    if ahead and p.until is not None:
        yield f"host={p.host!r} has nothing to overlap with until='stop'; leave one out."
    if not ahead and p.in_flight != IN_FLIGHT:
        yield "in_flight needs host='async' or host='queue': only they start calls ahead."
    back = p.host == "callback"
    if back and not decode:
        yield "host='callback' needs 'decode' in jit: only a compiled loop can call the host while it runs."
    if back and p.compile == "persistent":
        yield (
            "host='callback' calls into this very process, so JAX keeps no such program on disk; leave"
            " compile='persistent' out."
        )


def _against_kernels(p: Placement):
    """As `_contradictions`: what kernels cannot run with."""
    fused = p.kernels == "fused"
    if p.kernels != "none" and p.weights in ("f32", "bf16", "int8"):
        yield (
            f"kernels={p.kernels!r} multiply by blocks, not by {p.weights} weights; use weights='gguf', 'q8_0',"
            " 'q4_0' or 'q4_1', or leave weights out."
        )
    if fused and not {"step", "decode"} & set(p.jit):
        yield "kernels='fused' is the whole step in one call; put 'step' or 'decode' in jit."
    if fused and p.cache != "fixed":
        yield f"kernels='fused' writes a cache of fixed size in place; leave cache={p.cache!r} out."
    if fused and p.layers == "scan":
        yield "kernels='fused' runs all layers in one call; leave layers='scan' out."
    if fused and p.kv != "loaded":
        yield f"kernels='fused' keeps keys and values in a layout of its own; leave kv={p.kv!r} out."


def _against_drafts(p: Placement):
    """As `_contradictions`: what drafts cannot run with."""
    drafts = p.drafts > 0
    if p.draft is not None and not drafts:
        yield f"draft={shown(p.draft)} proposes no drafts; say how many a pass, drafts={MODEL_DRAFTS} for instance."
    if drafts and not {"step", "decode"} & set(p.jit):
        yield "drafts are proposed and verified in one program; put 'step' or 'decode' in jit."
    if drafts and p.cache != "fixed":
        yield f"drafts that are rejected are overwritten in a cache of fixed size; leave cache={p.cache!r} out."
    if drafts and p.host in ("async", "queue"):
        yield f"host={p.host!r} starts calls ahead, and with drafts nobody knows how many there will be; leave one out."


LADDER: dict[str, Placement] = {
    p.name: p
    for p in (
        Placement("eager"),
        Placement("ops", jit=("norm", "rope", "attend", "ffn", "embed", "head", "sample")),
        Placement("layer", jit=("embed", "layer", "head", "sample")),
        Placement("split", jit=("transform", "sample")),
        Placement("step", jit=("step",)),
        Placement("step+donate", jit=("step",), donate=True),
        Placement("chunk8", jit=("decode",), tokens_per_call=8),
        Placement("loop", jit=("decode",), until="stop"),
    )
}
JIT_PREFIX = "jit:"  # begins the name of a placement of one's own, as random: does that of a model
DESCRIPTIONS = {
    "eager": "no jit: every primitive is its own dispatch",
    "ops": "each operation of a layer jitted on its own",
    "layer": "one program a layer",
    "split": "transform and sampler jitted apart (the original's pipeline 2)",
    "step": "transform and sampler in one program (the original's pipeline 1)",
    "step+donate": "as step, the KV cache overwritten in place",
    "chunk8": "eight tokens a call in a lax.scan; any chunkK",
    "loop": "the whole answer in one lax.while_loop",
}
MODIFIERS: dict[str, dict] = {
    "donate": dict(donate=True),
    "scan": dict(layers="scan"),
    "growing": dict(cache="growing"),
    "nocache": dict(cache="none"),
    "traced": dict(sampling="traced"),
    "aot": dict(compile="aot"),
    "persistent": dict(compile="persistent"),
    "async": dict(host="async"),
    "queue": dict(host="queue"),
    "callback": dict(host="callback"),
    "bf16": dict(weights="bf16"),
    **{form: dict(weights=form) for form in quantise.FORMS},
    "gemv": dict(kernels="gemv"),
    "fused": dict(kernels="fused", donate=True),  # else every call would copy the cache that it writes one position of
    "kvbf16": dict(kv="bf16"),
    "kvf16": dict(kv="f16"),
    "kvint8": dict(kv="int8"),
    "lookup": dict(drafts=DRAFTS, draft=None),
}
DRAFT = re.compile(r"\+draft([1-9][0-9]{0,3})?:(.*)", re.DOTALL)  # stands last: a model's name may hold a plus


def parse(name: str | Placement) -> Placement:
    """A placement by its name: one of the ladder, chunkK, or `jit:` and names of `TREE` joined by dots, each with
    +modifiers, such as `step+scan+donate`, `chunk16` or `jit:attend.head`. A placement is returned as it is.

    `+async4` and `+queue4` keep four calls in flight, `+lookup4` proposes up to four drafts per pass. `+draft:NAME`, or
    `+draft4:NAME`, comes last: everything after the colon is a model's name, as for `checkpoint.load`. The model is not
    looked up here.
    """
    if isinstance(name, Placement):
        return name
    check_name(name)
    if name in LADDER:
        return LADDER[name]
    drafted = DRAFT.search(name)
    base, *modifiers = name[: drafted.start() if drafted else None].split("+")
    placement = stem(base, name)
    named = [(modifier, change_of(modifier, name)) for modifier in modifiers]
    if drafted:
        named.append(("draft", dict(drafts=int(drafted[1] or MODEL_DRAFTS), draft=drafted[2])))
    changes: dict = {}
    for modifier, change in named:
        if any(changes.get(k, v) != v for k, v in change.items()):
            raise UserError(f"Placement {name!r}: +{modifier} contradicts a modifier before it; leave one out.")
        changes |= change
    return replace(placement, name=name, **changes)


def change_of(modifier: str, name: str) -> dict:
    """The fields that a modifier of this placement's name changes."""
    counted = re.fullmatch(r"(async|queue|lookup)([1-9][0-9]{0,3})", modifier)
    if counted:
        return MODIFIERS[counted[1]] | {"drafts" if counted[1] == "lookup" else "in_flight": int(counted[2])}
    if re.fullmatch("draft[0-9]*", modifier):
        raise UserError(f"Placement {name!r}: +{modifier} needs a model; write +draft:NAME, at the end.")
    if modifier not in MODIFIERS:
        raise UserError(f"No such placement: {name!r}; +{modifier} is unknown.{near(modifier, MODIFIERS)}")
    return MODIFIERS[modifier]


def stem(base: str, name: str) -> Placement:
    """The placement that a name's modifiers change: the part before the first plus."""
    if base in LADDER:
        return LADDER[base]
    if chunk := re.fullmatch(r"chunk([1-9][0-9]{0,5})", base):
        return replace(LADDER["chunk8"], tokens_per_call=int(chunk[1]))
    if base.startswith(JIT_PREFIX):
        return Placement(name, jit=tuple(base.removeprefix(JIT_PREFIX).split(".")))
    hint = near(base, LADDER)
    if base in TREE:  # what the command line makes of jit:attend,head
        hint = f" Did you mean '{JIT_PREFIX}{base}'? Several names have dots between them, such as jit:attend.head."
    raise UserError(f"No such placement: {name!r}.{hint}")
