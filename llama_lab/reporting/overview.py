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
from llama_lab.bench.experiment import whole
from llama_lab.bench.record import Row, Trial
from llama_lab.bench.statistics import Ratio, Summary, Verdict
from llama_lab.experiments.time_to_first_token import table as first_tokens
from llama_lab.reporting import notebooks
from llama_lab.reporting.document import Number

JOINTS = {Verdict.FASTER: " than ", Verdict.SLOWER: " than ", Verdict.EQUAL: " of "}  # of a verdict with its baseline


@dataclass(frozen=True)
class Group:
    """Warm rows of one table that were timed side by side. setting: beside model and lengths. first: their time is that
    of the first token, not of those that follow."""

    setting: str
    model: str
    first: bool
    rows: list[Row]


@dataclass(frozen=True)
class Line:
    """One subject in one setting. middle: of tokens/s; where `first`, of ms to the first token. void: warm trials that
    did not count. weights: as they are kept.

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
    first: bool
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
        verdict = self.ratio.verdict
        if self.subject == self.baseline + AGAIN:
            return f"A/A control: {verdict}"
        joint = JOINTS.get(verdict)
        return verdict.removeprefix("equal ") + (joint + self.baseline if joint else "")


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


def groups(path: Path, meta: dict) -> list[Group]:
    """The warm rows of one table by setting, model and kind of time; none for a table of another kind of row, or of
    those left out. Raises UserError where the table cannot be read."""
    kind = kind_of(meta.get("kind", Trial.__name__))
    if kind is None or path.stem.split("-")[0] in left_out():
        return []
    rows, _ = record.read(path, kind=kind)
    made_for_first = path.stem in notebooks.saying("first_tokens")  # though their answers have a second token
    grouped: dict[tuple[str, str, bool], list[Row]] = {}
    for row in rows if issubclass(kind, Trial) else whole(rows):
        if row.phase == "warm":
            first = made_for_first or getattr(row, "new_tokens", 0) == 1
            words = f"first token {row.prompt_tokens}" if first else setting(row)
            grouped.setdefault((words, row.model, first), []).append(row)
    return [Group(*key, members) for key, members in grouped.items()]


def setting(row: Row) -> str:
    """What a run is about, the names of its subject and of its model taken out: `context 256`, `strategies`, ``; and
    how tokens are drawn where they are."""
    words = row.run.replace(row.model, "").removesuffix(f" {row.subject}").strip()
    drawn = getattr(row, "sampling", "greedy")
    return " · ".join(filter(None, ["" if words in ("main", "warm") else words, "" if drawn == "greedy" else drawn]))


def lines(path: Path, meta: dict, seed: int = 0) -> list[Line]:
    """The lines of one table, by setting and subject, the baseline's twin right after it. meta: what `about` gives."""
    made = []
    for group in sorted(groups(path, meta), key=lambda group: natural(group.setting)):
        subjects = {row.subject for row in group.rows if row.valid}
        for name in sorted(subjects, key=lambda name: (name.removesuffix(AGAIN), name)):
            made.append(line_of(path.stem, group, name, baseline_of(group.rows, meta), seed))
    return made


def natural(words: str) -> list:
    """A key that sorts `context 256` before `context 1024`."""
    return [(int(part), "") if part.isdigit() else (0, part) for part in re.split(r"(\d+)", words)]


def baseline_of(rows: Sequence[Row], meta: dict) -> str:
    """The subject that ran twice in each block; else the one that the table names, where it is here; else none."""
    subjects = dict.fromkeys(row.subject for row in rows)
    twins = [name.removesuffix(AGAIN) for name in subjects if name.endswith(AGAIN)]
    known = meta.get("baseline", "")
    return twins[0] if twins else next((name for name in (known, known + SAMPLED) if name in subjects), "")


def line_of(table: str, group: Group, name: str, baseline: str, seed: int) -> Line:
    """The line of one subject of a group."""
    valid, every = (summary.warm(group.rows, name, valid) for valid in (True, False))
    values = [first_tokens.first_ms(row) if group.first else row.tg for row in valid]
    pairing = first_tokens.FIRST if group.first else {}
    size = f"{group.rows[0].weights_bytes / 1e6:.3g} MB of weights" if resized(group.rows[0]) else ""
    return Line(
        table=table,
        words=" · ".join(filter(None, ["first token" if group.first else group.setting, size])),
        model=group.model,
        lengths=lengths(valid),
        subject=name,
        weights=standings.weights(valid[0]) if isinstance(valid[0], Trial) else valid[0].dtype,
        first=group.first,
        middle=statistics.summarise(values, seed, [row.process for row in valid]),
        share=None if group.first else share(valid),
        void=len(every) - len(valid),
        baseline=baseline,
        ratio=None if baseline in ("", name) else summary.paired_ratio(group.rows, name, baseline, seed, **pairing),
    )


def resized(row: Row) -> bool:
    """Whether a row's model is one of other sizes than its preset's."""
    return "," in row.model and bool(getattr(row, "weights_bytes", None))


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


def ratio_cell(ratio: Ratio | None) -> Number | None:
    """A ratio in a table; None where there is none."""
    return Number.within(ratio.value, ratio) if ratio is not None and ratio.n else None


def share_cell(share: float | None) -> Number | None:
    """A share of the limit in a table; None where it is not known."""
    return Number(f"{share:.6g}", f"{share:.0%}") if share else None
