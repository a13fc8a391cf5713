"""Made-up trials of a contest whose answer is known."""

from llama_lab.bench import AGAIN, footprints
from llama_lab.bench.cold import Start
from llama_lab.experiments.fewer_bits import reading, table
from tests.bench.test_record import trial
from tests.experiments.fewer_bits.test_reading import readings

NAMES = ["loop", "loop+gemv", "step+fused", "loop+fused", "torch-int8", "llamacpp", "llamacpp+q4_0"]
RATES = {256: dict(zip(NAMES, (60, 210, 340, 450, 30, 150, 240), strict=True)),
         1024: dict(zip(NAMES, (50, 150, 280, 350, 25, 130, 200), strict=True))}  # fmt: skip
Q4 = dict(dtype="q4_1", quantisation="gguf-q4_1", bytes_per_token=1e8)
KINDS = {
    "loop": dict(bytes_per_token=5.4e8),
    **dict.fromkeys(("loop+gemv", "step+fused", "loop+fused"), Q4),
    "llamacpp": {**Q4, "backend": "llama.cpp"},
    "llamacpp+q4_0": dict(dtype="q4_0", quantisation="gguf-q4_0", bytes_per_token=9e7, backend="llama.cpp"),
    "torch-int8": dict(dtype="int8", quantisation="int8-dynamic", bytes_per_token=1.4e8, backend="torch"),
}
PEAKS = dict(zip(NAMES, (900, 400, 380, 380, 1500, 250, 260), strict=True))  # MB
NOTES = [dict(subject=name, libraries_rss_bytes=2 * 10**8) for name in NAMES]
MISSING = [dict(name="llamacpp+q8_0", reason="llama-cpp-python is not installed.", remedy="Run `make peers`.")]


def answer(name, context, block, slower=1.0):
    gap = slower * 1e3 / RATES[context][name.removesuffix(AGAIN)] * (1 + 0.002 * ((block * 7 + len(name)) % 5))
    more = dict(bandwidth_gbps=50.0, flops_per_token=2.7e8) | KINDS[name.removesuffix(AGAIN)]
    return trial(name, block, [50 + gap * i for i in range(21)], run=table.run_of(context), **more)


def race(names=NAMES, blocks=8, contexts=(256, 1024), slower=None):
    """slower: subject → how many times as long it takes."""
    made = [
        answer(n, c, b, (slower or {}).get(n, 1.0))
        for c in contexts
        for b in range(blocks)
        for n in (*names, "loop" + AGAIN)
    ]
    alone = dict(phase="cold", weights_bytes=10**8, kv_bytes=10**6)
    for i in range(3):
        for n in names:
            about = dict(run=f"{footprints.MEMORY} {n}", peak_rss_bytes=(PEAKS[n] + i) * 10**6)
            made.append(trial(n, i, [50, 60], **about, **alone, **KINDS[n]))
    return made


def entries_of(trials, names=NAMES, contexts=(256, 1024), read=True):
    distances = reading.table(readings()) if read else []
    return {c: table.ladder(trials, names, c, distances, NOTES) for c in contexts}


# fixed, and for each prompt token
FIRST_MS = {"step": (20, 2.0), "step+fused": (8, 1.0), "llamacpp": (5, 1.5), "llamacpp+generate": (6, 1.5)}
LENGTHS = (10, 100)


def firsts(names=tuple(FIRST_MS), blocks=8, slower=None):
    """Requests of these subjects at LENGTHS, the first one's twice. slower: (subject, length) → how many times as long
    it takes."""
    made = []
    for n in LENGTHS:
        for name in (*names, names[0] + AGAIN):
            fixed, slope = FIRST_MS[name.removesuffix(AGAIN)]
            more = dict(
                backend="llama.cpp" if name.startswith("llama") else "jax", prompt_tokens=n, run="warm",
                bandwidth_gbps=50.0, weights_bytes=5 * 10**8 if name in ("step", "step" + AGAIN) else 10**8,
            )  # fmt: skip
            for block in range(blocks):
                noise = 1 + 0.002 * ((block * 5 + len(name)) % 7)
                ms = (fixed + slope * n) * (slower or {}).get((name, n), 1.0) * noise
                made.append(Start(**{**trial(name, block, (ms, ms + 5)).model_dump(), **more}))
    return made
