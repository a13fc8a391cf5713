"""Answers that models sample under schemas of many kinds, each judged by `jsonschema`:
`python -m tests.grammars.sampled --out data/structured-answers.csv`, some minutes.

The packaged model, and a small random one with the same tokenizer, which writes what no trained one would. Each schema
is asked several times in one batch; every answer has a seed of its own. Schemas that have a table are followed inside
the compiled loop, others by the host.
"""

from __future__ import annotations

import argparse
import collections
import csv
import itertools
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import jsonschema

import llama_jax as ll
from llama_jax import checkpoint, config, generate, prompts
from llama_jax.checkpoint import Checkpoint
from llama_jax.generate import Answer
from llama_jax.grammars import Grammar
from llama_jax.sampling import Sampler
from tests.conftest import build
from tests.grammars.examples import SCHEMAS

TOKENS, LENGTH = 128, 64  # of an answer at most; of a prompt, with padding
TIMES = 10, 40  # answers to a schema, of the packaged model and of the random one
PLACEMENTS = {"table": "loop+scan", "host": "step+scan"}
FORMATS = jsonschema.Draft202012Validator.FORMAT_CHECKER  # `FormatChecker()` reads times as draft 3 does


def valid(schema: dict | str, text: str) -> bool:
    """Whether a text is JSON that a schema allows, formats included; "json": any object."""
    schema = dict(type="object") if schema == "json" else schema
    try:
        value = json.loads(text)
    except ValueError:
        return False
    return jsonschema.Draft202012Validator(schema, format_checker=FORMATS).is_valid(value)


def alive(grammar: Grammar, ids: Sequence[int]) -> bool:
    """Whether tokens begin an answer that can go on."""
    walker = grammar.host()
    try:
        for token in ids:
            walker.advance(token)
    except ValueError:
        return False
    return bool(walker.mask().any())


def verdict(schema: dict | str, grammar: Grammar, answer: Answer, tokenizer) -> str:
    """What came of an answer: "valid" or "invalid" where it ended by itself, "cut" or "dead" where it did not."""
    if answer.finish_reason == "length":
        return "cut" if alive(grammar, answer.token_ids) else "dead"
    return "valid" if valid(schema, tokenizer.decode(answer.token_ids)) else "invalid"


def random_model(packaged: Checkpoint) -> Checkpoint:
    """A small random model with the packaged tokenizer."""
    cfg = config.tiny(vocab_size=packaged.config.vocab_size, max_position_embeddings=512)
    name = "a small random model"
    return checkpoint.Checkpoint(name, cfg, build(cfg), packaged.tokenizer, "0" * 64, "random:tiny", "float32")


def row(loaded: Checkpoint, engines: dict, name: str, grammar: Grammar, seeds: Sequence[int]) -> dict:
    """A model's answers under a schema, as many as there are seeds. engines: by the way a grammar is followed."""
    way, tokenizer = "host" if grammar.table is None else "table", loaded.tokenizer
    pool = itertools.cycle(prompts.as_chat(tokenizer, prompts.load()))
    asked = [tokenizer.encode(next(pool), allow_special_tokens=True) for _ in seeds]
    answers = generate.answer(
        engines[way], asked, TOKENS, stop=tokenizer.stop, sampler=Sampler(temperature=1.0), seeds=seeds,
        grammar=grammar, length=LENGTH, slots=LENGTH + TOKENS,
    )  # fmt: skip
    told = [verdict(SCHEMAS[name], grammar, answer, tokenizer) for answer in answers]
    for answer, found in zip(answers, told, strict=True):
        if found in ("invalid", "dead"):
            print(f"{name}: {found}: {tokenizer.decode(answer.token_ids)!r}", file=sys.stderr)
    counts = collections.Counter(told)
    return dict(schema=name, model=loaded.name, followed=way, answers=len(answers)) | {
        each: counts[each] for each in ("valid", "invalid", "cut", "dead")
    }


def rows(models: Sequence[tuple[Checkpoint, int]], names: Sequence[str], told=lambda row: None) -> list[dict]:
    """models: of one tokenizer, each with how many answers it gives to a schema."""
    found, number = [], 0
    made = [
        (loaded, times, {way: generate.build(loaded, placement) for way, placement in PLACEMENTS.items()})
        for loaded, times in models
    ]
    for name in names:
        grammar = ll.grammar(SCHEMAS[name], made[0][0])
        for loaded, times, engines in made:
            found.append(row(loaded, engines, name, grammar, range(number, number + times)))
            number += times
            told(found[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    out, packaged = parser.parse_args().out, ll.load()
    models = list(zip((packaged, random_model(packaged)), TIMES, strict=True))
    found = rows(models, [*SCHEMAS], told=lambda row: print(*row.values(), flush=True))
    with out.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, found[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(found)
    sys.exit(any(row["invalid"] or row["dead"] for row in found))


if __name__ == "__main__":
    main()
