"""A pipeline that is given its units as they come: each is waited for alone, and none is kept back."""

import threading
from functools import partial

import pytest

from llama_jax.checkpoint import Checkpoint
from llama_jax.config import tiny
from llama_jax.plumbing.errors import UserError
from llama_lab.activations import ActivationSpec, Extractor, extract, finish, pending
from llama_lab.activations.ray_engine import Pipeline
from llama_lab.activations.run import Progress
from tests.conftest import build


@pytest.fixture(scope="module")
def extractor():
    shape = tiny(num_hidden_layers=2)
    loaded = Checkpoint("tiny", shape, build(shape), None, "", "random:", "float32")
    return Extractor(loaded, ActivationSpec("resid_post:0", dtype="float32"), batch=(2, 8))


EXAMPLES = [[n % 90 + 1] * (n % 7 + 1) for n in range(13)]


def content(folder):
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.mark.parametrize("depth", [0, 2])
def test_a_unit_is_committed_before_the_next_is_asked_for(extractor, tmp_path, depth):
    extract(extractor, EXAMPLES, tmp_path / "once", unit=3)
    pipeline = Pipeline(partial(extract, extractor, EXAMPLES, tmp_path / "fed", depth=depth, unit=3))
    for left, unit in ((4, 3), (3, 0), (2, 4), (1, 1)):
        took = pipeline.do(unit)
        assert (took.unit, took.units, took.examples) == (unit, 1, 1 if unit == 4 else 3)
        assert took.tokens == sum(map(len, EXAMPLES[unit * 3 : unit * 3 + 3]))
        assert len(pending(tmp_path / "fed")) == left
    again = pipeline.do(1)  # by another's hands or one's own: it is there
    assert (again.units, again.tokens, again.before) == (0, 0, 3)
    pipeline.do(2)
    report = pipeline.end()
    assert (report.written, report.tokens) == (5, sum(map(len, EXAMPLES)))
    assert finish(tmp_path / "fed")
    assert content(tmp_path / "fed") == content(tmp_path / "once")
    with pytest.raises(RuntimeError, match="ended"):
        pipeline.do(0)


def test_many_ask_at_once_and_one_unit_twice(extractor, tmp_path):
    pipeline = Pipeline(partial(extract, extractor, EXAMPLES, tmp_path / "out", unit=2))
    took = []
    asking = [threading.Thread(target=lambda unit=unit: took.append(pipeline.do(unit))) for unit in [*range(7), 3]]
    for one in asking:
        one.start()
    for one in asking:
        one.join()
    assert sum(done.units for done in took if done.unit != 3) == 6
    assert pending(tmp_path / "out") == []
    assert pipeline.end().written == 7


def test_a_mistake_reaches_all_who_wait_and_all_who_come_later(extractor, tmp_path):
    pipeline = Pipeline(partial(extract, extractor, EXAMPLES, tmp_path / "out", unit=3))
    with pytest.raises(UserError, match="There is no unit 99"):
        pipeline.do(99)
    with pytest.raises(UserError, match="There is no unit 99"):
        pipeline.do(0)
    begun, go = threading.Event(), threading.Event()

    def fails(units, progress):
        progress(Progress(0, 0, 0, 0, 0.0, 0))
        assert next(units) in (1, 2)
        begun.set()
        go.wait(10)
        raise UserError("Disk full.")

    pipeline, heard = Pipeline(fails), []

    def ask(unit):
        with pytest.raises(UserError) as caught:
            pipeline.do(unit)
        heard.append(str(caught.value))

    asking = [threading.Thread(target=ask, args=(unit,)) for unit in (1, 2)]
    for one in asking:
        one.start()
    assert begun.wait(10)
    go.set()
    for one in asking:
        one.join(10)
    assert heard == ["Disk full."] * 2
