"""Which files a source names: a path, a folder, a glob."""

from __future__ import annotations

import difflib
import glob
import os
import re
from pathlib import Path

from llama_jax.plumbing.boundary import shown
from llama_jax.plumbing.errors import UserError, near
from llama_jax.plumbing.values import LONG
from llama_lab.activations.readers import READERS

MOST = 300_000  # files and folders that are looked through for those that a source names


def find(source: str) -> list[Path]:
    """The files that a path, a folder or a glob names, in order of their names. Raises UserError where there are none,
    and for what is no regular file: a pipe or a device would be waited for."""
    if not source:
        raise UserError("The source has no name; the folder that you are in is '.'.")
    path = Path(source)
    try:
        if path.is_dir():
            return inside(path)
        found = [path] if path.exists() else matches(source)
        if not found:
            raise UserError(f"No such source: {shown(source, LONG)}.{neighbours(path)}")
    except (OSError, ValueError) as error:  # a name that no file can have, a folder that may not be read
        raise UserError(f"Cannot read {shown(source, LONG)}: {getattr(error, 'strerror', None) or error}.") from error
    for p in found:
        if p.suffix.lower() not in READERS:
            raise UserError(f"{shown(str(p), LONG)} is of no known format.{near(p.suffix, READERS)}")
        if not p.is_file():
            raise UserError(f"{p} is no regular file; standard input is the source '-'.")
    return found


def matches(pattern: str) -> list[Path]:
    """The files that a glob names, hidden ones only where it asks for them. No link to a folder is followed by **:
    several that lead back up have no end."""
    parts = Path(re.sub(r"(\*\*/+)+", "**/", pattern)).parts
    at = next((i for i, part in enumerate(parts) if glob.has_magic(part)), len(parts))
    root, wanted = Path(*parts[:at]), parts[at:]
    check_size(root, None if "**" in wanted else len(wanted))
    found = root.glob(str(Path(*wanted))) if wanted else ()
    hidden = any(part.startswith(".") for part in wanted)
    seen = (p for p in found if hidden or not any(part.startswith(".") for part in p.relative_to(root).parts))
    return sorted((p for p in seen if p.is_file()), key=str)


def check_size(folder: Path, depth: int | None = None) -> None:
    """Raises UserError for a folder that holds so much, down to a depth, that looking through it has no end for who
    waits."""
    seen, above = 0, len(folder.parts)
    for home, folders, files in os.walk(folder):
        seen += len(folders) + len(files)
        if seen > MOST:
            raise UserError(f"{folder} holds more than {MOST:,} files and folders; name what is further down.")
        if depth is not None and len(Path(home).parts) - above >= depth - 1:
            folders.clear()


def inside(folder: Path) -> list[Path]:
    """The files of known formats in a folder and below, hidden ones left out. Raises UserError for none, or several
    kinds."""
    check_size(folder)
    kept = (p.relative_to(folder) for p in folder.rglob("*") if p.suffix.lower() in READERS and p.is_file())
    found = sorted((p for p in kept if not any(part.startswith(".") for part in p.parts)), key=lambda p: p.parts)
    kinds = {READERS[p.suffix.lower()]: f"*{p.suffix}" for p in found}
    if not found:
        raise UserError(f"{folder} has no file in a known format ({', '.join(READERS)}).")
    if len(kinds) > 1:
        raise UserError(
            f"{folder} has files of several kinds: {', '.join(sorted(kinds.values()))}. Say which, such as"
            f" {folder / '**' / sorted(kinds.values())[0]}"
        )
    return [folder / p for p in found]


def neighbours(path: Path) -> str:
    """A hint at sources with similar names, or at the kinds that there are."""
    beside = [p.name for p in path.parent.iterdir() if p.suffix.lower() in READERS] if path.parent.is_dir() else []
    if close := difflib.get_close_matches(path.name, [*beside, "manual"], cutoff=0.55):
        return f" Did you mean {' or '.join(repr(c) for c in close)}?"
    return (
        f" A source is 'manual', a file ({', '.join(READERS)}), a folder or a glob of such files, '-', or"
        " 'hf:OWNER/NAME:CONFIG:SPLIT'."
    )
