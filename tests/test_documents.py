"""What README and docs say of files, commands and constants is so."""

import csv
import itertools
import json
import re
import shlex
from collections import Counter
from importlib import import_module

import pytest
import typer

import llama_jax as ll
from llama_jax import placement
from llama_jax.plumbing import paths
from llama_lab import cli
from llama_lab.cli.common import join_pairs
from tests.fuzz import arena

TEXTS = {
    path.relative_to(paths.ROOT).as_posix(): path.read_text(encoding="utf-8")
    for folder in (".", "docs", "data")
    for path in sorted((paths.ROOT / folder).glob("*.md"))
}
HOUSE = ("llama_jax/", "llama_lab/", "tests/", "notebooks/", "docs/", "data/", "figures/", ".ci/")


def commands(text):
    """Lines of shell blocks, continued ones joined, comments cut."""
    for block in re.findall(r"```bash\n(.*?)```", text, re.S):
        yield from (
            shlex.split(line, comments=True) for line in block.replace("\\\n", " ").splitlines() if line.strip()
        )


def places(text):
    """What stands between backticks or in a link and looks like a place in the repository."""
    named = re.findall(r"`([\w./-]+)`", text) + re.findall(r"\]\(([^)#]+)\)", text)
    return {
        name
        for name in named
        if (name.startswith(HOUSE) or ("/" in name and name.endswith(".py"))) and "NN" not in name
    }


@pytest.mark.parametrize("name", TEXTS)
def test_every_place_named_is_there(name):
    roots = [paths.ROOT / package for package in ("", "llama_jax", "llama_lab")]  # or from a package on
    assert not [place for place in sorted(places(TEXTS[name])) if not any((root / place).exists() for root in roots)]


def anchors(text):
    """Ids of a text's headings, as forges make them."""
    heads = re.findall(r"^#+ (.+)$", re.sub(r"```.*?```", "", text, flags=re.S), re.M)
    return {re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-") for head in heads}


def astray(path, text):
    """Links of a text that lead nowhere from where it lies."""
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        place, _, part = target.partition("#")
        if re.match(r"[a-z]+:", target):
            continue
        there = (path.parent / place).resolve() if place else path
        known = there.read_text(encoding="utf-8") if part and there.is_file() else ""
        ids = anchors(known) if there.suffix == ".md" else re.findall(r'id="([^"]+)"', known)
        if not there.exists() or (part and part not in ids):
            yield target


@pytest.mark.parametrize("name", TEXTS)
def test_every_link_leads_somewhere(name):
    assert not list(astray(paths.ROOT / name, TEXTS[name]))


def test_a_link_that_leads_nowhere_is_found(tmp_path):
    (tmp_path / "a.md").write_text("# One head\n\n## `Two`, and more")
    text = "[1](a.md) [2](a.md#one-head) [3](a.md#two-and-more) [4](https://x.y) [5](b.md) [6](a.md#three)"
    assert list(astray(tmp_path / "c.md", text)) == ["b.md", "a.md#three"]


def test_the_readme_is_short_and_says_what_is_promised():
    text = TEXTS["README.md"]
    assert len(text.splitlines()) <= 120
    blocks = [words for words in commands(text) if words[0] == "make"]
    assert [words[1] for words in blocks] == ["figures", "test"]  # the two commands
    assert text.count("![") == 1
    assert "how-to-read-the-statistics" in anchors(text)


def test_the_index_has_every_document():
    index = TEXTS["docs/README.md"]
    assert not [name for name in TEXTS if name.startswith("docs/") and f"]({name[5:]})" not in index + "](README.md)"]


def paragraphs(text):
    """Pieces of some length between empty lines, spaces made one."""
    return {words for part in text.split("\n\n") if len(words := " ".join(part.split())) > 150}


def test_no_paragraph_stands_twice():
    counted = Counter(words for text in TEXTS.values() for words in paragraphs(text))
    assert not [words for words, times in counted.items() if times > 1]


def test_every_make_target_named_is_there():
    targets = set(re.findall(r"^([a-z-]+):", (paths.ROOT / "Makefile").read_text(), re.M))
    for name, text in TEXTS.items():
        named = {words[1] for words in commands(text) if words[:1] == ["make"] and len(words) > 1}
        named |= set(re.findall(r"`make ([a-z-]+)", text))
        assert named <= targets, name


@pytest.mark.parametrize("name", TEXTS)
def test_every_command_line_is_understood(name):
    """Parsed as the command would, and not run."""
    app = typer.main.get_command(cli.program())
    for words in commands(TEXTS[name]):
        programs = [word.rpartition("/")[2] for word in words]
        if "llama-jax" in programs:
            verb, *rest = join_pairs(words[programs.index("llama-jax") + 1 :])
            app.commands[verb].make_context(verb, rest)


def test_every_placement_named_in_a_command_exists():
    named = [
        name
        for text in TEXTS.values()
        for words in commands(text)
        for option, value in itertools.pairwise(words)
        if option in ("--placement", "--placements")
        for name in value.split(",")
    ]
    assert any(name.startswith("jit:") for name in named)
    assert [placement.parse(name).name for name in named] == named


@pytest.mark.slow
def test_ones_own_placement_runs_as_the_readme_has_it(packaged, monkeypatch, capsys):
    """The block as it stands, and what it says is what `step` says."""
    section = TEXTS["README.md"].partition("## Add your own placement")[2].partition("\n## ")[0]
    (block,) = re.findall(r"```python\n(.*?)```", section, re.S)
    monkeypatch.setattr(ll, "load", lambda: packaged)
    names: dict = {}
    exec(block, names)
    expected = ll.answer(ll.build(packaged, "step"), [names["ids"]], 40)[0].token_ids
    assert capsys.readouterr().out.strip() == packaged.tokenizer.decode(expected).strip()
    assert names["engine"].placement == names["mine"]
    (made,) = [line for line in block.splitlines() if "Placement(" in line]  # one line makes it
    notebook = (paths.ROOT / "notebooks" / "13-your-own-placement.ipynb").read_text(encoding="utf-8")
    assert json.dumps(made)[1:-1] in notebook  # the very line of the notebook


def test_constants_of_the_protocol_are_the_codes():
    text = TEXTS["docs/protocol.md"]
    named = re.findall(r"`(\w+)\.([A-Z_]+)` = ([\d.]*\d)", text)
    assert len(named) >= 8
    for module, name, value in named:
        assert getattr(import_module(f"llama_lab.bench.{module}"), name) == float(value), (module, name)


def cells(line):
    return [cell.strip(" `") for cell in line.strip("|").split("|")]


def test_tables_of_the_trust_page_are_the_recorded_ones():
    def recorded(name):
        return list(csv.DictReader((paths.ROOT / "data" / name).read_text().splitlines()))

    lines = [cells(line) for line in TEXTS["docs/trust.md"].splitlines() if line.startswith("|")]
    assert all(list(row.values()) in lines for row in recorded("disturbed.csv"))
    rows, columns = recorded("fuzz.csv"), ("cases", *arena.BAD[:3])
    before, after = (list(group) for _, group in itertools.groupby(rows, key=lambda row: row["code"]))
    pairs = [(old["boundary"], [old, new]) for old, new in zip(before, after, strict=True)]
    for name, sides in [*pairs, ("all", [before, after])]:
        sums = [sum(int(row[c]) for row in ([s] if isinstance(s, dict) else s)) for s in sides for c in columns]
        assert [name, *map(str, sums)] in lines
    assert not any(int(row["abort"]) or int(row["silent"]) for row in rows)


def test_what_is_looked_at_would_be_missed():
    text = "`docs/no-such.md`, [a](figures/b.svg), `llama_jax/x.py`, `notebooks/NN-topic.ipynb`, `words`"
    assert places(text) == {"docs/no-such.md", "figures/b.svg", "llama_jax/x.py"}
    assert list(commands("```bash\nmake a  # b\nx \\\n  --y\n```")) == [["make", "a"], ["x", "--y"]]
