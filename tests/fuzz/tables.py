"""Tables, journals, reports and notebooks."""

import json
import shutil
from pathlib import Path

from hypothesis import strategies as st

from llama_lab.bench import journal, record
from llama_lab.reporting import advice, comparison, notebooks, report
from tests.fuzz import hostile


@st.composite
def tables(draw):
    """(a file, what becomes of it)."""
    names = ["table.csv", "table.meta.json", "table.meta.json", "table.jsonl", "table.parquet", "journal.jsonl"]
    name = draw(st.sampled_from(names))
    if name.endswith(".json"):
        return name, ("place", draw(st.integers(0, 10**6)), draw(hostile.values))
    if name.endswith(".jsonl") and draw(st.booleans()):
        return name, ("line", draw(st.integers(0, 12)), draw(st.integers(0, 10**6)), draw(hostile.values))
    return name, draw(st.one_of(hostile.damage(), st.sampled_from([*hostile.ODD, "[" * 200_000])))


def put_document(path: Path, content) -> None:
    """Damage a JSON file, or a line of JSON, at a place that a number names; else as `hostile.put`."""
    if content[0] == "place":
        whole = json.loads(path.read_bytes())
        at = list(hostile.places(whole))
        content = json.dumps(hostile.changed(whole, at[content[1] % len(at)], "put", content[2]))
    elif content[0] == "line":
        lines = path.read_text().splitlines()
        which = content[1] % len(lines)
        whole = json.loads(lines[which])
        at = list(hostile.places(whole))
        lines[which] = json.dumps(hostile.changed(whole, at[content[2] % len(at)], "put", content[3]))
        content = "\n".join(lines) + "\n"
    elif isinstance(content, tuple):
        content = hostile.damaged(path.read_bytes(), content)
    hostile.put(path, content)


def table(example, base: Path, folder: Path) -> str:
    name, content = example
    shutil.copytree(base / "tables", folder / "tables")
    path = folder / "tables" / name
    put_document(path, content)
    if name == "journal.jsonl":
        return str(len(journal.Journal(path, {"plan": "a"}).trials))
    read = folder / "tables" / ("table.csv" if name.endswith(".json") else name)
    record.read(read)
    result = comparison.compare(base / "tables" / "table.csv", read, anyway=True)
    comparison.lines(result)
    wish = advice.Wish(prompt_tokens=8, new_tokens=3)
    return str(len(advice.lines(advice.consult(advice.recorded([read]), "tiny", wish), wish)))


@st.composite
def reports(draw):
    """(a file of the report's folder, what becomes of it)."""
    name = draw(st.sampled_from(["figures/manifest.json"] * 3 + ["data/02-jit-placement.meta.json"] * 2 +
                                ["data/02-jit-placement.csv", "figures/02-jit-placement-speed.svg"]))  # fmt: skip
    if name.endswith(".json") and draw(st.integers(0, 4)):
        return name, ("place", draw(st.integers(0, 10**6)), draw(hostile.values))
    return name, draw(st.one_of(hostile.damage(), st.sampled_from([*hostile.ODD, "[" * 200_000])))


def reported(example, base: Path, folder: Path) -> str:
    name, content = example
    shutil.copytree(base / "report", folder / "report")
    put_document(folder / "report" / name, content)
    report.write(folder / "report")
    return ""


notebooks_damaged = st.one_of(
    st.tuples(st.just("place"), st.integers(0, 10**6), hostile.values),
    hostile.damage(),
    st.sampled_from(["[" * hostile.DEEP, *hostile.ODD]),
)


def notebook(example, base: Path, folder: Path) -> str:
    path = folder / "03-a-notebook.ipynb"
    shutil.copy(base / path.name, path)
    put_document(path, example)
    notebooks.promised(path, folder)
    notebooks.parameters(path, "full", {}, "recorded", folder)
    return notebooks.read_finding(path)
