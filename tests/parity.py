"""Every family beside transformers and llama.cpp, as a table: `python -m tests.parity --out data/families.csv`.

The models are those of `tests.families`, small and random, at odd sizes; `tests/test_families.py` and
`tests/peers/test_llamacpp.py` bound the same numbers.
"""

import argparse
import csv
import tempfile
from pathlib import Path

import numpy as np

from llama_jax import checkpoint, generate
from llama_jax.checkpoint.tensors import named
from llama_jax.kernels import fused
from llama_jax.placement import LADDER, parse
from llama_jax.plumbing.errors import UserError
from llama_lab.peers import llamacpp
from tests.conftest import continuation, relative_error, same, torch_logits
from tests.families import IN_GGUF, MODELS, made, write_gguf
from tests.peers.test_llamacpp import OF_FAMILIES

READ, PROMPT, NEW = 50, 9, 32  # tokens of a text, of a prompt, of an answer


def row(name: str, folder: Path) -> dict:
    """One model in all ways; an empty cell where there is no such way."""
    theirs = made(name)
    config, params = checkpoint.from_torch(theirs)
    ids = np.random.default_rng(0).integers(3, 97, READ)
    prompt = ids[:PROMPT].tolist()
    engines = {each: generate.bind(config, params, parse(each)) for each in LADDER}
    logits, expected = generate.logits(engines["loop"], ids), continuation(theirs, prompt, NEW)
    answers = {each: generate.answer(engine, [prompt], NEW)[0].token_ids for each, engine in engines.items()}
    found = {
        "model": name,
        "logits' distance from transformers'": f"{relative_error(logits, torch_logits(theirs, ids)):.1e}",
        "placements with its greedy tokens": f"{sum(made == expected for made in answers.values())} of {len(answers)}",
    }
    path, inside = folder / f"{name.replace(', ', '-').replace(' ', '-')}.gguf", ""
    if name in IN_GGUF:
        write_gguf(path, config, named(config, params))
        loaded = checkpoint.load(str(path))
        inside = "the same bits" if same(loaded.params, params) else "OTHERS"
    found["read from GGUF"] = inside
    compared = name in OF_FAMILIES and relative_error(llamacpp.logits(loaded, exact=True)(ids), logits)
    found["logits' distance from llama.cpp's"] = f"{compared:.1e}" if compared else ""
    return found | {"kernels": kernels(config)}


def kernels(config) -> str:
    """Which compute such a model, whose sizes must be multiples of a block's."""
    wide = dict(hidden_size=64, intermediate_size=64, head_dim=16, num_attention_heads=4, num_key_value_heads=2)
    try:
        fused.check(config.__class__(**{**vars(config), **wide}))
    except UserError:
        return "gemv"
    return "gemv, fused"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    out = parser.parse_args().out
    with tempfile.TemporaryDirectory() as folder:
        rows = [row(name, Path(folder)) for name in MODELS]
    with out.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
