"""What the trials say of each task: rates, ratios, whether drafts changed a token, and what passes took of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from llama_lab.bench import AGAIN, frames, standings, summary
from llama_lab.bench.record import Trial
from llama_lab.experiments.past_one_token_a_pass.measure import TASKS


def plain(name: str) -> str:
    """A subject without its drafts: `loop+fused+lookup6` → `loop+fused`."""
    return "+".join(part for part in name.split("+") if not part.startswith("lookup"))


def of_task(trials: Sequence[Trial], tasks: Sequence[str], task: str) -> list[Trial]:
    """The trials of a task. tasks: that of each prompt."""
    return [t for t in trials if tasks[t.prompt] == task]


def table(trials: Sequence[Trial], meta: dict, seed: int = 0) -> list[dict]:
    """One entry a task and subject: `standings.ladder`'s, with `task`; `ratio` over the same without drafts, None for
    who has none; `equal`, whether both made the same tokens; `passes`, of `taken`, None for a peer."""
    names = [name for name in summary.subjects(trials) if not name.endswith(AGAIN)]
    asked = [*meta["parameters"]["placements"], *meta["parameters"]["peers"]]
    entries = []
    for task in TASKS:
        some = of_task(trials, meta["tasks"], task)
        for entry in standings.ladder(some, [name for name in asked if name in names], seed):
            name, without = entry["name"], plain(entry["name"])
            paired = without if without != name and without in names else None
            entries.append(
                entry
                | dict(
                    task=task,
                    ratio=standings.ratio(some, name, without, seed) if paired else None,
                    equal=equal(some, name, without) if paired else None,
                    passes=taken(meta["passes"], meta["tasks"], name, task),
                )
            )
    return entries


def equal(trials: Sequence[Trial], name: str, other: str) -> bool:
    """Whether two subjects made the same tokens wherever both answered a prompt."""
    made = {
        subject: {(t.prompt, t.tokens_sha256) for t in trials if t.subject == subject and t.token_times_ns}
        for subject in (name, other)
    }
    return made[name] == made[other]


def taken(rows: Sequence[dict], tasks: Sequence[str], name: str, task: str) -> dict | None:
    """{tokens_a_pass, accepted (share of the drafts), drafted (share of the passes), made (tokens of each pass)} of a
    subject on a task; None where nothing is known."""
    some = [row for row in rows if row["subject"] == name and tasks[row["prompt"]] == task]
    made = [n for row in some for n in row["made"]]
    if not made:
        return None
    proposed = sum(row["count"] * sum(row["drafted"]) for row in some)
    return dict(
        tokens_a_pass=float(np.mean(made)),
        accepted=(sum(made) - len(made)) / proposed if proposed else 0.0,
        drafted=float(np.mean([d for row in some for d in row["drafted"]])),
        made=made,
    )


COLUMNS = frames.Columns(
    {
        "task": "task",
        "subject": "name",
        **frames.interval("tokens/s", "decode"),
        "n": "decode.n",
        "without drafts": lambda e: e["ratio"].words if e["ratio"] else "",
        "same tokens": lambda e: {True: "yes", False: "NO"}.get(e["equal"], ""),
        "tokens a pass": "passes.tokens_a_pass",
        "passes with drafts": "passes.drafted",
        "drafts accepted": "passes.accepted",
        "void": "void",
    },
    index=("task", "subject"),
    digits=3,
)
