"""The report's own parts; that it is whole is tested with the notebooks that fill it."""

import re
from collections import Counter

import pytest

from llama_jax.plumbing import paths
from llama_jax.plumbing.errors import UserError
from llama_lab import figures
from llama_lab.bench import record, wording
from llama_lab.reporting import report
from llama_lab.reporting.overview import Recorded
from tests.bench.test_record import trial
from tests.reporting import markup

LARGEST = 2_000_000  # bytes of a page that opens at once; its figures lie beside it
SVG = '<svg xmlns:xlink="x" width="9pt" viewBox="0 0 90.34 45.6" version="1.1">'


def section(name="02-jit-placement", **more):
    return dict(name=name, number=name[:2], question="Is it so?", finding="It is.", figures=[]) | more


def drawn(folder, *alts):
    """A manifest with one question and a figure of each description."""
    for at, alt in enumerate(alts):
        entry = dict(notebook="77-made", parameters={}, data_sha256="", sha256=dict(png="", svg=""), alt=alt)
        figures.update_manifest(folder, "figures", f"77-made-{at}", entry)
        (folder / "figures" / f"77-made-{at}.svg").write_text(SVG)
    figures.conclude("77-made", "Is it so?", "It is.", None, folder)


def test_the_page_stays_small_and_whole_and_its_pictures_have_words():
    page = paths.ROOT / "docs" / "index.html"
    assert page.stat().st_size < LARGEST
    markup.checked(page.read_text())
    for name, entry in figures.read_manifest(paths.ROOT)["figures"].items():
        assert len(entry["alt"]) > 40, name
        assert entry["alt"].count("[") == entry["alt"].count("]"), name  # or Markdown ends it early
        assert "](" not in entry["alt"], name
        assert "\n" not in entry["alt"], name


@pytest.mark.parametrize(
    ("image", "words"),
    [(b"<svg width='1'></svg>", "without viewBox"), (b"\xff\xfe", "damaged"), (None, "manifest.json but missing")],
)
def test_a_damaged_or_missing_picture_is_named(tmp_path, image, words):
    drawn(tmp_path, "Rates, tokens/s.")
    path = tmp_path / "figures" / "77-made-0.svg"
    path.unlink() if image is None else path.write_bytes(image)
    with pytest.raises(UserError, match=rf"77-made-0.svg is .*{words}.*run `llama-jax run` again"):
        report.write(tmp_path)


def test_a_notebook_shows_first_what_it_names_first():
    name = "11-time-to-first-token"
    named = [f"{name}-cold", "mine", f"{name}-lengths", "also"]
    assert report.in_order(name, named) == [f"{name}-lengths", f"{name}-cold", "also", "mine"]
    assert report.in_order("no-such-notebook", ["b", "a"]) == ["a", "b"]


def test_a_caption_says_only_what_the_finding_and_the_captions_before_it_do_not(tmp_path):
    drawn(
        tmp_path,
        "Rates, tokens/s. It is. With a <b> it is 2x [1, 3].",
        "More. Rates: with a <b> it is 2x [1, 3]; 5 ms.",
    )
    figures.conclude("77-made", "Is it so?", "It is. With a <b> it is 2x [1, 3]; n = 7.", None, tmp_path)
    page = markup.checked(report.write(tmp_path).read_text())
    assert page.count("it is 2x [1, 3]") == 1, re.findall(".*2x .*", page)
    assert page.count("It is.") == 1
    assert 'width="90" height="46" alt="Rates, tokens/s."' in page
    assert "<figcaption>Rates, tokens/s. <a " in page
    assert 'alt="More. 5 ms."' in page
    assert "<figcaption>More. <a " in page


@pytest.mark.parametrize(
    ("finding", "shown", "details"),
    [
        ("It is 2.5x [2, 3] of it. And 3; b.", ["It is 2.5x [2, 3] of it."], ["And 3", "b"]),
        ("It is faster. Rates; 2.5x [2, 3]; 4.", ["It is faster.", "2.5x [2, 3]"], ["Rates", "4"]),
        ("It waits. Still so.", ["It waits."], ["Still so"]),
    ],
)
def test_a_card_shows_a_number_where_its_finding_has_one(finding, shown, details):
    assert report.lead(finding) == (shown, details)


def test_the_core_is_read_first_and_what_was_not_measured_last(tmp_path):
    for name in ("13-honest", "19-gpu", "01-what", "00-headline", "02-jit"):
        figures.conclude(name, "So?", "Yes.", None, tmp_path)
        entry = figures.read_manifest(tmp_path)["notebooks"][name]
        figures.update_manifest(tmp_path, "notebooks", name, entry | dict(created=None if name == "19-gpu" else "2026"))
    numbers = [section["number"] for section in report.sections(tmp_path)]
    assert numbers == ["00", "01", "02", "13", "19"]
    page = markup.checked(report.write(tmp_path).read_text())
    places = [page.index(f'id="{part}"') for part in ("n02", "appendix-title", "n13", "waiting-title", "n19")]
    assert places == sorted(places)


def test_no_sentence_of_the_page_stands_there_twice():
    texts = markup.texts((paths.ROOT / "docs" / "index.html").read_text())
    parts = [
        part for text in texts for sentence in wording.SENTENCE.split(text) for part in wording.PART.split(sentence)
    ]
    said = Counter(part.strip(" .;,").lower() for part in parts if len(part.split()) > 5)
    labels = re.compile(r"llama-jax run|20\d\d-|.* · 20\d\d-\d\d-\d\d$|.* · notebook \d\d$|.*: its table is ")
    assert len(said) > 150
    assert [part for part, count in said.items() if count > 1 and not labels.match(part)] == []


def test_terms_are_those_of_the_document():
    terms = {t["term"]: t for t in report.terms()}
    assert {"MBU", "TTFT", "Gate", "Scatter", "A/A control"} <= set(terms)
    assert "<em>unstable</em>" in terms["Scatter"]["meaning"]
    assert terms["A/A control"]["id"] == "a-a-control"
    assert all(t["meaning"].endswith(".") and "\n" not in t["meaning"] for t in terms.values())


def test_a_table_of_ones_own_replaces_the_recorded_one(tmp_path):
    trials, _ = record.read(paths.ROOT / "data" / "02-jit-placement.csv")
    record.write(tmp_path / "data" / "05-compile-time-starts.csv", trials[:1])
    homes = {t.path.stem: t.path.parents[1] for t in report.tables(tmp_path, [section("05-compile-time")])}
    assert homes == {"05-compile-time-starts": tmp_path, "05-compile-time": paths.ROOT}


def test_a_line_names_its_setting_and_sorts_by_its_number():
    rows = report.subjects([Recorded(paths.ROOT / "data" / "12-host-loop.csv", section("12-host-loop"))]).rows
    assert len({(row[0], *row[3:5]) for row in rows}) == len(rows)  # also where models differ in size alone
    fast = next(row for row in rows if "," in row[6].words)
    assert float(fast[6].value) >= 1000
    assert fast[7] is None
    assert fast[1] == '<a href="#n12" title="Is it so?">12</a>'


def test_a_line_names_the_whole_file():
    names = {"q/q8_0/avx2": "q/q8_0/avx2", "random:l-1b/q4_0": "l-1b/q4_0, random weights", "/home/x/m.gguf": "m.gguf"}
    assert {model: report.named(model) for model in names} == names
    assert report.named("random:gpt2,num_hidden_layers=2") == "gpt2, other sizes, random weights"


def test_a_card_names_every_machine_of_its_tables(tmp_path):
    around = dict(cores=2, ram_bytes=2**34, packages=dict(jax="1"), python="3")
    found = [record.write(tmp_path / f"77-{cpu}.csv", [trial()], environment=around | dict(cpu=cpu)) for cpu in "AB"]
    about = section("77-A", created="2026", machine="A")
    alone, both = (report.measured(about, [Recorded(path, about) for path in paths]) for paths in (found[:1], found))
    assert alone == ["2026 on A"]
    assert [(" on A," in line, line.rpartition(": ")[2]) for line in both] == [(True, "77-A"), (False, "77-B")]


def test_machine_and_versions_are_those_of_the_meta_file(tmp_path):
    path = paths.ROOT / "data" / "06-fewer-bits.csv"
    known, bare = Recorded(path), Recorded(path)
    vars(bare)["meta"] = {**known.meta, "environment": {**known.meta["environment"], "git": None}}
    here, elsewhere = (report.versions([known, bare], home) for home in (paths.ROOT, tmp_path))
    first, second = (dict(zip(here.heads, row, strict=True)) for row in here.rows)
    assert f">{path.stem}</a>" in first["Table"]
    assert first["Measured"] == known.meta["created"]
    assert known.meta["environment"]["git"]["commit"].startswith(first["Commit"].striptags())
    packages = known.meta["environment"]["packages"]
    assert all(first[name] == packages.get(name, "") for name in first if name in report.PACKAGES)
    assert "unknown" in second["Commit"]
    assert elsewhere.rows[0][0] == path.stem


def test_a_notebook_without_a_question_is_reached_from_the_contents(tmp_path):
    page = tmp_path / "docs" / "notebooks" / "00-start-here.html"
    page.parent.mkdir(parents=True)
    page.write_text("<h1>Start <code>here</code> &amp; now</h1>")
    (page.parent / "77-made.html").write_text("<h1>Is it so?</h1>")
    drawn(tmp_path)
    text = report.write(tmp_path).read_text()
    assert '<a href="notebooks/00-start-here.html">Start here &amp; now</a>' in text
    assert text.count("notebooks/77-made.html") == 1  # in its section


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "is not JSON"),
        ("[" * 200_000, "is not JSON"),
        ("[]", "it holds []"),
        ('{"figures": {}}', "has no notebooks"),
        ('{"figures": [], "notebooks": {}}', "figures is []"),
        ('{"figures": {"../x": 1}, "notebooks": {}}', "figures.../x"),
        ('{"figures": {"x": {"notebook": 5}}, "notebooks": {}}', "figures.x.notebook is 5"),
        ('{"figures": {}, "notebooks": {"03-a": {"question": null}}}', "notebooks.03-a.question is None"),
    ],
)
def test_a_damaged_manifest_is_one_line_and_stays_as_it_is(tmp_path, text, words):
    path = tmp_path / "figures" / "manifest.json"
    path.parent.mkdir()
    path.write_text(text)
    for use in (report.write, lambda out: figures.update_manifest(out, "notebooks", "a", {})):
        with pytest.raises(UserError, match="Remove it, and draw the figures again") as caught:
            use(tmp_path)
        assert words in str(caught.value)
    assert path.read_text() == text
