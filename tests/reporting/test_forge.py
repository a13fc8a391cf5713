"""An executed notebook as Markdown: whole, the same for the same data, its links turned, nothing that ends its code."""

import base64
import hashlib

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from llama_jax.plumbing import files, paths
from llama_lab import figures
from llama_lab.reporting import forge, pages
from tests.reporting.test_pages import PNG, output

FIRST = new_markdown_cell(
    "# Is `it` so?\n\nSome *text*.\n\nExecuted, with its figures: [as a page](../docs/notebooks/77-made.md)."
)


@pytest.fixture
def text(tmp_path):
    """A notebook of these cells, executed elsewhere, as Markdown."""

    def made(*cells):
        executed = tmp_path / "out" / "notebooks" / "77-made.ipynb"
        files.write(executed, nbformat.writes(new_notebook(cells=list(cells))))
        written = forge.write(executed, tmp_path)
        assert written == tmp_path / "docs" / "notebooks" / "77-made.md"
        return written.read_text()

    return made


def test_text_code_and_outputs_stand_in_their_order(text, tmp_path):
    figures.conclude("77-made", "Is it?", "It is 2x [1, 3].", None, tmp_path)
    found = text(
        FIRST,
        new_code_cell("# Add\n1 + 1", outputs=[new_output("stream", text="two\n"), output(text_plain="2 < 3")]),
        new_markdown_cell("## The answer\n\n# not a title\n\n| a |\n|---|\n| 1 |"),
    )
    assert found.startswith("# Is it so?\n\n[llama-jax](../../README.md) · [in the report](../index.html#n77)")
    order = ["[as a page](77-made.html)", "> It is 2x [1, 3].", "Some *text*.", "```python\n# Add\n1 + 1\n```"]
    order += ["```text\ntwo\n```", "```text\n2 < 3\n```", "## The answer\n\n# not a title\n\n| a |"]
    places = [found.index(part) for part in order]
    assert places == sorted(places)
    assert found.count("# Is ") == 1
    assert "Executed, with" not in found


def test_neither_run_nor_machine_leaves_a_trace(text, tmp_path):
    cells = [
        FIRST,
        new_code_cell(f'out_dir = "{tmp_path}"', metadata={"tags": ["injected-parameters"]}),
        new_code_cell("show()", outputs=[
            output(text_plain=f"<Thing at 0x7f1234 of {paths.ROOT}/data/x.csv and {tmp_path}/figures>"),
            new_output("stream", name="stderr", text=f"{tmp_path}: a warning"),
        ]),
        new_code_cell("clock()", outputs=[new_output("stream", text="12:34")], metadata={"tags": [pages.LIVE]}),
    ]  # fmt: skip
    found = text(*cells)
    assert "<Thing of data/x.csv and figures>" in found
    assert pages.ASK in found
    assert not any(trace in found for trace in (str(tmp_path), "0x7f", "a warning", "12:34", "out_dir"))
    assert text(*cells) == found


def test_a_figure_is_a_link_and_what_nothing_keeps_is_on_the_page(text, tmp_path):
    picture = new_code_cell("draw()", outputs=[output("display_data", image_png=PNG, text_plain="<Image>")])
    assert "see [the page](77-made.html)" in text(FIRST, picture)
    sha = hashlib.sha256(base64.b64decode(PNG)).hexdigest()
    entry = dict(notebook="77-made", parameters={}, data_sha256="", sha256=dict(png=sha, svg=""), alt="What [1, 2] is.")
    figures.update_manifest(tmp_path, "figures", "77-made-topic", entry)
    found = text(FIRST, picture)
    assert "![What [1, 2] is.](../../figures/77-made-topic.svg)" in found
    assert "base64" not in found


def test_a_table_is_one_paragraph_of_plain_html(text):
    frame = (
        '<div>\n<style scoped>\n.x {}\n</style>\n<table border="1" class="dataframe"><thead>\n\n<tr><th></th></tr>\n'
    )
    frame += "</thead>\n<tbody>\n<tr><td>1</td></tr></tbody></table></div>"
    found = text(FIRST, new_code_cell("t", outputs=[output(text_html=frame, text_plain="a")]))
    (line,) = [line for line in found.splitlines() if "<table" in line]
    assert line.endswith("</table></div>")
    assert "style" not in line


def test_links_lead_to_the_same_place_and_those_in_code_stay(text):
    cell = new_markdown_cell(
        "[03](03-jit-placement.ipynb#the-answer) [x](../docs/xla-cpu.md) [y](https://jax.dev/x.ipynb)\n\n"
        "```\n[a](b.ipynb)\n```\n\nand [z](#here)"
    )
    found = text(FIRST, cell, new_code_cell("m()", outputs=[output(text_markdown="[c](04-c.ipynb)", text_plain="<M>")]))
    for part in (
        "[03](03-jit-placement.md#the-answer) [x](../../docs/xla-cpu.md) [y](https://jax.dev/x.ipynb)",
        "[a](b.ipynb)",
        "and [z](#here)",
        "\n[c](04-c.md)\n",
    ):
        assert part in found


def test_nothing_within_code_ends_it(text):
    found = text(FIRST, new_code_cell("print('x')", outputs=[new_output("stream", text="````\n# not a heading\n")]))
    assert "`````text\n````\n# not a heading\n`````" in found


def test_a_notebook_that_begins_with_code_has_a_title(text):
    assert text(new_code_cell("1")).startswith("# 77-made\n\n")


def test_committed_texts_are_whole_and_name_no_place_on_a_machine():
    found = sorted((paths.ROOT / "docs" / "notebooks").glob("*.md"))
    assert {path.stem for path in found} == {
        path.stem for path in (paths.ROOT / "notebooks").glob("[0-9][0-9]-*.ipynb")
    }
    for path in found:
        words = path.read_text(encoding="utf-8")
        assert len(words) < 200_000, path.name
        assert not any(part in words for part in ("base64", "/tmp/", "/home/", "/root/", " at 0x")), path.name
        assert str(paths.ROOT) not in words, path.name
