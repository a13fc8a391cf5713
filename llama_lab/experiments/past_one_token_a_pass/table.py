"""What the trials say of each task: rates, ratios, whether drafts changed a token, and what passes took of them; and
what drafts gain, in a sentence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from llama_jax.placement import parse
from llama_lab.bench import frames, standings, summary
from llama_lab.bench.claim import Claim, Comparison, stated
from llama_lab.bench.record import Trial
from llama_lab.bench.statistics import Ratio, Verdict
from llama_lab.bench.wording import listed, named_well
from llama_lab.experiments.past_one_token_a_pass.by_text import ASKED
from llama_lab.experiments.past_one_token_a_pass.measure import TASKS

NOUNS = {"open": "open questions", "copy": "a copy", "edit": "a copy with a word replaced"}
TEXTS = dict.fromkeys(text for text, _ in ASKED)


def plain(name: str) -> str:
    """A subject without its drafts: `loop+fused+lookup6` → `loop+fused`."""
    return "+".join(part for part in name.split("+") if not part.startswith("lookup"))


def table(trials: Sequence[Trial], meta: dict, seed: int = 0) -> list[dict]:
    """One entry per task and subject: `standings.ladder`'s, with `task`; `prompts`, their number; `ratio` over the same
    without drafts, None where there is none; `equal`, whether both made the same tokens of each prompt; `passes`, of
    `taken`, None for a peer."""
    present = summary.subjects(trials)
    names = [name for name in (*meta["parameters"]["placements"], *meta["parameters"]["peers"]) if name in present]
    entries = []
    for task in TASKS:
        some = [t for t in trials if meta["tasks"][t.prompt] == task]
        made = summary.grouped([t for t in some if t.token_times_ns], "subject", lambda t: (t.prompt, t.tokens_sha256))
        for entry in standings.ladder(some, names, seed):
            name, without = entry["name"], plain(entry["name"])
            paired = without != name and without in names
            entry |= dict(
                task=task,
                prompts=len({t.prompt for t in some}),
                ratio=standings.ratio(some, name, without, seed) if paired else None,
                equal=set(made.get(name, ())) == set(made.get(without, ())) if paired else None,
                passes=taken(meta["passes"], meta["tasks"], name, task),
            )
            entries.append(entry)
    return entries


def taken(rows: Sequence[dict], tasks: Sequence[str], name: str, task: str) -> dict | None:
    """{tokens_a_pass, accepted (share of the drafts), drafted (share of the passes), made (tokens of each pass)} of a
    subject on a task; None if nothing is known."""
    some = [row for row in rows if row["subject"] == name and tasks[row["prompt"]] == task]
    made = [n for row in some for n in row["made"]]
    if not made:
        return None
    depths = [depth for row in some for depth in drafts(row)]
    return dict(
        tokens_a_pass=float(np.mean(made)),
        accepted=(sum(made) - len(made)) / sum(depths) if sum(depths) else 0.0,
        drafted=float(np.mean([depth > 0 for depth in depths])),
        made=made,
    )


def drafts(row: dict) -> list[int]:
    """Of each pass; in older tables all that had any had as many."""
    return row["depths"] if "depths" in row else [row["count"] * drafted for drafted in row["drafted"]]


def gains(of_texts: Sequence[dict]) -> list[dict]:
    """One entry per file and placement with drafts: {file, name, by: text → entry, costs of its passes, () if
    unknown}. of_texts: of `by_text.table`."""
    known = [e for e in of_texts if e["equal"] is not None and e["ratio"].n]
    return [
        dict(
            file=file,
            name=name,
            by={e["text"]: e for e in some},
            costs=next((e["passes"]["costs"] for e in some if e["passes"]), ()),
        )
        for (file, name), some in summary.grouped(known, lambda e: (e["file"], e["name"])).items()
    ]


def least(of_texts: Sequence[dict]) -> str:
    """On which kind of text the mean gain of drafts is least, in how many files, and the worst ratio there. of_texts:
    of `by_text.table`."""
    worst = [min(e["by"].values(), key=lambda e: e["ratio"].value) for e in gains(of_texts)]
    if not worst:
        return "No file was measured with drafts."
    most = min(worst, key=lambda e: e["ratio"].value)
    text, kinds = NOUNS.get(most["text"], most["text"]), [e["text"] for e in worst]
    lost = "a loss" if most["ratio"].verdict == Verdict.SLOWER else "no loss is shown"
    return (
        f"The mean gain is least on {text} in {kinds.count(most['text'])} of {len(kinds)} rows;"
        f" at worst {most['ratio'].words} ({most['name']}, {most['file']}): {lost}"
    )


def smaller(entries: Sequence[dict]) -> str:
    """`Drafts gain less under loop+fused+lookup than under loop+lookup on a copy, by the intervals.`: the last
    placement with drafts beside the first; "" of fewer. entries: of `table`."""
    ratios = summary.grouped(
        [e for e in entries if e["backend"] == standings.JAX and e["ratio"] and e["ratio"].n], lambda e: e["name"]
    )
    if len(ratios) < 2:
        return ""
    first, *_, last = ratios
    above, below = ({e["task"]: e["ratio"] for e in ratios[name]} for name in (first, last))
    less = [NOUNS[task] for task in above.keys() & below.keys() if below[task].high < above[task].low]
    on = f"on {listed(sorted(less))}" if less else "on none of the tasks"
    return f"Drafts gain less under {last} than under {first} {on}, by the intervals."


def beside(of_texts: Sequence[dict]) -> str:
    """The range of the placement without drafts over each peer, a line per peer. of_texts: of `by_text.table`."""
    known = [e for e in of_texts if e["equal"] is None and e["ratio"] and e["ratio"].n]
    plain = next((e["name"] for e in of_texts if not e["ratio"]), "")
    ranges = {
        name: sorted((turned(e["ratio"]) for e in some), key=lambda ratio: ratio.value)
        for name, some in summary.grouped(known, lambda e: e["name"]).items()
    }
    return "\n".join(
        f"{plain} over {named_well(name)}: {some[0].words} to {some[-1].words}" for name, some in ranges.items()
    )


def turned(ratio: Ratio) -> Ratio:
    """The same comparison with its two subjects exchanged."""
    return replace(ratio, value=1 / ratio.value, low=1 / ratio.high, high=1 / ratio.low)


def rows_by_subject(passes: Sequence[dict]) -> str:
    """`A pass of most drafts costs 1.76 plain steps under loop+lookup (8 rows), ...`; "" where none is known. passes:
    of the meta."""
    costs = {row["subject"]: row["costs"][-1] for row in passes if row.get("costs")}
    said = [f"{cost:.2f} plain steps under {name} ({most_rows(name)} rows)" for name, cost in costs.items()]
    return f"A pass with all of its drafts costs {listed(said)}." if said else ""


def rows_by_instructions(of_texts: Sequence[dict]) -> str:
    """`A pass of 8 rows costs 1.27 to 2.30 plain steps with avx512vnni and 1.84 to 2.97 with avx2`, by the files, of
    looked-up drafts; "" where none is known. of_texts: of `by_text.table`."""
    known = [e for e in gains(of_texts) if "+lookup" in e["name"] and e["costs"]]
    found = summary.grouped(known, lambda e: e["file"].rpartition("/")[2], lambda e: e["costs"][-1])
    ends = [(f"{min(costs):.2f}", f"{max(costs):.2f}", kind) for kind, costs in found.items()]
    said = [f"{' to '.join(dict.fromkeys((least, most)))} plain steps with {kind}" for least, most, kind in ends]
    return f"A pass of {most_rows(known[0]['name'])} rows costs {listed(said)}, by the file." if said else ""


def most_rows(name: str) -> int:
    """Of a pass with as many drafts as a placement tries: they and the newest token."""
    return 1 + max(parse(name).depths)


def gaps(missing: Sequence[dict]) -> list[dict]:
    """What is missing; older tables word a remedy otherwise."""
    return [gap | dict(remedy=gap["remedy"].replace("Compare on one of", "Use")) for gap in missing]


def claim(entries: Sequence[dict], model: str, of_texts: Sequence[dict] = ()) -> Claim:
    """What drafts looked up in the text do to the fastest placement that has them, on a copy and on open questions, and
    what a draft model does there, where it was measured. entries: of `table.table`. of_texts: of `by_text.table`."""
    name, on = drafted(entries)
    if not on:
        return Claim("No placement was measured with drafts on copied text.")
    copy, free = on["copy"], on.get("open")
    said = "Prompt-lookup drafts make {name} {copy} times as fast at copying"
    numbers = dict(name=name, copy=copy, model=model, more=by_draft_model(of_texts))
    undecided = free is not None and free.allows("open")
    both = stated(said + "; no effect is shown on open questions ({model}).{more}", when=undecided, **numbers)
    if both:
        return replace(both, evidence=(copy, free))
    return stated(said + " ({model}).", **numbers) or copy.generic


def drafted(entries: Sequence[dict]) -> tuple[str, dict[str, Comparison]]:
    """The placement whose drafts make it fastest on a copy, named without them, and task → its rate over the same
    without drafts; nothing where none was measured. entries: of `table`."""
    if not (mine := with_best_drafts(entries)):
        return "", {}
    name, prompts = mine[0]["name"].partition("+lookup")[0], next(e["prompts"] for e in mine if e["task"] == "copy")
    who = f"{name} with drafts on {{}} ({prompts} prompts)".format
    return name, {e["task"]: Comparison(e["ratio"], who(NOUNS[e["task"]]), "the same without") for e in mine}


def with_best_drafts(entries: Sequence[dict]) -> list[dict]:
    """The entries of the placement whose drafts make it fastest on a copy; none where none was measured."""
    some = [e for e in entries if e["ratio"] and e["ratio"].n and e["backend"] == standings.JAX]
    best = standings.best([e for e in some if e["task"] == "copy"])
    return [e for e in some if best and e["name"] == best["name"]]


def a_pass(entries: Sequence[dict]) -> str:
    """`tokens a pass of loop+fused+lookup: 2.08 on a copy and 1.04 on open questions`, of the placement whose
    drafts make it fastest on a copy; "" where passes were not counted. entries: of `table`."""
    made = [e for e in with_best_drafts(entries) if e["passes"]]
    on = [f"{e['passes']['tokens_a_pass']:.2f} on {NOUNS[e['task']]}" for e in made]
    return f"tokens a pass of {made[0]['name']}: {listed(on)}" if made else ""


def title(entries: Sequence[dict], model: str) -> Claim:
    """Of the figure: what those drafts do on each task where they make both copies faster, else the claim. entries,
    model: as of `claim`."""
    name, on = drafted(entries)
    if on.keys() >= set(TASKS):
        said = "Prompt-lookup drafts make {name} {copy} and {edit} times as fast at the two copies"
        for rest in (" and {open:open} on open questions", "; it is {open:outcome} on open questions", ""):
            if words := stated(said + rest, name=name, **on):
                return words
    return claim(entries, model)


def by_draft_model(of_texts: Sequence[dict]) -> str:
    """` A draft model makes qwen2.5-coder-1.5b faster on open questions: 1.26x [1.23, 1.28].`, of the file
    where it gains most; "" where none is faster. of_texts: of `by_text.table`."""
    known = [e for e in of_texts if e["text"] == "open" and "+draft:" in e["name"] and e["ratio"] and e["ratio"].n]
    faster = [e for e in known if e["ratio"].verdict == Verdict.FASTER]
    if not faster:
        return ""
    most = max(faster, key=lambda e: e["ratio"].value)
    model = most["file"].partition("/")[0]
    return f" A draft model makes {model} faster on open questions: {most['ratio'].words}."


def leads(trials: Sequence[Trial], meta: dict) -> list[str]:
    """A line per peer: the last placement without drafts over it, on all tasks."""
    named, peers = ([n for n in meta["parameters"][key] if n == plain(n)] for key in ("placements", "peers"))
    ratios = {peer: summary.paired_ratio(trials, named[-1], peer) for peer in peers} if named else {}
    return [
        f"{named[-1]} over {named_well(peer)}, all three tasks: {ratio.words}"
        for peer, ratio in ratios.items()
        if ratio.n
    ]


COLUMNS = frames.Columns(
    {
        "task": "task",
        "subject": "name",
        **frames.interval("tokens/s", "decode"),
        "n": "decode.n",
        "over no drafts": lambda e: e["ratio"].words if e["ratio"] else "",
        "same tokens": lambda e: {True: "yes", False: "NO"}.get(e["equal"], ""),
        "tokens per pass": "passes.tokens_a_pass",
        "passes with drafts": "passes.drafted",
        "drafts accepted": "passes.accepted",
        "void": "void",
    },
    index=("task", "subject"),
    digits={
        "tokens/s": 1,
        "low": 1,
        "high": 1,
        "tokens per pass": 2,
        "passes with drafts": 2,
        "drafts accepted": 2,
    },
)
GAINS = frames.Columns(
    {
        "file": "file",
        "subject": "name",
        **{text: (lambda e, text=text: e["by"][text]["ratio"].words if text in e["by"] else "") for text in TEXTS},
        "a pass costs": lambda e: ", ".join(map("{}: {:.2f}".format, parse(e["name"]).depths, e["costs"])),
    },
    index=("file", "subject"),
)
