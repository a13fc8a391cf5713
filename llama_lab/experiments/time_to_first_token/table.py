"""What the warm trials of `ttft` say: times by length, ratios, what scripting gains, and the physical limit."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from llama_lab.bench import AGAIN, frames, standings, summary
from llama_lab.bench.cold import Start
from llama_lab.bench.statistics import Ratio
from llama_lab.experiments.time_to_first_token.measure import WARM
from llama_lab.peers import PEERS

NAN = float("nan")


def lengths(trials: Sequence[Start]) -> list[int]:
    """Prompt lengths that were asked warm, ascending."""
    return sorted({t.prompt_tokens for t in trials if t.phase == "warm" and t.prompt_tokens})


def shared_lengths(trials: Sequence[Start]) -> list[int]:
    """The lengths at which all subjects were asked side by side, ascending; at the others only the subjects of a tail
    were asked."""
    return lengths([t for t in trials if t.run == WARM])


def placements(trials: Sequence[Start]) -> list[str]:
    """Names of the JAX subjects, without the baseline's twin."""
    return sorted({t.subject for t in trials if t.backend == standings.JAX and not t.subject.endswith(AGAIN)})


def rivals(trials: Sequence[Start]) -> list[str]:
    """Names of the peers that were measured."""
    return sorted({t.subject for t in trials if t.backend != standings.JAX})


def weights(trials: Sequence[Start]) -> dict[str, str]:
    """Subject → what its weights are kept as; of a placement on the file's own blocks the type that llama.cpp reads
    there."""
    known = {t.subject: standings.weights(t) for t in trials}
    own = next((known[name] for name in standings.SAME_FILE if name in known), "gguf")
    return {name: own if kept == "gguf" else kept for name, kept in known.items()}


def at_length(trials: Sequence[Start], n: int) -> list[Start]:
    return [t for t in trials if t.prompt_tokens == n]


def first_ms(trial: Start) -> float:
    """Milliseconds from request to first token."""
    return 1e3 * trial.ttft


def milliseconds(trials: Sequence[Start], subject: str, n: int) -> list[float]:
    """First tokens in ms of a subject's valid warm trials at one length, those of the tail included."""
    return [first_ms(t) for t in summary.warm(at_length(trials, n), subject)]


def middle(trials: Sequence[Start], subject: str, n: int) -> float:
    """Median TTFT in ms, NaN if there is no valid trial."""
    times = milliseconds(trials, subject, n)
    return float(np.median(times)) if times else NAN


def table(trials: Sequence[Start], seed: int = 0) -> list[dict]:
    """One entry per length and subject that was asked at it, of `summary.tally`, in ms: {tokens, subject, n, mean, sd,
    min, max, p50, its interval low and high, p95 and p99: None if the sample cannot hold them, void, reasons}."""
    names = placements(trials) + rivals(trials)
    frame = summary.tally(
        [t for t in trials if t.phase == "warm"],
        by=dict(tokens="prompt_tokens", subject="subject"),
        value=dict(ms=first_ms),
        quantiles=(95, 99),
        seed=seed,
        order=[(n, name) for n in lengths(trials) for name in names],
    )
    entries = [e for e in frame.to_dict("records") if e["n"] + e["void"]]
    for e in entries:
        values, ms = e["points"]["ms"], e["ms"]
        e |= dict(
            mean=float(np.mean(values)) if values else NAN,
            sd=float(np.std(values, ddof=1)) if len(values) > 1 else NAN,
            min=min(values, default=NAN),
            max=max(values, default=NAN),
            p50=ms.median,
            low=ms.low,
            high=ms.high,
        )
    return entries


COLUMNS = frames.Columns(
    {
        **frames.same("tokens", "subject", "mean", "sd", "min", "max"),
        "P50": "p50",
        "P50 low": "low",
        "P50 high": "high",
        "P95": frames.percentile(95, "p95"),
        "P99": frames.percentile(99, "p99"),
        "n": "n",
        "void": "void",
    },
    index=("tokens", "subject"),
    digits=1,
)


def tails(trials: Sequence[Start], seed: int = 0) -> list[dict]:
    """The entries, at all its lengths, of every subject whose requests are enough for a P95 at one of them."""
    entries = [e for e in table(trials, seed) if e["n"]]
    long = {e["subject"] for e in entries if e["p95"] is not None}
    return [e for e in entries if e["subject"] in long]


def tails_words(entries: Sequence[dict]) -> str:
    """`tails` in words: of each subject and length the percentiles that its requests are enough for."""
    words = []
    for e in entries:
        kept = ", ".join(f"{key.upper()} {e[key]:.0f}" for key in ("p50", "p95", "p99") if e[key] is not None)
        words.append(f"{e['subject']} at {e['tokens']}: {kept} ms, n = {e['n']}")
    return "; ".join(words)


# Ratios ---------------------------------------------------------------------------------------------------------------


# What pairs first tokens: first tokens a second, and who was asked the same passage in the same process.
FIRST = dict(value=lambda trial: 1 / trial.ttft, place=lambda trial: (trial.process, (trial.run, trial.block)))


def sooner(trials: Sequence[Start], subject: str, other: str, n: int, seed: int = 0) -> Ratio:
    """First tokens a second of a subject over those of another at one length: how many times as long the other takes.
    Paired by passage and process, judged against the run's A/A control."""
    return summary.paired_ratio(at_length(trials, n), subject, other, seed, **FIRST)


def ranked(trials: Sequence[Start], names: Sequence[str], at: Sequence[int]) -> list[str]:
    """Those with a valid trial at each of these lengths, by the geometric mean of their median TTFTs."""
    means = {name: np.mean(np.log([middle(trials, name, n) for n in at])) for name in names}
    return sorted((name for name, mean in means.items() if np.isfinite(mean)), key=means.get)


def best(trials: Sequence[Start], names: Sequence[str], at: Sequence[int]) -> str | None:
    """The first of `ranked`; None if there is none."""
    return next(iter(ranked(trials, names, at)), None)


def highlighted(trials: Sequence[Start]) -> list[str]:
    """Over all shared lengths together: the best JAX subject of each kind of weights, then the best peer of each of
    these kinds, then the best of each program on others; each group the best first, the first five of all."""
    kinds, backends = weights(trials), {t.subject: t.backend for t in trials}
    ours, peers = (ranked(trials, names(trials), shared_lengths(trials)) for names in (placements, rivals))
    ours = summary.grouped(ours, kinds.get)
    alike = summary.grouped((name for name in peers if kinds[name] in ours), kinds.get)
    others = summary.grouped((name for name in peers if kinds[name] not in ours), backends.get)
    return [names[0] for groups in (ours, alike, others) for names in groups.values()][:5]


def ratios(trials: Sequence[Start], seed: int = 0) -> list[dict]:
    """At each length every peer against the placement on the same kind of weights that is best there, or where there
    is none against the best: {tokens, best, peer, ratio: TTFT of peer over best}."""
    kinds = weights(trials)
    mine = summary.grouped(placements(trials), kinds.get)
    entries = []
    for n in lengths(trials):
        for peer in rivals(trials):
            ours = best(trials, mine.get(kinds[peer], ()), [n]) or best(trials, placements(trials), [n])
            if ours:
                entries.append(dict(tokens=n, best=ours, peer=peer, ratio=sooner(trials, ours, peer, n, seed)))
    return [e for e in entries if e["ratio"].n]


RATIOS = frames.Columns(
    frames.same("tokens", "peer", "best") | frames.RATIO | {"pairs": "ratio.n", "verdict": "ratio.judged"}, digits=3
)
SCRIPTED = {  # what is made of the dynamic operations, and of the rest: a peer, and the same without
    "the dynamic operations scripted": ("torch-script", "torch+static"),
    "the same, settings of the sampler frozen": ("torch-script+frozen", "torch+static"),
    "the same with no KV cache, as published": ("torch-script+nocache", "torch+nocache"),
    "everything compiled": ("torch-compile", "torch+static"),
}


def scripting(trials: Sequence[Start], seed: int = 0) -> list[dict]:
    """What scripting gains at each length: {what, tokens, ratio: TTFT without over with, above 1 it helps}."""
    entries = [
        dict(what=what, tokens=n, ratio=sooner(trials, *pair, n, seed))
        for what, pair in SCRIPTED.items()
        for n in lengths(trials)
    ]
    return [e for e in entries if e["ratio"].n]


SCRIPTING = frames.Columns(
    frames.same("what", "tokens") | {"ratio": "ratio.words", "verdict": "ratio.judged", "pairs": "ratio.n"},
    index=("what", "tokens"),
)


def unmeasured(trials: Sequence[Start], gaps: Sequence[dict]) -> dict[str, str]:
    """Peers of PyTorch and llama.cpp that these trials do not hold → why: the reason of a gap, or that they were not
    asked for."""
    known = {gap["name"]: gap["reason"] for gap in gaps}
    wanted = [name for name, peer in PEERS.items() if peer.module in ("torch", "llamacpp") or name in known]
    return {name: known.get(name, "not asked for in this run") for name in wanted if name not in rivals(trials)}


# The limit ------------------------------------------------------------------------------------------------------------


def reading_ms(trials: Sequence[Start], subject: str, about: dict) -> float:
    """ms to read the subject's weights once, in its own format, at the bandwidth that was probed beside its trials
    (median). about: `measure.floor` of the model."""
    share = about["weights_read"] / about["parameters"]
    warm = summary.warm(trials, subject, valid=False)
    times = [t.weights_bytes * share / t.bandwidth_gbps / 1e6 for t in warm if t.bandwidth_gbps]
    return float(np.median(times)) if times else NAN


def arithmetic_ms(about: dict, n: int, gflops: float) -> float:
    """ms that the operations of a prompt of n tokens take at the float32 rate that was probed."""
    return about["prefill_flops"][str(n)] / gflops / 1e6


def limits(trials: Sequence[Start], subject: str, about: dict, gflops: float) -> dict[int, float]:
    """Length → ms below which no float32 first token can come: reading the weights once, or the arithmetic, whichever
    takes longer."""
    return {n: max(reading_ms(trials, subject, about), arithmetic_ms(about, n, gflops)) for n in lengths(trials)}
