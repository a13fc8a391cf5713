"""The map of the notebooks is the notebooks' own: their titles, the manifest's answers, links that lead somewhere."""

import re
from dataclasses import replace

from llama_jax.plumbing import paths
from llama_lab import figures
from llama_lab.reporting import notebooks, tour
from llama_lab.reporting.tour import Question

ASKED = tour.questions()


def test_the_map_has_each_notebooks_question_and_answer_and_a_link_to_it():
    assert [q.name for q in ASKED] == [path.stem for path in notebooks.find() if path.stem != "00-start-here"]
    manifest = figures.read_manifest(paths.ROOT)["notebooks"]
    head, rule, *rows = tour.as_markdown(ASKED).splitlines()
    for row, q in zip(rows, ASKED, strict=True):
        assert len(re.findall(r"(?<!\\)\|", row)) == head.count("|") == rule.count("|")
        (target,) = re.findall(r"\]\(([^)]*\.ipynb)\)", row)
        assert (notebooks.FOLDER / target).is_file()
        assert q.question in row
        assert q.question.endswith("?")
        if q.name in manifest:
            assert q.question.replace("`", "") == manifest[q.name]["question"].replace("`", "")
            assert (q.answer, q.answered) == (manifest[q.name]["finding"], manifest[q.name]["created"] is not None)


def test_a_bar_in_a_question_does_not_break_the_table():
    text = tour.as_markdown([Question("01-x", "a | b?", "", False)])
    assert "a \\| b?" in text
    assert "not measured yet" in text


def test_one_notebook_has_the_main_answer():
    assert list(notebooks.saying("headline")) == ["02-jit-placement"]
    assert set(notebooks.saying("headline")) < set(notebooks.saying("in_readme"))


def test_the_finding_counts_what_is_answered():
    asked = [Question(name, "?", f"Answer {name[:2]}.", True) for name in ("01-x", "02-jit-placement")]
    said = "Of 2 questions 2 are answered from recorded trials. The central one is 02-jit-placement: Answer 02."
    assert tour.finding(asked) == said
    asked[0] = replace(asked[0], answered=False)
    assert "1 are answered from recorded trials (notebook 01 waits to be measured). The" in tour.finding(asked)
    nothing = tour.finding([replace(q, answered=False) for q in asked])
    assert "(notebooks 01 and 02 wait to be measured)" in nothing
    assert "Answer 02" not in nothing


def test_answers_of_out_stand_before_the_repositorys(tmp_path):
    figures.conclude("02-jit-placement", "?", "Mine.", None, tmp_path)
    mine = {q.name: q.answer for q in tour.questions(tmp_path)}
    assert mine == {q.name: q.answer for q in ASKED} | {"02-jit-placement": "Mine."}
    name = "02-jit-placement-throughput"
    assert tour.picture(name, tmp_path)["png"] == paths.ROOT / "figures" / f"{name}.png"
    (tmp_path / "figures" / f"{name}.png").write_bytes(b"")
    assert tour.picture(name, tmp_path)["png"].parent.parent == tmp_path
