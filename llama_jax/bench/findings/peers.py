"""How the placements were found to stand beside other implementations: a sentence for each notebook."""

from __future__ import annotations
