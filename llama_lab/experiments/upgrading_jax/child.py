"""What runs under each release: a process that has jax and numpy, and the package's source.

Weights come as a folder of NumPy files, one a tensor, so that all releases compute on the same numbers.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from llama_jax import generate
from llama_jax.checkpoint import Checkpoint, tensors
from llama_jax.checkpoint.source import Source, Tensor
from llama_jax.config import ModelConfig
from llama_jax.placement import parse
from llama_jax.plumbing import runtime
from llama_lab.bench import gate, memory, protocol, roofline
from llama_lab.bench.lab import Lab
from llama_lab.bench.workload import Subject, Workload, shuffled

CLOSE = 1e-4  # of the largest logit: many times what float32 loses in a small model
LONGER = 4  # how many times as many updates the second of two loops makes
UPDATES = 20_000


def save(source: Source, folder: Path, name: str) -> None:
    """An opened checkpoint's configuration and tensors, for `opened`; name: what records call the model, which is no
    path of this machine."""
    folder.mkdir(parents=True, exist_ok=True)
    for tensor_name, tensor in source.tensors.items():
        np.save(folder / f"{tensor_name}.npy", np.asarray(tensor.read(), np.float32))
    about = dict(name=name, config=source.config.shape(), hash=source.hash())
    (folder / "about.json").write_text(json.dumps(about))


def arrays(folder: Path) -> dict[str, np.ndarray]:
    return {path.stem: np.load(path, mmap_mode="r") for path in folder.glob("*.npy")}


def opened(folder: Path) -> Checkpoint:
    """A checkpoint from such a folder."""
    about = json.loads((folder / "about.json").read_text())
    config = ModelConfig.from_json(about["config"])
    there = {name: Tensor(value.shape, lambda value=value: np.asarray(value)) for name, value in arrays(folder).items()}
    source = Source(about["name"], config, there, lambda: None, lambda: about["hash"])
    return Checkpoint(about["name"], config, tensors.assemble(source, "float32"), None, about["hash"], "", "float32")


def oracle(weights: Mapping[str, np.ndarray], config: ModelConfig, ids: Sequence[int]) -> np.ndarray:
    """Logits [T V] in float64 at every position of one sequence, by a decoder in NumPy: what every release must agree
    with, and shares no line of code with JAX. weights: under Hugging Face's names, [out, in]."""
    wide = {name: np.asarray(value, np.float64) for name, value in weights.items()}
    x = wide["model.embed_tokens.weight"][np.asarray(ids)]
    half = config.head_dim // 2
    theta = np.arange(len(ids))[:, None] / config.rope_theta ** (np.arange(half) / half)
    cos, sin = np.cos(theta)[:, None], np.sin(theta)[:, None]  # [T 1 h/2]

    def normalised(x: np.ndarray, name: str) -> np.ndarray:
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + config.norm_eps) * wide[name]

    def heads(x: np.ndarray, name: str, rotated: bool) -> np.ndarray:
        y = (x @ wide[name].T).reshape(len(ids), -1, config.head_dim)  # [T N h]
        if not rotated:
            return y
        left, right = y[..., :half], y[..., half:]
        return np.concatenate([left * cos - right * sin, right * cos + left * sin], -1)

    for i in range(config.num_hidden_layers):
        at = f"model.layers.{i}."
        seen = normalised(x, at + "input_layernorm.weight")
        q, k, v = (heads(seen, f"{at}self_attn.{kind}_proj.weight", kind != "v") for kind in "qkv")
        k, v = (np.repeat(each, q.shape[1] // each.shape[1], axis=1) for each in (k, v))
        scores = np.einsum("tnh,snh->nts", q, k) / np.sqrt(config.head_dim)
        scores[:, *np.triu_indices(len(ids), 1)] = -np.inf
        shares = np.exp(scores - scores.max(-1, keepdims=True))
        mixed = np.einsum("nts,snh->tnh", shares / shares.sum(-1, keepdims=True), v)
        x = x + mixed.reshape(len(ids), -1) @ wide[at + "self_attn.o_proj.weight"].T
        seen = normalised(x, at + "post_attention_layernorm.weight")
        gated, up = (seen @ wide[f"{at}mlp.{kind}_proj.weight"].T for kind in ("gate", "up"))
        x = x + (gated / (1 + np.exp(-gated)) * up) @ wide[at + "mlp.down_proj.weight"].T
    x = normalised(x, "model.norm.weight")
    return x @ wide["model.embed_tokens.weight" if config.tie_word_embeddings else "lm_head.weight"].T


def facts(small: str, placements: list[str], seed: int) -> dict:
    """What is true of a release whatever the clock says: {jax, checks, oracle, updates}.

    oracle: placement → largest error of its logits against NumPy's in float64 on the small model, as a share of the
    largest logit; infinite where its greedy tokens are not those of the float64 logits. updates: time of a loop that
    makes `LONGER` times as many small updates of an array as long, over what it should be: 1 where they are made in
    place.
    """
    folder = Path(small)
    loaded, weights = opened(folder), arrays(folder)
    prompt = np.random.default_rng(seed).integers(0, loaded.config.vocab_size, 12).tolist()
    errors = {}
    for name in placements:
        engine = generate.build(loaded, name)
        text = [*prompt, *generate.answer(engine, [prompt], 16)[0].token_ids]
        expected = oracle(weights, loaded.config, text)
        own = np.asarray(generate.logits(engine, text))
        error = float(np.abs(own - expected).max() / np.abs(expected).max())
        behind = gate.behind(expected[len(prompt) - 1 : -1], np.array(text[len(prompt) :]))
        errors[name] = error if behind.max() <= gate.NEAR_TIE else float("inf")
    return dict(jax=jax.__version__, checks=runtime.examine(fatal=True), oracle=errors, updates=updates())


def updates() -> float:
    """Of jax #40101: does the time of small updates in a loop grow with their number, or with its square?"""

    def seconds(n: int) -> float:
        @jax.jit
        def fill(x):
            return jax.lax.fori_loop(0, n - 1, lambda i, x: x.at[i + 1].set(x[i] + 1.0), x)

        x = jnp.zeros(n, jnp.float32)
        fill(x).block_until_ready()
        taken = []
        for _ in range(3):
            began = time.perf_counter()
            fill(x).block_until_ready()
            taken.append(time.perf_counter() - began)
        return min(taken)

    return seconds(LONGER * UPDATES) / seconds(UPDATES) / LONGER


def references(lab: Lab, folder: str, cases: list[dict], out: str) -> None:
    """Greedy tokens [n] and float32 logits [n V] of every case by `step`, under this Python, to a file."""
    engine, made = generate.build(opened(Path(folder)), "step"), {}
    for i, case in enumerate(cases):
        ids = case["ids"]
        tokens = generate.answer(engine, [ids], case["new_tokens"])[0].token_ids
        made[f"tokens{i}"] = np.array(tokens)
        made[f"logits{i}"] = np.asarray(generate.logits(engine, [*ids, *tokens[:-1]])[-len(tokens) :])
    np.savez(out, **made)


def judged(tokens: np.ndarray, known: dict, case: int) -> tuple[bool, str]:
    """(whether they may count, reason) of tokens [n], by `references`. After a near-tie the texts are different texts:
    what comes then is not judged."""
    expected, logits = known[f"tokens{case}"], known[f"logits{case}"]
    differs = np.flatnonzero(tokens[: len(expected)] != expected[: len(tokens)])
    end = int(differs[0]) + 1 if len(differs) and len(tokens) == len(expected) else None
    verdict = gate.compare(tokens[:end], expected[:end], lambda: logits[:end])
    return verdict.passed, verdict.reason


def answers(
    lab: Lab, release: str, files: dict, cases: list[dict], placements: list[str], blocks: int, seed: int
) -> None:
    """One process of a release: the facts (in its first block), then first requests, then interleaved warm answers.

    files: where `weights`, those of the `small` model and the `reference.npz` lie. cases: what is asked, {ids,
    new_tokens}: the first is a decode, asked of every placement; the others are first tokens, asked of `step`.
    """
    if lab.block == 0:
        lab.note(release=release, facts=facts(files["small"], placements, seed))
    loaded, known = opened(Path(files["weights"])), dict(np.load(files["reference.npz"]))
    bandwidth = roofline.Probe().bandwidth()
    asked = [(protocol.subject(loaded, parse(name)), 0) for name in placements]
    asked += [(protocol.subject(loaded, parse("step")), case) for case in range(1, len(cases))]
    works = [Workload((tuple(c["ids"]),), c["new_tokens"], len(c["ids"]), seed=seed) for c in cases]

    def tell(who: Subject, case: int, phase: str, order: int) -> None:
        seen, tokens = protocol.timed(who, works[case], 0)
        passed, reason = judged(tokens[:, 0], known, case)
        compiled = phase == "cold"  # a first request may compile
        valid = passed and (seen["valid"] or (compiled and bool(seen["token_times_ns"])))
        why = "; ".join(filter(None, ("" if compiled else seen["reason"], reason)))
        lab.say("trial", {**seen, **lab.identity, "valid": valid, "reason": why, "phase": phase, "order": order,
                          "bandwidth_gbps": bandwidth})  # fmt: skip

    for order, (who, case) in enumerate(shuffled(asked[: len(placements)], seed, lab.block)):
        before = set(map(id, memory.executables()))
        tell(who, case, "cold", order)
        new = [memory.analyse(each) for each in memory.executables() if id(each) not in before]
        sizes = protocol.program_sizes(memory.decode_program(filter(None, new), parse(who.placement).outermost))
        lab.note(release=release, placement=who.placement, sizes=sizes)
    for who, case in asked:
        protocol.warm_up(who, works[case])
    for block in range(blocks):
        for order, (who, case) in enumerate(shuffled(asked, seed, lab.block, block)):
            tell(who, case, "warm", order)


def first_request(lab: Lab, folder: str, case: dict, phase: str) -> None:
    """The first request of `step` in a process that has a persistent cache: `cold` fills it, `cached` finds it."""
    work = Workload((tuple(case["ids"]),), case["new_tokens"], len(case["ids"]))
    who = protocol.subject(opened(Path(folder)), parse("step"))
    seen, _ = protocol.timed(replace(who, name=f"step ({phase} start)"), work, 0)
    fields = dict(valid=bool(seen["token_times_ns"]), reason="", phase=phase, order=0)
    lab.say("trial", {**seen, **lab.identity, **fields})
