"""After a refactoring tables are stamped anew, on evidence alone."""

import json
import subprocess

import pytest

from llama_jax.plumbing import paths
from llama_jax.plumbing.errors import UserError
from llama_lab.bench import provenance, record
from llama_lab.bench.seal import sealed
from llama_lab.cli import program
from llama_lab.reporting import evidence, staleness

CURRENT, STALE = "02-jit-placement", "04-kv-cache"
SAME = {"step": ["a", "b"], "loop": ["c"]}
ROUNDS = [
    dict(before={"step": 1.0}, now={"step": 1.02}, again={"step": 1.05}),
    dict(before={"step": 1.0}, now={"step": 0.99}, again={"step": 0.97}),
    dict(before={"step": 1.0}, now={"step": 1.01}, again={"step": 1.01}),
]


def slower(by):
    return [{**r, "now": {"step": r["now"]["step"] * by}} for r in ROUNDS]


def git(folder, *arguments):
    identity = ("-c", "user.name=n", "-c", "user.email=e")
    done = subprocess.run(["git", "-C", folder, *identity, *arguments], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def write(path, value):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(value)


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A repository with a clean tree, two tables of older code, and evidence that the first was current before."""
    git(tmp_path, "init", "-q")
    write(tmp_path / ".gitignore", "out/\n")
    write(tmp_path / "llama_jax" / "norm.py", "x = 1\n")
    monkeypatch.setattr(paths, "ROOT", tmp_path)
    rules = provenance.declared().model_copy(update=dict(tables={CURRENT: ["llama_jax.norm"]}))
    monkeypatch.setattr(provenance, "declared", lambda: rules)
    for name in (CURRENT, STALE):
        code = dict(digest="0", roots=["norm"], modules={"norm": "0" * 12})
        record.write(tmp_path / "data" / f"{name}.csv", [], environment={}, parameters={}, code=code)
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "now")
    keep(tmp_path)
    return tmp_path


def keep(home, **changes):
    judged = evidence.judged(SAME, SAME, ROUNDS)
    found = dict(before="b" * 40, now=git(home, "rev-parse", "HEAD"), current=[CURRENT], **judged) | changes
    write(home / staleness.EVIDENCE, json.dumps(found))


def test_a_table_is_stamped_anew_says_why_and_keeps_each_stamp(home):
    rows = {path.name: path.read_bytes() for path in (home / "data").glob("*.csv")}
    first = git(home, "rev-parse", "HEAD")
    assert staleness.restamp(home, " renamed ") == [CURRENT]
    assert {path.name: path.read_bytes() for path in (home / "data").glob("*.csv")} == rows
    about = record.read_meta(home / "data" / f"{CURRENT}.csv")
    assert provenance.changed(about) == []
    assert about["code"]["roots"] == ["llama_jax.norm"]
    (stamp,) = about["code"]["restamped"]
    assert (stamp["why"], stamp["before"], stamp["now"]) == ("renamed", "b" * 40, first)
    assert stamp["evidence"] == dict(moved=[], programs=3, by_time=[], times={"step": dict(ratio=1.01, spread=1.05)})
    record.read(home / "data" / f"{CURRENT}.csv")  # its digests hold
    assert sealed({k: v for k, v in about.items() if k != "meta_sha256"}) == about
    stale = record.read_meta(home / "data" / f"{STALE}.csv")
    assert "restamped" not in stale["code"]
    assert provenance.changed(stale)
    write(home / "llama_jax" / "norm.py", "x = 2\n")
    git(home, "add", ".")
    git(home, "commit", "-qm", "next")
    keep(home)
    staleness.restamp(home, "second")
    about = record.read_meta(home / "data" / f"{CURRENT}.csv")
    assert [stamp["why"] for stamp in about["code"]["restamped"]] == ["renamed", "second"]


def judged(now, rounds=ROUNDS):
    return evidence.judged(SAME, now, rounds)


def holds(judged):
    return not staleness.Evidence(before="b", now="n", current=[], **judged).failure


def test_other_programs_of_a_server_leave_its_tables_stale(home, monkeypatch):
    keep(home, **evidence.judged({"slots of step": ["a"]}, {"slots of step": ["b"]}, ROUNDS))
    monkeypatch.setattr(staleness, "SERVER", "llama_jax.norm")
    assert staleness.restamp(home, "masks") == []
    monkeypatch.undo()


def test_a_table_without_roots_is_named_also_where_a_server_changed(home):
    keep(home, current=[CURRENT, STALE], **evidence.judged({"slots of step": ["a"]}, {"slots of step": ["b"]}, ROUNDS))
    with pytest.raises(UserError, match=f"{STALE} has no roots"):
        staleness.restamp(home, "masks")


def test_evidence_lasts_until_code_of_a_table_changes(home):
    first = git(home, "rev-parse", "HEAD")
    for name in ("llama_lab/reporting/pages.py", "llama_jax/norm.py", "llama_lab/peers/torch.py"):
        write(home / name, "x = 2\n")
        git(home, "add", ".")
        git(home, "commit", "-qm", name)
        keep(home, now=first)
        if "reporting" not in name:
            with pytest.raises(UserError, match=f"{name}.* changed since then"):
                staleness.restamp(home, "masks")
        else:
            assert staleness.changed_since(first, git(home, "rev-parse", "HEAD")) == []


SPOILT = {  # what is said → what is wrong
    "The tree has changes": lambda home: write(home / "llama_jax" / "norm.py", "x = 2\n"),
    "There is no evidence": lambda home: (home / staleness.EVIDENCE).unlink(),
    "evidence.json has no before": lambda home: write(home / staleness.EVIDENCE, "{}"),
    "has no times.step.ratio": lambda home: keep(home, times={"step": {}}),
    "The evidence is for commit cccccccccc": lambda home: keep(home, now="c" * 40),
    "other programs for loop": lambda home: keep(home, **judged({**SAME, "loop": ["d"]})),
    "against it: other programs for loop; step takes": lambda home: keep(
        home, **judged({"step": ["a", "b"]}, slower(1.2))
    ),
    "step takes 1.212 of its time": lambda home: keep(home, **judged(SAME, slower(1.2))),
    "step takes 0.808 of its time": lambda home: keep(home, **judged(SAME, slower(0.8))),
    f"{STALE} has no roots in llama_lab/bench/code.toml: declare": lambda home: keep(home, current=[CURRENT, STALE]),
}


@pytest.mark.parametrize("words", SPOILT)
def test_without_evidence_nothing_is_stamped(home, words):
    SPOILT[words](home)
    before = {path.name: path.read_bytes() for path in (home / "data").iterdir()}
    with pytest.raises(UserError, match=words):
        staleness.restamp(home, "renamed")
    assert {path.name: path.read_bytes() for path in (home / "data").iterdir()} == before


def test_a_reason_must_be_given(home, capsys):
    with pytest.raises(UserError, match="needs a reason"):
        program()(["stale", "--restamp", " "], standalone_mode=False)
    program()(["stale", "--restamp", "renamed"], standalone_mode=False)
    assert f"stamps renewed: {CURRENT}" in capsys.readouterr().err


def test_names_are_no_part_of_a_program_and_all_else_is():
    text = (
        "module @jit_{0} attributes {{}} {{\n  func.func public @main(%arg0: tensor<4xf32>) -> (tensor<4xf32>"
        ' {{jax.result_info = "{1}"}}) {{\n    %0 = call @{0}(%arg0) : (tensor<4xf32>)\n'
        "    %1 = stablehlo.custom_call @{2}(%0)\n  }}\n  func.func private @{0}(%arg0: tensor<4xf32>)\n}}\n"
    )
    digest = evidence.digest(text.format("step", "result[0]", "kernel"))
    assert evidence.digest(text.format("one_step", "result.token", "kernel")) == digest
    assert evidence.digest(text.format("step", "result[0]", "other")) != digest
    assert evidence.digest(text.format("step", "result[0]", "kernel").replace("4xf32", "8xf32")) != digest


def test_a_program_that_was_changed_is_found():
    import jax
    import jax.numpy as jnp

    def lowered(change, name):
        function = lambda x: jnp.sin(x) + change  # noqa: E731
        function.__name__ = name
        return evidence.lowered(lambda: jax.jit(function)(jnp.arange(4.0)))

    once = lowered(1.0, "f")
    assert once == lowered(1.0, "g") != lowered(2.0, "f")
    assert evidence.judged({"x": once}, {"x": lowered(2.0, "f")}, ROUNDS)["differing"] == ["x"]
    assert holds(evidence.judged({"x": once}, {"x": once}, ROUNDS))


def test_what_runs_in_a_kernel_is_judged_by_its_time():
    """Its program says what it is given, not what it does."""
    before, now = ({name: [text] for name in ("step", "loop+fused", "slots of step+gemv")} for text in "ab")
    judged = evidence.judged(before, now | {"step": ["a"]}, ROUNDS)
    assert (holds(judged), judged["differing"]) == (True, [])
    assert judged["by_time"] == ["loop+fused", "slots of step+gemv"]
    assert evidence.judged(before, now, ROUNDS)["differing"] == ["step"]
    assert {bool(evidence.KERNELS.search(name)) for name in evidence.TIMED} == {True, False}


def test_a_modifier_whose_programs_have_all_become_others_leaves_tables_with_it_stale():
    before = {name: ["a"] for name in ("step", "loop", "step+scan", "step+lookup", "loop+lookup4")}
    now = before | {"step+lookup": ["b"], "loop+lookup4": ["b"]}
    judged = evidence.judged(before, now, ROUNDS)
    assert (holds(judged), judged["differing"], judged["moved"]) == (True, [], ["lookup"])
    now = before | {"loop+lookup4": ["b"]}  # so it is not the modifier
    judged = evidence.judged(before, now, ROUNDS)
    assert (holds(judged), judged["differing"], judged["moved"]) == (False, ["loop+lookup4"], [])


def test_a_kernel_that_has_become_faster_leaves_tables_with_it_stale(home):
    def rounds(name):
        return [{way: {name: 1.0 if way != "now" else 0.5} for way in ("before", "now", "again")}] * 3

    assert not holds(evidence.judged(SAME, SAME, rounds("step")))
    judged = evidence.judged(SAME, SAME, rounds("step+gemv"))
    assert (holds(judged), judged["moved"]) == (True, ["gemv"])
    table = home / "data" / f"{CURRENT}.csv"
    for row, stamped in (("step+gemv", []), ("step+fused", [CURRENT])):
        write(table, f"{table.read_text().splitlines()[0]}\n{row}\n")
        git(home, "commit", "-qam", row)
        keep(home, **judged)
        assert staleness.restamp(home, "moved") == stamped


def test_a_changed_filter_leaves_tables_with_filtered_answers_stale(home):
    before = {name: ["a"] for name in ("step", "loop", "step+top-k", "loop+top-k")}
    judged = evidence.judged(before, before | {"step+top-k": ["b"], "loop+top-k": ["b"]}, ROUNDS)
    assert (holds(judged), judged["moved"]) == (True, [evidence.FILTERED])
    table, drawn = home / "data" / f"{CURRENT}.csv", "temperature {}, top-p 0.9"
    for row, stamped in ((drawn.format("0.6, top-k 50"), []), (drawn.format("0.6"), [CURRENT])):
        write(table, f"{table.read_text().splitlines()[0]}\n{row}\n")
        git(home, "commit", "-qam", row)
        keep(home, **judged)
        assert staleness.restamp(home, "moved") == stamped


def test_what_runs_is_the_checkout_that_was_asked_for(tmp_path, monkeypatch):
    """A commit is checked out into a folder of its own, which goes afterwards."""
    git(tmp_path, "init", "-q")
    write(tmp_path / "answer.py", 'print("noise")\nprint(\'{"is": 1}\')\n')
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "then")
    then = git(tmp_path, "rev-parse", "HEAD")
    write(tmp_path / "answer.py", "print('{\"is\": 2}')\n")
    git(tmp_path, "commit", "-qam", "now")
    with evidence.checked_out(tmp_path, then) as there:
        assert evidence.ask(there, "answer.py") == {"is": 1}
        assert evidence.ask(tmp_path, "answer.py") == {"is": 2}
        with pytest.raises(UserError, match="gone.py failed"):
            evidence.ask(there, "gone.py")
    assert not there.exists()
    assert len(git(tmp_path, "worktree", "list").splitlines()) == 1
    with pytest.raises(UserError, match="git worktree"), evidence.checked_out(tmp_path, "nowhere"):
        pass
