"""The registry: every line leads to a peer, what does not exist is named, what cannot run is a gap."""

import re
import subprocess
import sys
import types

import pytest

from llama_jax.checkpoint import DEFAULT
from llama_jax.plumbing import paths
from llama_jax.plumbing.errors import UserError
from llama_lab import peers
from llama_lab.bench import protocol
from llama_lab.bench.workload import Workload
from llama_lab.peers import flax, ik_llamacpp, llamacpp, openvino
from tests.peers.conftest import small, trial


def test_every_line_leads_to_a_module_with_the_two_functions():
    for name, peer in peers.PEERS.items():
        module = peers.module(name)
        assert callable(module.missing)
        assert callable(module.subject)
        assert peer.description
        assert peer.backend != "jax"  # by which a trial tells placements from peers


def test_names_are_checked():
    with pytest.raises(UserError, match="No such peer: 'flax-lines'. Did you mean .*'flax-linen'"):
        peers.check(["flax-lines"])
    with pytest.raises(UserError, match="named twice: flax-nnx, flax-nnx"):
        peers.check(["flax-nnx", "flax-nnx"])
    peers.check(list(peers.PEERS))


@pytest.mark.parametrize(
    ("names", "module", "installed", "model", "reason", "remedy"),
    [
        (("flax-nnx",), flax, False, "m", "not installed", "make setup"),
        (("llamacpp", "llamacpp+generate", "llamacpp+lookup"), llamacpp, False, DEFAULT, "not installed", "make peers"),
        (("ik-llamacpp", "ik-llamacpp+q4_0"), ik_llamacpp, False, DEFAULT, "not installed", "make peers"),
        (("openvino",), openvino, False, DEFAULT, "not installed", "make peers"),
        (
            ("llamacpp", "llamacpp+q8_0"),
            llamacpp,
            True,
            "random:gpt2",
            "random:gpt2 is none",
            ".gguf",
        ),
        (("ik-llamacpp",), ik_llamacpp, True, "random:gpt2", "ik_llama.cpp reads GGUF files", ".gguf"),
        (("openvino",), openvino, True, "random:gpt2", "OpenVINO GenAI reads GGUF files", ".gguf"),
    ],
)
def test_a_package_or_a_file_that_is_missing_is_a_gap_with_its_remedy(
    llama, monkeypatch, names, module, installed, model, reason, remedy
):
    monkeypatch.setattr(module, "find_spec", lambda name: object() if installed else None)
    gaps = peers.missing(names, model)
    assert [gap["name"] for gap in gaps] == list(names)
    assert all(reason in gap["reason"] and remedy in gap["remedy"] for gap in gaps)
    if installed:
        with pytest.raises(peers.UnavailableError, match="random:tiny is none"):
            peers.subject(llama, names[0])


def test_openvino_reads_no_file_of_another_family(monkeypatch):
    monkeypatch.setattr(openvino, "find_spec", lambda name: object())
    assert peers.missing(["openvino"], DEFAULT) == []
    monkeypatch.setattr(openvino.llamacpp, "no_file", lambda model, whose: None)
    assert "no GGUF file of a gpt2" in peers.missing(["openvino"], "random:gpt2")[0]["reason"]


def test_a_module_that_cannot_be_imported_is_a_gap(monkeypatch):
    monkeypatch.setitem(peers.PEERS, "nowhere", peers.Peer("no_such_module", "x", "x"))
    (gap,) = peers.missing(["nowhere"], "m")
    assert "no_such_module" in gap["reason"]
    with pytest.raises(peers.UnavailableError):
        peers.subject(None, "nowhere")


def test_a_peer_may_refuse_a_model(monkeypatch):
    picky = types.SimpleNamespace(
        missing=lambda name, model: ("It needs a GGUF.", "Give one.") if model == "m" else None
    )
    monkeypatch.setattr(peers, "module", lambda name: picky)
    assert peers.missing(["flax-nnx"], "m") == [dict(name="flax-nnx", reason="It needs a GGUF.", remedy="Give one.")]
    assert peers.missing(["flax-nnx"], "m.gguf") == []
    with pytest.raises(peers.UnavailableError, match="needs a GGUF"):
        peers.require("flax-nnx", "m")


@pytest.mark.slow
def test_nothing_heavy_is_imported_before_a_peer_is_asked_for():
    asked = (
        "import sys, llama_jax, llama_lab.peers as p; p.missing(list(p.PEERS), 'm');"
        " sys.exit(bool({'flax', 'llama_cpp', 'ollama'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", asked], check=False).returncode == 0


def test_the_recipe_is_a_peer_as_it_stands(llama):
    """docs/peers.md's module makes the reference's tokens, and a trial that counts."""
    text = (paths.ROOT / "docs" / "peers.md").read_text(encoding="utf-8").partition("## Add your own")[2]
    (block,) = re.findall(r"```python\n(.*?)```", text, re.S)
    again = types.ModuleType("again")
    exec(block, again.__dict__)
    assert again.missing("again", "any") is None
    work = Workload(((3, 5, 7, 11), (4, 6)), new_tokens=5, length=4)
    subject, reference = again.subject(llama, "again"), protocol.Reference(llama, work)
    for prompt in (0, 1):
        made, tokens = trial(subject, work, prompt)
        judged = reference.judge(made, tokens)
        assert judged.valid, judged.reason
        assert (made.new_tokens, made.weights_hash) == (5, llama.weights_hash)


@pytest.mark.parametrize("name", ["torch", "flax-nnx"])
def test_a_family_without_a_twin_is_a_gap(name):
    with pytest.raises(peers.UnavailableError, match="no twin of a qwen3 with qk_norm in") as caught:
        peers.subject(small("qwen3"), name)
    assert "llamacpp" in caught.value.remedy
