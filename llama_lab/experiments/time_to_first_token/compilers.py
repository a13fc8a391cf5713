"""What two compilers make of one function, the probabilities of the next token: TorchScript (scripted, frozen,
optimised by its executor) and XLA (traced, compiled), each with the sampler's settings as arguments and as constants.

Nothing is timed. The counts are those of a release of PyTorch and of jaxlib, the same on each processor.
"""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp

from llama_jax import sampling
from llama_jax.sampling import Sampler, TracedSampler
from llama_lab import peers
from llama_lab.bench import frames, profiling

if TYPE_CHECKING:
    import torch

PEER = "torch-script"
SAMPLER = Sampler(temperature=0.7, top_k=40, top_p=0.9)
VOCABULARY = 512
RUNS = 3  # the executor profiles the first, optimises the second, and keeps what it has in the third
STEPS = {  # a program → what made it of the one before
    "frozen": "by freezing",
    "frozen and optimised": "by its executor",
    "the same, its fuser forced": "by its fuser",
    "settings static, compiled": "by compiling",
}
GROUP = "prim::TensorExprGroup"  # what TorchScript's fuser melts into one
FLOATS = re.compile(r"%?([\w.-]+) = f32\[1?\]\S* constant\(\{?([^){}]+)\}?\)")
HEADER = re.compile(r"(?:ENTRY )?%?([\w.-]+) .*\{$", re.M)
NO_OPERATION = (  # what is read, decided, guarded and packed, and what a guard falls back to
    GROUP, "prim::Constant", "prim::GetAttr", "prim::If", "prim::TypeCheck", "prim::CallFunction", "prim::TupleUnpack",
    "prim::ListConstruct",
)  # fmt: skip


@dataclass(frozen=True)
class Stage:
    """A program at one stage. operations: by kind, those within fusions left out; fused: those. constants: (name,
    value) of each number in it. branches: decided while it runs."""

    compiler: str
    name: str
    operations: Counter[str]
    constants: list[tuple[str, str]]
    branches: int = 0
    fusions: int = 0
    fused: Counter[str] = field(default_factory=Counter)


COLUMNS = frames.Columns(
    {
        "compiler": "compiler",
        "program": "name",
        "operations": lambda stage: stage.operations.total(),
        "branches": "branches",
        "different constants": lambda stage: len({value for _, value in stage.constants}),
        "fusions": "fusions",
        "operations in them": lambda stage: stage.fused.total(),
    },
    index=("compiler", "program"),
)


def missing() -> str:
    """One line where TorchScript's half cannot be shown here; "" if it can."""
    gaps = peers.missing([PEER], "")
    return " ".join(f"TorchScript's half is not shown: {gap['reason']} {gap['remedy']}" for gap in gaps)


def stages() -> list[Stage]:
    """Both compilers' programs, TorchScript's where PyTorch is installed."""
    return ([] if missing() else torchscript()) + xla()


def words(stages: Sequence[Stage]) -> list[str]:
    """What each step of a compiler changed, a line each, and why there is nothing, or nothing fused, of TorchScript."""
    lines = [missing() or why_unfused()]
    for before, after in pairwise(stages):
        if before.compiler == after.compiler and after.name in STEPS:
            changes = filter(None, [changed(before, after), folded(before, after), fused(after)])
            lines.append(f"{after.compiler}, {STEPS[after.name]}: {'; '.join(changes) or 'nothing changes'}")
    return [line for line in lines if line]


def changed(before: Stage, after: Stage) -> str:
    """`amax 1 → 0, gt 2 → 0`: kinds of operations of which there are more, or fewer, afterwards, in fusions or not."""
    old, new = (stage.operations + stage.fused for stage in (before, after))
    return ", ".join(f"{kind} {old[kind]} → {new[kind]}" for kind in sorted({*old, *new}) if old[kind] != new[kind])


def folded(before: Stage, after: Stage) -> str:
    """`constants gone: 0.7, new: 1.42857`: those that only one of two programs has."""
    held, kept = ({value for _, value in stage.constants} for stage in (before, after))
    gone = dict.fromkeys(shown(*pair) for pair in before.constants if pair[1] not in kept)
    come = dict.fromkeys(shown(*pair) for pair in after.constants if pair[1] not in held)
    changes = [f"{kind}: {', '.join(values)}" for kind, values in (("gone", gone), ("new", come)) if values]
    return f"constants {', '.join(changes)}" if changes else ""


def fused(stage: Stage) -> str:
    """`2 fusions hold 4 of 24 operations`; "" without one."""
    inside = stage.fused.total()
    of = f"{inside} of {inside + stage.operations.total()} operations"
    return f"{stage.fusions} fusions hold {of}" if stage.fusions else ""


def shown(name: str, value: str) -> str:
    """`top_k = 40` of a constant that was a setting, else its value."""
    return f"{name.removeprefix('self.')} = {value}" if name.startswith("self.") else value


# TorchScript ----------------------------------------------------------------------------------------------------------


def torchscript(settings: Sampler = SAMPLER, vocabulary: int = VOCABULARY) -> list[Stage]:
    """Scripted with the settings as attributes; frozen; as the executor runs it here; and as it would with the fuser
    allowed on a processor, if this build's own does not.

    PyTorch's own passes do it: freezing folds constants and drops branches that they decide, the executor optimises
    what its first run was profiled with.
    """
    import torch

    from llama_lab.peers import torch_script

    module = torch_script.Settled(torch_script.probabilities, *torch_script.settings_of(settings))
    scripted = torch_script.made("script_ns", torch.jit.script, module)

    def as_run() -> torch.Graph:
        frozen = torch_script.made("freeze_ns", torch.jit.freeze, scripted)
        for _ in range(RUNS):
            frozen(torch.zeros(1, vocabulary))
        return torch.jit.last_executed_optimized_graph()

    stages = [of_graph("scripted, settings as attributes", scripted.inlined_graph)]
    stages.append(of_graph("frozen", torch_script.made("freeze_ns", torch.jit.freeze, scripted).graph))
    stages.append(of_graph("frozen and optimised", as_run()))
    with fuser_on_cpu():
        stages.append(of_graph("the same, its fuser forced", as_run()))
    return stages


def why_unfused() -> str:
    """That TorchScript's fuser makes no group on this processor, as PyTorch itself says; "" if it does."""
    from torch import _C

    if _C._jit_can_fuse_on_cpu() and (_C._llvm_enabled() or not _C._jit_get_te_must_use_llvm_cpu()):
        return ""
    llvm = "with" if _C._llvm_enabled() else "without"
    return f"TorchScript fuses nothing on a processor here: its fuser is off, in a build of PyTorch {llvm} LLVM."


@contextlib.contextmanager
def fuser_on_cpu() -> Iterator[None]:
    """TorchScript's fuser (NNC) on a processor, whether or not it can compile what it fuses there: without LLVM its
    groups are interpreted, which is slower than not to fuse. The settings are put back."""
    from torch import _C

    before = _C._jit_can_fuse_on_cpu(), _C._jit_get_te_must_use_llvm_cpu()
    _C._jit_override_can_fuse_on_cpu(True)
    _C._jit_set_te_must_use_llvm_cpu(False)
    try:
        yield
    finally:
        _C._jit_override_can_fuse_on_cpu(before[0])
        _C._jit_set_te_must_use_llvm_cpu(before[1])


def nodes(graph) -> Iterator:
    """All nodes of a TorchScript graph, those of its blocks among them; those within fusions are not."""
    for node in graph.nodes():
        yield node
        for block in node.blocks():
            yield from nodes(block)


def of_graph(name: str, graph: torch.Graph) -> Stage:
    operations = list(nodes(graph))
    inside = [node for group in operations if group.kind() == GROUP for node in nodes(group.g("Subgraph"))]
    constants = [(node.output().debugName(), node.output().toIValue())
                 for node in operations + inside if node.kind() == "prim::Constant"]  # fmt: skip
    numbers = [(label, f"{value:g}") for label, value in constants if type(value) in (int, float)]
    return Stage(
        "TorchScript", name, kinds(operations), numbers,
        branches=sum(node.kind() == "prim::If" for node in operations),
        fusions=sum(node.kind() == GROUP for node in operations),
        fused=kinds(inside),
    )  # fmt: skip


def kinds(operations: Sequence) -> Counter[str]:
    """Nodes by kind, without those that compute nothing."""
    return Counter(n.kind().partition("::")[2] for n in operations if n.kind() not in NO_OPERATION)


# XLA ------------------------------------------------------------------------------------------------------------------


def chances(logits: jax.Array, s: Sampler | TracedSampler) -> jax.Array:
    """What each token of logits [... V] is drawn with, float32 of that shape: the filters of `sampling.next_token`, as
    `torch_script.probabilities`. Settings of a `Sampler` are constants; traced ones decide at run time which run."""
    return jax.nn.softmax(sampling.narrow(sampling.soften(logits.astype(jnp.float32), s.temperature), s))


def xla() -> list[Stage]:
    """As traced and lowered, and as compiled for this processor: with the settings as arguments, and as constants."""
    stages = []
    for words, given in (("settings traced", SAMPLER.traced()), ("settings static", SAMPLER)):
        lowered = jax.jit(chances).lower(jax.ShapeDtypeStruct((1, VOCABULARY), jnp.float32), given)
        stages.append(of_hlo(f"{words}, lowered", lowered.as_text("hlo")))
        stages.append(of_hlo(f"{words}, compiled", lowered.compile().as_text()))
    return stages


def of_hlo(name: str, text: str) -> Stage:
    run = [i.operation for i in profiling.instructions(text) if not i.fused]
    called = set(re.findall(r" fusion\(.*?calls=%?([\w.-]+)", text))
    parts = [part for part in text.split("\n\n") if (head := HEADER.match(part)) and head[1] in called]
    inside = [i.operation for part in parts for i in profiling.instructions(part)]
    return Stage(
        "XLA", name, Counter(o for o in run if o not in (*profiling.NO_BUFFER, "fusion")),
        [(label, f"{float(value):g}") for label, value in FLOATS.findall(text)],
        branches=run.count("conditional"),
        fusions=run.count("fusion"),
        fused=Counter(o for o in inside if o not in profiling.NO_BUFFER),
    )  # fmt: skip
