"""Evidence that a refactoring changed no time: the commit before it and this one, compared in fresh processes.

Programs: the StableHLO of everything that is compiled after loading, on a tiny model: an answer under each placement
and variant of the notebooks, an extraction, a generation with activations, and a server's slots. JAX dumps it while
lowering (`jax_dump_ir_to`), without locations. Before the comparison, functions within a module are numbered and the
names of arguments and results are removed, because a renamed function is the same program. Targets of custom calls keep
their names.

A compiled kernel is one call in a program's text, which does not show what happens inside, and its arguments follow its
own layout. So placements with kernels are compared by their times, on real weights.

Times: both commits in turn, each in a fresh process, and the earlier commit a second time in each round. The evidence
holds if the median ratio lies within what the earlier commit differs from itself. A kernel that became faster or slower
moves the placements that use it; a modifier whose programs all changed moves the placements with it. Tables with such a
row are left as they are, and so are tables of servers if the programs of slots changed.

The part that runs inside a checkout is this same file (`python evidence.py programs|times`), with the modules of that
checkout. It uses only what both commits offer.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

TINY = (
    "random:smollm2-135m,num_hidden_layers=2,hidden_size=64,intermediate_size=128,num_attention_heads=4,"
    "num_key_value_heads=2,head_dim=16,vocab_size=97"
)
SMALL = (
    "random:smollm2-135m,num_hidden_layers=4,hidden_size=256,intermediate_size=512,num_attention_heads=4,"
    "num_key_value_heads=2,head_dim=64,vocab_size=2048"
)
VARIANTS = (
    "step+scan", "loop+scan", "step+growing", "eager+nocache", "step+nocache", "step+traced", "loop+bf16", "step+int8",
    "loop+q8_0", "loop+q4_0", "loop+q4_1", "step+donate+kvbf16", "step+donate+kvf16", "step+donate+kvint8", "chunk16",
    "step+lookup", "loop+lookup", "chunk8+callback", "step+gemv", "loop+q4_1+gemv", "step+fused", "loop+q4_1+fused",
    "chunk8+fused", "loop+fused+lookup",
)  # fmt: skip
SERVED = ("step+donate", "chunk8", "step+fused")
TIMED = {
    **dict.fromkeys(("eager", "step+donate", "loop"), SMALL),
    **dict.fromkeys(("step+gemv", "loop+fused"), "smollm2-135m-instruct"),  # blocks of Q4_1 and Q8_0
}
FILTERED = (
    "top-k"  # stands among a name's modifiers where filters are compared, and among the settings in a table's rows
)
SLOTS = "slots of "  # begins the name of a server's programs
KERNELS = re.compile(r"\+(gemv|fused)\b")  # in the name of what is compared by its time
ROUNDS, ANSWERS, TOKENS = 5, 5, 32
SYMBOL = re.compile(r"(?:func\.func (?:public |private )?|module )@([\w.$-]+)")
NAMED = re.compile(r'(?:, )?(?:jax\.(?:result_info|arg_info)|tf\.name) = "[^"]*"')
LIMIT_S = 3600  # of one process: two minutes on a free core, far more on a busy machine


# Inside a checkout ----------------------------------------------------------------------------------------------------


def programs() -> dict[str, list[str]]:
    """Name of a request → sorted hashes of the programs that were lowered for it."""
    import llama_jax as ll
    from llama_lab.activations import ActivationSpec, Extractor, Generator
    from llama_lab.serve.service import Service

    loaded, prompt = ll.load(TINY), list(range(3, 21))

    def answering(placement: str, *samplers: ll.Sampler) -> Callable[[], None]:
        engine = ll.build(loaded, placement)

        def answer() -> None:
            for sampler in samplers:
                ll.answer(engine, [prompt], 5, sampler=sampler)
                ll.answer(engine, [prompt, prompt[:7]], 5, sampler=sampler)

        return answer

    def extracted() -> None:
        spec = ActivationSpec((("resid_post", "all"), ("q", (0,)), ("logits", None)))
        Extractor(loaded, spec, batch=(2, 16))([prompt[:9], prompt])

    def generated() -> None:
        Generator(loaded, ActivationSpec((("resid_post", "all"), ("ln_final", None))), (2, 18), 4)

    names, plain, filtered = (*ll.LADDER, *VARIANTS), ll.Sampler(0.8), ll.Sampler(0.8, top_k=20, top_p=0.9)
    compared = {name: lowered(answering(name, ll.Sampler(), plain)) for name in names}
    compared |= {f"{name}+{FILTERED}": lowered(answering(name, filtered)) for name in names}
    compared |= {"activations extracted": lowered(extracted), "activations of a generation": lowered(generated)}
    return compared | {f"{SLOTS}{name}": lowered(Service(loaded, name, 2, 64).stepper.warm) for name in SERVED}


def lowered(run: Callable[[], None]) -> list[str]:
    """Hashes of the programs that a call lowers, sorted."""
    import jax

    jax.clear_caches()
    jax.config.update("jax_include_debug_info_in_dumps", False)
    jax.config.update("jax_disable_most_optimizations", True)  # of compiling, which comes after what is compared
    with tempfile.TemporaryDirectory() as folder:
        jax.config.update("jax_dump_ir_to", folder)
        try:
            run()
        finally:
            jax.config.update("jax_dump_ir_to", "")
        return sorted(digest(path.read_text()) for path in Path(folder).rglob("*.mlir"))


def digest(text: str) -> str:
    """Hash of a program, whatever its functions, arguments and results are called."""
    numbers = {name: f"@f{i}" for i, name in enumerate(dict.fromkeys(SYMBOL.findall(text)))}
    text = re.sub(r"@([\w.$-]+)", lambda name: numbers.get(name[1], name[0]), NAMED.sub("", text))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def times() -> dict[str, float]:
    """Placement → seconds of an answer, the median of a few."""
    import llama_jax as ll

    prompt, seconds = list(range(3, 35)), {}
    loaded = {SMALL: ll.load(SMALL), "smollm2-135m-instruct": ll.load("smollm2-135m-instruct", "gguf")}
    for name, model in TIMED.items():
        engine, spent = ll.build(loaded[model], name), []
        for _ in range(1 + ANSWERS):
            began = time.perf_counter()
            ll.answer(engine, [prompt], TOKENS)
            spent.append(time.perf_counter() - began)
        seconds[name] = statistics.median(spent[1:])  # the first one compiled
    return seconds


# Around two checkouts -------------------------------------------------------------------------------------------------


def ask(checkout: Path, *command: str) -> dict:
    """The last output of a fresh process that uses a checkout's modules. Raises UserError if it fails."""
    around = {**os.environ, "PYTHONPATH": str(checkout), "PYTHONDONTWRITEBYTECODE": "1"}
    complaint = f"{command[0]} failed in {checkout}"
    return json.loads(output_of([sys.executable, "-P", *command], complaint, cwd=checkout, env=around).splitlines()[-1])


def git(root: Path, *arguments: str) -> str:
    """git's output. Raises UserError if it fails."""
    return output_of(["git", "-C", str(root), *arguments], f"git {arguments[0]}").strip()


def output_of(command: list[str], complaint: str, **around) -> str:
    """Standard output of a process. Raises UserError if it fails, with the complaint and the process's last words."""
    from llama_jax.plumbing.errors import UserError

    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, **around)
    if done.returncode:
        raise UserError(f"{complaint}: {done.stderr.strip()[-400:]}")
    return done.stdout


@contextmanager
def checked_out(root: Path, commit: str) -> Iterator[Path]:
    """A work tree of a commit, in a temporary folder."""
    with tempfile.TemporaryDirectory() as folder:
        there = Path(folder) / "before"
        git(root, "worktree", "add", "--detach", str(there), commit)
        try:
            yield there
        finally:
            git(root, "worktree", "remove", "--force", str(there))


def gather(root: Path, before: str, tell: Callable[[str], None]) -> dict:
    """The evidence for an earlier commit and the one checked out at `root`. current: the tables of `root` that belong
    to the earlier code. Raises UserError for a tree with changes, and for an unknown commit."""
    now = clean_commit(root)
    with checked_out(root, before) as there:
        stale = ask(there, "-m", "llama_lab", "stale", "--json", "--out", str(root))
        tell("lowering the programs of both commits")
        with ThreadPoolExecutor() as pool:
            lowered_by = list(pool.map(lambda checkout: ask(checkout, __file__, "programs"), (there, root)))
        rounds = []
        for number in range(ROUNDS):
            tell(f"timing both commits, round {number + 1} of {ROUNDS}")
            turn = [("before", there), ("now", root), ("again", there)]
            turn = turn[number % 3 :] + turn[: number % 3]
            rounds.append({name: ask(checkout, __file__, "times") for name, checkout in turn})
    return dict(
        before=git(root, "rev-parse", before),
        now=now,
        current=[table["name"] for table in stale["tables"] if table["changed"] == []],
        **judged(*lowered_by, rounds),
    )


def clean_commit(root: Path) -> str:
    """The commit that is checked out. Raises UserError if files differ from it."""
    from llama_jax.plumbing.errors import UserError

    if changed := git(root, "status", "--porcelain"):
        raise UserError(f"The tree has changes ({changed.splitlines()[0].strip()}, …): commit them first.")
    return git(root, "rev-parse", "HEAD")


def judged(before: dict[str, list[str]], now: dict[str, list[str]], rounds: list[dict]) -> dict:
    """{moved: modifiers, programs, differing: names, by_time: those that differ and have kernels, times: {placement:
    ratio now / before, spread of before / before}}.

    Moved are kernels whose times changed, and modifiers that occur only in placements with changed programs.
    """
    others = sorted(name for name in {*before, *now} if before.get(name) != now.get(name))
    differing, by_time = ([name for name in others if bool(KERNELS.search(name)) is kernel] for kernel in (False, True))
    elsewhere = {part for name in {*before, *now}.difference(others) for part in modifiers(name)}
    changed = {part for name in differing for part in modifiers(name)} - elsewhere
    differing = [name for name in differing if changed.isdisjoint(modifiers(name))]
    compared = {}
    for name in rounds[0]["before"]:
        ratio, spread = ([math.log(r[way][name] / r["before"][name]) for r in rounds] for way in ("now", "again"))
        compared[name] = dict(
            ratio=round(math.exp(statistics.median(ratio)), 4), spread=round(math.exp(max(map(abs, spread))), 4)
        )
    moved = [name for name, t in compared.items() if is_moved(**t)]
    kernels = sorted({match[1] for name in moved if (match := KERNELS.search(name))})
    return dict(
        moved=sorted({*kernels, *changed}),
        programs=sum(map(len, now.values())),
        differing=differing,
        by_time=by_time,
        times=compared,
    )


def is_moved(ratio: float, spread: float) -> bool:
    """Whether a time changed by more than the earlier commit's differs from itself."""
    return not 1 / spread <= ratio <= spread


def modifiers(name: str) -> list[str]:
    """Of a placement's name: kvint8 of step+donate+kvint8, lookup of loop+lookup4."""
    return [re.sub("^(async|queue|lookup)[0-9]+$", r"\1", part) for part in name.split("+")[1:]]


if __name__ == "__main__":
    import llama_jax

    assert Path(llama_jax.__file__).is_relative_to(Path.cwd()), f"{llama_jax.__file__} is not of this checkout"
    print(json.dumps({"programs": programs, "times": times}[sys.argv[1]]()))
