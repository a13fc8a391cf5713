"""Run by test_sharding.py with four virtual devices: for each family and mesh, how far from one device, and what each
device holds."""

import json
import re
import sys

import jax
import numpy as np

import llama_jax as ll
from llama_jax import config
from llama_lab.activations import sharding
from llama_lab.activations.program import Extractor
from llama_lab.activations.spec import OF_A_LAYER, ActivationSpec
from llama_lab.bench import Guard
from tests.conftest import build, relative_error

SPECS = {
    "all": ActivationSpec(
        (*((name, "all") for name in OF_A_LAYER), ("ln_final", None), ("logits", None)), dtype="float32"
    ),
    "last": ActivationSpec((("resid_post", (0, 1)),), positions=(0, -1), dtype="float32"),
}


def measured(checkpoint, spec, examples, grid) -> dict:
    single = Extractor(checkpoint, spec, (4, 16))(examples)
    extractor = Extractor(checkpoint, spec, (4, 16), mesh=grid)
    with Guard() as guard:
        found = extractor(examples)
    weights = {
        jax.tree_util.keystr(path): (weight.shape, sorted({shard.data.shape for shard in weight.addressable_shards}))
        for path, weight in jax.tree_util.tree_leaves_with_path(extractor.params)
    }
    sizes = re.findall(r"= \w+\[([\d,]+)\]\S* all-gather", extractor.executable.as_text())
    outputs = [
        list(value.sharding.spec)
        for value in jax.tree.leaves(extractor.dispatch(extractor.plan(0, 0, examples).batches[0]))
    ]
    return {
        "errors": {name: relative_error(found[name], single[name]) for name in extractor.row_shapes},
        "labels": all(
            np.array_equal(found[name], single[name]) for name in ("token", "example", "segment", "position")
        ),
        "compilations": extractor.compilations + guard.compilations,
        "weights": weights,
        "outputs": outputs,
        "gathered": [[int(n) for n in each.split(",")] for each in sizes],
    }


def main(family: str) -> None:
    shape = config.tiny(
        family, vocab_size=120, hidden_size=48, intermediate_size=72, num_attention_heads=4, head_dim=12
    )
    checkpoint = ll.Checkpoint(family, shape, build(shape), None, "", "random:", "float32")
    random = np.random.default_rng(0)
    examples = [random.integers(0, 120, n).tolist() for n in (5, 17, 16, 3, 9, 40, 2)]
    found = {}
    for data, tensor in ((4, 1), (2, 2), (1, 4)):
        for name, spec in SPECS.items():
            found[f"{data}x{tensor} {name}"] = measured(checkpoint, spec, examples, sharding.mesh(data, tensor))
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1])
