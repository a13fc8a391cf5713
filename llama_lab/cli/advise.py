"""The verb `advise`."""

from __future__ import annotations

from pathlib import Path

from llama_jax.plumbing.errors import UserError
from llama_jax.plumbing.values import LARGEST
from llama_lab.cli import options
from llama_lab.cli.common import answer, bars_shown, split, tell
from llama_lab.cli.measure import check_outputs
from llama_lab.cli.options import TOKENS, flag, option, verb

REPEATED = dict(blocks=6, processes=2, cold=3)  # of a measurement on the spot


@verb("`llama-jax advise --prompt-tokens 200 --new-tokens 100 --requests 20 --streaming`")
class Advise:
    """Say which placement suits a workload, by which trials, who comes second, and what would change the answer."""

    model: str = options.model()
    prompt_tokens: int = option(100, "Tokens of a prompt; of the longest one.", min=1, max=TOKENS)
    new_tokens: int = option(128, "Tokens of an answer.", min=2, max=TOKENS)
    requests: int = option(1, "Requests that each start of the process serves.", min=1, max=LARGEST)
    lengths: int = option(1, "How many different prompt lengths come.", min=1, max=TOKENS)
    streaming: bool = flag("Tokens are wanted as they come.")
    warm: bool = flag("The process runs already, with everything compiled.")
    memory_mb: int | None = option(None, "Megabytes that the process may take.", min=1, max=LARGEST)
    exact: bool = flag("Only float32's own tokens will do.")
    data: list[Path] | None = option(
        None, "Tables of trials to judge by (.csv, .parquet, .jsonl); those of notebooks 03 and 08."
    )
    measure: bool = flag("Measure at these sizes now, some ten minutes, and judge by that.")
    placements: str = option("", "What to measure, with commas; the ladder and the kernels by default.")
    out: list[Path] | None = option(None, "Keep what was measured: .csv, .parquet or .jsonl.")
    seed: int = options.seed()
    json: bool = options.as_json()

    def run(self) -> None:
        from llama_lab.reporting import advice

        names = ("prompt_tokens", "new_tokens", "requests", "streaming", "lengths", "warm", "exact")
        wish = advice.Wish(
            **{name: getattr(self, name) for name in names}, memory=self.memory_mb and self.memory_mb * 10**6
        )
        if (self.placements or self.out) and not self.measure:
            raise UserError("--placements and --out belong to --measure; add it, or leave them away.")
        if self.data and self.measure:
            raise UserError("--data is what was measured, --measure measures; choose one.")
        tables = self.measured() if self.measure else advice.recorded(self.data or ())
        advised = advice.consult(tables, self.model, wish, self.seed)
        answer(advice.lines(advised, wish), advised, self.json)

    def measured(self) -> list[tuple[str, list, dict]]:
        """As `advice.recorded`, of a measurement made now."""
        from llama_jax import kernels
        from llama_jax.placement import LADDER
        from llama_lab.bench import progress, run
        from llama_lab.reporting import export

        check_outputs(None, self.out or (), None)
        ours = (*LADDER, *(() if kernels.missing() else ("loop+gemv", "step+fused", "loop+fused")))
        settings = run.Settings(
            model=self.model,
            placements=split(self.placements) or ours,
            prompt_tokens=self.prompt_tokens,
            new_tokens=self.new_tokens,
            seed=self.seed,
            **REPEATED,
        )
        with progress.bar(bars_shown()) as progressed:
            result, trials, meta = run.run(settings, progressed)
        for path in self.out or ():
            tell(f"wrote {export.write(path, trials, meta, result)}")
        return [("now", trials, meta)]
