"""llama.cpp on the GGUF file that a checkpoint came from, through llama-cpp-python (`make peers` builds it for this
machine).

llamacpp            bare `llama_decode`, called as llama-bench measures pp and tg: the prompt as one batch, then a token
                    a call, flash attention, an f16 cache; the greedy choice is made on the host from the last logits
llamacpp+generate   the package's own generator, `Llama.generate` at temperature 0
llamacpp+q8_0       as llamacpp, on the same model in Q8_0; +q4_0: in Q4_0 (`requantised.py`)
llamacpp+lookup     as llamacpp, with tokens drafted from the text so far (`llamacpp_lookup.py`)
llamacpp+draft      as llamacpp, with tokens drafted by a smaller model (`llamacpp_draft.py`)

All compute on quantised blocks with activations rounded to 8 bits, so their tokens diverge after a while. They use as
many threads as this process has cores, like ours. Nothing is offloaded, and the end-of-text token does not end a
request. The cache is cleared before each request, so nothing of an earlier one is reused.
"""

from __future__ import annotations

import ctypes
import functools
import json
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from llama_jax import checkpoint, generate
from llama_jax.plumbing.errors import UserError
from llama_lab import peers
from llama_lab.bench.process import allowed_cores
from llama_lab.bench.workload import Subject, Workload, encoder
from llama_lab.peers import requantised

BATCH, MICRO_BATCH = 2048, 512  # tokens per call, and at a time within it: llama-bench's own
CACHE_BYTES = 2  # a cached value's: f16
ERROR_LEVEL = 4  # a level of ggml's log
heard: list[str] = []  # llama.cpp's last complaints; it says them nowhere else
CALLBACKS: list = []  # C functions, which must live as long as a library may call them
MODEL = peers.Latest()  # the one opened last


def missing(name: str, model: str) -> tuple[str, str] | None:
    """llama.cpp runs GGUF files wherever its Python package is built."""
    if find_spec("llama_cpp") is None:
        return (
            "llama-cpp-python is not installed.",
            "Run `make peers`, which builds it for this machine in some minutes.",
        )
    return no_file(model)


def no_file(model: str, reader: str = "llama.cpp") -> tuple[str, str] | None:
    """Why a reader of GGUF files cannot read this model."""
    try:
        path = checkpoint.gguf_file(model)
    except UserError as error:
        name = checkpoint.canonical(model)
        return str(error), f"Run `llama-jax fetch {name}`." if name in checkpoint.WEIGHTS else "Run `make setup`."
    remedy = "Give --model a path to a .gguf file."
    return None if path else (f"{reader} reads GGUF files, and {model} is none.", remedy)


def subject(loaded: checkpoint.Checkpoint, name: str, schema: dict | None = None) -> Subject:
    """A way of asking llama.cpp as a subject of the protocol. schema: what the generator's answers must be. Raises
    UnavailableError if it cannot read the file."""
    high = functools.partial(HighLevel, schema=schema)
    return on_file(loaded, name, high if name == "llamacpp+generate" else lambda path: Bare(opened(path)))


def on_file(loaded: checkpoint.Checkpoint, name: str, runner: Callable[[Path], Any], **known) -> Subject:
    """A subject that runs the peer's file by `runner`. known: more fields for its trials. Raises UnavailableError."""
    path = weights_of(loaded, name)
    known, backend = identity(loaded, path) | known, peers.get(name).backend
    return Subject(name, backend, name, runner(path).run, encoder(loaded), known)


def weights_of(loaded: checkpoint.Checkpoint, name: str = "llamacpp") -> Path:
    """The file that a checkpoint was read from, or for a peer `…+TYPE` the one that llama.cpp's quantiser makes of it.

    Raises UnavailableError if the peer cannot run here, or there is no such file.
    """
    peers.require(name, loaded.source)
    kind, path = name.partition("+")[2], Path(loaded.source)
    if kind not in requantised.TYPES:
        return path
    return requantised.obtain(path, loaded.weights_hash, kind, len(allowed_cores()))


def identity(loaded: checkpoint.Checkpoint, path: Path) -> dict:
    """A trial's fields about a file: the type of most tensors, and the average bytes per parameter. The hash is that of
    the checkpoint's file, even if it was requantised."""
    tensors, kind = checkpoint.gguf.split.whole(path).tensors.values(), kinds(path).most_common(1)[0][0]
    return dict(
        model=loaded.name,
        weights_hash=loaded.weights_hash,
        dtype=kind,
        quantisation=f"gguf-{kind}",
        weight_bytes=sum(size for *_, size in tensors) / sum(int(np.prod(shape)) for shape, *_ in tensors),
        config=loaded.config,
        cache="fixed",
        cache_bytes=CACHE_BYTES,
    )


def kinds(path: Path) -> Counter[str]:
    """Types of a file's matrices, and how many have each."""
    tensors = checkpoint.gguf.split.whole(path).tensors.values()
    return Counter(gguf.GGMLQuantizationType(kind).name.lower() for shape, kind, *_ in tensors if len(shape) > 1)


def listen(level: int, text: bytes, _) -> None:
    """The callback of ggml's log: errors are kept, the rest is discarded."""
    if level == ERROR_LEVEL:
        heard[:] = [*heard[-2:], text.decode(errors="replace").strip()]


@functools.cache
def library():
    """`llama_cpp` with its log going only to `heard`."""
    import llama_cpp

    CALLBACKS.append(llama_cpp.llama_log_callback(listen))
    llama_cpp.llama_log_set(CALLBACKS[-1], ctypes.c_void_p(0))
    llama_cpp.llama_backend_init()
    return llama_cpp


def complaint() -> str:
    return "; ".join(heard) or "it does not say why"


def opened(path: Path) -> Model:
    """A file as llama.cpp's model; the one opened last is kept. Raises UnavailableError."""
    llama = library()
    return MODEL.get((str(path), path.stat().st_mtime_ns), lambda: Model(llama, path, llama.llama_model_free))


class Model:
    """A file as a loaded model, its pages mapped instead of copied if possible; freed with the last reference. Raises
    UnavailableError if it cannot be read."""

    reader, remedy = "llama.cpp", "Convert the model anew with llama.cpp's own tools."

    def __init__(self, llama, path: Path, free: Callable):
        self.llama, settings = llama, llama.llama_model_default_params()
        settings.n_gpu_layers = 0
        self.pointer = llama.llama_model_load_from_file(str(path).encode(), settings)
        if not self.pointer:
            raise peers.UnavailableError(f"{self.reader} cannot read {path}: {complaint()}", self.remedy)
        self.vocabulary = llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(self.pointer))
        weakref.finalize(self, free, self.pointer)


class Context:
    """Room for the keys and values of some rows, and a batch to hand tokens over. Raises RuntimeError if there is
    none.

    slots: positions a row. rows: sequences, each with positions of its own. every: logits of all positions may be asked
    for. exact: attention in float32 throughout; the fast one rounds keys and values to f16.
    """

    def __init__(self, model: Model, slots: int, rows: int = 1, every: bool = False, exact: bool = False):
        self.model, self.llama, self.slots, self.rows = model, model.llama, slots, rows
        settings, llama = model.llama.llama_context_default_params(), model.llama
        settings.n_ctx, settings.n_seq_max, settings.n_batch, settings.n_ubatch = slots * rows, rows, BATCH, MICRO_BATCH
        settings.n_threads = settings.n_threads_batch = len(allowed_cores())
        settings.offload_kqv = False
        self.attend(settings, every, exact)
        self.pointer = llama.llama_init_from_model(model.pointer, settings)
        if not self.pointer:
            raise RuntimeError(f"llama.cpp made no context of {slots} slots and {rows} rows: {complaint()}")
        weakref.finalize(self, llama.llama_free, self.pointer)
        self.batch = llama.llama_batch_init(BATCH, 0, 1)
        weakref.finalize(self, llama.llama_batch_free, self.batch)

    def attend(self, settings, every: bool, exact: bool) -> None:
        """The settings that are llama.cpp's own; what is derived from it has others."""
        llama, kind = self.llama, "DISABLED" if exact else "ENABLED"
        settings.flash_attn_type = getattr(llama, f"LLAMA_FLASH_ATTN_TYPE_{kind}")
        settings.type_k = settings.type_v = llama.GGML_TYPE_F32 if exact else llama.GGML_TYPE_F16
        settings.n_outputs_max_per_seq = MICRO_BATCH if every else 1
        settings.op_offload = False

    def clear(self) -> None:
        """Forget every token."""
        self.llama.llama_memory_clear(self.llama.llama_get_memory(self.pointer), False)

    def forget(self, position: int, row: int = 0) -> None:
        """Forget a row's tokens from this position on."""
        self.llama.llama_memory_seq_rm(self.llama.llama_get_memory(self.pointer), row, position, -1)

    def decode(self, tokens: Sequence[tuple[int, int, int, bool]]) -> None:
        """One call with (id, position, row, whether its logits are wanted) a token. Raises RuntimeError if it
        fails."""
        batch = self.batch
        batch.n_tokens = len(tokens)
        for i, (token, position, row, wanted) in enumerate(tokens):
            batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = token, position, 1, wanted
            batch.seq_id[i][0] = row
        if code := self.llama.llama_decode(self.pointer, batch):
            raise RuntimeError(f"llama_decode failed with code {code}: {complaint()}")

    def logits(self, i: int) -> np.ndarray:
        """Logits [V] of the last call's i-th token; valid until the next call."""
        return np.ctypeslib.as_array(self.llama.llama_get_logits_ith(self.pointer, i), (self.model.vocabulary,))


class Bare:
    """`llama_decode` alone. The context is made by the first request, and again only for one that needs more room or
    other rows. single: what answers one row only, as its errors call it."""

    def __init__(self, model: Model, make: Callable[..., Context] = Context, single: str = ""):
        self.model, self.make, self.single, self.context = model, make, single, None

    def room(self, slots: int, rows: int) -> Context:
        if self.context is None or self.context.rows != rows or self.context.slots < slots:
            self.context = None  # freed before the next one takes its memory
            self.context = self.make(self.model, slots, rows)
        return self.context

    def run(self, ids: Sequence[int], work: Workload) -> Iterator[np.ndarray]:
        """Blocks [1 B] of greedy tokens. Raises RuntimeError."""
        if self.single:
            peers.check_one_row(work, self.single)
        context = self.room(generate.bucket(len(ids) + work.new_tokens), work.batch)
        context.clear()
        tokens = prefill(context, ids)
        yield tokens[None]
        for position in range(len(ids), len(ids) + work.new_tokens - 1):
            context.decode([(int(token), position, row, True) for row, token in enumerate(tokens)])
            tokens = np.array([context.logits(row).argmax() for row in range(work.batch)], np.int32)
            yield tokens[None]


def prefill(context: Context, ids: Sequence[int]) -> np.ndarray:
    """The next token [B] of each row after the same prompt, every row computed by itself, in calls of BATCH tokens."""
    last, best = len(ids) - 1, np.zeros(context.rows, np.int32)
    tokens = [(int(token), at, row, at == last) for row in range(context.rows) for at, token in enumerate(ids)]
    for start in range(0, len(tokens), BATCH):
        piece = tokens[start : start + BATCH]
        context.decode(piece)
        for i, (_, _, row, wanted) in enumerate(piece):
            if wanted:
                best[row] = context.logits(i).argmax()
    return best


class HighLevel:
    """`Llama.generate`. As the package offers it: one row. schema: what an answer must be, which then ends there."""

    def __init__(self, path: Path, schema: dict | None = None):
        self.llama, self.path, self.slots, self.model = library(), path, 0, None
        self.grammar = schema and self.llama.LlamaGrammar.from_json_schema(json.dumps(schema), verbose=False)

    def room(self, slots: int):
        import llama_cpp

        if self.slots < slots:
            cores, self.model = len(allowed_cores()), None
            threads = dict(n_threads=cores, n_threads_batch=cores)
            host = dict(n_gpu_layers=0, offload_kqv=False, verbose=False)
            sizes = dict(n_ctx=slots, n_batch=BATCH, n_ubatch=MICRO_BATCH)
            self.model = llama_cpp.Llama(str(self.path), **sizes, **threads, flash_attn=True, **host)
            self.slots = slots
        return self.model

    def run(self, ids: Sequence[int], work: Workload) -> Iterator[np.ndarray]:
        """Blocks [1 1] of greedy tokens. Raises RuntimeError for more than one row."""
        peers.check_one_row(work, "llama-cpp-python's generator")
        model = self.room(generate.bucket(len(ids) + work.new_tokens))
        model.reset()  # else it would keep what this prompt shares with the last one, and not compute it
        for token in islice(model.generate(list(map(int, ids)), temp=0.0, grammar=self.grammar), work.new_tokens):
            yield np.array([[token]], np.int32)
            if self.grammar and self.llama.llama_vocab_is_eog(self.llama.llama_model_get_vocab(model.model), token):
                return


def logits(
    loaded: checkpoint.Checkpoint, name: str = "llamacpp", exact: bool = False
) -> Callable[[Sequence[int]], np.ndarray]:
    """ids → llama.cpp's logits of every position, float32 [T V], as the measured peer computes them; exact: with
    attention in float32.

    Raises UnavailableError if llama.cpp cannot run the checkpoint.
    """
    model = opened(weights_of(loaded, name))
    return lambda ids: teacher_forced(Context(model, generate.bucket(len(ids)), every=True, exact=exact), ids)


def teacher_forced(context: Context, ids: Sequence[int]) -> np.ndarray:
    """Logits of every position, float32 [T V], by a new context that hands out all of them."""
    values = np.empty((len(ids), context.model.vocabulary), np.float32)
    for start in range(0, len(ids), MICRO_BATCH):
        piece = [(int(token), start + i, 0, True) for i, token in enumerate(ids[start : start + MICRO_BATCH])]
        context.decode(piece)
        for i in range(len(piece)):
            values[start + i] = context.logits(i)
    return values
