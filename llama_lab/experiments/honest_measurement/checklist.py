"""The rules of good benchmarking, checked against the trials themselves: each a rule, whether it was kept, and the
evidence."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from llama_lab.bench import AGAIN, memory, summary
from llama_lab.bench.record import Trial
from llama_lab.bench.wording import interval

FEWEST = 5  # trials a subject
EQUAL = ("model", "weights_hash", "batch", "prompt_tokens", "new_tokens", "cache_slots")


def examine(trials: Sequence[Trial], baseline: str) -> list[dict]:
    """[{rule, kept, evidence}] for the timed trials of one comparison, cold and cached starts left out."""
    timed = [t for t in trials if t.phase not in ("cold", "cached")]
    return [
        dict(rule=rule, kept=kept, evidence=evidence)
        for rule, check in RULES.items()
        for kept, evidence in [check(timed, baseline)]
    ]


def warmed_up(trials: Sequence[Trial], baseline: str) -> tuple[bool, str]:
    compiled = [t for t in trials if t.lowered or t.compiled]
    names = ", ".join(dict.fromkeys(t.subject for t in compiled))
    return not compiled, f"{len(compiled)} of {len(trials)} timed regions compiled something" + (
        f" ({names})" if names else ""
    )


def equal_configuration(trials: Sequence[Trial], baseline: str) -> tuple[bool, str]:
    by_prompt: dict[int, set] = {}
    for t in trials:
        if t.token_times_ns:
            by_prompt.setdefault(t.prompt, set()).add(tuple(getattr(t, name) for name in EQUAL))
    unequal = [prompt for prompt, seen in by_prompt.items() if len(seen) > 1]
    return not unequal, f"{', '.join(EQUAL)}: " + (
        f"differ for prompt {unequal[0]}" if unequal else "equal for all subjects"
    )


def loaded_once(trials: Sequence[Trial], baseline: str) -> tuple[bool, str]:
    found = {name: memory.leak([t for t in trials if t.subject == name]) for name in summary.subjects(trials)}
    leaks = {name: grown for name, grown in found.items() if grown is not None}
    if not leaks:
        return False, "not checked: no process has two trials of a subject"
    worst = max(leaks, key=leaks.get)
    grown = f"{worst} leaves {leaks[worst]} arrays behind"
    return not leaks[worst], grown if leaks[worst] else "the live arrays do not grow over the trials"


def several_trials(trials: Sequence[Trial], baseline: str) -> tuple[bool, str]:
    counts = {name: sum(t.valid for t in trials if t.subject == name) for name in summary.subjects(trials)}
    fewest = min(counts, key=counts.get, default="")
    return bool(counts) and counts[
        fewest
    ] >= FEWEST, f"at least {counts.get(fewest, 0)} valid trials a subject; {FEWEST} are asked for"


def same_tokens(trials: Sequence[Trial], baseline: str) -> tuple[bool, str]:
    wrong = [t for t in trials if t.wrong]
    return not wrong, f"{len(wrong)} of {len(trials)} answers are not the reference's"


def interleaved(trials: Sequence[Trial], baseline: str) -> tuple[bool, str]:
    names = set(summary.subjects(trials))
    blocks: dict[tuple, set] = {}
    for t in trials:
        blocks.setdefault((t.process, t.block), set()).add(t.subject)
    whole = sum(found == names for found in blocks.values())
    return whole == len(blocks) > 0, f"{whole} of {len(blocks)} blocks hold every subject"


def control(trials: Sequence[Trial], baseline: str) -> tuple[bool, str]:
    if not summary.warm(trials, baseline + AGAIN):
        return False, "the baseline ran once: there is no A/A control"
    ratio = summary.paired_ratio(trials, baseline + AGAIN, baseline)
    kept = ratio.low <= 1 <= ratio.high
    return kept, f"the baseline against itself: {ratio.value:.3f}x {interval(ratio, '.3f')}, n = {ratio.n}"


RULES: dict[str, Callable[[Sequence[Trial], str], tuple[bool, str]]] = {
    "warmed up at least as long as the test": warmed_up,
    "equal configuration": equal_configuration,
    "loaded once": loaded_once,
    "several trials": several_trials,
    "the same tokens": same_tokens,
    "interleaved": interleaved,
    "an A/A control that finds no difference": control,
}
