"""One table as Markdown and as HTML: the same rows, and nothing in a cell that ends it."""

import re

import pytest
from markupsafe import Markup

from llama_lab.bench.statistics import Ratio
from llama_lab.reporting import document
from llama_lab.reporting.document import Number, Table

ROWS = [("a|b <c>", Markup('<a href="#n">n</a>'), Number("5.2", "5", "[4, 6]")), ("two\nlines", "", None)]
TABLE = Table(("name", "link", "rate"), ROWS, frozenset({2}))


def test_markdown_has_as_many_cells_in_each_line():
    head, rule, *rows = TABLE.markdown().splitlines()
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in (head, rule, *rows)} == {4}
    assert rule == "| --- | --- | ---: |"
    assert rows[0].startswith("| a\\|b <c> |")
    assert rows[0].endswith("| 5 [4, 6] |")
    assert rows[1:] == ["| two lines |  |  |"]


def test_html_escapes_text_keeps_markup_and_says_what_is_sorted_by():
    text = document.templates().get_template("table.html").module.table(TABLE, "id", "title")
    assert '<th scope="row">a|b &lt;c&gt;</th><td><a href="#n">n</a></td>' in text
    assert '<td class="number" data-value="5.2">5 <span>[4, 6]</span></td>' in text
    assert '<td class="number"></td></tr>' in text
    assert text.count('<th scope="col" class="number">') == 1


NUMBERS = {0.0523: "0.052", 0.5: "0.50", 5.236: "5.24", 35.34: "35.3", 99.96: "100.0", 771.6: "772", 22322.1: "22,322"}


def test_numbers_are_short_and_never_powers_and_one_trial_has_no_interval():
    assert {number: document.short(number) for number in NUMBERS} == NUMBERS
    nan = float("nan")
    assert Number.within(35.34, Ratio(35.34, nan, nan, 1)) == Number("35.34", "35.3")
    assert Number.within(5.236, Ratio(5.236, 4.62, 5.95, 6)).interval == "[4.62, 5.95]"


@pytest.mark.parametrize("value", [None, float("nan"), float("inf"), "unknown", True, [1]])
def test_what_is_no_number_is_nothing(value):
    assert document.decimal(value, 2) == ""


def test_outcomes_are_a_row_a_client_and_a_column_a_feature(tmp_path):
    lines = (
        "client,version,feature,outcome,words",
        "a,1,list,works,",
        "b,2,chat_s,fails,it | said",
        "b,2,list,refused,no",
    )
    (tmp_path / "a.csv").write_text("\n".join(lines), encoding="utf-8")
    assert document.of_outcomes(tmp_path / "a.csv").splitlines() == [
        "| client | version | chat s | list |",
        "| --- | --- | --- | --- |",
        "| a | 1 |  | works |",
        "| b | 2 | fails | refused |",
    ]
