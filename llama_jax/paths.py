"""Where things live on disk."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def cache(*parts: str) -> Path:
    """A path in the user's cache folder: `$LLAMA_JAX_CACHE`, else `$XDG_CACHE_HOME/llama-jax`, else
    `~/.cache/llama-jax`.

    What lies there may be deleted at any time: it is made again.
    """
    base = os.environ.get("LLAMA_JAX_CACHE")
    home = Path(base) if base else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "llama-jax"
    return home.joinpath(*parts)
