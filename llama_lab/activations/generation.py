"""Activations of the tokens that a model makes, taken while it makes them.

Prefill, all steps and their taps are one program: a `lax.scan` whose step also returns its taps. Each token of an
answer is fed to the model, even the last one, so that every token has the values that it would have if prompt and
answer were read as one text. The tokens are those of `generate.answer` under the same sampler and seeds; tokens after a
stop token are dropped, as there.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial

import jax
import numpy as np

from llama_jax import generate, norm, sampling, transforms
from llama_jax.checkpoint import Checkpoint
from llama_jax.config import ModelConfig
from llama_jax.decoding import steps
from llama_jax.generate import GREEDY, PIECE, Answer, Engine, bucket
from llama_jax.model import Model
from llama_jax.placement import LADDER
from llama_jax.plumbing.errors import UserError
from llama_jax.plumbing.values import shown, whole
from llama_jax.quantise import is_quantised
from llama_jax.sampling import Sampler
from llama_lab.activations import moments
from llama_lab.activations.batches import Made, Unit, labels
from llama_lab.activations.program import Compiled, Values
from llama_lab.activations.spec import ROW_LIMIT, ActivationSpec, Site


@dataclass(frozen=True)
class Shape:
    """What such a program is compiled for, in addition to the shapes of its arrays."""

    config: ModelConfig
    sites: tuple[Site, ...]
    dtype: str
    sampler: Sampler
    new_tokens: int
    slots: int
    kv: str = LADDER["step"].kv


def program(params: Model, ids, pad, seeds, *, shape: Shape) -> tuple[jax.Array, Values]:
    """(tokens int32 [N B], {site: values [N B ...]}) of prompts [B T], padded on the left."""
    placement = replace(LADDER["step"], kv=shape.kv)
    seen: dict[str, list] = {}

    def tap(name: str, value):
        seen.setdefault(name, []).append(value)  # layer by layer: they run one after the other
        return value

    def bare(name: str, function: Callable) -> Callable:
        return function

    def made(transform: Callable) -> steps.Steps:
        return steps.steps(shape.config, placement, transform, sampling.next_token, transform)

    def watching(*args):
        logits, cache = tapped(*args)
        seen["logits"] = [logits]
        return logits, cache

    tapped = transforms.tree(shape.config, placement, bare, tap)[0]
    watched, plain = made(watching), made(transforms.tree(shape.config, placement, bare)[0])
    pieces = [ids[:, i : i + PIECE] for i in range(0, ids.shape[1], PIECE)]
    token, carry = plain.prefill(params, pieces[0], pad, seeds, shape.sampler, shape.slots)
    for piece in pieces[1:]:
        token, carry = plain.extend(params, piece, carry, shape.sampler)

    def step(state, _):
        token, carry = state
        seen.clear()
        following, carry = watched.step(params, token, carry, shape.sampler)
        return (following, carry), (token, values_of(seen, params, shape))

    _, made_tokens = jax.lax.scan(step, (token, carry), None, length=shape.new_tokens)
    return made_tokens


def values_of(seen: dict[str, list], params: Model, shape: Shape) -> Values:
    """{site: [B ...]} of a step's one token for each row."""
    values = {}
    for site in shape.sites:
        if site.name == "logits":
            value = seen["logits"][0]
        elif site.name == "ln_final":
            normalise = partial(norm.NORMS[shape.config.norm], eps=shape.config.norm_eps)
            value = normalise(params.head.norm, seen["resid_post"][-1])[:, 0]
        else:
            value = seen[site.name][site.layer]
            value = value[:, :, 0] if site.name in ("q", "k", "v") else value[:, 0]  # [B H T h], else [B T ...]
        values[str(site)] = value.astype(shape.dtype)
    return values


COMPILED = jax.jit(program, static_argnames="shape")


def check_sites(spec: ActivationSpec, config: ModelConfig) -> tuple[Site, ...]:
    """The sites, if all are available while tokens are made. Raises UserError otherwise."""
    sites = spec.resolve(config)
    if wide := [site for site in sites if site.name == "pattern"]:
        raise UserError(f"{wide[0]} is as wide as the cache; extract it from the finished text instead.")
    if spec.positions != "all":
        raise UserError(f"positions is {shown(spec.positions)}; of an answer every token's values are taken: 'all'.")
    return sites


def answer(
    engine: Engine,
    prompts: Sequence[Sequence[int]],
    new_tokens: int,
    tap: ActivationSpec,
    stop: Collection[int] = (),
    sampler: Sampler = GREEDY,
    **options,
) -> list[Answer]:
    """As `generate.answer`, each answer with its `activations`: {site: [n ...]}, a row per token. options: seeds, slots
    and length, as there.

    Raises UserError as that does, for sites that cannot be had, and for an engine whose weights are quantised or
    stacked.
    """
    if not isinstance(tap, ActivationSpec):
        raise UserError(f"tap is {shown(tap)}; it must be a llama_lab.activations.ActivationSpec.")
    sites = check_sites(tap, engine.config)
    if not isinstance(engine.model.layers, tuple) or is_quantised(engine.model.embeddings.weight):
        raise UserError(
            f"Activations cannot be taken under {engine.placement.name}; build the engine with float32 or bfloat16"
            " weights and without scan, such as step."
        )
    batch = generate.checked_request(engine, prompts, new_tokens, stop=stop, **options)
    room = max(batch.slots, bucket(batch.ids.shape[1] + batch.new_tokens))  # the last token is fed as well
    shape = Shape(engine.config, sites, tap.dtype, sampler, batch.new_tokens, room, engine.placement.kv)
    tokens, values = jax.device_get(COMPILED(engine.model, batch.ids, batch.pad, batch.seeds, shape=shape))
    cut = [generate.cut(row, stop) for row in tokens.T]
    rows = [(row, answer, len(answer.token_ids)) for row, answer in enumerate(cut)]
    return [replace(answer, activations={s: v[:n, row] for s, v in values.items()}) for row, answer, n in rows]


class Generator(Compiled):
    """What `extract` writes where the examples are prompts: greedy answers of up to `new_tokens` tokens, and of each
    token the activations that `spec` asks for. Everything is compiled here, once.

    batch: (B, T), T the longest prompt. A row's `position` is the token's place in the whole text.
    Raises UserError as `Compiled` does, for sites that cannot be had, and for more tokens than the model's context.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        spec: ActivationSpec,
        batch: tuple[int, int],
        new_tokens: int,
        row_limit: int = ROW_LIMIT,
    ):
        check_sites(spec, checkpoint.config)
        super().__init__(checkpoint, spec, batch, row_limit, whole(new_tokens, "new_tokens", 1))
        b, t = self.shape
        self.capacity, self.params = b * self.new_tokens, checkpoint.params
        self.stop = checkpoint.tokenizer.stop if checkpoint.tokenizer else ()
        static = Shape(checkpoint.config, self.sites, spec.dtype, GREEDY, self.new_tokens, bucket(t + self.new_tokens))
        inputs = (((b, t), np.int32), ((b,), np.int32), ((b,), np.uint32))  # ids, pad, seeds
        abstract = [jax.ShapeDtypeStruct(*each) for each in inputs]
        self.compile(lambda: COMPILED.lower(self.params, *abstract, shape=static))
        self.one_at_a_time = threading.Lock()

    def plan(self, number: int, first: int, examples: Sequence[Sequence[int]]) -> Unit:
        """A unit with its answers. Raises UserError, naming the example, for invalid ids and prompts."""
        b, t = self.shape
        prompts = self.checked(first, examples)
        for i, ids in enumerate(prompts, first):
            if not 1 <= len(ids) <= t:
                raise UserError(f"Example {i} has {len(ids)} tokens; as a prompt it must have 1 to {t} (--length).")
        batches, answers, size = [], [], 0
        for at in range(0, len(prompts), b):
            tokens, values = self.run(prompts[at : at + b])
            cut = [generate.cut(row, self.stop).token_ids for row in tokens.T[: len(prompts) - at]]
            lengths = list(enumerate(map(len, cut)))
            kept = {site: np.concatenate([v[:n, row] for row, n in lengths]) for site, v in values.items()}
            to = size + np.arange(sum(map(len, cut)))
            sums = {site: moments.of(value) for site, value in kept.items()}
            batches.append(Made(to, kept, {site: (m.mean, m.m2) for site, m in sums.items()}))
            answers, size = answers + cut, size + len(to)
        pairs = zip(itertools.count(first), prompts, answers, strict=False)
        rows = labels((np.array(a, np.int32), i, 0, len(prompt) + np.arange(len(a))) for i, prompt, a in pairs)
        return Unit(number, first, len(examples), sum(map(len, prompts)) + size, rows, tuple(batches))

    def run(self, prompts: Sequence[np.ndarray]) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """(tokens [N B], values [N B ...]) of up to B prompts; unused rows repeat the last one."""
        ids, pad = np.zeros(self.shape, np.int32), np.zeros(self.shape[0], np.int32)
        for row in range(self.shape[0]):
            prompt = prompts[min(row, len(prompts) - 1)]
            ids[row, self.shape[1] - len(prompt) :], pad[row] = prompt, self.shape[1] - len(prompt)
        with self.one_at_a_time:
            return jax.device_get(self.executable(self.params, ids, pad, np.zeros(self.shape[0], np.uint32)))

    def dispatch(self, batch: Made) -> tuple[dict, dict]:
        return batch.values, batch.moments

    def kept(self, batch: Made, value: np.ndarray) -> np.ndarray:
        return value
