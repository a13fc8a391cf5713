"""Programs kept in the user's cache: the same tokens, nothing compiled by the second command, and no entry is executed
that is damaged, another's, or could be somebody else's."""

import json
import os
import shutil
import subprocess
import sys
from unittest.mock import Mock

import jax
import pytest

import llama_jax as ll
from llama_jax import identity, kept
from llama_jax.plumbing import entries, paths
from llama_jax.plumbing.errors import UserError
from llama_jax.sampling import Sampler
from llama_lab.bench import Guard
from tests.conftest import TINY, among_the_fast, build

pytestmark = pytest.mark.usefixtures("compiling")

PROMPTS, N = [[5, 9, 33], [8]], 10
# its top-k is a sort, which XLA on CPU cannot serialise once it has run
TOP_K = Sampler(0.8, top_k=5, repetition_penalty=1.2)
NAMES = [
    "step",
    "loop",
    "chunk8+donate",
    "split",
    "layer",
    "ops",
    "step+scan",
    "step+gemv",
    "loop+fused",
    "step+traced",
    f"loop+fused+draft2:{TINY}",
]


def model(seed=0, shape=TINY):
    config = ll.checkpoint.load_config(shape)
    return ll.Checkpoint("tiny", config, build(config, seed), None, "", "random:", "float32")


@pytest.fixture(scope="module")
def checkpoint():
    return model()


@pytest.fixture
def cache(monkeypatch, tmp_path):
    (tmp_path / "kernels").symlink_to(paths.private("kernels"))  # they take long to compile
    monkeypatch.setenv("LLAMA_JAX_CACHE", str(tmp_path))
    return tmp_path / kept.FOLDER


@pytest.fixture(scope="module")
def first(checkpoint, tmp_path_factory):
    """(what the first process answers, the folder that it leaves)."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LLAMA_JAX_CACHE", str(tmp_path_factory.mktemp("first")))
        tokens, store = answers(checkpoint)
    return tokens, store.folder


@pytest.fixture
def filled(cache, first):
    """The tokens of a first process, whose programs lie in this test's cache."""
    tokens, folder = first
    shutil.copytree(folder, cache)
    cache.chmod(0o700)
    return tokens


def answers(checkpoint, name="step", prompts=PROMPTS, **options):
    """(tokens, its store) of a process of its own, as far as this one can be."""
    store = kept.Store()
    return ll.answer(kept.build(checkpoint, name, store), prompts, N, **options), store


@pytest.mark.parametrize(
    ("name", "sampler"),
    among_the_fast(
        [("step", TOP_K), ("loop+fused", Sampler()), ("layer", Sampler())],
        [("step", TOP_K), *((name, Sampler()) for name in NAMES)],
    ),
)
def test_the_second_time_nothing_is_compiled_and_the_tokens_are_the_same(checkpoint, cache, name, sampler):
    expected = ll.answer(ll.build(checkpoint, name), PROMPTS, N, sampler=sampler)
    first, store = answers(checkpoint, name, sampler=sampler)
    assert (store.read, store.complaint) == (0, "")
    assert store.made == len(list(cache.iterdir())) >= 2
    again = kept.Store()
    engine = kept.build(checkpoint, name, again)
    with Guard() as guard:
        second = ll.answer(engine, PROMPTS, N, sampler=sampler)
    assert (again.made, again.read) == (0, store.made)
    assert not {"prefill", "step", "decode", "layer", "transform"} & {event.name for event in guard.events}
    assert expected == first == second


def test_a_prompt_of_like_length_needs_no_other_program_and_other_settings_do(checkpoint, filled):
    assert answers(checkpoint, prompts=[[7, 7, 7, 7, 7], [1, 2]])[1].made == 0
    close = [Sampler(0.7), Sampler(0.7 + 1e-9)]  # alike to six digits
    assert [answers(checkpoint, sampler=sampler)[1].made for sampler in (*close, *close)] == [2, 2, 0, 0]


@pytest.fixture
def never_executed(monkeypatch):
    """Fails where anything of an entry is unpickled."""
    return lambda: monkeypatch.setattr(kept.pickle, "loads", lambda *a: pytest.fail("unpickled"))


@pytest.mark.parametrize("where", [0, 70, -1, "empty"])
def test_a_damaged_entry_is_made_anew_and_nothing_of_it_is_unpickled(checkpoint, cache, filled, where):
    for path in cache.iterdir():
        raw = bytearray(path.read_bytes())
        if isinstance(where, int):
            raw[where] ^= 1
        path.write_bytes(b"" if where == "empty" else raw)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kept.pickle, "loads", lambda *a: pytest.fail("unpickled"))
        tokens, store = answers(checkpoint)
    assert (tokens, store.made, store.read) == (filled, 2, 0)
    assert "damaged and is made anew" in store.summary
    assert answers(checkpoint)[1].read == 2


def test_an_entry_of_another_program_is_not_executed(checkpoint, cache, filled, never_executed):
    one, other = cache.iterdir()
    content = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(content)
    never_executed()
    assert answers(checkpoint)[0] == filled


def test_what_this_device_does_not_take_is_made_anew(checkpoint, filled, monkeypatch):
    with monkeypatch.context() as patch:
        error = jax.errors.JaxRuntimeError("no such machine")
        patch.setattr(kept.serialize_executable, "deserialize_and_load", Mock(side_effect=error))
        tokens, store = answers(checkpoint)
    assert (tokens, store.made, store.read) == (filled, 2, 0)


@pytest.mark.parametrize("change", ["jax", "package", "option", "flags", "processor"])
def test_another_jax_package_option_or_processor_is_another_entry(
    checkpoint, cache, monkeypatch, never_executed, change
):
    answers(checkpoint)
    if change == "jax":
        monkeypatch.setattr(identity.jax, "__version__", "0.0.0")
    elif change == "package":
        monkeypatch.setattr(identity, "__file__", str(cache / "x.py"))
    elif change == "flags":
        monkeypatch.setenv("XLA_FLAGS", os.environ.get("XLA_FLAGS", "") + " ")
    elif change == "processor":
        monkeypatch.setattr(identity, "cpu", lambda: "another")
    never_executed()
    with jax.default_matmul_precision("highest" if change == "option" else None):
        assert answers(checkpoint)[1].made == 2
    assert len(list(cache.iterdir())) == 4


def test_weights_are_not_in_it_and_other_shapes_are_other_entries(filled):
    other = model(1)
    tokens, store = answers(other)
    assert store.made == 0
    assert filled != tokens == ll.answer(ll.build(other, "step"), PROMPTS, N)
    assert answers(model(0, TINY.replace("layers=2", "layers=3")))[1].made == 2


def test_a_folder_that_others_may_write_is_refused(cache, filled):
    cache.chmod(0o777)
    with pytest.raises(UserError, match="may be written by others"):
        kept.Store()


def test_old_entries_go(checkpoint, cache, monkeypatch):
    monkeypatch.setattr(kept, "MOST", 3)
    for prompt in ([5], [5] * 20):
        answers(checkpoint, prompts=[prompt])
    assert len(list(cache.iterdir())) == 3
    assert answers(checkpoint, prompts=[[5] * 20])[1].read == 2  # the newest stay
    sizes = sorted((path.stat().st_size, path.name) for path in cache.iterdir())
    entries.tidy(cache, "*", 10, room=sizes[-1][0])
    assert len(list(cache.iterdir())) == 1


def test_where_nothing_can_be_written_the_answer_is_there_and_a_line_says_so(checkpoint, cache, monkeypatch):
    error = UserError("Cannot write: No space left on device.")
    monkeypatch.setattr(kept.entries, "write", Mock(side_effect=error))
    tokens, store = answers(checkpoint)
    assert tokens == ll.answer(ll.build(checkpoint, "step"), PROMPTS, N)
    assert store.made == 0
    assert "No space left" in store.summary


@pytest.mark.parametrize("name", ["step+aot", "loop+callback", "eager"])
def test_placements_that_say_how_they_compile_or_call_into_this_process_keep_nothing(checkpoint, cache, name):
    tokens, store = answers(checkpoint, name)
    assert tokens == ll.answer(ll.build(checkpoint, name), PROMPTS, N)
    assert (store.made, list(cache.iterdir())) == (0, [])
    assert bool(store.summary) == ("callback" in name)


# The command ----------------------------------------------------------------------------------------------------------

ASK = ("generate", "--model", TINY, "--ignore-eos", "-n", "6", "--json")


def test_the_command_keeps_its_programs_unless_it_is_told_not_to(call, cache):
    line = [*ASK, "--token-ids", "5,6,7"]
    plain = call(*line, "--no-keep")
    assert not cache.exists()
    assert "programs" not in plain[2]
    _, out, err = call(*line)
    assert f"programs kept in {cache}: 2 made" in err
    assert json.loads(out)["token_ids"] == json.loads(plain[1])["token_ids"]
    _, out, err = call(*ASK, "--token-ids", "9,8,7,6")
    assert "2 read" in err
    assert json.loads(out)["compile_ms"] == 0 < json.loads(out)["kept_programs_ms"]
    assert json.loads(out)["warm_tokens"] == len(json.loads(out)["token_ids"]) - 2  # the first step's program was read


def test_the_command_leaves_a_folder_that_others_may_write(call, cache, never_executed):
    call(*ASK, "--token-ids", "5,6,7")
    cache.chmod(0o777)
    never_executed()
    before = {path: path.stat().st_mtime_ns for path in cache.iterdir()}
    code, _, err = call(*ASK, "--token-ids", "5,6,7")
    assert code == 0
    assert err.count("programs are not kept: ") == 1
    assert before == {path: path.stat().st_mtime_ns for path in cache.iterdir()}


def test_binding_weights_to_the_fused_kernel_compiles_nothing_by_the_way(checkpoint, cache):
    checkpoint.weights("q8_0")
    store = kept.Store()
    with Guard() as guard:
        kept.build(checkpoint, "step+fused", store)
    assert not guard.events


def test_processes_at_once_are_safe_and_a_later_one_compiles_nothing(cache):
    environment = os.environ | {"PYTHONPATH": str(paths.ROOT)}

    def start():
        command = [sys.executable, "-m", "llama_lab", *ASK, "--token-ids", "5,6,7"]
        return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    both = [process.communicate() for process in (start(), start())]
    out, err = start().communicate()
    assert "2 read" in err
    assert "made" not in err
    assert json.loads(out)["compile_ms"] == 0
    assert len({tuple(json.loads(text)["token_ids"]) for text, _ in [*both, (out, err)]}) == 1
