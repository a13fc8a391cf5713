"""Hundreds of requests leave a server as it was; and what would not be so is found."""

import collections
import json

import pytest

from tests.serve import forms, soak

ROW = dict(run="soak", block=0, order=0, process=0, seed=0, valid=True, phase="warm", requests=1, cpu_seconds=1.0,
           resident_bytes=10**8, threads=20, descriptors=30, compilations=0, waiting=0, running=0)  # fmt: skip
GOOD = [soak.Look(**ROW)] * soak.ROUNDS
FINE = collections.Counter({("answer", 200): 5, ("malformed", 400): 1, ("vanishes", 0): 1})


@pytest.mark.slow
def test_hundreds_of_requests_leave_nothing_behind():
    looks, outcomes = soak.soak(600, 0)
    assert not soak.complaints(looks, outcomes, growth=0.1), looks
    assert sum(outcomes.values()) == 600
    assert {manner for manner, _ in outcomes} == set(soak.MANNERS)


@pytest.mark.parametrize(
    ("last", "outcomes", "words"),
    [
        (dict(), FINE, ""),
        (dict(resident_bytes=104 * 10**6), FINE, "memory grew by 4.0%"),
        (dict(threads=21), FINE, "threads were 20 after warm-up and are 21"),
        (dict(descriptors=31), FINE, "descriptors were 30"),
        (dict(compilations=1), FINE, "compilations are 1"),
        (dict(running=1), FINE, "running are 1"),
        (dict(), FINE + collections.Counter({("malformed", 500): 2}), "malformed ended with 500, 2 times"),
        (dict(), FINE + collections.Counter({("answer", 503): 1}), "answer ended with 503, 1 times"),
        (dict(), FINE + collections.Counter({("form", 200): 1, ("form", forms.CUT): 1}), ""),
        (dict(), FINE + collections.Counter({("form", forms.INVALID): 3}), "form ended with invalid, 3 times"),
        (dict(), FINE + collections.Counter({("hostile form", 200): 1}), "hostile form ended with 200, 1 times"),
    ],
)
def test_what_grows_or_goes_wrong_is_found(last, outcomes, words):
    found = soak.complaints([*GOOD[:-1], soak.Look(**ROW | last)], outcomes)
    assert len(found) == bool(words)
    assert words in " ".join(found)


def response(*documents, status=200, events=False):
    """Bytes of a response in chunks, a document each."""
    parts = [
        ("data: " if events else "") + json.dumps(each, ensure_ascii=False) + "\n" * (1 + events) for each in documents
    ]
    chunks = b"".join(f"{len(part.encode()):x}\r\n{part}\r\n".encode() for part in parts)
    return f"HTTP/1.1 {status} Any\r\nTransfer-Encoding: chunked\r\n\r\n".encode() + chunks + b"0\r\n\r\n"


def chat(text, reason=None):
    return dict(choices=[dict(delta=dict(content=text), finish_reason=reason)])


TEXT = dict(type="string")


@pytest.mark.parametrize(
    ("said", "found"),
    [
        (response(dict(response='"\u2028', done=False), dict(response='"', done=True, done_reason="stop")), 200),
        (response(dict(message=dict(content="1"), done=True, done_reason="stop")), forms.INVALID),
        (response(chat('"a'), chat('"'), chat("", "stop"), events=True), 200),
        (response(chat('"a'), chat("", "length"), events=True), forms.CUT),
        (response(dict(choices=[dict(text='"a"', finish_reason="stop")])), 200),
        (response(chat('"a"'), dict(error=dict(message="the request failed")), events=True), forms.INVALID),
        (response(dict(error="no"), status=400), 400),
        (response(dict(error=dict(message="no\nwhy")), status=400), forms.LONG),
        (response(chat('"a"', "stop"))[:-9], forms.BROKEN),
        (b"", forms.BROKEN),
    ],
)
def test_what_comes_of_a_form_is_read_off_each_apis_answer(said, found):
    assert forms.outcome(said, TEXT) == found
