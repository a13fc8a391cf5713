"""The chart of every answer: what the page holds of each run."""

import json

from llama_lab.reporting import answers
from tests.reporting.test_readme import run


def test_every_valid_answer_is_there_in_its_place_and_the_fastest_subject_comes_first():
    made = run(("step", "loop+fused"))
    void = made.rows[0].model_copy(update=dict(valid=False, reason="compiled in the timed region", order=99))
    made.rows.append(void)
    page = answers.chart({"a run": made})
    assert page["titles"] == ["a run"]
    assert "chart.js" in page["library"][:200].lower()
    (entries,) = json.loads(page["answers"])
    assert entries[0]["name"] == "loop+fused"
    places = [place for entry in entries for place, _, _ in entry["answers"]]
    assert len(set(places)) == len(places) == len(made.rows) - 1
    assert {rate for _, rate, _ in entries[0]["answers"]} == {
        float(f"{t.tg:.4g}") for t in made.rows if t.subject == "loop+fused"
    }
    looks = [(entry["colour"], entry["shape"]) for entry in entries]
    assert len(set(looks)) == len(looks)  # a twin has its subject's colour


def test_a_name_cannot_end_the_script_that_holds_it():
    made = run(("step",))
    made.rows.append(made.rows[0].model_copy(update=dict(subject="</script>")))
    page = answers.chart({"a run": made})
    assert "</" not in page["answers"]


def test_a_page_without_runs_holds_no_library():
    assert answers.chart({}) == {}
