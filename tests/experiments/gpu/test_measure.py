"""The GPU suite on tiny shapes and whatever device there is: what it records, what it leaves out, and what becomes of
the records."""

import json
import os
from dataclasses import asdict, replace
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from llama_jax import checkpoint, config
from llama_jax.checkpoint import random, tensors
from llama_jax.checkpoint.random import on_device
from llama_jax.plumbing.errors import UserError
from llama_lab import figures
from llama_lab.bench import gate, protocol
from llama_lab.bench.wording import named_well
from llama_lab.experiments.gpu import chart, data, device, finding, measure, suite
from llama_lab.experiments.gpu import judge as gpujudge
from llama_lab.experiments.gpu.suite import Shape, Suite

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("compiling")]

TINY = config.tiny(tie_word_embeddings=False)
SUITE = Suite(
    (Shape("random:tiny", TINY, 1.0, ("step", "torch", "chunk8", "torch-cudagraph"), ("step", "torch")),),
    prompt_tokens=12, new_tokens=17, blocks=2, lengths=(4,), answers=2, probe_bytes=1 << 22, rehearsal=True,
)  # fmt: skip


@pytest.fixture(autouse=True)
def own_lock(tmp_path, monkeypatch):
    monkeypatch.setattr("llama_jax.plumbing.paths.tempfile.gettempdir", lambda: str(tmp_path))


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A real run on this machine's processor: the folder, and what it said."""
    folder, said = tmp_path_factory.mktemp("gpu"), []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("llama_jax.plumbing.paths.tempfile.gettempdir", lambda: str(folder))
        measure.run(folder, any_device=True, tell=said.append, suite=SUITE)
    return folder, said


@pytest.fixture(scope="module")
def table(recorded, tmp_path_factory):
    out = tmp_path_factory.mktemp("out")
    data.convert(recorded[0], out)
    return out, *data.obtain("recorded", out)


def documents(folder):
    return [json.loads(line) for line in (folder / "19-gpu.jsonl").read_text().splitlines()]


def test_everything_is_recorded_or_said_to_be_left_out(recorded):
    meta, *rest = documents(recorded[0])
    rows, notes = [r for r in rest if "note" not in r], [r["note"]["left_out"] for r in rest if "note" in r]
    assert meta["meta"]["suite"]["rehearsal"]
    assert {r["process"] for r in rows} == {1}
    assert [r["subject"] for r in rows if r["run"] == "decode" and r["phase"] == "first"] == ["step", "torch", "chunk8"]
    warm = [r for r in rows if r["phase"] == "warm"]
    assert all(r["valid"] for r in warm), {r["reason"] for r in warm}
    for block in range(SUITE.blocks):
        drawn = [r["subject"] for r in warm if r["run"] == "decode" and r["block"] == block]
        assert sorted(drawn) == ["chunk8", "step", "step (again)", "torch"]
    assert sorted(r["subject"] for r in warm if r["run"] == "first token 4") == ["step", "step", "torch", "torch"]
    assert {(r["dtype"], r["platform"]) for r in rows} == {("bfloat16", jax.devices()[0].platform)}
    assert all(r["bandwidth_gbps"] > 0 for r in warm if r["run"] == "decode")
    (gap,) = notes
    assert "torch-cudagraph" in gap["what"]
    assert "CUDA" in gap["reason"]


def test_first_requests_compile_and_later_ones_do_not(recorded):
    rows = [r for r in documents(recorded[0])[1:] if "note" not in r and r["backend"] == "jax"]
    assert all(r["compiled"] > 0 for r in rows if r["phase"] == "first" and r["run"] == "decode")
    assert all(r["compiled"] == 0 for r in rows if r["phase"] == "warm")
    assert all(r["extra_bytes"] > 0 for r in rows if r["phase"] == "first")


def test_the_table_holds_what_was_recorded(recorded, table):
    _, rows, meta = table
    raw = [r for r in documents(recorded[0])[1:] if "note" not in r]
    assert [r.token_times_ns for r in rows] == [r["token_times_ns"] for r in raw]
    assert [r.gap for r in rows] == [r["gap"] for r in raw]
    assert meta["left_out"][0]["what"] == "random:tiny: torch-cudagraph"
    assert meta["kind"] == suite.GpuTrial.__name__
    assert meta["suite"]["shapes"]["random:tiny"]["layers"] == TINY.num_hidden_layers
    assert meta["parameters"] == {}
    lines = data.rates(rows, "random:tiny")
    assert {line["subject"] for line in lines} == {"step", "torch", "chunk8"}
    assert all(line["mbu"] > 0 and line["rate"].n == 2 for line in lines)
    assert len(data.table(rows)) == 3
    with pytest.raises(UserError, match="no model 'random:tinny'.*random:tiny"):
        data.obtain("recorded", table[0], "random:tinny")


def test_a_run_that_was_killed_while_it_wrote_is_used_to_its_last_whole_record(recorded, tmp_path):
    lines = (recorded[0] / "19-gpu.jsonl").read_bytes().splitlines(keepends=True)
    (tmp_path / "19-gpu.jsonl").write_bytes(b"".join(lines[:4]) + lines[4][:40])
    data.convert(tmp_path, tmp_path)
    assert len(data.obtain("recorded", tmp_path)[0]) == 3
    (tmp_path / "19-gpu.jsonl").write_bytes(lines[0])
    with pytest.raises(UserError, match="holds no request"):
        data.convert(tmp_path, tmp_path)
    with pytest.raises(UserError, match="No recording at"):
        data.convert(tmp_path / "elsewhere", tmp_path)


def test_figures_and_finding_of_a_rehearsal_say_that_it_is_none(table):
    out, rows, meta = table
    note = data.label(rows, meta)
    for words in (finding.gpu(rows), note):
        assert words.count("which is no GPU") == 1
    names, models = data.subjects(rows), data.models(rows)
    drawn = (
        chart.gpu_decode({m: data.rates(rows, m) for m in models}, [*names, "absent"]),
        chart.gpu_first_token(data.first_tokens(rows)),
        chart.gpu_starts({m: data.starts(rows, m) for m in models}, names),
    )
    texts = " ".join(t.get_text() for axes in drawn[0].axes for t in axes.texts)
    assert "not measured" in texts
    assert {label.get_text() for label in drawn[2].axes[0].get_yticklabels()} == set(map(named_well, names))
    for i, figure in enumerate(drawn):
        assert figures.save(figure, f"x-{i}", "19-gpu", meta, {}, "alt", out, note)["svg"].is_file()


def test_the_machine_line_names_the_gpu(table):
    out, rows, meta = table
    environment = {**meta["environment"], "devices": ["gpu:NVIDIA H200"]}
    figures.conclude("19-gpu", "Why?", "So.", {**meta, "environment": environment}, out)
    assert figures.read_manifest(out)["notebooks"]["19-gpu"]["machine"].startswith("NVIDIA H200 · ")
    real = [row.model_copy(update=dict(platform="gpu", device="NVIDIA H200")) for row in rows]
    assert "no GPU" not in data.label(real, meta) + finding.gpu(real)


def test_a_run_that_ended_before_its_first_block_is_drawn(table):
    early = [row for row in table[1] if row.phase == "first" and row.run == "decode"]
    chart.gpu_decode({m: data.rates(early, m) for m in data.models(early)}, data.subjects(early))
    chart.gpu_first_token(data.first_tokens(early))
    chart.gpu_starts({m: data.starts(early, m) for m in data.models(early)}, data.subjects(early))
    assert "nothing has a time" in finding.gpu(early)


def test_nothing_recorded_is_said_and_named_with_the_command(tmp_path, monkeypatch):
    monkeypatch.setattr(data.paths, "ROOT", tmp_path)
    assert data.obtain("recorded", tmp_path) == ([], None)
    assert "make gpu" in finding.gpu([])
    assert "`step` should gain more" in finding.gpu([])
    assert finding.gpu([]).startswith(data.label([], None))
    assert data.left_out(None).empty
    assert data.table([]).empty
    with pytest.raises(UserError, match="recorded or measure"):
        data.obtain("elsewhere", tmp_path)


def test_without_a_gpu_there_is_one_line():
    if jax.devices()[0].platform != "cpu":
        pytest.skip("there is a GPU")
    with pytest.raises(UserError, match=r"There is no GPU here.*--any-device"):
        device.describe(any_device=False)
    assert device.describe(any_device=True)["platform"] == "cpu"


class Clock:
    """Each look at it costs so many seconds."""

    def __init__(self, step=1.0):
        self.now, self.step = 100.0, step

    def __call__(self):
        self.now += self.step
        return self.now


def session(clock, suite=SUITE):
    """A session of a measuring process, and the list that it says its messages to."""
    messages = []
    say = lambda kind, value: messages.append((kind, value))  # noqa: E731
    return measure.Session(suite, dict(kind="cpu", platform="cpu"), say, clock), messages


def left_out(messages):
    return [value["left_out"] for kind, value in messages if kind == "note"]


def test_time_is_spent_from_when_a_session_was_made_and_costs_are_guessed_until_one_was_seen():
    clock = Clock(0)
    run, _ = session(clock)
    clock.now += 45
    assert run.spent == 45
    assert run.expected("torch-compile+reduce-overhead", 10) == 25
    assert run.expected("step", 10) == 8
    run.took["torch"] = 0.2
    assert run.expected("torch", 30) == pytest.approx(6)
    assert run.expected("torch-cudagraph", 10) == 3  # another subject's cost is not its own


@pytest.mark.parametrize(
    ("flags", "asked", "expected"),
    [
        ("", False, None),
        ("", True, "--xla_gpu_deterministic_ops=true"),
        ("--a=1", True, "--a=1 --xla_gpu_deterministic_ops=true"),
        ("--xla_gpu_deterministic_ops", True, "--xla_gpu_deterministic_ops"),
        ("--xla_gpu_deterministic_ops=false --xla_gpu_deterministic_ops=1", True, None),
        ("--xla_gpu_deterministic_ops=false", False, None),
    ],
)
def test_the_flag_of_determinism_is_added_once(monkeypatch, flags, asked, expected):
    monkeypatch.setenv("XLA_FLAGS", flags)
    device.prepare(asked)
    assert os.environ["XLA_FLAGS"] == (expected or flags)
    assert device.is_deterministic(os.environ["XLA_FLAGS"]) == asked


def test_a_flag_that_says_the_opposite_is_one_line(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_gpu_deterministic_ops=false")
    with pytest.raises(UserError, match="--deterministic contradicts"):
        device.prepare(deterministic=True)


def test_a_prompt_that_got_two_texts_is_told(table):
    """Rows as they are recorded, one of which has another text than the block before it had."""
    _, rows, meta = table
    assert {line["texts"] for line in data.rates(rows, "random:tiny")} == {1}
    last = next(r for r in reversed(rows) if (r.run, r.phase, r.subject) == ("decode", "warm", "torch"))
    mixed = [r.model_copy(update=dict(prompt=0, tokens_sha256="other" * (r is last))) for r in rows]
    assert {line["subject"]: line["texts"] for line in data.rates(mixed, "random:tiny")}["torch"] == 2
    flagged = meta | dict(environment=meta["environment"] | dict(settings=dict(XLA_FLAGS=device.DETERMINISTIC)))
    assert "deterministic_ops" in data.label(rows, flagged)
    assert "deterministic_ops" not in data.label(rows, meta)


def test_time_that_is_up_leaves_out_and_says_so():
    shapes = (Shape("random:first", TINY, 0.5), Shape("random:second", TINY, 1.0))
    run, messages = session(Clock(), replace(SUITE, shapes=shapes, limit_s=10))
    run.took["weights"] = 8 / TINY.num_hidden_layers
    measure.measure(run, shapes[0])
    assert left_out(messages) == [dict(what="random:first", reason="the time was up before it")]


def test_subjects_that_may_take_too_long_are_not_begun():
    run, messages = session(Clock(0))
    run.took = dict.fromkeys(SUITE.shapes[0].subjects, 100)
    assert measure.Bench(run, SUITE.shapes[0], None, None, None).started(until=150.0) == []
    assert len(left_out(messages)) == 4
    assert "it may take 200 s to start" in left_out(messages)[0]["reason"]


def test_blocks_end_when_another_does_not_fit():
    run, messages = session(Clock())
    subject = protocol.subject(opened(), measure.parse("step"))
    work = SUITE.workload(TINY, 4, 1)
    protocol.warm_up(subject, work)
    bench = measure.Bench(run, SUITE.shapes[0], opened(), None, Content())
    bench.interleaved([subject], work, 50, until=20.0, run="first token 4")
    assert 0 < sum(kind == "trial" for kind, _ in messages) < 20
    assert "to 50" in left_out(messages)[-1]["what"]


def test_a_run_whose_time_is_up_is_ended_and_keeps_what_it_recorded(tmp_path):
    """Whatever it is at: a compilation cannot be asked to stop."""
    said = []
    path = measure.run(tmp_path, any_device=True, tell=said.append, suite=replace(SUITE, hard_s=2.0))
    (note,) = [r["note"]["left_out"] for r in documents(tmp_path)[1:] if "note" in r]
    assert note["what"].startswith("everything after: ")
    assert "without a word" in note["reason"]
    assert "was ended" in said[-2]
    measure.run(tmp_path, any_device=True, tell=said.append, suite=replace(SUITE, hard_s=1.0))
    assert path.with_name("19-gpu.jsonl.old").is_file()


def test_a_folder_that_cannot_be_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="Cannot write"):
        measure.run(tmp_path / "file", any_device=True, suite=SUITE)


def test_a_suite_survives_the_way_to_its_process():
    for programme in (suite.FULL, suite.REHEARSAL):
        assert suite.Suite.from_json(json.loads(json.dumps(asdict(programme)))) == programme
        assert len({hash(shape.config) for shape in programme.shapes}) == len(programme.shapes)


class Content:
    """A judge who finds every text right."""

    def verdict(self, ids, tokens):
        return gate.Verdict(True), 0.0


def opened():
    return checkpoint.Checkpoint("random:tiny", TINY, on_device(TINY, 0), None, "hash", "random:tiny", "bfloat16")


def test_weights_drawn_on_the_device_fit_the_configuration():
    for cfg in (TINY, config.tiny("qwen2"), config.tiny("gpt2")):
        drawn, named = on_device(cfg, 3), {}
        for parts, weight in zip(jax.tree.leaves(tensors.names(cfg)), jax.tree.leaves(drawn), strict=True):
            named[parts.names[0]] = weight
        assert sum(w.size for w in named.values()) == cfg.num_parameters
        assert {w.dtype for w in named.values()} == {jnp.dtype("bfloat16")}
        for name, weight in named.items():
            if weight.ndim == 1 and name.endswith("weight"):
                assert (weight == 1).all()
            elif weight.size > 1000:
                assert float(jnp.std(weight.astype(jnp.float32))) == pytest.approx(0.02, rel=0.1)
    made = tensors.assemble(random.open_random(TINY, 0), "bfloat16")
    assert jax.tree.map(jnp.shape, made) == jax.tree.map(jnp.shape, on_device(TINY, 0))
    again, other = on_device(TINY, 0), on_device(TINY, 1)
    assert np.array_equal(jax.tree.leaves(again)[0], jax.tree.leaves(on_device(TINY, 0))[0])
    assert not np.array_equal(jax.tree.leaves(again)[0], jax.tree.leaves(other)[0])


def test_the_shapes_are_the_published_ones():
    sizes = {shape.name: shape.config.num_parameters for shape in suite.FULL.shapes}
    assert sizes == {
        "random:llama-3.2-1b": 1_235_814_400,
        "random:llama-2-7b": 6_738_415_616,
        "random:llama-3.2-3b": 3_212_749_824,
    }
    assert suite.FULL.limit_s < suite.FULL.hard_s < 480
    assert (suite.FULL.new_tokens - 1) % 8 == 0


def test_a_judge_sees_a_token_that_nobody_would_have_chosen_and_jax_judges_without_pytorch():
    from llama_lab.peers import torch_model

    loaded = opened()
    work = SUITE.workload(TINY, 8, 9)
    text = np.concatenate(list(protocol.subject(loaded, measure.parse("step")).run(list(work.prompts[0]), work)))[:, 0]
    wrong = text.copy()
    wrong[4] = (wrong[4] + 1) % TINY.vocab_size
    module = torch_model.module(TINY, loaded.params)
    judges = gpujudge.Judge(loaded, module), gpujudge.Judge(loaded)
    for judge in judges:
        assert judge.verdict(work.prompts[0], text)[0].passed
        verdict, gap = judge.verdict(work.prompts[0], wrong)
        assert gap > gpujudge.TIE
        assert (verdict.passed, verdict.reason[:15]) == (False, "wrong: token 4 ")
    gaps = [judge.verdict(work.prompts[0], wrong)[1] for judge in judges]
    assert gaps[0] == pytest.approx(gaps[1], abs=0.1)


@pytest.mark.parametrize(
    ("text", "reason", "agreed"),
    [((5, 6, 7), "compiled", 3), ((5, 6, 8), "compiled; parts from step at token 2", 2), ((4, 6, 7), "", 0)],
)
def test_a_right_text_that_is_not_the_baselines_says_where_it_parts(text, reason, agreed):
    passed = text[0] == 5
    judge = SimpleNamespace(verdict=lambda ids, tokens: (gate.Verdict(passed, "" if passed else "wrong: token 0"), 0.1))
    baseline = SimpleNamespace(name="step", run=lambda ids, work: iter(np.array([[[5]], [[6]], [[7]]])))
    bench = measure.Bench(session(Clock())[0], SUITE.shapes[0], None, None, judge)
    row, work = dict(prompt=0, valid=True, reason="compiled"), SUITE.workload(TINY, 4, 3)
    row = bench.judged(row, None, work, np.array(text)[:, None], baseline)
    assert (row["valid"], row["agreed"]) == (passed, agreed)
    assert row["reason"] == (reason or "compiled; wrong: token 0")


@pytest.mark.parametrize("places", [(0,), (2,), (0, 2)])
@pytest.mark.parametrize(("below", "passed"), [(0.2, True), (0.3, False)])
def test_a_text_counts_only_where_each_token_is_nearly_the_best(places, below, passed):
    tokens = np.array([201, 202, 203], np.int32)
    logits = np.tile(np.repeat([-1.0, 1.0], 200), (3, 1))
    logits[np.arange(3), tokens] += 0.001
    logits[list(places), 0] = 1.001 + below
    judge = gpujudge.Judge(None)
    judge.logits = lambda text, last: logits
    verdict, gap = judge.verdict([1], tokens)
    assert (verdict.passed, verdict.reason.startswith("wrong: ")) == (passed, not passed)
    assert gap == pytest.approx(below, rel=0.05)
