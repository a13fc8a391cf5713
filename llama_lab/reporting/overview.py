"""Every timed subject of the recorded tables, one line each: its rate or first token, its ratio to the run's baseline,
the verdict."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib import import_module
from pathlib import Path

import pandas as pd

from llama_jax.checkpoint.fetched import WEIGHTS
from llama_lab.bench import AGAIN, SAMPLED, record, standings, statistics, summary
from llama_lab.bench.cold import Start
from llama_lab.bench.experiment import whole
from llama_lab.bench.record import Row, Trial
from llama_lab.bench.statistics import Ratio, Verdict
from llama_lab.experiments.time_to_first_token import table as first_tokens
from llama_lab.reporting import notebooks
from llama_lab.reporting.document import Number, short

JOINTS = {Verdict.FASTER: " than ", Verdict.SLOWER: " than ", Verdict.EQUAL: " of "}  # of a verdict with its baseline
FIRST = "first token"
OWN = "gguf"  # how `standings.weights` says that a file's own blocks are multiplied
COLUMNS = ("table", "words", "model", "lengths", "subject", "weights", "first", "middle", "share", "void", "ratio",
           "verdict")  # fmt: skip


@dataclass(frozen=True)
class Recorded:
    """A table, and the section of the report that rests on it. Raises UserError if its meta file is damaged, or it
    cannot be read."""

    path: Path
    section: dict = field(default_factory=dict)

    @cached_property
    def meta(self) -> dict:
        return record.read_meta(self.path)

    @cached_property
    def settings(self) -> list[Setting]:
        """Its warm rows by setting, model and kind of time; none for a table of another kind of row, or of those left
        out."""
        kind = kind_of(self.meta.get("kind", Trial.__name__))
        if kind is None or self.path.stem.split("-")[0] in left_out():
            return []
        rows, _ = record.read(self.path, kind=kind)
        made_for_first = self.path.stem in notebooks.saying("first_tokens")  # though their answers have a second token
        several = "size_contexts" in self.meta.get("parameters", {})  # of one run; a row says which by its lengths

        def place(row: Row) -> tuple[str, str, bool]:
            first = made_for_first or getattr(row, "new_tokens", 0) == 1
            words = f"context {row.prompt_tokens + row.new_tokens}" if several else setting(row)
            again = row.run * (made_for_first and row.run not in ("main", "warm"))  # such as `tail`
            known = [f"{FIRST} {row.prompt_tokens}", again] if first else [words]
            return " · ".join(filter(None, known)), row.model, first

        warm = [row for row in (rows if issubclass(kind, Trial) else whole(rows)) if row.phase == "warm"]
        return [Setting(self, *key, members) for key, members in summary.grouped(warm, place).items()]

    @cached_property
    def lines(self) -> pd.DataFrame:
        """One line per subject and setting, the baseline's twin right after it, see `Setting.line`."""

        def natural(group: Setting) -> list:  # `context 256` before `context 1024`
            parts = re.split(r"(\d+)", group.setting)
            return [(int(part), "") if part.isdigit() else (0, part) for part in parts]

        lines = [group.line(name) for group in sorted(self.settings, key=natural) for name in group.subjects]
        return pd.DataFrame(lines, columns=COLUMNS, dtype=object)


@dataclass(frozen=True)
class Setting:
    """Warm rows of one table that were timed side by side. setting: beside model and lengths. first: their time is that
    of the first token, not of those that follow."""

    table: Recorded
    setting: str
    model: str
    first: bool
    rows: list[Row]

    @property
    def subjects(self) -> list[str]:
        """Those with a valid row."""
        names = {row.subject for row in self.rows if row.valid}
        return sorted(names, key=lambda name: (name.removesuffix(AGAIN), name))

    @property
    def baseline(self) -> str:
        """The subject that ran twice in each block; else the one that the table names, where it is here; else the
        fastest other runtime, where it ran in the same blocks as our fastest; else none."""
        names = summary.subjects(self.rows)
        twins = [name.removesuffix(AGAIN) for name in names if name.endswith(AGAIN)]
        named = self.table.meta.get("baseline", "")
        known = next((name for name in (*twins, named, named + SAMPLED) if name in (*twins, *names)), "")
        mine, rival = self.fastest(), self.fastest(ours=False)
        if known or not (mine and rival):
            return known
        together = set(summary.rates(self.rows, mine.subject)) & set(summary.rates(self.rows, rival.subject))
        return rival.subject if together else ""

    def fastest(self, ours: bool = True) -> Trial | None:
        """A trial of the fastest subject by the median, out of our placements or of other runtimes; None without
        one."""
        rows = [t for t in self.rows if isinstance(t, Trial) and t.valid and (t.backend == standings.JAX) == ours]
        value = (lambda t: -first_tokens.first_ms(t)) if self.first else (lambda t: t.tg)
        by_name = summary.grouped(rows, "subject").values()
        return max(by_name, key=lambda trials: summary.median([*map(value, trials)]), default=[None])[0]

    def best_of(self, backend: str) -> Trial:
        """A trial of another runtime's fastest subject, of which there is one at least."""
        return replace(self, rows=[t for t in self.rows if t.backend == backend]).fastest(ours=False)

    def line(self, subject: str, seed: int = 0) -> dict:
        """One subject's line.

        middle: the Summary of tokens/s; where `first`, of ms to the first token. share: of the limit that the bandwidth
        allows; None if that is not known. void: warm trials that did not count. ratio: speed over the baseline's,
        above 1 is faster; None of the baseline itself, or if there is none. words: what the setting is, beside model
        and lengths.
        """
        valid, every = (summary.warm(self.rows, subject, valid) for valid in (True, False))
        row, bytes_, baseline = valid[0], getattr(self.rows[0], "weights_bytes", None), self.baseline
        size = f"{short(bytes_ / 1e6)} MB of weights" if bytes_ and "," in self.model else ""  # other than its preset's
        values = [first_tokens.first_ms(row) if self.first else row.tg for row in valid]
        pairing, ratio = first_tokens.FIRST if self.first else {}, None
        if baseline not in ("", subject):
            ratio = summary.paired_ratio(self.rows, subject, baseline, seed, **pairing)
        return dict(
            table=self.table.path.stem,
            words=" · ".join(filter(None, [re.sub(rf"^{FIRST} \d+", FIRST, self.setting), size])),
            model=self.model,
            lengths=lengths(valid),
            subject=subject,
            weights=kept(row, self.rows) if isinstance(row, Trial) else row.dtype,
            first=self.first,
            middle=statistics.summarise(values, seed, [row.process for row in valid]),
            share=None if self.first else share(valid),
            void=len(every) - len(valid),
            ratio=ratio,
            verdict=verdict(subject, baseline, ratio),
        )


def verdict(subject: str, baseline: str, ratio: Ratio | None) -> str:
    """`faster than step`, `baseline`, `undecided`, …; "" if there is no baseline."""
    if ratio is None:
        return "baseline" if subject == baseline else ""
    if subject == baseline + AGAIN:
        return f"A/A control: {ratio.judged}"
    joint = JOINTS.get(ratio.verdict)
    return ratio.verdict.removeprefix("equal ") + (joint + baseline if joint else "") + ratio.aside


def file_type(digest: str, rows: Sequence[Row]) -> tuple[str, str]:
    """(the type of most blocks of a file, as the runtimes say that read it as it is, such as `q5_0`; the type of the
    file, as its publisher says it, such as `Q4_K_M`, else the same). OWN where nothing is known."""
    named = {weights.sha256: weights.about.rpartition(", ")[2] for weights in WEIGHTS.values()}
    readers = (t for t in rows if isinstance(t, Trial) and t.weights_hash == digest and "+" not in t.subject)
    most = next((t.dtype for t in readers if t.quantisation.startswith(f"{OWN}-")), OWN)
    return most, named.get(digest, most)


def kept(row: Trial, rows: Sequence[Row]) -> str:
    """What a subject's weights are kept as; of a file's own blocks the type of the file."""
    (most, name), form = file_type(row.weights_hash, rows), standings.weights(row)
    return name if form in (OWN, most) else form


def kind_of(name: str) -> type[Row] | None:
    """The kind of row of this name whose tables have lines: the instrument's, or one of a notebook's own `rows`."""
    own = dict(reversed(row.split(":")) for rows in notebooks.saying("rows").values() for row in rows)
    known = {kind.__name__: kind for kind in (Trial, Start)}
    return known.get(name) or (getattr(import_module(own[name]), name) if name in own else None)


def left_out() -> list[str]:
    """Numbers of the notebooks that time ways of measuring, or streams of requests, instead of subjects side by
    side."""
    return [name.split("-")[0] for name in notebooks.saying("no_subjects")]


def tables(home: Path, notebook: str) -> list[Path]:
    """A notebook's tables in a folder, those without a meta file left out."""
    return [path for path in sorted(Path(home).glob(f"{notebook}*.csv")) if record.meta_path(path).is_file()]


def setting(row: Row) -> str:
    """What a run is about, without the names of its subject and model: `context 256`, `strategies`, ``; and how tokens
    are sampled if they are."""
    words = row.run.replace(row.model, "").removesuffix(f" {row.subject}").strip()
    drawn = getattr(row, "sampling", "greedy")
    return " · ".join(filter(None, ["" if words in ("main", "warm") else words, "" if drawn == "greedy" else drawn]))


def lengths(rows: list[Row]) -> str:
    """`36 + 50`: tokens of prompt and answer (`35–39 + 17` where prompts differ); of an extraction, tokens of the whole
    source."""
    if not isinstance(rows[0], Trial):
        return f"{rows[0].tokens:,}"
    prompts = sorted({row.prompt_tokens for row in rows})
    return f"{prompts[0]}{f'–{prompts[-1]}' if len(prompts) > 1 else ''} + {rows[0].new_tokens}"


def share(rows: list[Row]) -> float | None:
    """Median share of what the bandwidth allows, of the rows that know theirs."""
    return summary.median([row.mbu for row in rows if isinstance(row, Trial) and row.mbu == row.mbu])


def ratio_cell(ratio: Ratio | None) -> Number | None:
    """A ratio in a table; None if there is none."""
    return Number.within(ratio.value, ratio) if ratio is not None and ratio.n else None


def share_cell(share: float | None) -> Number | None:
    """A share of the limit in a table; None if it is not known."""
    return Number(f"{share:.6g}", f"{share:.0%}") if share else None
