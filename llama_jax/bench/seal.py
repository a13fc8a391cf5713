"""A digest of a document in itself: what has changed since it was written is noticed. It needs the standard library."""

import hashlib
import json

SEAL = "meta_sha256"  # of all else in it


def sealed(about: dict) -> dict:
    """A meta document as JSON leaves it, with its digest."""
    plain = json.loads(json.dumps(about))
    return {**plain, SEAL: digest(plain)}


def digest(about: dict) -> str:
    return hashlib.sha256(json.dumps({**about, SEAL: None}, sort_keys=True).encode()).hexdigest()
