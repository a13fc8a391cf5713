"""The verb `score`."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import Field, model_validator

from llama_jax.plumbing import boundary, files
from llama_jax.plumbing.errors import UserError
from llama_jax.plumbing.values import shown
from llama_lab import interruption
from llama_lab.cli import options, text
from llama_lab.cli.common import show, tell_requantised
from llama_lab.cli.options import argument, option, verb

if TYPE_CHECKING:
    from llama_jax.scoring import Likelihood
    from llama_jax.tokenizer import Numbers, Tokenizer

Text = Annotated[str, Field(min_length=1)]
LINES = 'Write a text a line, or {"text": …}, or {"context": …, "continuation": …}.'


class Line(boundary.Declared, extra="forbid"):
    """A text to score, or a continuation of a context, which is not scored."""

    text: Text | None = None
    context: str | None = None
    continuation: Text | None = None

    @model_validator(mode="after")
    def one_kind(self) -> Line:
        if (self.text is None) == (self.continuation is None) or (self.context is None) != (self.continuation is None):
            raise ValueError("it must have text, or context and continuation")
        return self

    @property
    def pair(self) -> tuple[str, str]:
        return self.context or "", self.text or self.continuation


def pairs(content: str, where: str) -> list[tuple[str, str]]:
    """(context, text) of each line that is not blank. Lines are JSON objects if the first begins as one. Raises
    UserError."""
    read_lines = io.StringIO(content, newline=None)  # whichever system's ends of lines
    lines = [(i, line.removesuffix("\n")) for i, line in enumerate(read_lines, 1) if line.strip()]
    if not lines:
        raise UserError(f"{where} has no text to score. {LINES}")
    if not lines[0][1].lstrip().startswith("{"):
        return [("", line) for _, line in lines]

    def read(line: str, at: str) -> Line:
        return boundary.read(Line, boundary.parse(line, at, LINES), at, LINES)

    return [read(line, f"{where}, line {i}").pair for i, line in lines]


def content_of(name: str) -> str:
    """The text of a file, or of standard input for `-`. Raises UserError."""
    if name == "-":
        return text.read_input("give a file")
    try:
        return boundary.content(Path(name), text.LONGEST).decode()
    except FileNotFoundError:
        raise UserError(f"No such file: {name}. {LINES}") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{name} is not UTF-8: {error}.") from None


@verb("`llama-jax score texts.txt --placement step+fused`")
class Score:
    """Score texts: log-likelihood and perplexity of each, or of continuations."""

    file: str = argument(..., "A text a line, or JSON lines; `-` reads standard input.")
    model: str = options.model()
    placement: str | None = options.placement(None)
    dtype: str | None = options.dtype()
    csv: Path | None = option(None, "File for a row per token (.csv).")
    json: bool = options.as_json()

    def run(self) -> dict:
        interruption.at_once()
        from llama_jax.generate import build
        from llama_jax.scoring import perplexity, score
        from llama_jax.tokenizer import Numbers

        if self.csv:
            files.check(self.csv)
        given = pairs(content_of(self.file), "Standard input" if self.file == "-" else self.file)
        loaded, placed = text.opened(self.model, self.placement, self.dtype)
        tell_requantised(loaded.origin, [placed], self.dtype)
        contexts, texts = zip(*given, strict=True)
        tokenizer = loaded.tokenizer or Numbers()
        found = score(build(loaded, placed), texts, contexts, tokenizer)
        if self.csv:
            files.write(self.csv, per_token(found, tokenizer))
        total, count = sum(one.total for one in found), sum(len(one.token_ids) for one in found)
        rows = [entry(len(one.token_ids), one.total, one.perplexity) for one in found]
        whole = entry(count, total, perplexity(total, count))
        show(table([*rows, whole], [*map(shown, texts), f"all {len(texts)}"]), self.json)
        told = [row | dict(greedy=bool(one.best.all())) for row, one in zip(rows, found, strict=True)]
        return dict(model=self.model, placement=placed.name, texts=told) | whole


def entry(tokens: int, total: float, perplexity: float) -> dict:
    """A row; JSON has no infinity."""
    return dict(tokens=tokens, log_likelihood=total, perplexity=perplexity if perplexity < math.inf else None)


def table(rows: Sequence[dict], names: Sequence[str]) -> Iterator[str]:
    """Lines, the last about all."""
    yield f"{'tokens':>8} {'log-likelihood':>15} {'perplexity':>12}  text"
    for row, name in zip(rows, names, strict=True):
        ratio = "over 1e308" if row["perplexity"] is None else f"{row['perplexity']:.2f}"
        yield f"{row['tokens']:>8,} {row['log_likelihood']:>15,.2f} {ratio:>12}  {name}"


def per_token(found: Sequence[Likelihood], tokenizer: Tokenizer | Numbers) -> str:
    """CSV: a row for each scored token."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["text", "token", "id", "logprob", "best"])
    for i, one in enumerate(found):
        for token, value, best in zip(one.token_ids, one.logprobs.tolist(), one.best.tolist(), strict=True):
            writer.writerow([i, tokenizer.decode([token]), token, value, int(best)])
    return out.getvalue()
