"""The first two pages: four questions, each with a picture and sentences that are computed from the recorded tables.

A sentence about speed names the strongest other runtime of its run, and the file, size and processor. A question whose
tables and picture are missing is left out, so the page of another machine shows what that machine measured.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from llama_lab.bench import environment, quality, record, standings, summary
from llama_lab.bench.record import Trial
from llama_lab.bench.statistics import Verdict
from llama_lab.bench.wording import listed, weights
from llama_lab.experiments.compiled_kernels import sizes
from llama_lab.experiments.kv_cache import measure as kv_cache
from llama_lab.experiments.shapes_and_recompilation import measure as served
from llama_lab.experiments.shapes_and_recompilation import table as shapes
from llama_lab.experiments.what_may_be_jitted.measure import PLACEMENTS, Traced
from llama_lab.figures import model_label
from llama_lab.reporting import document, overview, readme
from llama_lab.reporting import rivals as other_runtimes
from llama_lab.reporting.overview import Recorded, Setting
from llama_lab.reporting.rivals import megabytes, times
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


def facts(table: Recorded, *about: str) -> str:
    """What a sentence rests on, in short."""
    env = table.meta["environment"]
    machine = environment.machine_line(env).partition(" · jax")[0]
    return " · ".join(filter(None, [*about, machine, table.meta["created"][:10]]))


def file(run: Setting, trial: Trial) -> str:
    """`q4_1 file of 97 MB`: what another runtime read."""
    return f"{overview.kept(trial, run.rows)} file of {megabytes(trial.weights_bytes)}"


def rate(run: Setting, subject: str) -> str:
    median = statistics.median(t.tg for t in summary.warm(run.rows, subject))
    return f"`{subject}` makes {document.short(median)} tokens/s"


def about(table: Recorded, row: Trial, text: str, *more: str) -> Said:
    """A sentence about the subject of a trial."""
    kept = f"{weights(standings.weights(row))}, {megabytes(row.weights_bytes)}"
    return Said(text, facts(table, model_label(row.model), kept, *more), table.section)


# The sentences --------------------------------------------------------------------------------------------------------


def placed(at: int, tables: Tables) -> Said | None:
    """A comparison of the README's claim, and how far its faster side is from the other runtimes of the run."""
    above, what, below, than = readme.CLAIM[at]
    run = other_runtimes.greedy(tables.get(HEADLINE))
    if run is None or not {above, below} <= set(run.subjects):
        return None
    words, other = readme.compared(what, than, summary.paired_ratio(run.rows, above, below)), run.fastest(ours=False)
    beside = "no other runtime ran beside it"
    if other:
        ratio = times(summary.paired_ratio(run.rows, above, other.subject))
        many = len(other_runtimes.others(run)) > 1
        which = "the strongest rival of that run" if many else "the only other runtime in that run"
        beside = f"{ratio} the rate of {other.backend} on a {file(run, other)}, {which}"
    text = f"{words[0].upper()}{words[1:]}; {rate(run, above)}, {beside}."
    return about(run.table, summary.warm(run.rows, above)[0], text)


def calls(tables: Tables) -> Said | None:
    """What Python and the device do for a token, with and without jit."""
    if (table := tables.get("01-what-may-be-jitted")) is None:
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
    if (table := tables.get("03-shapes-and-recompilation")) is None:
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
    run = other_runtimes.greedy(tables.get(other_runtimes.CONTEST))
    ours = run and run.fastest()
    if not (ours and (first := run.fastest(ours=False))):
        return None
    others = len(other_runtimes.others(run))
    served = next((t for t in run.rows if t.valid and t.backend == standings.OLLAMA), None)

    def beside(other: Trial, what: str) -> str:
        return f"{times(summary.paired_ratio(run.rows, ours.subject, other.subject))} as many as {what}"

    words = [beside(first, f"{first.backend}, the strongest of {others} other runtimes,")]
    words += [beside(served, "Ollama")] if served and served.subject != first.subject else []
    return about(run.table, ours, f"{rate(run, ours.subject)}, {' and '.join(words)} on the same {file(run, first)}.")


def ends(what: str, text: str, tables: Tables) -> Said | None:
    """The least and the most favourable file beside its own strongest rival. what: DECODE or PREFILL of `sizes`. text:
    with places for the number of {files}, {cases} and cases in which ours was {faster}, for {least} and {most}, for the
    files on which our kernels were also {limited}."""
    found = other_runtimes.cases([*tables.values()], what)
    if not found:
        return None
    low, high = (other_runtimes.least(found, choose).words for choose in (min, max))
    faster = sum(case.ratio.verdict == Verdict.FASTER for case in found)
    fewer = [case for case in found if case.limited]
    instructions = listed(sorted({case.limited for case in fewer}))
    limited = f", {other_runtimes.files(fewer)} of them also with our kernels limited to {instructions}"
    numbers = dict(files=other_runtimes.files(found), cases=len(found), faster=faster, least=low, most=high)
    numbers["limited"] = limited * bool(fewer)
    days = sorted({case.table.meta["created"][:10] for case in found})
    processors = sorted({case.table.meta["environment"]["cpu"] for case in found})
    when = " to ".join(dict.fromkeys([days[0], days[-1]]))
    return Said(text.format(**numbers), f"{listed(processors)} · {when}", found[0].table.section)


def lost(tables: Tables) -> Said | None:
    """Where another runtime is better: prompts with fewer instructions, the first command, memory."""
    behind = [*tables.values()]
    prompts, starts = other_runtimes.prompts(behind), other_runtimes.starts(behind)
    memory = other_runtimes.memory(behind, readme.BEST, readme.LLAMA_CPP)
    of = {other_runtimes.FILES[-1]: prompts, other_runtimes.COMMANDS: starts, other_runtimes.CONTEST: memory}
    if not any(of.values()):
        return None
    rests = [tables[stem] for stem, words in of.items() if words]
    places = dict.fromkeys(f"{environment.processor(t.meta['environment'])}, {t.meta['created'][:10]}" for t in rests)
    words = "; ".join(filter(None, of.values()))
    return Said(f"Other runtimes are ahead elsewhere: {words}.", " · ".join(places), rests[0].section)


def cached(tables: Tables) -> Said | None:
    """What a KV cache gains after few tokens and after many."""
    if (table := tables.get("04-kv-cache")) is None:
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
    if (table := tables.get("09-ollama-quality")) is None:
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
    "On {files} files at several lengths{limited}, our fastest placement decodes faster than the fastest other runtime"
    " in {faster} of {cases} cases: at the least {least}, at the most {most}."
)
PROMPTS = "A prompt is read faster than by the fastest other runtime in {faster} of {cases} cases: {least} to {most}."
QUESTIONS = (  # question, figure, sentences
    ("Where do I put jit, and what do I gain?", f"{HEADLINE}-rates", [partial(placed, at) for at in range(3)]),
    ("What does jit change?", "01-what-may-be-jitted-trace", [calls, compiled]),
    (
        "How far am I from Ollama and llama.cpp?",
        "07-compiled-kernels-sizes",
        [rivals, partial(ends, sizes.DECODE, DECODED), partial(ends, sizes.PREFILL, PROMPTS), lost],
    ),
    ("What else matters?", "04-kv-cache-latency", [cached, agreeing]),
)


def questions(behind: Sequence[Recorded], drawn: Mapping[str, dict]) -> list[dict]:
    """[{question, figure: of `drawn`, or None, said: sentences}] of what is there. drawn: figures by name."""
    tables = {table.path.stem: table for table in behind}
    asked = [
        dict(question=question, figure=drawn.get(name), said=[*filter(None, (say(tables) for say in sentences))])
        for question, name, sentences in QUESTIONS
    ]
    return [entry for entry in asked if entry["said"] or entry["figure"]]
