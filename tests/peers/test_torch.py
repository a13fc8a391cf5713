"""PyTorch as peers: our tokens in every way, padding that changes nothing, what is compiled when, and labelled gaps."""

import dataclasses
import threading
from collections import Counter

import numpy as np
import pytest
import torch

from llama_jax.plumbing.errors import UserError
from llama_jax.sampling import Sampler
from llama_lab import peers
from llama_lab.bench import protocol
from llama_lab.bench.workload import Workload
from llama_lab.peers import torch as subjects
from llama_lab.peers import torch_compiled, torch_script
from tests.conftest import among_the_fast, python
from tests.peers.conftest import answer, small, some_ids, tokens, trial

WORK = Workload(((5, 9, 33, 60, 2), (8, 3), (7,)), new_tokens=7, length=8, batch=2)
EAGER = [name for name, (home, *_) in subjects.WAYS.items() if home == "torch_eager" and name not in subjects.QUANTISED]
COMPILED = ["torch-compile", "torch-compile+nocache"]
EDGES = [n for edge in (16, 24) for n in (edge - 1, edge, edge + 1)]  # of `generate.bucket`


@pytest.fixture
def quick(monkeypatch):
    """Dynamo without Inductor: what is compiled when, and from which shapes, is Dynamo's affair, and takes no C++
    compiler."""
    torch._dynamo.reset()
    monkeypatch.setattr(torch_compiled, "compiled", lambda f, mode: torch.compile(f, backend="eager", fullgraph=True))
    yield
    torch._dynamo.reset()


def cold_trial(subject, work):
    return trial(dataclasses.replace(subject, guard=subject.counter), work, phase="cold")


def test_every_torch_peer_has_a_way():
    assert set(subjects.WAYS) == {name for name, peer in peers.PEERS.items() if peer.module == "torch"}
    kinds = {"transformers": "growing", "torch": "growing", "torch+static": "fixed", "torch-hybrid+nocache": "none"}
    assert {name: subjects.cache_kind(name) for name in kinds} == kinds


@pytest.mark.parametrize("family", among_the_fast(("llama",), peers.TWINS))
def test_greedy_tokens_equal_ours(family):
    loaded = small(family)
    reference = protocol.Reference(loaded, WORK)
    for name in EAGER:
        subject = peers.subject(loaded, name)
        tokens(subject.run, WORK.prompts[0], WORK)  # scripts its functions
        for prompt in range(3):
            record, made = trial(subject, WORK, prompt)
            assert reference.judge(record, made).valid, (name, record.reason)
            assert [row.tolist() for row in made.T] == [reference.tokens(prompt).tolist()] * 2, name
            assert len(record.token_times_ns) == len(set(record.token_times_ns)) == WORK.new_tokens


@pytest.mark.parametrize("name", among_the_fast(("torch", "torch-script"), EAGER))
def test_sampled_tokens_are_as_likely_as_ours(llama, name):
    sampler = Sampler(temperature=1.2, top_k=40, top_p=0.9)
    work = Workload(WORK.prompts, new_tokens=40, length=8, batch=2, seed=3, sampler=sampler)
    reference, subject = protocol.Reference(llama, work), peers.subject(llama, name)
    tokens(subject.run, WORK.prompts[0], work)  # scripts its functions
    record, made = trial(subject, work)
    assert reference.judge(record, made).valid, reference.judge(record, made).reason
    assert not np.array_equal(made[:, 0], made[:, 1])
    _, again = trial(subject, work)
    assert np.array_equal(made, again)
    record, greedy = trial(subject, dataclasses.replace(work, sampler=Sampler()))
    assert not reference.judge(record, greedy).valid


@pytest.mark.slow
@pytest.mark.parametrize("family", peers.TWINS)
def test_compiled_tokens_equal_ours(family, quick):
    loaded = small(family)
    reference = protocol.Reference(loaded, WORK)
    for name in COMPILED:
        for prompt in range(3):
            assert answer(loaded, name, WORK, prompt).T.tolist() == [reference.tokens(prompt).tolist()] * 2, name


PADDED = ["torch+static", "torch-script", "torch-script+nocache", *COMPILED]


@pytest.mark.parametrize("name", among_the_fast(("torch+static", "torch-compile"), PADDED))
def test_padding_never_changes_a_token(llama, quick, name):
    eager, subject = peers.subject(llama, "torch"), peers.subject(llama, name)
    for n in EDGES:
        for longer in (0, 9):
            ids, work = some_ids(n, seed=longer), Workload((), new_tokens=2, length=n + longer)
            assert np.array_equal(tokens(subject.run, ids, work), tokens(eager.run, ids, work)), n


def test_a_program_serves_every_length_and_number_of_slots(llama, quick):
    ids = [some_ids(n) for n in (5, 9, 30, 2)]
    works = [Workload((t,), new_tokens=new, length=len(t)) for t, new in zip(ids, (4, 30, 40, 3), strict=True)]
    for name, programs in (
        ("torch-compile", {"prompt_part": 1, "step": 1}),
        ("torch-compile+nocache", {"whole_step": 1}),
    ):
        subject = peers.subject(llama, name)
        with subject.counter() as region:
            for t, work in zip(ids, works, strict=True):
                tokens(subject.run, t, work)
        assert Counter(e.name for e in region.events if e.kind == "backend") == programs
        assert region.seconds("backend") > 0


def test_a_first_request_counts_what_it_compiles_and_a_warm_one_must_not_compile(llama, quick):
    subject = peers.subject(llama, "torch-compile")
    cold, _ = cold_trial(subject, WORK)
    assert (cold.compiled, len(cold.token_times_ns)) == (2, WORK.new_tokens)
    assert 0 < cold.backend_ns < cold.token_times_ns[-1]
    assert "prompt_part, step" in cold.reason
    warm, _ = trial(subject, WORK, prompt=1)
    assert (warm.valid, warm.compiled, warm.backend_ns) == (True, 0, 0)
    other = dataclasses.replace(WORK, batch=3)
    void, _ = trial(subject, other)
    assert (void.valid, void.compiled) == (False, 1)
    assert "prompt_part" in void.reason
    assert protocol.warm_up(subject, other)
    assert trial(subject, other)[0].valid


def test_a_scripts_first_request_counts_its_functions(llama):
    torch_script.scripted.cache_clear()
    subject = peers.subject(llama, "torch-script")
    cold, _ = cold_trial(subject, WORK)
    assert cold.compiled == 2  # what `sample` calls is compiled within it
    assert "pad_or_truncate, sample" in cold.reason
    assert trial(subject, WORK)[0].valid


def test_a_reader_that_leaves_ends_generate(llama):
    stream = peers.subject(llama, "transformers").run([5, 9], dataclasses.replace(WORK, new_tokens=200))
    next(stream)
    assert "generate" in {t.name for t in threading.enumerate()}
    stream.close()
    assert "generate" not in {t.name for t in threading.enumerate()}


def test_subjects_of_a_checkpoint_share_its_weights(llama):
    assert subjects.shared_module(llama) is subjects.shared_module(llama)
    assert subjects.shared_module(small("gpt2")) is not subjects.shared_module(llama)


def test_a_text_beyond_the_context_is_named(llama):
    for name in EAGER:
        with pytest.raises(UserError, match="context of 256"):
            answer(llama, name, Workload(((1,) * 250,), 20, 256))


def test_padding_may_reach_beyond_learned_positions():
    loaded, work = small("gpt2", max_position_embeddings=30), Workload((some_ids(25),), new_tokens=5, length=25)
    plain, padded = (answer(loaded, name, work) for name in ("torch", "torch-script+nocache"))  # to 32 slots
    assert np.array_equal(plain, padded)


def gaps(names, sampler=None):
    return {gap["name"]: f"{gap['reason']} {gap['remedy']}" for gap in peers.missing(names, "x", sampler)}


def test_what_cannot_run_here_or_under_a_sampler_is_a_labelled_gap(llama, monkeypatch):
    drawn = gaps(["torch", "torch-compile", "flax-linen"], Sampler(temperature=0.5))
    assert set(drawn) == {"torch-compile", "flax-linen"}
    assert all("does not sample" in words for words in drawn.values())
    assert "repetition penalty" in gaps(["torch"], Sampler(temperature=0.5, repetition_penalty=1.1))["torch"]
    assert gaps(["flax-linen"], Sampler()) == {}
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    without = gaps(subjects.WAYS)
    assert set(without) == set(subjects.NEEDS_CUDA)
    assert all("CUDA" in words and "make gpu" in words for words in without.values())
    with pytest.raises(peers.UnavailableError, match="need a CUDA device"):
        peers.subject(llama, "torch-cudagraph")
    monkeypatch.setenv("CXX", "no-such-compiler")
    without = gaps(["torch", *COMPILED])
    assert set(without) == set(COMPILED)
    assert "no-such-compiler" in without["torch-compile"]
    monkeypatch.setattr(subjects, "find_spec", lambda package: None)
    assert gaps(["torch"]) == {"torch": "torch is not installed. Run `make setup`."}


@pytest.mark.slow
def test_runner_needs_no_checkpoint_and_a_bare_machine_will_do():
    code = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("pydantic", "papermill", "ollama", "flax"):
            raise ImportError(name + " is not on this machine")
sys.meta_path.insert(0, Absent())
import numpy as np
from llama_jax import config
from llama_lab.bench.workload import Workload
from llama_lab.peers import torch, torch_model
assert "llama_lab.bench.protocol" not in sys.modules and "llama_lab.bench.record" not in sys.modules
from llama_jax.checkpoint import random, tensors
cfg = config.tiny()
params = tensors.assemble(random.open_random(cfg, 0), "float32")
module = torch_model.module(cfg, params)
for name in ("torch", "torch+static", "transformers", "torch-script"):
    run = torch.runner(module, cfg, name)
    print(np.concatenate(list(run([5, 6, 7], Workload((), 4, 3))))[:, 0].tolist())
"""
    lines = python(code, limit=300)[0].splitlines()
    assert len(lines) == 4
    assert len(set(lines)) == 1


@pytest.mark.slow
def test_inductors_programs_make_eagers_tokens(llama):
    torch._dynamo.reset()
    eager = peers.subject(llama, "torch")
    for name in COMPILED:
        subject = peers.subject(llama, name)
        for n in (1, 5, 15, 16, 17):
            ids, work = some_ids(n), Workload((), new_tokens=6, length=n)
            assert np.array_equal(tokens(subject.run, ids, work), tokens(eager.run, ids, work)), (name, n)
