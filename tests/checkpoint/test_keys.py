"""Every key and tensor name that the `gguf` library, llama.cpp and transformers know for the families that are read: it
is read, refused with any value that would change the numbers, or changes nothing. Each word is tried on the reader."""

import copy
import re

import pytest
import transformers

from llama_jax.checkpoint import gguf as reader
from llama_jax.checkpoint import huggingface, keys, tensors
from llama_jax.checkpoint.header import Header, Place
from llama_jax.checkpoint.source import Source, Tensor
from llama_jax.config import FAMILIES, RopeScaling, tiny
from llama_jax.plumbing import paths
from llama_jax.plumbing.errors import UserError
from llama_lab.reporting import keys as known
from tests.conftest import SHAPE


def header(family, **changes):
    """A header of a small model, by key behind the architecture or as a whole."""
    cfg, names = tiny(family), reader.architecture_keys(family)
    given = {f"{family}.{name}": getattr(cfg, field, None) for field, name in names.items()}
    fields = {name: value for name, value in given.items() if value is not None}
    vocabulary = {"model": "gpt2", "pre": "gpt-2", "tokens": [f"t{i}" for i in range(cfg.vocab_size)], "merges": []}
    fields |= {"general.architecture": family} | {f"tokenizer.ggml.{key}": value for key, value in vocabulary.items()}
    return Header(fields | changes, {"token_embd.weight": Place((cfg.vocab_size, cfg.hidden_size), 0, 0, 0)})


def read(family, **changes):
    made = header(family, **changes)
    config = reader.read_config("m.gguf", made, {})
    return config, reader.from_gguf(made.metadata, "m.gguf", config.vocab_size)


def odd(verdict):
    """A value that nobody has meant."""
    return 7 if verdict.what == keys.REFUSED else {"odd": 7}


@pytest.mark.parametrize("family", reader.ARCHITECTURES)
def test_each_key_of_a_gguf_header_is_what_the_table_says(family):
    honest, words = read(family), []
    for key in known.gguf_keys(family):
        verdict = reader.verdict(key, family, reader.read_keys(family))
        words.append(verdict.what)
        if key.startswith(("split.", "general.alignment")):
            continue  # read with the file
        if verdict.what == keys.HARMLESS:
            assert verdict.why, key
            assert read(family, **{key: odd(verdict)}) == honest, key
            continue
        for value in {keys.READ: [odd(verdict)], keys.REFUSED: [7, "odd", [0, 7], 0.5, True]}[verdict.what]:
            if value is True and True in verdict.only:
                continue
            with pytest.raises(UserError) as caught:
                read(family, **{key: value})
            name = key.rpartition(".")[2]
            assert reader.OLDER.get(name, name) in str(caught.value), (key, value)
            assert "\n" not in str(caught.value)
        if verdict.what == keys.REFUSED:
            for value in verdict.only:
                value = getattr(honest[0], value[1:]) if str(value).startswith("=") else value
                assert read(family, **{key: value}) == honest, (key, value)
    assert {*words} == {keys.READ, keys.HARMLESS, keys.REFUSED}


def test_unknown_keys_are_refused_where_they_describe_the_architecture_alone():
    assert read("llama", **{"general.new": 1, "mine.at_all": [2], "qwen2.rope.freq_base": 3.0}) == read("llama")
    with pytest.raises(UserError, match=r"llama\.new\.thing is 3 in the header; .* with 0, false or nothing alone"):
        read("llama", **{"llama.new.thing": 3})


def theirs_of(family):
    return transformers.CONFIG_MAPPING[huggingface.MODEL_TYPES.get(family, family)]


def raw(family, **changes):
    """A config.json of a small model."""
    size = SHAPE | ({} if family == "gpt2" else dict(intermediate_size=64, num_key_value_heads=2))
    made = theirs_of(family)(**size).to_dict()
    return {key: value for key, value in (made | changes).items() if value is not ...}


@pytest.mark.parametrize("family", FAMILIES)
def test_each_field_of_a_config_json_is_what_the_table_says(family):
    honest, plain = huggingface.read_config("m", raw(family)), raw(family)
    for key in known.config_keys(family):
        if key == "eos_token_id":  # read with the tokenizer
            continue
        verdict = keys.hf_verdict(key, family, huggingface.read_keys(family))
        assert verdict, f"{key} is in no table"
        if verdict.what == keys.HARMLESS:
            assert verdict.why, key
            assert huggingface.read_config("m", plain | {key: {"odd": 7}}) == honest, key
            continue
        with pytest.raises(UserError, match=key):
            huggingface.read_config("m", plain | {key: {"odd": 7}})
        for value in verdict.only:
            value = plain[value[1:]] if str(value).startswith("=") else value
            assert huggingface.read_config("m", plain | {key: value}) == honest, (key, value)


def test_defaults_are_those_of_transformers():
    for family in FAMILIES:
        ours = huggingface.read_config(
            "m", {k: v for k, v in raw(family).items() if k not in huggingface.DEFAULTS[family]}
        )
        theirs = theirs_of(family)()
        for field, name in huggingface.NAMES[family].items() | {("max_position_embeddings",) * 2}:
            if name in huggingface.DEFAULTS[family] and hasattr(ours, field):
                assert getattr(ours, field) == getattr(theirs, name)
        if ours.positions == "rope":
            assert ours.rope_theta == theirs.rope_parameters.get("full_attention", theirs.rope_parameters)["rope_theta"]
        assert ours.tie_word_embeddings == theirs.tie_word_embeddings


# Tensors ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", reader.ARCHITECTURES)
def test_each_tensor_that_llama_cpp_knows_is_read_or_refused(family):
    """In the parts of a product or norm, and the scales of those that have some."""
    cfg = tiny(family, tie_word_embeddings=False)
    shapes = tensors.shapes(cfg)
    whole = {name: Tensor(shape, lambda: None) for name, shape in shapes.items()}
    names = known.tensor_names(family)
    for name, full in names.items():
        if full is None:
            extra = {reader.hugging_face_name(name, family): Tensor((1,), lambda: None, name=name)}
            with pytest.raises(UserError, match=re.escape(name)):
                tensors.check(Source("m.gguf", cfg, whole | extra, None, None))
    read = {full for full in names.values() if full in shapes}
    assert read == {name for name in shapes if not re.search(r"\.1\.", name)}
    assert {name for name, full in names.items() if full and full not in shapes} <= {*reader.DIVISORS.get(family, ())}
    tensors.check(Source("m.gguf", cfg, whole, None, None))


@pytest.mark.parametrize("name", known.TABLES)
def test_the_document_has_the_tables(name):
    """As `llama-jax report` writes them."""
    begin, end = known.marks(name)
    assert f"{begin}\n{known.TABLES[name]()}\n{end}" in (paths.ROOT / "docs" / "files.md").read_text(encoding="utf-8")


# Given twice --------------------------------------------------------------------------------------------------------

LINEAR_4 = {"type": "linear", "factor": 4}
LINEAR, FIVE = {"rope_type": "linear", "factor": 4.0}, {"rope_type": "default", "rope_theta": 5e5}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (dict(rope_parameters=FIVE, rope_scaling={"type": "linear", "factor": 4.0}), "rope_parameters .*rope_scaling"),
        (dict(rope_parameters=FIVE, rope_theta=1e4), r"rope_parameters.rope_theta is 500000.* rope_theta is 10000"),
        (dict(rope_parameters=FIVE, rope_scaling={"rope_theta": 1e6}), "rope_parameters.rope_theta.*rope_scaling.rope"),
        (dict(rope_parameters=LINEAR, rope_scaling=LINEAR | {"factor": 8.0}), "contradict each other"),
        (dict(rope_parameters=LINEAR | {"type": "llama3"}), "rope_type is 'linear' and type is 'llama3'"),
        (dict(rope_parameters={"factor": 4.0}), "'default' has no factor, which is 4.0"),
        (dict(rope_parameters=LINEAR | {"attention_factor": 2.0}), "'linear' has no attention_factor"),
        (dict(rope_parameters=LINEAR | {"partial_rotary_factor": 0.5}), "has no partial_rotary_factor"),
        (dict(rope_parameters={"full_attention": FIVE, "sliding_attention": FIVE}), "has no (full|sliding)_attention"),
        (dict(rope_parameters={"sliding_attention": FIVE}), "has no sliding_attention"),
        (dict(layer_types=["full_attention", "sliding_attention"]), "layer_types is"),
        (dict(partial_rotary_factor=0.5), "partial_rotary_factor is 0.5"),
        (dict(sliding_window=16, use_sliding_window=True), "use_sliding_window is True|sliding_window is 16"),
    ],
)
@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_settings_that_contradict_each_other_are_named(family, changes, words):
    with pytest.raises(UserError, match=words) as caught:
        huggingface.read_config("m", raw(family, rope_parameters=...) | changes)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "theta", "scaling"),
    [
        ({}, 1e4, None),
        (dict(rope_theta=5e5), 5e5, None),
        (dict(rope_theta=500000, rope_parameters=FIVE), 5e5, None),
        (dict(rope_parameters=FIVE, rope_scaling=None), 5e5, None),
        (dict(rope_parameters=FIVE | LINEAR, rope_scaling=LINEAR_4), 5e5, RopeScaling("linear", 4)),
        (dict(rope_parameters={}, rope_scaling=LINEAR, rope_theta=5e5), 5e5, RopeScaling("linear", 4)),
        (dict(rope_parameters={"full_attention": FIVE}), 5e5, None),
        (dict(rope_parameters={"full_attention": FIVE | LINEAR}), 5e5, RopeScaling("linear", 4)),
        (dict(rope_parameters=FIVE | {"partial_rotary_factor": 1.0}), 5e5, None),
        (dict(rope_parameters=LINEAR | {"factor": 1.0}), 1e4, None),
    ],
)  # fmt: skip
def test_settings_that_agree_are_read_wherever_they_stand(changes, theta, scaling):
    config = huggingface.read_config("m", raw("llama", rope_parameters=...) | changes)
    assert (config.rope_theta, config.rope_scaling) == (theta, scaling)
    lost = "full_attention" in changes.get("rope_parameters", {}) or changes.get("rope_scaling") is LINEAR_4
    if not lost:  # transformers passes the base over there
        theirs = transformers.LlamaConfig(**raw("llama", rope_parameters=...) | copy.deepcopy(changes)).rope_parameters
        assert (theirs["rope_theta"], theirs.get("factor", 1.0)) == (theta, scaling.factor if scaling else 1.0)


def test_gpt2s_sizes_have_two_names():
    plain = raw("gpt2")
    usual = {"hidden_size": plain["n_embd"], "num_attention_heads": plain["n_head"]}
    without = {key: value for key, value in plain.items() if key not in ("n_embd", "n_head")}
    assert huggingface.read_config("m", without | usual) == huggingface.read_config("m", plain | usual)
    with pytest.raises(UserError, match="hidden_size is 64 and n_embd is 32; they contradict"):
        huggingface.read_config("m", plain | {"hidden_size": 64})


ROPE = "llama.rope."


@pytest.mark.parametrize(
    ("changes", "scaling"),
    [
        ({"scaling.factor": 4.0}, RopeScaling("linear", 4.0)),
        ({"scale_linear": 4.0}, RopeScaling("linear", 4.0)),
        ({"scaling.factor": 4.0, "scale_linear": 4.0}, RopeScaling("linear", 4.0)),
        ({"scaling.type": "linear", "scale_linear": 2.0}, RopeScaling("linear", 2.0)),
        ({"scaling.type": "none", "scaling.factor": 4.0}, None),
        ({"scaling.factor": 0.0}, None),
        ({"scaling.factor": 1.0}, None),
    ],
)
def test_rotary_scaling_of_a_header_is_llama_cpps(changes, scaling):
    assert read("llama", **{ROPE + key: value for key, value in changes.items()})[0].rope_scaling == scaling


@pytest.mark.parametrize(
    ("within", "changes", "words"),
    [
        (ROPE, {"scaling.factor": 4.0, "scale_linear": 2.0}, "rope.scaling.factor is 4.0 and rope.scale_linear 2.0"),
        (ROPE, {"scaling.type": "yarn", "scaling.factor": 4.0}, "type is 'yarn'"),
        (ROPE, {"scaling.factor": 4.0, "scaling.attn_factor": 2.0}, "attn_factor is 2.0"),
        (ROPE, {"scaling.factor": -1.0}, "factor is -1.0"),
        ("gemma3.attention.", {"sliding_window_pattern": [True]}, "period has 1 layers|sliding_window_pattern"),
        ("gemma3.attention.", {"sliding_window": -1}, "sliding_window is -1"),
        ("gemma3.", {"final_logit_softcapping": 30.0}, "final_logit_softcapping is 30.0"),
    ],
)
def test_what_a_header_says_and_is_not_known_is_named(within, changes, words):
    with pytest.raises(UserError, match=words):
        read(within.partition(".")[0], **{within + key: value for key, value in changes.items()})


LONG = dict(rope_type="longrope", short_factor=[1.0] * 4, long_factor=[2.0] * 4, rope_theta=1e4)
KINDS = ["full_attention", "sliding_attention"]


@pytest.mark.parametrize(
    ("family", "changes", "words"),
    [
        ("gemma3", dict(layer_types=[*KINDS, "full_attention"]), "layer_types has 3 layers, the model 2"),
        ("gemma3", dict(layer_types=["chunked_attention"] * 2), "layer_types"),
        ("gemma3", dict(rope_parameters=dict(full_attention=FIVE, sliding_attention=LINEAR)), "'linear'; local layers"),
        ("gemma3", dict(rope_local_base_freq=5.0), "contradict each other"),
        ("smollm3", dict(no_rope_layers=[1]), "no_rope_layers has 1 of 2 layers"),
        ("smollm3", dict(no_rope_layers=[1, 2]), "no_rope_layers"),
        ("mistral", dict(sliding_window=0), "sliding_window is 0"),
        ("mistral", dict(layer_types=KINDS), "layer_types"),
        ("phi3", dict(rope_parameters=LONG | dict(short_factor=[1.0])), "short_factor has 1 divisors, not 4"),
        ("phi3", dict(rope_parameters={"rope_type": "longrope"}), "'longrope' has no short_factor"),
        ("phi3", dict(rope_parameters={"rope_type": "llama3", "factor": 8.0}), "needs a low_freq_factor"),
        ("phi3", dict(rope_parameters=FIVE, partial_rotary_factor=0.1), "0 numbers of a head of 8"),
        ("phi3", dict(rope_parameters=FIVE | {"partial_rotary_factor": 0.5}, partial_rotary_factor=0.75), "contradict"),
        ("qwen3", dict(rope_parameters={"rope_type": "yarn", "factor": 4.0}), "yarn"),
    ],
)
def test_features_that_do_not_fit_are_named(family, changes, words):
    with pytest.raises(UserError, match=words) as caught:
        huggingface.read_config("m", raw(family) | changes)
    assert "\n" not in str(caught.value)


def test_a_header_may_say_which_layers_are_local():
    for pattern in ([True, False], 2):
        assert read("gemma3", **{"gemma3.attention.sliding_window_pattern": pattern})[0].local_layers == (0,)
