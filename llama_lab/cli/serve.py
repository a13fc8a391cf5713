"""The verb `serve`."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from llama_lab.cli.common import Dtype, Model, PlacementName, app, tell


@app.command(epilog="Example: `llama-jax serve --placement step+fused --slots 4`")
def serve(
    model: Model = "smollm2-135m-instruct",
    placement: PlacementName = "step+donate",
    slots: Annotated[int, typer.Option(help="Requests that are answered at a time.")] = 4,
    context: Annotated[
        int | None, typer.Option(help="Tokens of a prompt and its answer; 2048, or what the model has.")
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen at; any but loopback needs a key.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 lets the system choose.")] = 11434,
    api_key: Annotated[
        str | None,
        typer.Option(help="Clients must send it; better set LLAMA_JAX_API_KEY, which no process list shows."),
    ] = None,
    dtype: Dtype = "float32",
) -> None:
    """Answer Ollama's and OpenAI's clients."""
    from llama_jax import checkpoint
    from llama_jax.placement import parse
    from llama_lab.serve import process, stepper
    from llama_lab.serve.service import Service

    key = api_key if api_key is not None else os.environ.get("LLAMA_JAX_API_KEY") or None
    stepper.check(parse(placement))
    process.check_key(host, key)
    bound = process.bind(host, port)
    loaded = checkpoint.load(model, dtype)
    service = Service(loaded, placement, slots, context)
    tell(f"compiling {model} under {placement}")
    programs, seconds = service.start()
    address, number = bound.getsockname()[:2]
    at = f"http://{f'[{address}]' if ':' in address else address}:{number}"
    held = f"{slots} slots of {service.context} tokens"
    process.run(
        service,
        bound,
        key,
        lambda: print(f"{service.about.name} answers at {at}: {held}; {programs} programs compiled in {seconds:.1f} s",
                      flush=True),
    )  # fmt: skip
