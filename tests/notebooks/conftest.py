"""What a folder of figures holds."""

import hashlib


def hashes(folder, what="figures/*-*.*"):
    """SHA-256 of each file by its name."""
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.glob(what))}
