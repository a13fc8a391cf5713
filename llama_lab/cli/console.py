"""The table of a run, printed on standard error so that standard output stays machine-readable."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from llama_lab.bench import summary, wording
from llama_lab.reporting import export

HIDDEN = ("IQR", "peak RSS GB", "valid/void")  # columns that a terminal is too narrow for


def show(result: dict) -> None:
    """Print a result (see `run.document`) with its limit, its machine and remarks."""
    about, env, shared = result["protocol"], result["environment"], export.table(result)
    drawn = "" if about["sampling"] == "greedy" else f", {about['sampling']}"
    sizes = f"{about['prompt_tokens']} + {about['new_tokens']} tokens, batch {about['batch']}"
    table = Table(title=f"{about['model']}, {sizes}{drawn}")
    shown = [at for at, head in enumerate(shared.heads) if head not in HIDDEN]
    for at in shown:
        table.add_column(shared.heads[at], justify="right" if at in shared.numeric else "left")
    for row in shared.rows:
        table.add_row(*(row[at] for at in shown))
    console = Console(stderr=True, width=None if Console(stderr=True).is_terminal else 160)
    limit = f"Limit {about['limit_tokens_per_second']:.0f} tok/s at {env['bandwidth_gbps']:.1f} GB/s"
    for line in (table, f"{limit} · {wording.machine_line(env)}", *remarks(result)):
        console.print(line)


def remarks(result: dict) -> list[str]:
    """Remarks on the table, one line each: the flags of a reporting block, and what to do next."""
    about, lines = result["protocol"], [*export.flags(result), summary.disturbed(result["subjects"])]
    if about.get("processes") == 1:
        lines.append("One process: no interval contains the luck of a process; --processes 10 includes it.")
    if about.get("torn_line"):
        lines.append("The journal's last line was incomplete; that trial was measured again.")
    for s in result["subjects"]:
        ratio, cached, compiled = s["ratio_to_baseline"], s["cached"], s["compile"]
        lines += [f"{s['name']}: {cause}" for cause in s["causes"]]
        if ratio["more_blocks"]:
            more = f"about {ratio['more_blocks']} more blocks, in proportionally more processes, would decide it"
            lines.append(f"{s['name']}: {more}")
        if cached and compiled:
            lines.append(
                f"{s['name']}: with its programs in the persistent cache, first token after"
                f" {cached['ttft_ms'] / 1e3:.2f} s instead of {compiled['ttft_ms'] / 1e3:.2f} s"
            )
    return [line for line in lines if line]
