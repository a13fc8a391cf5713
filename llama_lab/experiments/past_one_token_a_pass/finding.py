"""What drafts were found to gain, in a sentence for a notebook."""

from __future__ import annotations

from collections.abc import Sequence

from llama_lab.bench import standings
from llama_lab.bench.claim import Claim, Comparison, stated

NOUNS = {"open": "open questions", "copy": "a copy", "edit": "a copy with a word replaced"}


def claim(entries: Sequence[dict]) -> Claim:
    """What drafts do to the fastest placement that has them, on a copy and on open questions. entries: of
    `table.table`."""
    drafted = [e for e in entries if e["ratio"] and e["ratio"].n and e["backend"] == standings.JAX]
    if (best := standings.best([e for e in drafted if e["task"] == "copy"])) is None:
        return Claim("No placement was measured with drafts on copied text.")
    name = best["name"].partition("+lookup")[0]
    on = {e["task"]: Comparison(e["ratio"], f"{name} with drafts on {NOUNS[e['task']]}", "the same without")
          for e in drafted if e["name"] == best["name"]}  # fmt: skip
    copy, free = on["copy"], on.get("open")
    said = "Drafts under {name} make {copy} times the rate on copied text"
    return (
        stated(
            said + "; on open questions they {free:open}.",
            when=free is not None,
            name=name,
            copy=copy,
            free=free or copy,
        )
        or stated(said + ".", name=name, copy=copy)
        or copy.generic
    )
