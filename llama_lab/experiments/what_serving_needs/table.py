"""What the requests say of each load: first tokens, gaps between pieces, tokens a second, refusals, padding.

A piece is what one line of a stream brings: one token of a server that makes them singly.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter

import numpy as np

from llama_jax.placement import parse
from llama_lab.bench import frames, standings, statistics, summary
from llama_lab.experiments.what_serving_needs.measure import BUCKETS, REFUSED, Request
from llama_lab.experiments.what_serving_needs.servers import SHAPES
from llama_lab.serve.stepper import padded, ran

NS = 1e9


def loads(rows: Sequence[Request], processes: Sequence[dict] = (), seed: int = 0) -> list[dict]:
    """One entry per server and rate, of `summary.tally`: {server, slots, shapes, rate, first: Summary of the
    milliseconds from due to the first piece, …}, of `load`, and {programs, warm_s} as the server's last process noted
    them, None where it did not. processes: the notes of the measuring processes."""
    by, keys = ("server", "slots", "shapes"), ("programs", "warm_s")
    frame = summary.tally(rows, (*by, "rate"), dict(first=first_ms), seed=seed, clusters=None)
    started = {tuple(note.get(name) for name in by): {key: note.get(key) for key in keys} for note in processes}
    nothing = dict.fromkeys(keys)
    return [e | load(e) | started.get(tuple(e[name] for name in by), nothing) for e in frame.to_dict("records")]


def first_ms(request: Request) -> float | None:
    """Milliseconds from due to the first piece; None without an answer."""
    return request.piece_ns[0] / 1e6 if request.answered else None


def load(e: dict) -> dict:
    """What the requests of one load say beside their first tokens.

    gap: percentiles of the gaps between pieces, milliseconds, None if their number is too small. tokens_s: tokens of
    all answers over the time until the last piece; offered, arrived: tokens asked for and requests a second, over the
    time until the last was due: those that were drawn, not the `rate` that was set.
    padding: share of the tokens run for prompts that are none or were read before; None for a server that does not
    say."""
    rows = e["every"]
    first = e["points"]["first"]
    good = [r for r in e["rows"] if r.answered]
    gaps = [gap for r in good for gap in np.diff(r.piece_ns) / 1e6]
    due = max(r.due_ns for r in rows) / NS
    ends = max((r.due_ns + r.piece_ns[-1] for r in good), default=0)
    return dict(
        backend=rows[0].backend,
        n=len(rows),
        refused=sum(r.status == REFUSED for r in rows),
        gated=sum(r.gated for r in rows),
        points=first,
        gap=statistics.percentiles(gaps, (50, 99)),
        gaps=len(gaps),
        tokens_s=sum(r.tokens for r in good) / ends * NS if ends > 0 else float("nan"),
        offered=sum(r.asked_tokens for r in rows) / due,
        arrived=len(rows) / due,
        late=max(r.sent_ns for r in rows) / 1e6,
        compiled=rows[0].compiled,
        padding=padding(rows),
    )


def padding(rows: Sequence[Request]) -> float | None:
    """The share of the tokens that ran for these prompts which are padding or were read before; None of a peer."""
    sizes = SHAPES[rows[0].shapes]
    if rows[0].backend != standings.JAX or not (good := [r.prompt_tokens for r in rows if r.answered]):
        return None
    run = padded if parse(rows[0].server).kernels == "fused" else ran
    return 1 - sum(good) / sum(run(n, sizes) for n in good)


def rising(entries: Sequence[dict], meta: dict) -> dict[str, list[dict]]:
    """Each server's loads by rate, under the slots and shapes that all have."""
    p = meta["parameters"]
    mine = [e for e in entries if (e["slots"], e["shapes"]) == (p["slots"], BUCKETS) and e["rate"] in p["rates"]]
    by_server = summary.grouped(sorted(mine, key=itemgetter("rate")), itemgetter("server"))
    return {name: by_server[name] for name in [*p["placements"], *p["peers"]] if name in by_server}


def by_shapes(entries: Sequence[dict], meta: dict) -> list[dict]:
    """The loads at one rate of each placement under each choice of shapes, in the order asked for."""
    p = meta["parameters"]
    here = {(e["server"], e["shapes"]): e for e in entries if (e["slots"], e["rate"]) == (p["slots"], p["one_rate"])}
    return [here[key] for name in p["placements"] for shape in p["shapes"] if (key := (name, shape)) in here]


def by_slots(entries: Sequence[dict], meta: dict) -> list[dict]:
    """The loads of each placement by its slots, at the rate set for it."""
    p = meta["parameters"]
    here = {(e["server"], e["slots"], e["rate"]): e for e in entries if e["shapes"] == BUCKETS}
    slots = sorted(set(p["more_slots"]))
    rates = zip(p["placements"], p["slot_rates"], strict=True)
    return [here[key] for name, rate in rates for n in slots if (key := (name, n, rate)) in here]


COUNTED = frames.same("n", "refused", "void")
FIRST = {"first token P50 ms": "first.median"}
DUE = {"requests/s": lambda e: f"{e['arrived']:.2g}"}
RATES = {"tokens/s": "tokens_s", "asked for": "offered"}
GAPS = {"gap P50 ms": "gap.p50", "gap P99 ms": frames.percentile(99, "gap.p99")}
RISING = frames.Columns(
    {**frames.same("server"), **DUE, **COUNTED, **FIRST, **GAPS, **RATES}, index=("server", "requests/s"), digits=1
)
SHAPED = frames.Columns(
    {
        **frames.same("server", "shapes"),
        **COUNTED,
        **FIRST,
        "extra tokens": "padding",
        "compiled before": "programs",
        "in s": "warm_s",
        "compiled in service": "compiled",
    },
    index=("server", "shapes"),
    digits=2,
)
SLOTTED = frames.Columns(
    {**frames.same("server", "slots"), **DUE, **COUNTED, **FIRST, **GAPS, **RATES}, index=("server", "slots"), digits=1
)
