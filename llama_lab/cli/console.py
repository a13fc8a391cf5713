"""The table of a run for people, on standard error so that standard output stays the program's."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from llama_lab.bench import AGAIN, environment, summary


def show(result: dict) -> None:
    """A result (see `run.document`) with its limit, its machine and what else a reader should know."""
    about, env = result["protocol"], result["environment"]
    title = f"{about['model']}, {about['prompt_tokens']} + {about['new_tokens']} tokens, batch {about['batch']}"
    title += "" if about["sampling"] == "greedy" else f", {about['sampling']}"
    table = Table(title=title + (" · random weights" if about["random_weights"] else ""))
    for column in (
        "placement",
        "tokens/s",
        "IQR",
        "n",
        f"x {result['baseline']} [95 %]",
        "verdict",
        "MBU",
        "TTFT ms",
        "ITL p50 ms",
        "compiles",
        "s",
        "tokens",
    ):
        table.add_column(column, justify="left" if column in ("placement", "verdict") else "right")
    for s in result["subjects"]:
        rate, ratio, compiled = s["tokens_per_second"], s["ratio_to_baseline"], s["compile"]
        table.add_row(
            s["name"],
            number(rate["median"], 1),
            number(rate["iqr"], 1),
            str(rate["n"]),
            interval(ratio),
            "A/A control: " + ratio["verdict"]
            if s["name"].endswith(AGAIN)
            else ratio["verdict"] + (", unstable" if s["unstable"] else ""),
            number(s["mbu"] and 100 * s["mbu"], 0, " %"),
            number(s["ttft_ms"], 0),
            number(s["itl_ms"]["p50"], 1),
            str(compiled["n"]) if compiled else "",
            number(compiled and compiled["seconds"], 2),
            summary.tokens_word(s),
        )
    console = Console(stderr=True, width=None if Console(stderr=True).is_terminal else 160)
    console.print(table)
    console.print(
        f"Limit {about['limit_tokens_per_second']:.0f} tok/s at {env['bandwidth_gbps']:.1f} GB/s ·"
        f" {environment.machine_line(env)}"
    )
    for line in remarks(result):
        console.print(line)


def remarks(result: dict) -> list[str]:
    """What a reader of the table should know besides, one line each."""
    lines = [environment.busy(result["environment"]), summary.disturbed(result["subjects"])]
    if result["protocol"].get("processes") == 1:
        lines.append("One process: what it draws by luck is in no interval; --processes 10 puts it there.")
    if resumed := result["protocol"].get("resumed_trials"):
        torn = " Its last line was torn, and that trial is measured again." * result["protocol"].get("torn_line", False)
        lines.append(f"{resumed} trials come from an interrupted run.{torn}")
    for s in result["subjects"]:
        ratio, cached = s["ratio_to_baseline"], s["cached"]
        lines += [
            f"{s['name']}: {s['voided_trials']} void: {'; '.join(s['reasons'])}"
            if s["reasons"] and s["voided_trials"]
            else f"{s['name']}: {'; '.join(s['reasons'])}"
            if s["reasons"]
            else "",
            *(f"{s['name']}: {cause}" for cause in s["causes"]),
            f"{s['name']}: about {ratio['more_blocks']} more blocks, in proportionally more processes, would decide it"
            if ratio["more_blocks"] and ratio["verdict"] == "inconclusive"
            else "",
            f"{s['name']}: with its programs in the persistent cache, first token after"
            f" {cached['ttft_ms'] / 1e3:.2f} s instead of"
            f" {s['compile']['ttft_ms'] / 1e3:.2f} s"
            if cached and s["compile"]
            else "",
            f"{s['name']}: its rate drifted by {s['drift']['change']:+.0%} over the run"
            if s["drift"]["significant"]
            else "",
            f"{s['name']}: leaves {s['leaked_buffers']} arrays behind" if s["leaked_buffers"] else "",
        ]
    lines += [f"{gap['name']} is missing: {gap['reason']} {gap['remedy']}".strip() for gap in result.get("missing", ())]
    return [line for line in lines if line]


def interval(ratio: dict) -> str:
    """`1.02 [0.99, 1.05]`; without the brackets where so few pairs have no interval."""
    value, low, high = (number(ratio[key], 2) for key in ("value", "low", "high"))
    return f"{value} [{low}, {high}]" if low and high else value


def number(value: float | None, digits: int, unit: str = "") -> str:
    return "" if value is None or value != value else f"{value:.{digits}f}{unit}"
