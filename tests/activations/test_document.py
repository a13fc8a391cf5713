"""docs/extraction.md: its numbers are those of the code, its commands have the options that they use, its Python
runs."""

import json
import re
import shlex

import pytest
import typer

import llama_jax as ll
from llama_jax import config
from llama_jax.config import PRESETS
from llama_jax.plumbing import paths
from llama_lab import cli
from llama_lab.activations import shards
from llama_lab.activations.spec import OF_A_LAYER, OF_THE_MODEL, ActivationSpec, row_bytes
from tests.activations.stores import content
from tests.conftest import build

TEXT = (paths.ROOT / "docs" / "extraction.md").read_text()


def table(name):
    """Header and rows of the table under a comment."""
    lines = TEXT.partition(f"<!-- table: {name} -->\n")[2].partition("\n\n")[0].splitlines()
    header, _, *rows = [[cell.strip().strip("`") for cell in line.strip("|").split("|")] for line in lines]
    return header, rows


def size(model, sites):
    shape = PRESETS[model.lower()]
    return row_bytes(ActivationSpec(sites).resolve(shape), shape, 256, 2)


def test_bytes_per_token():
    (_, *sites), rows = table("bytes per token")
    assert len(rows) == 3
    for model, *numbers in rows:
        assert numbers == [f"{size(model, site):,}" for site in sites], model


def test_terabytes():
    labels = sum(dtype.itemsize for dtype in shards.LABELS.values())
    assert f"has {labels} bytes of labels" in TEXT
    (_, _, *tokens), rows = table("terabytes")
    assert len(rows) == 6
    for model, sites, *numbers in rows:
        terabytes = [(size(model, sites) + labels) * 10 ** int(n.removeprefix("10^")) / 1e12 for n in tokens]
        assert numbers == [f"{t:,.1f}" for t in terabytes], (model, sites)


def test_every_site_is_explained():
    for name in (*OF_A_LAYER, *OF_THE_MODEL):
        assert re.search(rf"^\| .*`{name}`.* \| .* \| .* \|$", TEXT, re.M), name


def commands():
    blocks = re.findall(r"```bash\n(.*?)```", TEXT, re.S)
    lines = [line for block in blocks for line in block.splitlines() if "llama-jax" in line]
    return [shlex.split(line[line.index("llama-jax") :])[1:] for line in lines]


@pytest.mark.parametrize("words", commands(), ids=" ".join)
def test_the_command_line_takes_each_command(words):
    verb = typer.main.get_command(cli.program()).commands[words[0]]
    parsed = verb.make_context(
        words[0], list(words[1:])
    ).params  # raises for an option that is not there, or a value of another type
    if words[0] == "extract" and not parsed["pending"]:
        ActivationSpec(" ".join(parsed["sites"]), dtype=parsed["keep"])
        rows = int((parsed["mesh"] or "1x1").partition("x")[0])
        assert parsed["batch"] % rows == 0


def test_the_python_runs_as_it_stands(tmp_path, monkeypatch):
    shape = config.tiny(num_hidden_layers=8)
    monkeypatch.setattr(ll, "load", lambda: ll.Checkpoint("tiny", shape, build(shape), None, "", "random:", "float32"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps({"text": list(range(n))}) + "\n" for n in (9, 60, 30, 40)))
    found = {}
    exec(re.search(r"```python\n(.*?)```", TEXT, re.S)[1], found)
    assert found["report"].rows == 139
    assert found["rows"].shape == (100, shape.hidden_size)
    assert found["first"].shape == (9, shape.hidden_size)
    assert len(found["values"]) == len(found["tokens"]) == 139
    drawn = {line.split()[0].removeprefix("OUT/") for line in re.findall(r"^OUT/.*$", TEXT, re.M)}
    assert content(tmp_path / "activations").keys() == {name.replace("000012", "000000") for name in drawn}
    fields = json.loads((tmp_path / "activations" / "run.json").read_text())
    assert {"model", "tokenizer", "spec", "source", "unit", "batch", "mesh", "versions", "device"} <= fields.keys()
