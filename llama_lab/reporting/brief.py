"""The first two pages: questions, pictures, and sentences that are computed from the recorded tables.

A sentence about speed names the strongest other runtime of its run, and the file, size and processor. A question whose
tables and picture are missing is left out, so the page of another machine shows what that machine measured.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from llama_lab.bench import environment, provenance, record, standings, summary, wording, workload
from llama_lab.bench.record import Trial
from llama_lab.bench.wording import APART, listed, weights
from llama_lab.experiments.kv_cache import measure as kv_cache
from llama_lab.experiments.kv_cache.finding import saving
from llama_lab.experiments.shapes_and_recompilation import measure as served
from llama_lab.experiments.shapes_and_recompilation import table as shapes
from llama_lab.experiments.what_may_be_jitted.measure import PLACEMENTS, Traced
from llama_lab.figures import model_label
from llama_lab.reporting import document, gains, machines, overview, readme
from llama_lab.reporting import rivals as other_runtimes
from llama_lab.reporting.overview import Recorded, Setting
from llama_lab.reporting.repeats import Repeat
from llama_lab.reporting.rivals import megabytes, read_by, times
from llama_lab.sharing.contribution import HEADLINE

SHAPED = {
    workload.GROWING: "with unpadded prompts and a cache that grows with each token",
    workload.EXACT: "with each prompt's own length",
    workload.BUCKETS: "with prompts padded to a few lengths",
    workload.POWERS: "with prompts padded to powers of two",
    workload.ONE: "with all prompts padded to one length",
}


@dataclass(frozen=True)
class Said:
    """A sentence in Markdown. about: model and weights. machine: "" where the sentence itself names each. section: of
    its notebook."""

    text: str
    about: tuple[str, ...]
    machine: str
    when: str
    section: dict

    def facts(self, home: str = "") -> str:
        """What it rests on, in short; without the machine if that is `home`."""
        return " · ".join(filter(None, (*self.about, self.machine * (self.machine != home), self.when)))


Tables = Mapping[str, Recorded]  # by the stem of their file


def machine(table: Recorded) -> str:
    return wording.machine_line(table.meta["environment"]).partition(" · jax")[0]


def said_of(table: Recorded, text: str, *about: str) -> Said:
    """A sentence that rests on one table."""
    when = " · ".join(filter(None, (table.meta["created"][:10], provenance.complaint(table.meta))))
    return Said(text, about, machine(table), when, table.section)


def about(table: Recorded, row: Trial, text: str, *more: str) -> Said:
    """A sentence about the subject of a trial."""
    kept = f"{weights(standings.weights(row))}, {megabytes(row.weights_bytes)}"
    return said_of(table, text, model_label(row.model), kept, *more)


# The sentences --------------------------------------------------------------------------------------------------------


def placed(at: int, tables: Tables) -> Said | None:
    """A comparison of the README's claim. The strongest other runtime of the run stands beside it in `rivalled`."""
    above, what, below, than = gains.CLAIM[at]
    run = other_runtimes.greedy(tables.get(HEADLINE))
    gain, other = run and gains.gain([run], above, below), run and run.fastest(ours=False)
    if gain is None:
        return None
    words = gain.words(what, than, times)
    told = [] if other else ["no other runtime ran beside it"]
    read = gain.bytes_read() if above == machines.BEST else ""
    text = f"{words[0].upper()}{words[1:]}" + read
    return said_of(run.table, f"{text}.", run.model, asked(run, above), *told)


def asked(run: Setting, subject: str) -> str:
    """`36–38 + 17 tokens (prompt + answer), n = 40`."""
    good = summary.warm(run.rows, subject)
    return f"{overview.lengths(good)} tokens (prompt + answer), n = {len(good)}"


def rivalled(tables: Tables, again: Sequence[Repeat]) -> Said | None:
    """How far the kernel, and the loop without it, are from llama.cpp in the run of the README's claim, and the kernel
    in other runs of its model. again: of `repeats`."""
    run = other_runtimes.greedy(tables.get(HEADLINE))
    if run is None or readme.with_llama_cpp([run]) is None:
        return None
    text = readme.beside_llama_cpp(run, again, f"{machines.PAGE}.html")
    without = readme.without_kernel(run, machines.LLAMA_CPP)
    return said_of(run.table, f"{text} {without}".rstrip(), run.model, asked(run, machines.BEST))


def calls(tables: Tables) -> Said | None:
    """What Python and the device do for a token, with and without jit."""
    if (table := tables.get("01-what-may-be-jitted")) is None:
        return None
    rows = {row.subject: row for row in record.read(table.path, kind=Traced)[0] if row.valid}
    if not set(PLACEMENTS) <= set(rows):
        return None
    eager, step = (rows[name] for name in PLACEMENTS)
    text = (
        f"In a model cut to {step.layers} layers, a token without `jit` takes {len(eager.host_starts_ns)} calls from"
        f" Python, {len(eager.device_starts_ns)} operations on the device and {eager.total_ns / 1e6:.1f} ms; with it"
        f" (`{step.subject}`), {len(step.host_starts_ns)}, {len(step.device_starts_ns)} and"
        f" {step.total_ns / 1e6:.1f} ms (one profiled trace each)."
    )
    return said_of(table, text, model_label(step.model.partition(",")[0]))


def compiled(tables: Tables) -> Said | None:
    """What new shapes cost a server."""
    if (table := tables.get("03-shapes-and-recompilation")) is None:
        return None
    policies = shapes.accounts(record.read(table.path, kind=served.Served)[0], served.SHAPES)
    best = shapes.fastest(policies)
    if best is None:
        return None
    most = max(policies, key=lambda account: account.programs)
    ratio, new = shapes.ratio(most, best), table.meta["parameters"]["new_tokens"]
    text = (
        f"`jit` compiles again for each new shape: for {best.requests} requests ({new} tokens each) a freshly started"
        f" server compiles {best.programs} programs {SHAPED[best.subject]}, and {most.programs} {SHAPED[most.subject]},"
        f" where serving them takes {times(ratio)} as long, compilation included (n = {ratio.n})."
    )
    return said_of(table, text, table.meta["parameters"]["model"])


def contested(tables: Tables) -> Said | None:
    """The kernel beside `rivals.strongest`, the loop without it, and whether the machine was as in the headline's
    run."""
    if not (runs := other_runtimes.contests([*tables.values()])):
        return None
    run, mine = runs[0], other_runtimes.ours(runs[0])
    others = other_runtimes.strongest(run)
    over = listed(other_runtimes.beside(run, others))
    text = f"On a {read_by(run, others[0])}, `{mine}` decodes at {over}."
    without = readme.without_kernel(run, others[0].subject)
    text = " ".join(filter(None, (text, without, apart(run, tables))))
    return said_of(run.table, text, run.model, asked(run, mine))


def on_every_file(tables: Tables) -> Said | None:
    """The kernel beside the fastest other runtime on every file, whose processors it names."""
    found = other_runtimes.every([*tables.values()])
    days = listed(sorted({case.table.meta["created"][:10] for case in found}))
    said = said_of(found[0].table, readme.on_files(found)) if found else None
    return said and replace(said, machine="", when=days)


def on_a_larger_file(tables: Tables) -> Said | None:
    """The kernel beside the strongest other runtimes on a larger file, whose processor it names."""
    run = other_runtimes.greedy(tables.get(HEADLINE))
    found = readme.elsewhere([*tables.values()], run)[:1] if run else []
    return next((replace(said_of(of.table, text), machine="") for of, text in found), None)


def apart(run: Setting, tables: Tables) -> str:
    """`Memory was slower than in the first figure (median bandwidth probe 36 GB/s, not 51): compare rates within a
    figure.`, and that the machine was busy; "" where either was not probed, or both are alike."""
    above = other_runtimes.greedy(tables.get(HEADLINE))
    here, there = (probe(of) if of else None for of in (run, above))
    if not here or not there or max(here, there) <= APART * min(here, there):
        return ""
    how = "slower" if here < there else "faster"
    busy = "The machine was busy, and memory" if environment.busy(run.table.meta["environment"]) else "Memory"
    probes = f"median bandwidth probe {here:.0f} GB/s, not {there:.0f}"
    return f"{busy} was {how} than in the first figure ({probes}): compare rates within a figure."


def probe(run: Setting) -> float | None:
    """The median of a run's bandwidth probes, GB/s; None without."""
    return run.table.meta.get("bandwidth_gbps", {}).get(run.rows[0].run, {}).get("median")


def cached(tables: Tables) -> Said | None:
    """What a KV cache gains after few tokens and after many."""
    if (table := tables.get("04-kv-cache")) is None:
        return None
    rows, (model, contexts) = record.read(table.path)[0], (table.meta["parameters"][k] for k in ("model", "contexts"))
    gains = {n: ratio for n in sorted(contexts) if (ratio := saving(rows, model, n)).n}
    if len(gains) < 2:
        return None
    few, many = min(gains), max(gains)
    slots = {t.run: t.cache_slots for t in rows if t.subject == "step+nocache"}
    buffers = " or ".join(dict.fromkeys(f"{slots[kv_cache.after(model, n)]:,}" for n in (few, many)))
    text = (
        f"After {few} tokens a KV cache makes a jitted step {times(gains[few])} as fast; after {many},"
        f" {times(gains[many])} (without one, each token recomputes its whole padded buffer: {buffers} positions)."
    )
    row = next(row for row in rows if row.run == kv_cache.after(model, many) and row.subject == "step")
    return about(table, row, text, f"n = {gains[many].n}")


LADDER = f"{other_runtimes.CONTEST}-ladder"  # three panels, which need the page's width
QUESTIONS = (  # question, figure, sentences
    (
        "Where do I put jit, and what do I gain?",
        f"{HEADLINE}-rates",
        [*(partial(placed, at) for at in range(3)), rivalled],
    ),
    (
        "How does it compare with Ollama and llama.cpp?",
        LADDER,
        [contested, on_every_file, on_a_larger_file],
    ),
    ("What does jit change?", "01-what-may-be-jitted-trace", [calls, compiled]),
    ("What do I gain from a KV cache?", "04-kv-cache-latency", [cached]),
)


def questions(
    behind: Sequence[Recorded],
    drawn: Mapping[str, dict],
    places: document.Table | None = None,
    others: document.Table | None = None,
    again: Sequence[Repeat] = (),
) -> list[dict]:
    """[{question, figure: of `drawn`, or None, aside: whether sentences stand beside it, said: sentences, table: below
    them, or None, folded: whether it is shown on request}] of what is there. drawn: figures by name. places: where to
    put jit, of `gains`. others: of `scorecard`. again: of `rivalled`."""

    tables = {table.path.stem: table for table in behind}
    below = {QUESTIONS[0][0]: places, QUESTIONS[1][0]: others}
    asked = [
        dict(
            question=question,
            figure=drawn.get(name),
            aside=name in drawn and name != LADDER,
            said=[said for say in sentences if (said := say(tables, *[again] * (say is rivalled)))],
            table=table.inline() if (table := below.get(question)) and table.rows else None,
            folded=question == QUESTIONS[1][0],
        )
        for question, name, sentences in QUESTIONS
    ]
    return [entry for entry in asked if entry["said"] or entry["figure"] or entry["table"]]
