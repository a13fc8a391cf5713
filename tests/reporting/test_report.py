"""The report's own parts; that it is whole is tested with the notebooks that fill it."""

import re
import urllib.parse
import xml.etree.ElementTree as ElementTree

import pytest

from llama_jax import figures, paths
from llama_jax.bench import record
from llama_jax.bench.statistics import Ratio
from llama_jax.errors import UserError
from llama_jax.figures.svg import compact
from llama_jax.reporting import overview, report

PICTURES = sorted((paths.ROOT / "figures").glob("0[389]-*.svg"))
LARGEST = 5_000_000  # bytes of a page that opens at once from a disk or a mail


def parts(svg):
    """(how many elements of each kind, their styles, ids asked for, ids there are)."""
    elements = list(ElementTree.fromstring(svg).iter())
    kinds = [e.tag.rpartition("}")[2] for e in elements]
    drawn = {kind: kinds.count(kind) for kind in ("path", "use", "g", "clipPath", "rect")}
    styles = [e.get("style") for e in elements if e.get("style")]
    asked = set(re.findall(r"(?:href=\"|url\()#([\w-]+)", svg))
    return drawn, styles, asked, {e.get("id") for e in elements if e.get("id")}


@pytest.mark.parametrize("path", PICTURES, ids=[p.stem for p in PICTURES])
def test_a_compact_picture_draws_the_same(path):
    before = path.read_text(encoding="utf-8")
    after = compact(before)
    (drawn, styles, _, _), (drawn_after, styles_after, asked, there) = parts(before), parts(after)
    assert drawn == drawn_after
    plain = [re.sub(r"url\(#[^)]*\)", "url", " ".join(s.split())) for s in styles]
    assert plain == [re.sub(r"url\(#[^)]*\)", "url", s) for s in styles_after]  # colours begin with # as ids do
    assert asked <= there
    assert len(after) < 0.8 * len(before)
    places, places_after = (
        [float(n) for d in re.findall(r' d="([^"]*)"', svg) for n in re.findall(r"-?\d+(?:\.\d+)?", d)]
        for svg in (before, after)
    )
    assert len(places) == len(places_after)
    assert max(abs(a - b) for a, b in zip(places, places_after, strict=True)) <= 0.0501


def test_letters_keep_their_places():
    text = (
        '<svg><use xlink:href="#a-1" transform="translate(61.28125 0)"/><use xlink:href="#a-1"'
        ' transform="translate(3 0.0625)"/>'
    )
    expected = '<svg><use href="#0_" x="61.3"/><use href="#0_" transform="translate(3 0.0625)"/>'
    assert compact(text + '<path id="a-1"/></svg>') == expected + '<path id="0_"/></svg>'


def test_an_embedded_picture_is_the_compact_one():
    address = report.embed(PICTURES[0])
    assert '"' not in address
    assert "<" not in address
    assert ElementTree.fromstring(urllib.parse.unquote(address.partition(",")[2])).tag.endswith("svg")


def test_the_page_stays_small():
    assert sum(len(report.embed(path)) for path in (paths.ROOT / "figures").glob("*.svg")) < LARGEST
    assert (paths.ROOT / "docs" / "index.html").stat().st_size < LARGEST


def test_a_missing_picture_is_named(tmp_path):
    with pytest.raises(UserError, match=r"gone.svg is listed in manifest.json but missing"):
        report.embed(tmp_path / "gone.svg")


def test_a_notebook_shows_first_what_it_names_first():
    assert report.in_order(
        "09-time-to-first-token", ["09-time-to-first-token-cold", "mine", "09-time-to-first-token-lengths", "also"]
    ) == ["09-time-to-first-token-lengths", "09-time-to-first-token-cold", "also", "mine"]
    assert (
        report.in_order("06-compile-time", ["06-compile-time-starts", "06-compile-time-stages"])[0]
        == "06-compile-time-stages"
    )
    assert report.in_order("no-such-notebook", ["b", "a"]) == ["a", "b"]


def section(name="03-jit-placement", **more):
    return (
        dict(
            name=name,
            number=name[:2],
            question="Is it so?",
            finding="It is.",
            machine="a machine",
            created="2026-01-01T00:00:00Z",
        )
        | more
    )


def test_a_picture_of_the_readme_is_told_to_those_who_cannot_see_it():
    pictures = [
        dict(name="03-jit-placement-a", alt="What a shows [1, 2]."),
        dict(name="03-jit-placement-b", alt="What b shows."),
    ]
    assert report.findings([section(figures=pictures)]).endswith(
        "\n\n![What a shows [1, 2].](figures/03-jit-placement-a.svg)"
    )
    assert report.findings([section(figures=pictures)], "figures/03-jit-placement-a.svg").endswith(
        "![What b shows.](figures/03-jit-placement-b.svg)"
    )


def test_a_caption_is_the_first_sentence_of_a_description():
    assert (
        report.caption("Seconds against depth, over llama.cpp's. step 61 ms.")
        == "Seconds against depth, over llama.cpp's."
    )
    assert report.caption("Rate 5.24x [4.62, 5.95].") == "Rate 5.24x [4.62, 5.95]."


def test_every_picture_has_words():
    entries = figures.read_manifest(paths.ROOT)["figures"]
    assert entries
    for name, entry in entries.items():
        assert len(entry["alt"]) > 40, name
        assert entry["alt"].count("[") == entry["alt"].count("]"), name  # or Markdown ends it early
        assert "](" not in entry["alt"], name
        assert "\n" not in entry["alt"], name


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (0.0523, "0.052"),
        (0.5, "0.50"),
        (5.236, "5.24"),
        (35.34, "35.3"),
        (99.96, "100.0"),
        (771.6, "772"),
        (22322.1, "22,322"),
    ],
)
def test_numbers_are_short_and_never_powers(number, words):
    assert report.short(number) == words


def test_a_number_of_one_trial_has_no_interval():
    assert report.value(35.34, Ratio(35.34, float("nan"), float("nan"), 1)) == dict(
        value="35.34", words="35.3", interval=""
    )
    assert report.value(5.236, Ratio(5.236, 4.62, 5.95, 6))["interval"] == "[4.62, 5.95]"


def test_a_table_of_ones_own_replaces_the_recorded_one(tmp_path):
    found = [section("06-compile-time")]
    names = [path.stem for _, path, _ in report.tables(tmp_path, found)]
    assert names == ["06-compile-time-starts", "06-compile-time"]
    trials, _ = record.read(paths.ROOT / "data" / "03-jit-placement.csv")
    record.write(tmp_path / "data" / "06-compile-time-starts.csv", trials[:1])
    homes = {path.stem: path.parents[1] for _, path, _ in report.tables(tmp_path, found)}
    assert homes == {"06-compile-time-starts": tmp_path, "06-compile-time": paths.ROOT}


def test_a_line_names_its_setting_and_sorts_by_its_number():
    path = paths.ROOT / "data" / "07-host-loop.csv"
    lines = [report.told(section("07-host-loop"), line) for line in overview.lines(path, overview.about(path))]
    # also where models differ in size alone
    assert len({(s["subject"], s["setting"], s["lengths"]) for s in lines}) == len(lines)
    fast = next(s for s in lines if s["rate"]["words"].count(",") and s["ratio"])
    assert float(fast["rate"]["value"]) >= 1000
    assert fast["first"] is None


def test_machine_and_versions_are_those_of_the_meta_file(tmp_path):
    path = paths.ROOT / "data" / "08-fewer-bits.csv"
    meta = overview.about(path)
    found = report.machine(path, meta, paths.ROOT)
    assert (found["table"], found["here"], found["created"]) == (path.stem, True, meta["created"])
    assert meta["environment"]["git"]["commit"].startswith(found["commit"])
    assert {name: meta["environment"]["packages"].get(name) for name in report.PACKAGES} == found["packages"]
    assert not report.machine(path, meta, tmp_path)["here"]
    bare = {**meta, "environment": {**meta["environment"], "git": None}}
    assert report.machine(path, bare, tmp_path)["commit"] == "unknown"


def test_a_notebook_without_a_question_is_reached_from_the_contents(tmp_path):
    page = tmp_path / "docs" / "notebooks" / "00-start-here.html"
    page.parent.mkdir(parents=True)
    page.write_text("<h1>Start <code>here</code> &amp; now</h1>")
    (page.parent / "77-made.html").write_text("<h1>Is it so?</h1>")
    figures.conclude("77-made", "Is it so?", "It is.", None, tmp_path)
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
    for use in (
        lambda: report.write(tmp_path),
        lambda: figures.update_manifest(tmp_path, "notebooks", "a", {}),
    ):
        with pytest.raises(UserError, match="Remove it, and draw the figures again") as caught:
            use()
        assert words in str(caught.value)
    assert path.read_text() == text
