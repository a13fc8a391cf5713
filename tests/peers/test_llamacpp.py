"""llama.cpp on our GGUF files: the same logits, to rounding in float32 and within 8-bit activations on quantised
files."""

import importlib.util
import os
import types
from dataclasses import replace

import numpy as np
import pytest

from llama_jax import checkpoint, config, generate
from llama_jax.checkpoint.tensors import named
from llama_lab import peers
from llama_lab.bench import passages, protocol
from llama_lab.bench.workload import Workload
from llama_lab.peers import llamacpp
from tests import conftest, test_families
from tests.checkpoint import test_gguf
from tests.cli.test_cli import last_json
from tests.conftest import relative_error

EXACT = 1e-4  # float32 on both sides: rounding alone; some 1e-6 was seen
GELU = 1e-3  # ggml reads GPT-2's GELU from a table of f16 values; some 3e-4 was seen
ROUNDED = 5e-3  # the measured attention rounds keys and values to f16; some 7e-4 was seen
# On quantised files llama.cpp rounds each block of 32 activations to 8 bits before every product, an error of up to
# 1/254 of the block's
# largest. Over the 30 layers of the packaged model that came to 2.1 % of the logits on English text; RoPE's base wrong
# by a factor
# of ten is 11 %. The bound leaves room for other processors, which order the products otherwise.
QUANTISED = 0.05
NAMES = ("llamacpp", "llamacpp+generate")

here = pytest.mark.peers


@pytest.fixture(autouse=True)
def _one_thread(monkeypatch, tmp_path):
    """Its threads wait for each other by spinning, which takes for ever on cores that other tests use; one waits for
    none."""
    monkeypatch.setattr(llamacpp, "allowed_cores", lambda: [0])
    monkeypatch.setenv("LLAMA_JAX_CACHE", str(tmp_path / "cache"))


def written(folder, kind):
    """A small random checkpoint in a GGUF file of its family, or of Llama in a type."""
    path = folder / f"{kind.replace(', ', '-')}.gguf"
    if kind in test_families.MODELS:
        cfg, params = checkpoint.from_torch(test_families.made(kind))
        test_families.write_gguf(path, cfg, named(cfg, params))
    else:
        test_gguf.write(path, kind)
    return checkpoint.load(str(path))


def ours(loaded, ids):
    return np.asarray(generate.logits(generate.build(loaded, "step"), ids))


def some_ids(loaded, count=40):
    return np.random.default_rng(0).integers(3, loaded.config.vocab_size, count).tolist()


def answer(loaded, name, work, prompt=0):
    who = peers.subject(loaded, name)
    return np.concatenate(list(who.run(who.encode(work.prompts[prompt]), work)))


@here
@pytest.mark.parametrize("kind", ["F32", "qwen2", "qwen2, untied", "gpt2"])
def test_logits_in_float32_equal_ours(tmp_path, kind):
    loaded = written(tmp_path, kind)
    ids = some_ids(loaded)
    expected = ours(loaded, ids)
    assert relative_error(llamacpp.logits(loaded, exact=True)(ids), expected) <= (GELU if kind == "gpt2" else EXACT)
    assert relative_error(llamacpp.logits(loaded)(ids), expected) <= ROUNDED


@here
def test_the_comparison_finds_a_wrong_weight_and_a_wrong_rope(tmp_path):
    loaded = written(tmp_path, "F32")
    ids = some_ids(loaded)
    theirs = llamacpp.logits(loaded, exact=True)(ids)
    turned = replace(loaded, config=replace(loaded.config, rope_theta=5_000.0))
    assert relative_error(theirs, ours(turned, ids)) > EXACT
    layer = loaded.params.layers[1]
    other = replace(layer, ffn=replace(layer.ffn, down=layer.ffn.down.at[0, 0].add(1.0)))
    changed = replace(loaded, params=replace(loaded.params, layers=(loaded.params.layers[0], other)))
    assert relative_error(theirs, ours(changed, ids)) > EXACT


@here
@pytest.mark.parametrize("kind", ["F16", "Q4_0"])
def test_files_of_other_types_run_and_name_themselves(tmp_path, kind):
    loaded = written(tmp_path, kind)
    ids = some_ids(loaded)
    assert relative_error(llamacpp.logits(loaded)(ids), ours(loaded, ids)) <= QUANTISED
    known = peers.subject(loaded, "llamacpp").identity
    assert known["quantisation"] == f"gguf-{kind.lower()}"
    assert known["weight_bytes"] == pytest.approx({"F16": 2.0, "Q4_0": 18 / 32}[kind], rel=0.05)  # norms are float32
    assert known["cache_bytes"] == 2


@here
def test_both_ways_make_the_greedy_tokens_and_the_same_again(tmp_path):
    loaded = written(tmp_path, "F32")
    ids = tuple(some_ids(loaded, 20))
    work = Workload((ids, (*ids[:15], 9, 8, 7)), new_tokens=8, length=32)  # two prompts that start alike
    reference = protocol.Reference(loaded, work)
    for name in NAMES:
        first, second = answer(loaded, name, work), answer(loaded, name, work, 1)
        assert first.shape == (8, 1)
        assert np.array_equal(first[:, 0], reference.tokens(0))
        assert np.array_equal(second[:, 0], reference.tokens(1))
        who = peers.subject(loaded, name)  # one subject, asked alternately: nothing of a request is left for the next
        for prompt in (0, 1, 0, 0, 1):
            again = np.concatenate(list(who.run(work.prompts[prompt], work)))
            assert np.array_equal(again, (first, second)[prompt])


@here
@pytest.mark.parametrize("name", NAMES)
def test_no_request_reuses_what_another_computed(tmp_path, monkeypatch, name):
    """Every token of every prompt is handed to `llama_decode`, also where the prompt was the last one."""
    import llama_cpp

    loaded = written(tmp_path, "F32")
    work, counted = Workload((tuple(some_ids(loaded, 20)),), new_tokens=4, length=32), []
    who = peers.subject(loaded, name)
    decode = llama_cpp.llama_decode

    def counting(context, batch):
        counted.append(batch.n_tokens)
        return decode(context, batch)

    for module in (llama_cpp, llama_cpp.llama_cpp):
        monkeypatch.setattr(module, "llama_decode", counting)
    for _ in range(2):
        counted.clear()
        list(who.run(work.prompts[0], work))
        assert counted == [20, 1, 1, 1]  # the prompt as one batch; the last token is not run through the model


@here
def test_rows_of_a_batch_equal_one_row(tmp_path):
    loaded = written(tmp_path, "F32")
    work = Workload((tuple(some_ids(loaded, 20)),), new_tokens=8, length=32)
    single = answer(loaded, "llamacpp", work)
    rows = answer(loaded, "llamacpp", replace(work, batch=3))
    assert rows.shape == (8, 3)
    assert np.array_equal(rows, np.repeat(single, 3, axis=1))
    record, _ = protocol.trial(
        peers.subject(loaded, "llamacpp+generate"),
        replace(work, batch=2),
        0,
        run="",
        block=0,
        order=0,
        process=0,
        phase="warm",
    )
    assert not record.valid
    assert "makes one row, 2 were asked for" in record.reason


@here
def test_a_prompt_longer_than_a_call_runs_in_several(tmp_path, monkeypatch):
    loaded = written(tmp_path, "F32")
    work = Workload((tuple(some_ids(loaded, 20)),), new_tokens=4, length=32, batch=2)
    whole = answer(loaded, "llamacpp", work)
    monkeypatch.setattr(llamacpp, "BATCH", 7)
    assert np.array_equal(answer(loaded, "llamacpp", work), whole)
    monkeypatch.setattr(llamacpp, "MICRO_BATCH", 7)
    assert len(llamacpp.logits(loaded)(work.prompts[0])) == 20


@here
def test_threads_are_the_cores_that_we_may_use_and_flash_attention_is_on(tmp_path, monkeypatch):
    loaded, said = written(tmp_path, "F32"), []
    monkeypatch.undo()
    llama = llamacpp.library()
    made = llama.llama_init_from_model
    monkeypatch.setattr(
        llama, "llama_init_from_model", lambda model, settings: said.append(settings) or made(model, settings)
    )
    context = peers.subject(loaded, "llamacpp").run.__self__.room(2048, 1)
    cores = len(os.sched_getaffinity(0))
    assert (llama.llama_n_threads(context.pointer), llama.llama_n_threads_batch(context.pointer)) == (cores, cores)
    assert (llama.llama_n_batch(context.pointer), llama.llama_n_ubatch(context.pointer)) == (2048, 512)  # llama-bench's
    assert said[0].flash_attn_type == llama.LLAMA_FLASH_ATTN_TYPE_ENABLED
    assert said[0].type_k == said[0].type_v == llama.GGML_TYPE_F16
    model = peers.subject(loaded, "llamacpp+generate").run.__self__.room(64)
    assert (model.n_threads, model.n_threads_batch) == (cores, cores)
    assert model.context_params.flash_attn_type == llama.LLAMA_FLASH_ATTN_TYPE_ENABLED


@here
def test_the_context_is_made_once_for_requests_that_fit(tmp_path):
    loaded = written(tmp_path, "F32")
    bare = peers.subject(loaded, "llamacpp").run.__self__
    large = bare.room(128, 1)
    assert bare.room(64, 1) is large
    assert bare.room(256, 1) is not large
    assert bare.room(64, 2).rows == 2


@here
def test_a_file_that_llama_cpp_refuses_is_a_gap_with_its_own_words(tmp_path):
    loaded = written(tmp_path, "F32")
    path = tmp_path / "F32.gguf"
    raw = path.read_bytes().replace(b"smollm", b"nobody")  # a way to split texts that it does not know
    path.write_bytes(raw)
    with pytest.raises(peers.UnavailableError, match="nobody"):
        peers.subject(loaded, "llamacpp")


def test_other_weights_than_a_gguf_file_are_a_gap(monkeypatch, tmp_path):
    monkeypatch.setattr(llamacpp, "find_spec", lambda name: object())
    for model in ("random:gpt2", str(tmp_path)):
        gap = peers.missing(["llamacpp"], model)[0]
        assert model in gap["reason"]
        assert ".gguf" in gap["remedy"]
    cfg = config.tiny()
    with pytest.raises(peers.UnavailableError, match="random:tiny is none"):
        peers.subject(checkpoint.Checkpoint("m", cfg, None, None, "", "random:tiny", "float32"), "llamacpp")


@pytest.mark.parametrize(
    ("built", "required", "skipped"), [(False, "", True), (True, "", False), (False, "required", False)]
)
def test_tests_of_llama_cpp_are_skipped_only_where_it_may_be_absent(monkeypatch, built, required, skipped):
    marks = []
    item = types.SimpleNamespace(get_closest_marker=lambda name: name == "peers", add_marker=marks.append)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object() if built else None)
    monkeypatch.setenv("LLAMA_JAX_PEERS", required)
    conftest.skip_what_is_not_built([item])
    assert [mark.name for mark in marks] == (["skip"] if skipped else [])
    assert all("make peers" in mark.kwargs["reason"] for mark in marks)


@here
@pytest.mark.slow
def test_the_packaged_models_logits_and_tokens_agree_within_its_rounding(packaged, record_property):
    ids = passages.english(packaged, 200)
    theirs, expected = llamacpp.logits(packaged)(ids), ours(packaged, ids)
    error, agree = relative_error(theirs, expected), float((theirs.argmax(1) == expected.argmax(1)).mean())
    record_property("relative_error", float(error))
    record_property("top1_agreement", float(agree))
    print(f"relative error {error:.4f}, top-1 agreement {agree:.3f}")
    assert error <= QUANTISED
    assert agree >= 0.9
    turned = replace(packaged, config=replace(packaged.config, rope_theta=10_000.0))
    wrong = ours(turned, ids)  # a wrong RoPE does not pass for rounding
    assert relative_error(theirs, wrong) > QUANTISED
    assert (theirs.argmax(1) == wrong.argmax(1)).mean() < 0.9


@here
@pytest.mark.slow
def test_both_ways_make_the_same_tokens_of_the_packaged_model(packaged):
    work = Workload(
        ("<|im_start|>user\nWhy is the sky blue?<|im_end|>\n<|im_start|>assistant\n",), new_tokens=16, length=32
    )
    bare, high = (answer(packaged, name, work) for name in NAMES)
    assert np.array_equal(bare, high)
    record, tokens = protocol.trial(
        peers.subject(packaged, "llamacpp"), work, 0, run="", block=0, order=0, process=0, phase="warm"
    )
    judged = protocol.Reference(packaged, work).judge(record, tokens)
    assert judged.valid
    assert judged.quantisation == "gguf-q4_1"
    assert judged.reason == "" or "parts from float32 at token" in judged.reason


@here
@pytest.mark.slow
def test_bench_measures_llama_cpp_beside_a_placement(call, tmp_path, monkeypatch):
    monkeypatch.setattr(protocol.tempfile, "gettempdir", lambda: str(tmp_path))
    code, out, err = call(
        "bench",
        "--placements",
        "step",
        "--peers",
        ",".join(NAMES),
        "--prompt-tokens",
        "8",
        "--new-tokens",
        "4",
        "--blocks",
        "1",
        "--threads",
        "1",
        "--json",
    )
    assert code == 0, err
    found = {s["name"]: s for s in last_json(out)["subjects"]}
    assert set(NAMES) < set(found)
    assert last_json(out)["missing"] == []
    for name in NAMES:
        assert found[name]["approximate"]
        assert found[name]["tokens_per_second"]
        assert found[name]["compile"]["processes"] == 1  # its first request, in a process of its own
