"""Every subject that recorded tables time, one line each: its rate or first token, its ratio to the run's baseline, the
verdict."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from llama_lab.bench import AGAIN, SAMPLED, record, standings, statistics, summary
from llama_lab.bench.cold import Start
from llama_lab.bench.job import whole
from llama_lab.bench.numbers import within
from llama_lab.bench.record import Row, Trial
from llama_lab.bench.statistics import Ratio, Summary
from llama_lab.experiments.time_to_first_token import table as ttft_table
from llama_lab.reporting import notebooks

RATE, FIRST = "tokens/s", "ms to the first token"


@dataclass(frozen=True)
class Line:
    """One subject in one setting. middle: Summary of `unit`. void: warm trials that did not count. weights: as they are
    kept.

    share: of the limit that the bandwidth allows; None where that is not known.
    baseline: what ran twice beside it; "" where nothing did. ratio: speed over the baseline's, above 1 is faster; None
    of the baseline itself, or where there is none. words: what the setting is, beside model and lengths.
    """

    table: str
    words: str
    model: str
    lengths: str
    subject: str
    weights: str
    unit: str
    middle: Summary
    share: float | None
    void: int
    baseline: str
    ratio: Ratio | None

    @property
    def verdict(self) -> str:
        """`faster than step`, `baseline`, `inconclusive`, …; "" where there is no baseline."""
        if self.ratio is None:
            return "baseline" if self.subject == self.baseline else ""
        joint = {"faster": " than ", "slower": " than ", "equal within 2 %": " of "}.get(self.ratio.verdict)
        said = self.ratio.verdict.replace("equal within 2 %", "within 2 %") + (joint + self.baseline if joint else "")
        return f"A/A control: {self.ratio.verdict}" if self.subject == self.baseline + AGAIN else said


def kind_of(name: str) -> type[Row] | None:
    """The kind of row of this name whose tables have lines: the instrument's, or one of a notebook's own `rows`."""
    own = dict(reversed(row.split(":")) for rows in notebooks.saying("rows").values() for row in rows)
    known = {kind.__name__: kind for kind in (Trial, Start)}
    return known.get(name) or (getattr(import_module(own[name]), name) if name in own else None)


def left_out() -> list[str]:
    """Numbers of the notebooks that time ways of measuring, or streams of requests, not subjects side by side."""
    return [name.split("-")[0] for name in notebooks.saying("no_subjects")]


def tables(home: Path, notebook: str) -> list[Path]:
    """A notebook's tables in a folder, those without a meta file left out."""
    return [path for path in sorted(Path(home).glob(f"{notebook}*.csv")) if record.meta_path(path).is_file()]


def about(path: Path) -> dict:
    """What a table's meta file says. Raises UserError where it is damaged."""
    return record.read_meta(path)


def lines(path: Path, meta: dict, seed: int = 0) -> list[Line]:
    """The lines of one table, by setting and subject; none for a table of another kind of row, or of those left out.

    meta: what `about` gives. Raises UserError where the table cannot be read.
    """
    found = groups(path, meta)
    return [
        line
        for key in sorted(found, key=lambda key: natural(key[0]))
        for line in group_lines(path.stem, key, found[key], meta, seed)
    ]


def groups(path: Path, meta: dict) -> dict[tuple[str, str, bool], list[Row]]:
    """The warm rows of one table that were timed side by side, by (setting, model, whether they are first tokens)."""
    kind = kind_of(meta.get("kind", Trial.__name__))
    if kind is None or path.stem.split("-")[0] in left_out():
        return {}
    rows, _ = record.read(path, kind=kind)
    found: dict[tuple[str, str, bool], list[Row]] = {}
    made_for_first = path.stem in notebooks.saying("first_tokens")  # though their answers have a second token
    for row in rows if issubclass(kind, Trial) else whole(rows):
        if row.phase == "warm":
            first = made_for_first or getattr(row, "new_tokens", 0) == 1
            words = f"first token {row.prompt_tokens}" if first else setting(row)
            found.setdefault((words, row.model, first), []).append(row)
    return found


def natural(words: str) -> list:
    """A key that sorts `context 256` before `context 1024`."""
    return [(int(part), "") if part.isdigit() else (0, part) for part in re.split(r"(\d+)", words)]


def setting(row: Row) -> str:
    """What a run is about, the names of its subject and of its model taken out: `context 256`, `strategies`, ``; and
    how tokens are drawn where they are."""
    words = row.run.replace(row.model, "").removesuffix(f" {row.subject}").strip()
    drawn = getattr(row, "sampling", "greedy")
    return " · ".join(filter(None, ["" if words in ("main", "warm") else words, "" if drawn == "greedy" else drawn]))


def named(group: Sequence[Row]) -> list[str]:
    """Subjects that have a valid row, by name, the baseline's twin right after it."""
    return sorted({row.subject for row in group if row.valid}, key=lambda name: (name.removesuffix(AGAIN), name))


def baseline_of(group: Sequence[Row], meta: dict) -> str:
    """The subject that ran twice in each block; else the one that the table names, where it is here; else none."""
    twins = [row.subject.removesuffix(AGAIN) for row in group if row.subject.endswith(AGAIN)]
    known = meta.get("baseline", "")
    subjects = {row.subject for row in group}
    return twins[0] if twins else next((name for name in (known, known + SAMPLED) if name in subjects), "")


def group_lines(table: str, key: tuple, group: Sequence[Row], meta: dict, seed: int) -> list[Line]:
    """The lines of subjects that were timed side by side."""
    setting_words, model, first = key
    words = " · ".join(filter(None, ["first token" if first else setting_words, size(group[0])]))
    base, found = baseline_of(group, meta), []
    once, both = (ttft_table.rates, ttft_table.both_rates) if first else (summary.rates, summary.both_rates)
    extra = (group[0].prompt_tokens,) if first else ()
    control = summary.over(once(group, base + AGAIN, *extra), once(group, base, *extra), seed)
    for name in named(group):
        good, every = summary.warm(group, name), summary.warm(group, name, valid=False)
        middle = statistics.summarise(
            [1e3 * row.ttft if first else row.tg for row in good], seed, [row.process for row in good]
        )
        ratio = control if name == base + AGAIN else None
        if base and name not in (base, base + AGAIN):
            ratio = statistics.with_floor(
                summary.over(both(group, name, *extra), both(group, base, *extra), seed), control
            )
        found.append(
            Line(
                table=table,
                words=words,
                model=model,
                lengths=lengths(good),
                subject=name,
                weights=weights(good[0]),
                unit=FIRST if first else RATE,
                middle=middle,
                share=None if first else share(good),
                void=len(every) - len(good),
                baseline=base,
                ratio=ratio,
            )
        )
    return found


def size(row: Row) -> str:
    """What tells a model of other sizes from its like."""
    return (
        f"{row.weights_bytes / 1e6:.3g} MB of weights"
        if "," in row.model and getattr(row, "weights_bytes", None)
        else ""
    )


def weights(row: Row) -> str:
    return standings.weights(row) if isinstance(row, Trial) else row.dtype


def lengths(rows: Sequence[Row]) -> str:
    """`36 + 50`: tokens of prompt and answer (`35–39 + 17` where prompts differ); of an extraction, tokens of the whole
    source."""
    if not isinstance(rows[0], Trial):
        return f"{rows[0].tokens:,}"
    prompts = sorted({row.prompt_tokens for row in rows})
    return f"{prompts[0]}{f'–{prompts[-1]}' if len(prompts) > 1 else ''} + {rows[0].new_tokens}"


def share(rows: Sequence[Row]) -> float | None:
    """Median share of what the bandwidth allows, of the rows that know theirs."""
    return summary.median([row.mbu for row in rows if isinstance(row, Trial) and row.mbu == row.mbu])


def value(middle: float, found) -> dict:
    """{value, words, interval} of a summary's or a ratio's number; no interval where a single trial has none."""
    return dict(value=f"{middle:.6g}", words=short(middle), interval=within(found, short).strip())


def short(number: float) -> str:
    """A positive number in three digits or so, without powers: 0.052, 5.24, 35.3, 772, 22,322."""
    if number >= 100:
        return f"{number:,.0f}"
    return f"{number:.1f}" if number >= 10 else f"{number:.2f}" if number >= 0.1 else f"{number:.3f}"
