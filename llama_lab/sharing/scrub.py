"""Text without what identifies its machine: names of users and hosts, paths, addresses."""

from __future__ import annotations

import contextlib
import getpass
import os
import platform
import re
import tempfile
from collections.abc import Iterable
from pathlib import Path

from llama_jax.plumbing import paths

GONE = "…"
VARIABLES = ("USER", "LOGNAME", "USERNAME", "SUDO_USER", "HOSTNAME", "HOST")  # that hold names
END = r"[^\s/'\"`,;:)\]}<>]+"
PATH = re.compile(
    rf"(?:/{END}){{2,}}/?"  # /home/alice, wherever it begins
    rf"|(?<![\w/<])(?:~|\.{{1,2}})?/{END}/?"  # /data, ~/data, ../data; no tokens/s
)
ADDRESS = re.compile(
    r"[a-z][a-z0-9+.-]*://\S+"
    r"|[\w.+-]+@[\w-]+(?:\.[\w-]+)*"
    r"|(?<![\w.])\d{1,3}(?:\.\d{1,3}){3}(?![\w.])(?::\d+)?"
    r"|(?<![\w:])(?:(?:[0-9a-f]{0,4}:){3,7}[0-9a-f]{0,4}|[0-9a-f]{2,4}::[0-9a-f:]+)(?![\w:])"
    r"|(?<![\w.-])[a-z][\w-]*(?:\.[a-z][\w-]*)+:\d+",  # node7.example.org:2222
    re.I,
)
SHORT = 4  # a name of fewer letters is taken out where it is a word of its own


def owners() -> list[str]:
    """Names of this user and this host, longest first."""
    names = {os.environ.get(name, "") for name in VARIABLES} | {platform.node(), Path(os.path.expanduser("~")).name}
    with contextlib.suppress(OSError, KeyError, ImportError):  # nobody: the system does not know this user
        names.add(getpass.getuser())
    names |= {name.partition(".")[0] for name in names}
    return sorted((name for name in names if len(name) > 1), key=len, reverse=True)


def places() -> list[str]:
    """Folders whose names may hold spaces, longest first."""
    cache = os.environ.get("LLAMA_JAX_CACHE", "")
    known = {os.path.expanduser("~"), os.getcwd(), str(paths.ROOT), tempfile.gettempdir(), cache}
    return sorted((place for place in known if len(place) > 1 and place.startswith("/")), key=len, reverse=True)


def text(words: str, names: Iterable[str], folders: Iterable[str]) -> str:
    """A text without these names, and without anything that looks like a path or an address."""
    for folder in folders:
        words = words.replace(folder, "/" + GONE)
    words = PATH.sub(GONE, ADDRESS.sub(GONE, words))
    for name in names:
        bound = r"(?<![A-Za-z0-9]){}(?![A-Za-z0-9])" if len(name) < SHORT else "{}"
        words = re.sub(bound.format(re.escape(name)), GONE, words, flags=re.I)
    return words


def value(plain, names: Iterable[str] | None = None, folders: Iterable[str] | None = None):
    """JSON values, with every text and key scrubbed."""
    names, folders = owners() if names is None else names, places() if folders is None else folders
    if isinstance(plain, dict):
        return {text(str(k), names, folders): value(v, names, folders) for k, v in plain.items()}
    if isinstance(plain, list | tuple):
        return [value(v, names, folders) for v in plain]
    return text(plain, names, folders) if isinstance(plain, str) else plain


def shows(plain) -> str:
    """The first path or address in JSON values; "" if there is none."""
    if isinstance(plain, dict | list | tuple):
        parts = (*plain, *plain.values()) if isinstance(plain, dict) else plain
        return next(filter(None, map(shows, parts)), "")
    hit = isinstance(plain, str) and (ADDRESS.search(plain) or PATH.search(plain))
    return hit[0] if hit else ""
