"""The runner of experiments: order, processes, journal, resumption, and processes that die."""

import os
import signal
from dataclasses import dataclass, replace
from typing import Annotated

import pytest

from llama_jax import checkpoint
from llama_jax.plumbing.errors import UserError
from llama_lab.bench import lab as labs
from llama_lab.bench import protocol, recorded
from llama_lab.bench.experiment import Experiment, Named, Point, Runner, Seed, check_counts
from llama_lab.bench.journal import Journal
from llama_lab.bench.record import Row, Run
from llama_lab.bench.workload import Workload, blocks
from tests.conftest import TINY

pytestmark = pytest.mark.usefixtures("own_lock")


class Seen(Row):
    """What a process of the experiment below was given."""

    name: str
    pid: int
    model: str
    prompts: int


@dataclass(frozen=True)
class Counting(Experiment):
    """`rows` rows a name, in `processes` of its own."""

    kind = Seen

    names: tuple[str, ...]
    seed: int = 0
    processes: int = 2
    rows: int = 2
    model: str = "m"
    dies: str = ""  # a name whose first process is killed after its first row, or that ends with a mistake

    def check(self):
        check_counts(rows=self.rows)

    def points(self, runner):
        work = Workload(((1, 2),), 3, 4)
        return [
            Point(f"counting {name}", block, self.counted, self.rows, dict(name=name), what=name, workload=work)
            for block, _, name in blocks(self.names, self.processes, self.seed)
        ]

    def counted(self, lab, name):
        for order in range(self.rows):
            lab.progress(f"row of {name}", order, self.rows)
            row = Seen(**lab.identity, order=order, seed=self.seed, phase="warm", valid=True, name="", pid=os.getpid(),
                       model=lab.model, prompts=len(lab.workload.prompts))  # fmt: skip
            lab.keep(row, name=name)
            if self.dies == name and lab.identity["process"] <= 2:
                os.kill(os.getpid(), signal.SIGKILL)
        if self.dies == f"mistaken {name}":
            raise UserError(f"{name} is a mistake; give another.")
        lab.notes["extra"] = name


def free(lab, words):
    """A task that is a function."""
    lab.missing("peer", words, "do something")


def of_rows(rows):
    return [(t.run, t.block, t.process, t.order) for t in rows]


def test_each_point_has_a_process_of_its_own_in_seeded_order():
    heard, journal = [], Journal(kind=Seen)
    rows, about = Counting(["a", "b"]).record(journal, lambda *words: heard.append(words))
    drawn = list(blocks(("a", "b"), 2, 0))
    assert [t.run for t in rows[::2]] == [f"counting {name}" for *_, name in drawn]
    assert [t.process for t in rows] == [1 + i // 2 for i in range(8)]
    assert len({t.pid for t in rows}) == 4
    assert os.getpid() not in {t.pid for t in rows}
    assert {(t.model, t.prompts) for t in rows} == {("m", 1)}
    assert [n["extra"] for n in journal.notes] == [name for *_, name in drawn]
    assert all(n["watch"] and n["affinity"] for n in journal.notes)
    assert heard[:3] == [(drawn[0][2], 0, 4), (f"row of {drawn[0][2]}", 0, 2), (f"row of {drawn[0][2]}", 1, 2)]
    assert about == {}


def test_an_interrupted_run_goes_on(tmp_path):
    experiment, path = Counting(["a", "b"], rows=2, dies="b"), tmp_path / "j.jsonl"
    first = Journal(path, {"n": 1}, kind=Seen)
    with pytest.raises(UserError, match=r"A measuring process \(counting b\) failed: killed by SIGKILL"):
        experiment.record(first)
    left = of_rows(first.trials)
    again = Journal(path, {"n": 1}, kind=Seen)
    assert of_rows(again.trials) == left
    assert again.resumed == len(left)
    rows, _ = replace(experiment, dies="").record(again)
    assert len(rows) == 8
    assert of_rows(again.trials)[: len(left)] == left
    torn = [t for t in again.trials if t not in rows]
    assert [t.run for t in torn] == ["counting b"]  # what the killed process left does not count
    replace(experiment, dies="").record(again)
    assert len(again.trials) == len(left) + 8 - (len(left) - 1)  # nothing is measured twice


def test_a_mistake_is_one_line_here_and_in_a_child():
    with pytest.raises(UserError, match=r"^a is a mistake; give another\.$"):
        Counting(["a"], dies="mistaken a").record()
    journal = Journal(kind=Seen)
    with pytest.raises(UserError, match="rows is 0"):
        Counting(["a"], rows=0).record(journal)
    assert journal.trials == journal.notes == []  # nothing was started


def test_a_function_is_a_task_and_what_cannot_run_is_a_gap():
    runner = Runner(Counting([]), Journal(kind=Seen))
    runner.run([Point("free", 0, free, 1, dict(words="why"), watched=False)])
    assert runner.journal.notes == [dict(process=1, missing=dict(name="peer", reason="why", remedy="do something"))]


def test_a_silent_process_is_stopped():
    with pytest.raises(UserError, match="stopped after 0.1 s without a word"):
        Runner(Counting(["a"]), Journal(kind=Seen), limit=0.1).run(Counting(["a"]).points(None))


def test_its_fields_are_the_parameters_of_a_notebook():
    cell = dict(names=["a", "b"], seed=3, processes=2, rows=4, source="measure", out_dir="")
    experiment = Counting.from_parameters(cell, model="other", dies="")
    assert experiment == Counting(("a", "b"), 3, 2, 4, "other")
    assert experiment.parameters == dict(names=("a", "b"), seed=3, processes=2, rows=4, model="other", dies="")
    with pytest.raises(UserError, match="Counting needs dies, which is not among"):
        Counting.from_parameters(cell, model="other")


def test_a_run_is_read_back():
    assert Run.read(str(Run("layers", 7))) == Run("layers", "7")
    assert Run.read("random:m, x=1 two words") == Run("random:m,", "x=1 two words")
    assert Run.read("main") == Run("main", "")


def test_a_task_runs_with_its_experiment_as_it_was_sent():
    said = []
    fields = dict(names=["a"], rows=1)
    identity, work = dict(run="r", block=0, process=3), dict(prompts=[[1]], new_tokens=1, length=4)
    kind = dict(kind=f"{__name__}:Counting", fields=fields)
    given = dict(identity=identity, model="m", workload=work)
    labs.main(lambda kind, value: said.append((kind, value)), "counted", given, dict(name="a"), kind)
    assert [kind for kind, _ in said] == ["progress", "trial", "note"]
    assert said[1][1]["prompts"] == 1


@dataclass(frozen=True)
class Drawn(Experiment):
    """What recorded data are drawn with."""

    beside = ("questions", "out_dir")

    blocks: int
    contexts: tuple[int, ...]
    seed: Seed
    model: Annotated[str, Named("shapes")]
    questions: str = ""
    out_dir: str = ""


RECORDED = dict(blocks=20, contexts=[8, 16], seed=0, model="random:a")


@pytest.fixture
def drawn(monkeypatch):
    """What papermill sets, as code → what `obtain` says then; "" for nothing."""
    monkeypatch.setattr(recorded, "read", lambda *_: ([], dict(parameters=RECORDED)))

    def say(injected, source="recorded"):
        cell = 'blocks: int = 2\ncontexts: list = [8]\nseed: int = 0\nshapes: str = "random:a"\nmodel: str = "m"\n'
        cells = {"In": ["", f'{cell}out_dir: str = ""', f"# Parameters\n{injected}"], "questions": ""}
        for code in cells["In"]:
            exec(code, cells)
        try:
            Drawn.from_parameters(cells, questions=cells["questions"], out_dir="x").obtain(source, "77-made", "x")
        except UserError as error:
            return str(error)
        return ""

    return say


@pytest.mark.parametrize(
    ("injected", "words"),
    [
        ("blocks = 3", "blocks is 3, and 77-made was recorded with 20; leave out blocks to draw"),
        ("blocks = 2", "blocks is 2, and 77-made was recorded with 20"),  # given, though it is the default
        ("contexts = [8]", "contexts is [8], and 77-made was recorded with [8, 16]"),
        ("shapes = 'random:b'", "shapes is 'random:b', and 77-made was recorded with 'random:a'"),
        ("questions = 'llama'", "questions is 'llama', and 77-made does not say what it was recorded with"),
    ],
)
def test_recorded_data_are_not_drawn_as_what_they_are_not(drawn, injected, words):
    assert drawn(injected).startswith(words)
    assert "-p source measure" in drawn(injected)


@pytest.mark.parametrize(
    "injected",
    ["", "blocks = 20", "contexts = [8, 16]", "seed = 7", "shapes = 'random:a'", "model = 'another'", "out_dir = 'y'"],
)
def test_recorded_data_are_drawn_with_what_they_were_made_with_and_what_only_draws(drawn, injected):
    assert drawn(injected) == ""


def test_another_measurement_does_not_begin_between_two_processes_of_one(monkeypatch, tmp_path):
    ended = []

    def measure(self, runner):
        with protocol.alone() as lock:
            ended.append(lock)
        ended.append(lock.closed)
        return [], {}

    monkeypatch.setattr(Counting, "measure", measure)
    monkeypatch.setattr(recorded, "write", lambda *_, **more: None)
    monkeypatch.setattr(recorded, "read", lambda *_: ([], {}))
    Counting(["a"], model=TINY).obtain("measure", "77-made", tmp_path)
    assert ended == [ended[0], False]
    assert ended[0].closed


def test_every_row_names_a_model_as_the_package_does():
    """Also the rows of a subject that reads the file by itself."""
    assert labs.without_weights("SmolLM2-135M.Instruct").name == checkpoint.DEFAULT
