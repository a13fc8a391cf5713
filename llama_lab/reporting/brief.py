"""The first two pages: four questions, each with a picture and sentences that are computed from the recorded tables.

A sentence about speed names the strongest other runtime of its run, and the file, size and processor. A question whose
tables and picture are missing is left out, so the page of another machine shows what that machine measured.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from llama_lab.bench import environment, provenance, quality, record, standings, summary
from llama_lab.bench.record import Trial
from llama_lab.bench.statistics import Verdict
from llama_lab.bench.wording import interval, listed, weights
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
PICTURED = other_runtimes.FILES[0]  # its figure has the name of the table
ALONE = "no other runtime in this run"


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
    machine = environment.machine_line(table.meta["environment"]).partition(" · jax")[0]
    told = [*about, machine, table.meta["created"][:10], provenance.complaint(table.meta)]
    return " · ".join(filter(None, told))


def file(run: Setting, trial: Trial) -> str:
    """`q4_1 file of 97 MB`: what another runtime read."""
    return f"{overview.kept(trial, run.rows)} file of {megabytes(trial.weights_bytes)}"


def rate(run: Setting, subject: str) -> str:
    median = statistics.median(t.tg for t in summary.warm(run.rows, subject))
    return f"`{subject}` runs at {document.short(median)} tokens/s"


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
    beside, told = "", "no other runtime ran beside it"
    if other:
        beside = f", {times(summary.paired_ratio(run.rows, above, other.subject))} the rate of {other.backend}"
        many = len(other_runtimes.others(run)) > 1
        which = "the fastest other runtime" if many else "the only other runtime"
        told = f"{other.backend}, on a {file(run, other)}, is {which} of this run"
    text = f"{words[0].upper()}{words[1:]}; {rate(run, above)}{beside}."
    return Said(text, facts(run.table, run.model, told), run.table.section)


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
    return Said(
        text, facts(table, f"{model_label(step.model.partition(',')[0])}, cut to {step.layers} layers"), table.section
    )


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
        f"`jit` compiles again for each new shape: for the same {best.requests} requests a new server compiles"
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
        return f"{times(summary.paired_ratio(run.rows, ours.subject, other.subject))} the rate of {what}"

    words = [beside(first, f"{first.backend}, the fastest of {others} other runtimes,")]
    words += [beside(served, "Ollama")] if served and served.subject != first.subject else []
    told = {other.backend for other in (first, served) if other}
    files: dict[str, list[str]] = {}
    for e in other_runtimes.larger([*tables.values()]):
        if e["backend"] in told:
            files.setdefault(e["file"], []).append(f"{times(e['over'])} that of {e['backend']}")
    more = "".join(f" On {name} it runs at {listed(leads)}." for name, leads in files.items())
    text = f"{rate(run, ours.subject)}, {' and '.join(words)} on the same {file(run, first)}.{more}"
    return Said(text, facts(run.table, model_label(ours.model)), run.table.section)


def ends(what: str, text: str, tables: Tables) -> Said | None:
    """The least and the most favourable file beside its own strongest rival. what: DECODE or PREFILL of `sizes`. text:
    with places for the number of {files}, {cases} and cases in which ours was {faster}, for {least} and {most}, for the
    files on which our kernels were also {limited}."""
    found = other_runtimes.cases([*tables.values()], what)
    if not found:
        return None
    low, high = (other_runtimes.least(found, choose).words for choose in (min, max))
    verdicts = Counter(case.ratio.verdict for case in found)
    rest = [f"{verdict} in {n}" for verdict, n in sorted(verdicts.items()) if verdict != Verdict.FASTER]
    fewer = [case for case in found if case.limited]
    instructions = listed(sorted({case.limited for case in fewer}))
    limited = f", {other_runtimes.files(fewer)} of them also with our kernels limited to {instructions}"
    shown = sum(case.table.path.stem == PICTURED for case in found)
    numbers = dict(files=other_runtimes.files(found), cases=len(found), faster=verdicts[Verdict.FASTER], shown=shown)
    numbers |= dict(rest=f" ({listed(rest)})" * bool(rest), limited=limited * bool(fewer), least=low, most=high)
    days = sorted({case.table.meta["created"][:10] for case in found})
    processors = sorted({case.table.meta["environment"]["cpu"] for case in found})
    when = " to ".join(dict.fromkeys([days[0], days[-1]]))
    return Said(text.format(**numbers), f"{listed(processors)} · {when}", found[0].table.section)


def lost(stem: str, say: Callable[[Sequence[Recorded]], str], tables: Tables) -> Said | None:
    """Where another runtime is better. stem: of the table; say: what it says of that."""
    table, words = tables.get(stem), say([*tables.values()])
    return Said(f"Where it loses: {words[0].lower()}{words[1:]}", facts(table), table.section) if words else None


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
        f"A jitted step with a KV cache is {times(gains[few])} as fast as one without after {few} tokens, and"
        f" {times(gains[many])} as fast after {many}."
    )
    row = next(row for row in rows if row.run == kv_cache.after(model, many) and row.subject == "step")
    return about(table, row, text, ALONE)


def agreeing(tables: Tables) -> Said | None:
    """What the kernel's arithmetic costs in quality, beside that of others on the same file."""
    if (table := tables.get("09-ollama-quality")) is None:
        return None
    rows, _ = record.read(table.path, kind=quality.Window)
    known = {entry["subject"]: entry for entry in quality.table(rows) if entry["top1"] is not None}
    if KERNEL not in known or not set(RIVAL_READERS) & set(known):
        return None

    def kept(name: str) -> str:
        entry = known[name]
        return f"{entry['top1']:.1%} {interval(entry, '.1%', 'top1_')}"

    others = [f"{kept(name)} under {known[name]['backend']}" for name in RIVAL_READERS if name in known]
    text = (
        f"Fewer bits cost quality: the best next token is still float32's for {kept(KERNEL)} of"
        f" {known[KERNEL]['tokens']} tokens under the kernel, for {listed(others)}."
    )
    return Said(text, facts(table, model_label(rows[0].model), "the file's own blocks"), table.section)


def memory(behind: Sequence[Recorded]) -> str:
    return other_runtimes.memory(behind, readme.BEST, readme.LLAMA_CPP)


DECODED = (
    "On {files} files at several lengths{limited}, our fastest placement decodes faster than the fastest other runtime"
    " in {faster} of {cases} cases{rest}, {shown} of them in the figure: at the least {least}, at the most {most}."
)
PROMPTS = (
    "A prompt is read faster than by the fastest other runtime in {faster} of {cases} cases{rest}: {least} to {most}."
)
QUESTIONS = (  # question, figure, sentences
    ("Where do I put jit, and what do I gain?", f"{HEADLINE}-rates", [partial(placed, at) for at in range(3)]),
    ("What does jit change?", "01-what-may-be-jitted-trace", [calls, compiled]),
    (
        "How far am I from Ollama and llama.cpp?",
        PICTURED,
        [
            rivals,
            partial(ends, sizes.DECODE, DECODED),
            partial(ends, sizes.PREFILL, PROMPTS),
            partial(lost, other_runtimes.SAMPLED, other_runtimes.sampling),
            partial(lost, other_runtimes.FILES[-1], other_runtimes.prompts),
            partial(lost, other_runtimes.COMMANDS, other_runtimes.starts),
            partial(lost, other_runtimes.CONTEST, memory),
        ],
    ),
    ("What else matters?", "04-kv-cache-latency", [cached, agreeing]),
)


def questions(behind: Sequence[Recorded], drawn: Mapping[str, dict]) -> list[dict]:
    """[{question, figure: of `drawn`, or None, said: sentences}] of what is there; with the first the table of where to
    put jit. drawn: figures by name."""
    tables = {table.path.stem: table for table in behind}
    asked = [
        dict(question=question, figure=drawn.get(name), said=[*filter(None, (say(tables) for say in sentences))])
        for question, name, sentences in QUESTIONS
    ]
    places = document.Table(readme.PLACE_HEADS, [[*map(document.inline, row)] for row in readme.PLACES])
    asked = [entry | dict(table=places if at == 0 else None) for at, entry in enumerate(asked)]
    return [entry for entry in asked if entry["said"] or entry["figure"]]
