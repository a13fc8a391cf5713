"""Options of a verb as fields of a dataclass, and the verb made of them.

    @verb("`llama-jax gguf --model random:smollm2-360m --type q4_0 --out smollm2-360m.gguf`")
    class Gguf:
        \"\"\"Write random weights as a GGUF file.\"\"\"  # the help

        out: Path = option(..., "The file to write.")
        json: bool = as_json()

        def run(self) -> dict: ...  # the document of --json, or (document, False) if a check failed

A field whose type is a dataclass is a group: its options take its place. Options that several verbs share are declared
here, once.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterator
from dataclasses import MISSING, asdict, dataclass, field, fields, is_dataclass
from typing import Any, TypeVar, dataclass_transform, get_type_hints

import typer

from llama_jax.plumbing.values import LARGEST
from llama_lab.cli import loading
from llama_lab.cli.common import app, emit

T = TypeVar("T")
MODEL = "smollm2-135m-instruct"
TOKENS = 1 << 20  # of a prompt or an answer that is measured: more than any model here can read
ROWS = 1 << 16  # of a batch


def option(default: Any, help: str, *names: str, **more: Any) -> Any:
    """An option, named after its field unless `names` are given. default: `...` makes it required. more: as for
    `typer.Option`, such as min and max."""
    return declared(default, typer.Option(default, *names, help=help, **more))


def argument(default: Any, help: str, **more: Any) -> Any:
    """A positional argument."""
    return declared(default, typer.Argument(default, help=help, **more))


def flag(help: str) -> Any:
    """A switch that is off unless it is given; there is no `--no-…`."""
    return declared(False, typer.Option(False, help=help), flag=True)


def declared(default: Any, parameter: Any, **more: Any) -> Any:
    return field(default=MISSING if default is ... else default, metadata={"parameter": parameter, **more})


def parameters(kind: type) -> Iterator[inspect.Parameter]:
    """The parameters that typer reads. A field without a declaration, such as the context, has only its type."""
    types = get_type_hints(kind)
    for each in fields(kind):
        if is_dataclass(types[each.name]):
            yield from parameters(types[each.name])
            continue
        default = each.metadata.get("parameter", inspect.Parameter.empty)
        if each.metadata.get("flag"):
            default.param_decls = (f"--{each.name.replace('_', '-')}",)
        yield inspect.Parameter(each.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=types[each.name])


def build(kind: type[T], values: dict[str, Any]) -> T:
    """A dataclass of options filled with the given values, groups included."""
    types = get_type_hints(kind)
    return kind(
        **{
            each.name: build(types[each.name], values) if is_dataclass(types[each.name]) else values[each.name]
            for each in fields(kind)
        }
    )


def given(context: typer.Context, besides: Collection[str] = ()) -> list[str]:
    """Names of the options that the command line gives, whatever their values."""
    sources = {name: context.get_parameter_source(name) for name in context.params if name not in besides}
    return [f"--{name.replace('_', '-')}" for name, source in sources.items() if source.name == "COMMANDLINE"]


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(option, argument, flag))
def group(kind: type[T]) -> type[T]:
    """A group of options."""
    return dataclass(frozen=True, kw_only=True)(kind)


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(option, argument, flag))
def verb(example: str) -> Callable[[type[T]], type[T]]:
    """Make a class the verb of its name: its fields are the options, its docstring is the help. `run` executes it. It
    returns the document of `--json`, if any, or (document, success); without success the exit code is 1."""

    def made(kind: type[T]) -> type[T]:
        kind = group(kind)

        def run(**values: Any) -> None:
            with loading.shown():
                result = build(kind, values).run()
            document, well = result if isinstance(result, tuple) else (result, True)
            if document is not None and values["json"]:
                emit(document)
            if not well:
                raise typer.Exit(1)

        run.__signature__ = inspect.Signature([*parameters(kind)])
        run.__annotations__ = {name: each.annotation for name, each in run.__signature__.parameters.items()}
        app.command(kind.__name__.lower(), help=inspect.getdoc(kind), epilog=f"Example: {example}")(run)
        return kind

    return made


def known_models(incomplete: str) -> list[tuple[str, str]]:
    """Completions for --model."""
    from llama_jax import checkpoint

    return [(name, about) for name, about in checkpoint.models().items() if name.startswith(incomplete)]


USUAL = "step+fused if kernels can read the file's blocks, else step"
USUAL_OF_A_SERVER = USUAL + "+donate"


def known_placements(incomplete: str) -> list[tuple[str, str]]:
    """Completions for --placement: the ladder, switches after a +, and models after +draft:."""
    from llama_jax.placement import DESCRIPTIONS, DRAFT, LADDER, MODIFIERS

    if drafted := DRAFT.search(incomplete):
        begun = incomplete[: drafted.start(2)]
        return [(begun + name, about) for name, about in known_models(drafted[2])]
    begun, plus, last = incomplete.rpartition("+")
    if plus:
        return [(f"{begun}+{name}", "") for name in (*MODIFIERS, "draft:") if name.startswith(last)]
    return [(name, DESCRIPTIONS[name]) for name in LADDER if name.startswith(incomplete)]


def model() -> Any:
    about = "Model name, path, hub id or random:PRESET; see `llama-jax models`."
    return option(MODEL, about, "--model", "-m", autocompletion=known_models)


def placement(default: str | None, usual: str = USUAL) -> Any:
    about = "Where jit goes; see `llama-jax placements`" + ("." if default else f"; by default {usual}.")
    return option(default, about, "--placement", autocompletion=known_placements)


def dtype(default: str | None = None) -> Any:
    known = "float32, bfloat16, gguf (the file's own blocks), q8_0, q4_0, q4_1 or int8"
    return option(default, known + ("." if default else "; by default the form that the placement computes on."))


def new_tokens(default: int) -> Any:
    return option(default, "Most tokens to generate.", "--max-new-tokens", "-n", min=1, max=LARGEST)


def seed() -> Any:
    return option(0, "Random seed.", min=0, max=LARGEST)


def as_json() -> Any:
    return flag("End with one line of JSON on standard output.")


@group
class Sampling:
    """How tokens are sampled."""

    temperature: float = option(0.0, "0 is greedy.")
    top_k: int = option(0, "Keep the k best tokens; 0 keeps all.")
    top_p: float = option(1.0, "Keep the smallest set of tokens with this probability.")
    min_p: float = option(0.0, "Drop tokens below this share of the best one's probability.")
    repetition_penalty: float = option(1.0, "Above 1 makes tokens already seen less likely.")

    @property
    def sampler(self):
        """Raises UserError for a number out of range."""
        from llama_jax.sampling import Sampler

        return Sampler(**asdict(self))
