"""The rules of good benchmarking, checked against the trials: each rule, whether it was kept, the evidence."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter

from llama_lab.bench import memory, summary
from llama_lab.bench.record import Trial
from llama_lab.bench.wording import interval

FEWEST = 5  # trials a subject
EQUAL = ("model", "weights_hash", "batch", "prompt_tokens", "new_tokens", "cache_slots")


def examine(trials: Sequence[Trial]) -> list[dict]:
    """[{rule, kept, evidence}] for the timed trials of one comparison, cold and cached starts left out."""
    timed = [t for t in trials if t.phase not in ("cold", "cached")]
    return [
        dict(rule=rule, kept=kept, evidence=evidence)
        for rule, check in RULES.items()
        for kept, evidence in [check(timed)]
    ]


def warmed_up(trials: Sequence[Trial]) -> tuple[bool, str]:
    compiled = [t for t in trials if t.lowered or t.compiled]
    names = f" ({', '.join(summary.subjects(compiled))})" if compiled else ""
    return not compiled, f"{len(compiled)} of {len(trials)} timed regions compiled something{names}"


def equal_configuration(trials: Sequence[Trial]) -> tuple[bool, str]:
    seen = summary.grouped((t for t in trials if t.token_times_ns), "prompt", attrgetter(*EQUAL))
    unequal = [prompt for prompt, settings in seen.items() if len(set(settings)) > 1]
    verdict = f"differ for prompt {unequal[0]}" if unequal else "equal for all subjects"
    return not unequal, f"{', '.join(EQUAL)}: {verdict}"


def loaded_once(trials: Sequence[Trial]) -> tuple[bool, str]:
    grown = {name: memory.leak(mine) for name, mine in summary.grouped(trials, "subject").items()}
    leaks = {name: arrays for name, arrays in grown.items() if arrays is not None}
    if not leaks:
        return False, "not checked: no process has two trials of a subject"
    worst = max(leaks, key=leaks.get)
    words = (
        f"{worst} leaves {leaks[worst]} arrays behind"
        if leaks[worst]
        else "the live arrays do not grow over the trials"
    )
    return not leaks[worst], words


def several_trials(trials: Sequence[Trial]) -> tuple[bool, str]:
    counts = [sum(valid) for valid in summary.grouped(trials, "subject", "valid").values()]
    fewest = min(counts, default=0)
    return fewest >= FEWEST, f"at least {fewest} valid trials a subject; {FEWEST} are asked for"


def same_tokens(trials: Sequence[Trial]) -> tuple[bool, str]:
    wrong = [t for t in trials if t.wrong]
    return not wrong, f"{len(wrong)} of {len(trials)} answers are not the reference's"


def interleaved(trials: Sequence[Trial]) -> tuple[bool, str]:
    names = set(summary.subjects(trials))
    blocks = summary.grouped(trials, summary.in_block, "subject")
    whole = sum(set(block) == names for block in blocks.values())
    return whole == len(blocks) > 0, f"{whole} of {len(blocks)} blocks hold every subject"


def control(trials: Sequence[Trial]) -> tuple[bool, str]:
    ratio = summary.control(trials)
    if not ratio.n:
        return False, "the baseline ran once: there is no A/A control"
    words = f"the baseline against itself: {ratio.value:.3f}x {interval(ratio, '.3f')}, n = {ratio.n}"
    return ratio.low <= 1 <= ratio.high, words


RULES: dict[str, Callable[[Sequence[Trial]], tuple[bool, str]]] = {
    "warmed up at least as long as the test": warmed_up,
    "equal configuration": equal_configuration,
    "loaded once": loaded_once,
    "several trials": several_trials,
    "the same tokens": same_tokens,
    "interleaved": interleaved,
    "an A/A control that finds no difference": control,
}
