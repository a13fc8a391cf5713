"""The registry: every line leads to a peer, what does not exist is named, what cannot run is a gap."""

import subprocess
import sys
import types

import pytest

from llama_jax import peers
from llama_jax.errors import UserError


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


def test_a_peer_that_is_not_installed_is_a_gap_with_its_remedy(monkeypatch):
    from llama_jax.peers import flax

    assert peers.missing([name for name, peer in peers.PEERS.items() if peer.module == "flax"], "m") == []
    monkeypatch.setattr(flax, "find_spec", lambda name: None)
    (gap,) = peers.missing(["flax-nnx"], "m")
    assert gap["name"] == "flax-nnx"
    assert "not installed" in gap["reason"]
    assert "make setup" in gap["remedy"]


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


@pytest.mark.slow
def test_nothing_heavy_is_imported_before_a_peer_is_asked_for():
    asked = (
        "import sys, llama_jax, llama_jax.peers as p; p.missing(list(p.PEERS), 'm');"
        " sys.exit(bool({'flax', 'llama_cpp', 'ollama'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", asked], check=False).returncode == 0
