"""Made-up trials whose answer is known."""

from llama_lab.bench import AGAIN
from llama_lab.experiments.past_one_token_a_pass.measure import TASKS
from tests.bench.test_record import trial

NAMES = ["loop", "loop+lookup", "loop+fused", "loop+fused+lookup4", "llamacpp"]
RATES = {
    "open": dict(zip(NAMES, (40, 39, 250, 240, 100), strict=True)),
    "copy": dict(zip(NAMES, (40, 120, 250, 750, 100), strict=True)),
    "edit": dict(zip(NAMES, (40, 80, 250, 500, 100), strict=True)),
}
MADE = {"open": [1, 1, 1, 2], "copy": [5, 5, 4, 5], "edit": [5, 1, 3, 3]}
PASSES = [
    dict(subject=name, prompt=i, made=MADE[task], drafted=[n > 1 for n in MADE[task]], count=4)
    for name in ("loop+lookup", "loop+fused+lookup4")
    for i, task in enumerate(TASKS)
]
META = dict(parameters=dict(placements=NAMES[:-1], peers=NAMES[-1:]), tasks=list(TASKS), passes=PASSES)


def race(blocks=6, names=NAMES, tokens=None):
    """tokens: subject → the digest of its tokens, where they are others than everybody's."""
    made = []
    for block in range(blocks * len(TASKS)):
        for name in (*names, "loop" + AGAIN):
            task = TASKS[block % len(TASKS)]
            gap = 1e3 / RATES[task][name.removesuffix(AGAIN)] * (1 + 0.002 * ((block * 7 + len(name)) % 5))
            made.append(
                trial(
                    name,
                    block,
                    [50 + gap * i for i in range(21)],
                    run="main",
                    prompt=block % len(TASKS),
                    backend="llama.cpp" if name == "llamacpp" else "jax",
                    tokens_sha256=(tokens or {}).get(name, "same"),
                )
            )
    return made
