"""What a KV cache buys: time, arithmetic and bytes, with and without one, jitted and not, everything warm."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from llama_jax import attention, checkpoint, generate, kvc, transforms
from llama_jax.checkpoint import Checkpoint
from llama_jax.config import ModelConfig
from llama_jax.placement import Placement
from llama_jax.plumbing.errors import UserError
from llama_lab.bench import AGAIN, frames, passages, run, summary
from llama_lab.bench.experiment import Experiment, Runner, Seed
from llama_lab.bench.phases import Plan
from llama_lab.bench.published import figure_of
from llama_lab.bench.quality import against
from llama_lab.bench.record import Trial
from llama_lab.bench.workload import Workload

COMBINATIONS = {
    "step": "cache, jit",
    "eager": "cache, eager",
    "step+nocache": "no cache, jit",
    "eager+nocache": "no cache, eager",
}
TYPES = {
    "step+donate": "float32",
    "step+donate+kvbf16": "bfloat16",
    "step+donate+kvf16": "float16",
    "step+donate+kvint8": "int8",
}
WEIGHTS = {"step": "float32", "step+bf16": "bfloat16", "step+int8": "int8"}
IN_TYPES = "weights in types"  # a run's name
FIFTEEN, PROMPT, NEW = "fifteen tokens", 4, 15  # the case that was published: 15 tokens after a prompt of 4
PIECE = 16  # tokens that go through the cache together where its quality is measured


@dataclass(frozen=True)
class KvCache(Experiment):
    """The published case, the types of weights and of cache, and growing contexts, on two models.

    shapes: the model of the published case. blocks: at each context; case_blocks: of the published case; type_blocks:
    of the types of cache and of weights.
    """

    model: str
    shapes: str
    seed: Seed
    contexts: tuple[int, ...]
    new_tokens: int
    blocks: int
    case_blocks: int
    type_blocks: int
    processes: int
    type_context: int

    def plan(self, run: str, model: str, subjects: Iterable[str], prompt: int, new_tokens: int, blocks: int) -> Plan:
        """Placements, the first of them the baseline, on prompts of random ids of one length, without padding. Raises
        UserError for a text longer than the context."""
        config = checkpoint.load_config(model)
        prompts = passages.random_prompts(config.vocab_size, prompt, self.seed)
        work = Workload(prompts, new_tokens, prompt, seed=self.seed)
        passages.check_context(config, work)
        return Plan.of(model, subjects, work, blocks=blocks, processes=self.processes, run=run)

    @property
    def plans(self) -> list[Plan]:
        """What is measured, one run a plan."""
        asked = [
            (FIFTEEN, self.shapes, COMBINATIONS, PROMPT, NEW, self.case_blocks),
            (IN_TYPES, self.shapes, WEIGHTS, 64, 9, self.type_blocks),
            ("types", self.model, TYPES, self.type_context, 9, self.type_blocks),
        ]
        for model in (self.shapes, self.model):
            asked += [(after(model, n), model, COMBINATIONS, n, self.new_tokens, self.blocks) for n in self.contexts]
        return [self.plan(*each) for each in asked]

    def check(self) -> None:
        if len(self.contexts) < 2 or not all(type(n) is int and n >= 1 for n in self.contexts):
            raise UserError(f"contexts is {list(self.contexts)}; give at least two lengths of 1 or more.")

    def measure(self, runner: Runner) -> tuple[list[Trial], dict]:
        """All trials (runs by name), and what the meta says of them: quality, counted work and bytes."""
        trials = [t for plan in self.plans for t in run.collect(plan, runner.journal, runner.progress)]
        loaded = checkpoint.load(self.model)
        configs = {name: checkpoint.load_config(name) for name in (self.shapes, self.model)}
        return trials, dict(
            weights_hash=loaded.weights_hash,
            quality=quality(loaded, passages.english(loaded, self.type_context, self.seed)),
            work=attention_work(configs[self.shapes], configs[self.shapes].max_position_embeddings),
            bytes={name: cache_bytes(config, (64, 256, 1024)) for name, config in configs.items()},
        )


def after(model: str, context: int) -> str:
    """The run of answers of a model that stand after so many tokens."""
    return f"{model} after {context}"


# What the trials say --------------------------------------------------------------------------------------------------


def published_case(trials: Sequence[Trial], seed: int = 0) -> dict:
    """The 15-token case: {rates: subject → list of tokens/s, both: cache + jit over no cache + eager, cache_alone: over
    no cache + jit, jit_alone: over cache + eager, published: {slow, fast, ratio}, limit}. Rates are those of whole
    answers, first token included, as the original counted."""
    here = [t for t in trials if t.run == FIFTEEN]
    rates = {name: summary.both_rates(here, name, lambda t: t.new_tokens / t.seconds) for name in COMBINATIONS}
    others = dict(both="eager+nocache", cache_alone="step+nocache", jit_alone="eager")
    quantities = {"slow": "tokens/s, no cache", "fast": "tokens/s, cache and jit", "ratio": "speed-up, long warm-up"}
    limits = [t.limit for t in here if t.subject == "step" and t.bandwidth_gbps]
    return dict(
        rates={name: sorted(by_block.values()) for name, by_block in rates.items()},
        **{name: summary.over(rates["step"], rates[other], seed) for name, other in others.items()},
        published={k: figure_of("kv-cache", q) for k, q in quantities.items()},
        limit=summary.median(limits),
    )


def latencies(trials: Sequence[Trial], model: str) -> dict[str, dict[int, list[float]]]:
    """Subject → context → ms per token after the first of each valid answer."""
    warm = [t for t in trials if t.run == after(model, t.prompt_tokens) and t.phase == "warm" and t.valid]
    mine = {name: [t for t in warm if t.subject in (name, name + AGAIN)] for name in COMBINATIONS}
    return {name: summary.grouped(rows, "prompt_tokens", lambda t: t.tpot * 1e3) for name, rows in mine.items()}


def by_weights(trials: Sequence[Trial], seed: int = 0) -> list[dict]:
    """Size and decode rate of each type of weights that was measured, with the ratio to float32."""
    here = [t for t in trials if t.run == IN_TYPES and t.phase == "warm"]
    order = [(name,) for name in WEIGHTS]
    frame = summary.tally(here, ["subject"], dict(rate="tg"), against="step", seed=seed, clusters=None, order=order)
    return [e for e in frame.to_dict("records") if e["n"]]


BY_WEIGHTS = frames.Columns(
    {
        "weights": lambda e: WEIGHTS[e["subject"]],
        "MB": frames.scaled("first.weights_bytes", 1e6),
        **frames.interval("tokens/s", "rate"),
        "over float32": "ratio.words",
        "n": "rate.n",
    },
    index="weights",
    digits=1,
)


# Arithmetic and bytes: counted, not timed -----------------------------------------------------------------------------


def attention_flops(config: ModelConfig, queries: int, keys: int) -> int:
    """Operations of scores and mix in all layers, `queries` tokens over `keys`; a multiply-add counts as two."""
    return 4 * config.num_hidden_layers * config.num_attention_heads * config.head_dim * queries * keys


def counted_attention_flops(config: ModelConfig, queries: int, keys: int) -> float:
    """The same as XLA counts it in the lowered program of the model's own attention, softmax included."""
    q = jax.ShapeDtypeStruct((1, config.num_attention_heads, queries, config.head_dim), jnp.float32)
    k = jax.ShapeDtypeStruct((config.num_key_value_heads, keys, config.head_dim), jnp.float32)
    mask = jax.ShapeDtypeStruct((1, queries, keys), bool)
    placement = Placement("counted", jit=("attend",))
    program = transforms.compiled("scaled_dot_product", attention.scaled_dot_product, placement)
    return config.num_hidden_layers * program.lower(q, k, k, mask).cost_analysis()["flops"]


def attention_work(config: ModelConfig, longest: int, points: int = 12) -> list[dict]:
    """Attention operations of writing a text up to each length: {length, cached, cached_counted, uncached,
    uncached_counted}.

    With a cache each new token attends once over all before it; without, every token again over all. Both add up over
    the
    text: the cache saves a power of the length, and what is left still grows with its square.
    """
    lengths, every = np.unique(np.geomspace(1, longest, points).round().astype(int)), np.arange(1, longest + 1)
    one = attention_flops(config, 1, 1)
    work = dict(cached=one * every.astype(float), uncached=one * every.astype(float) ** 2)
    # counted at some lengths, between them by interpolation
    for way, queries in (("cached", np.ones_like(lengths)), ("uncached", lengths)):
        counted = [counted_attention_flops(config, int(q), int(n)) for q, n in zip(queries, lengths, strict=True)]
        work[f"{way}_counted"] = np.exp(np.interp(np.log(every), np.log(lengths), np.log(counted)))
    sums = {way: np.cumsum(each) for way, each in work.items()}
    return [dict(length=int(n), **{way: float(total[n - 1]) for way, total in sums.items()}) for n in lengths]


def cache_bytes(config: ModelConfig, slots: Sequence[int], batch: int = 1) -> list[dict]:
    """Bytes of keys and values, predicted from the configuration and counted in arrays that were really made."""
    entries = []
    for kind, dtype in kvc.DTYPES.items():
        position = batch * config.kv_bytes_per_position(kvc.itemsize(dtype, config.head_dim))
        for n in slots:
            made = kvc.create(config, "fixed", jnp.zeros(batch, jnp.int32), n, dtype).entries
            measured = sum(a.nbytes for a in jax.tree.leaves(made))
            entries.append(dict(kv=kind, slots=n, batch=batch, predicted=round(n * position), measured=measured))
    return entries


def quality(loaded: Checkpoint, ids: Sequence[int]) -> list[dict]:
    """What a smaller cache does to the next token's distribution over one text, read in pieces of PIECE tokens.

    One entry per type: {kv, tokens, kl: mean of KL(float32 cache || this one) in nats, top1: share of equal best
    tokens, error: relative error of the logits}. The first piece, which has no cache to read, is left out. The text is
    the same for all.
    """
    ids = list(ids)[: len(ids) // PIECE * PIECE]
    if len(ids) < 2 * PIECE:
        raise UserError(
            f"The text has {len(ids)} whole tokens; at least {2 * PIECE} are needed to measure a cache's quality."
        )
    exact = cached_logits(loaded, ids, "f32")
    entries = []
    for kind in kvc.DTYPES:
        logits = exact if kind == "f32" else cached_logits(loaded, ids, kind)
        seen = against(exact, logits)
        error = np.linalg.norm(logits - exact) / np.linalg.norm(exact)
        means = dict(kl=float(seen["kl"].mean()), top1=float(seen["agree"].mean()), error=float(error))
        entries.append(dict(kv=kind, tokens=len(logits), **means))
    return entries


def cached_logits(loaded: Checkpoint, ids: Sequence[int], kv: str) -> np.ndarray:
    """Logits [T-PIECE V] of a text that went through a cache of one type, piece by piece."""
    engine = generate.build(loaded, Placement("quality", jit=("embed", "layer", "head"), kv=kv))
    cache = transforms.new_cache(engine.params, jnp.zeros(1, jnp.int32), len(ids), engine.config, engine.placement)
    pieces = []
    for at in range(0, len(ids), PIECE):
        values, cache = engine.programs.logits(engine.params, jnp.asarray([ids[at : at + PIECE]]), cache)
        pieces.append(np.asarray(values[0]))
    return np.concatenate(pieces[1:])
