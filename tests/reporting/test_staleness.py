"""Stale tables are named, and a stale headline ends a run of CI."""

import pytest

from llama_lab import figures
from llama_lab.bench import provenance, record
from llama_lab.cli import program
from llama_lab.figures import style
from llama_lab.reporting import report, staleness
from tests.figures.drawn import META

HEADLINE, OTHER, UNKNOWN = "02-jit-placement", "04-kv-cache", "17-growth"


@pytest.fixture
def home(tmp_path):
    """A table of today's code, one of other code, and one that does not say."""
    today = provenance.describe(["llama_jax.norm"])
    older = {**today, "modules": {**today["modules"], "llama_jax.norm": "0" * 12}}
    for name, code in ((HEADLINE, today), (OTHER, older), (UNKNOWN, None)):
        path = tmp_path / "data" / f"{name}.csv"
        record.write(path, [], environment={}, code=code)
    return tmp_path


def run(capsys, *arguments):
    code = program()(["stale", *arguments], standalone_mode=False)
    said = capsys.readouterr()
    return code or 0, said.out + said.err


def test_tables_are_told_apart(home):
    found = {table.name: table for table in staleness.tables(home)}
    assert (found[HEADLINE].changed, found[OTHER].changed, found[UNKNOWN].changed) == ([], ["llama_jax.norm"], None)
    assert [table.headline for table in found.values()] == [True, False, False]
    assert staleness.some("abcdefgh") == "a, b, c, d, e, f and 2 more"
    assert staleness.lines(list(found.values())) == [
        f"{OTHER}: recorded with older code: llama_jax.norm",
        f"recorded before code was hashed, 1 of 3 tables: {UNKNOWN}",
        "1 of 3 tables are of today's code",
    ]


def test_only_a_headline_of_other_code_fails(home, capsys):
    code, said = run(capsys, "--strict", "--out", str(home))
    assert (code, OTHER in said) == (0, True)
    record.write(home / "data" / f"{HEADLINE}.csv", [], environment={})  # of unknown code
    assert [table.wrong for table in staleness.tables(home)] == [False] * 3
    (home / "data" / f"{OTHER}.csv").rename(home / "data" / f"{HEADLINE}.csv")
    (home / "data" / f"{OTHER}.meta.json").rename(home / "data" / f"{HEADLINE}.meta.json")
    code, said = run(capsys, "--strict", "--out", str(home))
    assert code == 1
    assert f"A headline was recorded with older code: {HEADLINE}." in said
    assert not run(capsys, "--out", str(home))[0]


def test_a_stale_table_changes_no_byte_of_its_figure_and_stands_in_the_manifest(tmp_path):
    today = provenance.describe(["llama_jax.norm"])
    older = {**today, "modules": {**today["modules"], "llama_jax.gone": "0" * 12}}
    drawn, complaints = [], []
    for code in (today, older, None):
        figure, _ = style.new()
        paths = figures.save(figure, "x", "nb", {**META, "code": code}, {}, "alt", tmp_path)
        drawn.append({kind: path.read_bytes() for kind, path in paths.items()})
        entry = figures.read_manifest(tmp_path)["figures"]["x"]
        complaints.append(entry.get("complaint"))
        assert report.figure("x", entry, tmp_path, [])["complaint"] == (entry.get("complaint") or "")
    assert complaints == [None, provenance.OLDER, provenance.UNKNOWN]
    assert drawn[0] == drawn[1] == drawn[2]
