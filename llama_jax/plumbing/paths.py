"""Where things live on disk."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

from llama_jax.plumbing.errors import UserError

ROOT = Path(__file__).resolve().parents[2]


def cache(*parts: str) -> Path:
    """A path in the user's cache folder: `$LLAMA_JAX_CACHE`, else `$XDG_CACHE_HOME/llama-jax`, else
    `~/.cache/llama-jax`.

    Its contents may be deleted at any time and are then made again. Raises UserError if none of these is known.
    """
    if base := os.environ.get("LLAMA_JAX_CACHE"):
        return Path(base, *parts)
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "llama-jax", *parts)
    except RuntimeError:  # HOME is not set, and the system does not know this user
        raise UserError("This user has no home folder; set HOME, or LLAMA_JAX_CACHE to a folder of your own.") from None


def private(*parts: str) -> Path:
    """A folder of the user's cache for code that will be run: made with mode 0700 if it is missing.

    Raises UserError if it cannot be made, or if it or a folder between it and the cache's root belongs to another user
    or is writable by others, who could then make this process run anything.
    """
    folder = cache(*parts)
    own = [folder, *folder.parents][: len(parts) + 1]
    try:
        for parent in reversed([folder, *folder.parents]):
            if not parent.is_dir():
                parent.mkdir(mode=0o700, exist_ok=True)
        for parent in own:
            if not owned(parent.stat()):
                raise UserError(
                    f"{parent} belongs to another user or may be written by others, and holds what is run as code;"
                    " remove it, or set LLAMA_JAX_CACHE to a folder of your own."
                )
    except (OSError, ValueError) as error:
        raise UserError(f"Cannot make the folder {folder}: {getattr(error, 'strerror', None) or error}.") from None
    return folder


def of_this_machine() -> Path:
    """This user's own folder on this machine, for locks: `llama-jax-UID` in the temporary folder, which other machines
    do not share; made with mode 0700 if it is missing.

    Raises UserError if it cannot be made, or if another user has taken its name by a folder, a file or a link.
    """
    folder = Path(tempfile.gettempdir()) / f"llama-jax-{os.geteuid()}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        status = folder.lstat()
    except OSError as error:
        raise UserError(f"Cannot make the folder {folder}: {error.strerror}.") from None
    if not stat.S_ISDIR(status.st_mode) or not owned(status):
        raise UserError(
            f"{folder} is a link, belongs to another user or may be written by others, and is to hold locks; remove it,"
            " or set TMPDIR to a folder of your own."
        )
    return folder


def owned(status: os.stat_result) -> bool:
    """Whether a folder belongs to this user and is writable by no other."""
    return status.st_uid == os.geteuid() and not stat.S_IMODE(status.st_mode) & 0o022
