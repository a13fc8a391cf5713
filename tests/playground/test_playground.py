"""The playground, driven from Python as a browser would: fields are set, buttons clicked, and what stands on the page
is read."""

import itertools
import re
import threading
from unittest.mock import Mock

import nbclient
import nbformat
import pytest

from llama_jax import checkpoint, generate
from llama_jax.placement import parse
from llama_jax.plumbing.errors import UserError
from llama_jax.render import View
from llama_lab import playground
from llama_lab.playground import Moment, Wish, view
from llama_lab.playground.view import Playground
from tests.conftest import TINY

WISH = Wish(model=TINY, prompt="1, 2, 3", new_tokens=6)


@pytest.fixture(scope="module")
def shared():
    return Playground(WISH)


@pytest.fixture
def board(shared):
    """A playground of the tiny model, as it stands after other answers; what it still does ends with the test."""
    for name, field in shared.fields.items():
        field.value = getattr(WISH, name)
    shared.rows = []
    shared.say("")
    yield shared
    shared.stop()
    if shared.worker:
        shared.worker.join()


def asked(board, **fields):
    for name, value in fields.items():
        board.fields[name].value = value
    board.go.click()
    if board.worker:
        board.worker.join(60)
    return board


def test_tokens_appear_while_others_are_made_and_what_is_drawn_lags_behind_but_for_the_end(board, monkeypatch):
    for every_s, counts in ((0, [1, 2, 3, 4, 5, 6]), (3600, [1, 6])):
        monkeypatch.setattr(view, "EVERY_S", every_s)
        seen, board.text.value = [], ""
        board.text.observe(lambda change, seen=seen: seen.append(change["new"]), "value")
        asked(board)
        board.text.unobserve_all()
        assert [len(text.split()) for text in seen] == counts
        assert all(later.startswith(earlier) for earlier, later in itertools.pairwise(seen))


def test_sampling_settings_reach_the_model(board):
    def text(**fields):
        return asked(board, placement="step+traced", **fields).text.value

    greedy, drawn = text(), text(temperature=2.0, seed=1)
    assert drawn != greedy
    assert text(seed=2) not in (greedy, drawn)
    assert text(seed=1) == drawn
    assert text(top_k=1) == greedy
    assert text(top_k=0, top_p=1e-6) == greedy


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        (dict(prompt=""), "The prompt is empty"),
        (dict(prompt="  "), "The prompt is empty"),
        (dict(prompt="why?"), "write the prompt as token ids"),
        (dict(prompt="1 2 97"), "Token id 97 is outside the vocabulary of 97"),
        (dict(prompt="1 " * 50_000), "exceed the model&#x27;s context"),
        (dict(prompt="9" * 5_000), "write the prompt as token ids"),
        (dict(model="smollm2-135m-instuct"), "No such model: &#x27;smollm2-135m-instuct&#x27;."),
        (dict(model=" "), "No model is named"),
        (dict(placement="stpe"), "No such placement: &#x27;stpe&#x27;. Did you mean &#x27;step&#x27;"),
        (dict(placement="eager+aot"), "nothing to compile"),
        (dict(new_tokens=0), "new tokens is 0; it must be a whole number, 1 or more"),
        (dict(new_tokens=2**63), "at most 2147483647"),
        (dict(temperature=-1.0), "temperature is -1.0; it must be a number from 0"),
        (dict(temperature=float("nan")), "temperature is nan"),
        (dict(temperature=float("inf")), "temperature is inf"),
        (dict(top_p=0.0), "top_p is 0.0"),
        (dict(top_p=float("nan")), "top_p is nan"),
        (dict(top_k=-1), "top_k is -1"),
        (dict(top_k=2**62), "top_k is 4611686018427387904"),
        (dict(seed=-1), "seed is -1"),
        (dict(seed=2**32), "seed is 4294967296"),
    ],
)
def test_a_mistake_is_one_line_and_the_next_request_works(board, fields, words):
    board.text.value = board.status.value = ""
    asked(board, **fields)
    assert words in board.message.value
    assert "\n" not in board.message.value
    assert (board.text.value, board.status.value, board.rows) == ("", "", [])
    asked(board, **{name: getattr(WISH, name) for name in fields})
    assert board.message.value == ""
    assert board.status.value.endswith("length")


@pytest.mark.parametrize("field", list(Wish.__dataclass_fields__))
@pytest.mark.parametrize("value", [None, True, [], {}, b"x", 1j, "", [1]], ids=repr)
def test_a_wish_of_another_kind_is_one_line(field, value):
    with pytest.raises(UserError, match=field.replace("_", ".")) as caught:
        Wish(**{field: value})
    assert len(str(caught.value)) < 300


def test_a_worker_that_cannot_start_and_a_failure_of_another_kind_are_one_line(board, monkeypatch):
    for what, name in ((view.Worker, "start"), (view, "answer")):
        with monkeypatch.context() as patch:
            patch.setattr(what, name, Mock(side_effect=RuntimeError("out of\nmemory <b>")))
            board.go.click()
            if name == "answer":
                board.worker.join(60)
        assert "memory &lt;b&gt;" in board.message.value
        assert (board.busy, board.go.disabled, board.halt.disabled) == (False, False, True)
    assert board.message.value == "It failed: RuntimeError: out of memory &lt;b&gt;"


def test_a_mistake_loads_nothing(monkeypatch):
    monkeypatch.setattr(checkpoint, "load", lambda name: pytest.fail("loaded"))
    board = asked(Playground(), placement="stpe")
    assert board.worker is None
    assert not board.busy


@pytest.fixture
def slow(monkeypatch):
    """Answers that wait, after their first token, until the test lets them go on; of text that a page must not obey."""
    on, begun = threading.Event(), threading.Event()

    def answer(engine, tokenizer, wish, stopped):
        moment = Moment(View("<script>1</script>", (1,), 0.1, 0.1), 3)
        yield moment
        begun.set()
        assert on.wait(60)
        yield Moment(moment.view, 3, "stopped" if stopped() else "length")

    monkeypatch.setattr(view, "answer", answer)
    return begun, on


def test_a_second_click_is_refused_in_words_and_stop_ends_an_answer(board, slow):
    begun, on = slow
    board.halt.click()  # nothing is being made
    assert board.message.value == ""
    board.go.click()
    assert begun.wait(60)
    assert (board.go.disabled, board.halt.disabled) == (True, False)
    first = board.worker
    board.go.click()  # a browser does not send it, a program may
    assert board.worker is first
    assert "press Stop first" in board.message.value
    board.halt.click()
    assert "Stopping" in board.message.value
    on.set()
    first.join()
    assert board.status.value == "1 token · first after 100 ms · 3 programs compiled · stopped"
    assert board.text.value == "&lt;script&gt;1&lt;/script&gt;"
    assert (board.message.value, board.busy, board.go.disabled, board.halt.disabled) == ("", False, False, True)


def test_stop_leaves_a_real_answer_after_its_block(tiny):
    cfg, params = tiny
    engine = generate.bind(cfg, params, parse("step"))
    made = list(playground.answer(engine, None, Wish(prompt="1 2", new_tokens=50), lambda: True))
    assert [(len(m.view.token_ids), m.end) for m in made] == [(1, ""), (1, "stopped")]


@pytest.mark.slow
def test_a_chat_model_is_asked_in_its_own_template_and_ends_where_it_says(packaged):
    engine = generate.build(packaged, "chunk8")
    wish = Wish(prompt="What is 2 + 2? Answer with one number.", new_tokens=40)
    made = list(playground.answer(engine, packaged.tokenizer, wish))
    assert made[-1].end in ("stop", "length")
    assert (made[-1].end == "stop") == (made[-1].view.token_ids[-1] in packaged.tokenizer.stop)
    assert "<|im_" not in made[-1].view.text
    assert [m.compilations for m in made] == sorted(m.compilations for m in made)


def test_the_table_lists_the_last_answers_newest_first(board):
    asked(board)
    asked(board, placement="loop", temperature=0.5, top_k=3)
    rows = [re.findall(r"<td>(.*?)</td>", row) for row in board.table.value.split("<tr>")[1:]]
    assert [row[0] for row in rows] == [TINY, TINY]
    assert [row[1:4] for row in rows] == [
        ["loop", "temperature 0.5, top-k 3, seed 0", "6, length"], ["step", "greedy", "6, length"]
    ]  # fmt: skip
    board.rows = board.rows * 10
    assert asked(board).table.value.count("<tr>") == view.KEPT


def test_one_model_is_held_at_a_time(board):
    asked(board)
    first = board.engines["step"]
    asked(board, model=TINY + ":1")
    assert board.loaded.name == TINY + ":1"
    assert board.engines["step"] is not first


def test_every_field_of_a_wish_can_be_set_and_without_a_kernel_nothing_is_drawn(board, capsys):
    assert set(board.fields) == set(Wish.__dataclass_fields__)
    playground.show()
    assert capsys.readouterr() == ("", "")


@pytest.mark.slow
def test_headless_it_draws_nothing_and_a_front_end_that_can_ask_gets_the_widgets():
    """nbclient is what papermill and nbconvert run on."""
    nb = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell("from llama_lab import playground; playground.show()")]
    )
    headless = nbclient.NotebookClient(nb, kernel_name="python3").execute()
    assert headless.cells[0].outputs == []
    assert "widgets" not in headless.metadata

    class Attended(nbclient.NotebookClient):
        async def async_start_new_kernel_client(self):
            client = await super().async_start_new_kernel_client()
            client.allow_stdin = True
            return client

    attended = Attended(nb, kernel_name="python3").execute()
    assert "application/vnd.jupyter.widget-view+json" in attended.cells[0].outputs[0].data


@pytest.mark.usefixtures("compiling")  # of the whole module: this test is its last
def test_an_answer_is_the_models_own_and_its_second_compiles_nothing():
    board = asked(Playground(WISH))
    loaded = checkpoint.load(TINY)
    (expected,) = generate.answer(generate.build(loaded, "step"), [[1, 2, 3]], 6)
    assert board.text.value == " ".join(map(str, expected.token_ids))
    first = r"first after [\d.]+ m?s \(compile [\d.]+ m?s, prompt [\d.]+ m?s\)"
    rate = r"then [\d.]+ tok/s \(without compile [\d.]+ m?s\)"
    assert re.fullmatch(rf"6 tokens · {first} · {rate} · [1-9]\d* programs? compiled · length", board.status.value)
    asked(board)
    assert "0 programs compiled" in board.status.value
    assert "compile " not in board.status.value
    assert board.message.value == ""
