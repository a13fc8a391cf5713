"""`llama-jax compare`: two recorded runs of the same subjects, such as before and after a change of code or library.

Two runs were not made in the same minutes, so the machine may have changed in between. Beside each subject's rate, new
over old, therefore stand its ratio to the baseline, new over old, in which the machine's speed cancels, and the
bandwidth that was probed in both runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from llama_jax.plumbing.errors import UserError
from llama_lab.bench import AGAIN, record, statistics
from llama_lab.bench.numbers import interval
from llama_lab.bench.record import Trial
from llama_lab.bench.statistics import Ratio

MACHINE = ("cpu", "cores", "affinity", "ram_bytes", "devices")
SOFTWARE = ("packages", "python", "os", "git", "governor", "settings")
NAN = float("nan")
Subjects = dict[str, list[Trial]]  # valid warm trials by name


def compare(old: Path, new: Path, anyway: bool = False, seed: int = 0, skip_corrupt: bool = False) -> dict:
    """Two tables (see `record.read`), as plain values; every ratio is new over old, with what `statistics.Ratio` says
    of it.

    {"subjects": [{"name", "rate": ratio, "to_baseline": ratio or None}], "only_old", "only_new": names, "changed":
    lines, "differences": lines, "bandwidth_gbps": {"old", "new", "ratio"}, "old", "new": paths}

    Raises UserError when no subject is in both, and, unless `anyway`, when machine, model, workload or tokens differ.
    """
    (before, old_meta), (after, new_meta) = (record.read(path, skip_corrupt) for path in (old, new))
    several = any(len({t.run for t in usable(trials)}) > 1 for trials in (before, after))
    all_was, all_now = by_subject(before, several), by_subject(after, several)
    was, now = answering(all_was, all_now), answering(all_now, all_was)
    names = [name for name in was if not name.endswith(AGAIN)]
    if not names:
        raise UserError(
            f"{old} and {new} share no subject with valid warm trials of the same prompt: {listed(all_was)} in the"
            " first,"
            f" {listed(all_now)} in the second; measure the same placements in both."
        )
    differences = differing(identity(was, old_meta, names), identity(now, new_meta, names))
    if differences and not anyway:
        more = f" (and {len(differences) - 1} more)" if len(differences) > 1 else ""
        raise UserError(
            f"{old} and {new} cannot be compared: {differences[0]}{more}. --anyway compares them and lists what"
            " differs."
        )
    return {
        "old": str(old),
        "new": str(new),
        "subjects": [subject(name, baseline_of(name, was, new_meta), was, now, seed) for name in names],
        "only_old": [name for name in all_was if name not in was],
        "only_new": [name for name in all_now if name not in now],
        "changed": differing(software(old_meta), software(new_meta)),
        "differences": differences,
        "bandwidth_gbps": bandwidth(before, after),
    }


def usable(trials: Iterable[Trial]) -> list[Trial]:
    return [t for t in trials if t.phase == "warm" and t.valid and t.tg > 0]


def by_subject(trials: Iterable[Trial], several: bool) -> Subjects:
    """Valid warm trials by subject; by run and subject where a table holds several runs, which differ in what they
    measure."""
    found: Subjects = {}
    for t in usable(trials):
        found.setdefault(f"{t.run}: {t.subject}" if several else t.subject, []).append(t)
    return found


def answering(trials: Subjects, others: Subjects) -> Subjects:
    """The trials of prompts that the same subject answered in the other table too, without subjects that have none."""
    shared = {name: {t.prompt for t in others.get(name, [])} for name in trials}
    return {name: kept for name, mine in trials.items() if (kept := [t for t in mine if t.prompt in shared[name]])}


def identity(trials: Subjects, meta: dict, names: Sequence[str]) -> dict:
    """What must be the same for two runs to be comparable: the machine, and of each subject model, work and tokens."""
    environment = meta.get("environment", {})
    facts = {name.replace("_", " "): environment.get(name, "unknown") for name in MACHINE}
    for name in names:
        mine = trials[name]
        for field in ("model", "weights_hash", "dtype"):
            facts[f"{field.replace('_', ' ')} of {name}"] = distinct(getattr(t, field) for t in mine)
        facts[f"workload of {name}"] = distinct(
            f"{t.prompt_tokens} + {t.new_tokens} tokens, batch {t.batch}" for t in mine
        )
        for prompt in sorted({t.prompt for t in mine}):
            facts[f"tokens of {name}, prompt {prompt}"] = distinct(
                t.tokens_sha256[:12] for t in mine if t.prompt == prompt
            )
    return facts


def software(meta: dict) -> dict:
    """Versions, commit and settings, one entry each."""
    environment = {name: meta.get("environment", {}).get(name, "unknown") for name in SOFTWARE}
    nested = {k: v for k, v in environment.items() if isinstance(v, dict)}
    flat = {k: v for k, v in environment.items() if k not in nested}
    return flat | {
        (key if group == "packages" else f"{group} {key}"): v
        for group, items in nested.items()
        for key, v in items.items()
    }


def differing(old: dict, new: dict) -> list[str]:
    """One line for each fact that is not the same."""
    return [
        f"{key} was {old.get(key, 'absent')}, is {new.get(key, 'absent')}"
        for key in dict.fromkeys([*old, *new])
        if old.get(key, "absent") != new.get(key, "absent")
    ]


def distinct(values: Iterable) -> str:
    return ", ".join(map(str, sorted(set(values))))


def baseline_of(name: str, trials: Subjects, meta: dict) -> str | None:
    """The baseline a subject was paired with: the meta's, else the subject of the same run that has a twin."""
    prefix = name.removesuffix(trials[name][0].subject)  # the run, where a table holds several
    twins = [n.removesuffix(AGAIN) for n in trials if n.endswith(AGAIN) and n.startswith(prefix)]
    known = [n for n in (f"{prefix}{meta.get('baseline')}", *twins) if n in trials]
    return known[0] if known else None


def subject(name: str, baseline: str | None, old: Subjects, new: Subjects, seed: int) -> dict:
    """One subject's line: its rate and, unless it is the baseline or there is none in both, its ratio to the
    baseline."""
    rates, labels = zip(
        *[([t.tg for t in side[name]], [label(t) for t in side[name]]) for side in (new, old)], strict=True
    )
    found = {
        "name": name,
        "rate": plain(statistics.unpaired_ratio(*rates, seed, labels), *map(len, rates)),
        "to_baseline": None,
    }
    if baseline is None or baseline == name or baseline not in new:
        return found
    ours, control = (relative(pairs, old, new, seed) for pairs in ((name, baseline), (baseline + AGAIN, baseline)))
    if ours[0].n:
        found["to_baseline"] = plain(statistics.with_floor(ours[0], control[0]), *ours[1:])
    return found


def relative(pair: tuple[str, str], old: Subjects, new: Subjects, seed: int) -> tuple[Ratio, int, int]:
    """(one subject over another in the new run, over the same in the old; pairs in the new run, pairs in the old)."""
    sides = [paired(side, *pair) for side in (new, old)]
    values, labels = zip(*[(list(side.values()), [process for process, _ in side]) for side in sides], strict=True)
    return statistics.unpaired_ratio(*values, seed, labels), *map(len, values)


def paired(trials: Subjects, name: str, baseline: str) -> dict:
    """{(process, block): rate of a subject over the baseline's}; over both its runs in the block, but for its own
    twin."""
    ours, first, again = (
        {(label(t), t.block): t.tg for t in trials.get(who, [])} for who in (name, baseline, baseline + AGAIN)
    )
    below = first
    if name != baseline + AGAIN:
        below = {
            b: float(statistics.pair_baseline([first.get(b, NAN)], [again.get(b, NAN)])[0]) for b in {*first, *again}
        }
    return {b: rate / below[b] for b, rate in ours.items() if b in below}


def label(trial: Trial) -> tuple[str, int]:
    """What shares its luck: the process."""
    return trial.run, trial.process


def plain(found: Ratio, n_new: int, n_old: int) -> dict:
    """As JSON values. processes: those of the side that has fewer; the luck of a single one is not in the interval."""
    return dict(
        value=found.value,
        low=found.low,
        high=found.high,
        n_old=n_old,
        n_new=n_new,
        processes=found.clusters,
        verdict=found.verdict,
    )


def bandwidth(old: Sequence[Trial], new: Sequence[Trial]) -> dict:
    """Medians of what was probed beside the warm trials, GB/s, and new over old; None where nothing was."""
    was, now = ([t.bandwidth_gbps for t in usable(side) if t.bandwidth_gbps] for side in (old, new))
    medians = {name: float(np.median(values)) if values else None for name, values in (("old", was), ("new", now))}
    return {**medians, "ratio": medians["new"] / medians["old"] if was and now else None}


def listed(names: Iterable[str]) -> str:
    return ", ".join(names) or "none"


def lines(result: dict) -> list[str]:
    """The comparison for people, one line each."""

    def said(ratio: dict, what: str) -> str:
        counts = f"n = {ratio['n_old']} and {ratio['n_new']}" + ("" if ratio["processes"] > 1 else ", one process")
        return f"{what} x {ratio['value']:.3f} {interval(ratio, '.3f')} ({counts}): {ratio['verdict']}"

    speed = result["bandwidth_gbps"]
    found = [f"{result['new']} over {result['old']}"]
    found += [f"differs: {line}" for line in result["differences"]] + [f"changed: {line}" for line in result["changed"]]
    if speed["ratio"]:
        found.append(
            f"bandwidth of the machine: {speed['old']:.1f} GB/s, then {speed['new']:.1f} (x {speed['ratio']:.3f})"
        )
    for s in result["subjects"]:
        found.append(f"{s['name']}: {said(s['rate'], 'rate')}")
        if s["to_baseline"]:
            found.append(f"{s['name']}: {said(s['to_baseline'], 'to the baseline')}")
    return found + [
        f"only in {result[side]}: {listed(result[f'only_{side}'])}" for side in ("old", "new") if result[f"only_{side}"]
    ]
