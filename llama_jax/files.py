"""Writing files in one piece: a reader sees the old file or the new one, never half."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from llama_jax.errors import UserError


def write(path: Path, content: str | bytes) -> Path:
    """Replace a file's content, folders made as needed. Raises UserError when it cannot be written; nothing is left behind."""
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
            temporary = file.name
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except OSError as error:
        if temporary and os.path.exists(temporary):
            os.unlink(temporary)
        raise UserError(f"Cannot write {path}: {error.strerror}.") from error
    return path
