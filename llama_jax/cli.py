"""The verbs of `llama-jax`. Heavy imports wait until a verb runs, so that `--help` is quick."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(add_completion=False, no_args_is_help=True, rich_markup_mode="markdown", pretty_exceptions_enable=False,
                  help="The same language model under every placement of jax.jit.")  # fmt: skip

Model = Annotated[str, typer.Option("--model", "-m", help="Model name, path, hub id or random:PRESET; see `llama-jax models`.")]
PlacementName = Annotated[str, typer.Option("--placement", help="Where jit goes; see `llama-jax placements`.")]
Json = Annotated[bool, typer.Option("--json", help="End with one line of JSON on standard output.")]
MaxNewTokens = Annotated[int, typer.Option("--max-new-tokens", "-n", min=1, help="Tokens to make at most.")]
Temperature = Annotated[float, typer.Option(help="0 is greedy.")]
TopK = Annotated[int, typer.Option(help="Keep the k best tokens; 0 keeps all.")]
TopP = Annotated[float, typer.Option(help="Keep the smallest set of tokens with this probability.")]
MinP = Annotated[float, typer.Option(help="Drop tokens below this share of the best one's probability.")]
Penalty = Annotated[float, typer.Option("--repetition-penalty", help="Above 1 makes tokens already seen less likely.")]
Seed = Annotated[int, typer.Option(help="Seed of the draws.")]
IgnoreEos = Annotated[bool, typer.Option("--ignore-eos", help="Go on past the end of the answer.")]
Dtype = Annotated[str, typer.Option(help="float32 or bfloat16.")]


def emit(document: dict) -> None:
    """One compact JSON document as the last line of standard output; what is not a number is null."""
    print(json.dumps(plain(document), separators=(",", ":"), ensure_ascii=False, allow_nan=False), flush=True)


def plain(value):
    """JSON values only: NaN becomes None, paths become text."""
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    if isinstance(value, float) and value != value:
        return None
    return str(value) if isinstance(value, Path) else value


def tell(line: str) -> None:
    """Progress, for people: on standard error."""
    print(line, file=sys.stderr, flush=True)


@app.command(epilog="Example: `llama-jax generate 'Why is the sky blue?' --placement loop --max-new-tokens 64`")
def generate(
    prompt: Annotated[str | None, typer.Argument(help="A question; `-` reads standard input.")] = None,
    token_ids: Annotated[str | None, typer.Option(help="The prompt as token ids, such as 1,2,3.")] = None,
    no_chat: Annotated[bool, typer.Option("--no-chat", help="Continue the text itself; no chat template.")] = False,
    model: Model = "smollm2-135m-instruct",
    placement: PlacementName = "step",  # streams every token
    max_new_tokens: MaxNewTokens = 128,
    temperature: Temperature = 0.0,
    top_k: TopK = 0,
    top_p: TopP = 1.0,
    min_p: MinP = 0.0,
    repetition_penalty: Penalty = 1.0,
    seed: Seed = 0,
    ignore_eos: IgnoreEos = False,
    dtype: Dtype = "float32",
    json_: Json = False,
) -> None:
    """Answer one prompt."""
    import time

    import numpy as np

    from llama_jax import checkpoint, render
    from llama_jax.generate import build, check_seeds, cut, stream
    from llama_jax.placement import parse
    from llama_jax.sampling import Sampler

    sampler, placed = Sampler(temperature, top_k, top_p, min_p, repetition_penalty), parse(placement)
    check_seeds(seed, 1)
    given = read_prompt(prompt, token_ids)
    loaded = checkpoint.load(model, dtype)
    start = time.perf_counter()
    ids = encode_prompt(loaded, given, chat_template=not no_chat)
    stop = () if ignore_eos or loaded.tokenizer is None else loaded.tokenizer.stop
    engine = build(loaded, placed)
    blocks = stream(engine, [ids], max_new_tokens, sampler=sampler, seeds=seed, stop=stop)
    if not json_ and loaded.tokenizer is not None:
        render.show(blocks, loaded.tokenizer, start=start)
        return
    arrivals, parts = [], []
    for block in blocks:
        arrivals += [time.perf_counter() - start] * len(block)
        parts.append(block)
    answer = cut(np.concatenate(parts)[:, 0], stop)
    if not json_:
        print(*answer.token_ids)
        return
    spent = arrivals[-1] - arrivals[0]
    emit({
        "model": model, "placement": placement, "prompt_token_ids": ids, "token_ids": list(answer.token_ids),
        "text": loaded.tokenizer.decode(answer.token_ids) if loaded.tokenizer else None, "finish_reason": answer.finish_reason,
        "ttft_ms": arrivals[0] * 1e3, "tokens_per_second": (len(arrivals) - 1) / spent if spent > 0 else None,
        "note": "times include compilation: this is the process's first request",
    })  # fmt: skip


def read_prompt(prompt: str | None, token_ids: str | None) -> str | list[int]:
    """The prompt as text or as ids. Raises UserError for none, both, or ids that are not numbers."""
    from llama_jax.errors import UserError

    if (prompt is None) == (token_ids is None):
        raise UserError("Give either a prompt or --token-ids.")
    if token_ids is None:
        text = sys.stdin.read() if prompt == "-" else prompt
        if not text.strip():
            raise UserError("The prompt is empty; give some text.")
        return text
    try:
        return [int(i) for i in token_ids.split(",")]
    except ValueError:
        raise UserError(f"--token-ids is {token_ids!r}; write whole numbers with commas between them, such as 1,2,3.") from None


def encode_prompt(loaded, given: str | list[int], chat_template: bool) -> list[int]:
    """Token ids of a prompt."""
    from llama_jax import chat
    from llama_jax.errors import UserError

    if isinstance(given, list):
        return given
    if loaded.tokenizer is None:
        raise UserError(f"{loaded.name} has no tokenizer; give --token-ids.")
    return chat.encode(loaded.tokenizer, chat.ask(given)) if chat_template else loaded.tokenizer.encode(given)


@app.command("chat", epilog="Example: `llama-jax chat --temperature 0.7 --top-p 0.9`")
def converse(
    model: Model = "smollm2-135m-instruct",
    placement: PlacementName = "step",
    system: Annotated[str | None, typer.Option(help="The system message.")] = None,
    max_new_tokens: MaxNewTokens = 512,
    temperature: Temperature = 0.0,
    top_k: TopK = 0,
    top_p: TopP = 1.0,
    min_p: MinP = 0.0,
    repetition_penalty: Penalty = 1.0,
    seed: Seed = 0,
) -> None:
    """Talk with the model; an empty line or Ctrl-D ends it."""
    import time

    from rich.console import Console

    from llama_jax import chat, checkpoint, render
    from llama_jax.errors import UserError
    from llama_jax.generate import build, stream
    from llama_jax.placement import parse
    from llama_jax.sampling import Sampler

    sampler, placed = Sampler(temperature, top_k, top_p, min_p, repetition_penalty), parse(placement)
    loaded = checkpoint.load(model)
    if loaded.tokenizer is None:
        raise UserError(f"{model} has no tokenizer; it cannot chat.")
    engine, console = build(loaded, placed), Console()
    messages = [{"role": "system", "content": system}] if system else []
    while question := read_line(console):
        messages.append({"role": "user", "content": question})
        start, stop = time.perf_counter(), loaded.tokenizer.stop
        ids = chat.encode(loaded.tokenizer, messages)
        blocks = stream(engine, [ids], max_new_tokens, sampler=sampler, seeds=seed, stop=stop)
        view = render.show(blocks, loaded.tokenizer, console, start)
        messages.append({"role": "assistant", "content": view.text})


def read_line(console) -> str:
    try:
        return console.input("[bold]> [/bold]").strip()
    except EOFError:
        return ""


@app.command(epilog="Example: `llama-jax bench --placements step,loop,chunk16 --blocks 10 --out results.parquet --json`")
def bench(
    model: Model = "smollm2-135m-instruct",
    placements: Annotated[str, typer.Option(help="Names with commas between them; the ladder by default.")] = "",
    peers: Annotated[str, typer.Option(help="Other implementations to measure beside them, such as flax-linen+jit, with commas.")] = "",
    baseline: Annotated[str, typer.Option(help="The placement others are compared with; `step`, or the first one.")] = "",
    prompt_tokens: Annotated[int, typer.Option(min=1, help="Length of the prompts, in tokens.")] = 48,
    new_tokens: Annotated[int, typer.Option(min=2, help="Tokens to make.")] = 50,
    blocks: Annotated[int, typer.Option(min=1, help="Times each subject is measured.")] = 5,
    processes: Annotated[int, typer.Option(min=1, help="Fresh processes that the blocks are spread over.")] = 1,
    batch: Annotated[int, typer.Option(min=1, help="Equal rows in a request.")] = 1,
    threads: Annotated[int | None, typer.Option(min=1, help="Cores that the measured processes may use; all by default.")] = None,
    seed: Seed = 0,
    cold: Annotated[bool, typer.Option(help="Measure compilation and memory too, in a fresh process each.")] = True,
    limit: Annotated[float, typer.Option(min=1, help="Seconds of silence after which a measured process is stopped.")] = 600.0,
    cached: Annotated[bool, typer.Option(help="Measure first requests with the programs in the persistent cache too.")] = False,
    explain: Annotated[bool, typer.Option("--explain", help="Say why, where something was compiled in a timed region.")] = False,
    journal: Annotated[
        Path | None, typer.Option(help="File that each trial is added to at once; an interrupted run goes on from it.")
    ] = None,
    skip_corrupt: Annotated[bool, typer.Option("--skip-corrupt", help="Leave out lines of the journal that cannot be read.")] = False,
    out: Annotated[
        list[Path] | None,
        typer.Option(help="Write trials (.csv, .parquet, .jsonl) or a summary (.md); may be repeated. Of a suite: its folder."),
    ] = None,
    profile: Annotated[
        Path | None, typer.Option(help="Write a trace and a program summary of each placement here; measures nothing.")
    ] = None,
    suite_name: Annotated[str | None, typer.Option("--suite", help="A fixed programme instead, in its own process: gpu.")] = None,
    any_device: Annotated[bool, typer.Option("--any-device", help="Rehearse the suite on tiny shapes, GPU or not.")] = False,
    self_test: Annotated[bool, typer.Option("--self-test", help="Check the guard and the statistics instead of measuring.")] = False,
    json_: Json = False,
) -> None:
    """Measure placements against each other: interleaved, gated on equal tokens, no compilation in any timed region."""
    if suite_name is not None or any_device:
        from llama_jax import cli_suite

        return cli_suite.run(suite_name, out or (), any_device)
    from llama_jax.bench import export, progress, suite, table

    if self_test:
        return check_harness(json_)
    settings = suite.Settings(model, split(placements), split(peers), baseline or None, prompt_tokens, new_tokens, blocks, batch, seed,
                              processes, int(cold), int(cached), threads, explain, journal, limit, skip_corrupt)  # fmt: skip
    check_outputs(journal, out or (), profile)
    if profile is not None:
        return profile_placements(settings, profile, json_)
    with progress.bar() as tell_progress:
        result, trials, meta = suite.run(settings, tell_progress)
    table.show(result)
    for path in out or ():
        tell(f"wrote {export.write(path, trials, meta, result)}")
    if json_:
        emit(result)


def check_outputs(journal: Path | None, out: Sequence[Path], profile: Path | None) -> None:
    """Raises UserError for files that cannot be written, or not both, before minutes of measuring."""
    from llama_jax.bench import export
    from llama_jax.errors import UserError

    if profile is not None and (journal or out):
        raise UserError("--profile measures nothing; leave --journal and --out away.")
    for path in out:
        export.check(path)
        if journal and path.absolute() == journal.absolute():
            raise UserError(f"--journal and --out are both {path}; give them different names.")


def split(names: str) -> tuple[str, ...]:
    return tuple(filter(None, names.split(",")))


def check_harness(json_: bool) -> None:
    """`bench --self-test`: exit code 1 when something falls short."""
    from llama_jax.bench import selftest

    found = selftest.run(tell)
    for line in found["shortfalls"]:
        tell(f"falls short: {line}")
    if json_:
        emit(found)
    else:
        silent = [name for name, fired in found["guard"].items() if not fired]
        print(f"guard: {len(found['guard']) - len(silent)} of {len(found['guard'])} classes fire; coverage {found['coverage']:.1%},"
              f" A/A false positives {found['aa_false_positive_rate']:.1%}, a 3 % effect found {found['power_3pct']:.1%}")  # fmt: skip
    if found["shortfalls"]:
        raise typer.Exit(1)


def profile_placements(settings, folder: Path, json_: bool) -> None:
    """`bench --profile DIR`."""
    from llama_jax.bench import suite

    found = suite.profile(settings, folder, tell)
    if json_:
        emit({"profiles": found})


@app.command(epilog="Example: `llama-jax compare before.csv after.csv`")
def compare(
    old: Annotated[Path, typer.Argument(help="A table of trials: .csv, .parquet or .jsonl.")],
    new: Annotated[Path, typer.Argument(help="Another one, of the same subjects.")],
    anyway: Annotated[bool, typer.Option("--anyway", help="Compare although machine, model or tokens differ; says how.")] = False,
    skip_corrupt: Annotated[bool, typer.Option("--skip-corrupt", help="Leave out lines of a .jsonl file that cannot be read.")] = False,
    json_: Json = False,
) -> None:
    """Compare two recorded runs; refuses what cannot be compared."""
    from llama_jax.bench.comparison import compare as between
    from llama_jax.bench.comparison import lines

    found = between(old, new, anyway=anyway, skip_corrupt=skip_corrupt)
    for line in lines(found):
        print(line, file=sys.stderr if json_ else sys.stdout)
    if json_:
        emit(found)


def join_pairs(arguments: list[str]) -> list[str]:
    """`-p NAME VALUE`, as papermill writes it, to the `-p NAME=VALUE` that the parser reads."""
    joined, rest = [], list(arguments)
    while rest:
        joined.append(rest.pop(0))
        if joined[-1] in ("-p", "--parameter") and len(rest) >= 2 and "=" not in rest[0]:
            joined.append(f"{rest.pop(0)}={rest.pop(0)}")
    return joined


def read_pairs(pairs: list[str]) -> dict[str, str]:
    from llama_jax.errors import UserError

    for pair in pairs:
        if "=" not in pair:
            raise UserError(f"-p {pair}: write -p NAME VALUE.")
    return dict(pair.split("=", 1) for pair in pairs)


@app.command(epilog="Example: `llama-jax run 03 --measure -p new_tokens 32 --out my-results`")
def run(
    notebooks: Annotated[list[str] | None, typer.Argument(help="Numbers or names, such as 03; all of them by default.")] = None,
    parameter: Annotated[
        list[str] | None, typer.Option("--parameter", "-p", metavar="NAME VALUE", help="Set a notebook parameter.")
    ] = None,
    measure: Annotated[bool, typer.Option("--measure/--recorded", help="Run the models, or redraw from recorded data.")] = False,
    profile: Annotated[str, typer.Option(help="quick or full: how much is measured.")] = "quick",
    out: Annotated[Path | None, typer.Option(help="Folder for data, figures and executed notebooks; the repository by default.")] = None,
    json_: Json = False,
) -> None:
    """Execute notebooks without a browser: measure or redraw, check what they leave, print what they found."""
    from llama_jax import notebooks as runner
    from llama_jax import paths

    given = read_pairs(parameter or [])
    results = runner.run(notebooks or (), given, "measure" if measure else "recorded", profile, out or paths.ROOT, tell)
    for r in results:
        tell(f"{r.name}: {'ok' if r.ok else 'FAILED'} in {r.seconds} s. {r.finding if r.ok else r.error}")
    if json_:
        emit(runner.as_json(results))
    if not all(r.ok for r in results):
        raise typer.Exit(1)


@app.command(epilog="Example: `llama-jax report`")
def report(
    out: Annotated[Path | None, typer.Option(help="Folder that holds figures/ and data/; the repository by default.")] = None,
    json_: Json = False,
) -> None:
    """Write docs/index.html from the figures and findings of the last runs."""
    from llama_jax import paths
    from llama_jax import report as page

    path = page.write(out or paths.ROOT)
    if json_:
        emit({"path": path})
    else:
        print(path)


@app.command(epilog="Example: `llama-jax models`")
def models(json_: Json = False) -> None:
    """List the models known by name."""
    from llama_jax import checkpoint

    known = checkpoint.models()
    if json_:
        emit({"models": [{"name": k, "description": v} for k, v in known.items()]})
        return
    for name, description in known.items():
        print(f"{name:24} {description}")
    print("A path to a .gguf file or a Hugging Face folder, or a hub id (owner/name), works too.")


@app.command(epilog="Example: `llama-jax placements`")
def placements(json_: Json = False) -> None:
    """List the placements and the switches that cross with them."""
    from llama_jax.placement import DESCRIPTIONS, LADDER, MODIFIERS, SWITCHES

    if json_:
        known = [{"name": p.name, "jit": list(p.jit), "description": DESCRIPTIONS[p.name]} for p in LADDER.values()]
        emit({"placements": known, "modifiers": sorted(MODIFIERS), "switches": {k: list(v) for k, v in SWITCHES.items()}})
        return
    for p in LADDER.values():
        print(f"{p.name:12} {DESCRIPTIONS[p.name]:72} jit={', '.join(p.jit) or 'nothing'}")
    print(f"\nAppend to any of them: {', '.join('+' + m for m in MODIFIERS)} (such as step+scan+donate);"
          " chunk16 is a chunk of 16, +async8 keeps 8 calls in flight.")  # fmt: skip


@app.command(epilog="Example: `llama-jax doctor`")
def doctor(
    probe: Annotated[bool, typer.Option(help="Measure the memory bandwidth.")] = True,
    json_: Json = False,
) -> None:
    """Say what is installed, what answers, how fast memory is, and what to do about each gap."""
    from llama_jax import doctor as examination

    found = examination.examine(probe)
    if json_:
        emit(found)
        return
    for title, value in found.items():
        if isinstance(value, dict):
            print(f"{title}:")
            for k, v in value.items():
                print(f"  {k:18} {'missing' if v is None else v}")
        elif isinstance(value, list):
            print(f"{title}:" + ("" if value else " nothing"))
            for v in value:
                print(f"  {v}")
        else:
            print(f"{title}: {value}")
