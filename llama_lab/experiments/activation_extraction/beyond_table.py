"""What the rows of `beyond` say: how long the device waits, what a mesh costs, what several uploads at once gain."""

from __future__ import annotations

from collections.abc import Sequence

from llama_lab.bench import frames, statistics, summary
from llama_lab.bench.experiment import whole
from llama_lab.bench.published import figure_of
from llama_lab.bench.rows import Run
from llama_lab.bench.statistics import Verdict
from llama_lab.bench.wording import listed, within
from llama_lab.experiments.activation_extraction.beyond import (
    IDLE,
    MESH,
    PIPELINED,
    SPREAD,
    TRACED,
    UPLOADS,
    WAITING,
    Pass,
    writers_of,
)

NOT_YET = "not measured yet"


def tallied(rows: Sequence[Pass], kind: str, seed: int = 0) -> list[dict]:
    """One entry per run and subject of one kind, of `summary.tally`: {run, subject, rate: Summary of tokens/s, ratio:
    to the first subject, judged against the run's A/A control, verdict: in words, idle, apart: Summaries, …}. The first
    subject ran twice in each block, and both runs count in its rate (geometric mean) as they do in the ratios."""
    mine, entries = [row for row in whole(rows) if Run.read(row.run).kind == kind], []
    for run in dict.fromkeys(row.run for row in mine):
        of_run = [row for row in mine if row.run == run]
        subjects = list(dict.fromkeys(row.subject for row in of_run if row.phase == "cold"))
        warm, order = [row for row in of_run if row.phase == "warm"], [(run, name) for name in subjects]
        values = dict(rate="tg", idle="idle", apart="apart")
        frame = summary.tally(warm, ["run", "subject"], values, against=subjects[0], seed=seed, order=order)
        for e in frame.to_dict("records"):
            rates = summary.both_rates(warm, e["subject"])
            rate = statistics.summarise([*rates.values()], seed, [process for process, _ in rates])
            first = e["subject"] == subjects[0]
            entries.append(e | dict(rate=rate, verdict=summary.BASELINE if first else e["ratio"].judged))
    return entries


def idle(rows: Sequence[Pass], seed: int = 0) -> list[dict]:
    return tallied(rows, IDLE, seed)


def meshes(rows: Sequence[Pass], seed: int = 0) -> list[dict]:
    return tallied(rows, MESH, seed)


def uploads(rows: Sequence[Pass], seed: int = 0) -> list[dict]:
    return tallied(rows, UPLOADS, seed)


def most(name: str):
    """A column: the largest value that was seen, None if there is none."""
    return lambda entry: max(entry["points"][name], default=None)


RATE = frames.interval("tokens/s", "rate")
OVER = {**frames.interval("ratio", "ratio", "value", ends="ratio "), "verdict": "verdict"}
IDLE_COLUMNS = frames.Columns(
    {
        "pipeline": "subject",
        "idle %": lambda e: 100 * e["idle"].median if e["idle"].n else None,
        "at least": lambda e: 100 * min(e["points"]["idle"]) if e["idle"].n else None,
        "at most": lambda e: 100 * max(e["points"]["idle"]) if e["idle"].n else None,
        **RATE,
        **OVER,
        "n": "n",
    },
    index="pipeline",
    digits=2,
)
MESH_COLUMNS = frames.Columns(
    {
        "devices": "subject",
        **RATE,
        **OVER,
        "n": "n",
        "apart": most("apart"),
        "error": lambda e: max((row.error for row in e["every"] if row.error is not None), default=None),
    },
    index="devices",
    digits={
        **dict.fromkeys(("tokens/s", "low", "high", "ratio", "ratio low", "ratio high"), 2),
        "apart": 6,
        "error": 6,
    },
)
UPLOAD_COLUMNS = frames.Columns(
    {
        "delay ms": lambda e: e["first"].delay_ms,
        "writers": lambda e: e["first"].workers,
        "objects": lambda e: e["first"].objects,
        "MB": lambda e: e["first"].bytes / 1e6,
        "MB/s": lambda e: e["rate"].median * e["first"].bytes / e["first"].tokens / 1e6,
        **frames.RATIO,
        "verdict": "verdict",
        "n": "n",
    },
    index=["delay ms", "writers"],
    digits=2,
)


def show(entries: Sequence[dict], columns: frames.Columns, gaps: Sequence[dict] = ()):
    """A part's table; without rows one line that says why: a gap, or that nobody has measured it yet."""
    import pandas as pd

    if entries:
        return frames.show(entries, columns)
    words = "; ".join(f"not measured: {gap['reason']} ({gap['remedy']})" for gap in gaps) or NOT_YET
    return pd.DataFrame([{columns.index if isinstance(columns.index, str) else columns.index[0]: words}])


def idle_words(rows: Sequence[Pass], seed: int = 0) -> str:
    """`The device of extract was idle for 2.1% [1.9, 2.4] of the traced time, …; where each stage waits, for 9%`."""
    known = {e["subject"]: e["idle"] for e in idle(rows, seed) if e["idle"].n}
    share = known.get(PIPELINED + TRACED)
    if share is None:
        return f"How long the device of `extract` waits is {NOT_YET}."
    target = figure_of("extraction", "device idle, at most")
    against = "below" if 100 * share.median < target else "not below"
    said = {name: f"{100 * e.median:.1f}%{within(e, lambda v: f'{100 * v:.1f}')}" for name, e in known.items()}
    words = f"idle for {said[PIPELINED + TRACED]} of the traced time, {against} the planned {target:g}%"
    waiting = said.get(WAITING + TRACED)
    return f"The device of `extract` was {words}" + (f"; where each stage waits, for {waiting}." if waiting else ".")


def mesh_words(rows: Sequence[Pass], seed: int = 0) -> str:
    """What the mesh makes of one device's tokens/s, how far its activations are from those of it, and whether dividing
    a batch costs anything."""
    mesh = next((e for e in meshes(rows, seed) if e["subject"] == SPREAD and e["ratio"].n), None)
    if mesh is None:
        return f"A mesh is {NOT_YET}."
    ratio, apart = mesh["ratio"], max(mesh["points"]["apart"])
    same = "the same activations" if apart == 0 else f"activations within {apart:.1g} of a token's length"
    said = f"The {SPREAD} gives {same} at {ratio.words} the tokens/s of one device: {ratio.judged}, n = {ratio.n}."
    cost = {
        Verdict.FASTER: " Dividing the batch is no cost here; why was not measured.",
        Verdict.SLOWER: f" Two halves of a batch cost {1 / ratio.value:.2f} times the whole batch.",
    }
    return said + cost.get(ratio.verdict, "")


def upload_words(rows: Sequence[Pass], gaps: Sequence[dict] = (), seed: int = 0) -> str:
    """At each delay what the most writers make of one."""
    ends = {}
    for e in uploads(rows, seed):
        if e["ratio"].n:
            ends[e["first"].delay_ms] = e
    if not ends:
        return "Uploads are " + ("; ".join(f"not measured: {gap['reason']}" for gap in gaps) or NOT_YET) + "."
    parts = [f"{e['ratio'].words} where each request waits {delay} ms" for delay, e in ends.items()]
    return f"Uploads by {next(iter(ends.values()))['subject']}, over {writers_of(1)}: {listed(parts)}."
