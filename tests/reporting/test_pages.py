"""An executed notebook as a page: whole, the same for the same data, and without what only one machine or one run
has."""

import base64
import hashlib
import re

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from llama_jax.plumbing import files, paths
from llama_lab import figures
from llama_lab.reporting import pages

PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="  # one point


def output(kind="execute_result", **data):
    return new_output(kind, data={k.replace("_", "/"): v for k, v in data.items()})


@pytest.fixture
def page(tmp_path):
    """A notebook of these cells, executed elsewhere, as a page."""

    def made(*cells, times=("2026-01-01", 1)):
        nb = new_notebook(cells=list(cells))
        for i, cell in enumerate(nb.cells):
            cell.metadata["papermill"] = {"start_time": times[0], "duration": times[1]}
            if cell.cell_type == "code":
                cell.execution_count = times[1] + i
        nb.metadata["papermill"] = {"output_path": str(tmp_path), "start_time": times[0]}
        executed = tmp_path / "out" / "notebooks" / "77-made.ipynb"
        files.write(executed, nbformat.writes(nb))
        written = pages.write(executed, tmp_path)
        assert written == pages.path_of("77-made", tmp_path)
        return written.read_text()

    return made


def test_text_code_and_outputs_stand_in_their_order(page):
    text = page(
        new_markdown_cell("# Is `it` so?\n\nSome *text*."),
        new_code_cell("# Add\n1 + 1", outputs=[new_output("stream", text="two\n"), output(text_plain="2 < 3")]),
        new_markdown_cell("## The answer\n\n| a | b |\n|---|---|\n| 1 | 2 |"),
    )
    order = [
        text.index(part)
        for part in (
            "<h1>Is it so?</h1>",
            "Some <em>text</em>",
            "# Add",
            "two</pre>",
            "2 &lt; 3</pre>",
            '<h2 id="the-answer">The answer</h2>',
            "<td>1</td>",
        )
    ]
    assert order == sorted(order)
    assert '<a href="#the-answer">The answer</a>' in text
    assert "../index.html#n77" not in text  # the report has no such section
    assert text.count("<h1") == 1


def test_neither_time_nor_machine_nor_run_leaves_a_trace(page, tmp_path):
    cells = [
        new_markdown_cell("# Is it so?"),
        new_code_cell(f'# Parameters\nout_dir = "{tmp_path}"', metadata={"tags": ["injected-parameters"]}),
        new_code_cell("show()", outputs=[
            output(text_plain=f"<Thing at 0x7f1234 of {paths.ROOT}/data/x.csv and {tmp_path}/figures>"),
            new_output("stream", name="stderr", text=f"{tmp_path}: a warning"),
            new_output("stream", text="\x1b[31mred\x1b[0m"),
        ]),
    ]  # fmt: skip
    text = page(*cells)
    assert "&lt;Thing of data/x.csv and figures&gt;" in text
    assert ">red</pre>" in text
    assert not re.search(r"0x7f|a warning|out_dir|2026-01-01|\x1b", text)
    assert str(tmp_path) not in text
    assert page(*[new_markdown_cell("# Is it so?"), cells[1], cells[2]], times=("2027-02-02", 9)) == text


def test_a_figure_of_the_manifest_is_shown_from_where_it_lies(page, tmp_path):
    sha = hashlib.sha256(base64.b64decode(PNG)).hexdigest()
    entry = dict(
        notebook="77-made", parameters={}, data_sha256="", sha256=dict(png=sha, svg=""), alt='What is "seen" & said.'
    )
    figures.update_manifest(tmp_path, "figures", "77-made-topic", entry)
    picture = output("display_data", image_png=PNG, text_plain="<Image>")
    text = page(new_markdown_cell("# Is it so?"), new_code_cell("# Draw\ndraw()", outputs=[picture]))
    assert '<img src="../../figures/77-made-topic.svg" alt="What is &#34;seen&#34; &amp; said.">' in text
    assert "base64" not in text
    figures.conclude("77-made", "Is it?", "It is.", None, tmp_path)
    figures.update_manifest(tmp_path, "figures", "77-made-topic", entry | dict(sha256=dict(png="another", svg="")))
    other = page(new_code_cell("# Draw\ndraw()", outputs=[picture]))
    assert f'<img src="data:image/png;base64,{PNG}" alt="Draw">' in other
    assert "<h1>Is it?</h1>" in other
    assert '<a href="../index.html#n77">' in other


def test_a_data_frame_is_a_plain_table(page):
    head = '<thead>\n<tr style="text-align: right;"><th></th><th>a</th></tr></thead>'
    frame = f'<div>\n<style scoped>\n.x {{ }}\n</style>\n<table border="1" class="dataframe">{head}</table></div>'
    text = page(new_code_cell("# Table: all\nt", outputs=[output(text_html=frame, text_plain="a")]))
    assert '<table class="dataframe"><thead><tr><td></td><th>a</th></tr></thead></table>' in text
    assert 'aria-label="Table: all"' in text
    assert "scoped" not in text


def test_a_styled_table_is_the_same_each_time(page):
    import pandas as pd

    frame = pd.DataFrame({"a": [1.0]}, index=pd.Index(["x"], name="who")).style.set_properties(**{"text-align": "left"})
    first, second = (
        page(new_code_cell("t", outputs=[output(text_html=frame._repr_html_(), text_plain="<Styler>")]))
        for _ in range(2)
    )
    other = pd.DataFrame({"a": [1.0]}, index=pd.Index(["x"], name="who")).style
    assert (
        first
        == second
        == page(new_code_cell("t", outputs=[output(text_html=other._repr_html_(), text_plain="<Styler>")]))
    )
    assert "1.000000" in first
    assert 'id="T_' not in first


def test_markdown_that_a_cell_made_is_text(page):
    text = page(
        new_code_cell(
            "map()", outputs=[output(text_markdown="*See* [03](03-jit-placement.ipynb).", text_plain="<Markdown>")]
        )
    )
    assert '<em>See</em> <a href="03-jit-placement.html">03</a>.' in text
    assert "Markdown&gt;" not in text


def test_what_is_live_is_not_frozen(page):
    widget = output("display_data", text_plain="VBox()")
    widget.data[pages.WIDGET] = {"model_id": "abc123"}
    lively = new_code_cell(
        "# Now\nclock()", outputs=[new_output("stream", text="12:34")], metadata={"tags": [pages.LIVE]}
    )
    text = page(lively, new_code_cell("# Play\nplay()", outputs=[widget]))
    assert text.count(pages.ASK) == 2
    assert "12:34" not in text
    assert "abc123" not in text
    assert "clock" in text


@pytest.mark.parametrize(
    ("target", "leads_to"),
    [
        ("03-jit-placement.ipynb", "03-jit-placement.html"),
        ("03-jit-placement.ipynb#the-answer", "03-jit-placement.html#the-answer"),
        ("../docs/xla-cpu.md", "../../docs/xla-cpu.md"),
        ("https://jax.dev/x.ipynb", "https://jax.dev/x.ipynb"),
        ("#here", "#here"),
        ("pictures/a.svg", "../../notebooks/pictures/a.svg"),
    ],
)
def test_links_of_a_notebook_lead_to_the_same_place_from_its_page(target, leads_to):
    text, _ = pages.markdown(f"[there]({target})")
    assert f'href="{leads_to}"' in text


def test_a_page_does_not_lead_to_itself(page):
    line = f"{pages.EXECUTED}as a page](../docs/notebooks/77-made.md)."
    text = page(new_markdown_cell(f"# Is it so?\n\nWords.\n\n{line}\n\n[next](78-x.ipynb)"))
    assert "Executed, with" not in text
    assert "<p>Words.</p>" in text
    assert 'href="78-x.html"' in text
    assert '<a href="77-made.md">' in text  # for forges, among the facts


def test_markup_in_a_notebook_is_text(page):
    text = page(
        new_markdown_cell("# Is it so?\n\n<script>alert(1)</script>"),
        new_code_cell("'<script>'", outputs=[output(text_plain="'<script>'")]),
    )
    assert "<script" not in text


def test_committed_pages_are_small_and_name_no_place_on_a_machine():
    found = sorted((paths.ROOT / "docs" / "notebooks").glob("*.html"))
    assert {path.stem for path in found} == {
        path.stem for path in (paths.ROOT / "notebooks").glob("[0-9][0-9]-*.ipynb")
    }
    for path in found:
        text = path.read_text(encoding="utf-8")
        assert len(text) < 200_000, path.name
        if path.stem == "01-text-generation":  # its attention is computed live, and nothing keeps it
            text = re.sub(r"data:image/png;base64,[\w+/=]+", "", text, count=1)
        assert not re.search(r"base64|/tmp/|/home/|/root/| at 0x", text), path.name
        assert str(paths.ROOT) not in text, path.name
        assert not re.search(r"https?://(?!www\.w3\.org)[^\s\"'<>)]*\.(?:css|js|woff2?)", text), path.name


def test_an_empty_table_says_so(page):
    frame = '<div><table border="1" class="dataframe"><thead><tr><th></th></tr></thead><tbody></tbody></table></div>'
    assert pages.EMPTY in page(new_code_cell("gaps", outputs=[output(text_html=frame, text_plain="Empty DataFrame")]))
