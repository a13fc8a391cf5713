"""What the placements of jit, the cache, compiling and the host loop were found to do: a sentence for each notebook."""

from __future__ import annotations
