import io
import itertools
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from rich.console import Console

from llama_jax import render
from llama_jax.plumbing import compilations
from llama_jax.plumbing.errors import UserError
from llama_jax.tokenizer import BatchTokenizer


def blocks(ids):
    for i in ids:
        time.sleep(0.002)
        yield np.array([[i]], np.int32)


def test_views_grow_and_end_whole(packaged):
    ids = packaged.tokenizer.encode("naïve 🙂 text")
    views = list(render.watch(blocks(ids), packaged.tokenizer))
    assert views[-1].text == "naïve 🙂 text"
    assert [len(v.token_ids) for v in views] == list(range(1, len(ids) + 1))
    assert views[0].tokens_per_second is None
    assert all(v.ttft == views[0].ttft and v.seconds >= v.ttft for v in views)
    assert "tok/s" in views[-1].status


def test_a_pipe_gets_the_text_alone_and_unwrapped(packaged):
    out, text = io.StringIO(), "[red]hello[/red] " * 20
    view = render.show(blocks(packaged.tokenizer.encode(text)), packaged.tokenizer, Console(file=out, width=80))
    assert out.getvalue() == f"{view.text}\n"
    assert view.text.strip() == text.strip()


def test_the_terminal_shows_text_and_rate(packaged):
    out = io.StringIO()
    console = Console(file=out, width=80, force_terminal=True)
    view = render.show(blocks(packaged.tokenizer.encode("[red]hello[/red]")), packaged.tokenizer, console)
    assert "[red]hello[/red]" in out.getvalue()  # the model's text is not markup
    assert "first after" in out.getvalue()
    assert view.text == "[red]hello[/red]"


def test_html_is_escaped():
    assert "<script>" not in render.as_html(render.View("<script>alert(1)</script>", (1,), 0.1, 0.1))


def terminal():
    return Console(file=io.StringIO(), width=80, force_terminal=True)


def pipe():
    return Console(file=io.StringIO(), width=80)


def words():
    for word in ("Blue", " light", " scatters", " most."):
        time.sleep(0.002)
        yield word


@pytest.mark.parametrize("console", [terminal, pipe])
def test_a_plain_generator_of_text_is_shown_and_counted(console):
    screen, began = console(), time.perf_counter()
    with render.token_view(prompt="Why is the sky blue?", console=screen) as view:
        assert view.tps == 0.0
        for n, word in enumerate(words()):
            view.add_token(word)
            assert (view.tps > 0) == (n > 0)
    shown, out = view.view, screen.file.getvalue()
    assert (shown.text, shown.tokens, shown.token_ids) == ("Blue light scatters most.", 4, ())
    assert view.tps == pytest.approx(3 / (shown.seconds - shown.ttft))
    assert 0.002 <= shown.ttft < shown.seconds < time.perf_counter() - began
    if screen.is_terminal:
        assert "> Why is the sky blue?" in out
        assert "4 tokens" in out
    else:
        assert out == "Blue light scatters most.\n"


def compile_something():
    """A program that this process has never seen, some hundredths of a second."""
    jax.jit(lambda x: jnp.sort(jnp.sin(x)) @ x)(jnp.ones(next(sizes)))


sizes = itertools.count(1001)


def test_a_rate_is_of_the_steps_in_which_nothing_was_compiled():
    def tokens():
        compile_something()
        yield "first"
        for i in range(6):
            if i in (0, 3):
                compile_something()
            time.sleep(0.002)
            yield "next"

    views = list(render.watch(tokens()))
    last, early, late = views[-1], *views[-1].compiling
    assert 0 < early < last.ttft
    assert 0 < late < last.seconds - last.ttft
    assert views[1].tokens_per_second is None  # its only step compiled
    assert "the rest took" in views[1].status
    assert last.warm[0] == 4
    assert 4 * 0.002 <= last.warm[1] <= last.seconds - last.ttft - late
    assert last.tokens_per_second == last.warm[0] / last.warm[1]
    assert "without" in last.status


def test_what_another_thread_compiles_spoils_every_step_that_it_reaches_into(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    pace = render.Pace(before=(("load", 2.0),))
    pace.compiled = compilations.Watch()
    for at, compiled in ((1.0, 0.5), (1.1, 0.0), (1.3, 0.0), (1.4, 0.25), (1.6, 0.0)):
        now[0] = at
        if compiled:
            pace.compiled.hear("trace", "f", compiled / 2)
            pace.compiled.hear("backend", "f", compiled)
        pace.arrive(3)
    view = pace.view("", tuple(range(15)))
    assert view.compiling == pytest.approx((0.5, 0.25))
    assert view.warm == pytest.approx((6, 0.3))  # to 1.1 and to 1.6; what ended at 1.4 began at 1.15
    assert view.status == (
        "15 tokens · first after 3.00 s (load 2.00 s, compile 500 ms, prompt 500 ms) · then 20.0 tok/s (without compile"
        " 250 ms)"
    )


def test_a_program_that_is_read_from_a_file_is_no_warm_step():
    pace = render.Pace()
    pace.arrive(1)
    with compilations.keeping():
        time.sleep(0.002)
    pace.arrive(1)
    view = pace.view("ab", pieces=2)
    assert view.tokens_per_second is None
    assert view.keeping[1] >= 0.002 > view.compiling[1] == 0
    assert "with kept programs" in view.status


def test_tracing_alone_takes_its_time_and_spoils_no_step(monkeypatch):
    pace = render.Pace()
    pace.compiled = compilations.Watch()
    pace.arrive(1)
    time.sleep(0.002)
    pace.compiled.hear("trace", "f", 0.001)
    pace.arrive(1)
    view = pace.view("ab", pieces=2)
    assert view.warm[0] == 1
    assert view.compiling[1] == pytest.approx(0.001)


@pytest.mark.parametrize(
    "as_token",
    [int, np.int32, lambda i: np.array([i]), lambda i: jnp.full((1, 1), i), lambda i: [i]],
    ids=["int", "numpy", "[1]", "[1 1]", "list"],
)
def test_ids_need_a_tokenizer_and_have_many_shapes(packaged, as_token):
    ids = packaged.tokenizer.encode("naïve 🙂 text")
    view = render.show((as_token(i) for i in ids), packaged.tokenizer, pipe())
    assert (view.text, view.token_ids) == ("naïve 🙂 text", tuple(ids))
    assert render.show(ids, BatchTokenizer(packaged.tokenizer), pipe()).text == view.text
    with pytest.raises(UserError, match="tokenizer="):
        render.show((as_token(i) for i in ids), console=pipe())


def test_a_block_is_as_many_tokens_at_once(packaged):
    ids = packaged.tokenizer.encode("one two three four")
    for block in (np.array(ids)[:, None], np.array(ids)[None], ids):
        view = render.show([block], packaged.tokenizer, pipe())
        assert (view.tokens, view.tokens_per_second) == (len(ids), None)


@pytest.mark.parametrize(
    ("tokens", "words"),
    [
        ([], "No token came"),
        ([None], "None is not a token"),
        ([True], "True is not a token"),
        ([1.5], "1.5 is not a token"),
        ([-1], "-1 is not a token"),
        ([2**70], "is not a token"),
        ([np.ones((2, 2), int)], "is not a token"),
        ([np.ones(0, int)], "is not a token"),
        ([[[1], [2, 3]]], "is not a token"),
        ([b"a"], "is not a token"),
        (["a", 1], "1 is not text"),
        ([1, "a"], "'a' is text"),
    ],
)
def test_what_is_no_token_is_one_line(packaged, tokens, words):
    with pytest.raises(UserError, match=words):
        render.show(tokens, packaged.tokenizer, pipe())


@pytest.mark.parametrize("console", [terminal, pipe])
def test_what_there_is_stays_when_the_generator_fails(console):
    screen = console()
    with pytest.raises(ZeroDivisionError):
        render.show(("so far" if i == 0 else 1 // 0 for i in range(2)), console=screen)
    assert "so far" in screen.file.getvalue()


def test_jupyter_gets_one_output_that_is_updated(monkeypatch):
    shown = []

    class Handle:
        def update(self, fragment):
            shown[-1] = fragment.data

    def display(fragment, display_id):
        shown.append(fragment.data)
        return Handle()

    monkeypatch.setattr(render, "in_jupyter", lambda: True)
    monkeypatch.setattr("IPython.display.display", display)
    with render.token_view(prompt="<b>" + "long " * 40) as view:
        for word in ("<i>", "end"):
            view.add_token(word)
    (html,) = shown
    assert "&lt;i&gt;end" in html
    assert "&gt; &lt;b&gt;long" in html
    assert len(html) < 600
