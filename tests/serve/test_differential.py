"""The same requests to a real Ollama and to this server, on the same weights: status, type, leave for pages, names and
types of each line, their order."""

import time

import pytest

from llama_jax.plumbing import paths
from llama_lab.peers import ollama, ollama_native
from tests.serve import alike
from tests.serve.alike_requests import BEGUN, COUNT, DIFFERENCES, REQUESTS, table
from tests.serve.test_process import NAME, start


@pytest.fixture(scope="module")
def servers(packaged):
    """(address, model) of this server and of a real Ollama, whose model is loaded."""
    with pytest.MonkeyPatch.context() as patched:
        patched.delenv("OLLAMA_HOST", raising=False)
        model = ollama.connect(packaged).model
    theirs, (process, url) = ollama_native.server(), start("--slots", "2", "--context", "512")
    alike.ask(theirs, model, "POST", "/api/generate", dict(model=model))
    yield (url, NAME), (theirs, model)
    process.terminate()
    process.wait(60)


@pytest.mark.ollama
@pytest.mark.slow
@pytest.mark.timeout(1800)  # Ollama's threads wait for each other spinning, which takes long beside other work
def test_ollamas_requests_get_ollamas_answers_but_where_the_table_says_otherwise(servers):
    seen = {name: [alike.ask(*server, *request) for server in servers] for name, request in REQUESTS.items()}
    found = {name: aspect for name, both in seen.items() if (aspect := alike.aspect(*both))}
    expected = {name: difference.aspect for name, difference in DIFFERENCES.items()}
    told = "\n".join(f"{name}: {one}" for name in found.keys() ^ expected.keys() for one in seen[name])
    assert found == expected, told
    statuses = {name: (str(theirs.status), str(ours.status)) for name, (ours, theirs) in seen.items()}
    assert {name: statuses[name] for name in DIFFERENCES} == {
        name: (difference.theirs[:3], difference.ours[:3]) for name, difference in DIFFERENCES.items()
    }


@pytest.mark.ollama
@pytest.mark.slow
def test_both_say_the_same_greedy_words_and_the_same_again_with_a_seed(servers):
    said = [alike.ask(*server, "POST", "/api/generate", COUNT | dict(stream=False)).documents[0] for server in servers]
    assert said[0]["response"] == said[1]["response"]
    assert [(one["eval_count"], one["done_reason"]) for one in said] == [(6, "length")] * 2
    assert said[0]["prompt_eval_count"] == said[1]["prompt_eval_count"]
    drawn = COUNT | dict(stream=False, options=dict(temperature=2.0, seed=11, num_predict=12))
    for server in servers:
        one, other = (alike.ask(*server, "POST", "/api/generate", drawn).documents[0]["response"] for _ in range(2))
        assert one == other


# the packaged model's turns, as the templates of Ollama's library write them: a last turn of the assistant's is open
LIBRARY = """{{- range $i, $_ := .Messages }}{{- $last := eq (len (slice $.Messages $i)) 1 }}<|im_start|>{{ .Role }}
{{ .Content }}{{ if or (ne .Role "assistant") (not $last) }}<|im_end|>
{{ end }}{{ if and (ne .Role "assistant") $last }}<|im_start|>assistant
{{ end }}{{ end }}"""


@pytest.mark.ollama
@pytest.mark.slow
def test_both_go_on_with_the_same_words_where_the_answer_is_begun(servers):
    ours, (theirs, model) = servers
    created = alike.ask(theirs, model, "POST", "/api/create", {"model": "begun", "from": model, "template": LIBRARY})
    assert created.status == 200
    said = [
        alike.ask(*server, "POST", "/api/chat", BEGUN | dict(stream=False)).documents[0]
        for server in (ours, (theirs, "begun"))
    ]
    assert said[0]["message"] == said[1]["message"]
    assert said[0]["prompt_eval_count"] == said[1]["prompt_eval_count"]


@pytest.mark.ollama
@pytest.mark.slow
@pytest.mark.parametrize("stream", [False, True])
def test_durations_are_in_ns_on_both_sides(servers, stream):
    for server in servers:
        began = time.perf_counter_ns()
        last = alike.ask(*server, "POST", "/api/generate", COUNT | dict(stream=stream)).documents[-1]
        assert not alike.wrong_times(last, time.perf_counter_ns() - began), server
        assert last["done"] is True


@pytest.mark.ollama
@pytest.mark.slow
def test_what_is_shown_of_the_model_is_shown_by_both_under_the_same_names(servers):
    ours, theirs = (alike.ask(*server, "POST", "/api/show", dict(model=server[1])).documents[0] for server in servers)
    assert set(ours) <= set(theirs)
    assert set(ours["model_info"]) <= set(theirs["model_info"])
    for name in ("general.architecture", "llama.block_count", "llama.embedding_length"):
        assert ours["model_info"][name] == theirs["model_info"][name]
    assert ours["details"].keys() == theirs["details"].keys()
    assert ours["capabilities"] == theirs["capabilities"]


def test_the_table_of_differences_is_the_documents():
    text = (paths.ROOT / "docs" / "clients.md").read_text(encoding="utf-8")
    assert table() in text
    assert DIFFERENCES.keys() <= REQUESTS.keys()


def seen(status=200, kind="application/json", leave=None, lines=()):
    return alike.Seen(status, kind, leave, list(lines))


@pytest.mark.parametrize(
    ("other", "found"),
    [(seen(), ""), (seen(status=404), "status"), (seen(kind="text/plain"), "kind"), (seen(leave="*"), "leave"),
     (seen(lines=[dict(a="text")]), "lines")],
)  # fmt: skip
def test_a_difference_is_found(other, found):
    assert alike.aspect(seen(), other) == found


def test_shapes_are_names_and_types():
    when = "2025-01-01T00:00:00.123456789+02:00"
    assert alike.shape(dict(b=1, a=[1, 2], c=dict(d=when))) == dict(a=['"integer"'], b="integer", c=dict(d="time"))
    assert alike.shape(1.0) != alike.shape(1) != alike.shape(True)
    assert alike.in_turn([1, 1, 2, 1]) == [1, 2, 1]
    assert alike.read("text/event-stream", 'data: {"a": 1}\n\ndata: [DONE]\n\n') == [dict(a=1), "[DONE]"]
    assert alike.read("application/x-ndjson", '{"a": 1}\n{"a": 2}\n') == [dict(a=1), dict(a=2)]


@pytest.mark.parametrize(
    ("times", "wrong"),
    [
        (dict(total_duration=900, eval_duration=800, load_duration=50), []),
        (dict(total_duration=900.0, eval_duration=800), ["a duration is no whole number"]),
        (dict(total_duration=1100, eval_duration=800), ["the whole is longer than it took"]),
        (dict(total_duration=0, eval_duration=0), ["the whole is not in ns"]),
        (dict(total_duration=900, eval_duration=901), ["the parts are longer than the whole"]),
    ],
)
def test_wrong_durations_are_found(times, wrong):
    assert alike.wrong_times(times, 1000) == wrong
