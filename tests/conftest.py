"""Fixtures: small random models, built once, and the packaged model for the tests that need real weights."""

import gc
import importlib.util
import json
import os
import subprocess
import sys
import textwrap
import threading
import time
from dataclasses import replace

import jax
import numpy as np
import pytest
from jax.experimental.compilation_cache import compilation_cache

os.environ.setdefault("HF_HUB_OFFLINE", "1")

from llama_jax import checkpoint, config, kept
from llama_jax.checkpoint import fetched, random, tensors
from llama_jax.checkpoint.source import Tensor
from llama_jax.plumbing import paths
from llama_lab import __main__ as program
from llama_lab.peers import ollama_native

# A small model as transformers configures it, and one of the packaged model's family that `checkpoint.load` makes up.
SHAPE = dict(
    hidden_size=32, num_hidden_layers=2, num_attention_heads=4, vocab_size=97, initializer_range=0.3, bos_token_id=1,
    eos_token_id=2,
)  # fmt: skip
LLAMA_SHAPE = SHAPE | dict(
    intermediate_size=64, num_key_value_heads=2, max_position_embeddings=256, tie_word_embeddings=True
)
TINY = (
    "random:smollm2-135m,num_hidden_layers=2,hidden_size=64,intermediate_size=128,num_attention_heads=4,"
    "num_key_value_heads=2,head_dim=16,vocab_size=97"
)


def build(cfg, seed=0):
    """Random weights, larger than the usual 0.02 so that greedy choices are far from ties."""
    source = random.open_random(cfg, seed)
    bigger = {
        k: Tensor(t.shape, lambda t=t: np.asarray(t.read()) * (1 if len(t.shape) == 1 else 10))
        for k, t in source.tensors.items()
    }
    return tensors.assemble(replace(source, tensors=bigger), "float32")


WEEK = 7 * 24 * 3600
# Two fifths of the time that XLA takes by itself: no passes of LLVM, code in one piece, and of XLA's two ways to write
# the code of a fusion the older and quicker one, under which it also fuses otherwise here and there.
OLD_EMITTERS = "--xla_cpu_use_fusion_emitters=false"
COMPILE_LESS = ("--xla_backend_optimization_level=0", "--xla_cpu_parallel_codegen_split_count=1", OLD_EMITTERS)


def fusing_as_shipped(flags: str) -> str:
    """XLA_FLAGS of the fast tests for a process that looks at what XLA fuses."""
    return " ".join(flag for flag in flags.split() if flag != OLD_EMITTERS)


def pytest_addoption(parser):
    parser.addoption("--part", default="1/1", help="k/n: slow tests of every n-th file only, from the k-th on")


def pytest_configure(config):
    """Most of the fast tests' time is XLA's: where only they run, compile less well, and nothing twice.

    The slow tests, parity at full size among them, run what users run. Compiled programs lie in pytest's cache
    (`--cache-clear` empties it) for this process alone: children compile for themselves.
    """
    asked_part(config)  # a wrong one is reported before xdist's workers begin
    kept.FOLDER = "programs-of-tests"  # the user's own stay
    if config.option.markexpr != "not slow" or not hasattr(config, "cache"):  # -p no:cacheprovider
        return
    os.environ["XLA_FLAGS"] = " ".join([os.environ.get("XLA_FLAGS", ""), *COMPILE_LESS]).strip()
    folder = config.cache.mkdir("xla")
    if not hasattr(config, "workerinput"):  # once, not in each of xdist's workers
        for entry in folder.iterdir():
            if entry.stat().st_mtime < time.time() - WEEK:
                entry.unlink()
    jax.config.update("jax_include_full_tracebacks_in_locations", False)  # a program's lines of Python are not read
    jax.config.update("jax_traceback_in_locations_limit", 0)
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.03)  # reading takes a tenth of that
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


@pytest.fixture(scope="module")
def compiling():
    """For modules that count compilations or look at what one leaves: a program read from the tests' cache is none."""
    before = jax.config.jax_compilation_cache_dir
    jax.config.update("jax_compilation_cache_dir", None)
    compilation_cache.reset_cache()
    yield
    jax.config.update("jax_compilation_cache_dir", before)
    compilation_cache.reset_cache()


@pytest.fixture(scope="module")
def quickly():
    """For modules whose slow tests are the fast ones with other parameters: compiled as little as there."""
    name = "jax_disable_most_optimizations"
    before = jax.config.read(name)
    jax.config.update(name, True)
    yield
    jax.config.update(name, before)


@pytest.fixture
def no_thread_stays():
    before = threading.active_count()
    yield
    assert threading.active_count() == before


def pytest_collection_finish():
    """What the imports made stays until the end: collecting garbage, as each trial of the protocol does, need not look
    at it; by itself, among the many objects of traced programs, Python does so less often. And PyTorch takes a core,
    not all of them in each of xdist's workers."""
    gc.freeze()
    gc.set_threshold(200_000, 50, 1000)
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(1)


def asked_part(config) -> tuple[int, int]:
    """(k, n) of `--part k/n`."""
    try:
        k, n = map(int, config.option.part.split("/"))
    except ValueError:
        k, n = 0, 0
    if not 1 <= k <= n:
        raise pytest.UsageError(f"--part is {config.option.part}; it must be k/n, such as 1/3.")
    return k, n


def part_of(items, k, n):
    """(kept, left out): of slow tests those of every n-th file, whole files because tests there share what they build,
    and those marked `slow("always")`; all others."""
    marked = [(item, item.get_closest_marker("slow")) for item in items]
    files = sorted({item.path for item, slow in marked if slow and not slow.args})
    left = {path for i, path in enumerate(files) if i % n != k - 1}
    kept, out = [], []
    for item, slow in marked:
        (out if slow and not slow.args and item.path in left else kept).append(item)
    return kept, out


@pytest.hookimpl(trylast=True)  # what `-m` leaves
def pytest_collection_modifyitems(items, config):
    items[:], out = part_of(items, *asked_part(config))
    config.hook.pytest_deselected(items=out)
    skip_what_is_not_built(items)


def skip_what_is_not_built(items):
    """Tests of the real Ollama are skipped where it is not built. So are those of llama.cpp, unless it is required, as
    in CI: then they run and fail."""
    absent = {}
    if ollama_native.BUILT.binary() is None:
        absent["ollama"] = "Ollama is not built: `make ollama`"
    if not importlib.util.find_spec("llama_cpp") and os.environ.get("LLAMA_JAX_PEERS") != "required":
        absent["peers"] = "llama.cpp is not built: `make peers`"
    for item in items:
        for mark, reason in absent.items():
            if item.get_closest_marker(mark):
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture
def call(capsys):
    """Run a command line in this process: (exit code, standard output, standard error)."""

    def run(*arguments):
        with pytest.raises(SystemExit) as stopped:
            program.main([str(a) for a in arguments])
        out, err = capsys.readouterr()
        return stopped.value.code or 0, out, err

    return run


@pytest.fixture
def document(call):
    """Run a command line that ends well: (the JSON document that it prints last, what it says beside it)."""

    def run(*arguments):
        code, out, err = call(*arguments)
        assert code == 0, err
        return json.loads(out.splitlines()[-1]), err

    return run


@pytest.fixture
def own_lock(tmp_path, monkeypatch):
    """A measurement lock that no other test holds."""
    monkeypatch.setattr("llama_jax.plumbing.paths.tempfile.gettempdir", lambda: str(tmp_path))
    return tmp_path


@pytest.fixture(scope="session")
def tiny():
    cfg = config.tiny()
    return cfg, build(cfg)


@pytest.fixture(scope="session")
def packaged():
    return checkpoint.load()


@pytest.fixture(scope="session")
def speaking(packaged):
    """A tiny model of random weights with the packaged vocabulary, so that it reads chats."""
    sizes = "hidden_size=64,intermediate_size=64,num_attention_heads=4,num_key_value_heads=2,head_dim=16"
    small = checkpoint.load(f"random:smollm2-135m,num_hidden_layers=1,{sizes}")
    return replace(small, tokenizer=packaged.tokenizer)


@pytest.fixture(scope="session")
def real_model():
    """A function of a name in `fetched.WEIGHTS`: that model's file. Its test is skipped where it is not fetched."""

    here = {name: fetched.place(name) for name in fetched.WEIGHTS if fetched.is_here(name)}

    def file(name):
        if name not in here:
            pytest.skip(f"{name} is not here: `llama-jax fetch {name}`")
        return here[name]

    return file


@pytest.fixture(scope="session")
def hub_folder(tmp_path_factory):
    """(folder, model): a small random Llama written by transformers in the hub's layout."""
    return save_llama(tmp_path_factory.mktemp("hub") / "tiny")


def save_llama(folder, shards=None, **changes):
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**LLAMA_SHAPE | changes)).eval()
    model.save_pretrained(folder, **({"max_shard_size": shards} if shards else {}))
    return folder, model


def torch_logits(model, ids):
    """Logits [T V] of a model of transformers."""
    import torch

    with torch.no_grad():
        return model(torch.tensor(ids)[None]).logits[0].numpy()


def continuation(model, ids, n):
    """The n greedy tokens with which a model of transformers goes on."""
    import torch

    ids = torch.tensor(ids)[None]
    options = dict(do_sample=False, eos_token_id=None, pad_token_id=0, attention_mask=torch.ones_like(ids))
    return tuple(model.generate(ids, max_new_tokens=n, **options)[0, ids.shape[1] :].tolist())


def python(code, *arguments, before=(), limit=200, clean=False, **settings):
    """(what it prints, what it complains of) of a fresh Python that runs this code. before: a command in front of it.
    clean: without this process's variables for XLA, JAX and the package. settings: variables of the environment."""
    kept = {k: v for k, v in os.environ.items() if not (clean and k.startswith(("XLA_", "JAX_", "LLAMA_JAX_")))}
    done = subprocess.run(
        [*before, sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)],
        env=kept | {"PYTHONPATH": str(paths.ROOT)} | settings,
        capture_output=True, text=True, timeout=limit, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.strip(), done.stderr


def same(left, right):
    """Whether two trees have the same structure and bits."""
    pairs = zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True)
    return jax.tree.structure(left) == jax.tree.structure(right) and all(np.array_equal(a, b) for a, b in pairs)


def edit_json(path, **changes):
    data = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({k: v for k, v in data.items() if v is not ...}))


def among_the_fast(chosen, every):
    """Parameters, all of them slow tests but the chosen ones: one of each kind finds what breaks, all find where."""
    packed = ((p, p if isinstance(p, tuple) else (p,)) for p in every)
    return [pytest.param(*values, marks=[pytest.mark.slow] * (p not in chosen)) for p, values in packed]


def relative_error(a, b):
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    return np.linalg.norm(a - b) / np.linalg.norm(b)
