"""Advice for people: the tables that it is taken from, and the recommendation in lines. For `llama-jax advise` and for
notebooks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from llama_jax import paths
from llama_jax.bench import environment, record
from llama_jax.bench.record import Trial
from llama_jax.bench.wording import times
from llama_jax.errors import UserError
from llama_jax.reporting import advice
from llama_jax.reporting.advice import Wish

RECORDED = ("03-jit-placement", "08-precision-and-kernels")
Tables = Sequence[tuple[str, Sequence[Trial], dict]]  # name, trials, meta


def consult(tables: Tables, model: str, wish: Wish, seed: int = 0) -> dict:
    """`advice.advise` by the trials of one model. Raises UserError where there are none, and as it does."""
    mine = [(name, [t for t in trials if t.model == model], meta) for name, trials, meta in tables]
    if not any(trials for _, trials, _ in mine):
        known = sorted({t.model for _, trials, _ in tables for t in trials})
        raise UserError(
            f"Nothing was recorded of {model} (but of {', '.join(known) or 'nothing else'}); measure it with --measure."
        )
    return advice.advise(
        [(name, trials) for name, trials, _ in mine], wish, doubts([meta for _, trials, meta in mine if trials]), seed
    )


def recorded(paths_: Sequence[Path] = ()) -> list[tuple[str, list, dict]]:
    """(name, trials, meta) of each table, the repository's own where none is named."""
    wanted = list(paths_) or [paths.ROOT / "data" / f"{name}.csv" for name in RECORDED]
    return [(path.stem, *record.read(path)) for path in wanted]


def doubts(metas: Sequence[dict]) -> list[str]:
    """Where the trials were made on another machine than this."""
    here, found = environment.capture(), []
    for meta in metas:
        there = meta.get("environment", {})
        if (there.get("cpu"), there.get("cores")) != (here["cpu"], here["cores"]):
            found.append(f"it was measured on another machine ({there.get('cpu')}, {there.get('cores')} cores)")
    return list(dict.fromkeys(found))


def told(found: dict, wish: Wish) -> list[str]:
    """The recommendation in lines."""
    about, second = found["evidence"], found["runner_up"]
    start = "" if wish.warm else f" a start of {found['start_seconds']:.2f} s and"
    many = "each request" if wish.requests > 1 else "one request"
    seen = (
        advice.counted(about[key], what)
        for key, what in (("trials", "trial"), ("processes", "process"), ("cold_starts", "cold start"))
    )
    lines = [
        f"{found['placement']}: {found['seconds']:.2f} s,{start} {many} {found['request_seconds']:.2f} s",
        f"by {', '.join(seen)}: {about['where']}",
    ]
    if second:
        longer = f", {times(second['ratio'])} as long" if second["ratio"] else ""
        lines.append(f"next: {second['name']}, {second['seconds']:.2f} s{longer} ({second['verdict']})")
        if turn := second["break_even_requests"]:
            first, later = (
                (found["placement"], second["name"]) if wish.requests < turn else (second["name"], found["placement"])
            )
            lines.append(
                f"up to {advice.counted(int(turn), 'request')} a start {first} is ahead of the two, beyond that {later}"
            )
    lines += [f"if {change['wish']}: {change['then']}" for change in found["changes"]]
    lines += [f"not {refused['name']}: {refused['reason']}" for refused in found["refused"]]
    return lines + [f"thin: {doubt}" for doubt in found["thin"]]
