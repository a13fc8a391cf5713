"""The first two pages: four questions, each with a picture and sentences that are computed from the recorded tables.

A sentence about speed names the strongest rival of its run, and the file, size and processor. A question whose tables
and picture are missing is left out, so the page of another machine shows what that machine measured.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from llama_lab.bench import environment, quality, record, standings, summary
from llama_lab.bench.record import Trial
from llama_lab.bench.statistics import Ratio, Verdict
from llama_lab.bench.wording import listed, weights, within
from llama_lab.experiments.compiled_kernels import sizes
from llama_lab.experiments.kv_cache import measure as kv_cache
from llama_lab.experiments.shapes_and_recompilation import measure as served
from llama_lab.experiments.shapes_and_recompilation import table as shapes
from llama_lab.experiments.what_may_be_jitted.measure import PLACEMENTS, Traced
from llama_lab.figures import model_label
from llama_lab.reporting import document, readme
from llama_lab.reporting.overview import Recorded, Setting
from llama_lab.sharing.contribution import HEADLINE

KERNEL, RIVAL_READERS = "fused", ("ik-llamacpp", "llamacpp", "ollama")  # arithmetics of quality, on the same file
ALONE = "no rival in this run"


@dataclass(frozen=True)
class Said:
    """A sentence in Markdown. facts: model, weights, machine and day; of several machines the sentence itself names
    each. section: of its notebook."""

    text: str
    facts: str
    section: dict


Tables = Mapping[str, Recorded]  # by the stem of their file


def times(ratio: Ratio) -> str:
    """`3.66 times [3.58, 3.73]`, with the verdict where the trials do not decide."""
    verdict = f" ({ratio.verdict})" if ratio.verdict == Verdict.UNDECIDED else ""
    return f"{ratio.value:.2f} times{within(ratio)}{verdict}"


def megabytes(size: float | None) -> str:
    return f"{size / 1e6:,.0f} MB" if size else "unknown size"


def facts(table: Recorded, *about: str) -> str:
    """What a sentence rests on, in short."""
    env = table.meta["environment"]
    machine = environment.machine_line(env).partition(" · jax")[0]
    return " · ".join(filter(None, [*about, machine, table.meta["created"][:10]]))


def run_of(tables: Tables, stem: str) -> Setting | None:
    """The greedy run of a table that has no other name than the table."""
    settings = tables[stem].settings if stem in tables else []
    return next((s for s in settings if not s.first and not s.setting), None)


def fastest(run: Setting, wanted: Callable[[Trial], bool]) -> Trial | None:
    """A trial of the subject with the highest median rate among those that are wanted."""
    by_name = summary.grouped([t for t in run.rows if t.valid and wanted(t)], "subject")
    return max(by_name.values(), key=lambda rows: statistics.median(t.tg for t in rows), default=[None])[0]


def rival(run: Setting) -> Trial | None:
    """The fastest other runtime."""
    return fastest(run, lambda trial: trial.backend != standings.JAX)


def rate(run: Setting, subject: str) -> str:
    median = statistics.median(t.tg for t in summary.warm(run.rows, subject))
    return f"`{subject}` makes {document.short(median)} tokens/s"


def about(table: Recorded, row: Trial, text: str, *more: str) -> Said:
    """A sentence about the subject of a trial."""
    kept = f"{weights(standings.weights(row))}, {megabytes(row.weights_bytes)}"
    return Said(text, facts(table, model_label(row.model), kept, *more), table.section)


# The sentences --------------------------------------------------------------------------------------------------------


def placed(at: int, tables: Tables) -> Said | None:
    """A comparison of the README's claim, and how far its faster side is from the strongest rival of the run."""
    above, what, below, than = readme.CLAIM[at]
    run = run_of(tables, HEADLINE)
    if run is None or not {above, below} <= set(run.subjects):
        return None
    words, other = readme.compared(what, than, summary.paired_ratio(run.rows, above, below)), rival(run)
    beside = "no other runtime ran beside it"
    if other:
        ratio = times(summary.paired_ratio(run.rows, above, other.subject))
        file = f"{other.dtype} file of {megabytes(other.weights_bytes)}"
        beside = f"{ratio} the rate of {other.backend} on a {file}, the strongest rival of that run"
    text = f"{words[0].upper()}{words[1:]}; {rate(run, above)}, {beside}."
    return about(run.table, summary.warm(run.rows, above)[0], text)


def calls(tables: Tables) -> Said | None:
    """What Python and the device do for a token, with and without jit."""
    if (table := tables.get("16-what-may-be-jitted")) is None:
        return None
    rows = {row.subject: row for row in record.read(table.path, kind=Traced)[0] if row.valid}
    if not set(PLACEMENTS) <= set(rows):
        return None
    eager, step = (rows[name] for name in PLACEMENTS)
    text = (
        f"A token takes {len(eager.host_starts_ns)} calls from Python under `{eager.subject}` and"
        f" {len(step.host_starts_ns)} under `{step.subject}`, and the device computes {len(eager.device_starts_ns)} and"
        f" {len(step.device_starts_ns)} operations for it."
    )
    return Said(text, facts(table, model_label(step.model), f"{step.layers} layers"), table.section)


def compiled(tables: Tables) -> Said | None:
    """What new shapes cost a server."""
    if (table := tables.get("04-shapes-and-recompilation")) is None:
        return None
    policies = shapes.accounts(record.read(table.path, kind=served.Served)[0], served.SHAPES)
    best = shapes.fastest(policies)
    if best is None:
        return None
    most = max(policies, key=lambda account: account.programs)
    text = (
        f"`jit` compiles again for each new shape: the same {best.requests} requests to a new server need"
        f" {best.programs} programs with {best.subject}, and {most.programs} with {most.subject}, which takes"
        f" {times(shapes.ratio(most, best))} as long."
    )
    return Said(text, facts(table, table.meta["parameters"]["model"], ALONE), table.section)


def rivals(tables: Tables) -> Said | None:
    """Our fastest placement beside the strongest of all runtimes, and beside Ollama, on one file."""
    run = run_of(tables, "10-ollama")
    ours = run and fastest(run, lambda trial: trial.backend == standings.JAX)
    if not (ours and (first := rival(run))):
        return None
    others = len({t.backend for t in run.rows if t.valid and t.backend != standings.JAX})
    served = fastest(run, lambda trial: trial.backend == standings.OLLAMA)

    def beside(other: Trial, what: str) -> str:
        return f"{times(summary.paired_ratio(run.rows, ours.subject, other.subject))} as many as {what}"

    words = [beside(first, f"{first.backend}, the strongest of {others} other runtimes,")]
    words += [beside(served, "Ollama")] if served and served is not first else []
    file = f"{first.dtype} file of {megabytes(first.weights_bytes)}"
    return about(run.table, ours, f"{rate(run, ours.subject)}, {' and '.join(words)} on the same {file}.")


def ends(kind: str, text: str, tables: Tables) -> Said | None:
    """The least and the most favourable file beside its own strongest rival. kind: DECODE or PREFILL of `sizes`. text:
    with places for {cases}, {least} and {most}."""
    found = readme.beside([*tables.values()], kind)
    if not found:
        return None

    def told(entry: dict, table: Recorded) -> str:
        after = "after" if kind == sizes.DECODE else "for"
        where = f"`{entry['file']}`, {megabytes(entry['bytes'])} a token, {after} {entry['tokens']:,} tokens"
        return f"{times(entry['ratio'])} (`{entry['best']}`, {where}, {table.meta['environment']['cpu']})"

    least, most = (told(*choose(found, key=lambda pair: pair[0]["ratio"].value)) for choose in (min, max))
    days = sorted({table.meta["created"][:10] for _, table in found})
    processors = sorted({table.meta["environment"]["cpu"] for _, table in found})
    text = text.format(cases=len(found), least=least, most=most)
    return Said(text, f"{listed(processors)} · {' to '.join(dict.fromkeys([days[0], days[-1]]))}", found[0][1].section)


def cached(tables: Tables) -> Said | None:
    """What a KV cache gains after few tokens and after many."""
    if (table := tables.get("05-kv-cache")) is None:
        return None
    rows, (model, contexts) = record.read(table.path)[0], (table.meta["parameters"][k] for k in ("model", "contexts"))
    gains = {n: ratio for n in sorted(contexts) if (ratio := kv_cache.saving(rows, model, n)).n}
    if len(gains) < 2:
        return None
    few, many = min(gains), max(gains)
    text = (
        f"With a KV cache a jitted token comes {times(gains[few])} as fast as without one after {few} tokens, and"
        f" {times(gains[many])} after {many}."
    )
    row = next(row for row in rows if row.run == kv_cache.after(model, many) and row.subject == "step")
    return about(table, row, text, ALONE)


def agreeing(tables: Tables) -> Said | None:
    """What the kernel's arithmetic costs in quality, beside that of others on the same file."""
    if (table := tables.get("10-ollama-quality")) is None:
        return None
    rows, _ = record.read(table.path, kind=quality.Window)
    known = {entry["subject"]: entry for entry in quality.table(rows) if entry["top1"] is not None}
    others = [f"{known[name]['top1']:.1%} under {known[name]['backend']}" for name in RIVAL_READERS if name in known]
    if KERNEL not in known or not others:
        return None
    text = (
        f"Fewer bits cost quality: the best next token is still float32's for {known[KERNEL]['top1']:.1%} of"
        f" {known[KERNEL]['tokens']} tokens under the kernel, for {listed(others)}."
    )
    return Said(text, facts(table, model_label(rows[0].model), "the file's own blocks"), table.section)


DECODED = (
    "In {cases} cases, each a whole file, an instruction set and a length, our fastest placement decodes at {least} the"
    " rate of the fastest other runtime at the least, and at {most} at the most."
)
PROMPTS = (
    "A prompt is read at {least} the rate of the fastest other runtime in the worst of {cases} cases, and at {most} in"
    " the best."
)
QUESTIONS = (  # question, figure, sentences
    ("Where do I put jit, and what do I gain?", f"{HEADLINE}-rates", [partial(placed, at) for at in range(3)]),
    ("What does jit change?", "16-what-may-be-jitted-trace", [calls, compiled]),
    (
        "How far am I from Ollama and llama.cpp?",
        "17-compiled-kernels-sizes",
        [rivals, partial(ends, sizes.DECODE, DECODED), partial(ends, sizes.PREFILL, PROMPTS)],
    ),
    ("What else decides?", "05-kv-cache-latency", [cached, agreeing]),
)


def questions(behind: Sequence[Recorded], drawn: Mapping[str, dict]) -> list[dict]:
    """[{question, figure: of `drawn`, or None, said: sentences}] of what is there. drawn: figures by name."""
    tables = {table.path.stem: table for table in behind}
    asked = [
        dict(question=question, figure=drawn.get(name), said=[*filter(None, (say(tables) for say in sentences))])
        for question, name, sentences in QUESTIONS
    ]
    return [entry for entry in asked if entry["said"] or entry["figure"]]
