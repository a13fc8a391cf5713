"""The boundaries of the package: for each, which examples are thrown at it, and what is done with one.

`run` returns where an example was accepted, and raises UserError where it was refused; whatever else it does, ends in
or does not end in is a fault (`arena`).
"""

from collections.abc import Callable
from dataclasses import dataclass

from hypothesis import strategies as st

from tests.fuzz import activations, commands, hostile, models, requests, tables


@dataclass(frozen=True)
class Boundary:
    """examples: a strategy of picklable values. run(example, base, folder): `base` holds the honest inputs, which stay
    as they are; `folder` is empty and this example's own."""

    examples: st.SearchStrategy
    run: Callable


BOUNDARIES = {
    "GGUF header": Boundary(models.headers(), models.gguf_header),
    "GGUF bytes": Boundary(st.tuples(hostile.damage(), st.booleans()), models.gguf_bytes),
    "Hugging Face folder": Boundary(models.folders(), models.hf_folder),
    "requests": Boundary(requests.requests(), requests.request),
    "prompts": Boundary(requests.prompts, requests.prompt),
    "sources": Boundary(activations.sources(), activations.source),
    "stores": Boundary(activations.stores(), activations.store),
    "names of stores": Boundary(st.sampled_from(activations.NAMES), activations.store_name),
    "tables and journals": Boundary(tables.tables(), tables.table),
    "reports": Boundary(tables.reports(), tables.reported),
    "notebooks": Boundary(tables.notebooks_damaged, tables.notebook),
    "command line": Boundary(commands.commands(), commands.command),
}
