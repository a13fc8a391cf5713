import jax
import pytest
from transformers import LlamaConfig, LlamaForCausalLM

from llama_jax import config
from llama_jax.checkpoint.tensors import shapes
from tests.conftest import LLAMA_SHAPE


@pytest.mark.parametrize("tied", [True, False])
def test_parameter_count_equals_transformers(tied):
    model = LlamaForCausalLM(LlamaConfig(**LLAMA_SHAPE | dict(tie_word_embeddings=tied)))
    assert config.tiny(tie_word_embeddings=tied).num_parameters == sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("smollm2-135m", 0.1345),
        ("smollm2-360m", 0.3618),
        ("smollm2-1.7b", 1.7114),
        ("llama-2-7b", 6.7384),
        ("llama-3.2-1b", 1.2358),
        ("llama-3.2-3b", 3.2127),
        ("qwen2.5-0.5b", 0.4940),
        ("qwen2.5-1.5b", 1.5437),
        ("qwen2.5-7b", 7.6156),
        ("gpt2", 0.124440),
        ("gpt2-medium", 0.354823),
        ("gpt2-large", 0.774030),
        ("gpt2-xl", 1.557611),
        ("qwen3-0.6b", 0.596050),
        ("qwen3-1.7b", 1.720575),
        ("gemma-3-270m", 0.268098),
        ("gemma-3-1b", 0.999886),
        ("mistral-7b-v0.3", 7.248024),
        ("smollm3-3b", 3.075099),
        ("phi-4-mini", 3.836022),
    ],
)
def test_presets_have_the_published_sizes(name, billions):
    assert config.PRESETS[name].num_parameters / 1e9 == pytest.approx(billions, rel=1e-3)


@pytest.mark.parametrize("family", config.FAMILIES)
def test_shapes_cover_every_parameter(family):
    cfg = config.tiny(family, tie_word_embeddings=family == "gpt2")
    sizes = [s[0] * (s[1] if len(s) == 2 else 1) for s in shapes(cfg).values()]
    assert sum(sizes) == cfg.num_parameters


def test_a_configuration_is_static():
    cfg = config.tiny()
    assert jax.tree.leaves(cfg) == []
    assert hash(cfg) == hash(config.tiny())
