"""The kernel beside other runtimes, a line each: where it wins, where it loses, and what it costs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter

from llama_lab.bench import environment, quality, record, standings, summary, wording
from llama_lab.bench.wording import interval, listed, named_well, within
from llama_lab.experiments.compiled_kernels import commands, sizes
from llama_lab.figures import model_label
from llama_lab.reporting import overview, rivals
from llama_lab.reporting.document import Table, short
from llama_lab.reporting.machines import BEST, LLAMA_CPP
from llama_lab.reporting.overview import Recorded, Setting
from llama_lab.reporting.rivals import Case, megabytes

HEADS = ("what", "llama-jax", "other runtimes", "measured with")
ANSWERS = "writing answers"
TASKS = {  # what is timed → what it is called, what the kernel then does, and what its length is of
    sizes.DECODE: (ANSWERS, "writes answers", " of prompt and answer"),
    sizes.PREFILL: ("reading prompts", "reads prompts", ""),
}  # fmt: skip
COMMANDS = "07-compiled-kernels-commands"
STARTS = {commands.FIRST: "first command on a machine (compiles the kernels)", commands.WARM: "later commands"}
KERNEL, RIVAL_READERS = "fused", ("ik-llamacpp", "llamacpp", "ollama")  # arithmetics of quality, on the same file


@dataclass(frozen=True)
class Line:
    """A line of the table. ours, theirs: the cells of llama-jax and of other runtimes. about: what both are of."""

    what: str
    ours: str
    theirs: str
    about: str


# Its rate -------------------------------------------------------------------------------------------------------------


def on_every_file(found: Sequence[Case]) -> Line:
    """The least and the most of all files' cases, and how often the kernel is faster. found: of one task and one limit
    of instructions."""
    name, _, of = TASKS[found[0].entry["what"]]
    task = f"{name} ({wording.span((case.entry['tokens'] for case in found), ',')} tokens{of})"
    limit = f", only our kernels limited to {found[0].limited}" * bool(found[0].limited)
    on = f"{rivals.span(found)}{rivals.drawn(found)}; {rivals.placements(found)}; {rivals.processors(found)}"
    return Line(f"{task}: {rivals.file_count(found)}{limit}", rivals.ranging(found), rivals.contestants(found), on)


def on_one_file(run: Setting) -> Line:
    """Beside `rivals.strongest` of a run, and whether the fastest of the others is shown to be that."""
    (first, *level), slower = rivals.leaders(run)
    best, behind = ([named_well(other.backend) for other in some] for some in ([first, *level], slower))
    fastest = f"{listed(best)}: undecided which is fastest" if level else best[0]
    fastest += f"{f'; {best[0]} is' if level else ','} faster here than {listed(behind)}" * bool(behind)
    more = [other for other in rivals.strongest(run) if other.backend not in {t.backend for t in (first, *level)}]
    said = listed(rivals.beside(run, [first, *level, *more]))
    file = f"{overview.kept(first, run.rows)}, {megabytes(first.weights_bytes)}"
    env = run.table.meta["environment"]
    about = [file, f"`{rivals.ours(run)}`", wording.processor(env), *["busy machine"] * bool(environment.busy(env))]
    return Line(f"{ANSWERS}, {run.model}", said, fastest, ", ".join(about))


# What it costs --------------------------------------------------------------------------------------------------------


def starts(table: Recorded) -> list[Line]:
    """The first command and later ones, of the file where the first loses most; none where none were timed."""
    entries = commands.table(record.read(table.path, kind=commands.Command)[0])
    by = {(e["file"], e["phase"], e["name"]): e["s"] for e in entries if e["tokens"] == 1}
    mine = {at: s for at, s in by.items() if at[2] != commands.PEER and (*at[:2], commands.PEER) in by}
    firsts = [at for at in mine if at[1] == commands.FIRST]
    if not firsts:
        return []
    file, _, name = max(firsts, key=lambda at: mine[at].median / by[(*at[:2], commands.PEER)].median)
    timed = [phase for phase in STARTS if (file, phase, name) in mine]
    ours, theirs = (
        "; ".join(
            f"{short(s.median)} s{within(s, short) * (s.n > 1)} (n = {s.n})"
            for s in (by[file, phase, who] for phase in timed)
        )
        for who in (name, commands.PEER)
    )
    what, about = "; ".join(STARTS[phase] for phase in timed), f"{file}, `{name}`, one token"
    return [Line(what, ours, f"{named_well(LLAMA_CPP)} {theirs}", about)]


def accuracy(table: Recorded) -> list[Line]:
    """What fewer bits cost under the kernel and under the others on the same file; none where one of them is
    missing."""
    rows, _ = record.read(table.path, kind=quality.Window)
    known = {entry["subject"]: entry for entry in quality.table(rows) if entry["top1"] is not None}
    read = [name for name in RIVAL_READERS if name in known]
    if KERNEL not in known or not read:
        return []

    def kept(names: Sequence[str]) -> str:
        return wording.span((known[name]["top1"] for name in names), ".1%")

    others = listed([named_well(known[name]["backend"]) for name in read])
    ends = [(known[name]["top1_low"], known[name]["top1_high"]) for name in (KERNEL, *read)]
    level = " (the intervals overlap)" * (max(low for low, _ in ends) <= min(high for _, high in ends))
    again = standings.OPENVINO
    more = f"; {named_well(again)} {kept([again])} (it rounds the weights once more)" if again in known else ""
    mine = f"{kept([KERNEL])} {interval(known[KERNEL], '.1%', 'top1_')} (it rounds activations to bytes)"
    apart = [
        f"{named_well(known[name]['backend'])}: {known[name]['tokens']:,}"
        for name in read if known[name]["tokens"] != known[KERNEL]["tokens"]
    ]  # fmt: skip
    count = f"{known[KERNEL]['tokens']:,} tokens" + f" ({listed(apart)})" * bool(apart)
    what = f"share of {count} predicted as in float32 arithmetic on the same quantised weights"
    return [Line(what, mine, f"{others} {kept(read)}{level}{more}", f"{model_label(rows[0].model)}, `{BEST}`")]


COSTS = {COMMANDS: starts, f"{rivals.CONTEST}-quality": accuracy}  # table → what it says


# All of it ------------------------------------------------------------------------------------------------------------


def table(behind: Sequence[Recorded], place: Callable[[Recorded], str]) -> Table:
    """Every line whose table is there, rates first. place: of a table, a link in Markdown to where it is shown."""
    by = summary.grouped(rivals.every(behind), lambda case: (case.limited, case.entry["what"]))
    lines = [(some[0].table, on_every_file(some)) for _, some in sorted(by.items(), key=itemgetter(0))]
    for run in rivals.contests(behind):
        lines.append((run.table, on_one_file(run)))
    for of, say in ((rivals.named(behind, stem), say) for stem, say in COSTS.items()):
        for line in say(of) if of else ():
            processor = wording.processor(of.meta["environment"])
            lines.append((of, replace(line, about=f"{line.about}, {processor}")))
    return Table(HEADS, [(line.what, line.ours, line.theirs, f"{line.about}, {place(of)}") for of, line in lines])
