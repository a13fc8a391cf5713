"""Models: GGUF files and Hugging Face folders, with their tokenizers and templates."""

import json
import shutil
from pathlib import Path

from hypothesis import strategies as st

from llama_jax import chat, checkpoint
from tests.fuzz import base as honest
from tests.fuzz import hostile


def opened(path: Path) -> str:
    """Everything that a model's files are read for."""
    loaded = checkpoint.load(str(path))
    if loaded.tokenizer is None:
        return "no tokenizer"
    chat.encode(loaded.tokenizer, chat.ask("Why is the sky blue?"))
    loaded.tokenizer.decode(loaded.tokenizer.encode("abc <|im_end|> 1")[:3])
    return ""


@st.composite
def headers(draw):
    """Changed fields of a GGUF header."""
    keys = st.sampled_from(list(honest.FIELDS))
    values = st.one_of(hostile.values, st.sampled_from(hostile.TEMPLATES))
    changes = draw(st.dictionaries(keys, values, min_size=1, max_size=2))
    if draw(st.integers(0, 9)) == 0:
        vocabularies = [["a"], ["a"] * 262, honest.TOKENS[:9], list(range(262))]
        changes["tokenizer.ggml.tokens"] = draw(st.sampled_from(vocabularies))
    return changes


def gguf_header(example, base: Path, folder: Path) -> str:
    path = folder / "model.gguf"
    try:
        honest.write_gguf(path, honest.FIELDS | example)
    except Exception as error:
        return f"no GGUF can say it: {type(error).__name__}"
    return opened(path)


def gguf_bytes(example, base: Path, folder: Path) -> str:
    how, in_header = example
    content = (base / "model.gguf").read_bytes()
    edge = len(content) // 12 if in_header else len(content)  # the header's share of the honest file
    hostile.put(folder / "model.gguf", hostile.damaged(content[:edge], how) + content[edge:] if in_header else
                hostile.damaged(content, how))  # fmt: skip
    return opened(folder / "model.gguf")


DOCUMENTS = {
    "config.json": honest.HUGGING_FACE,
    "tokenizer_config.json": honest.TOKENIZER_CONFIG,
    "generation_config.json": honest.GENERATION_CONFIG,
    "model.safetensors.index.json": {"metadata": {}, "weight_map": {"model.norm.weight": "model.safetensors"}},
}


KEYS = ("model", "vocab", "merges", "added_tokens", "pre_tokenizer", "decoder", "id", "data_offsets", "dtype", "shape")


@st.composite
def folders(draw):
    """(a file of the Hugging Face folder, what it holds then)."""
    names = ["config.json"] * 4 + ["tokenizer_config.json"] * 2 + list(DOCUMENTS)[2:]
    name = draw(st.sampled_from(names + ["template", "tokenizer.json", "tokenizer.json", "model.safetensors", "odd"]))
    if name in DOCUMENTS:
        return name, draw(hostile.texts_of(DOCUMENTS[name]))
    if name == "template":
        return "chat_template.jinja", draw(st.sampled_from(hostile.TEMPLATES))
    if name == "odd":
        name = draw(st.sampled_from([*DOCUMENTS, "tokenizer.json", "model.safetensors"]))
        return name, draw(st.sampled_from(hostile.ODD))
    documents = st.tuples(st.just("document"), st.sampled_from(KEYS), st.integers(0, 11))
    return name, draw(st.one_of(hostile.damage(), documents))


def hf_folder(example, base: Path, folder: Path) -> str:
    name, content = example
    shutil.copytree(base / "hf", folder / "hf")
    path = folder / "hf" / name
    if isinstance(content, tuple):
        whole = path.read_bytes()
        content = key_changed(whole, *content[1:]) if content[0] == "document" else hostile.damaged(whole, content)
    hostile.put(path, content)
    return opened(folder / "hf")


def key_changed(content: bytes, key: str, choice: int) -> bytes:
    """A tokenizer.json, or the header of a safetensors file, with the value of one key made hostile wherever it is."""
    header = content[8 : 8 + int.from_bytes(content[:8], "little")] if content[:1] != b"{" else b""
    value = hostile.VALUES[choice * 3 % len(hostile.VALUES)]

    def walk(node):
        if isinstance(node, dict):
            return {k: value if k == key else walk(v) for k, v in node.items()}
        return [walk(v) for v in node] if isinstance(node, list) else node

    changed = json.dumps(walk(json.loads(header or content))).encode("utf-8", "surrogatepass")
    return len(changed).to_bytes(8, "little") + changed + content[8 + len(header) :] if header else changed
