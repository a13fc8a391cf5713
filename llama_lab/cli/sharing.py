"""The verbs `gguf`, `contribute` and `merge`: files for other people and programs."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict
from pathlib import Path

from llama_lab.cli import options
from llama_lab.cli.common import outcome, show, tell
from llama_lab.cli.options import argument, flag, option, verb


@verb("`llama-jax gguf --model random:smollm2-360m --type q4_0 --out smollm2-360m.gguf`")
class Gguf:
    """Write random weights at a model's real shapes as a GGUF file, for measuring the speed of this program and
    others."""

    model: str = option(..., "random:PRESET or random:PRESET:SEED; see `llama-jax models`.", "--model", "-m")
    kind: str = option(..., "Blocks of the matrices: q4_0, q4_1 or q8_0.", "--type")
    out: Path = option(..., "The file to write.")
    json: bool = options.as_json()

    def run(self) -> dict:
        from llama_jax.checkpoint import writer

        made = writer.write(self.model, self.kind, self.out)
        tell(f"{made.out}: {made.bytes:,} bytes, {made.type}, SHA-256 {made.sha256}")
        return asdict(made)


@verb("`llama-jax contribute`, then the same with `--yes`")
class Contribute:
    """Turn this machine's headline into one file for a pull request, without names, places and addresses. The file is
    checked and shown before it is written; the exit code is 1 if it would not pass."""

    results: Path | None = option(None, "Folder with the measurements; results/<machine> by default.")
    yes: bool = flag("Write the file instead of only showing it.")
    json: bool = options.as_json()

    def run(self) -> tuple[dict, bool]:
        from llama_jax.plumbing import files
        from llama_lab import machine
        from llama_lab.sharing import contribution, verification

        made = contribution.build(self.results or machine.results())
        checked = verification.staged(made)
        counts = Counter(json.loads(line)["subject"] for line in made.rows)
        rows = [f"{n} rows of {name}" for name, n in counts.items()]
        about = json.dumps(made.about, indent=1, sort_keys=True, ensure_ascii=False)
        show((about, "", *rows, f"a row: {made.rows[0]}"), self.json)
        document, sound = outcome(checked.problems, machine=checked.machine, rows=len(checked.trials))
        if written := self.yes and sound:
            files.write(made.path, made.text)
        tell(f"wrote {made.path}" if written else "nothing was written" + "; --yes writes it" * sound)
        return {**document, "path": made.path, "written": written}, sound


@verb("`llama-jax merge here.jsonl there.jsonl --out both.csv`")
class Merge:
    """Combine runs of several machines into one table; refuses different models, tokens or versions, and incomplete
    runs."""

    journals: list[Path] = argument(..., "Two or more files that `bench --journal` wrote.")
    out: Path = option(..., "Table to write: .csv, .parquet or .jsonl.")
    json: bool = options.as_json()

    def run(self) -> dict:
        from llama_jax.plumbing import files
        from llama_lab.reporting import export
        from llama_lab.sharing import merging

        export.check(self.out)
        files.check(self.out)
        runs = merging.merge(self.journals, self.out)
        rows, machines = sum(len(run.trials) for run in runs), sorted({run.machine for run in runs})
        if not self.json:
            print(f"{self.out}: {rows} rows of {len(runs)} runs on {', '.join(machines)}")
        return {"out": self.out, "runs": len(runs), "machines": machines, "rows": rows}
