"""Which folder an address means: one of this machine, or one behind a URL."""

from __future__ import annotations

import os
from pathlib import Path

from llama_jax.plumbing.boundary import shown
from llama_jax.plumbing.errors import UserError
from llama_lab.activations.folder import Folder, LocalFolder


def open_folder(out: str | os.PathLike) -> Folder:
    """A local path or an fsspec URL such as `s3://bucket/run`. Nothing is made yet. Raises UserError for what is
    neither, and for an unknown protocol."""
    text = os.fspath(out) if isinstance(out, str | os.PathLike) else None
    if not isinstance(text, str) or not text or not text.isprintable():  # a NUL, or half a surrogate pair
        raise UserError(f"{shown(out)} names no folder; give a path, or a URL such as s3://bucket/run.")
    protocol, separator, path = text.partition("://")
    if separator and len(protocol) < 2:  # fsspec would take it for a file of this machine
        raise UserError(f"{shown(out)} has no protocol; give a path, or a URL such as s3://bucket/run.")
    if not separator:
        return LocalFolder(Path(text))
    if protocol in ("file", "local"):
        return LocalFolder(Path(path))
    from llama_lab.activations import remote  # here: it needs fsspec

    return remote.open_url(text)
