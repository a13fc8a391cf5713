"""What a KV cache buys, really measured through the runner on small models: every type of cache gets into the
figure."""

import pytest

from llama_jax import kvc
from llama_lab.bench import record
from llama_lab.experiments.kv_cache.measure import TYPES

SIZES = "num_hidden_layers=1,hidden_size=64,intermediate_size=128,num_attention_heads=4,head_dim=16,vocab_size=97"
SMALL = dict(
    model=f"random:smollm2-135m,num_key_value_heads=2,{SIZES}",
    shapes=f"random:gpt2,num_key_value_heads=4,{SIZES}",
    contexts=[8, 16],
    new_tokens=3,
    blocks=1,
    case_blocks=1,
    type_blocks=2,
    type_context=40,
)


@pytest.mark.slow
def test_measured_with_every_type_of_cache(measured, tmp_path):
    measured("05", SMALL)
    trials, meta = record.read(tmp_path / "data" / "05-kv-cache.csv")
    assert all(t.valid for t in trials), [t.reason for t in trials]
    assert {entry["kv"] for entry in meta["quality"]} == set(kvc.DTYPES)
    assert {t.subject for t in trials if t.run == "types"} > set(TYPES)
