"""`llama-jax compare`: two recorded runs of the same subjects, such as before and after a change of code or library.

Two runs were not made in the same minutes, so the machine may have changed in between. Each subject's rate, new over
old, is therefore shown with its ratio to the baseline, new over old, in which the machine's speed cancels, and with the
bandwidth that was probed in both runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from llama_jax.plumbing.errors import UserError
from llama_lab.bench import AGAIN, record, statistics, summary
from llama_lab.bench.record import Trial
from llama_lab.bench.statistics import Ratio
from llama_lab.bench.wording import interval

MACHINE = ("cpu", "cores", "affinity", "ram_bytes", "devices")
SOFTWARE = ("packages", "python", "os", "git", "governor", "settings")
Subjects = dict[str, list[Trial]]  # valid warm trials by name


def compare(old: Path, new: Path, anyway: bool = False, seed: int = 0, skip_corrupt: bool = False) -> dict:
    """Two tables (see `record.read`), as plain values; every ratio is new over old, with the fields of
    `statistics.Ratio`.

    {"subjects": [{"name", "rate": ratio, "to_baseline": ratio or None}], "only_old", "only_new": names, "changed":
    lines, "differences": lines, "bandwidth_gbps": {"old", "new", "ratio"}, "old", "new": paths}

    Raises UserError when no subject is in both, and, unless `anyway`, when machine, model, workload or tokens differ.
    """
    (before, old_meta), (after, new_meta) = (record.read(path, skip_corrupt) for path in (old, new))
    before, after = ([t for t in side if t.phase == "warm" and t.valid and t.tg > 0] for side in (before, after))
    several = any(len({t.run for t in side}) > 1 for side in (before, after))  # each with subjects of its own
    names_of = "{0.run}: {0.subject}".format if several else "{0.subject}".format
    all_was, all_now = (summary.grouped(side, names_of) for side in (before, after))
    was, now = answering(all_was, all_now), answering(all_now, all_was)
    names = [name for name in was if not name.endswith(AGAIN)]
    if not names:
        first, second = (", ".join(subjects) or "none" for subjects in (all_was, all_now))
        raise UserError(
            f"{old} and {new} share no subject with valid warm trials of the same prompt: {first} in the first,"
            f" {second} in the second; measure the same placements in both."
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


def answering(trials: Subjects, others: Subjects) -> Subjects:
    """The trials of prompts that the same subject also answered in the other table; subjects without any are
    dropped."""
    shared = {name: {t.prompt for t in others.get(name, [])} for name in trials}
    return {name: kept for name, mine in trials.items() if (kept := [t for t in mine if t.prompt in shared[name]])}


# What must be the same ------------------------------------------------------------------------------------------------


def identity(trials: Subjects, meta: dict, names: Sequence[str]) -> dict[str, object]:
    """What must match for two runs to be comparable: the machine, and each subject's model, work and tokens."""
    facts = {name.replace("_", " "): meta.get("environment", {}).get(name, "unknown") for name in MACHINE}
    for name in names:
        per_subject = {
            "model of {}": lambda t: t.model,
            "weights hash of {}": lambda t: t.weights_hash,
            "dtype of {}": lambda t: t.dtype,
            "workload of {}": lambda t: f"{t.prompt_tokens} + {t.new_tokens} tokens, batch {t.batch}",
        }
        for title, fact in per_subject.items():
            facts[title.format(name)] = ", ".join(sorted({fact(t) for t in trials[name]}))
        for prompt, tokens in sorted(summary.grouped(trials[name], "prompt", lambda t: t.tokens_sha256[:12]).items()):
            facts[f"tokens of {name}, prompt {prompt}"] = ", ".join(sorted(set(tokens)))
    return facts


def software(meta: dict) -> dict[str, object]:
    """Versions, commit and settings, one entry each."""
    environment = {name: meta.get("environment", {}).get(name, "unknown") for name in SOFTWARE}
    facts = {name: value for name, value in environment.items() if not isinstance(value, dict)}
    for group, items in environment.items():
        if isinstance(items, dict):
            facts |= {key if group == "packages" else f"{group} {key}": value for key, value in items.items()}
    return facts


def differing(old: dict, new: dict) -> list[str]:
    """One line for each fact that differs."""
    both = {key: (old.get(key, "absent"), new.get(key, "absent")) for key in (*old, *new)}
    return [f"{key} was {was}, is {now}" for key, (was, now) in both.items() if was != now]


# Ratios ---------------------------------------------------------------------------------------------------------------


def baseline_of(name: str, trials: Subjects, meta: dict) -> str | None:
    """The baseline a subject was paired with: the meta's, else the subject of the same run that has a twin."""
    prefix = name.removesuffix(trials[name][0].subject)  # the run, where a table holds several
    twins = [n.removesuffix(AGAIN) for n in trials if n.endswith(AGAIN) and n.startswith(prefix)]
    return next((n for n in (f"{prefix}{meta.get('baseline')}", *twins) if n in trials), None)


def subject(name: str, baseline: str | None, old: Subjects, new: Subjects, seed: int) -> dict:
    """One subject's line: its rate and, unless it is the baseline or there is none in both, its ratio to the
    baseline."""
    rates = [[(place(t), t.tg) for t in side[name]] for side in (new, old)]
    line = {"name": name, "rate": as_json(new_over_old(rates, seed), rates), "to_baseline": None}
    if baseline is None or baseline == name or baseline not in new:
        return line
    ours, twins = ([relative(side, n, baseline) for side in (new, old)] for n in (name, baseline + AGAIN))
    ratio, control = (new_over_old(sides, seed) for sides in (ours, twins))
    return line | {"to_baseline": as_json(statistics.with_floor(ratio, control), ours)} if ratio.n else line


def place(trial: Trial) -> tuple[tuple, int]:
    """((run, process), block): trials with the same were measured side by side."""
    return (trial.run, trial.process), trial.block


def new_over_old(sides: Sequence[list[tuple[tuple, float]]], seed: int) -> Ratio:
    """The ratio of two sets of values. sides: new and old, (place, value) each; a process shares its luck."""
    labels, values = [[at[0] for at, _ in side] for side in sides], [[value for _, value in side] for side in sides]
    return statistics.unpaired_ratio(*values, seed, labels)


def relative(trials: Subjects, name: str, baseline: str) -> list[tuple[tuple, float]]:
    """A subject's rates over the baseline's in the same blocks; over both its runs in the block, but for its own
    twin."""
    both = [*trials[baseline], *trials.get(baseline + AGAIN, [])]
    rates = summary.rates if name == baseline + AGAIN else summary.both_rates
    below = rates(both, both[0].subject, place=place)
    return [(place(t), t.tg / below[place(t)]) for t in trials.get(name, []) if place(t) in below]


def as_json(ratio: Ratio, sides: Sequence[Sequence]) -> dict:
    """processes: those of the side that has fewer; the luck of a single one is not in the interval."""
    values = dict(value=ratio.value, low=ratio.low, high=ratio.high, n_old=len(sides[1]), n_new=len(sides[0]))
    return values | dict(processes=ratio.clusters, verdict=ratio.verdict)


def bandwidth(old: Sequence[Trial], new: Sequence[Trial]) -> dict:
    """Medians of what was probed beside the warm trials, GB/s, and new over old; None if nothing was."""
    was, now = (summary.median([t.bandwidth_gbps for t in side if t.bandwidth_gbps]) for side in (old, new))
    return {"old": was, "new": now, "ratio": now / was if was and now else None}


# In lines -------------------------------------------------------------------------------------------------------------


def lines(result: dict) -> list[str]:
    """The comparison in lines."""
    speed = result["bandwidth_gbps"]
    parts = [f"{result['new']} over {result['old']}"]
    parts += [f"differs: {line}" for line in result["differences"]] + [f"changed: {line}" for line in result["changed"]]
    if speed["ratio"]:
        change = f"{speed['old']:.1f} GB/s, then {speed['new']:.1f} (x {speed['ratio']:.3f})"
        parts.append(f"bandwidth of the machine: {change}")
    for entry in result["subjects"]:
        for key, what in (("rate", "rate"), ("to_baseline", "to the baseline")):
            if ratio := entry[key]:
                counts = f"n = {ratio['n_old']} and {ratio['n_new']}" + ", one process" * (ratio["processes"] <= 1)
                words = f"{what} x {ratio['value']:.3f} {interval(ratio, '.3f')} ({counts}): {ratio['verdict']}"
                parts.append(f"{entry['name']}: {words}")
    left = {result[side]: result[f"only_{side}"] for side in ("old", "new")}
    return parts + [f"only in {path}: {', '.join(names)}" for path, names in left.items() if names]
