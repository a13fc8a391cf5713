"""Whatever is asked for wrongly, of any verb: one line that names the culprit, exit code 2, and nothing written."""

import shlex

import pytest

from tests.checkpoint.test_gguf import write

SMALL = (
    "random:smollm2-135m,num_hidden_layers=2,hidden_size=64,intermediate_size=128,num_attention_heads=4,"
    "num_key_value_heads=2,head_dim=16,max_position_embeddings=256,vocab_size="
)
MISTAKES = [  # (command line, words of the complaint); what stands in braces is in `given`
    ("generate hi --model smolm2-135m-instruct", "Did you mean 'smollm2-135m-instruct'"),
    ("generate hi --model ./none.gguf", "No such file"),
    ("generate hi --model {not_gguf}", "not a GGUF"),
    ("generate hi --model {truncated}", "truncated"),
    ("generate --token-ids 1 --model {mamba}", "mamba"),
    ("generate --token-ids 1 --model {missing}", "missing"),
    ("generate --token-ids 1 --model {misshapen}", "has shape"),
    ("generate hi --model nobody/nothing", "hub"),
    ("generate hi --placement stpe", "Did you mean 'step'"),
    ("generate hi --placement loop+growing", "growing cache"),
    ("generate hi --temperature -1", "temperature is -1"),
    ("generate hi --top-p 1.5", "top_p is 1.5"),
    ("generate hi --seed -3", "'--seed': Input should be greater than or equal to 0; it is '-3'"),
    ("generate hi --top-k many", "--top-k"),
    ("generate hi --max-new-tokens 0", "--max-new-tokens"),
    ("generate", "Give either a prompt"),
    ("generate hi --token-ids 1", "Give either a prompt"),
    ("generate '  '", "empty"),
    ("generate --token-ids 1,x", "whole numbers"),
    ("generate --token-ids 1,97 --model {small}", "97 is outside the vocabulary of 97"),
    ("generate --token-ids 1 -n 300 --model {small}", "context of 256"),
    ("generate hi --model {small}", "no tokenizer"),
    ("generate hi --dtype int3", "int3"),
    ("generate --token-ids 1 --dtype gguf --model {small}", "no GGUF file, so it has no blocks"),
    ("generate --token-ids 1 --placement step+gguf --model {small}", "blocks of its own; use q8_0"),
    ("generate hi --placement step+int8+gemv", "not by int8 weights"),
    ("generate hi --schema ./none.json", "'./none.json'; there is no such file"),
    ("generate hi --schema {not_gguf}", "is not JSON"),
    ("generate hi --schema json --ignore-eos", "--ignore-eos"),
    ("generate --token-ids 1 --schema json --model {small}", "needs a tokenizer"),
    ("generate hi --fast", "--fast"),
    ("extract --sites ln_final --out x --dtype q8_0", "computed in float32 or bfloat16"),
    ("extract --out x", "--sites is missing"),
    ("{extract} --sites resid_pots:1", "Did you mean 'resid_post'"),
    ("{extract} --sites resid_pots:1 --source ./none.jsonl", "Did you mean 'resid_post'"),
    ("{extract} --sites resid_post:9", "layers 0 to 1"),
    ("{extract} --sites resid_post", "needs layers"),
    ("{extract} --sites q:1 --positions first", "--positions is 'first'"),
    ("{extract} --sites q:1 --keep int8", "dtype is 'int8'"),
    ("{extract} --sites q:1 --length 100000", "context of"),
    ("{extract} --sites logits --row-limit 8", "the largest is logits"),
    ("{extract} --sites q:1 --source ./none.jsonl", "none.jsonl"),
    ("{extract} --sites q:1 --source manual", "no tokenizer"),
    ("{extract} --sites q:1 --out {not_gguf}", "not.gguf"),
    ("{extract} --sites q:1 --generate 3 --mesh 1x1", "--generate makes tokens on one device"),
    ("{extract} --sites q:1 --generate 3 --length 2", "as a prompt it must have 1 to 2"),
    ("{extract} --sites q:1 --generate -1", "--generate"),
    ("{extract} --sites q:1 --processes 2 --source -", "Only one process can read standard input"),
    ("{extract} --sites q:1 --processes 2 --mesh 1x2", "a --mesh takes one process"),
    ("{extract} --sites q:1 --processes 9999", "this machine starts at most"),
    ("{extract} --sites q:1 --processes 2 --trace t", "--trace takes one process; leave out --processes"),
    ("{extract} --sites q:1 --shard 0/2 --mesh 1x2", "with --mesh all processes run all units"),
    ("{extract} --sites q:1 --distributed", "--distributed is for a --mesh"),
    ("{extract} --sites q:1 --mesh two", "write DATAxTENSOR"),
    ("{extract} --sites q:1 --shard 2/2", "--shard is 2/2; the index goes from 0 on"),
    ("{extract} --sites q:1 --shard auto", "--shard auto finds no scheduler here"),
    ("{extract} --pending", "holds no run yet"),
    ("{extract} --sites q:1 --engine rai", "--engine is 'rai'. Did you mean 'ray'?"),
    ("{extract} --sites q:1 --address auto", "--address is that of a Ray cluster; add --engine ray."),
    ("{extract} --sites q:1 --engine ray --shard 0/2", "leave out --shard"),
    ("{extract} --sites q:1 --engine ray --mesh 1x2", "--engine ray is for models that fit a device"),
    ("{extract} --sites q:1 --engine ray --trace t.json.gz", "--trace takes one process; leave out --engine ray."),
    ("genrate", "genrate"),
    ("--quiet --verbose models", "contradict"),
    ("bench --placements step,lop", "Did you mean 'loop'"),
    ("bench --placements step,jit:attention.head", "Did you mean 'attend'"),
    ("bench --placements step,attend", "Did you mean 'jit:attend'"),
    ("bench --placements step,step", "named twice"),
    ("bench --placements step --baseline loop", "not among"),
    ("bench --peers flax-linnen", "No such peer: 'flax-linnen'. Did you mean 'flax-linen'"),
    ("bench --peers flax-nnx,flax-nnx", "A peer is named twice"),
    ("bench --profile p --placements step --peers flax-nnx", "leave --peers out"),
    ("bench --threads 999 --model {small} --placements step", "999 threads asked for"),
    ("bench --out results.xlsx", "cannot export to .xlsx"),
    ("bench --out /proc/results.csv", "Cannot write /proc/results.csv"),
    ("bench --journal x.jsonl --out x.jsonl", "both x.jsonl"),
    ("bench --profile p --out x.csv", "measures nothing"),
    ("bench --model {small} --blocks 2 --processes 3", "3 processes for 2 blocks"),
    ("bench --model {small} --prompt-tokens 250", "context of 256"),
    ("bench --suite gpuu --out x", "No such suite: 'gpuu'. Did you mean 'gpu'?"),
    ("bench --suite gpu", "needs one folder"),
    ("bench --suite gpu --out x --out y", "needs one folder"),
    ("bench --suite gpu --out x.csv", "needs one folder"),
    ("bench --suite gpu --out x --blocks 5", "leave out --blocks"),
    ("bench --suite gpu --out x -m random:tiny", "leave out --model"),
    ("bench --suite gpu --out x --top-k 4", "leave out --top-k"),
    ("bench --suite gpu --out x --self-test", "leave out --self-test"),
    ("bench --any-device", "give --suite gpu"),
    ("bench --deterministic", "--deterministic belongs to a suite; give --suite gpu"),
    ("bench --suite", "requires an argument"),
    ("compare ./none.csv ./none.csv", "No recorded data at"),
    ("compare {not_gguf} {not_gguf}", "is not a table"),
    ("run 42", "No such notebook"),
    ("run 02 -p blocs 3", "Did you mean 'blocks'"),
    ("run 02 -p blocks 1e3", "blocks is 1000.0; it must be a whole number"),
    ("run 02 --profile full", "add --measure"),
    ("run 02 -p blocks", "-p NAME VALUE"),
    ("run 02 --profile huge", "quick or full"),
    ("report --out {empty}", "run `llama-jax run` first"),
    ("contribute --results {empty}", "measure first"),
    ("verify results ./none.jsonl", "`llama-jax contribute` writes one"),
    ("verify {empty} {not_gguf}", "leave out"),
    ("verify {empty}", "There are no activations in"),
    ("merge ./a.jsonl --out x.csv", "two journals or more"),
    ("merge ./a.jsonl ./b.jsonl --out x.csv", "There is no file"),
    ("merge ./a.jsonl ./b.jsonl --out x.xlsx", "cannot export to .xlsx"),
    (
        "advise --model smolm2",
        "No data are recorded for smolm2 (recorded: smollm2-135m-instruct); measure it with --measure.",
    ),
    ("advise --memory-mb 1", "No recorded placement meets your limits"),
    ("advise --out x.csv", "--placements and --out belong to --measure"),
    ("advise --placements step", "--placements and --out belong to --measure"),
    ("advise --data x.csv --measure", "choose one"),
    ("advise --data none.csv", "No recorded data at none"),
    ("advise --data {not_gguf}", "is not a table"),
    ("advise --requests 0", "--requests"),
    ("advise --measure --out x.txt", "x.txt"),
    ("advise --measure --placements stpe", "Did you mean 'step'"),
    ("gguf --model {small} --type q5_0 --out m.gguf", "--type is 'q5_0'"),
    ("gguf --model smollm2-135m-instruct --type q8_0 --out m.gguf", "only random weights"),
    ("gguf --model {words} --type q8_0 --out /proc/m.gguf", "Cannot write '/proc/m.gguf'"),
    ("gguf --model {small} --type q8_0", "--out"),
]


@pytest.fixture(scope="module")
def given(tmp_path_factory):
    home = tmp_path_factory.mktemp("given")
    (home / "not.gguf").write_text("hello")
    (home / "empty").mkdir()
    write(home / "truncated.gguf")
    (home / "truncated.gguf").write_bytes((home / "truncated.gguf").read_bytes()[:5000])
    write(home / "mamba.gguf", architecture="mamba")
    write(home / "missing.gguf", skip=("model.norm.weight",))
    write(home / "misshapen.gguf", reshape=("model.layers.0.mlp.up_proj.weight",))
    (home / "ids.jsonl").write_text('{"text": [1, 2, 3]}\n')
    files = {path.stem.replace("not", "not_gguf"): path for path in home.iterdir()}
    extract = f"extract --model {SMALL}97 --source {files['ids']} --out out"
    return {**files, "small": f"{SMALL}97", "words": f"{SMALL}512", "extract": extract}


@pytest.mark.parametrize(("line", "words"), MISTAKES)
def test_a_mistake_is_one_line_and_exit_code_2(call, given, tmp_path, monkeypatch, line, words):
    monkeypatch.setenv("LLAMA_JAX_CACHE", str(tmp_path / "cache"))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    code, out, err = call(*shlex.split(line.format(**given)))
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("error: ")
    assert words in err
    assert {path.name for path in (tmp_path / "here").iterdir()} <= {"out"}  # a folder that a run claimed
    assert not list(tmp_path.rglob("*.safetensors"))
