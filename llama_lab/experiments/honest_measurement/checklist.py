"""The rules of good benchmarking, checked against the trials and what their meta says of the machine: each rule,
whether it was kept, the evidence."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter

from llama_jax.plumbing import runtime
from llama_lab.bench import AGAIN, environment, memory, summary
from llama_lab.bench.record import Trial
from llama_lab.bench.wording import interval

FEWEST = 5  # trials a subject
EQUAL = ("model", "weights_hash", "batch", "prompt_tokens", "new_tokens", "cache_slots")
ROOM = 0.9  # share of the machine's memory that one subject may take before the machine swaps
KEPT = {True: "yes", False: "no", None: "not checked"}
NEEDED = ("cpu", "cores", "ram_bytes", "devices", "os", "python", "packages", "settings", "runtime", "git")


def examine(trials: Sequence[Trial], meta: dict) -> list[dict]:
    """[{rule, kept (of `KEPT`), evidence}] of one comparison. Rules of `RULES` are about its timed trials, without
    cold and cached starts; those of `AROUND` about all trials and their meta."""
    timed = [t for t in trials if t.phase not in ("cold", "cached")]
    results = {rule: check(timed) for rule, check in RULES.items()}
    results |= {rule: check(trials, meta) for rule, check in AROUND.items()}
    return [dict(rule=rule, kept=KEPT[kept], evidence=evidence) for rule, (kept, evidence) in results.items()]


def warmed_up(trials: Sequence[Trial]) -> tuple[bool, str]:
    compiled = [t for t in trials if t.lowered or t.compiled]
    names = f" ({', '.join(summary.subjects(compiled))})" if compiled else ""
    return not compiled, f"{len(compiled)} of {len(trials)} timed regions compiled something{names}"


def equal_configuration(trials: Sequence[Trial]) -> tuple[bool, str]:
    seen = summary.grouped((t for t in trials if t.token_times_ns), "prompt", attrgetter(*EQUAL))
    unequal = [prompt for prompt, settings in seen.items() if len(set(settings)) > 1]
    verdict = f"differ for prompt {unequal[0]}" if unequal else "equal for all subjects"
    return not unequal, f"{', '.join(EQUAL)}: {verdict}"


def loaded_once(trials: Sequence[Trial]) -> tuple[bool | None, str]:
    grown = {name: memory.leak(mine) for name, mine in summary.grouped(trials, "subject").items()}
    leaks = {name: arrays for name, arrays in grown.items() if arrays is not None}
    if not leaks:
        return None, "no process has two trials of a subject"
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


def memory_alone(trials: Sequence[Trial], meta: dict) -> tuple[bool | None, str]:
    """A peak is a subject's own only where its process ran nothing else: rows of other processes have none."""
    names = [name for name in summary.subjects(trials) if not name.endswith(AGAIN)]
    peaks = {name: max((t.peak_rss_bytes or 0 for t in trials if t.subject == name), default=0) for name in names}
    if missing := [name for name in names if not peaks[name]]:
        return None, f"without a process of its own: {', '.join(missing)}"
    around = meta["environment"]
    allowed = (around.get("ram_bytes"), (around.get("limits") or {}).get("memory_bytes"))
    room = min((size for size in allowed if isinstance(size, int)), default=None)
    if room is None:
        return None, "how much memory the machine has is unknown"
    largest = max(peaks, key=peaks.get, default="")
    words = f"{largest} takes most: {peaks[largest] / 1e9:.2f} GB in a process of its own, of {room / 1e9:.1f} GB"
    return peaks[largest] <= ROOM * room, words


def environment_recorded(trials: Sequence[Trial], meta: dict) -> tuple[bool, str]:
    """The environment of a number is known, the same in all processes, and of code that can be checked out again."""
    around, git = meta["environment"], meta["environment"].get("git") or {}
    known = {key: around.get(key) for key in NEEDED} | {f"git {key}": git.get(key) for key in ("commit", "dirty")}
    settings = {repr((note.get("affinity"), note.get("settings"))) for note in meta.get("processes", ())}
    unknown = [key for key, value in known.items() if value in (None, "unknown", [], {}) and key != "settings"]
    wrong = (
        unknown and f"unknown: {', '.join(unknown)}",
        git.get("dirty") is True and "the code that ran differs from its commit",
        len(settings) > 1 and "processes differ in cores or settings",
        runtime.complaint(around.get("runtime") or {}),
    )
    if problems := "; ".join(filter(None, wrong)):
        return False, problems
    return True, f"{environment.machine_line(around)} · commit {git['commit'][:7]} · {len(NEEDED)} facts, all known"


def quiet(trials: Sequence[Trial], meta: dict) -> tuple[bool | None, str]:
    watch = meta["environment"].get("watch") or {}
    shares = [watch.get(key) for key in ("others_cpu", "steal")]
    if not all(isinstance(share, int | float) for share in shares):
        return None, "the system does not say what others did"
    words = "others used {:.1%} of the CPU, the hypervisor took {:.1%}".format(*shares)
    return not (busy := environment.busy(meta["environment"])), busy or words


RULES: dict[str, Callable[[Sequence[Trial]], tuple[bool | None, str]]] = {
    "warmed up at least as long as the test": warmed_up,
    "equal configuration": equal_configuration,
    "loaded once": loaded_once,
    "several trials": several_trials,
    "the same tokens": same_tokens,
    "interleaved": interleaved,
    "an A/A control that finds no difference": control,
}
AROUND: dict[str, Callable[[Sequence[Trial], dict], tuple[bool | None, str]]] = {
    "memory of each subject in a process of its own": memory_alone,
    "the environment recorded": environment_recorded,
    "a machine that did nothing else": quiet,
}
