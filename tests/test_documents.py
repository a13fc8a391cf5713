"""What README and docs say of files, commands and constants is so; of commands, what notebooks and the code say too."""

import ast
import csv
import functools
import itertools
import json
import re
import shlex
from collections import Counter
from importlib import import_module
from importlib.util import find_spec

import nbformat
import pytest
import typer

import llama_jax as ll
from llama_jax import placement
from llama_jax.plumbing import paths
from llama_lab import cli
from llama_lab.cli.common import join_pairs
from llama_lab.reporting import notebooks
from tests.fuzz import arena

TEXTS = {
    path.relative_to(paths.ROOT).as_posix(): path.read_text(encoding="utf-8")
    for folder in (".", "docs", "data")
    for path in sorted((paths.ROOT / folder).glob("*.md"))
}
NOTEBOOKS = {path.relative_to(paths.ROOT).as_posix(): path for path in notebooks.find()}
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
    roots.append((paths.ROOT / name).parent)
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
    assert len(text.splitlines()) <= 100
    blocks = [words for words in commands(text) if words[0] == "make"]
    assert [words[1] for words in blocks] == ["figures", "test"]  # the two commands
    assert text.count("![") + text.count("<img ") == 1


def test_the_index_has_every_document():
    index = TEXTS["docs/README.md"]
    assert not [name for name in TEXTS if name.startswith("docs/") and f"]({name[5:]})" not in index + "](README.md)"]


def paragraphs(text):
    """Pieces of some length between empty lines, spaces made one."""
    return {words for part in text.split("\n\n") if len(words := " ".join(part.split())) > 150}


def test_no_paragraph_stands_twice():
    counted = Counter(words for text in TEXTS.values() for words in paragraphs(text))
    assert not [words for words, times in counted.items() if times > 1]


def cells_of(path):
    """Texts of a notebook: its Markdown, its code, and what its cells printed when its page was made."""
    page = paths.ROOT / "docs" / "notebooks" / f"{path.stem}.md"
    printed = re.findall(r"```text\n(.*?)```", page.read_text(encoding="utf-8"), re.S) if page.exists() else []
    return [*("".join(cell["source"]) for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]), *printed]


def strings_of(path):
    """Texts in a module: docstrings, messages, help. What a message fills in is `…`."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.JoinedStr):
            yield "".join(part.value if isinstance(part, ast.Constant) else "…" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def mentioned(text):
    """The words of each command, or option, that stands between backticks in a text; blocks of shell left out."""
    for part in re.split(r"\n\s*\n", re.sub(r"```.*?```", "", text, flags=re.S)):
        for span in re.findall(r"`([^`]+)`", part):
            words = " ".join(span.split()).split(" ")
            if words[0].rpartition("/")[2] in ("llama-jax", "make", "python") or re.match(r"--[a-z]", words[0]):
                yield words


@pytest.fixture(scope="module")
def verbs():
    return typer.main.get_command(cli.program())


def options_of(command):
    return {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}


TARGETS = set(re.findall(r"^([a-z-]+):", (paths.ROOT / "Makefile").read_text(), re.M))
FOREIGN = ("--xla_",)  # options of others that stand alone in a text


def mistaken(words, app):
    """What is wrong with a command that a sentence names, perhaps without all that it needs; "" where nothing is."""
    first, *rest = words
    if first == "make":
        named = [word for word in rest[:1] if re.fullmatch(r"[a-z-]+", word) and word not in TARGETS]
        return f"no target {named[0]}" if named else ""
    if first.rpartition("/")[2] == "python":
        module = rest[1] if rest[:1] == ["-m"] and len(rest) > 1 else None
        if module and find_spec(module) is None:
            return f"no module {module}"
        return mistaken(["llama-jax", *rest[2:]], app) if module == "llama_lab" else ""
    known = options_of(app) | {"--help"}
    if first.startswith("--"):
        known |= {name for command in app.commands.values() for name in options_of(command)}
        rest = words
    elif rest and not rest[0].startswith("-") and rest[0] != "…":
        if rest[0] not in app.commands:
            return f"no verb {rest[0]}"
        known |= options_of(app.commands[rest.pop(0)])
    given = [word.partition("=")[0] for word in rest if re.match(r"--?[a-z]", word) and not word.startswith(FOREIGN)]
    return ", ".join(f"no option {name}" for name in given if name not in known and "…" not in name)


@pytest.mark.parametrize("name", TEXTS | NOTEBOOKS)
def test_every_command_named_in_a_sentence_is_there(name, verbs):
    texts = cells_of(NOTEBOOKS[name]) if name in NOTEBOOKS else [TEXTS[name]]
    found = [(" ".join(words), mistaken(words, verbs)) for text in texts for words in mentioned(text)]
    assert not [(command, wrong) for command, wrong in found if wrong]


def test_every_command_that_the_code_tells_somebody_to_run_is_there(verbs):
    modules = [path for package in ("llama_jax", "llama_lab") for path in (paths.ROOT / package).rglob("*.py")]
    found = [
        (path.name, " ".join(words), mistaken(words, verbs))
        for path in modules
        for text in strings_of(path)
        for words in mentioned(text)
    ]
    assert len(found) > 100
    assert not [each for each in found if each[-1]]


def test_a_command_that_is_not_there_is_found(verbs):
    text = """`llama-jax bench\n--trace out` `llama-jax bnech` `make nosuch` `python -m llama_lab.nosuch` `--nosuch 1`
    `llama-jax bench --profile out` `make setup` `python -m llama_lab bench --nosuch` `llama-jax …` `--out FILE`"""
    assert [wrong for words in mentioned(text) if (wrong := mistaken(words, verbs))] == [
        "no option --trace",
        "no verb bnech",
        "no target nosuch",
        "no module llama_lab.nosuch",
        "no option --nosuch",
        "no option --nosuch",
    ]


def test_every_make_target_in_a_block_is_there():
    for name, text in TEXTS.items():
        named = {words[1] for words in commands(text) if words[:1] == ["make"] and len(words) > 1}
        assert named <= TARGETS, name


@pytest.mark.parametrize("name", TEXTS | NOTEBOOKS)
def test_every_command_line_is_understood(name, verbs):
    """Parsed as the command would, and not run."""
    texts = cells_of(NOTEBOOKS[name]) if name in NOTEBOOKS else [TEXTS[name]]
    for words in itertools.chain(*map(commands, texts)):
        programs = [word.rpartition("/")[2] for word in words]
        if "llama-jax" in programs:
            verb, *rest = join_pairs(words[programs.index("llama-jax") + 1 :])
            verbs.commands[verb].make_context(verb, rest)


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
def test_the_readmes_decode_loop_makes_the_packages_tokens(packaged, monkeypatch, capsys):
    """The same code stands in the README, as an example and in the first notebook."""
    code = (paths.ROOT / "examples" / "decode.py").read_text(encoding="utf-8")
    assert len(code.splitlines()) <= 60
    assert re.findall(r"```python\n(.*?)```", TEXTS["README.md"], re.S) == [code]
    start = nbformat.read(paths.ROOT / "notebooks" / "00-start-here.ipynb", as_version=4)
    assert any(code.strip() in cell.source for cell in start.cells)
    monkeypatch.setattr(ll, "load", lambda: packaged)
    names: dict = {}
    exec(code, names)
    answer = ll.answer(
        ll.build(packaged, "loop"), [names["ids"]], names["SLOTS"] - len(names["ids"]), stop=[names["STOP"]]
    )[0]
    assert capsys.readouterr().out.strip() == packaged.tokenizer.decode(answer.token_ids).strip()


def test_constants_of_the_protocol_are_the_codes():
    text = TEXTS["docs/protocol.md"]
    named = re.findall(r"`(\w+)\.([A-Z_]+)` = ([\d.]*\d)", text)
    assert len(named) >= 8
    for module, name, value in named:
        assert getattr(import_module(f"llama_lab.bench.{module}"), name) == float(value), (module, name)


PARTS = ("Symptom", "Cause", "Cure", "Detected by")
CALLED = re.compile(r"(?:llama_jax|llama_lab|pytest_llama_jax|jax)(?:\.\w+)+")


def troubles(text):
    """{heading: {part: text}} of a page of troubleshooting."""
    sections = re.split(r"^## (.+)$", text, flags=re.M)[1:]
    part = re.compile(rf"^- \*\*({'|'.join(PARTS)})\.\*\* (.+?)(?=\n- \*\*|\Z)", re.M | re.S)
    return {head: dict(part.findall(body.strip())) for head, body in zip(sections[::2], sections[1::2], strict=True)}


def located(name):
    """What a dotted name stands for. Raises ImportError or AttributeError where there is nothing."""
    parts = name.split(".")
    known = max(n for n in range(1, len(parts) + 1) if find_module(".".join(parts[:n])))
    return functools.reduce(getattr, parts[known:], import_module(".".join(parts[:known])))


def find_module(name):
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:  # what stands before the last dot is no package
        return False


def spoken(quote, said):
    """Whether each piece of a quoted message, between what is filled in, is in some text of the code."""
    return all(any(piece in text for text in said) for piece in re.split(r"\s*…\s*", quote) if len(piece) > 1)


def test_every_trouble_has_symptom_cause_cure_and_what_detects_it():
    found = troubles(TEXTS["docs/troubleshooting.md"])
    assert len(found) >= 10
    for head, parts in found.items():
        assert tuple(parts) == PARTS, head
        called = [name for name in re.findall(r"`([^`]+)`", parts["Detected by"]) if CALLED.fullmatch(name)]
        assert called or [*mentioned(parts["Detected by"])], head  # whose commands are looked at above
        assert all(located(name) is not None for name in called), head


def test_every_message_that_is_quoted_as_a_symptom_is_said_by_the_code():
    modules = [path for package in ("llama_jax", "llama_lab") for path in (paths.ROOT / package).rglob("*.py")]
    said = {" ".join(text.split()) for path in modules for text in strings_of(path)}
    quotes = [
        " ".join(quote.split())
        for parts in troubles(TEXTS["docs/troubleshooting.md"]).values()
        for quote in re.findall(r"`([^`]*…[^`]*)`", parts["Symptom"])
    ]
    assert len(quotes) >= 5
    assert [quote for quote in quotes if not spoken(quote, said)] == []
    assert not spoken("Another measurement is … walking", said)


def test_a_detector_that_is_not_there_is_found():
    assert located("llama_lab.bench.guard.Guard.count")
    for name in ("llama_lab.bench.guard.Gard", "llama_lab.bench.gard.Guard"):
        with pytest.raises((ImportError, AttributeError)):
            located(name)
    assert troubles("## A\n\n- **Symptom.** a\n  b\n- **Cure.** c\n\n## B\n\nno list") == {
        "A": {"Symptom": "a\n  b", "Cure": "c"},
        "B": {},
    }


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
