"""An executed notebook as a page and as Markdown: whole, the same for the same data, and without what only one machine
or one run has."""

import base64
import hashlib
import re

import nbformat
import pandas as pd
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from llama_jax.plumbing import files, paths
from llama_lab import figures
from llama_lab.reporting import notebooks, pages
from tests.reporting import markup

PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="  # one point
TITLE = new_markdown_cell("# Is `it` so?")


def output(kind="execute_result", **data):
    return new_output(kind, data={k.replace("_", "/"): v for k, v in data.items()})


def code(source, *outputs, **metadata):
    return new_code_cell(source, outputs=list(outputs), metadata=metadata)


@pytest.fixture
def written(tmp_path):
    """A notebook of these cells, executed elsewhere, as (page, Markdown)."""

    def made(*cells, day="2026-01-01", count=1):
        nb = new_notebook(cells=list(cells), metadata={"papermill": {"output_path": str(tmp_path), "start_time": day}})
        for i, cell in enumerate(nb.cells):
            cell.metadata["papermill"] = {"start_time": day, "duration": count}
            if cell.cell_type == "code":
                cell.execution_count = count + i
        executed = files.write(tmp_path / "out" / "notebooks" / "77-made.ipynb", nbformat.writes(nb))
        page = pages.write(executed, tmp_path)
        return markup.checked(page.read_text()), page.with_suffix(".md").read_text()

    return made


def in_order(text, *parts):
    places = [text.index(part) for part in parts]
    return places == sorted(places)


def test_text_code_and_outputs_stand_in_their_order(written, tmp_path):
    cells = [
        new_markdown_cell("# Is `it` so?\n\nSome *text*."),
        code("# Add\n1 + 1", new_output("stream", text="two\n"), output(text_plain="2 < 3")),
        new_markdown_cell("## The answer\n\n| a | b |\n|---|---|\n| 1 | 2 |"),
    ]
    page, text = written(*cells)
    heading = '<h2 id="the-answer">The answer</h2>'
    assert in_order(
        page, "<h1>Is it so?</h1>", "<em>text</em>", "# Add", "two</pre>", "2 &lt; 3</pre>", heading, "<td>1</td>"
    )
    assert '<a href="#the-answer">The answer</a>' in page
    assert page.count("<h1") == 1
    fences = ("```python\n# Add\n1 + 1\n```", "```text\ntwo\n```", "```text\n2 < 3\n```")
    assert in_order(text, "# Is it so?", "Some *text*.", *fences, "## The answer\n\n| a |")
    assert "../index.html#n77" not in page + text  # the report has no such section
    figures.conclude("77-made", "Is it?", "It is 2x [1, 3]. So.", None, tmp_path)
    page, text = written(*cells)
    assert in_order(page, '<a href="../index.html#n77">', "<h1>Is it?</h1>", "It is 2x [1, 3].")
    assert in_order(
        text, "[in the report](../index.html#n77)", "[as a page](77-made.html)", "> It is 2x [1, 3].\n>\n> - So\n"
    )
    assert written(code("1"))[1].startswith("# Is it?\n\n")


def test_neither_time_nor_machine_nor_run_leaves_a_trace(written, tmp_path):
    widget = output("display_data", text_plain="VBox()")
    widget.data[pages.WIDGET] = {"model_id": "abc123"}
    cells = [
        TITLE,
        code(f'# Parameters\nout_dir = "{tmp_path}"', tags=["injected-parameters"]),
        code(
            "show()",
            output(text_plain=f"<Thing at 0x7f1234 of {paths.ROOT}/data/x.csv and {tmp_path}/figures>"),
            new_output("stream", name="stderr", text=f"{tmp_path}: a warning"),
            new_output("stream", text="\x1b[31mred\x1b[0m"),
        ),
        code("clock()", new_output("stream", text="12:34"), tags=[pages.LIVE]),
        code("# Play\nplay()", widget),
    ]
    both = page, text = written(*cells)
    assert "&lt;Thing of data/x.csv and figures&gt;" in page
    assert "<Thing of data/x.csv and figures>" in text
    for shown in both:
        assert not re.search(r"0x7f|a warning|out_dir|2026-01-01|\x1b|12:34|abc123", shown)
        assert str(tmp_path) not in shown
        assert shown.count(pages.ASK) == 2
    assert written(*cells, day="2027-02-02", count=9) == both


def test_a_figure_of_the_manifest_is_shown_from_where_it_lies(written, tmp_path):
    picture = code("# Draw\ndraw()", output("display_data", image_png=PNG, text_plain="<Image>"))
    page, text = written(TITLE, picture)
    assert f'<img src="data:image/png;base64,{PNG}" alt="Draw">' in page
    assert "see [the page](77-made.html)" in text
    sha = hashlib.sha256(base64.b64decode(PNG)).hexdigest()
    entry = dict(
        notebook="77-made", parameters={}, data_sha256="", sha256=dict(png=sha, svg=""), alt='"Seen" & [1, 2].'
    )
    figures.update_manifest(tmp_path, "figures", "77-made-topic", entry)
    page, text = written(TITLE, picture)
    assert '<img src="../../figures/77-made-topic.svg" alt="&#34;Seen&#34; &amp; [1, 2].">' in page
    assert '!["Seen" & [1, 2].](../../figures/77-made-topic.svg)' in text
    assert "base64" not in page + text


def frame(rows="<tr><td>1</td></tr>"):
    head = '<thead>\n\n<tr style="text-align: right;"><th></th></tr>\n</thead>'
    return f'<div>\n<style scoped>\n.x {{ }}\n</style>\n<table border="1" class="dataframe">{head}{rows}</table></div>'


def test_a_data_frame_is_a_plain_table_the_same_each_time(written):
    page, text = written(code("# Table: all\nt", output(text_html=frame(), text_plain="a")))
    table = '<table class="dataframe"><thead><tr><td></td></tr></thead><tr><td>1</td></tr></table>'
    assert table in page
    assert 'aria-label="Table: all"' in page
    assert [line for line in text.splitlines() if "<table" in line] == [f"<div>{table}</div>"]
    for shown in written(code("gaps", output(text_html=frame(""), text_plain="Empty DataFrame"))):
        assert pages.EMPTY in shown
    plain, styled = (pd.DataFrame({"a": [1.0]}, index=pd.Index(["x"], name="who")).style for _ in range(2))
    styled.set_properties(**{"text-align": "left"})
    first, *others = [written(code("t", output(text_html=style._repr_html_()))) for style in (styled, styled, plain)]
    assert others == [first, first]
    assert "1.000000" in first[0]
    assert 'id="T_' not in first[0]


@pytest.mark.parametrize(
    ("target", "leads_to"),
    [
        ("02-jit-placement.ipynb", "02-jit-placement.SUFFIX"),
        ("02-jit-placement.ipynb#the-answer", "02-jit-placement.SUFFIX#the-answer"),
        ("../docs/xla-cpu.md", "../../docs/xla-cpu.md"),
        ("https://jax.dev/x.ipynb", "https://jax.dev/x.ipynb"),
        ("#here", "#here"),
        ("pictures/a.svg", "../../notebooks/pictures/a.svg"),
    ],
)
def test_links_of_a_notebook_lead_to_the_same_place_from_its_page(written, target, leads_to):
    made = code("m()", output(text_markdown=f"*Made*: [c]({target})", text_plain="<Markdown>"))
    page, text = written(TITLE, new_markdown_cell(f"[there]({target})\n\n```\n[in code]({target})\n```"), made)
    assert page.count(f'href="{leads_to.replace("SUFFIX", "html")}"') >= 2
    assert f"[there]({leads_to.replace('SUFFIX', 'md')})" in text
    assert f"[c]({leads_to.replace('SUFFIX', 'md')})" in text
    assert f"[in code]({target})" in text
    assert "<em>Made</em>" in page
    assert "Markdown&gt;" not in page


def test_a_page_does_not_lead_to_itself_markup_is_text_and_nothing_within_code_ends_it(written):
    line = f"{pages.EXECUTED}as a page](../docs/notebooks/77-made.md)."
    words = new_markdown_cell(f"# Is it so?\n\nWords.\n\n{line}\n\n[next](78-x.ipynb)\n\n<script>alert(1)</script>")
    fences = new_output("stream", text="````\n# no heading\n")
    page, text = written(words, code("'<script>'", output(text_plain="'<script>'"), fences))
    assert "Executed, with" not in page + text
    assert "<p>Words.</p>" in page
    assert '<a href="77-made.md">' in page  # for forges, among the facts
    assert "<script" not in page
    assert "`````text\n````\n# no heading\n`````" in text


@pytest.mark.parametrize("suffix", ["html", "md"])
def test_committed_pages_are_small_and_name_no_place_on_a_machine(suffix):
    known = {
        path.stem: path.read_text(encoding="utf-8") for path in (paths.ROOT / "docs/notebooks").glob(f"*.{suffix}")
    }
    names = {path.stem: notebooks.former(path.stem) for path in notebooks.sources()}
    for name, before in names.items():
        assert not before or f"{name}.{suffix}" in known.pop(before)  # where a former name leads
    assert known.keys() == names.keys()
    for name, text in known.items():
        assert len(text) < 200_000, name
        if name == "14-text-generation":  # a cell draws one picture live, and nothing keeps it
            text = re.sub(r"data:image/png;base64,[\w+/=]+", "", text, count=1)
        assert not re.search(r"base64|/tmp/|/home/|/root/| at 0x", text), name
        assert str(paths.ROOT) not in text, name
        if suffix == "html":
            markup.checked(text)
