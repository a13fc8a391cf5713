"""A document's digest inside the document, which reveals changes. It needs only the standard library."""

import hashlib
import json

SEAL = "meta_sha256"  # of all else in it
ROW = "row_sha256"  # the same of a row


def sealed(about: dict) -> dict:
    """A meta document as JSON leaves it, with its digest."""
    plain = json.loads(json.dumps(about))
    return {**plain, SEAL: digest(plain)}


def digest(about: dict, name: str = SEAL) -> str:
    return hashlib.sha256(json.dumps({**about, name: None}, sort_keys=True).encode()).hexdigest()


def sealed_row(row: dict) -> str:
    """A row as a line of JSON, with its digest."""
    return json.dumps({**row, ROW: digest(json.loads(json.dumps(row)), ROW)})
