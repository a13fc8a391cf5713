import io
import time

import numpy as np
from rich.console import Console

from llama_jax import render


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
    assert "TTFT" in out.getvalue()
    assert view.text == "[red]hello[/red]"


def test_html_is_escaped():
    assert "<script>" not in render.as_html(render.View("<script>alert(1)</script>", (1,), 0.1, 0.1))
