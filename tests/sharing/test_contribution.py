"""What leaves a machine says what it can do, and not whose it is."""

import json
import os
import re
import socket

import pytest

from llama_jax.plumbing import paths
from llama_jax.plumbing.errors import UserError
from llama_lab import machine
from llama_lab.sharing import contribution, scrub, verification
from tests.sharing import made

SECRETS = ("alice", "Alice Smith", "alices-laptop", "secret", "10.0.0.7", "example.org", "hunter2", "fe80::1")


@pytest.fixture
def hostile(monkeypatch, tmp_path):
    """A user, a host, a home, settings and programs that give themselves away wherever they can."""
    monkeypatch.setenv("USER", "alice")
    monkeypatch.setenv("LOGNAME", "alice")
    monkeypatch.setenv("HOME", "/home/Alice Smith")
    monkeypatch.setenv("HOSTNAME", "alices-laptop.example.org")
    monkeypatch.setattr("platform.node", lambda: "alices-laptop")
    monkeypatch.setattr("getpass.getuser", lambda: "alice")
    environment = made.ENVIRONMENT | {
        "os": "Linux-6.1-alices-laptop-x86_64",
        "host": "alices-laptop",
        "cwd": "/srv/secret",
        "governor": "/home/Alice Smith/governor",
        "blas": [{"library": "openblas", "path": "/home/Alice Smith/lib.so", "version": "0.3.31.188.0"}],
        "settings": {
            "XLA_FLAGS": "--xla_dump_to=/srv/secret/alice --a=-b",
            "JAX_COORDINATOR_ADDRESS": "alices-laptop.example.org:1234",
            "TF_CONFIG": '{"cluster": "10.0.0.7:2222"}',
            "JAX_ALICE_TOKEN": "hunter2",
        },
    }
    trials = made.rows()
    reason = "its process died: [Errno 2] No such file: '/home/Alice Smith/secret.gguf' (alice@example.org)"
    trials[4] = trials[4].model_copy(
        update=dict(valid=False, reason=reason, cause="alice's ~/secret/x.py:3 at fe80::1")
    )
    missing = [dict(name="ollama", reason="No answer at http://10.0.0.7:11434 for alice.", remedy="ssh alices-laptop")]
    processes = [dict(process=1, settings=environment["settings"], host="alices-laptop")]
    parameters = {"model": "smollm2-135m-instruct", "blocks": 6, "journal": "/home/Alice Smith/j.jsonl"}
    made.headline(
        tmp_path, trials, environment, missing=missing, processes=processes, parameters=parameters, owner="alice"
    )
    doctor = made.DOCTOR | {
        "weights": {"path": "/home/Alice Smith/m.gguf"},
        "ollama": {"running": "0.1 at http://10.0.0.7:11434", "built": "1 at /home/Alice Smith/.cache/ollama"},
        "peers": {"llama.cpp": "not here: /opt/secret/lib.so is missing (alice)"},
        "advice": ["OLLAMA_HOST is alices-laptop.example.org:11434; see ../secret/readme"],
        "user": "alice",
    }
    return contribution.build(tmp_path, doctor, ("avx2",))


def test_nothing_of_a_hostile_environment_is_in_it(hostile):
    shown = hostile.text + hostile.path.name
    for secret in SECRETS:
        assert secret.lower() not in shown.lower(), secret
    about = hostile.about
    assert about["environment"]["settings"] == {
        "XLA_FLAGS": f"--xla_dump_to={scrub.GONE} --a=-b",
        "JAX_COORDINATOR_ADDRESS": "set",
        "TF_CONFIG": "set",
        f"JAX_{scrub.GONE}_TOKEN": "set",
    }
    assert about["environment"]["cpu"] == "A B"
    assert about["environment"]["blas"][0]["version"] == "0.3.31.188.0"
    assert verification.staged(hostile).problems == []


def test_nothing_of_this_machine_is_in_it_and_what_was_measured_stays_as_it_was(tmp_path):
    made.headline(tmp_path, environment={**made.ENVIRONMENT, "settings": dict(os.environ)})
    text = contribution.build(tmp_path, made.DOCTOR, ()).text
    assert not re.search(rf"\b{re.escape(socket.gethostname())}\b", text)  # a short one may be within a word
    for own in (str(paths.ROOT), str(tmp_path), os.path.expanduser("~") + "/"):
        assert own not in text
    checked = verification.check(made.contributed(tmp_path))
    assert [t.token_times_ns for t in checked.trials] == [t.token_times_ns for t in made.rows()]
    assert checked.about["doctor"]["bandwidth_gbps"] == 20.0
    assert checked.about["features"] == ["avx2", "fma"]
    assert "path" not in json.dumps(checked.about)


@pytest.mark.parametrize(
    ("said", "left"),
    [
        ("35 tokens/s, 2/3 of it, and/or 1 / 2", None),
        ("jax #39103: right; wrong: 50 instead of 10, 4 of 4 values", None),
        ("2026-11-24T15:43:05Z, 0.3.31.188.0, cpu:0, a::b, x=1", None),
        ("near-tie at token 3", None),
        ("in /tmp/x", "in …"),
        ("-I/opt/own/include", "-I…"),
        ("~/data and ./data and ../data", "… and … and …"),
        ("file:///etc/x ftp://a.b/c", "… …"),
        ("a@b.org, 10.1.2.3:80, node7.site.org:22", "…, …, …"),
        ("step by Bo, boat", "step by …, boat"),
    ],
)
def test_only_what_names_somebody_is_taken_out(said, left):
    assert scrub.text(said, ["bo"], []) == (said if left is None else left)
    assert bool(scrub.shows({"a": [said]})) == (left is not None and "Bo" not in said)


def test_another_machines_results_another_model_and_no_results_are_one_line(tmp_path, monkeypatch):
    with pytest.raises(UserError, match="No recorded data at .*measure first"):
        contribution.build(tmp_path)
    made.headline(tmp_path)
    monkeypatch.setattr(machine, "name", lambda: "another")
    with pytest.raises(UserError, match=f"was measured on {made.MACHINE}, and this is another: contribute it there"):
        contribution.build(tmp_path)
    made.headline(tmp_path, made.rows(model="/home/alice/model.gguf"))
    with pytest.raises(UserError, match="every machine measures smollm2-135m-instruct"):
        contribution.build(tmp_path, made.DOCTOR, ())


def test_a_version_says_when_more_than_it_is_in_there(monkeypatch, tmp_path):
    monkeypatch.setattr(paths, "ROOT", tmp_path)
    (tmp_path / "CHANGELOG.md").write_text("# Changes\n\n## Unreleased\n\n- x\n\n## 0.1.0\n")
    assert contribution.version({"llama-jax": "0.1.0"}) == "0.1.0+unreleased"
    (tmp_path / "CHANGELOG.md").write_text("# Changes\n\n## 0.2.0\n\n- x\n\n## 0.1.0\n")
    assert contribution.version({"llama-jax": "0.2.0"}) == "0.2.0"
