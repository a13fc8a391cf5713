"""Real clients, in processes of their own, get from a real server what data/clients.csv says."""

import pytest

from llama_jax.plumbing import paths
from llama_lab.reporting import document, keys
from tests.clients import harness, matrix
from tests.serve.test_process import ENDED, start

UNREAD = {("litellm: `ollama/`", "tools")}  # asks for JSON in place of tools


@pytest.fixture(scope="module")
def server():
    process, url = start(*matrix.SERVER)
    yield url
    process.terminate()
    assert process.wait(60) in ENDED


def outcomes(rows):
    return {(row["client"], row["feature"]): row["outcome"] for row in rows}


@pytest.mark.slow
@pytest.mark.parametrize("script", matrix.SCRIPTS, ids=lambda path: path.name)
def test_a_client_gets_what_is_recorded(script, server):
    if reason := matrix.missing(script):
        pytest.skip(reason)
    found, published = outcomes(matrix.tried(script, server)), outcomes(matrix.recorded())
    assert found == {key: published.get(key) for key in found}


def test_what_is_recorded_works_or_is_refused_in_the_servers_words():
    for (client, feature), outcome in outcomes(matrix.recorded()).items():
        if (client, feature) not in UNREAD:
            assert outcome == ("refused" if feature in matrix.REFUSED else "works"), (client, feature)


def test_the_page_has_the_recorded_tables():
    text = (paths.ROOT / "docs" / "clients.md").read_text(encoding="utf-8")
    for name, table in (("clients", document.of_outcomes(matrix.FILE)), ("lm-eval", document.of_csv(harness.FILE))):
        begin, end = keys.marks(name)
        assert f"{begin}\n{table}\n{end}" in text


@pytest.mark.parametrize(
    ("feature", "raised", "words", "outcome"),
    [("chat", False, "Hello! How can I assist you today?", "works"),
     ("chat", False, "assistantassistant", "fails"),
     ("structured_output", False, '{"sky": "red", "rain": true}', "fails"),
     ("tools", True, "tools is not supported by this server", "fails"),
     ("tools", False, "Hello!", "fails"),
     ("another_model", True, "Error code: 404 - model 'x' not found", "refused")],
)  # fmt: skip
def test_an_outcome_is_judged_by_what_was_said(feature, raised, words, outcome):
    told = dict(client="one", version="1", features={feature: (raised, words)})
    assert next(matrix.rows(told))["outcome"] == outcome
