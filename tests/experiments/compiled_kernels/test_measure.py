"""Experiments on compiled kernels: what is refused, files made once, answers judged; the children on small models."""

import sys

import pytest

from llama_jax import checkpoint
from llama_jax.checkpoint import writer
from llama_jax.kernels import build, isa
from llama_jax.placement import parse
from llama_jax.plumbing.errors import UserError
from llama_lab.bench import protocol
from llama_lab.bench.journal import Journal
from llama_lab.bench.workload import Workload
from llama_lab.experiments.compiled_kernels import commands, file_types, people_files, rows, scaling, sizes, where
from llama_lab.experiments.compiled_kernels.rows import BATCH, SEQUENCE

LAYERS = "hidden_size=64,intermediate_size=128,num_attention_heads=4,num_key_value_heads=2,head_dim=16"
TINY = f"random:smollm2-135m,num_hidden_layers=2,{LAYERS},vocab_size=97"
OF_BLOCKS = f"random:smollm2-135m,num_hidden_layers=1,{LAYERS},vocab_size=512"
PLANS = {
    where.PartsOfAToken: dict(
        model=TINY, seed=0, split=["loop"], split_contexts=[24, 64], split_blocks=1, new_tokens=6
    ),
    scaling.Scaling: dict(
        model=TINY, seed=0, scaled=["loop", "llamacpp"], scale_contexts=[24], scale_threads=[], scale_tokens=6,
        scale_answers=1, scale_processes=1,
    ),
    rows.PassesOfRows: dict(
        model=TINY, seed=0, row_engines=["loop+fused"], rows=[1, 4], row_contexts=[16], row_passes=2, row_blocks=1
    ),
    sizes.Sizes: dict(
        size_engines=["loop+q8_0"], size_files=[f"{OF_BLOCKS}/q4_0"], size_contexts=[24], size_lengths=[10],
        size_tokens=6, size_processes=1, size_blocks=1, seed=0,
    ),
    file_types.Types: dict(
        typed_model=checkpoint.DEFAULT, size_engines=["loop+q8_0"], size_files=["q2_k"], size_contexts=[24],
        size_tokens=6, size_blocks=1, seed=0,
    ),
    file_types.Distances: dict(
        typed_model=checkpoint.DEFAULT, seed=0, type_names=["q2_k"], type_quality_tokens=16, type_window=8
    ),
    people_files.PeopleFiles: dict(
        size_engines=["loop+q8_0"], size_files=[f"{checkpoint.DEFAULT}/portable"], size_contexts=[24], size_tokens=6,
        size_lengths=[10], size_processes=1, size_blocks=1, seed=0,
    ),
    people_files.Distances: dict(
        people_read=[checkpoint.DEFAULT], seed=0, type_quality_tokens=16, type_window=8
    ),
    commands.Commands: dict(
        command_files=[checkpoint.DEFAULT], command_placements=["step"], command_tokens=[1], command_cold=1,
        command_blocks=1, seed=0,
    ),
}  # fmt: skip


def asked(kind, **changes):
    return kind(**PLANS[kind] | changes)


@pytest.fixture(autouse=True)
def _folders_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setenv("LLAMA_JAX_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("llama_jax.plumbing.paths.tempfile.gettempdir", lambda: str(tmp_path))


@pytest.mark.parametrize(
    ("kind", "changes", "words"),
    [
        (where.PartsOfAToken, dict(model="smollm2-135m-instruct"), "only of random weights"),
        (where.PartsOfAToken, dict(split_contexts=[64, 64]), "must be longer"),
        (where.PartsOfAToken, dict(split=["lop"]), "No such placement"),
        (where.PartsOfAToken, dict(split_blocks=0), "blocks is 0"),
        (where.PartsOfAToken, dict(split_contexts=[6, 64]), "leaves no room"),
        (where.PartsOfAToken, dict(model=TINY + ",vocab_size=64"), "too small to leave anything out"),
        (scaling.Scaling, dict(scale_threads=[999]), "threads asked for"),
        (scaling.Scaling, dict(scale_contexts=[9000]), "more than the model's 8192"),
        (scaling.Scaling, dict(scale_contexts=[6]), "leaves no room"),
        (scaling.Scaling, dict(scale_answers=0), "answers is 0"),
        (scaling.Scaling, dict(scaled=["lop"]), "No such placement"),
        (rows.PassesOfRows, dict(rows=[2, 4]), "rows are \\[2, 4\\]; they must be positive and hold 1"),
        (rows.PassesOfRows, dict(rows=[0, 1]), "rows are \\[0, 1\\]"),
        (rows.PassesOfRows, dict(row_passes=0), "passes is 0"),
        (rows.PassesOfRows, dict(row_engines=["loop+fusd"]), "No such placement"),
        (rows.PassesOfRows, dict(row_engines=["step+growing"]), "keeps no cache of a fixed size"),
        (rows.PassesOfRows, dict(row_contexts=[9000]), "more than the model's 8192"),
        (sizes.Sizes, dict(size_files=[OF_BLOCKS]), "write MODEL/TYPE"),
        (sizes.Sizes, dict(size_files=[f"{OF_BLOCKS}/q5_0"]), "the type one of q4_0, q4_1, q8_0"),
        (sizes.Sizes, dict(size_files=["random:smol/q4_0"]), "No such preset"),
        (sizes.Sizes, dict(size_engines=["lop"]), "No such placement"),
        (sizes.Sizes, dict(size_contexts=[9000]), "more than the model's"),
        (sizes.Sizes, dict(size_lengths=[9000]), "more than the model's"),
        (sizes.Sizes, dict(size_contexts=[6]), "leaves no room"),
        (sizes.Sizes, dict(size_blocks=0), "blocks is 0"),
        (sizes.Sizes, dict(size_processes=0), "processes is 0"),
        (file_types.Types, dict(size_files=["q4_j"]), "No such type of block: 'q4_j'; known: f32, f16, "),
        (file_types.Types, dict(size_contexts=[9000]), "more than the model's 8192"),
        (file_types.Types, dict(typed_model=TINY), "is not a GGUF file; name one to compare types on"),
        (file_types.Distances, dict(type_names=["q4_j"]), "No such type of block"),
        (file_types.Distances, dict(type_window=9000), "window is 9000"),
        (people_files.PeopleFiles, dict(size_files=[f"{checkpoint.DEFAULT}/avx3"]), "the type one of avx512vnni, "),
        (people_files.PeopleFiles, dict(size_contexts=[9000]), "more than the model's 8192"),
        (people_files.PeopleFiles, dict(size_lengths=[9000]), "more than the model's 8192"),
        (people_files.Distances, dict(type_window=9000), "window is 9000"),
        (commands.Commands, dict(command_placements=["lop"]), "No such placement"),
        (commands.Commands, dict(command_cold=0), "command_cold is 0"),
        (commands.Commands, dict(command_tokens=[0]), "command_tokens is 0"),
    ],
)
def test_mistakes_are_named_before_anything_is_measured(kind, changes, words):
    with pytest.raises(UserError, match=words):
        asked(kind, **changes).record()


def test_a_file_is_made_once_and_a_gguf_files_own_type_is_itself():
    told = []
    first = sizes.file_of(OF_BLOCKS, "q4_0", lambda *what: told.append(what[0]))
    made = first.stat().st_mtime_ns
    assert sizes.file_of(OF_BLOCKS, "q4_0", lambda *what: told.append(what[0])).stat().st_mtime_ns == made
    (line,) = told
    assert "MB of random weights" in line
    assert sizes.file_of(checkpoint.DEFAULT, "q4_1") == checkpoint.gguf.packaged()
    with pytest.raises(UserError, match="not in q4_1"):
        sizes.file_of(str(first), "q4_1")
    with pytest.raises(UserError, match="neither random:PRESET nor a GGUF file"):
        sizes.file_of("nobody/nothing", "q4_0")


@pytest.mark.parametrize(
    ("kind", "field", "name", "words"),
    [
        (people_files.PeopleFiles, "size_files", "qwen2.5-coder-1.5b/portable", "llama-jax fetch qwen2.5-coder-1.5b"),
        (people_files.Distances, "people_read", "qwen2.5-coder-1.5b", "llama-jax fetch qwen2.5-coder-1.5b"),
        (commands.Commands, "command_files", "qwen2.5-coder-1.5b", "llama-jax fetch qwen2.5-coder-1.5b"),
        (people_files.PeopleFiles, "size_files", f"{checkpoint.DEFAULT}/avx512vnni", "unset it or choose another"),
    ],
)
def test_what_is_not_here_is_said_to_be_missing_with_what_would_help(monkeypatch, kind, field, name, words):
    monkeypatch.setattr("llvmlite.binding.get_host_cpu_features", lambda: {})  # a processor that has nothing
    rows_made, meta = asked(kind, **{field: [name]}).record()
    assert rows_made == []
    (gap,) = (gap for gap in meta["missing"] if gap["name"] == name)
    assert words in gap["remedy"].lower()


def test_a_cold_command_finds_kernels_and_nothing_else(tmp_path):
    for name in ("kernels", "programs", "gguf"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "entry").touch()
    commands.leave_kernels(tmp_path)
    assert [path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("entry")] == ["kernels/entry"]
    assert build.entry(isa.target()).parent.name == commands.KERNELS


def test_a_command_is_timed_from_outside_and_void_where_it_fails_or_says_nothing(tmp_path):
    def launched(code):
        return commands.launched([sys.executable, "-c", code], str(tmp_path))

    good = launched("import os; print(os.environ['LLAMA_JAX_CACHE'])")
    assert (good["valid"], good["reason"]) == (True, "")
    assert good["wall_ns"] > 0
    held = launched("print(len(b'x' * (200 << 20)))")["peak_rss_bytes"] - good["peak_rss_bytes"]
    assert 150 << 20 < held < 250 << 20  # its own, not what a larger process that started it holds
    assert launched("pass")["reason"] == "failed: no answer"
    spoilt = launched("import sys; sys.exit('error: no such model')")
    assert (spoilt["valid"], spoilt["reason"]) == (False, "failed: exit code 1, error: no such model")
    assert not commands.launched([str(tmp_path / "nothing")], str(tmp_path))["valid"]


def test_our_tokens_are_the_references_and_others_are_only_counted():
    loaded, work = checkpoint.load(OF_BLOCKS, "q4_0"), Workload(((5, 6, 7),), new_tokens=6, length=3)
    judge = sizes.judges_of(loaded, [work])[work]
    who = protocol.subject(loaded, parse("loop"))
    made, tokens = protocol.trial(who, work, 0, run="file", block=0, order=0, process=1, seed=0, phase="cold")
    made = made.model_copy(update=dict(valid=True, reason=""))  # it compiled
    assert sizes.judged(made, tokens, work, judge) == made
    other = (tokens + 1) % 512
    spoilt = sizes.judged(made, other, work, judge)
    assert not spoilt.valid
    assert spoilt.reason.startswith("wrong: token 0 is ")
    peer = made.model_copy(update=dict(quantisation="gguf-q4_0"))
    assert sizes.judged(peer, other, work, judge) == peer
    short = sizes.judged(peer, other, Workload(((5, 6, 7),), new_tokens=7, length=3), judge)
    assert (short.valid, short.reason) == (False, "failed: 6 of 7 tokens came")


def test_every_subject_has_every_task_in_each_block_and_blocks_differ():
    blocks = [list(sizes.shuffled("abc", "xy", 0, block)) for block in range(6)]
    assert all(sorted(block) == sorted((s, t) for s in "abc" for t in "xy") for block in blocks)
    assert len({tuple(block) for block in blocks}) > 1
    assert all(len({t for _, t in block[:3]}) == 1 for block in blocks)  # side by side at one task


def measured(experiment):
    """(rows, meta, notes) of an experiment that is measured once and then found whole in its journal."""
    journal = Journal(kind=experiment.kind)
    made, meta = experiment.record(journal)
    assert all(row.valid for row in made), [row.reason for row in made]
    assert experiment.record(journal)[0] == made
    return made, meta, journal.notes


@pytest.mark.slow
def test_parts_are_really_measured():
    made, *_ = measured(asked(where.PartsOfAToken, split=["loop", "loop+q8_0"], split_blocks=2))
    assert len(made) == 2 * 2 * 4
    assert len({t.bytes_per_token for t in made if t.placement == "loop"}) == 4  # four models, or contexts
    assert [e["name"] for e in where.table(made, TINY, 24, 64)] == ["loop", "loop+q8_0"]


@pytest.mark.slow
def test_scaling_is_really_measured():
    made, meta, notes = measured(asked(scaling.Scaling, scale_contexts=[24, 64], scale_threads=[1], scale_answers=2))
    assert {t.run for t in made} == {"context 24 loop", "context 64 loop", "threads 1 loop"}
    assert [gap["name"] for gap in meta["missing"]] == ["llamacpp"]
    assert {t.prompt_tokens + t.new_tokens for t in made if t.run == "context 64 loop"} == {64}
    one = next(t.process for t in made if t.run == "threads 1 loop")
    assert [len(note["affinity"]) for note in notes if note.get("process") == one] == [1]


@pytest.mark.slow
def test_sizes_are_really_measured(tmp_path):
    experiment = asked(sizes.Sizes, size_engines=["loop+q8_0", "step+gguf"], size_blocks=2)
    made, meta, _ = measured(experiment)
    assert {(t.run, t.model) for t in made} == {(f"{OF_BLOCKS}/q4_0", f"{OF_BLOCKS}/q4_0")}
    assert {(t.subject, t.block, t.prompt_tokens, t.new_tokens) for t in made} == {
        (name, block, *shape) for name in experiment.size_engines for block in (0, 1) for shape in ((18, 6), (10, 1))
    }
    assert all(t.bandwidth_gbps for t in made)
    assert meta["missing"] == []
    assert str(tmp_path) not in str([t.model_dump() for t in made])


@pytest.fixture
def a_small_file(tmp_path):
    """A GGUF file whose rows are no whole blocks of 256."""
    path = tmp_path / "small.gguf"
    writer.write(OF_BLOCKS, "q8_0", path)
    return str(path)


@pytest.mark.slow
@pytest.mark.peers
def test_types_are_really_measured_and_read(a_small_file, tmp_path):
    made, *_ = measured(asked(file_types.Types, typed_model=a_small_file))
    assert {(t.run, t.subject) for t in made} == {(f"{a_small_file}/q2_k", "loop+q8_0")}
    read, *_ = measured(asked(file_types.Distances, typed_model=a_small_file))
    (entry,) = (e for e in file_types.table(made, read) if e["type"] == "q2_k")
    assert entry["mine"]["tokens"] == entry["theirs"]["tokens"] == 16
    assert str(tmp_path / "cache") not in str([row.model_dump() for row in (*made, *read)])


@pytest.mark.slow
def test_files_are_measured_with_the_instructions_that_they_name(a_small_file):
    """Each in two processes, whose blocks are counted on."""
    names = [f"{a_small_file}/portable", f"{a_small_file}/q8_0/portable"]
    made, meta, notes = measured(asked(people_files.PeopleFiles, size_files=names, size_processes=2))
    assert {(t.run, t.block) for t in made} == {(name, block) for name in names for block in (0, 1)}
    assert len({t.process for t in made}) == 4
    assert [note["settings"]["LLAMA_JAX_ISA"] for note in notes if "settings" in note] == ["portable"] * 4
    assert meta["missing"] == []


@pytest.mark.slow
def test_commands_are_really_timed():
    made, *_ = measured(asked(commands.Commands, command_tokens=[4]))
    ours = [c for c in made if c.subject == "step"]
    assert {(c.phase, c.new_tokens) for c in ours} == {("first", 1), ("cold", 1), ("warm", 4)}
    assert {e["held"] > 1 for e in commands.table(made) if e["name"] == "step"} == {True}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "engine"),
    [
        (TINY, "loop+q4_1+fused"),
        (TINY, "loop"),
        pytest.param(checkpoint.DEFAULT, "llamacpp", marks=pytest.mark.peers),
    ],
)
def test_every_shape_of_passes_is_really_timed(model, engine):
    made, *_ = measured(asked(rows.PassesOfRows, model=model, row_engines=[engine], rows=[1, 3], row_contexts=[16, 40]))
    kinds = ((SEQUENCE, 1), (SEQUENCE, 3), (BATCH, 3))
    assert {(p.kind, p.rows, p.context) for p in made} == {(*kind, context) for kind in kinds for context in (16, 40)}
    assert all(len(p.pass_ns) == 2 and min(p.pass_ns) > 0 for p in made)
