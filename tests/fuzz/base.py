"""Honest inputs, small and made here, which the campaign then damages: a model in both layouts, sources, a store,
tables, a report's folder, a notebook. `python -m tests.fuzz.base FOLDER` makes them, in a process of its own.
"""

import json
import sys
from pathlib import Path

import gguf
import nbformat
import numpy as np
import pyarrow
import safetensors.numpy
import tokenizers
from pyarrow import parquet
from tokenizers import decoders, models, pre_tokenizers

from llama_jax import checkpoint, config
from llama_jax.checkpoint import gguf as reader
from llama_jax.checkpoint import random
from llama_lab.activations import ActivationSpec, Extractor, extract
from llama_lab.bench import SCHEMA, record
from llama_lab.bench.journal import Journal
from llama_lab.figures import style

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TOKENS = [*SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet()), "ab", "abc"]
MERGES = [("a", "b"), ("ab", "c")]
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CONFIG = config.tiny(vocab_size=len(TOKENS))
GGUF_NAMES = {v: k for names in (reader.LAYER_NAMES, reader.GLOBAL_NAMES) for k, v in names.items()}
TEXTS = ["The sky is blue.", "abc abc", "Water boils at a lower temperature on a mountain.", "x"] * 3

FIELDS = {  # a GGUF header: key, value
    "general.architecture": "llama", "llama.block_count": 2, "llama.context_length": 256, "llama.embedding_length": 32,
    "llama.feed_forward_length": 64, "llama.attention.head_count": 4, "llama.attention.head_count_kv": 2,
    "llama.attention.key_length": 8, "llama.rope.dimension_count": 8, "llama.rope.freq_base": 10000.0,
    "llama.attention.layer_norm_rms_epsilon": 1e-5, "llama.rope.scaling.type": "linear",
    "llama.rope.scaling.factor": 2.0, "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "smollm",
    "tokenizer.ggml.tokens": TOKENS, "tokenizer.ggml.token_type": [3] * 3 + [1] * (len(TOKENS) - 3),
    "tokenizer.ggml.merges": [" ".join(pair) for pair in MERGES], "tokenizer.ggml.bos_token_id": 1,
    "tokenizer.ggml.eos_token_id": 2, "tokenizer.ggml.add_bos_token": False, "tokenizer.chat_template": TEMPLATE,
}  # fmt: skip
HUGGING_FACE = {
    "model_type": "llama", "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "vocab_size": len(TOKENS), "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0, "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
    "high_freq_factor": 4.0, "original_max_position_embeddings": 128}, "max_position_embeddings": 256,
    "tie_word_embeddings": True, "attention_bias": False, "mlp_bias": False, "hidden_act": "silu", "eos_token_id": 2,
}  # fmt: skip
TOKENIZER_CONFIG = {"bos_token": "<|im_start|>", "eos_token": {"content": "<|im_end|>"}, "chat_template": TEMPLATE}
GENERATION_CONFIG = {"eos_token_id": [2, 0], "bos_token_id": 1}


def write_gguf(path: Path, fields: dict) -> None:
    """A GGUF file of these fields and the tiny model's tensors. Raises whatever the library does for a value that no
    GGUF can hold."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.kv_data[0].clear()
    kinds = gguf.GGUFValueType
    for key, value in fields.items():
        if value is None:
            continue
        first = value[0] if isinstance(value, list) and value else value
        if isinstance(value, int) and not isinstance(value, bool):
            kind = kinds.UINT32 if 0 <= value < 2**32 else kinds.INT64 if value < 2**63 else kinds.UINT64
        else:
            kind = kinds.get_type(value)
        sub = kinds.get_type(first) if isinstance(value, list) and value else None
        writer.add_key_value(key, value, kind, sub)
    for name, tensor in random.open_random(CONFIG, 0).tensors.items():
        writer.add_tensor(gguf_name(name), np.asarray(tensor.read()))
    finish(writer)


def finish(writer: gguf.GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def gguf_name(name: str) -> str:
    """A tensor's name in a GGUF file."""
    stem, _, suffix = name.rpartition(".")
    if stem.startswith("model.layers."):
        _, _, layer, part = stem.split(".", 3)
        return f"blk.{layer}.{GGUF_NAMES[part]}.{suffix}"
    return f"{GGUF_NAMES[stem]}.{suffix}"


def write_folder(folder: Path) -> None:
    """The same model as Hugging Face lays it out."""
    folder.mkdir(parents=True)
    tensors = {name: np.asarray(tensor.read()) for name, tensor in random.open_random(CONFIG, 0).tensors.items()}
    safetensors.numpy.save_file(tensors, folder / "model.safetensors")
    vocabulary = {token: i for i, token in enumerate(TOKENS)}
    backend = tokenizers.Tokenizer(models.BPE(vocabulary, MERGES))
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    backend.add_special_tokens(SPECIAL)
    backend.save(str(folder / "tokenizer.json"))
    index = {"metadata": {}, "weight_map": dict.fromkeys(tensors, "model.safetensors")}
    for name, document in (("config", HUGGING_FACE), ("tokenizer_config", TOKENIZER_CONFIG),
                           ("generation_config", GENERATION_CONFIG), ("model.safetensors.index", index)):  # fmt: skip
        (folder / f"{name}.json").write_text(json.dumps(document))


def trial(block: int, subject: str, times: list[int]) -> record.Trial:
    return record.Trial(
        schema_version=SCHEMA, run="a", block=block, order=0, process=block % 2, seed=0, phase="warm", valid=True,
        subject=subject, backend="jax", placement=subject, model="tiny", weights_hash="ab", dtype="float32", batch=1,
        prompt=0, prompt_tokens=8, new_tokens=len(times), cache_slots=16, token_times_ns=times, tokenize_ns=5,
        trace_ns=0, lower_ns=0, backend_ns=0, lowered=0, compiled=0, cache_hits=0, bytes_per_token=1e6,
        bandwidth_gbps=10.0, tokens_sha256="cd",
    )  # fmt: skip


def meta() -> dict:
    about = dict(
        git={"commit": "0" * 40, "dirty": False}, packages={"jax": "0.10.1"}, cpu="a processor", cores=2,
        ram_bytes=10**10, os="Linux", python="3.12", bandwidth_gbps=10.0, gflops=50.0, blas=[], limits={}, settings={},
        governor=None, gpus=[], load=0.1, device="cpu",
    )  # fmt: skip
    return {"environment": about, "parameters": {"blocks": 6}, "settings": {"baseline": "step"}, "warm_up": {}}


def write_tables(folder: Path) -> None:
    rows = [
        trial(block, subject, [10**6 * (block + 5), 2 * 10**6 * (block + 5), slow * 10**6 * (block + 5)])
        for block in range(6)
        for subject, slow in (("step", 4), ("loop", 3))
    ]
    for suffix in ("csv", "jsonl", "parquet"):
        record.write(folder / f"table.{suffix}", rows, **meta())
    journal = Journal(folder / "journal.jsonl", {"plan": "a"})
    for row in rows:
        journal.append(row)


def write_report(folder: Path) -> None:
    """A folder that a report can be made of: one figure, one notebook with its finding and table."""
    figure, axes = style.new()
    axes.plot([1, 2], [3, 4])
    about = meta_of() | {"sha256": "0" * 64}
    style.save(figure, "02-jit-placement-speed", "02-jit-placement", about, {}, "A line that rises.", folder)
    style.conclude("02-jit-placement", "Where?", "There.", about, folder)
    write_tables(folder / "data")
    (folder / "data" / "table.csv").rename(folder / "data" / "02-jit-placement.csv")
    (folder / "data" / "table.meta.json").rename(folder / "data" / "02-jit-placement.meta.json")


def meta_of() -> dict:
    return record.describe(**meta())


def notebook() -> dict:
    cell = nbformat.v4.new_code_cell('blocks: int = 3\nname: str = "a"\nsource: str = "recorded"\nout_dir: str = "."')
    cell.metadata["tags"] = ["parameters"]
    about = {"artifacts": ["figures/a.svg"], "profiles": {"full": {"blocks": 9}}, "needs": "data/a.csv"}
    cells = [nbformat.v4.new_markdown_cell("# A question"), cell, nbformat.v4.new_code_cell("print('a finding')")]
    return nbformat.v4.new_notebook(cells=cells, metadata={"llama_jax": about})


def make(base: Path) -> None:
    base.mkdir(parents=True, exist_ok=True)
    write_gguf(base / "model.gguf", FIELDS)
    write_folder(base / "hf")
    (base / "texts.txt").write_text("\n\n".join(TEXTS))
    (base / "texts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    (base / "ids.jsonl").write_text("".join(json.dumps([5, 6, 7 + i]) + "\n" for i in range(9)))
    parquet.write_table(pyarrow.table({"text": TEXTS}), base / "texts.parquet")
    extractor = Extractor(checkpoint.load(str(base / "hf")), ActivationSpec("resid_post:0 ln_final"), (2, 16))
    extract(extractor, str(base / "texts.jsonl"), base / "store", unit=4)
    write_tables(base / "tables")
    write_report(base / "report")
    nbformat.write(notebook(), base / "03-a-notebook.ipynb")


if __name__ == "__main__":
    make(Path(sys.argv[1]))
