"""The verbs `generate` and `chat`."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from llama_jax.plumbing.errors import UserError
from llama_jax.plumbing.values import shown
from llama_lab.cli.common import (
    Dtype,
    IgnoreEos,
    Json,
    MaxNewTokens,
    MinP,
    Model,
    Penalty,
    PlacementName,
    Seed,
    Temperature,
    TopK,
    TopP,
    app,
    emit,
)

LONGEST = 16 << 20  # bytes of a prompt from standard input


@app.command(epilog="Example: `llama-jax generate 'Why is the sky blue?' --placement loop --max-new-tokens 64`")
def generate(
    prompt: Annotated[str | None, typer.Argument(help="A question; `-` reads standard input.")] = None,
    token_ids: Annotated[str | None, typer.Option(help="The prompt as token ids, such as 1,2,3.")] = None,
    allow_special_tokens: Annotated[
        bool, typer.Option("--allow-special-tokens", help="What spells a special token in the prompt is that token.")
    ] = False,
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

    from llama_jax import checkpoint, render
    from llama_jax.decoding.request import check_seeds
    from llama_jax.generate import build, stream
    from llama_jax.placement import parse
    from llama_jax.sampling import Sampler

    sampler, placed = Sampler(temperature, top_k, top_p, min_p, repetition_penalty), parse(placement)
    check_seeds(seed, 1)
    given = read_prompt(prompt, token_ids)
    loaded = checkpoint.load(model, dtype)
    start = time.perf_counter()
    ids = encode_prompt(loaded, given, not no_chat, allow_special_tokens)
    stop = () if ignore_eos or loaded.tokenizer is None else loaded.tokenizer.stop
    engine = build(loaded, placed)
    blocks = stream(engine, [ids], max_new_tokens, sampler=sampler, seeds=seed, stop=stop)
    if not json_ and loaded.tokenizer is not None:
        render.show(blocks, loaded.tokenizer, start=start)
        return
    found = collected(blocks, loaded.tokenizer, start, stop)
    if json_:
        emit({"model": model, "placement": placement, "prompt_token_ids": ids, **found})
    else:
        print(*found["token_ids"])


def collected(blocks, tokenizer, start: float, stop: tuple[int, ...]) -> dict:
    """The answer of a stream as data; `start` is when it was asked for, by `time.perf_counter`."""
    import time

    import numpy as np

    from llama_jax.generate import cut

    arrivals, parts = [], []
    for block in blocks:
        arrivals += [time.perf_counter() - start] * len(block)
        parts.append(block)
    answer, spent = cut(np.concatenate(parts)[:, 0], stop), arrivals[-1] - arrivals[0]
    return {
        "token_ids": list(answer.token_ids), "text": tokenizer.decode(answer.token_ids) if tokenizer else None,
        "finish_reason": answer.finish_reason, "ttft_ms": arrivals[0] * 1e3,
        "tokens_per_second": (len(arrivals) - 1) / spent if spent > 0 else None,
        "note": "times include compilation: this is the process's first request",
    }  # fmt: skip


def read_prompt(prompt: str | None, token_ids: str | None) -> str | list[int]:
    """The prompt as text or as ids. Raises UserError for none, both, or ids that are not numbers."""
    if (prompt is None) == (token_ids is None):
        raise UserError("Give either a prompt or --token-ids.")
    if token_ids is None:
        text = read_input() if prompt == "-" else prompt
        if not text.strip():
            raise UserError("The prompt is empty; give some text.")
        return text
    try:
        return [int(i) for i in token_ids.split(",")]
    except ValueError:
        raise UserError(
            f"--token-ids is {shown(token_ids)}; write whole numbers with commas between them, such as 1,2,3."
        ) from None


def read_input() -> str:
    """Standard input as a text. Raises UserError for what is none, and for more than a prompt can be."""
    if sys.stdin is None:
        raise UserError("Standard input is closed; give the prompt as an argument.")
    content = sys.stdin.buffer.read(LONGEST + 1)
    if len(content) > LONGEST:
        raise UserError(f"Standard input has more than {LONGEST:,} bytes; a prompt is shorter.")
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise UserError(f"Standard input is not UTF-8: {error}.") from None


def encode_prompt(loaded, given: str | list[int], chat_template: bool, allow_special_tokens: bool) -> list[int]:
    """Token ids of a prompt. allow_special_tokens: as for `Tokenizer.encode`."""
    from llama_jax import chat

    if isinstance(given, list):
        return given
    if loaded.tokenizer is None:
        raise UserError(f"{loaded.name} has no tokenizer; give --token-ids.")
    if chat_template:
        return chat.encode(loaded.tokenizer, chat.ask(given), allow_special_tokens)
    return loaded.tokenizer.encode(given, allow_special_tokens=allow_special_tokens)


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
        return console.input("[bold]> [/bold]").strip() if sys.stdin else ""
    except EOFError:
        return ""
    except UnicodeDecodeError as error:
        raise UserError(f"What was typed is no text: {error}.") from None
