"""The verb `advise`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from llama_jax.plumbing.errors import UserError
from llama_jax.plumbing.values import LARGEST
from llama_lab.cli.common import TOKENS, Json, Model, Seed, app, bars_shown, emit, split, tell
from llama_lab.cli.measure import check_outputs

BLOCKS, PROCESSES, COLD = 6, 2, 3  # how a measurement on the spot is repeated


@app.command(epilog="Example: `llama-jax advise --prompt-tokens 200 --new-tokens 100 --requests 20 --streaming`")
def advise(
    model: Model = "smollm2-135m-instruct",
    prompt_tokens: Annotated[
        int, typer.Option(min=1, max=TOKENS, help="Tokens of a prompt; of the longest one.")
    ] = 100,
    new_tokens: Annotated[int, typer.Option(min=2, max=TOKENS, help="Tokens of an answer.")] = 128,
    requests: Annotated[
        int, typer.Option(min=1, max=LARGEST, help="Requests that each start of the process serves.")
    ] = 1,
    lengths: Annotated[int, typer.Option(min=1, max=TOKENS, help="How many different prompt lengths come.")] = 1,
    streaming: Annotated[bool, typer.Option("--streaming", help="Tokens are wanted as they come.")] = False,
    warm: Annotated[bool, typer.Option("--warm", help="The process runs already, with everything compiled.")] = False,
    memory_mb: Annotated[
        int | None, typer.Option(min=1, max=LARGEST, help="Megabytes that the process may take.")
    ] = None,
    exact: Annotated[bool, typer.Option("--exact", help="Only float32's own tokens will do.")] = False,
    data: Annotated[
        list[Path] | None,
        typer.Option(help="Tables of trials to judge by (.csv, .parquet, .jsonl); those of notebooks 03 and 08."),
    ] = None,
    measure: Annotated[
        bool, typer.Option("--measure", help="Measure at these sizes now, some ten minutes, and judge by that.")
    ] = False,
    placements: Annotated[
        str, typer.Option(help="What to measure, with commas; the ladder and the kernels by default.")
    ] = "",
    out: Annotated[list[Path] | None, typer.Option(help="Keep what was measured: .csv, .parquet or .jsonl.")] = None,
    seed: Seed = 0,
    json_: Json = False,
) -> None:
    """Say which placement suits a workload, by which trials, who comes second, and what would change the answer."""
    from llama_lab.reporting import advice

    wish = advice.Wish(
        prompt_tokens=prompt_tokens,
        new_tokens=new_tokens,
        requests=requests,
        streaming=streaming,
        lengths=lengths,
        warm=warm,
        memory=memory_mb and memory_mb * 10**6,
        exact=exact,
    )
    if (placements or out) and not measure:
        raise UserError("--placements and --out belong to --measure; add it, or leave them away.")
    if data and measure:
        raise UserError("--data is what was measured, --measure measures; choose one.")
    tables = measured(model, wish, split(placements), out or (), seed) if measure else advice.recorded(data or ())
    found = advice.consult(tables, model, wish, seed)
    for line in advice.told(found, wish):
        tell(line) if json_ else print(line)
    if json_:
        emit(found)


def measured(model: str, wish, names: tuple[str, ...], out: Sequence[Path], seed: int) -> list[tuple[str, list, dict]]:
    """As `recorded`, of a measurement made now."""
    from llama_jax import kernels
    from llama_jax.placement import LADDER
    from llama_lab.bench import progress, run
    from llama_lab.reporting import export

    check_outputs(None, out, None)
    ours = names or (*LADDER, *(() if kernels.missing() else ("loop+gemv", "step+fused", "loop+fused")))
    settings = run.Settings(
        model=model,
        placements=ours,
        peers=(),
        baseline=None,
        prompt_tokens=wish.prompt_tokens,
        new_tokens=wish.new_tokens,
        blocks=BLOCKS,
        batch=1,
        seed=seed,
        processes=PROCESSES,
        cold=COLD,
    )
    with progress.bar(bars_shown()) as tell_progress:
        result, trials, meta = run.run(settings, tell_progress)
    for path in out:
        tell(f"wrote {export.write(path, trials, meta, result)}")
    return [("now", trials, meta)]
